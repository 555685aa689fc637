"""Start a Gazebo server for one environment, in its own domain and partition."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import weakref
from collections.abc import Mapping

from embodied_env.contract import Contract
from embodied_env.errors import BackendLostError, BackendNotReadyError, MissingDependencyError
from embodied_env.processes.child_process import CLI, Child, ProcessSpec
from embodied_env.ros.transport.setup_checks import apt_package

_GRACE_S = 20.0  # the launch ends its processes one after the other
_DOMAINS = 102  # above, ports of DDS would be ephemeral ports of Linux


class GazeboServer:
    """The server, its bridge and its controllers.

    They end with `stop`, or with this process in any way.

    Attributes:
        domain_id: their ROS 2 domain.
        pid: process id of the supervisor of the launch.
    """

    def __init__(self, contract: Contract, arguments: Mapping[str, str], domain_id: int | None) -> None:
        """Start the launch with these arguments.

        With `domain_id` None, it is one that no other process of this machine uses. Raises BackendNotReadyError or
        MissingDependencyError.
        """
        if shutil.which("gz") is None:
            remedy = f"apt install {apt_package('ros_gz')}, and source its setup.bash"
            raise MissingDependencyError("gz", needed_for="launch=True", remedy=remedy)
        self._claim: socket.socket | None
        self.domain_id, self._claim = _claim_domain() if domain_id is None else (domain_id, None)
        given = {"contract": contract.source, "policy": "none", **arguments}
        words = tuple(f"{name}:={value}" for name, value in given.items())
        launch = ProcessSpec(role="gazebo", module=CLI, arguments=("launch", "gazebo", *words), grace_s=_GRACE_S)
        spec = ProcessSpec(role="gazebo", arguments=tuple(launch.supervised_command()), grace_s=launch.longest_end_s)
        own = {"ROS_DOMAIN_ID": str(self.domain_id), "GZ_PARTITION": f"embodied_env_{secrets.token_hex(8)}"}
        self._child = Child(spec, environment=own)
        self.pid = self._child.pid
        weakref.finalize(self, self._child.stop, by_input=False).atexit = False

    @property
    def has_exited(self) -> bool:
        """Whether the launch has ended."""
        return self._child.exit_code is not None

    def raise_if_exited(self) -> None:
        """Raise BackendLostError, with the end of its output, if the launch has ended."""
        if (code := self._child.exit_code) is not None:
            output = self._child.stderr_tail() or "no output"
            raise BackendLostError("simulator_died", f"launch gazebo exited with code {code}: {output}")

    def stop(self) -> None:
        """End all processes, and release the domain. Idempotent."""
        self._child.stop(by_input=False)
        if self._claim is not None:
            self._claim.close()


def _claim_domain() -> tuple[int, socket.socket]:
    """Return a domain without participants, and a socket that keeps other environments from claiming it."""
    own = int(os.environ.get("ROS_DOMAIN_ID") or 0)
    for domain_id in ((own + 1 + index) % _DOMAINS for index in range(_DOMAINS - 1)):
        claim = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError), socket.socket(type=socket.SOCK_DGRAM) as probe:
            claim.bind(f"\0embodied_env/ros_domain/{domain_id}")  # an abstract name, which ends with the process
            probe.bind(("", 7410 + 250 * domain_id))  # the port of the first participant
            return domain_id, claim
        claim.close()
    raise BackendNotReadyError("no free ROS 2 domain (expected one below 102); pass domain_id")
