"""Start and end a Gazebo server with its bridge, by `embodied-env launch gazebo`."""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

CLI = [sys.executable, "-m", "embodied_env.cli"]
_LAUNCH = [*CLI, "launch", "gazebo"]
_END_S = 30.0


@dataclass(kw_only=True)
class GazeboServer:
    """A server in its own domain and partition, with the world of a contract."""

    contract: str
    domain_id: int
    log: Path
    partition: str = field(default_factory=lambda: f"test_{secrets.token_hex(4)}")

    @property
    def environment(self) -> dict[str, str]:
        """The environment of every process that belongs to this server or connects to it."""
        own = {
            "ROS_DOMAIN_ID": str(self.domain_id),
            "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
            "GZ_PARTITION": self.partition,
        }
        return {**os.environ, **own}

    def start(self) -> None:
        """Start server, bridge and controllers without waiting for them, and not as children of this process."""
        command = ["setsid", "--fork", *_LAUNCH, f"contract:={self.contract}", "policy:=none"]
        with self.log.open("ab") as log:
            subprocess.run(command, env=self.environment, stdout=log, stderr=log, check=True)

    def run(self, *arguments: str, timeout_s: float = 600.0) -> subprocess.CompletedProcess[str]:
        """Run a verb of the command line next to the server."""
        return subprocess.run(
            [*CLI, *arguments], env=self.environment, capture_output=True, text=True, check=False, timeout=timeout_s
        )

    def kill(self) -> None:
        """Kill all processes of the server, and return when none is left."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._await_end()

    def stop(self) -> None:
        """End the server as Ctrl-C does, and fail if a process is left."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.cmdline()[: len(_LAUNCH)] == _LAUNCH:
                    process.send_signal(signal.SIGINT)
        self._await_end()

    def processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("GZ_PARTITION") == self.partition and process.is_running():
                    found.append(process)  # a zombie has no environment
            except psutil.Error:
                continue
        return found

    def _await_end(self) -> None:
        end = time.monotonic() + _END_S
        while (left := self.processes()) and time.monotonic() < end:
            time.sleep(0.1)
        names = sorted(process.name() for process in left)
        for process in left:
            process.kill()
        assert names == [], f"left behind: {names}; see {self.log}"
