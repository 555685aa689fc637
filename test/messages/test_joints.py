import math

import numpy as np
import pytest
from message_samples import check_invalid, new_message, read, sensor

pytest.importorskip("rclpy", reason="needs rclpy")

from embodied_env.messages.message_types import JOINT_SENSOR, TRAJECTORY
from embodied_env.ros.embedded_sim.message_encoder import to_message

pytestmark = pytest.mark.ros

JOINTS = sensor(JOINT_SENSOR, {"position": {"joints": ("a", "b", "c")}})
POINTS = sensor(TRAJECTORY, {"velocity": {"joints": ("a", "b")}})


def state(names, positions):
    return new_message(JOINT_SENSOR, name=names, position=positions)


def trajectory(names, *points):
    each = [new_message("trajectory_msgs/msg/JointTrajectoryPoint", velocities=velocities) for velocities in points]
    return new_message(TRAJECTORY, joint_names=names, points=each)


@pytest.mark.parametrize(
    ("spec", "message", "problem"),
    [
        (JOINTS, lambda: state(["a", "b"], [1.0, 2.0]), "no position of c"),
        (JOINTS, lambda: state(["a", "b", "c"], [1.0, 2.0]), "2 values for 3 names"),
        (JOINTS, lambda: state(["a", "b", "c"], []), "0 values for 3 names"),
        (JOINTS, lambda: state(["a", "a", "b", "c"], [1.0, 2.0, 3.0, 4.0]), "duplicate joint"),
        (POINTS, lambda: trajectory(["a", "b"]), "no points"),
        (POINTS, lambda: trajectory(["a", "b"], [1.0, 2.0], []), "velocity has 0 values for 2 names"),
        (POINTS, lambda: trajectory(["a"], [1.0]), "no velocity of b"),
    ],
)
def test_malformed_joints_are_rejected_with_their_reason(spec, message, problem):
    check_invalid(spec, message(), problem)


def test_the_last_point_of_a_trajectory_is_read():
    assert read(POINTS, trajectory(["b", "a"], [1.0, 2.0], [3.0, 4.0]))["velocity"].tolist() == [4.0, 3.0]


def test_a_joint_without_the_field_is_published_as_nan():
    spec = sensor(JOINT_SENSOR, {"position": {"joints": ("a", "b")}, "effort": {"joints": ("b",)}})
    message = to_message(spec, {"position": np.array([1.0, 2.0]), "effort": np.array([5.0])}, 1)
    assert math.isnan(message.effort[0])
    assert read(spec, message)["effort"].tolist() == [5.0]
