"""Every figure, topic and input of the shipped robot files against the makers' values, copied here from their sources."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest
import yaml

FILES = Path(__file__).parents[2] / "config" / "robots"

JOINTS = {  # low, high, velocity, acceleration; `deceleration` where the file has one
    # SO-ARM100, Simulation/SO101/so101_new_calib.urdf; servo speed of feetech_ros2_driver, 3.68 rad/s; MoveIt's 10 rad/s^2
    "so101": {
        "shoulder_pan": (-1.91986, 1.91986, 3.6, 10.0),
        "shoulder_lift": (-1.74533, 1.74533, 3.6, 10.0),
        "elbow_flex": (-1.69, 1.69, 3.6, 10.0),
        "wrist_flex": (-1.65806, 1.65806, 3.6, 10.0),
        "wrist_roll": (-2.74385, 2.84121, 3.6, 10.0),
        "gripper": (-0.174533, 1.74533, 3.6, 10.0),
    },
    # Universal_Robots_ROS2_Description, config/ur5e/joint_limits.yaml; acceleration: 180 deg/s^2 of a later version
    "ur5e": {
        "shoulder_pan_joint": (-6.2832, 6.2832, 3.14, 3.14),
        "shoulder_lift_joint": (-6.2832, 6.2832, 3.14, 3.14),
        "elbow_joint": (-3.1416, 3.1416, 3.14, 3.14),
        "wrist_1_joint": (-6.2832, 6.2832, 3.14, 3.14),
        "wrist_2_joint": (-6.2832, 6.2832, 3.14, 3.14),
        "wrist_3_joint": (-6.2832, 6.2832, 3.14, 3.14),
    },
}

TOPICS = {  # of sensors and actuators: topic and type without the word msg
    "so101": {
        "joints": ("follower/joint_states", "sensor_msgs/JointState"),
        "arm": ("follower/forward_controller/commands", "std_msgs/Float64MultiArray"),
    },
    "ur5e": {
        "joints": ("joint_states", "sensor_msgs/JointState"),
        "tcp": ("tcp_pose_broadcaster/pose", "geometry_msgs/PoseStamped"),
        "arm": ("forward_position_controller/commands", "std_msgs/Float64MultiArray"),
    },
}

RATES_HZ = {  # of the emulated drivers
    "so101": {"joints": 100},
    "ur5e": {"joints": 500, "tcp": 500},
}

JOINT_ORDER: dict[str, list[str]] = {}  # as published, where it differs from that of the commands

INPUTS = {  # of `estop` and `active`: topic, type, path, safe values, latched
    "ur5e": {
        "safety_mode": ("io_and_status_controller/safety_mode", "ur_dashboard_msgs/SafetyMode", "mode", [1, 2], True),
        "robot_mode": ("io_and_status_controller/robot_mode", "ur_dashboard_msgs/RobotMode", "mode", [7], True),
        "program": ("io_and_status_controller/robot_program_running", "std_msgs/Bool", "data", [True], True),
    },
}

TIMEOUTS_S: dict[str, float] = {}  # of the robot's controller; absent: it has none

FRAMES = {  # frame, and the child's
    "ur5e": {"tcp": ("base", None)},
}


@pytest.fixture(params=sorted(JOINTS))
def name(request):
    return request.param


@pytest.fixture
def robot(name):
    return yaml.safe_load((FILES / f"{name}.yaml").read_text(encoding="utf-8"))


def test_every_shipped_robot_file_is_checked():
    assert {path.stem for path in FILES.glob("*.yaml")} == set(JOINTS) | {"turtlebot4"}


def test_joint_limits(name, robot):
    limits = {
        joint: (
            *(spec["position"] or (-inf, inf)),
            *(spec[key] for key in ("velocity", "acceleration", "deceleration") if key in spec),
        )
        for actuator in robot["actuators"].values()
        for joint, spec in actuator["joints"].items()
    }
    assert limits == JOINTS[name]
    assert list(limits) == list(JOINTS[name])  # the order of the commands


def test_topics_and_frames(name, robot):
    specs = {**robot["sensors"], **robot["actuators"]}
    assert {key: (spec["topic"], spec["type"].replace("/msg/", "/")) for key, spec in specs.items()} == TOPICS[name]
    frames = {key: (spec.get("frame"), spec.get("child_frame")) for key, spec in specs.items()}
    assert {key: pair for key, pair in frames.items() if any(pair)} == FRAMES.get(name, {})


def test_safety_inputs_and_timeout(name, robot):
    real = robot["backends"]["real"]
    inputs = {
        key: (
            spec["topic"],
            spec.get("type", "std_msgs/msg/Bool").replace("/msg/", "/"),
            spec.get("path", "data"),
            spec.get("safe", [group == "active"]),
            spec.get("latched", False),
        )
        for group in ("estop", "active")
        for key, spec in real.get(group, {}).items()
    }
    assert inputs == INPUTS.get(name, {})
    assert real.get("downstream_timeout_s") == TIMEOUTS_S.get(name)
    assert "allow_no_downstream_timeout" not in real


def test_emulated_rates_and_joint_order(name, robot):
    emulator = robot["backends"]["mujoco_ros"]["stand_in"]
    assert {key: driver["rate_hz"] for key, driver in emulator["sensors"].items()} == RATES_HZ[name]
    assert emulator.get("joint_order") == JOINT_ORDER.get(name)


def test_chosen_values_are_in_the_file(robot):
    for path in robot.get("chosen", {}):
        node = robot
        for key in path.split("."):
            node = node[key]
