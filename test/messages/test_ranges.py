import array
import math

import numpy as np
import pytest
from message_samples import changed_message, check_invalid, new_message, read, sensor

pytest.importorskip("rclpy", reason="needs rclpy")

from embodied_env.contract.sensor_schema import PointsSpec
from embodied_env.ros.embedded_sim.message_encoder import to_message

pytestmark = pytest.mark.ros

INF, NAN = math.inf, math.nan
EXTRAS = {"range_min_m": 0.5, "range_max_m": 8.0}

SCAN = "sensor_msgs/msg/LaserScan"
RANGE = "sensor_msgs/msg/Range"


def scan(ranges):
    return to_message(sensor(SCAN, {"ranges": {"shape": (len(ranges),)}}), {"ranges": np.float32(ranges)}, 1, EXTRAS)


def ray(value):
    return to_message(sensor(RANGE, {"range": {}}), {"range": np.array([value], np.float32)}, 1, EXTRAS)


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
    check_invalid(sensor(SCAN, {"ranges": {"shape": (3,)}}), scan(ranges), problem)


@pytest.mark.parametrize("limits", [(2.0, 1.0), (NAN, 1.0), (1.0, NAN), (-INF, 1.0)])
def test_a_scan_with_invalid_range_limits_is_rejected(limits):
    message = scan([1.0])
    message.range_min, message.range_max = limits
    check_invalid(sensor(SCAN, {"ranges": {"shape": (1,)}}), message, "invalid sensor range")


CLOUD = sensor("sensor_msgs/msg/PointCloud2", {"points": {"shape": (4, 3)}})
POINTS = np.arange(12, dtype=np.float32).reshape(4, 3)


def cloud(points=POINTS, **changes):
    return changed_message(to_message(CLOUD, {"points": points}, 1), **changes)


@pytest.mark.parametrize("count", [1, 4, 9])
def test_a_cloud_of_any_size_is_read_with_declared_points(count):
    select = PointsSpec(count=3, pad=99.0)
    spec = sensor(CLOUD.type, {"points": {"points": select, "low": -99.0, "high": 99.0}})
    points = np.arange(3 * count, dtype=np.float32).reshape(count, 3)
    found = read(spec, cloud(points))["points"]
    assert found.shape == (3, 3)
    np.testing.assert_array_equal(found[:count], points[:3])
    assert (found[count:] == 99.0).all()
    check_invalid(spec, cloud(np.full((2, 3), NAN, np.float32)), "points: no measured point")


def axes(*parts):
    return [new_message("sensor_msgs/msg/PointField", name=n, offset=o, datatype=t, count=c) for n, o, t, c in parts]


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
    check_invalid(CLOUD, cloud(**changes), problem)


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
    check_invalid(CLOUD, cloud(points), problem)


def test_unmeasured_points_are_replaced_as_declared():
    points = POINTS.copy()
    points[1], points[2] = NAN, INF
    spec = sensor(CLOUD.type, {"points": {"shape": (4, 3), "nan": 1.0, "no_return": 2.0}})
    assert read(spec, cloud(points))["points"][1:3].tolist() == [[1.0] * 3, [2.0] * 3]
