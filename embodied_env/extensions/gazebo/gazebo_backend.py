"""Gazebo in lockstep on a running server, or on one that the backend starts and ends."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from embodied_env.contract import Contract
from embodied_env.contract.argument_checks import checked_flag
from embodied_env.core.types import ResetRequest, Snapshot
from embodied_env.errors import BackendLostError, BackendNotReadyError, MissingDependencyError
from embodied_env.extensions.gazebo.control.simulator_api import SimulatorNotReadyError
from embodied_env.extensions.gazebo.external_sim_backend import SimulatorBackend
from embodied_env.processes.child_process import CLI, Child, ProcessSpec
from embodied_env.ros.transport.setup_checks import apt_package
from embodied_env.timing.clock import Clock

_GRACE_S = 20.0  # the launch ends its processes one after the other
_DOMAINS = 102  # above, ports of DDS would be ephemeral ports of Linux
_START_S = 120.0  # reset timeout that includes the start of a server


class GazeboServer:
    """The server, its bridge and controllers, which end with `stop` or with this process."""

    def __init__(self, contract: Contract, arguments: Mapping[str, str], domain_id: int | None) -> None:
        """Start the launch in a domain, by default a free one.

        Raises BackendNotReadyError without a free domain, and MissingDependencyError without Gazebo.
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
    """Return a domain without participants, and a socket that claims it."""
    own = int(os.environ.get("ROS_DOMAIN_ID") or 0)
    for domain_id in ((own + 1 + index) % _DOMAINS for index in range(_DOMAINS - 1)):
        claim = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError), socket.socket(type=socket.SOCK_DGRAM) as probe:
            claim.bind(f"\0embodied_env/ros_domain/{domain_id}")  # an abstract name, which ends with the process
            probe.bind(("", 7410 + 250 * domain_id))  # the port of the first participant
            return domain_id, claim
        claim.close()
    raise BackendNotReadyError("no free ROS 2 domain (expected one below 102); pass domain_id")


class GazeboBackend(SimulatorBackend):
    """Gazebo, through ros_gz_bridge unless its profile sets another control."""

    name = "gazebo"

    def __init__(
        self,
        contract: Contract,
        *,
        clock: Clock,
        launch: bool | Mapping[str, str] = False,
        namespace: str | None = None,
        domain_id: int | None = None,
        step_timeout_s: float | None = None,
        reset_timeout_s: float | None = None,
    ) -> None:
        """Prepare the backend without starting anything.

        `launch` starts a server, and a mapping has its arguments of `launch gazebo`. The server has a partition of
        its own, the domain `domain_id`, or else a free one, and ends with `close`. The others are those of
        `SimulatorBackend`; `reset_timeout_s` includes its start.
        """
        self._launch = launch if isinstance(launch, Mapping) else {} if checked_flag("launch", launch) else None
        self._server: GazeboServer | None = None
        self._starts = 0  # servers that were started
        self._given_domain_id = domain_id
        if self._launch is not None and reset_timeout_s is None:
            reset_timeout_s = _START_S
        timeouts = {"step_timeout_s": step_timeout_s, "reset_timeout_s": reset_timeout_s}
        super().__init__(contract, clock=clock, namespace=namespace, domain_id=domain_id, **timeouts)

    def open(self) -> None:
        """Start the server if `launch` is given, and create our node."""
        if self._launch is not None:
            self._server = GazeboServer(self._contract, self._launch, self._given_domain_id)
            self._domain_id = self._server.domain_id
            self._starts += 1
        super().open()

    def reset(self, request: ResetRequest, deadline_ns: int) -> Snapshot:
        """Reset as `SimulatorBackend`, with a restart of our server if it was lost or ends."""
        if self._launch is None:
            return super().reset(request, deadline_ns)
        must_start = self._server is None or self._is_halted or self._server.has_exited
        if must_start:
            self._restart()
        try:
            snapshot = super().reset(request, deadline_ns)
        except SimulatorNotReadyError:
            if must_start or self._server is None or not self._server.has_exited:
                raise
            self._restart()
            snapshot = super().reset(request, deadline_ns)
        if snapshot.reset is None:
            return snapshot
        details = {**snapshot.reset.details, "server_starts": str(self._starts)}
        return replace(snapshot, reset=replace(snapshot.reset, details=details))

    def _restart(self) -> None:
        self.close()
        self.open()

    def close(self) -> None:
        """Destroy our node, then end the server that we started."""
        server, self._server = self._server, None
        try:
            super().close()
        finally:
            if server is not None:
                server.stop()

    def processes(self) -> list[dict[str, Any]]:
        """Return the supervisor of the server that we started, and how many servers were started."""
        server = self._server
        return [] if server is None else [{"role": "gazebo", "pid": server.pid, "starts": self._starts}]

    def _check_liveness(self) -> None:
        super()._check_liveness()
        if self._server is not None:
            self._server.raise_if_exited()
