"""Messages read from their raw bytes equal the decoded ones, for any bytes."""

import array
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("rclpy", reason="needs rclpy")

from geometry_msgs.msg import PoseStamped
from nav_msgs.msg import Odometry
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import CompressedImage, Image, Imu, JointState, LaserScan, PointCloud2, PointField

from embodied_env.contract import FieldSpec, SensorSpec
from embodied_env.core.code_types import Quality
from embodied_env.messages.declaration import Field, Window, settle
from embodied_env.messages.ranges import settle_ranges
from embodied_env.ros.transport.byte_layout import PLAIN_VARIABLE, LayoutDecoder, to_cdr
from embodied_env.ros.transport.receiver import ReceivedMessage
from embodied_env.ros.wire.sensor_buffer import SensorBuffer

pytestmark = pytest.mark.ros

JOINTS = ("a", "b", "c")
DOUBLES = st.floats(width=64)
FLOATS = st.floats(width=32)


def spec(kind, fields, **more):
    return SensorSpec(topic="topic", type=kind, fields=fields, max_age_s=1.0, **more)


JOINT_SENSOR = spec(
    "sensor_msgs/msg/JointState",
    {
        "position": FieldSpec(joints=JOINTS, unit="rad", low=-9.0, high=9.0),
        "velocity": FieldSpec(joints=JOINTS, unit="rad/s", low=-9.0, high=9.0),
    },
)
SCAN_SENSOR = spec(
    "sensor_msgs/msg/LaserScan",
    {"ranges": FieldSpec(shape=(4,), unit="m", low=0.0, high=9.0, no_return=9.0, nan=9.0)},
    frame="laser",
)
ODOMETRY_SENSOR = spec(
    "nav_msgs/msg/Odometry",
    {
        "position": FieldSpec(unit="m", low=-9.0, high=9.0),
        "orientation": FieldSpec(unit="1", low=-1.0, high=1.0),
        "linear": FieldSpec(unit="m/s", low=-9.0, high=9.0),
    },
    frame="odom",
    child_frame="base",
)
IMAGE_SENSOR = spec(
    "sensor_msgs/msg/Image", {"image": FieldSpec(shape=(2, 3, 3), unit="1", low=0, high=255)}, encoding="rgb8"
)


def set_header(message, draw):
    message.header.stamp.sec = draw(st.integers(0, 2**31 - 1))
    message.header.stamp.nanosec = draw(st.integers(0, 2**32 - 1))
    return message


@st.composite
def joint_states(draw):
    names = draw(st.permutations(JOINTS) | st.lists(st.sampled_from([*JOINTS, "d", "ä\u2028"]), max_size=5))
    numbers = st.lists(DOUBLES, min_size=len(names), max_size=len(names)) | st.lists(DOUBLES, max_size=4)
    message = JointState(name=list(names), position=draw(numbers), velocity=draw(numbers), effort=draw(numbers))
    message.header.frame_id = draw(st.sampled_from(["", "base", "x" * 7]))
    return set_header(message, draw)


@st.composite
def scans(draw):
    limits = st.sampled_from([0.0, 0.5, 8.0]) | FLOATS
    count = draw(st.sampled_from([4, 4, 4, 0, 3, 5]))
    ranges = draw(st.lists(FLOATS, min_size=count, max_size=count))
    message = LaserScan(range_min=draw(limits), range_max=draw(limits), ranges=array.array("f", ranges))
    message.header.frame_id = draw(st.sampled_from(["laser", "laser", "other"]))
    return set_header(message, draw)


@st.composite
def odometries(draw):
    message = Odometry(child_frame_id=draw(st.sampled_from(["base", "base", "bases"])))
    message.header.frame_id = "odom"
    for part in (message.pose.pose.position, message.twist.twist.linear):
        part.x, part.y, part.z = (draw(DOUBLES) for _ in range(3))
    message.pose.pose.orientation.w = draw(st.sampled_from([1.0, 0.0, 0.5, float("nan")]))
    message.pose.covariance = np.array(draw(st.lists(DOUBLES, min_size=36, max_size=36)))
    return set_header(message, draw)


@st.composite
def images(draw):
    step = draw(st.sampled_from([9, 9, 12, 8]))
    message = Image(height=draw(st.sampled_from([2, 2, 3])), width=3, step=step)
    message.encoding = draw(st.sampled_from(["rgb8", "rgb8", "bgr8"]))
    message.is_bigendian = draw(st.sampled_from([0, 1]))
    message.data = array.array("B", draw(st.binary(min_size=2 * step, max_size=2 * step) | st.binary(max_size=20)))
    return set_header(message, draw)


@st.composite
def raw_messages(draw, messages):
    """Draw serialized messages, some of which share a layout, and a few are truncated, extended or corrupted."""
    first = to_cdr(draw(messages))
    data = [first]
    for _ in range(draw(st.integers(1, 5))):
        whole = draw(st.just(first) | st.just(first) | messages.map(to_cdr))
        place = draw(st.integers(0, len(whole) - 1))
        changed = whole[:place] + bytes([whole[place] ^ draw(st.integers(1, 255))]) + whole[place + 1 :]
        data.append(draw(st.sampled_from([whole, changed, changed, whole[:place], whole + b"\0\0\0"])))
    return data


def arrival(message):
    info = {"source_timestamp": 1, "received_timestamp": 2, "publication_sequence_number": 1}
    return ReceivedMessage(key="it", message=message, info=info, arrival_ns=3, arrival_system_ns=4)


def reader_without_layouts(sample):
    if sample is None:
        return None
    values = {name: (value.dtype, value.shape, value.tobytes()) for name, value in sample.values.items()}
    return {**{name: repr(getattr(sample, name)) for name in sample.__dataclass_fields__}, "values": values}


def decoded_or_none(data, kind):
    try:
        return deserialize_message(data, kind)
    except Exception:
        return None


@pytest.mark.parametrize(
    ("sensor", "kind", "messages"),
    [
        (JOINT_SENSOR, JointState, joint_states()),
        (SCAN_SENSOR, LaserScan, scans()),
        (ODOMETRY_SENSOR, Odometry, odometries()),
        (IMAGE_SENSOR, Image, images()),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
@pytest.mark.parametrize("examples", [40, pytest.param(1000, marks=pytest.mark.long)])
def test_raw_and_typed_messages_give_the_same_samples(sensor, kind, messages, examples):
    @settings(max_examples=examples, deadline=None)
    @given(raw_messages(messages))
    def check(wire):
        decoder, raw_buffer, typed_buffer = LayoutDecoder(kind), SensorBuffer("it", sensor), SensorBuffer("it", sensor)
        for data in wire:
            typed, raw = decoded_or_none(data, kind), decoder.decode(data)
            assert (typed is None) == (raw is None)
            if raw is not None:
                raw_buffer.add(arrival(raw))
                typed_buffer.add(arrival(typed))
            assert reader_without_layouts(raw_buffer.sample()) == reader_without_layouts(typed_buffer.sample())

    check()


MESSAGES = [
    JointState(name=list(JOINTS), position=[1.0, 2.0, 3.0]),
    LaserScan(ranges=array.array("f", [1.0, 2.0])),
    Odometry(child_frame_id="base"),
    Image(height=1, width=2, step=2, encoding="mono8", data=array.array("B", b"ab")),
    PoseStamped(),
    Imu(),
    PointCloud2(fields=[PointField(sensor="s", name="x", datatype=7, count=1)], data=array.array("B", b"abcd")),
]


@pytest.fixture(params=MESSAGES, ids=lambda message: type(message).__name__)
def message(request):
    return request.param


def test_the_second_message_uses_the_layout_of_the_first(message):
    decoder, data = LayoutDecoder(type(message)), to_cdr(message)
    first, second = decoder.decode(data), decoder.decode(data)
    assert isinstance(first.decoded(), type(message))
    assert not isinstance(second.decoded(), type(message))


def test_padding_bytes_are_ignored():
    message = JointState(name=["ab"], position=[1.0], velocity=[2.0], effort=[3.0])
    data = bytearray(to_cdr(message))
    decoder = LayoutDecoder(JointState)
    decoder.decode(bytes(data))
    gap = data.find(struct.pack("<d", 1.0)) - 4
    place = next(place for place in range(gap, 0, -1) if data[place : place + 4] == b"\1\0\0\0") + 4
    data[place : gap + 4] = b"\xee" * (gap + 4 - place)
    assert not isinstance(decoder.decode(bytes(data)).decoded(), JointState)


def test_trailing_bytes_are_not_recorded(message):
    decoder, data = LayoutDecoder(type(message)), to_cdr(message)
    decoder.decode(data)
    assert decoder.decode(data + b"abc").to_cdr() == data


def test_a_message_with_other_names_is_decoded_correctly():
    decoder = LayoutDecoder(JointState)
    decoder.decode(to_cdr(JointState(name=["a", "b"], position=[1.0, 2.0])))
    changed = decoder.decode(to_cdr(JointState(name=["b", "a"], position=[2.0, 1.0])))
    assert changed.decoded().name == ["b", "a"]


def test_a_string_that_is_not_utf8_decodes_as_in_rclpy():
    data = to_cdr(JointState(name=["joint"], position=[1.0])).replace(b"joint", b"join\xff")
    decoder = LayoutDecoder(JointState)
    assert [decoder.decode(data).decoded().name for _ in range(2)] == [deserialize_message(data, JointState).name] * 2


def test_messages_of_varying_layout_decode_as_in_rclpy():
    decoder = LayoutDecoder(CompressedImage)
    for size in range(40):
        data = to_cdr(CompressedImage(format="png", data=array.array("B", bytes(size))))
        assert len(decoder.decode(data).decoded().data) == size


def test_an_environment_variable_disables_layouts(message, monkeypatch):
    monkeypatch.setenv(PLAIN_VARIABLE, "1")
    decoder, data = LayoutDecoder(type(message)), to_cdr(message)
    assert [type(decoder.decode(data).decoded()) for _ in range(3)] == [type(message)] * 3


def test_invalid_bytes_decode_to_none():
    assert LayoutDecoder(JointState).decode(b"\0\1\0\0abc") is None


def test_raw_and_typed_stamps_are_equal():
    message = JointState()
    message.header.stamp.sec, message.header.stamp.nanosec = 12, 34
    decoder = LayoutDecoder(JointState)
    assert [decoder.decode(to_cdr(message)).stamp_ns() for _ in range(2)] == [12_000_000_034] * 2


def test_sample_arrays_do_not_share_the_received_bytes():
    buffer, decoder = SensorBuffer("it", JOINT_SENSOR), LayoutDecoder(JointState)
    for number in (1, 2):
        message = JointState(name=list(JOINTS), position=[1.0, 2.0, 3.0], velocity=[0.0, 0.0, 0.0])
        message.header.stamp.sec = number
        buffer.add(arrival(decoder.decode(to_cdr(message))))
        sample = buffer.sample()
        assert sample.quality is Quality.OK
        assert all(value.flags.owndata and value.flags.writeable for value in sample.values.values())


@given(st.lists(FLOATS, min_size=1, max_size=5))
@settings(max_examples=50, deadline=None)
def test_raw_ranges_are_checked_like_typed_ones(values):
    """The fast path of `settle_ranges` is taken only where the slow one changes nothing."""
    ranges = np.array(values, dtype=np.float32)
    field = Field(sensor="s", name="it", shape=ranges.shape, dtype=ranges.dtype, no_return=9.0, nan=8.0)
    long = ranges.copy()
    long[(long > 4.0) & (long <= 4.0 * 1.01)] = 4.0
    np.copyto(long, np.nan, where=np.isfinite(long) & ((long < 0.5) | (long > 4.0)))
    wanted = settle(field, long, near=0.5)
    assert settle_ranges(field, ranges, Window(0.5, 4.0)).tobytes() == wanted.tobytes()


def test_a_stored_message_is_not_changed_by_the_next():
    decoder = LayoutDecoder(JointState)
    first, second = (JointState(name=["a", "b"], position=[value, 0.5]) for value in (1.0, 2.0))
    decoder.decode(to_cdr(first))
    kept = decoder.decode(to_cdr(first)).decoded()
    later = decoder.decode(to_cdr(second)).decoded()
    later.name.append("c")
    later.header.stamp.sec = 7
    assert (kept.name, kept.position.tolist(), kept.header.stamp.sec) == (["a", "b"], [1.0, 0.5], 0)
    assert decoder.decode(to_cdr(second)).decoded().name == ["a", "b"]


@pytest.mark.parametrize("reader_without_layouts", ["", "1"])
def test_two_reads_of_a_message_share_no_memory(reader_without_layouts, monkeypatch):
    monkeypatch.setenv(PLAIN_VARIABLE, reader_without_layouts)
    data = to_cdr(JointState(name=["a"], position=[1.0]))
    decoder = LayoutDecoder(JointState)
    for raw in (decoder.decode(data), decoder.decode(data)):
        changed, other = raw.decoded(), raw.decoded()
        changed.name.append("b")
        changed.header.stamp.sec = 7
        assert (list(other.name), other.header.stamp.sec, raw.to_cdr()) == (["a"], 0, data)
