"""Gazebo in lockstep on a running server, or on one that the backend starts and ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from embodied_env.contract import Contract
from embodied_env.contract.argument_checks import checked_flag
from embodied_env.core.types import ResetRequest, Snapshot
from embodied_env.extensions.gazebo.control.simulator_api import SimulatorNotReadyError
from embodied_env.extensions.gazebo.external_sim_backend import SimulatorBackend
from embodied_env.extensions.gazebo.gazebo_server import GazeboServer
from embodied_env.timing.clock import Clock

_START_S = 120.0  # reset timeout that includes the start of a server


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
        """Reset as `SimulatorBackend` does.

        A server of ours that was lost or ends meanwhile is restarted.
        """
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
