"""The rules of a contract: each violation names its path, the value and what is allowed."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import numpy as np
import pytest
from strategies import ABSENT, changed, document, parse

from embodied_env.contract import parse_contract
from embodied_env.contract.frozen_dict import FrozenDict
from embodied_env.contract.schema import Episode
from embodied_env.errors import ContractError

JOINT = "actuators.arm.joints.a"
FIELD = "sensors.joints.fields.position"
TARGET = "reset_options.target"


def refusal(source):
    """Return what is said of a document that must be refused."""
    with pytest.raises(ContractError) as caught:
        parse(source)
    return str(caught.value).removeprefix("<text>: ")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            "name",
            "Arm",
            "name: the name 'Arm' is not allowed; allowed: lower-case letters, digits and _, a letter first",
        ),
        ("version", 0, "version: 0 is not allowed; allowed: 1 or more"),
        ("control_period_s", 0, "control_period_s: 0.0 is not allowed; allowed: a finite number of seconds > 0"),
        ("control_period_s", -0.1, "control_period_s: -0.1 is not allowed; allowed: a finite number of seconds > 0"),
        ("episode.horizon_steps", 0, "episode.horizon_steps: 0 is not allowed; allowed: 1 or more steps"),
        ("applied_actions", -1, "applied_actions: -1 is not allowed; allowed: 0 to 1000 actions"),
        ("applied_actions", 1001, "applied_actions: 1001 is not allowed; allowed: 0 to 1000 actions"),
    ],
)
def test_the_heading_is_checked(path, value, message):
    assert refusal(changed(path, value)) == message


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("margins.position", -0.1, "margins.position: -0.1 is not allowed; allowed: a finite number >= 0, in the unit of the joint"),
        ("margins.velocity", 0, "margins.velocity: 0.0 is not allowed; allowed: a fraction in (0, 1]"),
        ("margins.velocity", 1.1, "margins.velocity: 1.1 is not allowed; allowed: a fraction in (0, 1]"),
        ("margins.acceleration", 0, "margins.acceleration: 0.0 is not allowed; allowed: a fraction in (0, 1]"),
        ("nonfinite.stop_after", 0, "nonfinite.stop_after: 0 is not allowed; allowed: 1 or more actions"),
        ("watchdog.hold_steps", 0, "watchdog: hold_steps 0 and stop_steps 10 are not allowed; allowed: 1 <= hold_steps < stop_steps"),
        ("watchdog.stop_steps", 2, "watchdog: hold_steps 2 and stop_steps 2 are not allowed; allowed: 1 <= hold_steps < stop_steps"),
    ],
)  # fmt: skip
def test_the_settings_of_the_safety_gate_are_checked(path, value, message):
    assert refusal(changed(f"safety.{path}", value)) == f"safety.{message}"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("sensors", {}, "sensors: there is none; at least one sensor is needed"),
        ("sensors.Tcp", document()["sensors"]["tcp"], "sensors.Tcp: the name 'Tcp' is not allowed; allowed: lower-case letters, digits and _, a letter first"),
        ("sensors.tcp.topic", "tcp pose", "sensors.tcp.topic: 'tcp pose' is not a ROS 2 topic name"),
        ("sensors.tcp.topic", "~pose", "sensors.tcp.topic: '~pose' is not a ROS 2 topic name"),
        ("sensors.tcp.topic", "target_pose", "sensors.target.topic: 'target_pose' is also that of sensors.tcp; allowed: one topic for each"),
        ("sensors.tcp.max_age_s", 0, "sensors.tcp.max_age_s: 0.0 is not allowed; allowed: a finite number of seconds > 0"),
        ("sensors.tcp.rate_hz", -1, "sensors.tcp.rate_hz: -1.0 is not allowed; allowed: 0 (at every step) or a rate in Hz"),
        ("sensors.tcp.fields", {}, "sensors.tcp.fields: there is none; at least one field is needed"),
        ("sensors.tcp.fields.positon", {"unit": "m", "low": 0, "high": 1}, "sensors.tcp.fields.positon: geometry_msgs/msg/PoseStamped: 'positon' is not known (did you mean 'position'?); allowed: orientation, position; or a path"),
        ("sensors.tcp.fields.position.joints", ["a"], "sensors.tcp.fields.position.joints: geometry_msgs/msg/PoseStamped position has no joints; allowed: only with one value per joint, as in sensor_msgs/msg/JointState"),
        (f"{FIELD}.shape", [2], f"{FIELD}.shape: its shape is the number of its joints; allowed: no shape"),
        ("sensors.tcp.confidence_radius_m", 0, "sensors.tcp.confidence_radius_m: 0.0 is not allowed; allowed: a finite number of m > 0"),
        (f"{FIELD}.unit", "deg", f"{FIELD}.unit: the unit of sensor_msgs/msg/JointState position cannot be 'deg'; allowed: rad, m"),
        (f"{FIELD}.joints", ABSENT, f"{FIELD}.joints: the joints are missing; allowed: a list of joint names"),
        (f"{FIELD}.joints", ["a", "b", "a"], f"{FIELD}.joints: 'a' is listed twice"),
        (f"{FIELD}.low", 4, f"{FIELD}: low 4.0 must be below high 4.0: the interval is empty or inverted"),
        (f"{FIELD}.low", [0, 5], f"{FIELD}: low (0.0, 5.0) must be below high 4.0: the interval is empty or inverted"),
        (f"{FIELD}.low", [0, 0, 0], f"{FIELD}.low: [0.0, 0.0, 0.0] has 3 values; allowed: one number, or 2 of them"),
        (f"{FIELD}.high", [], f"{FIELD}.high: [] has 0 values; allowed: one number, or 2 of them"),
    ],
)  # fmt: skip
def test_sensors_are_checked(path, value, message):
    assert refusal(changed(path, value)) == message


SENSOR = "sensors.extra"


def with_sensor(type_, fields, **keys):
    """Return the small document with one more sensor."""
    return changed(SENSOR, {"topic": "extra", "type": type_, "fields": fields, "max_age_s": 0.1, **keys})


def field(**keys):
    """Return a field of any unit from 0 to 1."""
    return {"unit": "1", "low": 0, "high": 1, **keys}


def image(encoding="rgb8", shape=(4, 6, 3), **keys):
    """Return the small document with one image more."""
    fields = {"image": field(shape=list(shape), **keys)}
    return with_sensor("sensor_msgs/msg/Image", fields, **({} if encoding is None else {"encoding": encoding}))


def scan(**keys):
    """Return the small document with a laser scanner of three rays."""
    return with_sensor("sensor_msgs/msg/LaserScan", {"ranges": {**field(unit="m", shape=[3]), **keys}})


BOOL, TWIST, POSE, ODOMETRY = (
    "std_msgs/msg/Bool",
    "geometry_msgs/msg/Twist",
    "geometry_msgs/msg/PoseStamped",
    "nav_msgs/msg/Odometry",
)
LASER_FIELD, IMAGE_FIELD, PATH_FIELD = (f"{SENSOR}.fields.{name}" for name in ("ranges", "image", "x"))


def test_a_type_that_is_not_known_lists_those_that_are():
    message = refusal(changed("sensors.tcp.type", "geometry_msgs/msg/PoseStumped"))
    assert message.startswith(
        "sensors.tcp.type: 'geometry_msgs/msg/PoseStumped' is not known "
        "(did you mean 'geometry_msgs/msg/PoseStamped'?); allowed: geometry_msgs/msg/PointStamped, "
    )
    assert message.endswith(", or any package/msg/Type whose fields all have a path")


@pytest.mark.parametrize("type_", ["Pose", "geometry_msgs/Pose", "geometry_msgs/msg/pose", "geometry_msgs/srv/Pose"])
def test_also_with_paths_a_type_is_package_msg_type(type_):
    message = refusal(with_sensor(type_, {"x": field(path="data")}))
    assert message.startswith(f"{SENSOR}.type: {type_!r} is not known")


def test_one_field_without_a_path_needs_a_known_type():
    message = refusal(with_sensor("my_msgs/msg/Thing", {"x": field(path="data"), "y": field()}))
    assert message.startswith(f"{SENSOR}.type: 'my_msgs/msg/Thing' is not known")


@pytest.mark.parametrize("path", ["data", "pose.pose.position.x", "points[0].positions", "a_1[12].b2"])
def test_any_message_is_read_by_paths(path):
    assert parse(with_sensor("my_msgs/msg/Thing", {"x": field(path=path)})).observation_space["extra_x"].shape == (1,)


@pytest.mark.parametrize("path", ["", "Pose.x", "pose..x", ".x", "x.", "x[]", "x[-1]", "x[0][1]", "x y", "x[٣]"])
def test_a_path_is_fields_joined_by_dots(path):
    assert refusal(with_sensor(BOOL, {"x": field(path=path)}, timeline="receive")) == (
        f"{PATH_FIELD}.path: {path!r} is not a path; allowed: fields joined by dots, with [index] into arrays"
    )


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (changed("sensors.tcp.fields.position.dtype", "float32"), "sensors.tcp.fields.position.dtype: the message fixes it; allowed: only with a path"),
        (with_sensor(POSE, {"x": field(path="x", dtype="float16")}), f"{PATH_FIELD}.dtype: 'float16' is not known (did you mean 'float64'?); allowed: float32, float64, int16, int32, int64, int8, uint16, uint32, uint8"),
        (with_sensor(POSE, {"X": field(path="x")}), f"{SENSOR}.fields.X: the name 'X' is not allowed; allowed: lower-case letters, digits and _, a letter first"),
        (with_sensor(POSE, {"x": field(path="x", joints=["a"])}), f"{PATH_FIELD}.joints: {POSE} x has no joints; allowed: only with one value per joint, as in sensor_msgs/msg/JointState"),
        (with_sensor(POSE, {"x": field(path="x", shape=[])}), f"{PATH_FIELD}.shape: [] is not allowed; allowed: [n >= 1]"),
        (with_sensor(POSE, {"x": field(path="x", shape=[2, 0])}), f"{PATH_FIELD}.shape: [2, 0] is not allowed; allowed: [n >= 1, n >= 1]"),
        (with_sensor(POSE, {"x": field(path="x", no_return=1)}), f"{PATH_FIELD}.no_return: x is not a distance that rays measure; allowed: no no_return"),
    ],
)  # fmt: skip
def test_fields_with_a_path_are_checked(source, message):
    assert refusal(source) == message


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (with_sensor(BOOL, {"data": field()}), f"{SENSOR}.timeline: 'header' is not allowed: a {BOOL} has no header; allowed: receive"),
        (with_sensor(BOOL, {"data": field()}, timeline="receive", frame="base"), f"{SENSOR}.frame: a {BOOL} has no header; allowed: no frame"),
        (changed("sensors.tcp.child_frame", "base"), f"sensors.tcp.child_frame: a {POSE} has none; allowed: only with {ODOMETRY}"),
        (changed("sensors.tcp.encoding", "rgb8"), f"sensors.tcp.encoding: a {POSE} has none; allowed: no encoding"),
        (image(None), f"{SENSOR}.encoding: the encoding is missing; allowed: 16UC1, 32FC1, bgr8, bgra8, mono8, rgb8, rgba8"),
        (image("rgb"), f"{SENSOR}.encoding: 'rgb' is not known (did you mean 'rgb8'?); allowed: 16UC1, 32FC1, bgr8, bgra8, mono8, rgb8, rgba8"),
        (with_sensor("sensor_msgs/msg/CompressedImage", {"image": field(shape=[4, 6, 1])}, encoding="32FC1"), f"{SENSOR}.encoding: '32FC1' is not known; allowed: mono8, rgb8"),
    ],
)  # fmt: skip
def test_keys_that_only_some_messages_have_are_checked(source, message):
    assert refusal(source) == message


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (scan(shape=None), f"{LASER_FIELD}.shape: the shape is missing; allowed: [n >= 1]"),
        (scan(shape=[3, 1]), f"{LASER_FIELD}.shape: [3, 1] is not allowed; allowed: [n >= 1]"),
        (scan(shape=[0]), f"{LASER_FIELD}.shape: [0] is not allowed; allowed: [n >= 1]"),
        (scan(shape=[100_000_001]), f"{LASER_FIELD}.shape: [100000001] is too large; allowed: 100000000 values"),
        (scan(low=[0, 0]), f"{LASER_FIELD}.low: [0.0, 0.0] has 2 values; allowed: one number, or 3 of them"),
        (image(shape=(4, 6, 4)), f"{IMAGE_FIELD}.shape: [4, 6, 4] is not allowed; allowed: [n >= 1, n >= 1, 3] with encoding rgb8"),
        (image("mono8", shape=(4, 6)), f"{IMAGE_FIELD}.shape: [4, 6] is not allowed; allowed: [n >= 1, n >= 1, 1] with encoding mono8"),
        (with_sensor("sensor_msgs/msg/PointCloud2", {"points": field(unit="m", shape=[8, 4])}), f"{SENSOR}.fields.points.shape: [8, 4] is not allowed; allowed: [n >= 1, 3]"),
        (changed("sensors.tcp.fields.position.shape", [4]), "sensors.tcp.fields.position.shape: [4] is not allowed; allowed: [3]"),
    ],
)  # fmt: skip
def test_shapes_are_checked(source, message):
    assert refusal(source) == message


def test_a_shape_that_the_message_fixes_may_be_written():
    assert parse(changed("sensors.tcp.fields.position.shape", [3])).observation_space["tcp_position"].shape == (3,)


@pytest.mark.parametrize("encoding", ["32FC1", "16UC1"])
def test_depth_is_in_metres(encoding):
    assert refusal(image(encoding, (4, 6, 1))) == (
        f"{IMAGE_FIELD}.unit: the unit of sensor_msgs/msg/Image image cannot be '1'; allowed: m"
    )


def test_a_path_into_a_depth_image_is_a_number_like_any_other():
    source = with_sensor(
        "sensor_msgs/msg/Image", {"x": field(path="height", dtype="int32", unit="pixel")}, encoding="32FC1"
    )
    assert parse(source).observation_space["extra_x"].dtype == np.int32


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (image(low=-1), f"{IMAGE_FIELD}.low: -1.0 is not allowed; allowed: whole numbers from 0 to 255, as uint8 has them"),
        (image(high=256), f"{IMAGE_FIELD}.high: 256.0 is not allowed; allowed: whole numbers from 0 to 255, as uint8 has them"),
        (image(high=0.5), f"{IMAGE_FIELD}.high: 0.5 is not allowed; allowed: whole numbers from 0 to 255, as uint8 has them"),
        (with_sensor(POSE, {"x": field(path="x", dtype="int8", shape=[2], high=[1, 128])}), f"{PATH_FIELD}.high: 128.0 is not allowed; allowed: whole numbers from -128 to 127, as int8 has them"),
        (with_sensor(POSE, {"x": field(path="x", dtype="int64", high=2.0**63)}), f"{PATH_FIELD}.high: 9.223372036854776e+18 is not allowed; allowed: whole numbers from -9223372036854775808 to 9223372036854775807, as int64 has them"),
        (scan(high=1e39), f"{LASER_FIELD}.high: 1e+39 is not allowed; allowed: numbers from -3.4028234663852886e+38 to 3.4028234663852886e+38, as float32 has them"),
    ],
)  # fmt: skip
def test_bounds_that_the_precision_does_not_have_are_refused(source, message):
    assert refusal(source) == message


@pytest.mark.parametrize("key", ["no_return", "nan"])
@pytest.mark.parametrize(
    ("bounds", "value", "allowed"),
    [
        ({"low": 0, "high": 8}, 8.5, "from low 0.0 to high 8.0"),
        ({"low": 0, "high": 8}, -0.5, "from low 0.0 to high 8.0"),
        ({"low": 0, "high": [8, 8, 4]}, 5, "from low 0.0 to high (8.0, 8.0, 4.0)"),
    ],
)
def test_what_stands_for_no_distance_is_within_the_bounds(key, bounds, value, allowed):
    assert refusal(scan(**bounds, **{key: value})) == (
        f"{LASER_FIELD}.{key}: {float(value)} is not allowed; allowed: a number {allowed}"
    )


@pytest.mark.parametrize("key", ["no_return", "nan"])
def test_only_a_distance_that_rays_measure_has_something_that_stands_for_none(key):
    path = f"sensors.tcp.fields.position.{key}"
    assert refusal(changed(path, 0)) == f"{path}: position is not a distance that rays measure; allowed: no {key}"


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (("a_b", {"c": field(path="c")}), ("a", {"b_c": field(path="c")}), "sensors.a.fields.b_c: its key in the observation, 'a_b_c', is also that of sensors.a_b.fields.c"),
        (("time", {"remaining": field(path="c")}), None, "sensors.time.fields.remaining: its key in the observation, 'time_remaining', is also that of episode.kind"),
        (("applied", {"actions": field(path="c")}), None, "sensors.applied.fields.actions: its key in the observation, 'applied_actions', is also that of applied_actions"),
        (("a", {"valid": field(path="c")}), None, "sensors.a.mask: its key in the observation, 'a_valid', is also that of sensors.a.fields.valid"),
    ],
)  # fmt: skip
def test_no_two_things_have_one_key_in_the_observation(first, second, message):
    source = document()
    for topic, (name, fields) in enumerate(filter(None, (first, second))):
        sensor = {"topic": f"topic{topic}", "type": POSE, "fields": fields, "max_age_s": 0.1, "mask": name == "a"}
        source = changed(f"sensors.{name}", sensor, source)
    assert refusal(source) == message


def test_the_evaluator_has_no_keys_in_the_observation():
    sensor = {"topic": "t", "type": POSE, "fields": {"remaining": field(path="c")}, "max_age_s": 0.1}
    source = changed("sensors.time", {**sensor, "visibility": "evaluator"}, changed("episode.kind", "finite_horizon"))
    assert parse(source).observation_space["time_remaining"].dtype == np.float64


def test_a_sensor_of_the_evaluator_has_no_mask():
    source = changed("sensors.tcp.mask", True, changed("sensors.tcp.visibility", "evaluator"))
    assert refusal(source) == (
        "sensors.tcp.mask: a sensor of the evaluator is not in the observation, so it has no mask; allowed: false"
    )


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("actuators", {}, "actuators: there is none; at least one actuator is needed"),
        ("actuators.Arm", document()["actuators"]["arm"], "actuators.Arm: the name 'Arm' is not allowed; allowed: lower-case letters, digits and _, a letter first"),
        ("actuators.arm.topic", "/", "actuators.arm.topic: '/' is not a ROS 2 topic name"),
        ("actuators.arm.type", "std_msgs/msg/Float46", "actuators.arm.type: 'std_msgs/msg/Float46' is not known (did you mean 'std_msgs/msg/Float64'?); allowed: geometry_msgs/msg/Twist, geometry_msgs/msg/TwistStamped, sensor_msgs/msg/JointState, std_msgs/msg/Float64, std_msgs/msg/Float64MultiArray, trajectory_msgs/msg/JointTrajectory"),
        ("actuators.arm.type", "std_msgs/msg/Float64", "actuators.arm.joints: 2 joints cannot be sent as std_msgs/msg/Float64; allowed: 1"),
        ("actuators.arm.frame", "base", "actuators.arm.frame: a std_msgs/msg/Float64MultiArray has no header; allowed: no frame"),
        ("actuators.arm.joints", {}, "actuators.arm.joints: there is none; at least one joint is needed"),
        ("actuators.leg", document()["actuators"]["arm"], "actuators.leg.joints.a: 'a' is also driven by actuators.arm; allowed: one actuator"),
        (f"{JOINT}.unit", "m", f"{JOINT}.unit: 'm' is not allowed; allowed: 'rad', the unit in which a sensor reports it"),
        (f"{JOINT}.velocity", 0, f"{JOINT}.velocity: 0.0 is not allowed; allowed: a finite number of rad/s > 0"),
        (f"{JOINT}.acceleration", -1, f"{JOINT}.acceleration: -1.0 is not allowed; allowed: a finite number of rad/s^2 > 0"),
        (f"{JOINT}.deceleration", 0, f"{JOINT}.deceleration: 0.0 is not allowed; allowed: a finite number of rad/s^2 > 0"),
        (f"{JOINT}.position", None, f"{JOINT}.position: a joint without position limits cannot be commanded by absolute position; allowed: [low, high]"),
        (f"{JOINT}.position", [1, -1], f"{JOINT}.position: [1.0, -1.0] is empty, inverted or not finite; allowed: [low, high] with low < high"),
        (f"{JOINT}.position", [1, 1], f"{JOINT}.position: [1.0, 1.0] is empty, inverted or not finite; allowed: [low, high] with low < high"),
        (f"{JOINT}.position", [0, 0.04], f"{JOINT}.position: [0.0, 0.04] is empty after safety.margins.position 0.02; allowed: wider than 0.04"),
    ],
)  # fmt: skip
def test_actuators_are_checked(path, value, message):
    assert refusal(changed(path, value)) == message


AXIS = {"position": None, "velocity": 1.0, "acceleration": 2.0, "unit": "m"}


def twist(axes, **keys):
    """Return the small document with a base that is driven by a twist."""
    base = {"topic": "cmd_vel", "type": TWIST, "command": "twist", "joints": axes}
    return changed("actuators.base", {**base, **keys})


@pytest.mark.parametrize(
    ("type_", "command", "allowed"),
    [
        ("std_msgs/msg/Float64MultiArray", "twist", "position, position_delta, velocity"),
        ("sensor_msgs/msg/JointState", "twist", "position, position_delta, velocity"),
        ("trajectory_msgs/msg/JointTrajectory", "velocity", "position, position_delta"),
        (TWIST, "velocity", "twist"),
        ("geometry_msgs/msg/TwistStamped", "position", "twist"),
    ],
)
def test_a_command_is_one_that_its_message_can_say(type_, command, allowed):
    source = changed("actuators.arm.command", command, changed("actuators.arm.type", type_))
    assert refusal(source) == f"actuators.arm.command: {command!r} cannot be sent as {type_}; allowed: {allowed}"


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"linear.w": AXIS}, "linear.w: no such axis of a twist: 'linear.w' is not known (did you mean 'linear.z'?); allowed: angular.x, angular.y, angular.z, linear.x, linear.y, linear.z"),
        ({"linear.x": {**AXIS, "unit": "rad"}}, "linear.x.unit: 'rad' is not allowed; allowed: m"),
        ({"angular.z": AXIS}, "angular.z.unit: 'm' is not allowed; allowed: rad"),
        ({"linear.x": {**AXIS, "position": [-1, 1]}}, "linear.x.position: (-1.0, 1.0) is not allowed: an axis of a twist has no position; allowed: null"),
        ({"linear.x": {**AXIS, "velocity": 0}}, "linear.x.velocity: 0.0 is not allowed; allowed: a finite number of m/s > 0"),
    ],
)  # fmt: skip
def test_the_axes_of_a_twist_are_checked(axes, message):
    assert refusal(twist(axes)) == f"actuators.base.joints.{message}"


def test_two_actuators_do_not_share_a_topic():
    assert refusal(twist({"linear.x": AXIS}, topic="commands")) == (
        "actuators.base.topic: 'commands' is also that of actuators.arm; allowed: one topic for each"
    )


@pytest.mark.parametrize(
    ("topic", "owner"),
    [
        ("clock", "the simulated time"),
        ("/clock", "the simulated time"),
        ("simulator/step", "the simulator's own node"),
        ("simulator/picture", "the simulator's own node"),
    ],
)
def test_no_sensor_has_a_topic_of_the_embedded_simulator(topic, owner):
    assert f"is also that of {owner}" in refusal(changed("sensors.tcp.topic", topic))


def test_a_sensor_does_not_have_the_topic_of_an_actuator():
    topic = document()["actuators"]["arm"]["topic"]
    assert "is also that of sensors.tcp" in refusal(changed("sensors.tcp.topic", topic))


def test_a_twist_without_a_header_has_no_frame():
    assert refusal(twist({"linear.x": AXIS}, frame="base")) == (
        f"actuators.base.frame: a {TWIST} has no header; allowed: no frame"
    )


def test_a_twist_needs_no_sensor_of_joints_and_no_room_for_the_margin_of_positions():
    source = twist({"linear.x": AXIS}, type="geometry_msgs/msg/TwistStamped", frame="base")
    contract = parse(changed("safety.margins.position", 0.1, source))
    limits = contract.actuators["base"].limits(contract.safety.margins)
    assert (limits.position_low.tolist(), limits.position_high.tolist()) == ([-float("inf")], [float("inf")])
    assert limits.velocity.tolist() == [0.95]


def velocities(joint_a):
    """Return the small document with velocities as commands, and no sensor of joint a."""
    source = changed("actuators.arm.command", "velocity", changed(f"{FIELD}.joints", ["b"]))
    return changed(f"{JOINT}.position", joint_a, source)


def test_a_joint_that_has_no_position_limits_may_be_driven_by_velocity_unseen():
    assert parse(velocities(None)).actuators["arm"].is_velocity


def test_position_limits_of_a_joint_that_is_driven_by_velocity_need_a_sensor():
    assert refusal(velocities([-1, 1])).startswith(f"{JOINT}: no sensor reports the position of 'a'; needed: ")


def test_a_joint_that_no_sensor_reports_is_missing():
    assert refusal(changed(f"{FIELD}.joints", ["b"])) == (
        f"{JOINT}: no sensor reports the position of 'a'; needed: a sensor_msgs/msg/JointState sensor of the agent whose field "
        "position lists it (listed now: b)"
    )


def test_a_joint_whose_velocity_alone_is_reported_is_missing():
    only_velocity = {"velocity": {"joints": ["a", "b"], "unit": "rad/s", "low": -1, "high": 1}}
    assert "no sensor reports the position of 'a'" in refusal(changed("sensors.joints.fields", only_velocity))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (f"{TARGET}.low", [0.5, 0.1, 0.1], f"{TARGET}: low (0.5, 0.1, 0.1) must be below high (0.5, 0.5, 0.5): the interval is empty or inverted"),
        (f"{TARGET}.low", [0.1, 0.1], f"{TARGET}: low has 2 values and high 3; allowed: as many"),
        (f"{TARGET}.low", 0.1, f"{TARGET}: type 'vector' does not fit low 0.1 and high (0.5, 0.5, 0.5); allowed: lists for a vector, numbers for a scalar"),
        (f"{TARGET}.type", "scalar", f"{TARGET}: type 'scalar' does not fit low (0.1, 0.1, 0.1) and high (0.5, 0.5, 0.5); allowed: lists for a vector, numbers for a scalar"),
        ("task.type", "reach", "task.type: 'reach' is not a class; allowed: module:Class or FILE.py:Class, e.g. embodied_env.tasks.reach:Reach"),
    ],
)  # fmt: skip
def test_reset_options_and_the_task_are_checked(path, value, message):
    assert refusal(changed(path, value)) == message


@pytest.mark.parametrize(
    "topic", ["joint_states", "/joint_states", "~/joint_states", "arm/left/joint_states", "_Hidden1"]
)
def test_topics_are_relative_absolute_or_private(topic):
    assert parse(changed("sensors.joints.topic", topic)).sensors["joints"].topic == topic


def test_a_continuous_joint_may_be_commanded_by_deltas():
    source = changed(f"{JOINT}.position", None, changed("actuators.arm.command", "position_delta"))
    limits = (contract := parse(source)).actuators["arm"].limits(contract.safety.margins)
    assert (limits.position_low[0], limits.position_high[0]) == (-float("inf"), float("inf"))


def test_a_prismatic_joint_is_measured_and_limited_in_metres():
    source = changed(f"{FIELD}.unit", "m")
    for joint in ("a", "b"):
        source = changed(f"actuators.arm.joints.{joint}.unit", "m", source)
    assert parse(source).actuators["arm"].joints["a"].unit == "m"


def test_margins_shrink_every_limit():
    contract = parse(document())
    limits = contract.actuators["arm"].limits(contract.safety.margins)
    assert (limits.position_low[0], limits.position_high[0]) == (-1.0 + 0.02, 2.0 - 0.02)
    assert limits.velocity[0] == 3.0 * 0.95
    assert limits.acceleration[0] == 8.0 * 0.9


def test_deceleration_is_acceleration_where_it_is_not_given():
    contract = parse(changed(f"{JOINT}.deceleration", 10.0))
    assert contract.actuators["arm"].limits(contract.safety.margins).deceleration.tolist() == [10.0 * 0.9, 8.0 * 0.9]


def test_the_rules_hold_for_a_contract_that_is_built_in_python_too():
    with pytest.raises(ContractError, match=r"^<text>: episode.horizon_steps: 0 is not allowed"):
        dataclasses.replace(parse(document()), episode=Episode(horizon_steps=0))


def test_a_contract_cannot_be_assigned_to():
    with pytest.raises(dataclasses.FrozenInstanceError):
        parse(document()).version = 2


@pytest.mark.parametrize(
    "mapping",
    [
        lambda contract: contract.sensors,
        lambda contract: contract.sensors["joints"].fields,
        lambda contract: contract.actuators["arm"].joints,
        lambda contract: contract.reset_options,
        lambda contract: contract.task.parameters,
        lambda contract: contract.backends,
        lambda contract: contract.backends["fake"],
    ],
)
def test_the_mappings_of_a_contract_cannot_be_written(mapping):
    with pytest.raises(TypeError, match="'FrozenDict' object does not support item assignment"):
        mapping(parse(document()))["x"] = 1


def test_the_lists_of_a_contract_cannot_be_written():
    assert parse(document()).backends["fake"]["noise"] == (0.1, 0.2)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda contract: pickle.loads(pickle.dumps(contract))])  # noqa: S301
def test_a_contract_copies_and_pickles(duplicate):
    contract = parse(document())
    contract.observation_space, contract.action_space, contract.fingerprint  # noqa: B018 - cached values travel along
    twin = duplicate(contract)
    assert twin == contract
    assert twin.fingerprint == contract.fingerprint
    assert twin.observation_space == contract.observation_space


def test_contracts_with_another_order_of_joints_are_not_equal():
    joints = document()["actuators"]["arm"]["joints"]
    swapped = changed("actuators.arm.joints", {"b": joints["b"], "a": joints["a"]})
    assert parse(swapped) != parse(document())


def test_a_frozen_dict_equals_a_dict_in_any_order():
    assert FrozenDict({"a": 1, "b": 2}) == {"b": 2, "a": 1}


# ----------------------------------------------------------------------------------------- joints that turn and slide

GRIPPER = """
contract: embodied_env/1
name: gripper
version: 1
control_period_s: 0.1
episode: {horizon_steps: 10}
sensors:
  joints: {topic: joint_states, type: sensor_msgs/msg/JointState, max_age_s: 1.0,
    fields: {position: {joints: [wrist, finger], unit: [rad, m], low: -9, high: 9}}}
actuators:
  hand: {topic: hand, type: std_msgs/msg/Float64MultiArray, command: position, joints: {
    wrist: {position: [-1.0, 1.0], velocity: 1.0, acceleration: 4.0, unit: rad},
    finger: {position: [-0.5, 0.5], velocity: 1.0, acceleration: 4.0, unit: m}}}
task: {type: "embodied_env.tasks.reach:Reach"}
"""


def test_joints_of_one_message_may_turn_and_slide():
    contract = parse_contract(GRIPPER)
    assert contract.sensors["joints"].fields["position"].units_by_joint() == {"wrist": "rad", "finger": "m"}


@pytest.mark.parametrize(
    ("old", "new", "path", "problem"),
    [
        (
            "[rad, m]",
            "[rad]",
            "sensors.joints.fields.position.unit",
            r"\['rad'\] is not allowed.*one unit, or 2 of them",
        ),
        ("[rad, m]", "[rad, ft]", "sensors.joints.fields.position.unit", "cannot be 'ft'; allowed: rad, m"),
        ("[rad, m]", "[m, rad]", "actuators.hand.joints.wrist.unit", "'rad' is not allowed; allowed: 'm'"),
    ],
)
def test_units_of_joints_are_checked_one_by_one(old, new, path, problem):
    with pytest.raises(ContractError, match=problem) as caught:
        parse_contract(GRIPPER.replace(old, new))
    assert caught.value.path == path
