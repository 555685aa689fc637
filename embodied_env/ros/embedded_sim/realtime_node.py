"""The ROS 2 node that hosts a free-running world, with the interface of a robot.

Each tick of the world runs at its absolute deadline and represents the wall time that ends there: stamps are of the
system clock, and commands act from the exact time of their activation. Late ticks, up to a control period, are run one
after another. Readings are published when they are due by the profile's delays, also between ticks.
"""

from __future__ import annotations

import contextlib
import functools
import math
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from embodied_env.contract import ActuatorSpec, Contract, FieldSpec, FloatArray, SensorSpec
from embodied_env.contract.spaces import ActionLayout
from embodied_env.errors import BackendLostError
from embodied_env.messages.commands import COMMAND_GOALS
from embodied_env.messages.declaration import Extras, Message, Values
from embodied_env.messages.message_types import JOINT_SENSOR, message_class
from embodied_env.ros.embedded_sim.base_node import LATCHED, SPIN_TIMEOUT_S, WorldNode, node_with_executor
from embodied_env.ros.embedded_sim.emulated_inputs import EmulatedService, EmulatedTopic, Inputs, services_of, topics_of
from embodied_env.ros.embedded_sim.message_encoder import SensorEncoder
from embodied_env.ros.transport.qos import RELIABLE
from embodied_env.ros.transport.setup_checks import rclpy_import_errors
from embodied_env.ros.wire.command_messages import from_trajectory
from embodied_env.ros.wire.simulator_protocol import ANY_EPOCH
from embodied_env.sim.mujoco_kinematics import robot_description
from embodied_env.sim.simulated_delays import EmulatedController, TimedQueue
from embodied_env.sim.world import World
from embodied_env.sim.world_profile import Driver
from embodied_env.timing.clock import NS_PER_S, SteadyClock

with rclpy_import_errors("the embedded simulator over ROS 2"):
    from rclpy.context import Context
    from rclpy.executors import Executor

CONTROLLER_STATE = "~/controller_state"
_ANY_SEED = -1  # each reset draws a new seed
_SEED_BITS = 53  # any JSON parser keeps them exactly
_MARGIN_NS = 300_000  # the executor returns this long before a tick; the clock sleeps the rest
_WINDOW_NS = 2 * NS_PER_S  # window in which the real-time factor is measured
_SLOW = 0.9  # real-time factor below which a warning is logged
_THROTTLE_S = 5.0
_STALL_NS = NS_PER_S // 5  # at rest for this long away from the goal
_NEAR = 0.02  # share of the range within which a goal is reached
_STILL = 0.001  # share of the range per tick that counts as rest

_Reading = tuple[str, Values, Extras, int]  # sensor, content of its message, acquisition on the steady clock


class FreeRunningNode(WorldNode):
    """Hosts one free-running world, which moves from `begin` on."""

    obeys_qos = serves_actions = True

    def __init__(
        self, contract: Contract, world: World, *, namespace: str | None, context: Context, inputs: Inputs
    ) -> None:
        """Create the node, its topics and its services."""
        self._clock = SteadyClock()
        emulator, timeout_s = world.profile.emulator, world.profile.command_timeout_s
        layout = ActionLayout(contract)
        slices, self._conversion = list(layout.slices.values()), layout.conversion
        self._controller = EmulatedController(slices, world.is_velocity, emulator=emulator, timeout_s=timeout_s)
        self._is_moving = False
        self._drivers = {name: emulator.sensors.get(name, Driver()) for name in contract.sensors}
        self._offset_ns = round(emulator.clock_offset_s * NS_PER_S)  # of the robot's clock, ahead of UTC
        self._readings: TimedQueue[_Reading] = TimedQueue()
        self._anchor_ns = 0  # time zero of the world, on the steady clock
        self._epoch, self._reply = ANY_EPOCH, ""
        super().__init__(contract, world, namespace=namespace, context=context, default_seed=_ANY_SEED)
        actions = [name for name, actuator in contract.actuators.items() if actuator.is_action]
        self._grippers = [
            EmulatedGripper(contract, name, self.node, tick_s=world.tick_ns / NS_PER_S) for name in actions
        ]
        self._inputs = [EmulatedTopic(specs, self.node, LATCHED, RELIABLE) for specs in topics_of(inputs)]
        for service, specs in services_of(inputs).items():
            EmulatedService(service, specs, self.node)
        if (text := robot_description(world.model)) is not None:
            kind = message_class("std_msgs/msg/String")
            self._description = self.node.create_publisher(kind, "robot_description", LATCHED)
            self._description.publish(kind(data=text))
        self._orders = _joint_orders(contract, emulator.joint_order)
        for name, (sensor, _) in self._orders.items():
            self._encoders[name] = SensorEncoder(sensor)
        self._state = None
        if emulator.controller_state:
            self._state = self.node.create_publisher(message_class(JOINT_SENSOR), CONTROLLER_STATE, RELIABLE)
        joints = FieldSpec(unit="1", low=-math.inf, high=math.inf, joints=world.joints)
        fields = {"position": joints, "velocity": joints}
        self._state_encoder = SensorEncoder(
            SensorSpec(topic=CONTROLLER_STATE, type=JOINT_SENSOR, fields=fields, max_age_s=1.0)
        )
        self._stamped = -1, 0  # activation time of the last published command, on the steady clock and in UTC
        self._published_ns = dict.fromkeys(self._sensors, -1)
        self._deadline_ns = self._clock.now_ns() + world.tick_ns  # deadline of the next tick
        self._begin_window()

    def begin(self) -> None:
        """Start as after a reset, or raise BackendLostError or MissingDependencyError."""
        self._reset(ANY_EPOCH, _ANY_SEED, "{}")

    def close(self) -> None:
        """Destroy the action servers."""
        for gripper in self._grippers:
            gripper.close()

    def spin_once(self, executor: Executor) -> None:
        """Handle messages until work is due, at most `SPIN_TIMEOUT_S`, and do the work."""
        left_ns = self._next_ns() - _MARGIN_NS - self._clock.now_ns()
        executor.spin_once(timeout_sec=min(SPIN_TIMEOUT_S, max(0, left_ns) / NS_PER_S))
        next_ns = self._next_ns()
        if next_ns - self._clock.now_ns() > _MARGIN_NS:
            return
        self._clock.sleep_until_ns(next_ns)
        if self._clock.now_ns() < self._deadline_ns:
            self._serve()
            return
        deadline_ns = self._deadline_ns
        if self._clock.now_ns() - deadline_ns > self._contract.control_period_ns:
            deadline_ns = self._clock.now_ns()  # skip the ticks that are too late
        self._deadline_ns = deadline_ns + self._world.tick_ns
        self._tick(deadline_ns)

    def _next_ns(self) -> int:
        inputs_ns = (topic.next_ns for topic in self._inputs)
        waiting = (self._controller.next_ns, self._readings.next_ns, self._deadline_ns, *inputs_ns)
        return min(due_ns for due_ns in waiting if due_ns is not None)

    def _tick(self, deadline_ns: int) -> None:
        """Run the tick that ends at a deadline and publish it, unless a failed world awaits reset."""
        if not self._is_moving:
            return
        self._move_grippers()
        self._serve()
        while self._controller.end_old_velocity(self._clock.now_ns()):
            self._publish_state()
        try:
            self._world.step(self._controller.take_activations(deadline_ns - self._world.tick_ns, deadline_ns))
        except BackendLostError as error:
            self.node.get_logger().error(f"simulation stopped until a reset: {error}")
            self._is_moving = False
            self._controller.stop()
            return
        self._anchor_ns = deadline_ns - self._world.now_ns
        self._publish()
        self._check_window()

    def _reset(self, epoch: int, seed: int, options: str) -> str:
        """Reset, with a drawn seed if none is set, unless the epoch is that of the last reset."""
        if epoch == ANY_EPOCH or epoch != self._epoch:
            self._is_moving = False
            applied = secrets.randbits(_SEED_BITS) if seed == _ANY_SEED else seed
            reply = self._reset_world(epoch, applied, options)
            now_ns = self._clock.now_ns()
            self._controller.begin(applied, now_ns, self._world.target, delay_ns=self._world.command_delay_ns)
            self._readings.clear()
            for gripper in self._grippers:
                gripper.begin()
            self._published_ns = dict.fromkeys(self._sensors, -1)
            self._deadline_ns = now_ns + self._world.tick_ns
            self._anchor_ns = now_ns - self._world.now_ns
            self._is_moving = True
            self._publish()
            self._begin_window()
            self._epoch = epoch
            self._reply = replace(reply, stamp_ns=self._stamp_ns(self._world.now_ns)).to_text()
        return self._reply

    def _move_grippers(self) -> None:
        now_ns, positions = self._clock.now_ns(), self._world.positions if self._grippers else None
        for gripper in self._grippers:
            if positions is not None and (command := gripper.move(now_ns, positions)) is not None:
                self._controller.receive(now_ns, gripper.index, command)

    def _take_command(self, index: int, command: FloatArray | None) -> None:
        if command is None:
            self.node.get_logger().warning(
                "ignored a command without a value for each joint", throttle_duration_sec=_THROTTLE_S
            )
        elif self._is_moving:
            self._controller.receive(self._clock.now_ns(), index, command)

    def _take_trajectory(self, index: int, actuator: ActuatorSpec, message: Message) -> None:
        points, stamp = from_trajectory(actuator, message), message.header.stamp
        if points is None:
            self._take_command(index, None)
        elif self._is_moving:
            start_ns = now_ns = self._clock.now_ns()
            if stamp_ns := stamp.sec * NS_PER_S + stamp.nanosec:
                start_ns = stamp_ns - self._robot_ns(0)
            timed = [(start_ns + after_ns, values) for after_ns, values in points]
            reach_s = self._world.profile.emulator.interpolation_s
            reach_ns = self._contract.control_period_ns if reach_s is None else round(reach_s * NS_PER_S)
            self._controller.follow(now_ns, index, timed, reach_ns=reach_ns)

    def _serve(self) -> None:
        now_ns = self._clock.now_ns()
        while self._controller.enforce(now_ns):
            self._publish_state()
        while (due := self._readings.take_one(now_ns)) is not None:
            self._send(*due[1])
        for topic in self._inputs:
            topic.serve(now_ns)

    def _publish(self) -> None:
        for name, sample in self._world.read().items():
            if sample.stamp_ns <= self._published_ns[name]:
                continue
            self._published_ns[name] = sample.stamp_ns
            if sample.reason:
                self.node.get_logger().warning(f"{name}: {sample.reason}", throttle_duration_sec=_THROTTLE_S)
                continue
            channel = self._world.channels[name]
            late_ns = channel.available_ns + round(self._drivers[name].driver_delay_s * NS_PER_S)
            reading = name, sample.values, channel.extras, self._anchor_ns + sample.stamp_ns
            self._readings.put(self._anchor_ns + late_ns, reading)
        self._publish_state()
        self._serve()

    def _send(self, name: str, values: Values, extras: Extras, taken_ns: int) -> None:
        driver = self._drivers[name]
        utc_ns = self._clock.system_ns() if driver.stamp == "publication" else self._utc_ns(taken_ns)
        stamp_ns = utc_ns + self._offset_ns + round(driver.clock_offset_s * NS_PER_S) if driver.stamp != "zero" else 0
        if name in self._orders:
            places = self._orders[name][1]
            values = {field: value[places[field]] for field, value in values.items()}
        self._sensors[name].publish(self._encoders[name].encode(values, stamp_ns, extras))

    def _publish_state(self) -> None:
        """Publish the active command, stamped with its activation, NaN for the other kind."""
        if self._state is None:
            return
        since_ns = self._controller.since_ns
        if since_ns != self._stamped[0]:  # one stamp per command: the two clocks are read once
            self._stamped = since_ns, self._robot_ns(since_ns)
        is_velocity, target = self._world.is_velocity, self._controller.target
        if self._conversion is not None:
            target = self._conversion.to_driver(target)
        numbers = {
            "position": np.where(is_velocity, math.nan, target),
            "velocity": np.where(is_velocity, target, math.nan),
        }
        self._state.publish(self._state_encoder.encode(numbers, self._stamped[1], {}))

    def _utc_ns(self, steady_ns: int) -> int:
        return steady_ns + self._clock.system_ns() - self._clock.now_ns()

    def _stamp_ns(self, world_ns: int) -> int:
        return self._robot_ns(self._anchor_ns + world_ns)

    def _robot_ns(self, steady_ns: int) -> int:
        """Return the time of the robot's clock at an instant of the steady clock."""
        return self._utc_ns(steady_ns) + self._offset_ns

    def _begin_window(self) -> None:
        self._window_ns = self._clock.now_ns(), self._world.now_ns

    def _check_window(self) -> None:
        """Log whether the simulation lags the wall clock, or another simulator has our name."""
        wall_ns = self._clock.now_ns() - self._window_ns[0]
        if wall_ns < _WINDOW_NS:
            return
        factor = (self._world.now_ns - self._window_ns[1]) / wall_ns
        if factor < _SLOW:
            self.node.get_logger().warning(
                f"simulation runs at {factor:.2f} of real time; use a faster machine or a simpler model",
                throttle_duration_sec=_THROTTLE_S,
            )
        name, namespace = self.node.get_name(), self.node.get_namespace()
        if self.node.get_node_names_and_namespaces().count((name, namespace)) > 1:
            self.node.get_logger().error(
                f"another simulator runs in namespace {namespace} of this ROS_DOMAIN_ID; stop one of them, "
                "or use another --namespace or ROS_DOMAIN_ID",
                throttle_duration_sec=_THROTTLE_S,
            )
        self._begin_window()


def _joint_orders(
    contract: Contract, order: Sequence[str] | None
) -> dict[str, tuple[SensorSpec, dict[str, list[int]]]]:
    """Return each joint sensor with its joints in this order, and their contract places."""
    found = {}
    for name, sensor in contract.sensors.items():
        if order is not None and sensor.type == JOINT_SENSOR:
            joints = {field: sorted(spec.joints or (), key=order.index) for field, spec in sensor.fields.items()}
            places = {
                field: [(spec.joints or ()).index(joint) for joint in joints[field]]
                for field, spec in sensor.fields.items()
            }
            fields = {}
            for field, spec in sensor.fields.items():
                driver = spec.driver
                if isinstance(driver, tuple):
                    driver = tuple(driver[place] for place in places[field])
                fields[field] = replace(spec, joints=tuple(joints[field]), driver=driver)
            found[name] = replace(sensor, fields=fields), places
    return found


def run_free_running(
    contract: Contract,
    world: World,
    *,
    namespace: str | None,
    stop: threading.Event,
    inputs: Inputs = MappingProxyType({}),
    on_ready: Callable[[str], None] = lambda _namespace: None,
) -> None:
    """Host `world`, built with ``free_running=True``, until `stop` is set.

    Args:
        contract: contract of `world`.
        world: the world; its profile declares the emulated robot.
        namespace: absolute ROS namespace; None: the root, or that of ``--ros-args``.
        stop: set it from a signal handler or another thread.
        inputs: safety inputs to offer (`emulated_inputs`), safe until a service ``~/<key>/<name>`` switches one.
        on_ready: called with the namespace when the world moves.

    Raises:
        BackendNotReadyError: if ROS 2 cannot be initialised.
        ContractError: for a sensor or safety input that does not match its message type.
        BackendLostError: if the world cannot be reset.
    """
    make = functools.partial(FreeRunningNode, contract, world, namespace=namespace, inputs=inputs)
    has_actions = any(actuator.is_action for actuator in contract.actuators.values())
    with (
        node_with_executor(contract, make, fast=not has_actions) as (simulator, executor),
        contextlib.closing(simulator),
    ):
        simulator.begin()
        on_ready(simulator.node.get_namespace())
        while not stop.is_set():
            simulator.spin_once(executor)


class EmulatedGripper:
    """Action server of one gripper, of actuator `index`, which aborts a goal on the next."""

    def __init__(self, contract: Contract, name: str, node: Any, *, tick_s: float) -> None:  # noqa: ANN401 - rclpy's
        """Offer the action of the actuator `name`, with moves `tick_s` apart."""
        from rclpy.action import ActionServer  # noqa: PLC0415 - rclpy is installed if there is a node

        layout, actuator = ActionLayout(contract), contract.actuators[name]
        self.index, self._joint = list(layout.slices).index(name), layout.slices[name].start
        self._actuator = actuator
        self._range = float((layout.limits.position_high - layout.limits.position_low)[self._joint])
        self._stride = next(iter(actuator.joints.values())).fastest * tick_s
        self._type = message_class(actuator.type)
        self._handle: Any = None
        self._goal: float | None = None
        self._setpoint: float | None = None
        self._last, self._moved_ns = 0.0, 0  # position at the last move, and when it last changed
        fail, accept = partial(self._finish, "failed"), self._on_accepted
        self._server = ActionServer(node, self._type, actuator.topic, fail, handle_accepted_callback=accept)

    def begin(self) -> None:
        """Drop the goal of the last episode."""
        self._end("failed")
        self._goal = self._setpoint = None

    def close(self) -> None:
        """Destroy the action server, which its node does not."""
        self._server.destroy()

    def move(self, now_ns: int, positions: FloatArray) -> FloatArray | None:
        """Return the next setpoint, shape (1,), or None, given the `positions` of all joints."""
        if self._goal is None:
            return None
        position = float(positions[self._joint])
        start = position if self._setpoint is None else self._setpoint
        self._setpoint = float(np.clip(self._goal, start - self._stride, start + self._stride))
        if self._setpoint != self._goal or abs(position - self._last) > _STILL * self._range:
            self._moved_ns = now_ns
        self._last = position
        if abs(position - self._goal) <= _NEAR * self._range:
            self._end("reached")
        elif now_ns - self._moved_ns > _STALL_NS:
            self._end("stalled")
        return np.array([self._setpoint])

    def _on_accepted(self, handle: Any) -> None:  # noqa: ANN401 - rclpy's
        self._end("failed")
        self._handle, position = handle, COMMAND_GOALS[self._actuator.type].read(handle.request)
        values = self._actuator.from_driver(np.array([position])) if np.isfinite(position) else None
        if values is not None:
            self._goal = float(values[0])
        else:
            self._end("failed")

    def _end(self, outcome: str) -> None:
        """End the active goal, towards which the setpoint keeps moving."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.execute(partial(self._finish, outcome))

    def _finish(self, outcome: str, handle: Any) -> Any:  # noqa: ANN401 - generated types
        result = self._type.Result()
        result.reached_goal, result.stalled = outcome == "reached", outcome == "stalled"
        (handle.abort if outcome == "failed" else handle.succeed)()
        return result
