"""Backend `real` for a robot over its own topics and in real time."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from embodied_env.core.safety_input_state import INPUT_UNKNOWN, InputStates
from embodied_env.ros.transport.node import RosNode, warn_of_simulated_time  # first: it reports missing ROS packages

# isort: split
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.message_tap import MessageTap
from embodied_env.core.types import (
    ActuationEvidence,
    ApprovedCommand,
    Observer,
    ResetReport,
    ResetRequest,
    SentCommand,
    Snapshot,
    check_approved,
)
from embodied_env.errors import BackendLostError, BackendNotReadyError
from embodied_env.processes.signals import deferred_signals
from embodied_env.ros.robot.actuation import ActuatorPublishers, ControllerState
from embodied_env.ros.robot.contract_checks import check_positions, chosen_check, contract_checks
from embodied_env.ros.robot.diagnostics import THRESHOLDS, Diagnostics
from embodied_env.ros.robot.graph_checks import surroundings
from embodied_env.ros.robot.preflight import preflight
from embodied_env.ros.robot.relay_client import RELAY_STATE, RelayClient
from embodied_env.ros.robot.reset_stages import Prompt, ResetService, RosConfirmation, make_confirmation
from embodied_env.ros.robot.robot_options import RobotOptions
from embodied_env.ros.robot.robot_profile import BACKEND, RealProfile, load_real_profile
from embodied_env.ros.robot.safety_inputs import CONTENTION, SafetyInputs
from embodied_env.ros.robot.sensor_publishers import SENSOR_TOPICS
from embodied_env.ros.robot.sensor_set import SensorSet
from embodied_env.ros.transport.checklist import raise_unless_passed
from embodied_env.ros.transport.fastdds import warn_if_segment_too_small
from embodied_env.ros.transport.node import LEASE_NS
from embodied_env.ros.transport.qos import ANY
from embodied_env.ros.transport.receive_thread import ReceiveThread
from embodied_env.ros.transport.setup_checks import ros_arguments
from embodied_env.timing.clock import NS_PER_S, Pacer


@dataclass(kw_only=True)
class _Connection:
    """Parts of an open backend, of which a dry run has no sink, relay or reset service."""

    ros: RosNode
    listener: ReceiveThread
    sensors: SensorSet
    inputs: SafetyInputs
    sink: ActuatorPublishers | RelayClient | None = None
    relay: RelayClient | None = None  # the sink, if it is one
    controller: ControllerState | None = None
    reset_service: ResetService | None = None
    confirmation: Prompt | RosConfirmation | None = None


@functools.wraps(RobotOptions, assigned=(), updated=())  # the signature of its options
def make_real_backend(*args: Any, **options: Any) -> RealBackend:  # noqa: ANN401 - those of RobotOptions
    """Return the backend `real`, or raise ContractError (profile) or UsageError (options).

    The profile is `backends.real`, without the `ignore_inputs`.
    """
    given = RobotOptions(*args, **options)
    profile = load_real_profile(given.contract, ignored=given.ignore_inputs)
    return RealBackend(given, given.applied_to(profile))


class RealBackend:
    """Sends commands to actuators' topics or to a relay, and reads sensors on a thread.

    Attributes:
        capabilities: with a relay it acknowledges commands: the joint limits are the relay's.
        observers: publish the diagnostics of each transition.
        feed: gets the messages that our node publishes and receives.
        publisher_environment: the environment variables of the sensors' publishers, as far as they are known.
    """

    name = "real"

    def __init__(self, options: RobotOptions, profile: RealProfile) -> None:
        """Create a backend with the applied `profile` (`RobotOptions.applied_to`), without a node."""
        self._options, self._profile = options, profile
        contract, clock = options.contract, options.clock
        self._contract, self._clock = contract, clock
        self._layout = ActionLayout(contract)
        self.step_timeout_s, self.reset_timeout_s = profile.step_timeout_s, profile.reset_timeout_s
        self.capabilities = options.capabilities_with(profile)
        on_wall_time = not profile.relay and not profile.use_sim_time
        self.downstream_timeout_s = profile.downstream_timeout_s if on_wall_time else None
        self.routine = profile.reset_spec.routine() if options.armed else None
        self.pacer = Pacer(clock, contract.control_period_ns)
        self.feed = MessageTap()
        self.publisher_environment: Mapping[str, str] = os.environ
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
        options = self._options
        moves_robot = options.armed and not options.emulator
        chosen = chosen_check(self._contract, is_confirmed=options.is_confirmed, moves_robot=moves_robot)
        raise_unless_passed([chosen, *contract_checks(self._contract, self._profile)])  # no node without SROS2
        warn_if_segment_too_small(self._contract, self.publisher_environment)
        with contextlib.ExitStack() as cleanup:
            ros = RosNode(
                self._options.node_name,
                namespace=self._options.namespace or "/",
                clock=self._clock,
                domain_id=self._options.domain_id,
                ros_args=tuple(ros_arguments(self._options.ros_args)),
                parameters={**self._node_parameters(), **THRESHOLDS},
                feed=self.feed,
            )
            cleanup.callback(ros.close)
            if not self._profile.use_sim_time:
                warn_of_simulated_time(ros.node, "for simulated time set backends.real.use_sim_time: true")
            listener = ReceiveThread(ros.node, self._clock)
            cleanup.callback(listener.stop)
            cleanup.callback(self._diagnostics.disconnect)
            connection = self._make_connection(ros, listener)
            listener.start()
            cleanup.pop_all()
        self._connection = connection
        return connection

    def _node_parameters(self) -> dict[str, bool | int | float | str]:
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
            frames=self._options.frames,
            on_sample=self._options.on_sample,
        )
        connection = _Connection(ros=ros, listener=listener, sensors=sensors, inputs=inputs)
        if (state := profile.controller_state) is not None:
            connection.controller = ControllerState(state, self._layout)
            listener.subscribe("controller state", state.type, state.topic, ANY, connection.controller.on_message)
        if self._options.armed:
            if profile.relay:
                connection.sink = connection.relay = RelayClient(contract, listener, clock)
            else:
                connection.sink = ActuatorPublishers(contract, ros.node, clock)
            connection.reset_service = ResetService(profile.reset_spec, listener, clock, contract.fingerprint)
            connection.confirmation = make_confirmation(profile.reset_spec, listener, clock)
        self._diagnostics.connect(ros.node)
        return connection

    def _connect(self, deadline_ns: int) -> _Connection:
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
            ignored = tuple(request.options)
            report = ResetReport(level="none", seed_applied=None, sampled={}, ignored=ignored, dry_run=True)
        else:
            if connection.relay is not None:
                connection.relay.arm(deadline_ns)
            if self._profile.reset_spec.service is not None and not self._options.emulator:  # it may move the robot
                connection.inputs.check_stops(deadline_ns)
            report = connection.reset_service.call(request, deadline_ns)
        return self._begin(connection, deadline_ns, report)

    def confirm(self, question: str, deadline_ns: int) -> None:
        """Wait for the operator's confirmation as declared, while any relay is armed and idle."""
        connection = self._running()
        if connection.confirmation is None:
            raise BackendNotReadyError("no operator confirmation is declared (backends.real.reset.confirm: none)")
        if connection.relay is not None:
            connection.relay.arm(deadline_ns)
        connection.confirmation.ask(question, deadline_ns)

    def verify(self, deadline_ns: int) -> Snapshot:
        """Wait for a reading of every sensor that is newer than this call.

        A relay then starts at that position.
        """
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
        """Return the newest readings, or raise BackendLostError when all sensors are silent."""
        connection = self._running()
        return replace(connection.sensors.snapshot(), actuation=self._take_evidence(connection))

    def newest(self, sensors: Iterable[str]) -> Snapshot:
        """Return the newest readings of these sensors, or raise BackendLostError if not connected."""
        connection = self._connection
        if connection is None:
            raise BackendLostError("closed", "the connection is closed")
        return connection.sensors.newest(sensors)

    def _take_evidence(self, connection: _Connection) -> ActuationEvidence | None:
        """Return the best evidence of actuation, from relay, controller state or declared delay."""
        if not self._options.armed:
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

    def estops(self) -> InputStates:
        """Return the state of each safety input by `EstopInputs.states` (thread-safe)."""
        relay_state = [RELAY_STATE] if self.capabilities.acknowledges_commands else []
        names = (*self._profile.estop, *self._profile.active, CONTENTION, SENSOR_TOPICS, *relay_state)
        connection, unknown = self._connection, dict.fromkeys(names, INPUT_UNKNOWN)
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
        """Return an empty list, since this backend starts no processes."""
        return []

    def _running(self) -> _Connection:
        if not self._usable or self._connection is None:
            raise BackendLostError("halted", "the backend is halted, closed or not reset; call reset()")
        return self._connection
