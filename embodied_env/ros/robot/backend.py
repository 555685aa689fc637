"""A robot, or what looks like one, over its own topics: it moves by itself, and nobody owns its time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from embodied_env.ros.node import RosNode  # first: it says what is missing where rclpy is

# isort: split
from embodied_env.backends.base import Capabilities
from embodied_env.contract import Contract
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.clock import NS_PER_S, Clock, Stamp, deadline_to_monotonic_s
from embodied_env.core.message_tap import MessageTap
from embodied_env.core.pacing import Pacer
from embodied_env.core.process.signals import deferred_signals
from embodied_env.core.types import (
    ActuationEvidence,
    ApprovedCommand,
    Observer,
    ResetReport,
    ResetRequest,
    Sample,
    SentCommand,
    Snapshot,
    check_approved,
)
from embodied_env.errors import BackendLostError, BackendNotReadyError, UsageError
from embodied_env.ros.fastdds import warn_if_segment_too_small
from embodied_env.ros.qos import ANY
from embodied_env.ros.receive_thread import ReceiveThread
from embodied_env.ros.robot.actuation_feedback import ControllerState
from embodied_env.ros.robot.command_publishers import ActuatorPublishers, CommandSink, DryRunSink
from embodied_env.ros.robot.contract_checks import check_positions, contract_checks, raise_unless_passed
from embodied_env.ros.robot.diagnostics import Diagnostics
from embodied_env.ros.robot.operator_confirmation import Confirmation, make_confirmation
from embodied_env.ros.robot.preflight import preflight
from embodied_env.ros.robot.profile import RESET_LEVELS, load_real_profile, node_parameters, profile_in_force
from embodied_env.ros.robot.relay_client import RELAY_STATE, RelayClient
from embodied_env.ros.robot.reset import ResetService, dry_report
from embodied_env.ros.robot.safety_inputs import CONTENTION, SafetyInputs
from embodied_env.ros.robot.sensor_set import SensorSet
from embodied_env.ros.setup_checks import check_namespace_and_domain, check_node_name, ros_arguments, timeout_s
from embodied_env.ros.transforms import Frames


class RealBackend:
    """Commands out to the actuators' topics or to a relay; the newest readings, taken by a thread of our own, back in.

    Attributes:
        capabilities: with a relay it acknowledges commands: the joint limits are the relay's.
        pacer: the deadlines of the steps of an episode, and what was missed of them.
        observers: who is told of each transition: what publishes the diagnostics.
        feed: gets the messages that our node publishes and receives.
        publisher_environment: the environment of who publishes the sensors, as far as it is known.
    """

    name = "real"
    capabilities = Capabilities(free_running=True, transport=True, estop_inputs=True, reset_levels=RESET_LEVELS)

    def __init__(  # noqa: PLR0913 - the public options
        self,
        contract: Contract,
        *,
        clock: Clock,
        namespace: str | None = None,
        domain_id: int | None = None,
        step_timeout_s: float | None = None,
        reset_timeout_s: float | None = None,
        relay: bool | None = None,
        armed: bool = True,
        node_name: str = "environment",
        ros_args: Sequence[str] = (),
        frames: Frames | None = None,
        on_sample: Callable[[Sample], None] | None = None,
    ) -> None:
        """Prepare; nothing is started.

        Args:
            contract: what the robot offers.
            clock: paces the steps and stamps arrivals; a steady one.
            namespace: absolute ROS namespace of the robot; None: the root.
            domain_id: None: ``ROS_DOMAIN_ID``, or 0.
            step_timeout_s: without any reading for so long the robot counts as lost; None: the profile's.
            reset_timeout_s: how long a reset may take; None: the profile's.
            relay: whether commands go through a relay, which runs already; None: the profile's.
            armed: False: a dry run. All is started and checked, readings are real, and the gate judges every action;
                but no command is published, no reset service is called, nobody is asked, and a relay is not armed.
            node_name: of our node; no other in the namespace may have it.
            ros_args: what would stand after ``--ros-args``, for our node alone: ``["-r", "joint_states:=arm/states"]``.
                What stands in the command line of this process holds too.
            frames: who knows the transforms where the profile asks for some; None: tf2.
            on_sample: told of every reading as it arrives, in the thread that listens; it must be quick.

        Raises:
            ContractError: for a profile ``backends.real`` that is missing or wrong, or for a relay that cannot
                keep all of the contract.
            UsageError: for a virtual clock, a wrong timeout, namespace, domain, name, relay or armed.
        """
        if clock.virtual:
            raise UsageError(f"a {type(clock).__name__} is not allowed with a robot; allowed: clock='steady'")
        check_namespace_and_domain(namespace, domain_id)
        check_node_name(node_name)
        self._node_name, self._ros_args = node_name, tuple(ros_arguments(ros_args))
        self._contract = contract
        self._clock = clock
        self._namespace = namespace or "/"
        self._domain_id = domain_id
        self._profile = load_real_profile(contract)
        self.step_timeout_s = timeout_s("step_timeout_s", step_timeout_s, self._profile.step_timeout_s)
        self.reset_timeout_s = timeout_s("reset_timeout_s", reset_timeout_s, self._profile.reset_timeout_s)
        if relay not in (None, True, False):
            raise UsageError(f"relay={relay!r} is not allowed; allowed: True, False, None")
        self._is_relayed = self._profile.relay if relay is None else bool(relay)
        if armed not in (True, False):
            raise UsageError(f"armed={armed!r} is not allowed; allowed: True, False")
        self._is_armed = bool(armed)
        if self._is_relayed and self._profile.use_sim_time:
            raise UsageError("relay=True is not allowed with backends.real.use_sim_time: a relay goes by the wall")
        self._written = profile_in_force(contract, is_relayed=self._is_relayed)
        tells = self._profile.controller_state is not None or self._profile.actuation_s is not None
        self.capabilities = replace(
            self.capabilities,
            acknowledges_commands=self._is_relayed and self._is_armed,
            actuation=(self._is_relayed or tells) and self._is_armed,
            actuates=self._is_armed,
            seedable=self._profile.reset_spec.parameters and self._is_armed,
        )
        by_wall = not self._is_relayed and not self._profile.use_sim_time  # a simulated controller counts its own time
        self.downstream_timeout_s = self._profile.downstream_timeout_s if by_wall else None
        self.routine = self._profile.reset_spec.routine() if self._is_armed else None
        self.pacer = Pacer(clock, contract.control_period_ns)
        self.feed = MessageTap()
        self.publisher_environment: Mapping[str, str] = os.environ
        self._ros: RosNode | None = None
        self._listener: ReceiveThread | None = None
        self._outlet: CommandSink | None = None
        self._relay: RelayClient | None = None  # the outlet, where it is one
        self._reset_service: ResetService | None = None
        self._confirmation: Confirmation | None = None
        self._controller: ControllerState | None = None
        self._left: tuple[int, int] | None = None  # the number of the last command, and when it left
        self._frames, self._on_sample = frames, on_sample
        self._readings: SensorSet | None = None
        self._inputs: SafetyInputs | None = None
        self._diagnostics = Diagnostics(contract, clock)
        self.observers: tuple[Observer, ...] = (self._diagnostics,)
        self._is_watched = False  # the graph was right once, and has been watched since
        self._usable = False

    # ------------------------------------------------------------------------------------------ connecting

    def open(self) -> None:
        """Create our node, and begin to listen."""
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        contract, profile = self._contract, self._profile
        self._is_watched = False
        raise_unless_passed(contract_checks(contract, self._written))  # before a node is: SROS2
        warn_if_segment_too_small(contract, self.publisher_environment)
        self._ros = RosNode(
            self._node_name,
            namespace=self._namespace,
            clock=self._clock,
            domain_id=self._domain_id,
            ros_args=self._ros_args,
            parameters=node_parameters(contract, profile, is_relayed=self._is_relayed),
            feed=self.feed,
        )
        node = self._ros.node
        listener = self._listener = ReceiveThread(node, self._clock)
        self._readings = SensorSet(
            contract,
            profile,
            listener,
            self._clock,
            silence_s=self.step_timeout_s,
            frames=self._frames,
            on_sample=self._on_sample,
        )
        self._inputs = SafetyInputs(contract, profile, self._written, listener, self._clock)
        if (state := profile.controller_state) is not None:
            controller = self._controller = ControllerState(state, ActionLayout(contract))
            listener.subscribe("controller state", state.type, state.topic, ANY, controller.put)
        if not self._is_armed:
            self._outlet = DryRunSink()
        elif self._is_relayed:
            self._outlet = self._relay = RelayClient(contract, node, listener, self._clock)
        else:
            self._outlet = ActuatorPublishers(contract, node, self._clock)
        if self._is_armed:
            self._reset_service = ResetService(profile.reset_spec, node, self._clock, contract.fingerprint)
            self._confirmation = make_confirmation(profile.reset_spec, node, listener, self._clock)
        self._diagnostics.connect(node)
        listener.start()

    def _connect(self, deadline: Stamp) -> tuple[ReceiveThread, SensorSet, SafetyInputs]:
        """Return whom we hear by, once the robot hears and is heard."""
        if self._listener is not None and self._listener.failure is not None:
            self.close()
        if self._listener is None:
            self.open()
        ros, listener, readings, inputs = self._ros, self._listener, self._readings, self._inputs
        if ros is None or listener is None or readings is None or inputs is None:
            raise BackendNotReadyError("the node is not open")
        settle_s = 0.0 if self._is_watched else self._profile.discovery_s
        raise_unless_passed(
            preflight(
                self._contract,
                self._written,
                ros,
                deadline,
                clock=self._clock,
                settle_s=settle_s,
                patrol=listener.raise_if_failed,
            )
        )
        self._is_watched = True
        inputs.watch_publishers()
        readings.inspect_publishers()
        return listener, readings, inputs

    # ---------------------------------------------------------------------------------------------- reset

    def reset(self, request: ResetRequest, deadline: Stamp) -> Snapshot:
        """Call the reset service, if there is one, then wait for a reading of every sensor that is newer.

        A relay is armed before, so that it rests while the robot is reset, and again where the robot is then. What of
        the routine follows is ordered by the stepper (`backends.base.Resettable`).
        """
        self._usable = False
        listener, readings, inputs = self._connect(deadline)
        readings.await_clock(deadline_to_monotonic_s(deadline, self._clock))
        inputs.check_active(deadline.ns)
        if not self._is_armed:
            return self._verified(deadline, dry_report(request))
        if self._relay is not None:
            self._relay.arm(deadline.ns)  # whatever moves the robot by it rests from now on
        service = self._reset_service
        if service is None:
            raise BackendNotReadyError("the node is not open")
        return self._verified(deadline, service.call(request, deadline.ns, listener.raise_if_failed))

    def confirm(self, question: str, deadline: Stamp) -> None:
        """Ask a person, as the profile says. A relay is armed before, so that it rests while they take their time."""
        listener, confirmation = self._running(), self._confirmation
        if confirmation is None:
            raise BackendNotReadyError("nobody is there to be asked: the profile says confirm: none")
        if self._relay is not None:
            self._relay.arm(deadline.ns)
        confirmation.ask(question, deadline.ns, listener.raise_if_failed)

    def verify(self, deadline: Stamp) -> Snapshot:
        """Wait for a reading of every sensor that is newer than this call. A relay begins where the robot is then."""
        self._running()
        if self._relay is not None:
            self._relay.arm(deadline.ns)
        return self._verified(deadline, None)

    def _verified(self, deadline: Stamp, report: ResetReport | None) -> Snapshot:
        """Read what is newer than now, check where the robot is, and be ready for commands from there."""
        listener, readings, inputs = self._listener, self._readings, self._inputs
        if listener is None or readings is None or inputs is None:
            raise BackendNotReadyError("the node is not open")
        end = deadline_to_monotonic_s(deadline, self._clock)
        readings.wait_for_newer(end)
        inputs.wait_for_inputs(end)
        inputs.check_active(deadline.ns)  # the reset may have changed it
        raise_unless_passed([check_positions(self._contract, readings.measured(), outside=self._profile.start_outside)])
        if self._relay is not None:
            self._relay.arm(deadline.ns, readings.measured)
        readings.wait_for_fresh(end)  # a machine that was busy meanwhile is no robot that is not ready
        self._usable = True
        self._left = None
        if self._controller is not None:
            with listener.condition:
                self._controller.begin()
        self.pacer.begin()
        readings.begin()
        return readings.snapshot(report)

    # ----------------------------------------------------------------------------------------------- step

    @deferred_signals()
    def send(self, command: ApprovedCommand) -> SentCommand:
        """Hand an approved command to the outlet."""
        check_approved(command)
        listener, outlet = self._running(), self._outlet
        if outlet is None:
            raise BackendLostError("closed", "the connection is closed")
        with listener.condition:
            if self._controller is not None:
                self._controller.sent(command)
        sent = outlet.send(command)
        self._left = sent.seq, sent.published_ns or self._clock.now_ns()
        return sent

    def advance(self, target: Stamp, deadline: Stamp) -> None:  # noqa: ARG002 - the robot moves by itself
        """Wait for the end of the control period."""
        self._running()
        self.pacer.wait()

    def read(self, after: Stamp, deadline: Stamp) -> Snapshot:  # noqa: ARG002 - what there is, is there
        """Return the newest readings; raises BackendLostError when no sensor says anything any more."""
        listener, readings = self._running(), self._readings
        if readings is None:
            raise BackendLostError("closed", "the connection is closed")
        return replace(readings.snapshot(), actuation=self._acted(listener))

    def newest(self, sensors: Iterable[str]) -> Snapshot:
        """Return the newest reading of each of these sensors; raises BackendLostError without a connection."""
        readings = self._readings
        if readings is None:
            raise BackendLostError("closed", "the connection is closed")
        return readings.newest(sensors)

    def _acted(self, listener: ReceiveThread) -> ActuationEvidence | None:
        """Return the best evidence there is that a command acts: an echo, a controller's word, a declared figure."""
        if not self._is_armed:
            return None
        if self._relay is not None:
            return self._relay.take_evidence()
        if self._controller is not None:
            with listener.condition:
                return self._controller.take()
        if self._profile.actuation_s is None or self._left is None:
            return None
        seq, left_ns = self._left
        return ActuationEvidence(
            seq=seq, acted_ns=left_ns + round(self._profile.actuation_s * NS_PER_S), method="declared"
        )

    def estops(self) -> Mapping[str, str]:
        """Return the state of each safety input (`EstopInputs.states`). Any thread may ask."""
        names = (
            *self._profile.estop,
            *self._profile.active,
            CONTENTION,
            *([RELAY_STATE] if self.capabilities.acknowledges_commands else []),
        )
        listener, unknown = self._listener, dict.fromkeys(names, "unknown")
        if listener is None:
            return unknown
        with listener.condition:  # `close` takes the node away under it
            if self._inputs is None or listener.failure is not None:
                return unknown
            states = self._inputs.states(is_moving=self._usable)
            return states if self._relay is None else {**states, RELAY_STATE: self._relay.estop()}

    # ------------------------------------------------------------------------------------------------ end

    def halt(self, reason: str) -> None:  # noqa: ARG002 - nobody is told: the robot's own timeout acts
        """Publish nothing more until the next reset."""
        self._usable = False

    def close(self) -> None:
        """End our thread, and destroy our node."""
        self._usable = False
        listener, ros = self._listener, self._ros
        if isinstance(self._outlet, ActuatorPublishers) and self._left is not None:
            self._outlet.flush()
        self._diagnostics.disconnect()
        with contextlib.nullcontext() if listener is None else listener.condition:
            self._listener = self._ros = self._outlet = self._relay = None
            self._reset_service = self._confirmation = self._readings = self._inputs = None
        try:
            if listener is not None:
                listener.stop()
        finally:
            if ros is not None:
                ros.close()

    def processes(self) -> list[dict[str, Any]]:
        """There is none of ours."""
        return []

    def _running(self) -> ReceiveThread:
        listener = self._listener
        if not self._usable or listener is None:
            raise BackendLostError("halted", "the connection was halted, closed, or never reset")
        return listener
