"""What both backends over the embedded simulator share: its process, its resets, and its pictures."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract
from embodied_env.contract.loader import profile_of
from embodied_env.core.clock import Clock, Stamp
from embodied_env.core.message_tap import MessageTap
from embodied_env.core.types import ResetReport, ResetRequest, Snapshot
from embodied_env.errors import BackendLostError, BackendNotReadyError
from embodied_env.ros.embedded_sim.process import SimulatorProcess
from embodied_env.ros.embedded_sim.protocol import ResetReply
from embodied_env.ros.embedded_sim.services import SimulatorServices, picture_of
from embodied_env.ros.node import RosNode
from embodied_env.ros.receiver import Receiver
from embodied_env.ros.setup_checks import check_namespace_and_domain, timeout_s, unique_namespace


class EmbeddedSimBackend(ABC):
    """The life of a simulator process of ours, or of a connection to another's.

    Attributes:
        feed: gets the messages that our node publishes and receives.
    """

    name = "mujoco_ros"

    def __init__(
        self,
        contract: Contract,
        *,
        clock: Clock,
        spawn: bool,
        namespace: str | None,
        domain_id: int | None,
        step_timeout_s: float | None,
        reset_timeout_s: float | None,
    ) -> None:
        """Prepare; nothing is started. The arguments are those of the subclasses."""
        profile = profile_of(contract, self.name)
        self._contract = contract
        self._clock = clock
        self._spawn = spawn
        self._namespace = namespace
        self._domain_id = domain_id
        self.step_timeout_s = timeout_s("step_timeout_s", step_timeout_s, profile.get("step_timeout_s", 5.0))
        self.reset_timeout_s = timeout_s("reset_timeout_s", reset_timeout_s, profile.get("reset_timeout_s", 30.0))
        check_namespace_and_domain(namespace, domain_id)
        self.feed = MessageTap()
        self._epoch_base = secrets.randbits(62)
        self._simulator = SimulatorProcess(contract, domain_id=domain_id)
        self._ros: RosNode | None = None
        self._usable = False

    # ------------------------------------------------------------------------------------------ connecting

    def open(self) -> None:
        """Start the simulator when it is ours to start, and create our nodes."""
        try:
            self._open(self._namespace or (unique_namespace() if self._spawn else "/"))
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _open(self, namespace: str) -> None:
        """Start the simulator where `spawn` is true, and create our nodes in `namespace`."""

    def _create_node(self, name: str, namespace: str) -> RosNode:
        self._ros = RosNode(name, namespace=namespace, clock=self._clock, domain_id=self._domain_id, feed=self.feed)
        return self._ros

    def _reopen_if_ended(self) -> RosNode:
        """Return our node; a simulator that has ended is started again."""
        if self._ros is None or self._simulator.has_ended:
            self.close()
            self.open()
        if self._ros is None:
            raise BackendNotReadyError("the node is not open")
        return self._ros

    # ---------------------------------------------------------------------------------------------- reset

    def reset(self, request: ResetRequest, deadline: Stamp) -> Snapshot:
        """Reset the world by seed and options; every sensor is newer than the reset. Restart an ended simulator."""
        self._usable = False
        try:
            reply, snapshot = self._reset(request, deadline)
        except (TimeoutError, BackendLostError) as error:
            raise BackendNotReadyError(f"reset: {error}") from None
        self._simulator.record_shm_segments()
        self._usable = True
        report = ResetReport(level="world", seed_applied=request.seed, sampled=reply.sampled, details=reply.details)
        return replace(snapshot, reset=report)

    @abstractmethod
    def _reset(self, request: ResetRequest, deadline: Stamp) -> tuple[ResetReply, Snapshot]:
        """Reset the world, and return what it replied and readings that are newer."""

    def _services(self) -> SimulatorServices:
        if self._ros is None:
            raise BackendLostError("closed", "the connection is closed")
        return SimulatorServices(receiver=self._ros.receiver, patrol=self._simulator.raise_if_exited)

    # --------------------------------------------------------------------------------------------- picture

    def render(self) -> NDArray[np.uint8]:
        """Return a picture of the simulator's world as it is now, shape (height, width, 3).

        Raises:
            BackendLostError: when none comes within the time of a step.
            MissingDependencyError: when the simulator cannot render.
        """
        services, end = self._services(), time.monotonic() + self.step_timeout_s
        taken_ns = services.render(end)
        while time.monotonic() < end:
            for message in self._receive_pictures(services.receiver):
                if (picture := picture_of(message, taken_ns)) is not None:
                    return picture
            self._simulator.raise_if_exited()
        raise BackendLostError("timeout", "the picture did not come")

    @abstractmethod
    def _receive_pictures(self, receiver: Receiver) -> Sequence[Any]:
        """Return the sensor_msgs/Image messages that have arrived, waiting at most `POLL_S`."""

    # ------------------------------------------------------------------------------------------------ end

    def halt(self, reason: str) -> None:  # noqa: ARG002 - the protocol's
        """Publish nothing more until the next reset. A simulator of ours is ended; reset starts another."""
        if self._usable:
            self._simulator.kill()
        self._usable = False

    def close(self) -> None:
        """Destroy our node and end our simulator."""
        self._usable = False
        ros, self._ros = self._ros, None
        try:
            if ros is not None:
                ros.close()
        finally:
            self._simulator.stop()

    def processes(self) -> list[dict[str, Any]]:
        """Return the simulator that we started."""
        return self._simulator.describe()

    def _check_usable(self) -> RosNode:
        """Return our node; raises BackendLostError after `halt` or `close`, or before the first reset."""
        if not self._usable or self._ros is None:
            raise BackendLostError("halted", "the connection was halted, closed, or never reset")
        return self._ros
