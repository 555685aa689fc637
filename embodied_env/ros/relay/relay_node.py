"""Run a relay (`safety.relay.relay`) in a ROS 2 node with one thread and one loop."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from embodied_env.contract import Contract
from embodied_env.core.safety_input_state import INPUT_OK, InputState, InputStatus
from embodied_env.core.types import ApprovedCommand
from embodied_env.errors import ContractError, EmbodiedEnvError
from embodied_env.messages.commands import COMMAND_MESSAGES
from embodied_env.messages.message_types import message_class
from embodied_env.ros.robot.contract_checks import chosen_check
from embodied_env.ros.robot.estops import EstopInputs, SafetyInputSpec, estop_specs
from embodied_env.ros.robot.sensor_publishers import SENSOR_TOPICS, SensorPublishers
from embodied_env.ros.transport.node import publisher_names
from embodied_env.ros.transport.receiver import ReceivedMessage, stamped
from embodied_env.ros.transport.setup_checks import rclpy_import_errors, ros_init_errors
from embodied_env.ros.wire.sensor_buffer import SensorBuffer
from embodied_env.ros.wire.stamp_translation import ArrivalAges
from embodied_env.safety.command_filters import CommandFilter
from embodied_env.safety.gate import SafetyGate
from embodied_env.safety.relay.relay import Relay
from embodied_env.safety.relay.relay_protocol import (
    COMMAND_TOPIC,
    DIAGNOSTICS_TOPIC,
    NODE,
    JointFields,
    RelayReport,
    RelayState,
    check_relayed,
    stopping_time_s,
)
from embodied_env.timing.clock import NS_PER_S, SteadyClock

with rclpy_import_errors("the relay"):
    import rclpy
    from rclpy.context import Context
    from rclpy.executors import SingleThreadedExecutor
    from rclpy.node import Node
    from rclpy.qos import QoSProfile, ReliabilityPolicy
    from rclpy.signals import SignalHandlerOptions

    from embodied_env.ros.robot.actuation import ActuatorPublishers
    from embodied_env.ros.robot.diagnostics import (
        THRESHOLDS,
        DiagnosticLevel,
        Status,
        diagnostic_array,
        heartbeat,
        periodicity,
        read_thresholds,
    )
    from embodied_env.ros.transport.node import declare_read_only, warn_of_simulated_time
    from embodied_env.ros.transport.qos import LATCHED, RELIABLE, sensor_qos

NEWEST = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)  # matches every publisher

END_GRACE_S = 2.0  # beyond the braking time; the process then ends in any case
_DIAGNOSTICS_NS = NS_PER_S
_SPIN_TIMEOUT_S = 0.05
_START_AT_ONCE = [each.type for each in COMMAND_MESSAGES.values() if each.starts_at_stamp]  # without a stamp
_LEVELS = {
    "armed": DiagnosticLevel.OK,
    "disarmed": DiagnosticLevel.WARN,
    "stopped": DiagnosticLevel.WARN,
    "estop": DiagnosticLevel.ERROR,
}


class RosRelayPublisher:
    """The publishers of a relay."""

    def __init__(self, actuators: ActuatorPublishers, node: Node) -> None:
        self._actuators = actuators
        self._joint_state = message_class("sensor_msgs/msg/JointState")
        self._string = message_class("std_msgs/msg/String")
        self._applied = node.create_publisher(self._joint_state, "~/applied", RELIABLE)
        self._report = node.create_publisher(self._string, "~/report", RELIABLE)
        self._state = node.create_publisher(self._string, "~/state", LATCHED)
        self._log = node.get_logger()

    def publish(self, command: ApprovedCommand) -> None:
        """Publish a command on the actuator topics."""
        self._actuators.send(command)

    def applied(self, fields: JointFields) -> None:
        """Publish the command that was sent."""
        self._applied.publish(fields.fill(self._joint_state()))

    def report(self, report: RelayReport) -> None:
        """Publish the result of a command or a tick."""
        self._report.publish(self._string(data=report.to_text()))

    def state(self, state: RelayState) -> None:
        """Publish the state of the relay."""
        if state.state == "estop":
            text = f"ESTOP: {state.detail}; then call ~/clear_estop and reset the environment"
            self._log.error(text, throttle_duration_sec=5.0)
        self._state.publish(self._string(data=state.to_text()))


class RelayNode:
    """Host of one relay, whose callbacks all run in the thread that calls `run`."""

    def __init__(  # noqa: PLR0913 - those of `run_relay`
        self,
        contract: Contract,
        *,
        namespace: str | None,
        estops: Mapping[str, SafetyInputSpec],
        shared: Sequence[str],
        downstream_timeout_s: float | None,
        context: Context,
        filters: Mapping[str, CommandFilter],
        confirm_chosen: bool,
    ) -> None:
        self._contract = contract
        self._clock = SteadyClock()
        self._context = context
        self._chosen = chosen_check(contract, is_confirmed=confirm_chosen, moves_robot=True)
        self.node = Node(NODE, context=context, namespace=namespace)
        fixed = {"contract": contract.name, "fingerprint": contract.fingerprint}
        declare_read_only(self.node, {**fixed, "control_period_s": contract.control_period_s, **THRESHOLDS})
        self._thresholds = read_thresholds(self.node)
        warn_of_simulated_time(self.node, "a relay has no simulated time")
        self._actuators = ActuatorPublishers(contract, self.node, self._clock, unstamped=_START_AT_ONCE)
        gate = SafetyGate(contract, filters=filters, fixed_rate=False)
        self._core = Relay(
            contract,
            RosRelayPublisher(self._actuators, self.node),
            clock=self._clock,
            gate=gate,
            downstream_timeout_s=downstream_timeout_s,
            gripper_accounts=self._actuators.gripper_accounts,
        )
        self._estops = EstopInputs(estops, self._clock)
        self._publishers = SensorPublishers(
            contract, self.node, self._clock, shared=shared, inputs=[spec.topic for spec in estops.values()]
        )
        ages = ArrivalAges(contract.safety.observation.future_tolerance_s)
        self._buffers = {
            name: SensorBuffer(name, contract.sensors[name], ages)
            for name in (*self._core.sensors, *self._core.velocity_sensors)
        }
        self._sensor_problems = dict.fromkeys(self._buffers, 0)
        self._faults = self._published = 0
        self._ticks_ns: list[int] = []  # since the last diagnostics, and the one before
        self._diagnostics = self.node.create_publisher(
            message_class("diagnostic_msgs/msg/DiagnosticArray"), DIAGNOSTICS_TOPIC, RELIABLE
        )
        self._subscribe()
        self._core.announce()

    def _subscribe(self) -> None:
        node, trigger = self.node, message_class("std_srvs/srv/Trigger")
        for name in self._buffers:
            sensor = self._contract.sensors[name]
            qos = NEWEST if sensor.qos is None else sensor_qos(sensor)
            take = stamped(name, self._clock, self._guarded(self._on_sensor))
            node.create_subscription(message_class(sensor.type), sensor.topic, take, qos)
        for name, spec in self._estops.specs.items():
            qos = LATCHED if spec.latched else NEWEST
            take = stamped(name, self._clock, self._guarded(self._on_input))
            node.create_subscription(message_class(spec.type), spec.topic, take, qos)
        self._commands = node.create_subscription(
            message_class("sensor_msgs/msg/JointState"), "~/command", self._guarded(self._on_command), RELIABLE
        )
        node.create_service(trigger, "~/arm", self._on_trigger(self._arm))
        node.create_service(trigger, "~/estop", self._on_trigger(self._estop))
        node.create_service(trigger, "~/clear_estop", self._on_trigger(self._clear_estop))

    # ---------------------------------------------------------------------------------------------- callbacks

    def _on_sensor(self, arrival: ReceivedMessage) -> None:
        name, buffer = arrival.key, self._buffers[arrival.key]
        self._publishers.add(self._contract.sensors[name].topic, arrival)
        if not buffer.concerns(arrival):
            return
        buffer.add(arrival)
        sample = buffer.newest()
        if sample is None or not sample.values:
            self._sensor_problems[name] += 1
            return
        values, acquired_ns = sample.values, sample.stamp_ns
        if name in self._core.velocity_sensors:
            self._core.on_joint_velocities(name, values, acquired_ns)
        if name in self._core.sensors and not self._core.on_joint_positions(name, values["position"], acquired_ns):
            self._sensor_problems[name] += 1

    def _on_input(self, arrival: ReceivedMessage) -> None:
        self._publishers.add(self._estops.specs[arrival.key].topic, arrival)
        self._estops.put(arrival.key, arrival.message)
        self._check_inputs()  # now, not only at the next tick

    def _on_command(self, message: Any) -> None:  # noqa: ANN401 - a generated type
        self._check_inputs()  # first, since a command does not identify its sender
        self._core.command(JointFields.of(message))

    def _on_trigger(self, act: Callable[[], tuple[bool, str]]) -> Callable[[Any, Any], Any]:
        def on_request(_request: Any, response: Any) -> Any:  # noqa: ANN401 - generated types
            response.success, response.message = False, "internal error in the relay; see its log"

            def respond() -> None:
                response.success, response.message = act()

            self._guarded(respond)()
            return response

        return on_request

    def _arm(self) -> tuple[bool, str]:
        if not self._chosen.passed:
            return False, f"chosen values: {self._chosen.detail}; {self._chosen.remedy}"
        if self._core.current_state.state != "armed":
            self._publishers.begin()
        self._check_inputs()
        if problems := self._publishers.problems():
            return False, f"robot.contention: {'; '.join(problems)}"
        is_armed, text = self._core.arm()
        if is_armed:
            self._actuators.begin(self._core.arbiter.reference.positions)
        return is_armed, text

    def _estop(self) -> tuple[bool, str]:
        self._core.estop("requested by ~/estop")
        return True, "ESTOP latched; clear it with ~/clear_estop, then arm"

    def _clear_estop(self) -> tuple[bool, str]:
        self._check_inputs()
        return self._core.clear_estop()

    def _check_inputs(self) -> None:
        """Pass on the safety inputs, where a latched one without a publisher is unknown."""
        self._estops.forget_unpublished(lambda topic: self.node.count_publishers(self.node.resolve_topic_name(topic)))
        topics = {COMMAND_TOPIC: self._contention(), SENSOR_TOPICS: self._publishers.state()}
        inputs = {**self._estops.described(), **topics}
        if self._core.current_state.state == "armed":  # arming clears them
            inputs |= self._actuators.gripper_states()
        self._core.inputs(inputs)

    def _contention(self) -> InputState:
        """Return ok if the command topic has at most one publisher, as several would share numbers."""
        topic = self._commands.topic_name
        if self.node.count_publishers(topic) < 2:
            return INPUT_OK
        names = sorted(publisher_names(self.node, topic))
        return InputState(InputStatus.CONTENTION, f"{len(names)} publishers on {topic}: {', '.join(names)}")

    def _guarded(self, act: Callable[..., None]) -> Callable[..., None]:
        """Return `act` with a STOP on any error, as the process must not end while in motion."""

        def guarded(*arguments: Any) -> None:  # noqa: ANN401 - those of the callback
            try:
                act(*arguments)
            except Exception as error:  # noqa: BLE001 - any error must brake
                self._faults += 1
                detail = f"{type(error).__name__}: {error}"
                self.node.get_logger().error(f"STOP: {detail}", throttle_duration_sec=1.0)
                self._core.fault(detail)

        return guarded

    # ---------------------------------------------------------------------------------------------- loop

    def run(self, stop: threading.Event) -> None:
        """Relay until `stop` is set or an error occurs, then brake to rest."""
        executor = SingleThreadedExecutor(context=self._context)
        executor.add_node(self.node)
        tick, send_setpoint, reported_ns = self._guarded(self._tick), self._guarded(self._core.arbiter.send_setpoint), 0
        deadline_ns = self._clock.now_ns()
        try:
            while not stop.is_set():
                now_ns = self._clock.now_ns()
                if now_ns >= deadline_ns:
                    self._ticks_ns.append(now_ns)
                    tick()
                    deadline_ns = self._next_deadline(deadline_ns, now_ns)
                if now_ns - reported_ns >= _DIAGNOSTICS_NS:
                    self._guarded(self._publish_diagnostics)()
                    reported_ns = now_ns
                send_setpoint()
                due_ns = self._core.arbiter.setpoint_due_ns
                wake_ns = deadline_ns if due_ns is None else min(deadline_ns, due_ns)
                left_s = (wake_ns - self._clock.now_ns()) / NS_PER_S
                executor.spin_once(timeout_sec=min(max(0.0, left_s), _SPIN_TIMEOUT_S))
        finally:
            self._brake_to_rest(deadline_ns)
            executor.shutdown()

    def _tick(self) -> None:
        self._check_inputs()
        self._core.tick()

    def _next_deadline(self, deadline_ns: int, now_ns: int) -> int:
        """Return the next deadline after `now_ns`, where missed ones are skipped without a burst."""
        period_ns = self._contract.control_period_ns
        return deadline_ns + period_ns * ((now_ns - deadline_ns) // period_ns + 1)

    def _brake_to_rest(self, deadline_ns: int) -> None:
        """Tick until the robot is at rest, at most `END_GRACE_S` longer than braking can take."""
        self._guarded(self._core.end)()
        last_ns = self._clock.now_ns() + round((stopping_time_s(self._contract) + END_GRACE_S) * NS_PER_S)
        while not self._core.at_rest and self._clock.now_ns() < last_ns:
            deadline_ns = self._next_deadline(deadline_ns, max(deadline_ns, self._clock.now_ns()))
            self._clock.sleep_until_ns(deadline_ns)
            self._guarded(self._core.tick)()
        self._guarded(self._actuators.flush)()

    def _publish_diagnostics(self) -> None:
        core, state = self._core, self._core.current_state
        values = {
            "armed": state.state == "armed",
            "state": state.state,
            "braking": state.braking,
            "latched": state.latched,
            "epoch": state.epoch,
            "seq": core.tag.seq,
            "accepted": core.accepted,
            **{f"refused.{code}": count for code, count in sorted(core.refused.items())},
            "refused": core.refused.total(),
            "watchdog_trips": core.trips,
            "last_dt_s": core.last_dt_s,
            "faults": self._faults,
            **{f"sensor_problems.{name}": count for name, count in self._sensor_problems.items()},
            **{f"input.{name}": text for name, text in state.inputs.items()},
            "fingerprint": state.fingerprint,
        }
        status = Status(
            name=self._contract.name,
            level=DiagnosticLevel.ERROR if state.latched == "fault.internal" else _LEVELS[state.state],
            message=f"{state.state} {state.latched} {state.detail}".strip(),
            values={key: str(value) for key, value in values.items()},
        )
        periods_s = [(after - before) / NS_PER_S for before, after in pairwise(self._ticks_ns)]
        rate = periodicity(periods_s, 1.0 / self._contract.control_period_s, self._thresholds)
        del self._ticks_ns[:-1]
        self._published += 1
        statuses = [status, rate, heartbeat(self._published)]
        self._diagnostics.publish(diagnostic_array(self.node, self._contract.name, statuses))


def run_relay(  # noqa: PLR0913 - its options
    contract: Contract,
    *,
    namespace: str | None,
    profile: Mapping[str, Any],
    stop: threading.Event,
    confirm_chosen: bool = False,
    ignore_inputs: Sequence[str] = (),
    filters: Mapping[str, CommandFilter] = MappingProxyType({}),
    on_ready: Callable[[str], None] = lambda _namespace: None,
) -> None:
    """Relay the commands of `contract` until `stop` is set, then brake the robot to rest.

    Args:
        contract: declares the limits.
        namespace: absolute ROS namespace; None: the root, or that of ``--ros-args``.
        profile: of the backend; its ``estop`` declares the robot's safety inputs.
        stop: set it from a signal handler or another thread.
        confirm_chosen: whether unconfirmed chosen values of the robot file do not prevent arming.
        ignore_inputs: names of e-stops to relay without, because their message package is not installed.
        filters: the command filters of the contract, by name.
        on_ready: called with the namespace when the node has been created.

    Raises BackendNotReadyError if ROS 2 cannot be initialised, or ContractError for a contract that a relay cannot
    enforce or an invalid profile.
    """
    check_relayed(contract)
    estops = estop_specs(profile.get("estop"), "estop", ignored=ignore_inputs)
    timeout_s = profile.get("downstream_timeout_s")
    if timeout_s is not None and not (
        type(timeout_s) in (int, float) and contract.control_period_s < timeout_s < math.inf
    ):
        problem = f"{timeout_s!r} (expected seconds, more than control_period_s); correct it"
        raise ContractError("downstream_timeout_s", problem, source=contract.source)
    context = Context()
    try:
        with ros_init_errors(EmbodiedEnvError):
            rclpy.init(context=context, signal_handler_options=SignalHandlerOptions.NO)
            relay = RelayNode(
                contract,
                namespace=namespace,
                estops=estops,
                shared=profile.get("shared") or (),
                downstream_timeout_s=timeout_s,
                context=context,
                filters=filters,
                confirm_chosen=confirm_chosen,
            )
        try:
            on_ready(relay.node.get_namespace())
            relay.run(stop)
        finally:
            relay.node.destroy_node()
    finally:
        context.try_shutdown()
