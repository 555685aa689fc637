"""Base of both backends over the embedded simulator: its process, its resets and its pictures."""

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
from embodied_env.contract.loader import dump_contract, profile_of
from embodied_env.core.clock import Clock, Stamp
from embodied_env.core.message_tap import MessageTap
from embodied_env.core.process.child import Child, simulator
from embodied_env.core.types import ResetReport, ResetRequest, Snapshot
from embodied_env.errors import BackendLostError, BackendNotReadyError
from embodied_env.ros.embedded_sim.protocol import ResetReply
from embodied_env.ros.embedded_sim.services import SimulatorServices, picture_of
from embodied_env.ros.node import RosNode
from embodied_env.ros.receiver import Receiver
from embodied_env.ros.setup_checks import check_namespace_and_domain, timeout_s, unique_namespace


class EmbeddedSimBackend(ABC):
    """Starts a simulator process, or attaches to a running one.

    Attributes:
        feed: receives the messages that our node publishes and receives.
    """

    name = "mujoco_ros"

    def __init__(
        self,
        contract: Contract,
        *,
        clock: Clock,
        spawn: bool = True,
        namespace: str | None = None,
        domain_id: int | None = None,
        step_timeout_s: float | None = None,
        reset_timeout_s: float | None = None,
    ) -> None:
        """Prepare; nothing is started.

        Args:
            contract: of both sides; its fingerprint is compared at every reset.
            clock: stamps arrivals and bounds waits; in real time it paces the steps.
            spawn: start a simulator process; False: attach to a running simulator.
            namespace: absolute ROS namespace; None: a unique one if `spawn`, else the root.
            domain_id: None: ``ROS_DOMAIN_ID``, or 0.
            step_timeout_s: time for a step (in real time: without any reading) until the simulator counts as lost;
                None: that of the backend profile.
            reset_timeout_s: time for a reset, including the start of the process; None: that of the backend profile.

        Raises:
            ContractError: if the contract has no profile for this backend.
            UsageError: for an invalid timeout, namespace or domain ID, and in real time for a virtual clock.
        """
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
        self._child: Child | None = None  # the simulator that we started
        self._ros: RosNode | None = None
        self._usable = False

    # ------------------------------------------------------------------------------------------ connection

    def open(self) -> None:
        """Start the simulator if `spawn` is true, and create our nodes."""
        try:
            self._open(self._namespace or (unique_namespace() if self._spawn else "/"))
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _open(self, namespace: str) -> None:
        """Start the simulator if `spawn` is true, and create our nodes in `namespace`."""

    def _start_simulator(self, namespace: str, **options: Any) -> None:  # noqa: ANN401 - those of `simulator`
        """Start the simulator process, which reads the contract from its standard input."""
        spec = simulator("-", namespace=namespace, source=self._contract.source, **options)
        environment = {} if self._domain_id is None else {"ROS_DOMAIN_ID": str(self._domain_id)}
        self._child = Child(spec, first_line=dump_contract(self._contract), environment=environment)

    def _create_node(self, name: str, namespace: str) -> RosNode:
        self._ros = RosNode(name, namespace=namespace, clock=self._clock, domain_id=self._domain_id, feed=self.feed)
        return self._ros

    def _reopen_if_ended(self) -> RosNode:
        """Return our node; restart a simulator that has ended."""
        if self._ros is None or (self._child is not None and self._child.exit_code is not None):
            self.close()
            self.open()
        if self._ros is None:
            raise BackendNotReadyError("the node is not open")
        return self._ros

    def _raise_if_exited(self) -> None:
        """Raise BackendLostError if the simulator that we started has ended."""
        child = self._child
        if child is not None and (code := child.exit_code) is not None:
            words = child.stderr_tail() or "no output"
            raise BackendLostError("simulator_died", f"pid {child.pid} ended with exit code {code}: {words}")

    def _check_usable(self) -> RosNode:
        """Return our node; raises BackendLostError after `halt` or `close`, or before the first reset."""
        if not self._usable or self._ros is None:
            raise BackendLostError("halted", "the connection was halted, closed, or never reset")
        return self._ros

    # ---------------------------------------------------------------------------------------------- reset

    def reset(self, request: ResetRequest, deadline: Stamp) -> Snapshot:
        """Reset the world by seed and options; every reading is newer than the reset. Restart an ended simulator."""
        self._usable = False
        try:
            reply, snapshot = self._reset(request, deadline)
        except (TimeoutError, BackendLostError) as error:
            raise BackendNotReadyError(f"reset: {error}") from None
        if self._child is not None:
            self._child.note_shared_memory()
        self._usable = True
        report = ResetReport(level="world", seed_applied=request.seed, sampled=reply.sampled, details=reply.details)
        return replace(snapshot, reset=report)

    @abstractmethod
    def _reset(self, request: ResetRequest, deadline: Stamp) -> tuple[ResetReply, Snapshot]:
        """Reset the world; return its reply, and newer readings."""

    def _services(self) -> SimulatorServices:
        if self._ros is None:
            raise BackendLostError("closed", "the connection is closed")
        return SimulatorServices(receiver=self._ros.receiver, patrol=self._raise_if_exited)

    # --------------------------------------------------------------------------------------------- picture

    def render(self) -> NDArray[np.uint8]:
        """Return a picture of the simulator's world as it is now, shape (height, width, 3).

        Raises:
            BackendLostError: if it does not arrive within `step_timeout_s`.
            MissingDependencyError: if the simulator cannot render.
        """
        services, end = self._services(), time.monotonic() + self.step_timeout_s
        taken_ns = services.render(end)
        while time.monotonic() < end:
            for message in self._receive_pictures(services.receiver):
                if (picture := picture_of(message, taken_ns)) is not None:
                    return picture
            self._raise_if_exited()
        raise BackendLostError("timeout", "the picture did not come")

    @abstractmethod
    def _receive_pictures(self, receiver: Receiver) -> Sequence[Any]:
        """Return the sensor_msgs/Image messages that have arrived, waiting at most `POLL_S`."""

    # ------------------------------------------------------------------------------------------------ end

    def halt(self, reason: str) -> None:  # noqa: ARG002 - the protocol's
        """Publish nothing more until the next reset. A simulator that we started is killed; reset restarts it."""
        if self._usable and self._child is not None:
            self._child.kill()
        self._usable = False

    def close(self) -> None:
        """Destroy our node, then end the simulator that we started: a killed one leaves shared memory to remove."""
        self._usable = False
        ros, self._ros = self._ros, None
        try:
            if ros is not None:
                ros.close()
        finally:
            child, self._child = self._child, None
            if child is not None:
                child.stop()

    def processes(self) -> list[dict[str, Any]]:
        """Return the simulator that we started."""
        return [] if self._child is None else [{"role": self._child.role, "pid": self._child.pid}]
