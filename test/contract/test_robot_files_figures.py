"""Every number, topic and input of the shipped robot files against the manufacturers' values, copied from their sources."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest
import yaml

FILES = Path(__file__).parents[2] / "config" / "robots"

PI = 3.14159  # as in the files, rounded inwards

JOINTS: dict = {  # low, high, velocity, acceleration; `deceleration` and `jerk` where the file has them
    # libfranka, rate_limiting.h; the tighter positions of franka_description 1.0.1 and franka_hardware/test/fr3.urdf
    "fr3": {
        "fr3_joint1": (-2.7437, 2.7437, 2.62, 10, 6.0, 5000),
        "fr3_joint2": (-1.7837, 1.7837, 2.62, 10, 2.585, 5000),
        "fr3_joint3": (-2.9007, 2.9007, 2.62, 10, 3.5, 5000),
        "fr3_joint4": (-3.0421, -0.1518, 2.62, 10, 4.0, 5000),
        "fr3_joint5": (-2.8065, 2.8065, 5.26, 10, 10, 5000),
        "fr3_joint6": (0.5445, 4.5169, 4.18, 10, 5.5, 5000),
        "fr3_joint7": (-3.0159, 3.0159, 5.26, 10, 10, 5000),
    },
    # clearpath_control, config/a200/control/diff_4wd.yaml
    "husky": {"linear.x": (-inf, inf, 1, 1), "angular.z": (-inf, inf, 1, 1)},
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
    # create3_docs, api/safety.md; create3_sim, irobot_create_control/config/control.yaml
    "turtlebot4": {"linear.x": (-inf, inf, 0.306, 0.9), "angular.z": (-inf, inf, 1.9, 7.725)},
    # xarm_description, urdf/xarm7; xarm_moveit_config, joint_limits.yaml
    "xarm7": {
        "joint1": (-2 * PI, 2 * PI, 2.14, 10),
        "joint2": (-2.059, 2.0944, 2.14, 10),
        "joint3": (-2 * PI, 2 * PI, 2.14, 10),
        "joint4": (-0.19198, 3.927, 2.14, 10),
        "joint5": (-2 * PI, 2 * PI, 2.14, 10),
        "joint6": (-1.69297, PI, 2.14, 10),
        "joint7": (-2 * PI, 2 * PI, 2.14, 10),
    },
}

TOPICS = {  # topic and type of sensors and actuators, without "msg"
    "fr3": {
        "joints": ("franka/joint_states", "sensor_msgs/JointState"),
        "arm": ("fr3_arm_controller/joint_trajectory", "trajectory_msgs/JointTrajectory"),
    },
    "husky": {"odom": ("platform/odom", "nav_msgs/Odometry"), "base": ("cmd_vel", "geometry_msgs/TwistStamped")},
    "so101": {
        "joints": ("follower/joint_states", "sensor_msgs/JointState"),
        "arm": ("follower/forward_controller/commands", "std_msgs/Float64MultiArray"),
    },
    "ur5e": {
        "joints": ("joint_states", "sensor_msgs/JointState"),
        "tcp": ("tcp_pose_broadcaster/pose", "geometry_msgs/PoseStamped"),
        "arm": ("forward_position_controller/commands", "std_msgs/Float64MultiArray"),
    },
    "turtlebot4": {
        "odom": ("odom", "nav_msgs/Odometry"),
        "imu": ("imu", "sensor_msgs/Imu"),
        "scan": ("scan", "sensor_msgs/LaserScan"),
        "base": ("cmd_vel_stamped", "geometry_msgs/TwistStamped"),
    },
    "xarm7": {
        "joints": ("xarm/joint_states", "sensor_msgs/JointState"),
        "arm": ("xarm7_traj_controller/joint_trajectory", "trajectory_msgs/JointTrajectory"),
    },
}

INPUTS = {  # of `estop` and `active`: topic, type, path, safe values, latched
    "fr3": {
        "robot_mode": (
            "franka_robot_state_broadcaster/robot_state",
            "franka_msgs/FrankaRobotState",
            "robot_mode",
            [1, 2],
            False,
        )
    },
    "husky": {"emergency_stop": ("platform/emergency_stop", "std_msgs/Bool", "data", [False], False)},
    "turtlebot4": {"wheels": ("wheel_status", "irobot_create_msgs/WheelStatus", "wheels_enabled", [True], False)},
    "xarm7": {
        "state": ("xarm/robot_states", "xarm_msgs/RobotMsg", "state", [1, 2], False),
        "error": ("xarm/robot_states", "xarm_msgs/RobotMsg", "err", [0], False),
        "mode": ("xarm/robot_states", "xarm_msgs/RobotMsg", "mode", [1], False),
    },
    "ur5e": {
        "safety_mode": ("io_and_status_controller/safety_mode", "ur_dashboard_msgs/SafetyMode", "mode", [1, 2], True),
        "robot_mode": ("io_and_status_controller/robot_mode", "ur_dashboard_msgs/RobotMode", "mode", [7], True),
        "program": ("io_and_status_controller/robot_program_running", "std_msgs/Bool", "data", [True], True),
    },
}

TIMEOUTS_S = {"husky": 0.5, "turtlebot4": 0.5}  # of the robot's controller; absent: none

DRIVES = {  # radius and separation of the wheels, m
    "husky": (0.1651, 1.040625),  # 0.555 m, times wheel_separation_multiplier
    "turtlebot4": (0.03575, 0.233),
}

FRAMES = {  # frame, and child frame
    "husky": {"odom": ("odom", "base_link"), "base": ("base_link", None)},
    "turtlebot4": {"odom": ("odom", "base_link"), "scan": ("rplidar_link", None)},
    "ur5e": {"tcp": ("base", None)},
}


@pytest.fixture(params=sorted(JOINTS))
def name(request):
    return request.param


@pytest.fixture
def robot(name):
    return yaml.safe_load((FILES / f"{name}.yaml").read_text(encoding="utf-8"))


def test_every_shipped_robot_file_is_checked():
    assert {path.stem for path in FILES.glob("*.yaml")} == {*JOINTS, "arm6", "cart"}  # those two have no manufacturer


def test_joint_limits(name, robot):
    limits = {
        joint: (
            *(spec.get("position") or (-inf, inf)),
            *(spec[key] for key in ("velocity", "acceleration", "deceleration", "jerk") if key in spec),
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


def test_wheels(name, robot):
    drives = robot["backends"]["mujoco"].get("drives", {}).values()
    assert [(drive["radius_m"], drive["separation_m"]) for drive in drives] == [DRIVES[name] for _ in drives]
    assert bool(drives) == (name in DRIVES)


def test_chosen_values_are_in_the_file(robot):
    for path in robot.get("chosen", {}):
        node = robot
        for key in path.split("."):
            node = node[key]
