"""Messages to arrays and back, over the real message classes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("rclpy", reason="needs rclpy")

from embodied_env.backends.ros.convert import MalformedMessageError, SensorReader, stamp_ns
from embodied_env.contract import FieldSpec, SensorSpec
from embodied_env.contract.spaces import field_layouts
from embodied_env.sim.messages import to_message

pytestmark = pytest.mark.ros

finite = st.floats(allow_nan=False, allow_infinity=False)
stamps = st.integers(0, 2**31 * 1_000_000_000 - 1)


def sensor(message_type, **fields):
    return SensorSpec(topic="topic", type=message_type, fields=fields, max_age_s=1.0)


def field(unit="m", joints=None):
    return FieldSpec(unit=unit, low=-1.0, high=1.0, joints=joints)


SENSORS = {
    "joints": sensor(
        "sensor_msgs/msg/JointState",
        position=field("rad", ("a", "b", "c")),
        velocity=field("rad/s", ("a", "b", "c")),
        effort=field("N*m", ("a", "b", "c")),
    ),
    "pose": sensor("geometry_msgs/msg/PoseStamped", position=field(), orientation=field("1")),
    "point": sensor("geometry_msgs/msg/PointStamped", position=field()),
    "range": sensor("sensor_msgs/msg/Range", range=field()),
}


@pytest.mark.parametrize("name", SENSORS)
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_values_and_stamp_survive_the_round_trip_bit_for_bit(name, data):
    spec = SENSORS[name]
    values = {}
    for layout in field_layouts(name, spec):
        width = 32 if layout.dtype == np.float32 else 64
        numbers = st.floats(allow_nan=False, allow_infinity=False, width=width)
        size = int(np.prod(layout.shape))
        drawn = data.draw(st.lists(numbers, min_size=size, max_size=size))
        values[layout.field] = np.array(drawn, dtype=layout.dtype)
    stamp = data.draw(stamps)
    message = to_message(spec, values, stamp)
    read = SensorReader(name, spec).read(message)
    assert stamp_ns(message) == stamp
    assert {k: v.tobytes() for k, v in read.items()} == {k: v.tobytes() for k, v in values.items()}


@settings(max_examples=50, deadline=None)
@given(order=st.permutations(["a", "b", "c"]), extra=st.booleans())
def test_joints_are_read_by_name_in_any_order(order, extra):
    names = [*order, "unknown"] if extra else list(order)
    by_name = {"a": 1.0, "b": 2.0, "c": 3.0, "unknown": 99.0}
    message = to_message(SENSORS["joints"], {f: np.zeros(3) for f in ("position", "velocity", "effort")}, 1)
    message.name = names
    for part in ("position", "velocity", "effort"):
        setattr(message, part, [by_name[joint] for joint in names])
    read = SensorReader("joints", SENSORS["joints"]).read(message)
    assert read["position"].tolist() == [1.0, 2.0, 3.0]


def joint_message(names, positions):
    message = to_message(SENSORS["joints"], {f: np.zeros(3) for f in ("position", "velocity", "effort")}, 1)
    message.name = names
    message.position = positions
    return message


@pytest.mark.parametrize(
    ("names", "positions", "problem"),
    [
        (["a", "b"], [1.0, 2.0], "position of c is missing"),
        (["a", "b", "c"], [1.0, 2.0], "2 values for 3 names"),
        (["a", "b", "c"], [], "0 values for 3 names"),
        (["a", "a", "b", "c"], [1.0, 2.0, 3.0, 4.0], "named twice"),
    ],
)
def test_a_malformed_joint_state_is_refused_with_its_reason(names, positions, problem):
    only_positions = sensor("sensor_msgs/msg/JointState", position=field("rad", ("a", "b", "c")))
    with pytest.raises(MalformedMessageError, match=problem):
        SensorReader("joints", only_positions).read(joint_message(names, positions))


def test_a_reading_is_a_copy_that_the_message_cannot_change():
    message = joint_message(["a", "b", "c"], [1.0, 2.0, 3.0])
    only_positions = sensor("sensor_msgs/msg/JointState", position=field("rad", ("a", "b", "c")))
    read = SensorReader("joints", only_positions).read(message)
    message.position[0] = 7.0
    assert read["position"].tolist() == [1.0, 2.0, 3.0]
