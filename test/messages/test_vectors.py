import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from message_samples import check_invalid, read, sensor

pytest.importorskip("rclpy", reason="needs rclpy")

from embodied_env.messages.vectors import position_confidence
from embodied_env.ros.embedded_sim.message_encoder import to_message
from embodied_env.ros.wire.sensor_buffer import SensorReader

pytestmark = pytest.mark.ros

INF, NAN = math.inf, math.nan

ODOMETRY = "nav_msgs/msg/Odometry"


def test_an_imu_field_marked_as_missing_is_rejected():
    spec = sensor("sensor_msgs/msg/Imu", {"orientation": {}})
    message = to_message(sensor("sensor_msgs/msg/Imu", {"angular_velocity": {}}), {"angular_velocity": np.ones(3)}, 1)
    check_invalid(spec, message, "no orientation: its covariance starts with -1")


def test_an_undeclared_imu_field_is_published_as_unknown():
    spec = sensor("nav_msgs/msg/Odometry", {"position": {}})
    message = to_message(spec, {"position": np.ones(3)}, 1)
    assert math.isnan(message.twist.twist.linear.x)


@pytest.mark.parametrize(
    "message_type",
    ["geometry_msgs/msg/PoseStamped", "geometry_msgs/msg/PoseWithCovarianceStamped", ODOMETRY, "sensor_msgs/msg/Imu"],
)
@pytest.mark.parametrize("quaternion", [(0, 0, 0, 0), (0, 0, 0, 0.89), (0, 0, 1.11, 0), (0, 0, 0, NAN), (0, 0, 0, INF)])
def test_an_orientation_far_from_unit_norm_is_rejected(message_type, quaternion):
    spec = sensor(message_type, {"orientation": {}})
    message = to_message(spec, {"orientation": np.array(quaternion, dtype=np.float64)}, 1)
    check_invalid(spec, message, "orientation")


@pytest.mark.parametrize("quaternion", [(0, 0, 0, 0.91), (0, -1.09, 0, 0), (0.5, 0.5, 0.5, -0.5)])
def test_an_orientation_near_unit_norm_is_read_unchanged(quaternion):
    spec = sensor("geometry_msgs/msg/PoseStamped", {"orientation": {}})
    message = to_message(spec, {"orientation": np.array(quaternion, dtype=np.float64)}, 1)
    assert tuple(read(spec, message)["orientation"]) == quaternion


def covariance(x, y, z, roll=0.0):
    """Return a covariance of variances alone, shape (36,)."""
    return np.diag([x, y, z, roll, 0.0, 0.0]).ravel()


@given(st.lists(st.floats(1e-4, 1e4), min_size=3, max_size=3), st.floats(1e-3, 1e3), st.integers(0, 9))
def test_confidence_is_the_gaussian_probability_along_the_worst_axis_in_any_direction(variances_m2, radius_m, seed):
    axes, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))
    turned = np.diag([9.0] * 6)  # the orientation does not count
    turned[:3, :3] = axes @ np.diag(variances_m2) @ axes.T
    expected = math.erf(radius_m / math.sqrt(2.0 * max(variances_m2)))
    assert position_confidence(turned.ravel(), radius_m) == pytest.approx(expected, rel=1e-9)


def correlated(upper, lower):
    result = np.diag([0.01] * 6)
    result[0, 1], result[1, 0] = upper, lower
    return result.ravel()


@pytest.mark.parametrize(
    "unknown",
    [
        np.zeros(36),
        covariance(-0.01, 0.01, 0.01),
        covariance(math.nan, 0.01, 0.01),
        covariance(math.inf, 0.01, 0.01),
        covariance(0.01, 0.01, 0.01, roll=math.nan),
        correlated(0.005, 0.0),
        correlated(0.02, 0.02),
    ],
    ids=["zero", "negative", "nan", "infinite", "nan of the orientation", "asymmetric", "indefinite"],
)
def test_invalid_covariance_gives_nan_confidence(unknown):
    assert math.isnan(position_confidence(unknown, 0.1))


@pytest.mark.parametrize("variance_m2", [1e308, 1e-300])
def test_extreme_variances_give_finite_confidence(variance_m2):
    one_sigma = position_confidence(covariance(*[variance_m2] * 3), math.sqrt(variance_m2))
    assert one_sigma == pytest.approx(math.erf(1.0 / math.sqrt(2.0)), rel=1e-9)
    assert position_confidence(covariance(1e308, 1e308, 1e308), 1e-300) == 0.0


@pytest.mark.parametrize("message_type", ["geometry_msgs/msg/PoseWithCovarianceStamped", "nav_msgs/msg/Odometry"])
def test_the_confidence_of_a_message_follows_its_covariance(message_type):
    spec = sensor(message_type, {"position": {}}, confidence_radius_m=0.2)
    spread = covariance(0.04, 0.04, 0.04)
    message = to_message(spec, {"position": np.zeros(3)}, 1, {"covariance": spread})
    assert SensorReader("thing", spec).confidence(message) == position_confidence(spread, 0.2)


def test_a_message_without_covariance_has_no_confidence():
    spec = sensor("geometry_msgs/msg/PoseStamped", {"position": {}})
    assert SensorReader("thing", spec).confidence(to_message(spec, {"position": np.zeros(3)}, 1)) is None
