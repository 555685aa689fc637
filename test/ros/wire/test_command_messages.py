"""Encoding commands as messages and decoding them, with real serialization."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("rclpy", reason="needs rclpy")

from rclpy.serialization import deserialize_message, serialize_message
from std_msgs.msg import Int64MultiArray

from embodied_env.contract import ActuatorSpec, JointLimits, load_contract
from embodied_env.contract.driver_units import DriverUnits
from embodied_env.messages.commands import COMMAND_MESSAGES
from embodied_env.ros.robot.actuation import ActuatorPublishers
from embodied_env.ros.transport.byte_layout import LayoutDecoder, to_cdr
from embodied_env.ros.transport.message_template import integer_encoder
from embodied_env.ros.wire.command_messages import (
    command_encoder,
    from_command,
    from_trajectory,
    to_command,
    to_trajectory,
)
from embodied_env.timing.clock import NS_PER_S, ManualClock

pytestmark = pytest.mark.ros

LIMITS = JointLimits(position=None, velocity=1.0, acceleration=1.0)
PERIOD_S = 0.05
STAMP_NS = 3_000_000_007


def actuator(message_type, command, *joints, **keys):
    return ActuatorSpec(topic="topic", type=message_type, command=command, joints=dict.fromkeys(joints, LIMITS), **keys)


ACTUATORS = {
    "array": actuator("std_msgs/msg/Float64MultiArray", "position_delta", "a", "b", "c"),
    "number": actuator("std_msgs/msg/Float64", "velocity", "a"),
    "positions": actuator("sensor_msgs/msg/JointState", "position", "a", "b", "c"),
    "velocities": actuator("sensor_msgs/msg/JointState", "velocity", "a", "b", "c"),
    "trajectory": actuator("trajectory_msgs/msg/JointTrajectory", "position", "a", "b", "c", frame="base"),
    "twist": actuator("geometry_msgs/msg/Twist", "twist", "angular.z", "linear.x"),
    "twist_stamped": actuator("geometry_msgs/msg/TwistStamped", "twist", "linear.x", "angular.z", frame="base"),
}


def command(name, values=None):
    """Return the message after serialization."""
    spec = ACTUATORS[name]
    values = np.arange(1.0, 1.0 + len(spec.joints)) if values is None else values
    message = to_command(spec, values, stamp_ns=STAMP_NS, period_s=PERIOD_S)
    return deserialize_message(serialize_message(message), type(message))


def test_every_command_type_has_a_test_case():
    assert {spec.type for spec in ACTUATORS.values()} == COMMAND_MESSAGES.keys()


@pytest.mark.parametrize("name", ACTUATORS)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_command_round_trip_is_bit_identical(name, data):
    size = len(ACTUATORS[name].joints)
    finite = st.floats(allow_nan=False, allow_infinity=False)
    values = np.array(data.draw(st.lists(finite, min_size=size, max_size=size)))
    received = from_command(ACTUATORS[name], command(name, values))
    assert (received.dtype, received.shape, received.tobytes()) == (np.float64, (size,), values.tobytes())


@pytest.mark.parametrize("name", ACTUATORS)
def test_a_command_in_the_units_of_a_driver_is_read_back(name):
    units = DriverUnits(unit="deg", scale=0.5, sign=-1, offset=0.0 if ACTUATORS[name].is_velocity else 0.3)
    joints = {joint: replace(LIMITS, driver=units) for joint in ACTUATORS[name].joints}
    spec = replace(ACTUATORS[name], joints=joints)
    values = np.arange(1.0, 1.0 + len(joints))
    published = from_command(ACTUATORS[name], to_command(spec, values, stamp_ns=0, period_s=PERIOD_S))
    assert published == pytest.approx((units.offset - values) * 360.0 / math.pi)
    found = from_command(spec, to_command(spec, values, stamp_ns=0, period_s=PERIOD_S))
    assert found == pytest.approx(values)
    if name == "trajectory":
        points = [(10**8, values), (2 * 10**8, 2 * values)]
        read = from_trajectory(spec, to_trajectory(spec, points, stamp_ns=0))
        assert [each.tolist() for _, each in read] == pytest.approx(np.array([values, 2 * values]))


@pytest.mark.parametrize("name", ["positions", "velocities", "trajectory", "twist_stamped"])
def test_a_header_has_the_stamp_and_the_frame(name):
    header = command(name).header
    assert (header.stamp.sec, header.stamp.nanosec) == (3, 7)
    assert header.frame_id == (ACTUATORS[name].frame or "")


def test_a_joint_state_command_sets_only_the_commanded_quantity():
    assert (list(command("positions").position), list(command("positions").velocity)) == ([1.0, 2.0, 3.0], [])
    assert (list(command("velocities").position), list(command("velocities").velocity)) == ([], [1.0, 2.0, 3.0])


def test_a_trajectory_has_one_point_at_the_end_of_the_period():
    (point,) = command("trajectory").points
    assert list(point.positions) == [1.0, 2.0, 3.0]
    assert (point.time_from_start.sec, point.time_from_start.nanosec) == (0, 50_000_000)


def test_undeclared_twist_axes_are_commanded_to_zero():
    twist = command("twist")
    assert (twist.angular.z, twist.linear.x) == (1.0, 2.0)
    assert (twist.linear.y, twist.linear.z, twist.angular.x, twist.angular.y) == (0.0, 0.0, 0.0, 0.0)


@settings(max_examples=20, deadline=None)
@given(order=st.permutations(["a", "b", "c"]))
def test_command_joints_are_matched_by_name(order):
    message = command("positions")
    message.name, message.position = order, [{"a": 1.0, "b": 2.0, "c": 3.0}[joint] for joint in order]
    assert from_command(ACTUATORS["positions"], message).tolist() == [1.0, 2.0, 3.0]


def changed(actuator_name, /, **changes):
    message = command(actuator_name)
    for key, value in changes.items():
        setattr(message, key, value)
    return actuator_name, message


def changed_point(**changes):
    message = command("trajectory")
    for key, value in changes.items():
        setattr(message.points[0], key, value)
    return "trajectory", message


def turning(name, value):
    message = command(name)
    getattr(message, "twist", message).angular.y = value
    return name, message


def in_another_frame():
    message = command("twist_stamped")
    message.header.frame_id = "map"
    return "twist_stamped", message


def two_points():
    message = command("trajectory")
    message.points = [message.points[0], message.points[0]]
    return "trajectory", message


MALFORMED = {
    "an array too short": lambda: changed("array", data=[1.0, 2.0]),
    "an array too long": lambda: changed("array", data=[1.0, 2.0, 3.0, 4.0]),
    "nan in an array": lambda: changed("array", data=[1.0, math.nan, 3.0]),
    "an infinite number": lambda: changed("number", data=math.inf),
    "a missing joint": lambda: changed("positions", name=["a", "b"], position=[1.0, 2.0]),
    "an unknown joint": lambda: changed("positions", name=["a", "b", "d"]),
    "a joint too many": lambda: changed("positions", name=["a", "b", "c", "d"], position=[1.0, 2.0, 3.0, 4.0]),
    "a joint named twice": lambda: changed("positions", name=["a", "b", "b"]),
    "a joint once too often": lambda: changed("positions", name=["a", "b", "c", "c"], position=[1.0, 2.0, 3.0, 3.0]),
    "names without values": lambda: changed("positions", position=[]),
    "velocities missing": lambda: changed("velocities", velocity=[]),
    "a nan velocity": lambda: changed("velocities", velocity=[1.0, math.nan, 1.0]),
    "no point": lambda: changed("trajectory", points=[]),
    "two points": two_points,
    "a point too short": lambda: changed_point(positions=[1.0]),
    "an axis that is not there": lambda: turning("twist", 0.1),
    "a nan axis that is not there": lambda: turning("twist", math.nan),
    "a stamped axis that is not there": lambda: turning("twist_stamped", -0.1),
    "another frame": in_another_frame,
}


@pytest.mark.parametrize("case", MALFORMED)
def test_an_incomplete_command_decodes_to_none(case):
    name, message = MALFORMED[case]()
    assert from_command(ACTUATORS[name], message) is None


@pytest.mark.parametrize("name", ACTUATORS)
def test_a_raw_command_decodes_like_a_typed_one(name):
    decoder, size = LayoutDecoder(type(command(name))), len(ACTUATORS[name].joints)
    for values in (np.zeros(size), np.linspace(-0.0, 1e-310, size), np.arange(size) - 0.1):
        received = from_command(ACTUATORS[name], decoder.decode(to_cdr(command(name, values))).decoded())
        assert received.tobytes() == values.tobytes()


@pytest.mark.parametrize("name", ACTUATORS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_an_encoded_command_equals_the_message(name, data):
    spec = ACTUATORS[name]
    ready = command_encoder(spec, period_s=PERIOD_S)
    finite = st.floats(allow_nan=False)
    for _ in range(2):
        values = np.array(data.draw(st.lists(finite, min_size=len(spec.joints), max_size=len(spec.joints))))
        stamp_ns = data.draw(st.integers(0, 2**31 * 10**9 - 1))
        made, wanted = ready.encode(values, stamp_ns), to_command(spec, values, stamp_ns=stamp_ns, period_s=PERIOD_S)
        assert isinstance(made, bytes)
        assert deserialize_message(made, type(wanted)) == wanted


@pytest.mark.parametrize("values", [[1], [-(2**63), 2**63 - 1, 0]])
def test_encoded_integers_round_trip(values):
    made = integer_encoder(len(values)).encode(np.array(values))
    assert list(deserialize_message(made, Int64MultiArray).data) == values


class Acknowledged:
    """A publisher and its node, whose last command is acknowledged at the third check, or never."""

    def __init__(self, *, looks):
        self.looks = looks

    def create_publisher(self, *_):
        return self

    def wait_for_all_acked(self, _timeout):
        self.looks -= 1
        return self.looks == 0


@pytest.mark.parametrize(("looks", "waits_on"), [(3, False), (-1, True)], ids=["delivered", "no subscriber"])
def test_flush_waits_for_acknowledgement_with_a_timeout(looks, waits_on):
    node, clock = Acknowledged(looks=looks), ManualClock()
    ActuatorPublishers(load_contract("cart_goal"), node, clock).flush()
    assert (node.looks < 0) == waits_on
    assert clock.now_ns() <= NS_PER_S


def test_a_trajectory_round_trips_and_has_positions_only():
    spec, times = ACTUATORS["trajectory"], [25_000_000, 75_000_000, 1_025_000_000]
    points = [(after_ns, np.array([0.1, -0.2, 0.3]) * k) for k, after_ns in enumerate(times)]
    message = to_trajectory(spec, points, stamp_ns=5_000_000_007)
    assert (message.header.stamp.sec, message.header.stamp.nanosec) == (5, 7)
    assert all(not (point.velocities or point.accelerations or point.effort) for point in message.points)
    decoded = from_trajectory(spec, LayoutDecoder(type(message)).decode(to_cdr(message)).decoded())
    assert [(after_ns, values.tolist()) for after_ns, values in decoded] == [(ns, p.tolist()) for ns, p in points]
    assert from_command(spec, message) is None  # not a command of one control period


@pytest.mark.parametrize("times", [[1, 1], [2, 1]])
def test_a_trajectory_whose_times_do_not_increase_is_invalid(times):
    spec = ACTUATORS["trajectory"]
    message = to_trajectory(spec, [(after_ns, np.zeros(3)) for after_ns in times], stamp_ns=0)
    assert from_trajectory(spec, message) is None


@pytest.mark.parametrize("positions", [[0.0, 1.0], [0.0, 1.0, np.nan]])
def test_a_trajectory_with_an_incomplete_point_is_invalid(positions):
    spec = ACTUATORS["trajectory"]
    message = to_trajectory(spec, [(1, np.zeros(3)), (2, np.array(positions))], stamp_ns=0)
    assert from_trajectory(spec, message) is None
