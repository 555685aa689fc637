"""Sensor messages of the embedded simulator are bit-identical to the messages that rclpy serializes."""

import functools
import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from message_samples import EXTRAS, SENSORS, sensor, stamps

pytest.importorskip("rclpy", reason="needs rclpy")

from rclpy.serialization import deserialize_message
from std_msgs.msg import Float32

import embodied_env
from embodied_env.contract.spaces import field_layouts
from embodied_env.ros.embedded_sim.message_encoder import SensorEncoder, to_message
from embodied_env.ros.transport.byte_layout import PLAIN_VARIABLE, to_cdr
from embodied_env.ros.transport.message_template import MessageTemplate

pytestmark = pytest.mark.ros

OURS = {
    f"{contract}_{name}": spec
    for contract in ("arm_reach", "cart_goal", "door_open")
    for name, spec in embodied_env.load_contract(contract).sensors.items()
}
EVERY = {**SENSORS, **OURS}
TYPED = {"Bool", "Image 16UC1", "CompressedImage rgb8", "CompressedImage mono8", "PointCloud2"} | {
    *("path_flag", "path_octet", "cart_goal_collision")
}
"""A byte or two, or more than their numbers in them."""

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
few = settings(max_examples=2, deadline=None, suppress_health_check=_SLOW)


@functools.cache
def writer_of(name):
    """Return a writer with its template, as a node has after its first reading."""
    writer = SensorEncoder(EVERY[name])
    writer.encode(zeros(name), 0, EXTRAS)
    return writer


def zeros(name):
    return {layout.field: np.zeros(layout.shape, layout.dtype) for layout in field_layouts(name, EVERY[name])}


def drawn(data, name, layout):
    """Draw numbers with any bits, including infinities and NaN, or repetitions of a few values for an image."""
    if EVERY[name].encoding is not None:
        few_numbers = data.draw(hnp.arrays(layout.dtype, 5, elements=finite(layout.dtype)))
        return np.resize(few_numbers, layout.shape)
    signs = 1 if "flag" in name or name == "Bool" or layout.field == "present" else None
    return data.draw(hnp.arrays(layout.dtype, layout.shape, elements=st.integers(0, 1) if signs else None))


def finite(dtype):
    return st.floats(0.0, 1.0, width=32) if dtype.kind == "f" else hnp.from_dtype(dtype)


def bits(part):
    """Return the content of a message with floats as bytes."""
    if hasattr(part, "get_fields_and_field_types"):
        return {name: bits(getattr(part, name)) for name in part.get_fields_and_field_types()}
    if isinstance(part, float):
        return struct.pack("d", part)
    if isinstance(part, list):
        return [bits(each) for each in part]
    return part.tobytes() if hasattr(part, "tobytes") else part


def content_of(message, kind):
    data = message if isinstance(message, bytes) else to_cdr(message)
    return len(data), bits(deserialize_message(data, kind))


@pytest.mark.parametrize("name", EVERY)
@few
@given(data=st.data(), stamp=stamps)
def test_bytes_equal_the_serialized_message(name, data, stamp):
    check_bytes(name, data, stamp)


def check_bytes(name, data, stamp):
    values = {layout.field: drawn(data, name, layout) for layout in field_layouts(name, EVERY[name])}
    wanted = to_message(EVERY[name], values, stamp, EXTRAS)
    made = writer_of(name).encode(values, stamp, EXTRAS)
    assert content_of(made, type(wanted)) == content_of(wanted, type(wanted))


def test_all_types_use_templates_but_byte_arrays_and_those_with_other_fields():
    assert {name for name in EVERY if not isinstance(writer_of(name).encode(zeros(name), 1, EXTRAS), bytes)} == TYPED


def test_a_covariance_is_part_of_the_numbers():
    spec, pose = (
        SENSORS["PoseWithCovarianceStamped"],
        {"position": np.zeros(3), "orientation": np.array([0.0, 0.0, 0.0, 1.0])},
    )
    writer = SensorEncoder(spec)
    for scale in (1.0, 2.0):
        extras = {"covariance": np.arange(36.0) * scale}
        wanted, made = to_message(spec, pose, 1, extras), writer.encode(pose, 1, extras)
        assert isinstance(made, bytes)
        assert content_of(made, type(wanted)) == content_of(wanted, type(wanted))


@pytest.mark.parametrize(
    ("extras", "wanted"),
    [({"orientation": np.array([0.0, 0.6, 0.0, 0.8])}, [0.0, 0.6, 0.0, 0.8]), ({}, [0.0, 0.0, 0.0, 1.0])],
    ids=["of the world", "identity"],
)
def test_an_undeclared_orientation_is_valid(extras, wanted):
    spec = sensor("geometry_msgs/msg/PoseStamped", {"position": {}})
    writer, values = SensorEncoder(spec), {"position": np.arange(3.0)}
    made = content_of(writer.encode(values, 1, extras), type(to_message(spec, values, 1)))
    assert made == content_of(to_message(spec, values, 1, extras), type(to_message(spec, values, 1)))
    orientation = to_message(spec, values, 1, extras).pose.orientation
    assert [orientation.x, orientation.y, orientation.z, orientation.w] == wanted


CHANGES = {
    "limits": lambda values: (values, {**EXTRAS, "range_max_m": 9.0}),
    "length": lambda values: ({field: value[:-1] for field, value in values.items()}, EXTRAS),
    "a field less": lambda values: ({"ranges": values["ranges"]}, EXTRAS),
    "order in memory": lambda values: ({field: value[::-1] for field, value in values.items()}, EXTRAS),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_of_other_fields_are_serialized(change):
    spec = SENSORS["LaserScan"]
    writer = writer_of("LaserScan")
    before = {field: np.arange(7, dtype=np.float32) for field in spec.fields}
    for values, extras in (CHANGES[change](before), (before, EXTRAS)):
        wanted, made = to_message(spec, values, 1, extras), writer.encode(values, 1, extras)
        assert content_of(made, type(wanted)) == content_of(wanted, type(wanted))


def test_a_sensor_whose_messages_always_change_stops_updating_its_template():
    writer, values = SensorEncoder(SENSORS["Range"]), {"range": np.ones(1, np.float32)}
    kinds = [type(writer.encode(values, 1, {"range_max_m": float(limit)})) for limit in range(20)]
    assert kinds[:16] == [bytes] * 16
    assert bytes not in kinds[16:]


def test_joints_in_another_order_per_field_are_written_to_their_places():
    spec = sensor(
        "sensor_msgs/msg/JointState", {"position": {"joints": ("a", "b")}, "velocity": {"joints": ("b", "a")}}
    )
    values = {"position": np.array([1.0, 2.0]), "velocity": np.array([3.0, 4.0])}
    writer = SensorEncoder(spec)
    wanted, made = to_message(spec, values, 1), writer.encode(values, 1, {})
    assert isinstance(made, bytes)
    assert content_of(made, type(wanted)) == content_of(wanted, type(wanted))


def test_a_frame_of_any_length_shifts_the_numbers():
    for frame in ("", "a", "abcd", "a_long_frame"):
        spec = replace(SENSORS["PoseStamped"], frame=frame)
        values = {"position": np.arange(3.0), "orientation": np.array([0.0, 0.0, 0.0, 1.0])}
        wanted, made = to_message(spec, values, 5), SensorEncoder(spec).encode(values, 5, {})
        assert content_of(made, type(wanted)) == content_of(wanted, type(wanted))


def test_messages_with_computed_fields_are_built_each_time():
    def half(numbers, stamp_ns):
        return Float32(data=float(numbers["x"][0]) / 2)

    ready = MessageTemplate(half, {"x": np.zeros(1)})
    assert ready.encode({"x": np.array([3.0])}) == Float32(data=1.5)


def test_an_environment_variable_disables_the_templates(monkeypatch):
    monkeypatch.setenv(PLAIN_VARIABLE, "1")
    spec, values = SENSORS["Range"], {"range": np.ones(1, np.float32)}
    assert SensorEncoder(spec).encode(values, 5, {}) == to_message(spec, values, 5)
