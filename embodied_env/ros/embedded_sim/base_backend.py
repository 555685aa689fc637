"""Base of the backends over the embedded simulator, with its process, resets and images."""

from __future__ import annotations

import math
import reprlib
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from embodied_env.backends.backend import Capabilities
from embodied_env.contract import Contract
from embodied_env.contract.contract_loader import backend_profile, dump_contract
from embodied_env.contract.json_messages import INVALID_MESSAGE
from embodied_env.core.message_tap import MessageTap
from embodied_env.core.types import ResetReport, ResetRequest, Snapshot
from embodied_env.errors import BackendLostError, BackendNotReadyError, MissingDependencyError, UsageError
from embodied_env.messages.message_types import message_class
from embodied_env.processes.child_process import Child, simulator
from embodied_env.ros.transport.node import RosNode
from embodied_env.ros.transport.receiver import Receiver
from embodied_env.ros.transport.setup_checks import check_namespace_and_domain, timeout_s, unique_namespace
from embodied_env.ros.wire.sensor_buffer import stamp_ns
from embodied_env.ros.wire.simulator_protocol import NODE, RENDER_SERVICE, RESET_SERVICE, ResetReply, reset_parameters
from embodied_env.timing.clock import Clock
from embodied_env.timing.delay_model import DelayModel, write_delays_file


class EmbeddedSimBackend(ABC):
    """Starts a simulator process, or attaches to a running one.

    Attributes:
        feed: receives the messages that our node publishes and receives.
    """

    name = "mujoco_ros"
    capabilities: Capabilities
    node_name: ClassVar[str]

    def __init__(  # noqa: PLR0913 - its options
        self,
        contract: Contract,
        *,
        clock: Clock,
        spawn: bool = True,
        namespace: str | None = None,
        domain_id: int | None = None,
        step_timeout_s: float | None = None,
        reset_timeout_s: float | None = None,
        delays: DelayModel | None = None,
    ) -> None:
        """Prepare the backend without starting anything.

        Args:
            contract: contract of both sides; its fingerprint is compared at every reset.
            clock: stamps arrivals and bounds waits; in real time it paces the steps.
            spawn: start a simulator process; False: attach to a running simulator.
            namespace: absolute ROS namespace; None: a unique one if `spawn`, else the root.
            domain_id: None: ``ROS_DOMAIN_ID``, or 0.
            step_timeout_s: time for a step (in real time: without any reading) until the simulator counts as lost;
                None: that of the backend profile.
            reset_timeout_s: time for a reset, including the start of the process; None: that of the backend profile.
            delays: injected by the simulator that `spawn` starts, in lockstep only.

        Raises:
            ContractError: if the contract has no profile for this backend.
            UsageError: for an invalid timeout, namespace or domain ID, for `delays` that cannot be injected, and in
                real time for a virtual clock.
        """
        if delays is not None and (not spawn or self.capabilities.free_running):
            raise UsageError("cannot inject delays (expected a simulator in lockstep, started with spawn=True)")
        profile = backend_profile(contract, self.name)
        self._contract, self._clock = contract, clock
        self._spawn, self._namespace, self._domain_id = spawn, namespace, domain_id
        self._delays = delays
        self._delays_file: Path | None = None
        self.step_timeout_s = timeout_s("step_timeout_s", step_timeout_s, profile.get("step_timeout_s", 5.0))
        self.reset_timeout_s = timeout_s("reset_timeout_s", reset_timeout_s, profile.get("reset_timeout_s", 60.0))
        check_namespace_and_domain(namespace, domain_id)
        self.feed = MessageTap()
        self._epoch_base = secrets.randbits(62)
        self._child: Child | None = None  # the simulator that we started
        self._ros: RosNode | None = None
        self._usable = self._is_halted = False
        self._prepare()

    @abstractmethod
    def _prepare(self) -> None: ...

    # ------------------------------------------------------------------------------------------ connection

    def open(self) -> None:
        """Start the simulator if `spawn` is true, and create our nodes."""
        namespace = self._namespace or (unique_namespace() if self._spawn else "/")
        try:
            if self._spawn:
                self._start_simulator(namespace)
            self._ros = RosNode(
                self.node_name,
                namespace=namespace,
                clock=self._clock,
                domain_id=self._domain_id,
                ros_args=self._ros_args(namespace),
                feed=self.feed,
            )
            self._connect_topics(self._ros, namespace)
        except BaseException:
            self.close()
            raise

    def _ros_args(self, namespace: str) -> tuple[str, ...]:
        """Return arguments that keep a node with our simulator, whatever a launch file pushes."""
        return ("-r", f"__ns:={namespace}") if self._spawn else ()

    def _start_simulator(self, namespace: str) -> None:
        if self._delays is not None:
            self._delays_file = write_delays_file(self._delays)
        spec = simulator(
            "-",
            namespace=namespace,
            profile=self.name,
            source=self._contract.source,
            free_running=self.capabilities.free_running,
            delays=None if self._delays_file is None else str(self._delays_file),
        )
        environment = {} if self._domain_id is None else {"ROS_DOMAIN_ID": str(self._domain_id)}
        self._child = Child(spec, first_line=dump_contract(self._contract), environment=environment)

    @abstractmethod
    def _connect_topics(self, ros: RosNode, namespace: str) -> None: ...

    def _reopen_if_ended(self) -> RosNode:
        if self._ros is None or (self._child is not None and self._child.exit_code is not None):
            self.close()
            self.open()
        if self._ros is None:
            raise BackendNotReadyError("the node is not open")
        return self._ros

    def _raise_if_exited(self) -> None:
        if self._is_halted:
            raise BackendLostError("halted", "the connection was halted")
        child = self._child
        if child is not None and (code := child.exit_code) is not None:
            output = child.stderr_tail() or "no output"
            raise BackendLostError("simulator_died", f"process {child.pid} exited with code {code}: {output}")

    def _check_usable(self) -> RosNode:
        if not self._usable or self._ros is None:
            raise BackendLostError("halted", "the connection was halted, closed or never reset; call reset()")
        return self._ros

    # ---------------------------------------------------------------------------------------------- reset

    def reset(self, request: ResetRequest, deadline_ns: int) -> Snapshot:
        """Reset the world, after restarting an ended simulator, and return newer readings."""
        self._usable = self._is_halted = False
        try:
            reply, snapshot = self._reset(request, deadline_ns)
        except (TimeoutError, BackendLostError) as error:
            raise BackendNotReadyError(f"reset: {error}") from None
        if self._child is not None:
            self._child.note_shared_memory()
        self._usable = True
        report = ResetReport(level="world", seed_applied=request.seed, sampled=reply.sampled, details=reply.details)
        return replace(snapshot, reset=report)

    @abstractmethod
    def _reset(self, request: ResetRequest, deadline_ns: int) -> tuple[ResetReply, Snapshot]: ...

    def _set_reset_parameters(self, epoch: int, request: ResetRequest, end: float) -> None:
        """Set seed, options and epoch of the next reset before `end`, monotonic s."""
        parameters = reset_parameters(request, epoch)
        response = self._call("rcl_interfaces/srv/SetParameters", f"{NODE}/set_parameters", end, parameters=parameters)
        rejected = [result.reason for result in response.results if not result.successful]
        if rejected:
            raise BackendNotReadyError(f"simulator rejected the reset parameters: {'; '.join(rejected)}")

    def _reset_simulator(self, epoch: int, end: float) -> ResetReply:
        """Reset the simulator, which returns the same reply to repeated calls for an epoch."""
        response = self._call("std_srvs/srv/Trigger", RESET_SERVICE, end)
        if not response.success:
            raise BackendNotReadyError(f"simulator reset failed: {response.message}")
        try:
            reply = ResetReply.from_text(response.message)
        except ValueError as error:
            raise BackendNotReadyError(str(error)) from None
        if reply.epoch != epoch:
            raise BackendNotReadyError("simulator was reset by another client at the same time")
        fingerprint = self._contract.fingerprint
        if reply.fingerprint != fingerprint:
            raise BackendNotReadyError(
                f"wrong contract in the simulator: fingerprint {reply.fingerprint[:12]} (expected {fingerprint[:12]})"
            )
        return reply

    def _call(self, service_type: str, name: str, end: float, **fields: Any) -> Any:  # noqa: ANN401 - generated types
        """Return the response of a service, or raise TimeoutError at `end` (monotonic s)."""
        if self._ros is None:
            raise BackendLostError("closed", "the connection is closed")
        kind: Any = message_class(service_type)
        timeout_s = end - time.monotonic()
        return self._ros.receiver.call(kind, name, kind.Request(**fields), timeout_s, self._raise_if_exited)

    # ----------------------------------------------------------------------------------------------- image

    def render(self) -> NDArray[np.uint8]:
        """Return an image of the current world of the simulator, shape (height, width, 3).

        Raises:
            BackendLostError: before the first reset, or if no image arrives within `reset_timeout_s`.
            MissingDependencyError: if the simulator cannot render.
        """
        receiver = self._check_usable().receiver
        end = time.monotonic() + self.reset_timeout_s
        stamp = self._request_image(end)
        while time.monotonic() < end:
            for message in self._receive_images(receiver):
                if stamp_ns(message) != stamp or message.encoding != "rgb8":
                    continue  # it answers another request, or is from a foreign publisher
                shape = int(message.height), int(message.width), 3
                if len(message.data) == math.prod(shape):
                    return np.frombuffer(message.data, dtype=np.uint8).reshape(shape).copy()
            self._raise_if_exited()
        raise BackendLostError("timeout", f"no image received within {self.reset_timeout_s} s")

    def _request_image(self, end: float) -> int:
        """Request an image, and return its stamp, ns."""
        try:
            response = self._call("std_srvs/srv/Trigger", RENDER_SERVICE, end)
        except TimeoutError as error:
            raise BackendLostError("timeout", str(error)) from None
        if not response.success:
            raise MissingDependencyError("a renderer", needed_for="render()", remedy=response.message)
        try:
            return int(response.message)
        except ValueError:
            detail = f"{RENDER_SERVICE}: {reprlib.repr(response.message)} (expected the stamp of the image, ns)"
            raise BackendLostError(INVALID_MESSAGE, detail) from None

    @abstractmethod
    def _receive_images(self, receiver: Receiver) -> Sequence[Any]:
        """Return the sensor_msgs/Image messages that have arrived, waiting at most `POLL_S`."""

    # ------------------------------------------------------------------------------------------------ end

    def halt(self, reason: str) -> None:  # noqa: ARG002 - the protocol's
        """Kill a simulator that we started, and publish nothing until the next reset restarts it."""
        if self._usable and self._child is not None:
            self._child.kill()
        self._usable, self._is_halted = False, True

    def close(self) -> None:
        """Destroy the node before its simulator, since a killed one leaves shared memory behind."""
        self._usable = False
        ros, child, delays_file = self._ros, self._child, self._delays_file
        self._ros = self._child = self._delays_file = None
        with ExitStack() as last_first:
            if delays_file is not None:
                last_first.callback(delays_file.unlink, missing_ok=True)
            if child is not None:
                last_first.callback(child.stop)
            if ros is not None:
                last_first.callback(ros.close)

    def processes(self) -> list[dict[str, Any]]:
        """Return the simulator that we started."""
        return [] if self._child is None else [{"role": self._child.role, "pid": self._child.pid}]
