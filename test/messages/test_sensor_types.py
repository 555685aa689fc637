"""Values of every message type survive a round trip bit for bit, and corrupted messages are rejected."""

import array

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from message_samples import EXTRAS, JOINTS, SENSORS, sensor, stamps

pytest.importorskip("rclpy", reason="needs rclpy")

from rclpy.serialization import deserialize_message, serialize_message

from embodied_env.contract.spaces import field_layouts
from embodied_env.messages.declaration import InvalidReadingError
from embodied_env.ros.embedded_sim.message_encoder import to_message
from embodied_env.ros.wire.sensor_buffer import SensorReader, stamp_ns

pytestmark = pytest.mark.ros

checked = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def elements(name, layout):
    """Draw valid content, within the sensor's limits for `ranging` fields and with any bits for the others."""
    if name == "Bool" or layout.field == "present":
        return st.integers(0, 1)
    if name == "Image 16UC1":
        return st.integers(1, 65535).map(lambda mm: float(np.float32(mm) * np.float32(0.001)))
    if layout.dtype.kind in "iu":
        return hnp.from_dtype(layout.dtype)
    width = layout.dtype.itemsize * 8
    if layout.field == "orientation":
        return st.sampled_from([-0.5, 0.5])  # a unit quaternion
    if layout.field in ("range", "ranges") or name == "Image 32FC1":
        return st.floats(float(np.float32(0.05)), 8.0, width=32)
    return st.floats(allow_nan=False, allow_infinity=name != "PointCloud2", width=width)


def drawn_values(data, name):
    return {
        layout.field: data.draw(hnp.arrays(layout.dtype, layout.shape, elements=elements(name, layout)))
        for layout in field_layouts(name, SENSORS[name])
    }


def over_the_wire(message):
    return deserialize_message(serialize_message(message), type(message))


def bits(values):
    return {field: (value.dtype, value.shape, value.tobytes()) for field, value in values.items()}


@pytest.mark.parametrize("name", SENSORS)
@checked
@given(data=st.data())
def test_values_stamps_and_frames_round_trip_bit_identically_into_new_arrays(name, data):
    spec, values, stamp = SENSORS[name], drawn_values(data, name), data.draw(stamps)
    message = over_the_wire(to_message(spec, values, stamp, EXTRAS))
    first, second = (SensorReader(name, spec).read(message) for _ in range(2))
    assert bits(first) == bits(values)
    if hasattr(message, "header"):
        assert stamp_ns(message) == stamp
        assert message.header.frame_id == (spec.frame or "")
    for field, value in first.items():
        assert value.flags.owndata
        assert value.flags.writeable
        assert value.flags.c_contiguous
        assert not np.shares_memory(value, second[field])
        for part in buffers_of(message):
            assert not np.shares_memory(value, np.frombuffer(part, np.uint8))


@pytest.mark.parametrize("name", ["JointState", "JointTrajectory"])
@checked
@given(data=st.data(), order=st.permutations([*JOINTS, "unknown"]))
def test_joints_are_matched_by_name_in_any_order(name, data, order):
    spec = SENSORS[name]
    values = drawn_values(data, name)
    shuffled = sensor(spec.type, {field: {"joints": tuple(order)} for field in spec.fields}, frame=spec.frame)
    by_name = {
        field: np.array([dict(zip(JOINTS, value, strict=True)).get(joint, 99.0) for joint in order])
        for field, value in values.items()
    }
    message = over_the_wire(to_message(shuffled, by_name, 1))
    assert bits(SensorReader(name, spec).read(message)) == bits(values)


@pytest.mark.parametrize("name", SENSORS)
@checked
@given(data=st.data())
def test_a_corrupted_message_gives_a_valid_reading_or_a_reason(name, data):
    check_corrupted(name, data)


@pytest.mark.long
@pytest.mark.parametrize("name", SENSORS)
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_many_corrupted_messages_give_valid_readings_or_reasons(name, data):
    check_corrupted(name, data)


def check_corrupted(name, data):
    spec = SENSORS[name]
    message = to_message(spec, drawn_values(data, name), 1, EXTRAS)
    for _ in range(data.draw(st.integers(1, 3))):
        corrupt(message, data)
    try:
        values = SensorReader(name, spec).read(over_the_wire(message))
    except InvalidReadingError:
        return
    layouts = field_layouts(name, spec)
    assert {field: (v.shape, v.dtype) for field, v in values.items()} == {x.field: (x.shape, x.dtype) for x in layouts}


def buffers_of(message):
    found = []
    for _, _, value, _ in leaves(message):
        if isinstance(value, (array.array, np.ndarray)) and len(value):
            found.append(value)
    return found


def leaves(message):
    """Return (owner, field, value, type) of every primitive field of `message`."""
    found = []
    for name, kind in message.get_fields_and_field_types().items():
        value = getattr(message, name)
        if hasattr(value, "get_fields_and_field_types"):
            found += leaves(value)
            continue
        found.append((message, name, value, kind))
        if isinstance(value, list) and value and hasattr(value[0], "get_fields_and_field_types"):
            for item in value:
                found += leaves(item)
    return found


SIZES = {"int8": 8, "uint8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64, "uint64": 64}
texts = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12)
words = st.sampled_from(["", "a", "x", "rgb8", "bgr8", "16UC1", "jpeg", "png", "jpeg; png compressed", "map"])


def corrupt(message, data):
    """Replace one field of `message` by another value of the same ROS type."""
    owner, name, value, kind = data.draw(st.sampled_from(leaves(message)))
    setattr(owner, name, another(value, kind, data))


def another(value, kind, data):
    if isinstance(value, array.array):
        kept = value[: data.draw(st.integers(0, len(value)))]
        extra = data.draw(st.binary(max_size=64))
        kept.frombytes(extra[: len(extra) // kept.itemsize * kept.itemsize])
        return kept
    if isinstance(value, np.ndarray):
        return data.draw(hnp.arrays(value.dtype, value.shape))
    if isinstance(value, list):
        again = list(value) * data.draw(st.integers(1, 2))
        return again[: data.draw(st.integers(0, len(again)))]
    if kind == "octet":
        return data.draw(st.binary(min_size=1, max_size=1))
    if kind in SIZES:
        return another_integer(value, kind, data)
    return data.draw(
        {"boolean": st.booleans(), "string": texts | words, "float": st.floats(width=32), "double": st.floats()}[kind]
    )


def another_integer(value, kind, data):
    low, high = (0, 2 ** SIZES[kind] - 1) if kind[0] == "u" else (-(2 ** (SIZES[kind] - 1)), 2 ** (SIZES[kind] - 1) - 1)
    return data.draw(st.integers(max(low, value - 4), min(high, value + 4)) | st.integers(low, high))
