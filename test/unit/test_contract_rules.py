"""The rules of a contract: each violation names its path, the value and what is allowed."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest
from strategies import ABSENT, changed, document, parse

from embodied_env.contract.model import Episode, FrozenDict
from embodied_env.errors import ContractError

JOINT = "actuators.arm.joints.a"
POSITION = "sensors.joints.fields.position"
RANGE = {"topic": "gap", "type": "sensor_msgs/msg/Range", "max_age_s": 0.1}


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        # heading
        ("name", "Arm", "the name 'Arm' is not allowed; allowed: lower-case letters, digits and _, a letter first"),
        ("version", 0, "0 is not allowed; allowed: 1 or more"),
        ("control_period_s", 0, "0.0 is not allowed; allowed: a finite number of seconds > 0"),
        ("control_period_s", -0.1, "-0.1 is not allowed; allowed: a finite number of seconds > 0"),
        ("episode.horizon_steps", 0, "0 is not allowed; allowed: 1 or more steps"),
        # safety
        ("safety.margins.position", -0.1, "-0.1 is not allowed; allowed: a finite number >= 0, in the unit of the joint"),
        ("safety.margins.velocity", 0, "0.0 is not allowed; allowed: a fraction in (0, 1]"),
        ("safety.margins.velocity", 1.1, "1.1 is not allowed; allowed: a fraction in (0, 1]"),
        ("safety.margins.acceleration", 0, "0.0 is not allowed; allowed: a fraction in (0, 1]"),
        ("safety.nonfinite.stop_after", 0, "0 is not allowed; allowed: 1 or more actions"),
        (
            "safety.watchdog",
            {"hold_steps": 3, "stop_steps": 3},
            "hold_steps 3 and stop_steps 3 are not allowed; allowed: 1 <= hold_steps < stop_steps",
        ),
        # sensors
        ("sensors", {}, "there is none; at least one sensor is needed"),
        ("sensors.joints.topic", "joint states", "'joint states' is not a ROS 2 topic name"),
        ("sensors.joints.topic", "~states", "'~states' is not a ROS 2 topic name"),
        ("sensors.joints.max_age_s", 0, "0.0 is not allowed; allowed: a finite number of seconds > 0"),
        ("sensors.joints.rate_hz", -1, "-1.0 is not allowed; allowed: 0 (at every step) or a rate in Hz"),
        ("sensors.tcp.fields", {}, "there is none; at least one field is needed"),
        ("sensors.tcp.topic", "target_pose", "'target_pose' is read by two sensors; allowed: one sensor per topic"),
        # fields
        (
            f"{POSITION}.unit",
            "deg",
            "the unit of sensor_msgs/msg/JointState position cannot be 'deg'; allowed: rad, m",
        ),
        (f"{POSITION}.joints", ABSENT, "the joints are missing; allowed: a list of joint names"),
        (f"{POSITION}.joints", ["a", "b", "a"], "'a' is listed twice"),
        (f"{POSITION}.low", 4.0, "low 4.0 must be below high 4.0: the interval is empty or inverted"),
        (f"{POSITION}.low", [0.0] * 3, "[0.0, 0.0, 0.0] has 3 values; allowed: one number, or 2 of them"),
        (f"{POSITION}.high", [0.0], "[0.0] has 1 values; allowed: one number, or 2 of them"),
        ("sensors.tcp.fields.position.joints", ["a"], "geometry_msgs/msg/PoseStamped position has no joints; allowed: only with sensor_msgs/msg/JointState"),
        # actuators
        ("actuators", {}, "there is none; at least one actuator is needed"),
        ("actuators.arm.topic", "/", "'/' is not a ROS 2 topic name"),
        ("actuators.arm.type", "std_msgs/msg/Float32", "'std_msgs/msg/Float32' is not known (did you mean 'std_msgs/msg/Float64MultiArray'?); allowed: std_msgs/msg/Float64MultiArray"),
        ("actuators.arm.joints", {}, "there is none; at least one joint is needed"),
        (f"{JOINT}.unit", "m", "'m' is not allowed; allowed: 'rad', the unit in which a sensor reports it"),
        (f"{JOINT}.velocity", 0, "0.0 is not allowed; allowed: a finite number of rad/s > 0"),
        (f"{JOINT}.acceleration", -1, "-1.0 is not allowed; allowed: a finite number of rad/s^2 > 0"),
        (f"{JOINT}.deceleration", 0, "0.0 is not allowed; allowed: a finite number of rad/s^2 > 0"),
        (f"{JOINT}.position", None, "a joint without position limits cannot be commanded by absolute position; allowed: [low, high]"),
        (f"{JOINT}.position", [1, -1], "[1.0, -1.0] is empty, inverted or not finite; allowed: [low, high] with low < high"),
        (f"{JOINT}.position", [1, 1], "[1.0, 1.0] is empty, inverted or not finite; allowed: [low, high] with low < high"),
        (f"{JOINT}.position", [0, 0.04], "[0.0, 0.04] is empty after safety.margins.position 0.02; allowed: wider than 0.04"),
        # reset options and task
        ("reset_options.target.low", [0.5, 0.1, 0.1], None),
        ("reset_options.target.low", 0.1, None),
        ("task.type", "embodied_env.tasks.reach", "'embodied_env.tasks.reach' is not a class; allowed: module:Class, e.g. embodied_env.tasks.reach:Reach"),
    ],
)  # fmt: skip
def test_a_broken_rule_names_the_path_the_value_and_what_is_allowed(path, value, problem):
    with pytest.raises(ContractError) as caught:
        parse(changed(path, value))
    owner = path if problem is not None and "interval" not in problem else path.rpartition(".")[0]
    if problem is None:
        assert caught.value.path == owner
    else:
        assert (caught.value.path, caught.value.problem) == (owner, problem)
