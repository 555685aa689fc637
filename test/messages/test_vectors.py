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


ONE_SIGMA, TWO_SIGMA = math.erf(1 / math.sqrt(2)), math.erf(2 / math.sqrt(2))


def covariance(x, y, z, roll=0.0):
    """Return a covariance of variances alone, shape (36,)."""
    return np.diag([x, y, z, roll, 0.0, 0.0]).ravel()


@pytest.mark.parametrize(("radius_m", "expected"), [(0.1, ONE_SIGMA), (0.2, TWO_SIGMA)])
def test_confidence_is_the_gaussian_probability_within_the_radius(radius_m, expected):
    assert position_confidence(covariance(0.01, 0.01, 0.01), radius_m) == pytest.approx(expected, rel=1e-12)


def test_confidence_uses_the_worst_axis():
    assert position_confidence(covariance(1e-6, 0.01, 1e-4), 0.1) == pytest.approx(ONE_SIGMA, rel=1e-12)


def test_worst_axis_need_not_be_x_y_or_z():
    turned = np.zeros((6, 6))
    turned[:2, :2] = [[0.005, 0.005], [0.005, 0.005]]  # 0.01 along x = y, 0 across
    assert position_confidence(turned.ravel(), 0.1) == pytest.approx(ONE_SIGMA, rel=1e-9)


def test_confidence_ignores_orientation():
    assert position_confidence(covariance(0.01, 0.01, 0.01, roll=9.0), 0.1) == pytest.approx(ONE_SIGMA, rel=1e-12)


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
    sigma_m = math.sqrt(variance_m2)
    assert position_confidence(covariance(*[variance_m2] * 3), sigma_m) == pytest.approx(ONE_SIGMA, rel=1e-9)


def test_huge_error_gives_small_nonzero_confidence():
    assert 0.0 < position_confidence(covariance(1e308, 1e308, 1e308), 0.1) < 1e-100


def test_confidence_underflows_to_zero():
    assert position_confidence(covariance(1e308, 1e308, 1e308), 1e-300) == 0.0


@given(st.floats(1e-4, 10), st.floats(1e-3, 10), st.floats(1.01, 10))
def test_confidence_is_monotonic_in_error_and_radius(sigma_m, radius_m, factor):
    here = position_confidence(covariance(sigma_m**2, sigma_m**2, sigma_m**2), radius_m)
    worse = position_confidence(covariance((factor * sigma_m) ** 2, sigma_m**2, sigma_m**2), radius_m)
    assert 0.0 < worse <= here <= 1.0
    assert position_confidence(covariance(sigma_m**2, sigma_m**2, sigma_m**2), radius_m / factor) <= here


@pytest.mark.parametrize("message_type", ["geometry_msgs/msg/PoseWithCovarianceStamped", "nav_msgs/msg/Odometry"])
def test_the_confidence_of_a_message_follows_its_covariance(message_type):
    spec = sensor(message_type, {"position": {}}, confidence_radius_m=0.2)
    spread = covariance(0.04, 0.04, 0.04)
    message = to_message(spec, {"position": np.zeros(3)}, 1, {"covariance": spread})
    assert SensorReader("thing", spec).confidence(message) == position_confidence(spread, 0.2)


def test_a_message_without_covariance_has_no_confidence():
    spec = sensor("geometry_msgs/msg/PoseStamped", {"position": {}})
    assert SensorReader("thing", spec).confidence(to_message(spec, {"position": np.zeros(3)}, 1)) is None
