"""Errors of the sensor readers for each kind of invalid input; infinities, NaN, padding and names."""

from __future__ import annotations

import array
import io
import math
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("rclpy", reason="needs rclpy")

from embodied_env.contract import FieldSpec, SensorSpec, load_contract
from embodied_env.contract.reading_values import position_confidence
from embodied_env.errors import ContractError, MissingDependencyError
from embodied_env.messages.message_types import message_class
from embodied_env.ros.embedded_sim.lockstep_node import run_simulator
from embodied_env.ros.embedded_sim.sensor_messages import to_message
from embodied_env.ros.wire.message_fields import MalformedMessageError
from embodied_env.ros.wire.sensor_readers import SensorReader

pytestmark = pytest.mark.ros

INF, NAN = math.inf, math.nan
EXTRAS = {"range_min_m": 0.5, "range_max_m": 8.0}


def sensor(message_type, fields, **keys):
    specs = {name: FieldSpec(**{"unit": "1", "low": 0.0, "high": 10.0, **given}) for name, given in fields.items()}
    keys.setdefault("timeline", "receive")  # some types have no header
    return SensorSpec(topic="topic", type=message_type, fields=specs, max_age_s=1.0, **keys)


ODOMETRY = "nav_msgs/msg/Odometry"
SHAPE = "shape_msgs/msg/SolidPrimitive"


def read(spec, message):
    return SensorReader("thing", spec).read(message)


def error_of(spec, message, problem):
    with pytest.raises(MalformedMessageError, match=problem):
        read(spec, message)


# ------------------------------------------------------------------------------------------------ joints

JOINTS = sensor("sensor_msgs/msg/JointState", {"position": {"joints": ("a", "b", "c")}})
TRAJECTORY = sensor("trajectory_msgs/msg/JointTrajectory", {"velocity": {"joints": ("a", "b")}})


def joint_message(names, positions):
    message = message_class("sensor_msgs/msg/JointState")()
    message.name, message.position = names, positions
    return message


def trajectory(names, *points):
    message = message_class("trajectory_msgs/msg/JointTrajectory")()
    point_class = message_class("trajectory_msgs/msg/JointTrajectoryPoint")
    message.joint_names = names
    message.points = [point_class(velocities=velocities) for velocities in points]
    return message


@pytest.mark.parametrize(
    ("names", "positions", "problem"),
    [
        (["a", "b"], [1.0, 2.0], "no position of c"),
        (["a", "b", "c"], [1.0, 2.0], "2 values for 3 names"),
        (["a", "b", "c"], [], "0 values for 3 names"),
        (["a", "a", "b", "c"], [1.0, 2.0, 3.0, 4.0], "duplicate joint"),
    ],
)
def test_a_malformed_joint_state_is_rejected_with_its_reason(names, positions, problem):
    error_of(JOINTS, joint_message(names, positions), problem)


def test_undeclared_joints_are_skipped():
    message = joint_message(["gripper", "c", "b", "a"], [9.0, 3.0, 2.0, 1.0])
    assert read(JOINTS, message)["position"].tolist() == [1.0, 2.0, 3.0]


def test_a_reading_does_not_share_memory_with_the_message():
    message = joint_message(["a", "b", "c"], [1.0, 2.0, 3.0])
    values = read(JOINTS, message)
    message.position[0] = 7.0
    assert values["position"].tolist() == [1.0, 2.0, 3.0]


def test_a_joint_without_the_field_is_published_as_nan():
    spec = sensor("sensor_msgs/msg/JointState", {"position": {"joints": ("a", "b")}, "effort": {"joints": ("b",)}})
    message = to_message(spec, {"position": np.array([1.0, 2.0]), "effort": np.array([5.0])}, 1)
    assert math.isnan(message.effort[0])
    assert read(spec, message)["effort"].tolist() == [5.0]


def test_the_last_point_of_a_trajectory_is_read():
    assert read(TRAJECTORY, trajectory(["b", "a"], [1.0, 2.0], [3.0, 4.0]))["velocity"].tolist() == [4.0, 3.0]


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (lambda: trajectory(["a", "b"]), "no points"),
        (lambda: trajectory(["a", "b"], [1.0, 2.0], []), "velocity has 0 values for 2 names"),
        (lambda: trajectory(["a"], [1.0]), "no velocity of b"),
    ],
)
def test_a_malformed_trajectory_is_rejected_with_its_reason(message, problem):
    error_of(TRAJECTORY, message(), problem)


# ------------------------------------------------------------------------------------------------ frames and numbers


def test_another_frame_is_rejected():
    spec = sensor("geometry_msgs/msg/PointStamped", {"position": {}}, frame="map")
    message = to_message(spec, {"position": np.zeros(3)}, 1)
    message.header.frame_id = "odom"
    error_of(spec, message, r"frame_id is 'odom' \(expected 'map'\)")


def test_another_child_frame_is_rejected():
    spec = sensor("nav_msgs/msg/Odometry", {"position": {}}, child_frame="base")
    message = to_message(spec, {"position": np.zeros(3)}, 1)
    message.child_frame_id = "wheel"
    error_of(spec, message, "child_frame_id is 'wheel'")


def test_a_frame_for_a_message_without_header_is_a_contract_error():
    spec = sensor("std_msgs/msg/Int32", {"data": {"path": "data"}}, frame="map")
    with pytest.raises(ContractError, match=r"sensors.thing.frame: 'map' .*std_msgs/msg/Int32 has no header"):
        SensorReader("thing", spec)


def test_an_array_of_another_length_is_rejected():
    spec = sensor("std_msgs/msg/Float64MultiArray", {"data": {"shape": (3,)}})
    error_of(spec, message_class(spec.type)(data=[1.0, 2.0]), "data has 2 values")


def test_an_unmeasured_battery_value_is_rejected():
    spec = sensor("sensor_msgs/msg/BatteryState", {"voltage": {}, "charge": {}})
    message = to_message(spec, {"voltage": np.array([12.0], np.float32), "charge": np.array([NAN], np.float32)}, 1)
    error_of(spec, message, "charge is NaN: not measured")


def test_an_imu_field_marked_as_missing_is_rejected():
    spec = sensor("sensor_msgs/msg/Imu", {"orientation": {}})
    message = to_message(sensor("sensor_msgs/msg/Imu", {"angular_velocity": {}}), {"angular_velocity": np.ones(3)}, 1)
    error_of(spec, message, "no orientation: its covariance starts with -1")


def test_an_undeclared_imu_field_is_published_as_unknown():
    spec = sensor("nav_msgs/msg/Odometry", {"position": {}})
    message = to_message(spec, {"position": np.ones(3)}, 1)
    assert math.isnan(message.twist.twist.linear.x)


# ------------------------------------------------------------------------------------------------ rays

SCAN = "sensor_msgs/msg/LaserScan"
RANGE = "sensor_msgs/msg/Range"


def scan(ranges):
    return to_message(sensor(SCAN, {"ranges": {"shape": (len(ranges),)}}), {"ranges": np.float32(ranges)}, 1, EXTRAS)


def ray(value):
    return to_message(sensor(RANGE, {"range": {}}), {"range": np.float32([value])}, 1, EXTRAS)


@pytest.mark.parametrize(
    ("raw", "meaning"),
    [(INF, 9.0), (-INF, 0.5), (NAN, 0.25), (0.4, 0.25), (8.1, 0.25), (0.5, 0.5), (8.0, 8.0), (3.0, 3.0)],
)
def test_ranges_follow_rep_117_and_the_contract(raw, meaning):
    declared = {"no_return": 9.0, "nan": 0.25}
    spec = sensor(SCAN, {"ranges": {"shape": (2,), **declared}})
    assert read(spec, scan([1.0, raw]))["ranges"].tolist() == [1.0, meaning]
    assert read(sensor(RANGE, {"range": declared}), ray(raw))["range"].tolist() == [meaning]


@pytest.mark.parametrize(
    ("ranges", "problem"),
    [
        ([1.0, INF, INF], r"2 of 3 values of ranges are \+inf \(no return\); declare no_return"),
        ([1.0, NAN, 2.0], r"1 of 3 values of ranges are NaN or outside of 0.5 m to 8 m \(no measurement\)"),
        ([9.0, 0.1, 2.0], "2 of 3 values of ranges are NaN or outside"),
        ([1.0, 2.0], "ranges has 2 values"),
    ],
)
def test_invalid_ranges_without_a_replacement_are_rejected(ranges, problem):
    error_of(sensor(SCAN, {"ranges": {"shape": (3,)}}), scan(ranges), problem)


@pytest.mark.parametrize("limits", [(2.0, 1.0), (NAN, 1.0), (1.0, NAN), (-INF, 1.0)])
def test_a_scan_with_invalid_range_limits_is_rejected(limits):
    message = scan([1.0])
    message.range_min, message.range_max = limits
    error_of(sensor(SCAN, {"ranges": {"shape": (1,)}}), message, "invalid sensor range")


# ------------------------------------------------------------------------------------------------ images

RGB = sensor("sensor_msgs/msg/Image", {"image": {"shape": (2, 3, 3)}}, encoding="rgb8")
PIXELS = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)


def image(**changes):
    message = to_message(RGB, {"image": PIXELS}, 1)
    for key, value in changes.items():
        setattr(message, key, value)
    return message


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"encoding": "bgr8"}, "encoding is 'bgr8'"),
        ({"width": 2, "height": 3}, "the image is 2 x 3"),
        ({"step": 8}, "step is 8 "),
        ({"step": 10}, "data has 18 bytes"),
        ({"data": array.array("B", bytes(17))}, "data has 17 bytes"),
        ({"data": array.array("B", bytes(19))}, "data has 19 bytes"),
    ],
)
def test_a_malformed_image_is_rejected_with_its_reason(changes, problem):
    error_of(RGB, image(**changes), problem)


def test_row_padding_is_skipped():
    rows = [bytes(PIXELS[row]) + b"\xff\xff\xff" for row in range(2)]
    values = read(RGB, image(step=12, data=array.array("B", b"".join(rows))))
    assert np.array_equal(values["image"], PIXELS)


def depth_spec(encoding, **declared):
    return sensor("sensor_msgs/msg/Image", {"image": {"shape": (1, 3, 1), **declared}}, encoding=encoding)


def depth(encoding, metres):
    return to_message(depth_spec(encoding), {"image": np.float32(metres).reshape(1, 3, 1)}, 1)


def test_depth_row_padding_may_be_any_number_of_bytes():
    spec = sensor("sensor_msgs/msg/Image", {"image": {"shape": (2, 1, 1)}}, encoding="16UC1")
    message = message_class(spec.type)(encoding="16UC1", width=1, height=2, step=3)
    message.data = array.array("B", b"\xe8\x03\xff\xd0\x07\xff")
    assert read(spec, message)["image"].ravel().tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("encoding", "metres", "problem"),
    [
        ("32FC1", [1.0, NAN, NAN], r"2 of 3 values of image are NaN \(no measurement\)"),
        ("32FC1", [1.0, INF, 1.0], r"1 of 3 values of image are \+inf"),
        ("32FC1", [1.0, -INF, 1.0], r"1 of 3 values of image are -inf \(too close\)"),
        ("16UC1", [1.0, 0.0, 1.0], r"1 of 3 values of image are 0 \(no measurement\)"),
        ("32FC1", [1.0, -2.0, NAN], "1 of 3 values of image are negative"),
    ],
)
def test_unmeasured_depth_is_counted_and_rejected(encoding, metres, problem):
    error_of(depth_spec(encoding), depth(encoding, metres), problem)


def test_unmeasured_depth_is_replaced_as_declared():
    spec = depth_spec("32FC1", no_return=10.0, nan=0.0)
    assert read(spec, depth("32FC1", [NAN, INF, 1.5]))["image"].ravel().tolist() == [0.0, 10.0, 1.5]


def test_millimetre_depth_is_read_as_metres_with_zero_as_nan():
    values = read(depth_spec("16UC1", nan=9.0), depth("16UC1", [0.0, 1.5, 65.535]))["image"]
    assert values.dtype == np.float32
    assert values.ravel().tolist() == pytest.approx([9.0, 1.5, 65.535])


@pytest.mark.parametrize("metres", [INF, NAN, -1.0, 66.0])
def test_depth_outside_the_millimetre_range_is_published_as_unmeasured(metres):
    assert bytes(depth("16UC1", [1.0, metres, 1.0]).data) == b"\xe8\x03\x00\x00\xe8\x03"


@pytest.mark.parametrize("encoding", ["32FC1", "16UC1"])
def test_big_endian_depth_is_rejected(encoding):
    message = depth(encoding, [1.0, 1.0, 1.0])
    message.is_bigendian = 1
    error_of(depth_spec(encoding), message, "is_bigendian is set")


# ------------------------------------------------------------------------------------------------ compressed images

PNG = sensor("sensor_msgs/msg/CompressedImage", {"image": {"shape": (2, 3, 3)}}, encoding="rgb8")


def compressed(text="png", pixels=PIXELS, codec="PNG"):
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, codec)
    return message_class(PNG.type)(format=text, data=file.getvalue())


@pytest.mark.parametrize("text", ["png", "rgb8; png compressed", "bgr8; png compressed bgr8"])
def test_a_png_is_read_with_any_format_string(text):
    assert np.array_equal(read(PNG, compressed(text))["image"], PIXELS)


@pytest.mark.parametrize("text", ["jpeg", "jpg", "rgb8; jpeg compressed bgr8"])
def test_a_jpeg_is_read_approximately(text):
    grey = np.full((2, 3, 3), 120, np.uint8)
    values = read(PNG, compressed(text, grey, "JPEG"))["image"]
    assert np.abs(values.astype(int) - 120).max() <= 2


@pytest.mark.parametrize("text", ["16UC1; compressedDepth png", "32FC1; compressedDepth", "tiff", "", "rgb8; "])
def test_another_format_is_rejected(text):
    error_of(PNG, compressed(text), "format is '.*'")


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (lambda: compressed(pixels=np.zeros((3, 2, 3), np.uint8)), "the image is 2 x 3"),
        (lambda: compressed(pixels=np.zeros((2, 3), np.uint8)), "mode L"),
        (lambda: compressed(pixels=np.zeros((2, 3, 4), np.uint8)), "mode RGBA"),
        (lambda: compressed(codec="JPEG"), "the PNG cannot be decoded"),
        (lambda: message_class(PNG.type)(format="png", data=b""), "the PNG cannot be decoded"),
    ],
)
def test_a_malformed_compressed_image_is_rejected_with_its_reason(message, problem):
    error_of(PNG, message(), problem)


@pytest.mark.parametrize(("text", "codec"), [("png", "PNG"), ("jpeg", "JPEG")])
def test_a_truncated_compressed_image_is_rejected(text, codec):
    noise = np.random.default_rng(1).integers(0, 255, (64, 64, 3), np.uint8)
    spec = sensor(PNG.type, {"image": {"shape": (64, 64, 3)}}, encoding="rgb8")
    message = compressed(text, noise, codec)
    message.data = message.data[: len(message.data) // 2]
    error_of(spec, message, f"the {codec} cannot be decoded")


def test_missing_pillow_is_reported_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingDependencyError, match=r"sensors.thing needs pillow.*embodied_env\[images\]"):
        SensorReader("thing", PNG)


# ------------------------------------------------------------------------------------------------ point clouds

CLOUD = sensor("sensor_msgs/msg/PointCloud2", {"points": {"shape": (4, 3)}})
POINTS = np.arange(12, dtype=np.float32).reshape(4, 3)


def cloud(points=POINTS, **changes):
    message = to_message(CLOUD, {"points": points}, 1)
    for key, value in changes.items():
        setattr(message, key, value)
    return message


def axes(*parts):
    point_field = message_class("sensor_msgs/msg/PointField")
    return [point_field(name=n, offset=o, datatype=t, count=c) for n, o, t, c in parts]


X, Y, Z = ("x", 0, 7, 1), ("y", 4, 7, 1), ("z", 8, 7, 1)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"width": 3}, "has 3 x 1 points"),
        ({"fields": axes(X, Y)}, r"0 fields z in \['x', 'y'\]"),
        ({"fields": axes(X, Y, Z, Z)}, "2 fields z"),
        ({"fields": axes(X, Y, ("z", 8, 8, 1))}, r"z has datatype 8 and count 1"),
        ({"fields": axes(X, Y, ("z", 8, 7, 2))}, "z has datatype 7 and count 2"),
        ({"fields": axes(X, Y, ("z", 9, 7, 1))}, "z at offset 9 exceeds point_step 12"),
        ({"point_step": 13}, "row_step is 48 "),
        ({"row_step": 49}, "data has 48 bytes"),
        ({"row_step": 47}, "row_step is 47 "),
        ({"data": array.array("B", bytes(47))}, "data has 47 bytes"),
        ({"data": array.array("B", bytes(49))}, "data has 49 bytes"),
        ({"is_bigendian": True}, "is_bigendian is set"),
    ],
)
def test_a_malformed_cloud_is_rejected_with_its_reason(changes, problem):
    error_of(CLOUD, cloud(**changes), problem)


def test_points_are_read_by_field_name_across_padded_rows():
    layout = np.dtype({"names": ["z", "i", "x", "y"], "formats": ["<f4", "u1", "<f4", "<f4"], "offsets": [0, 4, 5, 9]})
    packed = np.zeros((2, 2), layout)
    for place, axis in enumerate("xyz"):
        packed[axis] = POINTS.reshape(2, 2, 3)[..., place]
    message = cloud(
        fields=axes(("z", 0, 7, 1), ("i", 4, 2, 1), ("x", 5, 7, 1), ("y", 9, 7, 1)),
        width=2,
        height=2,
        point_step=13,
        row_step=30,
        data=array.array("B", b"".join(row.tobytes() + bytes(4) for row in packed)),
    )
    assert np.array_equal(read(CLOUD, message)["points"], POINTS)


@pytest.mark.parametrize(("value", "problem"), [(NAN, "3 of 12 values of points are NaN"), (-INF, "3 of 12 .* -inf")])
def test_unmeasured_points_are_counted_and_rejected(value, problem):
    points = POINTS.copy()
    points[1] = value
    error_of(CLOUD, cloud(points), problem)


def test_unmeasured_points_are_replaced_as_declared():
    points = POINTS.copy()
    points[1], points[2] = NAN, INF
    spec = sensor(CLOUD.type, {"points": {"shape": (4, 3), "nan": 1.0, "no_return": 2.0}})
    assert read(spec, cloud(points))["points"][1:3].tolist() == [[1.0] * 3, [2.0] * 3]


# ------------------------------------------------------------------------------------------------ paths


@pytest.mark.parametrize(
    ("message_type", "keys", "where", "problem"),
    [
        ("std_msgs/msg/Int32", {"path": "dta"}, "path", "unknown field of std_msgs/Int32: 'dta'"),
        (ODOMETRY, {"path": "pose.pose.height"}, "path", "unknown field of geometry_msgs/Pose: 'height'"),
        (
            ODOMETRY,
            {"path": "pose.pose.position.x.real"},
            "path",
            "'pose.pose.position.x' of type double has no fields",
        ),
        (ODOMETRY, {"path": "pose.pose.position.x[0]"}, "path", "of type double has no elements"),
        (ODOMETRY, {"path": "child_frame_id"}, "path", "'child_frame_id' of type string"),
        (ODOMETRY, {"path": "child_frame_id[0]"}, "path", "of type string has no elements"),
        (ODOMETRY, {"path": "pose.pose"}, "path", "'pose.pose' of type geometry_msgs/Pose"),
        (ODOMETRY, {"path": "pose.covariance"}, "path", "of type sequence of double"),
        (ODOMETRY, {"path": "pose.covariance[36]"}, "path", "index 36 of 'pose.covariance' .expected below 36"),
        (ODOMETRY, {"path": "pose.covariance", "shape": (35,)}, "shape", "35 values .*expected 36 in .*Odometry"),
        (ODOMETRY, {"path": "pose.pose.position.x", "shape": (1,)}, "shape", "shape"),
        (SHAPE, {"path": "dimensions", "shape": (4,)}, "shape", "4 values .*expected at most 3 in .*SolidPrimitive"),
        ("sensor_msgs/msg/JointState", {"path": "name", "shape": (1,)}, "path", "sequence of string"),
        ("geometry_msgs/msg/PoseArray", {"path": "poses.position"}, "path", "'poses' of type geometry_msgs/Pose"),
        ("std_msgs/msg/ByteMultiArray", {"path": "data", "shape": (2,)}, "path", "no sequence of octets"),
        ("std_msgs/msg/UInt64", {"path": "data"}, "path", "'data' of type uint64"),
    ],
)
def test_an_unknown_path_is_a_contract_error(message_type, keys, where, problem):
    with pytest.raises(ContractError, match=problem) as caught:
        SensorReader("thing", sensor(message_type, {"x": keys}))
    assert caught.value.path == f"sensors.thing.fields.x.{where}"


@pytest.mark.parametrize(
    ("message_type", "dtype", "wire"),
    [
        ("std_msgs/msg/Float32", None, "float32"),
        ("std_msgs/msg/Float64", "float32", "float64"),
        ("std_msgs/msg/Int32", "float64", "int32"),
        ("std_msgs/msg/UInt8", "int32", "uint8"),
        ("std_msgs/msg/UInt16", "int32", "uint16"),
        ("std_msgs/msg/Bool", "uint8", "int8"),
        ("std_msgs/msg/Byte", "int8", "uint8"),
    ],
)
def test_a_lossy_dtype_is_a_contract_error(message_type, dtype, wire):
    with pytest.raises(ContractError, match=f"expected '{wire}'.$") as caught:
        SensorReader("thing", sensor(message_type, {"x": {"path": "data", "dtype": dtype}}))
    assert caught.value.path == "sensors.thing.fields.x.dtype"


@pytest.mark.parametrize(("dtype", "type_name"), [("uint16", "UInt16"), ("int16", "Int16"), ("uint32", "UInt32")])
def test_each_dtype_is_read_as_on_the_wire(dtype, type_name):
    spec = sensor(f"std_msgs/msg/{type_name}", {"x": {"path": "data", "dtype": dtype}})
    value = read(spec, message_class(spec.type)(data=int(np.iinfo(dtype).max)))["x"]
    assert (value.dtype, value.tolist()) == (np.dtype(dtype), [np.iinfo(dtype).max])


def test_a_missing_element_is_rejected():
    spec = sensor("geometry_msgs/msg/PoseArray", {"x": {"path": "poses[0].position.x"}})
    error_of(spec, message_class(spec.type)(), "no such element")


def test_a_sequence_of_another_length_is_rejected():
    spec = sensor("std_msgs/msg/Float64MultiArray", {"x": {"path": "data", "shape": (2, 2)}})
    error_of(spec, message_class(spec.type)(), "data has 0 values")


def test_an_unknown_type_is_a_contract_error():
    with pytest.raises(
        ContractError, match=r"^sensors.thing.type: no msg 'Nonsense' in the installed package std_msgs"
    ):
        SensorReader("thing", sensor("std_msgs/msg/Nonsense", {"x": {"path": "data"}}))


def test_timeline_header_needs_a_header():
    with pytest.raises(ContractError, match=r"^sensors.thing.timeline: 'header'"):
        SensorReader("thing", sensor("std_msgs/msg/Float64", {"x": {"path": "data"}}, timeline="header"))


def test_the_simulator_rejects_the_same_sensors_at_start():
    arm = load_contract("arm_reach")
    thing = sensor("std_msgs/msg/Int32", {"x": {"path": "dta"}})
    contract = replace(arm, sensors={**arm.sensors, "thing": thing})
    with pytest.raises(ContractError, match="'dta'") as caught:
        run_simulator(contract, None, namespace="/nowhere", stop=threading.Event())
    assert caught.value.path == "sensors.thing.fields.x.path"


# ------------------------------------------------------------------------------------------------ orientations


@pytest.mark.parametrize(
    "message_type",
    ["geometry_msgs/msg/PoseStamped", "geometry_msgs/msg/PoseWithCovarianceStamped", ODOMETRY, "sensor_msgs/msg/Imu"],
)
@pytest.mark.parametrize("quaternion", [(0, 0, 0, 0), (0, 0, 0, 0.89), (0, 0, 1.11, 0), (0, 0, 0, NAN), (0, 0, 0, INF)])
def test_an_orientation_far_from_unit_norm_is_rejected(message_type, quaternion):
    spec = sensor(message_type, {"orientation": {}})
    message = to_message(spec, {"orientation": np.array(quaternion, dtype=np.float64)}, 1)
    error_of(spec, message, "orientation")


@pytest.mark.parametrize("quaternion", [(0, 0, 0, 0.91), (0, -1.09, 0, 0), (0.5, 0.5, 0.5, -0.5)])
def test_an_orientation_near_unit_norm_is_read_unchanged(quaternion):
    spec = sensor("geometry_msgs/msg/PoseStamped", {"orientation": {}})
    message = to_message(spec, {"orientation": np.array(quaternion, dtype=np.float64)}, 1)
    assert tuple(read(spec, message)["orientation"]) == quaternion


# ------------------------------------------------------------------------------------------------ confidence


def covariance(block):
    full = np.zeros((6, 6))
    full[:3, :3] = block
    full[3:, 3:] = np.eye(3)
    return full.ravel()


def test_the_confidence_within_one_standard_deviation_is_two_thirds():
    assert position_confidence(covariance(np.diag([0.01, 0.0001, 0.0])), 0.1) == pytest.approx(0.6827, abs=1e-4)


@settings(max_examples=50, deadline=None)
@given(st.floats(0.01, 1.0), st.floats(0.01, 1.0), st.floats(0.0, 6.0))
def test_the_confidence_is_that_of_the_worst_axis_in_any_orientation(first, second, angle):
    turn = np.array([[math.cos(angle), -math.sin(angle), 0], [math.sin(angle), math.cos(angle), 0], [0, 0, 1]])
    turned = turn @ np.diag([first, second, 0.005]) @ turn.T
    expected = math.erf(0.1 / math.sqrt(2 * max(first, second)))
    assert position_confidence(covariance((turned + turned.T) / 2), 0.1) == pytest.approx(expected)


@pytest.mark.parametrize(
    "block",
    [
        np.zeros((3, 3)),
        np.diag([NAN, 1.0, 1.0]),
        np.diag([INF, 1.0, 1.0]),
        np.diag([-1.0, 1.0, 1.0]),
        [[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
        [[1.0, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
    ],
    ids=["zero", "nan", "infinite", "negative", "indefinite", "asymmetric"],
)
def test_an_uninformative_covariance_gives_no_confidence(block):
    assert math.isnan(position_confidence(covariance(block), 0.1))


@pytest.mark.parametrize("message_type", ["geometry_msgs/msg/PoseWithCovarianceStamped", "nav_msgs/msg/Odometry"])
def test_the_confidence_of_a_message_follows_its_covariance(message_type):
    spec = sensor(message_type, {"position": {}}, confidence_radius_m=0.2)
    spread = covariance(np.eye(3) * 0.04)
    message = to_message(spec, {"position": np.zeros(3)}, 1, {"covariance": spread})
    assert SensorReader("thing", spec).confidence(message) == position_confidence(spread, 0.2)


def test_a_message_without_covariance_has_no_confidence():
    assert SensorReader("thing", JOINTS).confidence(joint_message(["a", "b", "c"], [1.0, 2.0, 3.0])) is None
