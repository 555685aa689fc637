"""The backend `real`: a robot, or anything that behaves like one, over its own topics and in real time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from embodied_env.ros.transport.node import RosNode  # first: it reports missing ROS packages

# isort: split
from embodied_env.backends.backend import Capabilities
from embodied_env.contract import Contract
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.message_tap import MessageTap
from embodied_env.core.types import (
    DRY_RUN_DETAIL,
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
from embodied_env.processes.signals import deferred_signals
from embodied_env.ros.robot.actuation import ActuatorPublishers, ControllerState
from embodied_env.ros.robot.contract_checks import check_positions, chosen_check, contract_checks
from embodied_env.ros.robot.diagnostics import Diagnostics
from embodied_env.ros.robot.graph_checks import surroundings
from embodied_env.ros.robot.operator_confirmation import Prompt, RosConfirmation, make_confirmation
from embodied_env.ros.robot.preflight import preflight
from embodied_env.ros.robot.relay_client import RELAY_STATE, RelayClient
from embodied_env.ros.robot.reset_service import ResetService
from embodied_env.ros.robot.robot_profile import (
    BACKEND,
    EMULATOR_RESET,
    RESET_LEVELS,
    inputs_by_variant,
    load_real_profile,
)
from embodied_env.ros.robot.safety_inputs import CONTENTION, SafetyInputs
from embodied_env.ros.robot.sensor_publishers import SENSOR_TOPICS
from embodied_env.ros.robot.sensor_set import SensorSet
from embodied_env.ros.transport.checks import raise_unless_passed
from embodied_env.ros.transport.fastdds import warn_if_segment_too_small
from embodied_env.ros.transport.publishers import LEASE_NS
from embodied_env.ros.transport.qos import ANY
from embodied_env.ros.transport.receive_thread import ReceiveThread
from embodied_env.ros.transport.setup_checks import (
    check_namespace_and_domain,
    check_node_name,
    ros_arguments,
    timeout_s,
)
from embodied_env.ros.wire.transforms import Frames
from embodied_env.timing.clock import NS_PER_S, Clock
from embodied_env.timing.pacing import Pacer


@dataclass(kw_only=True)
class _Connection:
    """The parts of an open backend. A dry run has no publishers, relay, reset service or confirmation."""

    ros: RosNode
    listener: ReceiveThread
    sensors: SensorSet
    inputs: SafetyInputs
    sink: ActuatorPublishers | RelayClient | None = None
    relay: RelayClient | None = None  # the sink, if it is one
    controller: ControllerState | None = None
    reset_service: ResetService | None = None
    confirmation: Prompt | RosConfirmation | None = None


class RealBackend:
    """Sends commands to the actuators' topics or to a relay, and reads the sensors that a thread receives.

    Attributes:
        capabilities: with a relay it acknowledges commands: the joint limits are the relay's.
        observers: publish the diagnostics of each transition.
        feed: gets the messages that our node publishes and receives.
        publisher_environment: the environment variables of the sensors' publishers, as far as they are known.
    """

    name = "real"
    capabilities = Capabilities(
        free_running=True,
        transport=True,
        estop_inputs=True,
        trajectories=True,
        simulated=False,
        reset_levels=RESET_LEVELS,
    )

    def __init__(  # noqa: PLR0913 - the public options
        self,
        contract: Contract,
        *,
        clock: Clock,
        namespace: str | None = None,
        domain_id: int | None = None,
        step_timeout_s: float | None = None,
        reset_timeout_s: float | None = None,
        connect_timeout_s: float | None = None,
        relay: bool | None = None,
        armed: bool = True,
        emulator: bool = False,
        confirm_chosen: bool = False,
        node_name: str = "environment",
        ros_args: Sequence[str] = (),
        ignore_inputs: Sequence[str] = (),
        frames: Frames | None = None,
        on_sample: Callable[[Sample], None] | None = None,
    ) -> None:
        """Check the options and the profile; `open` starts the node.

        Args:
            contract: the sensors and actuators of the robot.
            clock: paces the steps and stamps arrivals; a steady one.
            namespace: absolute ROS namespace of the robot; None: the root.
            domain_id: None: ``ROS_DOMAIN_ID``, or 0.
            step_timeout_s: without any reading for this long the robot counts as lost; None: from the profile.
            reset_timeout_s: how long a reset may take; None: from the profile.
            connect_timeout_s: how long topics or services may be missing at a reset; None: from the profile.
            relay: whether to send commands to a running relay; None: from the profile.
            armed: False selects a dry run: everything is started and checked, readings are real, and the gate judges
                every action; but no command is published, no reset service is called, no confirmation is requested,
                and no relay is armed.
            emulator: whether the robot emulator (``embodied-env sim --free-running``) is behind the topics. It resets
                itself by seed and options, in place of ``backends.real.reset``; a robot refuses, before any motion.
            confirm_chosen: whether to accept the chosen values of the robot file (`Contract.unconfirmed`) for now.
            node_name: unique in the namespace.
            ros_args: arguments after ``--ros-args`` for this node alone, e.g. ``["-r", "joint_states:=arm/states"]``.
                Those in the command line of this process apply too.
            ignore_inputs: names of safety inputs to move without, because their message package is not installed;
                recorded in the manifest.
            frames: source of the transforms that the profile needs; None: tf2.
            on_sample: called with each reading as it arrives, in the receiving thread; it must be fast.

        Raises:
            ContractError: for a missing or invalid profile ``backends.real``, or a relay that cannot enforce all of
                the contract.
            UsageError: for a virtual clock or any other invalid option.
        """
        if clock.virtual:
            raise UsageError(f"invalid clock for a real robot: {type(clock).__name__} (expected clock='steady')")
        check_namespace_and_domain(namespace, domain_id)
        check_node_name(node_name)
        self._node_name, self._ros_args = node_name, tuple(ros_arguments(ros_args))
        self._contract, self._clock = contract, clock
        self._namespace, self._domain_id = namespace or "/", domain_id
        self._layout = ActionLayout(contract)
        profile = load_real_profile(contract, ignored=ignore_inputs)
        self.step_timeout_s = timeout_s("step_timeout_s", step_timeout_s, profile.step_timeout_s)
        self.reset_timeout_s = timeout_s("reset_timeout_s", reset_timeout_s, profile.reset_timeout_s)
        connect_s = timeout_s("connect_timeout_s", connect_timeout_s, profile.connect_timeout_s)
        if relay not in (None, True, False):
            raise UsageError(f"invalid relay={relay!r} (expected True, False or None)")
        profile = self._profile = replace(
            profile, relay=profile.relay if relay is None else bool(relay), connect_timeout_s=connect_s
        )
        for option, value in (("armed", armed), ("emulator", emulator), ("confirm_chosen", confirm_chosen)):
            if value not in (True, False):
                raise UsageError(f"invalid {option}={value!r} (expected True or False)")
        self._is_armed, self._is_confirmed = bool(armed), bool(emulator or confirm_chosen or not armed)
        if emulator or not armed:
            profile = self._profile = replace(profile, reset=EMULATOR_RESET if armed else None)
        if profile.relay and profile.use_sim_time:
            raise UsageError("relay=True conflicts with backends.real.use_sim_time: the relay runs on wall time")
        if contract.trajectory_steps is not None and (profile.relay or profile.use_sim_time):
            raise UsageError(
                "trajectory_steps conflicts with a relay and with use_sim_time; remove the key or the other"
            )
        has_evidence = profile.relay or profile.controller_state is not None or profile.actuation_s is not None
        self.capabilities = replace(
            self.capabilities,
            acknowledges_commands=profile.relay and self._is_armed,
            actuation=has_evidence and self._is_armed,
            actuates=self._is_armed,
            ignored_inputs=tuple(ignore_inputs),
            variants=inputs_by_variant(profile),
            emulated=bool(emulator),
            chosen_confirmed=bool(confirm_chosen),
            seedable=profile.reset_spec.parameters,
        )
        on_wall_time = not profile.relay and not profile.use_sim_time
        self.downstream_timeout_s = profile.downstream_timeout_s if on_wall_time else None
        self.routine = profile.reset_spec.routine() if self._is_armed else None
        self.pacer = Pacer(clock, contract.control_period_ns)
        self.feed = MessageTap()
        self.publisher_environment: Mapping[str, str] = os.environ
        self._frames, self._on_sample = frames, on_sample
        self._diagnostics = Diagnostics(contract, clock)
        self.observers: tuple[Observer, ...] = (self._diagnostics,)
        self._connection: _Connection | None = None
        self._sent: tuple[int, int] | None = None  # number and time of the last command
        self._is_watched = False  # the graph passed preflight, and has been watched since
        self._usable = False

    # ------------------------------------------------------------------------------------------ connecting

    def open(self) -> None:
        """Create the node, and start to receive."""
        self._open()

    def _open(self) -> _Connection:
        self._is_watched = False
        chosen = chosen_check(self._contract, is_confirmed=self._is_confirmed)
        raise_unless_passed([chosen, *contract_checks(self._contract, self._profile)])  # no node without SROS2
        warn_if_segment_too_small(self._contract, self.publisher_environment)
        with contextlib.ExitStack() as cleanup:
            ros = RosNode(
                self._node_name,
                namespace=self._namespace,
                clock=self._clock,
                domain_id=self._domain_id,
                ros_args=self._ros_args,
                parameters=self._node_parameters(),
                feed=self.feed,
            )
            cleanup.callback(ros.close)
            listener = ReceiveThread(ros.node, self._clock)
            cleanup.callback(listener.stop)
            cleanup.callback(self._diagnostics.disconnect)
            connection = self._make_connection(ros, listener)
            listener.start()
            cleanup.pop_all()
        self._connection = connection
        return connection

    def _node_parameters(self) -> dict[str, bool | int | float | str]:
        """Return the read-only parameters of the node."""
        return {
            "backend": BACKEND,
            "contract": self._contract.name,
            "contract_version": self._contract.version,
            "fingerprint": self._contract.fingerprint,
            "control_period_s": self._contract.control_period_s,
            "relay": self._profile.relay,
            "security": self._profile.security,
        }

    def _make_connection(self, ros: RosNode, listener: ReceiveThread) -> _Connection:
        contract, profile, clock = self._contract, self._profile, self._clock
        inputs = SafetyInputs(contract, profile, listener, clock)
        sensors = SensorSet(
            contract,
            profile,
            listener,
            clock,
            silence_s=self.step_timeout_s,
            publishers=inputs.publishers,
            frames=self._frames,
            on_sample=self._on_sample,
        )
        connection = _Connection(ros=ros, listener=listener, sensors=sensors, inputs=inputs)
        if (state := profile.controller_state) is not None:
            connection.controller = ControllerState(state, self._layout)
            listener.subscribe("controller state", state.type, state.topic, ANY, connection.controller.on_message)
        if self._is_armed:
            if profile.relay:
                connection.sink = connection.relay = RelayClient(contract, listener, clock)
            else:
                connection.sink = ActuatorPublishers(contract, ros.node, clock)
            connection.reset_service = ResetService(profile.reset_spec, listener, clock, contract.fingerprint)
            connection.confirmation = make_confirmation(profile.reset_spec, listener, clock)
        self._diagnostics.connect(ros.node)
        return connection

    def _connect(self, deadline_ns: int) -> _Connection:
        """Return the connection once preflight passes."""
        if self._connection is not None and self._connection.listener.failure is not None:
            self.close()
        connection = self._connection or self._open()
        publishers = connection.inputs.publishers
        with connection.listener.condition:
            publishers.begin()

        def check_liveness() -> None:
            connection.listener.raise_if_failed()
            with connection.listener.condition:
                publishers.settle()

        checks = preflight(
            self._contract,
            self._profile,
            connection.ros.node,
            deadline_ns,
            clock=self._clock,
            settle_s=0.0 if self._is_watched else self._profile.discovery_s,
            publishers=publishers,
            check_liveness=check_liveness,
        )
        raise_unless_passed(checks, surroundings=surroundings(connection.ros.node))
        self._is_watched = True
        connection.inputs.clear_contention()
        connection.sensors.locate_publishers()
        return connection

    # ---------------------------------------------------------------------------------------------- reset

    def reset(self, request: ResetRequest, deadline_ns: int) -> Snapshot:
        """Call the reset service, if there is one, then wait for a newer reading of every sensor.

        A relay is armed before, so that it is idle while the robot is reset, and again at the robot's position
        afterwards. The reset procedure runs the other stages (`backends.backend.Resettable`).
        """
        self._usable = False
        connection = self._connect(deadline_ns)
        connection.sensors.await_clock(deadline_ns)
        connection.inputs.check_active(deadline_ns)
        if connection.reset_service is None:
            text = "no command is published, no reset service is called, no confirmation is requested"
            report = ResetReport(
                level="none",
                seed_applied=None,
                sampled={},
                details={DRY_RUN_DETAIL: text},
                ignored=tuple(request.options),
            )
        else:
            if connection.relay is not None:
                connection.relay.arm(deadline_ns)
            report = connection.reset_service.call(request, deadline_ns)
        return self._begin(connection, deadline_ns, report)

    def confirm(self, question: str, deadline_ns: int) -> None:
        """Wait for the operator's confirmation, as the profile declares; a relay is armed, so that it is idle."""
        connection = self._running()
        if connection.confirmation is None:
            raise BackendNotReadyError("no operator confirmation is declared (backends.real.reset.confirm: none)")
        if connection.relay is not None:
            connection.relay.arm(deadline_ns)
        connection.confirmation.ask(question, deadline_ns)

    def verify(self, deadline_ns: int) -> Snapshot:
        """Wait for a reading of every sensor that is newer than this call; a relay then starts at that position."""
        connection = self._running()
        if connection.relay is not None:
            connection.relay.arm(deadline_ns)
        return self._begin(connection, deadline_ns, None)

    def _begin(self, connection: _Connection, deadline_ns: int, report: ResetReport | None) -> Snapshot:
        """Wait for newer readings, check the joint positions, and accept commands from there."""
        sensors, inputs, listener = connection.sensors, connection.inputs, connection.listener
        publishers, connect_ns = inputs.publishers, round(self._profile.connect_timeout_s * NS_PER_S)
        with listener.condition:
            publishers.begin()  # the reset may have started a driver again
        sensors.wait_for_newer(deadline_ns)
        begun_ns = self._clock.now_ns()
        last_ns = begun_ns + connect_ns
        listener.wait_until(
            lambda: publishers.settle() or (self._clock.now_ns() >= last_ns and not publishers.await_lease()),
            min(deadline_ns, begun_ns + max(connect_ns, LEASE_NS)),
        )
        inputs.wait_for_inputs(deadline_ns)
        inputs.check_active(deadline_ns)  # the reset may have changed it
        raise_unless_passed(
            [
                check_positions(self._contract, sensors.measured(), outside=self._profile.start_outside),
                publishers.check(),
            ]
        )
        if connection.relay is not None:
            connection.relay.arm(deadline_ns, sensors.measured)
        if isinstance(connection.sink, ActuatorPublishers):
            connection.sink.begin(sensors.measured())
        sensors.wait_for_fresh(deadline_ns)  # a busy host must not fail the reset
        self._sent = None
        if connection.controller is not None:
            with connection.listener.condition:
                connection.controller.clear()
        self.pacer.begin()
        sensors.begin()
        snapshot = sensors.snapshot(report)
        raise_unless_passed([publishers.check()])  # until the readings from which the robot moves
        self._usable = True
        return snapshot

    # ----------------------------------------------------------------------------------------------- step

    @deferred_signals()
    def send(self, command: ApprovedCommand) -> SentCommand:
        """Send an approved command."""
        check_approved(command)
        connection = self._running()
        if connection.controller is not None:
            with connection.listener.condition:
                connection.controller.on_sent(command)
        sink = connection.sink
        sent = SentCommand(seq=command.seq, values=command.values) if sink is None else sink.send(command)
        self._sent = sent.seq, sent.published_ns or self._clock.now_ns()
        return sent

    def advance(self, target_ns: int, deadline_ns: int) -> None:  # noqa: ARG002 - the robot moves by itself
        """Wait for the end of the control period."""
        self._running()
        self.pacer.wait()

    def read(self, after_ns: int, deadline_ns: int) -> Snapshot:  # noqa: ARG002 - it does not wait
        """Return the newest readings; raises BackendLostError when all sensors are silent."""
        connection = self._running()
        return replace(connection.sensors.snapshot(), actuation=self._take_evidence(connection))

    def newest(self, sensors: Iterable[str]) -> Snapshot:
        """Return the newest reading of each of these sensors; raises BackendLostError without a connection."""
        connection = self._connection
        if connection is None:
            raise BackendLostError("closed", "the connection is closed")
        return connection.sensors.newest(sensors)

    def _take_evidence(self, connection: _Connection) -> ActuationEvidence | None:
        """Return the best evidence that a command acts: a relay's report, a controller's state, a declared delay."""
        if not self._is_armed:
            return None
        if connection.relay is not None:
            return connection.relay.take_evidence()
        if connection.controller is not None:
            with connection.listener.condition:
                return connection.controller.take_evidence()
        if self._profile.actuation_s is None or self._sent is None:
            return None
        seq, sent_ns = self._sent
        acted_ns = sent_ns + round(self._profile.actuation_s * NS_PER_S)
        return ActuationEvidence(seq=seq, acted_ns=acted_ns, method="declared")

    def estops(self) -> Mapping[str, str]:
        """Return the state of each safety input (`EstopInputs.states`). Any thread may call it."""
        relay_state = [RELAY_STATE] if self.capabilities.acknowledges_commands else []
        names = (*self._profile.estop, *self._profile.active, CONTENTION, SENSOR_TOPICS, *relay_state)
        connection, unknown = self._connection, dict.fromkeys(names, "unknown")
        if connection is None:
            return unknown
        with connection.listener.condition:  # `close` takes it before it destroys the node
            if self._connection is not connection or connection.listener.failure is not None:
                return unknown
            states = connection.inputs.states(is_moving=self._usable)
            if isinstance(sink := connection.sink, ActuatorPublishers):
                return states | sink.gripper_states()
            return states if sink is None else {**states, RELAY_STATE: sink.estop()}

    # ------------------------------------------------------------------------------------------------ end

    def halt(self, reason: str) -> None:  # noqa: ARG002 - the robot's own timeout stops it
        """Publish nothing more until the next reset."""
        self._usable = False

    def close(self) -> None:
        """Stop receiving, and destroy the node."""
        self._usable = False
        if (connection := self._connection) is None:
            return
        if isinstance(connection.sink, ActuatorPublishers) and self._sent is not None:
            connection.sink.flush()
        self._diagnostics.disconnect()
        try:
            with connection.listener.condition:
                self._connection = None
            connection.listener.stop()
        finally:
            connection.ros.close()

    def processes(self) -> list[dict[str, Any]]:
        """Return an empty list: this backend starts no processes."""
        return []

    def _running(self) -> _Connection:
        if not self._usable or self._connection is None:
            raise BackendLostError("halted", "the backend is halted, closed or not reset; call reset()")
        return self._connection
