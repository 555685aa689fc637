"""Each violation names its path, the value and the expected values."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Box
from strategies import ABSENT, changed, document, parse

from embodied_env.contract.actuator_schema import JointLimits
from embodied_env.contract.frozen_dict import FrozenDict
from embodied_env.contract.safety_schema import Safety
from embodied_env.contract.spaces import ActionLayout
from embodied_env.errors import ContractError, UsageError

FORCE = {"field": "position", "limit": 5.0}
JOINT = "actuators.arm.joints.a"
FIELD = "sensors.joints.fields.position"
TARGET = "reset_options.target"
NORMAL = {"type": "scalar", "distribution": "normal", "low": 0.0, "high": 1.0, "mean": 0.5, "std": 0.1}
LOG_UNIFORM = {"type": "scalar", "distribution": "log_uniform", "low": 0.0, "high": 1.0}
CHOICE = {"type": "vector", "distribution": "choice", "values": [[1.0, 2.0], [3.0, 4.0]]}
OBSERVED = {"type": "scalar", "low": 0.0, "high": 1.0, "observed": True}


def refusal(source):
    """Return the error message of an invalid document."""
    with pytest.raises(ContractError) as caught:
        parse(source)
    return str(caught.value).removeprefix("<text>: ")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("margins.actuators", {"leg": {}}, "margins.actuators.leg: unknown name 'leg' (expected one of: arm)"),
        ("tracking.joints", {"z": None}, "tracking.joints.z: unknown name 'z' (expected one of: a, b)"),
        ("tracking", {"debounce_steps": 5, "stop_steps": 5}, "tracking: debounce_steps 5, stop_steps 5 (expected"),
        ("watchdog.stop_steps", 2, "watchdog: hold_steps 2, stop_steps 2 (expected hold_steps < stop_steps)"),
        ("latency", {"misses": 11, "window_steps": 10}, "latency: "),
        ("observation.required", ["joints", "lidar"], "observation.required: no agent-visible sensor 'lidar'"),
        ("observation.required", ["hidden"], "observation.required: no agent-visible sensor 'hidden'"),
        ("forces", {"wrench": FORCE}, "forces.wrench: unknown sensor 'wrench'"),
        ("forces", {"tcp": {**FORCE, "field": "force"}}, "forces.tcp.field: unknown field 'force'"),
        ("gates", {"workspace": {}}, "gates.workspace: reserved name"),  # it would hide that none is enforced
    ],
)  # fmt: skip
def test_safety_settings_are_checked(path, value, message):
    hidden = {**document()["sensors"]["tcp"], "topic": "hidden", "visibility": "evaluator"}
    assert refusal(changed(f"safety.{path}", value, changed("sensors.hidden", hidden))).startswith(f"safety.{message}")


def test_safety_defaults_are_valid_and_parameters_of_plug_ins_are_kept():
    assert parse(changed("safety", {})).safety == Safety()
    gates = {"slow": {"share": 0.5, "joints": ["a"]}}
    assert parse(changed("safety.gates", gates)).safety.gates["slow"] == {"share": 0.5, "joints": ("a",)}


SENSOR = "sensors.extra"


def with_sensor(type_, fields, **keys):
    """Return the small document with one additional sensor."""
    return changed(SENSOR, {"topic": "extra", "type": type_, "fields": fields, "max_age_s": 0.1, **keys})


def field(**keys):
    """Return a field of any unit from 0 to 1."""
    return {"unit": "1", "low": 0, "high": 1, **keys}


def image(encoding="rgb8", shape=(4, 6, 3), **keys):
    """Return the small document with one additional image."""
    fields = {"image": field(shape=list(shape), **keys)}
    return with_sensor("sensor_msgs/msg/Image", fields, **({} if encoding is None else {"encoding": encoding}))


def scan(**keys):
    """Return the small document with a laser scanner of three rays."""
    return with_sensor("sensor_msgs/msg/LaserScan", {"ranges": {**field(unit="m", shape=[3]), **keys}})


WRENCH, BOOL, TWIST, POSE, ODOMETRY = (
    "geometry_msgs/msg/WrenchStamped",
    "std_msgs/msg/Bool",
    "geometry_msgs/msg/Twist",
    "geometry_msgs/msg/PoseStamped",
    "nav_msgs/msg/Odometry",
)
LASER_FIELD, IMAGE_FIELD, PATH_FIELD = (f"{SENSOR}.fields.{name}" for name in ("ranges", "image", "x"))


@pytest.mark.parametrize("type_", ["Pose", "geometry_msgs/Pose", "geometry_msgs/msg/pose", "geometry_msgs/srv/Pose"])
def test_type_with_paths_must_be_package_msg_type(type_):
    message = refusal(with_sensor(type_, {"x": field(path="data")}))
    assert message.startswith(f"{SENSOR}.type: unknown message type {type_!r}")


def test_one_field_without_a_path_needs_a_known_type():
    message = refusal(with_sensor("geometry_msgs/msg/PoseStumped", {"x": field(path="data"), "y": field()}))
    assert message.startswith(
        f"{SENSOR}.type: unknown message type 'geometry_msgs/msg/PoseStumped' (expected one of: geo"
    )
    assert "; did you mean 'geometry_msgs/msg/PoseStamped'?" in message


@pytest.mark.parametrize("path", ["data", "pose.pose.position.x", "points[0].positions", "a_1[12].b2"])
def test_any_message_type_is_readable_by_paths(path):
    assert parse(with_sensor("my_msgs/msg/Thing", {"x": field(path=path)})).observation_space["extra_x"].shape == (1,)


def of_points(points, *, type_="sensor_msgs/msg/PointCloud2", name="points", **extra):
    return with_sensor(type_, {name: {**field(unit="m", low=-5, high=5, points=points), **extra}})


POINTS_FIELD = f"{SENSOR}.fields.points"
FIRST = {"count": 8, "pad": 5.0}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        # of fields with a path
        (changed("sensors.tcp.fields.position.dtype", "float32"), "sensors.tcp.fields.position.dtype: 'float32' (expected"),
        (with_sensor(POSE, {"x": field(path="x", dtype="float16")}), f"{PATH_FIELD}.dtype: unknown dtype 'float16' (expected"),
        (with_sensor(POSE, {"x": field(path="x", joints=["a"])}), f"{PATH_FIELD}.joints: ['a'] (expected"),
        (with_sensor(POSE, {"x": field(path="x", shape=[])}), f"{PATH_FIELD}.shape: [] (expected"),
        (with_sensor(POSE, {"x": field(path="x", no_return=1)}), f"{PATH_FIELD}.no_return: 1.0 (expected"),
        # that only some messages have
        (with_sensor(BOOL, {"data": field()}), f"{SENSOR}.timeline: 'header' (expected"),
        (with_sensor(BOOL, {"data": field()}, timeline="receive", frame="base"), f"{SENSOR}.frame: 'base' (expected"),
        (changed("sensors.tcp.child_frame", "base"), "sensors.tcp.child_frame: 'base' (expected"),
        (changed("sensors.tcp.encoding", "rgb8"), "sensors.tcp.encoding: 'rgb8' (expected"),
        (with_sensor(POSE, {"position": field(unit="m")}, mask=True, visibility="evaluator"), f"{SENSOR}.mask: true (expected false"),
        (image(None), f"{SENSOR}.encoding: missing (expected"),
        (image("rgb"), f"{SENSOR}.encoding: unknown encoding 'rgb' (expected"),
        (with_sensor("sensor_msgs/msg/CompressedImage", {"image": field(shape=[4, 6, 1])}, encoding="32FC1"), f"{SENSOR}.encoding: unknown encoding '32FC1' (expected"),
        # shapes and units
        (scan(shape=None), f"{LASER_FIELD}.shape: missing (expected [n >= 1])"),
        (scan(shape=[3, 1]), f"{LASER_FIELD}.shape: [3, 1] (expected [n >= 1])"),
        (scan(shape=[100_000_001]), f"{LASER_FIELD}.shape: 100000001 values (expected at most 100000000)"),
        (scan(low=[0, 0]), f"{LASER_FIELD}.low: 2 values [0.0, 0.0] (expected one number, or 3 of them)"),
        (image("16UC1", (4, 6, 1)), f"{IMAGE_FIELD}.unit: '1' (expected m for sensor_msgs/msg/Image image)"),
        (image(shape=(4, 6, 4)), f"{IMAGE_FIELD}.shape: [4, 6, 4] (expected [n >= 1, n >= 1, 3] with encoding rgb8)"),
        (image("mono8", shape=(4, 6)), f"{IMAGE_FIELD}.shape: [4, 6] (expected [n >= 1, n >= 1, 1] with encoding mono8)"),
        (with_sensor("sensor_msgs/msg/PointCloud2", {"points": field(unit="m", shape=[8, 4])}), f"{SENSOR}.fields.points.shape: [8, 4] (expected [n >= 1, 3])"),
        (changed("sensors.tcp.fields.position.shape", [4]), "sensors.tcp.fields.position.shape: [4] (expected [3])"),
        # points and converted images
        (of_points(FIRST, shape=[8, 3]), f"{POINTS_FIELD}.shape: [8, 3] (expected none"),
        (of_points({**FIRST, "pad": 4.0}), f"{POINTS_FIELD}.points.pad: 4.0 (expected low -5.0 or high 5.0)"),
        (of_points({**FIRST, "method": "voxel"}), f"{POINTS_FIELD}.points.voxel_m: None (expected a length"),
        (of_points({**FIRST, "voxel_m": 0.1}), f"{POINTS_FIELD}.points.voxel_m: 0.1 (expected"),
        (of_points(FIRST, nan=5.0), f"{POINTS_FIELD}.nan: 5.0 (expected none"),
        (of_points(FIRST, type_="sensor_msgs/msg/Range", name="range"), f"{SENSOR}.fields.range"),
        (image("nv12", shape=(5, 6, 3)), f"{IMAGE_FIELD}.shape: [5, 6, 3] (expected height and width that are multiples of 2"),
        (image("yuv422", shape=(5, 7, 3)), f"{IMAGE_FIELD}.shape: [5, 7, 3] (expected"),
        # bounds
        (image(low=-1), f"{IMAGE_FIELD}.low: -1.0 (expected whole numbers from 0 to 255, the range of uint8)"),
        (image(high=256), f"{IMAGE_FIELD}.high: 256.0 (expected whole numbers from 0 to 255, the range of uint8)"),
        (image(high=0.5), f"{IMAGE_FIELD}.high: 0.5 (expected whole numbers from 0 to 255, the range of uint8)"),
        (with_sensor(POSE, {"x": field(path="x", dtype="int8", shape=[2], high=[1, 128])}), f"{PATH_FIELD}.high: 128.0 (expected whole numbers from -128 to 127, the range of int8)"),
        (with_sensor(POSE, {"x": field(path="x", dtype="int64", high=2.0**63)}), f"{PATH_FIELD}.high: 9.223372036854776e+18 (expected whole numbers from -9223372036854775808 to 9223372036854775807, the range of int64)"),
        (scan(high=np.inf), f"{LASER_FIELD}.high: inf (expected finite numbers)"),
        (with_sensor(WRENCH, {"force": field(unit="N", low=-np.inf)}), f"{SENSOR}.fields.force.low: -inf (expected finite numbers)"),
        (with_sensor(POSE, {"x": field(path="x", dtype="int8", low="-.inf")}), f"{PATH_FIELD}.low: -inf (expected finite numbers)"),
        (changed(f"{FIELD}.low", np.inf), f"{FIELD}.low: inf (expected finite numbers or -.inf)"),
        (changed(f"{FIELD}.high", [4.0, -np.inf]), f"{FIELD}.high: (4.0, -inf) (expected finite numbers or .inf)"),
        (changed(f"{FIELD}.high", np.nan), f"{FIELD}.high: nan (expected finite numbers or .inf)"),
        (scan(high=1e39), f"{LASER_FIELD}.high: 1e+39 (expected numbers from -3.4028234663852886e+38 to 3.4028234663852886e+38, the range of float32)"),
    ],
)  # fmt: skip
def test_fields_of_sensors_are_checked(source, message):
    assert refusal(source).startswith(message)


def test_points_declare_the_shape_of_the_observation():
    space = parse(of_points({**FIRST, "method": "voxel", "voxel_m": 0.5})).observation_space["extra_points"]
    assert space == Box(-5.0, 5.0, (8, 3), np.float32)


def test_a_path_into_a_depth_image_is_an_ordinary_number():
    source = with_sensor(
        "sensor_msgs/msg/Image", {"x": field(path="height", dtype="int32", unit="pixel")}, encoding="32FC1"
    )
    assert parse(source).observation_space["extra_x"].dtype == np.int32


@pytest.mark.parametrize("key", ["no_return", "nan"])
@pytest.mark.parametrize(("high", "value"), [(8, 8.5), (8, -0.5), ([8, 8, 4], 5)])
def test_replacement_of_no_distance_is_within_bounds_and_only_of_distances(key, high, value):
    message = refusal(scan(high=high, **{key: value}))
    assert message.startswith(f"{LASER_FIELD}.{key}: {float(value)} (expected a number from low 0.0 to high ")
    path = f"sensors.tcp.fields.position.{key}"
    assert refusal(changed(path, 0)).startswith(f"{path}: 0.0 (expected none")


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (("a_b", {"c": field(path="c")}), ("a", {"b_c": field(path="c")}), "sensors.a.fields.b_c: duplicate observation key 'a_b_c' (expected"),
        (("time", {"remaining": field(path="c")}), None, "sensors.time.fields.remaining: duplicate observation key 'time_remaining' (expected"),
        (("applied", {"actions": field(path="c")}), None, "sensors.applied.fields.actions: duplicate observation key 'applied_actions' (expected"),
        (("a", {"valid": field(path="c")}), None, "sensors.a.mask: duplicate observation key 'a_valid' (expected"),
    ],
)  # fmt: skip
def test_observation_keys_are_unique(first, second, message):
    source = document()
    for topic, (name, fields) in enumerate(filter(None, (first, second))):
        sensor = {"topic": f"topic{topic}", "type": POSE, "fields": fields, "max_age_s": 0.1, "mask": name == "a"}
        source = changed(f"sensors.{name}", sensor, source)
    assert refusal(source).startswith(message)


def test_evaluator_sensors_have_no_observation_keys():
    sensor = {"topic": "t", "type": POSE, "fields": {"remaining": field(path="c")}, "max_age_s": 0.1}
    source = changed("sensors.time", {**sensor, "visibility": "evaluator"}, changed("episode.kind", "finite_horizon"))
    assert parse(source).observation_space["time_remaining"].dtype == np.float64


@pytest.mark.parametrize("velocity", [[], [1.0], (-1.0, 0.0, 1.0), ["-1", "1"], (None, None)])
def test_limits_made_in_python_have_one_velocity_or_two(velocity):
    with pytest.raises(UsageError, match=r"invalid velocity limit: .* \(expected a number, or \[low, high\]\)"):
        JointLimits(position=None, velocity=velocity, acceleration=1.0)


AXIS = {"position": None, "velocity": 1.0, "acceleration": 2.0, "unit": "m"}


def twist(axes, **keys):
    """Return the small document with a base driven by a twist."""
    base = {"topic": "cmd_vel", "type": TWIST, "command": "twist", "joints": axes}
    return changed("actuators.base", {**base, **keys})


@pytest.mark.parametrize(
    ("type_", "command", "allowed"),
    [
        ("std_msgs/msg/Float64MultiArray", "twist", "position, position_delta, velocity"),
        ("trajectory_msgs/msg/JointTrajectory", "velocity", "position, position_delta"),
        (TWIST, "velocity", "twist"),
    ],
)
def test_command_must_fit_the_message_type(type_, command, allowed):
    source = changed("actuators.arm.command", command, changed("actuators.arm.type", type_))
    assert refusal(source) == f"actuators.arm.command: {command!r} (expected {allowed} for {type_})"


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"linear.w": AXIS}, "linear.w: unknown twist axis 'linear.w' (expected"),
        ({"linear.x": {**AXIS, "unit": "rad"}}, "linear.x.unit: 'rad' (expected"),
        ({"angular.z": AXIS}, "angular.z.unit: 'm' (expected"),
        ({"linear.x": {**AXIS, "position": [-1, 1]}}, "linear.x.position: (-1.0, 1.0) (expected"),
    ],
)  # fmt: skip
def test_the_axes_of_a_twist_are_checked(axes, message):
    assert refusal(twist(axes)).startswith(f"actuators.base.joints.{message}")


def test_two_actuators_do_not_share_a_topic():
    message = refusal(twist({"linear.x": AXIS}, topic="commands"))
    assert message.startswith("actuators.base.topic: 'commands' is already used by actuators.arm")


@pytest.mark.parametrize(
    ("topic", "owner"),
    [("/clock", "simulated time"), ("simulator/step", "the simulator's node"), ("commands", "sensors.tcp")],
)
def test_no_sensor_has_a_topic_of_the_embedded_simulator_or_an_actuator(topic, owner):
    assert f"is already used by {owner}" in refusal(changed("sensors.tcp.topic", topic))


def test_twist_has_no_position_margin_and_velocities_that_may_differ_by_direction():
    axes = {"linear.x": {**AXIS, "velocity": [-0.2, 1.0]}, "linear.y": {**AXIS, "velocity": [0, 1]}}
    contract = parse(twist(axes, type="geometry_msgs/msg/TwistStamped", frame="base"))
    limits = contract.actuators["base"].limits(contract.safety.margins)
    assert (limits.position_low.tolist(), limits.position_high.tolist()) == ([-np.inf] * 2, [np.inf] * 2)
    assert (limits.velocity_low.tolist(), limits.velocity_high.tolist()) == ([-0.2 * 0.95, 0.0], [0.95, 0.95])


def test_velocity_joint_needs_a_sensor_only_with_position_limits():
    source = changed("actuators.arm.command", "velocity", changed(f"{FIELD}.joints", ["b"]))
    assert refusal(source).startswith(f"{JOINT}: no sensor reports the position of joint 'a'")
    assert parse(changed(f"{JOINT}.position", None, source)).actuators["arm"].is_velocity


def test_joint_without_a_sensor_of_its_position_is_rejected():
    message = refusal(changed(f"{FIELD}.joints", ["b"]))
    assert message.startswith(f"{JOINT}: no sensor reports the position of joint 'a' (reported: b)")
    only_velocity = {"velocity": {"joints": ["a", "b"], "unit": "rad/s", "low": -1, "high": 1}}
    assert "no sensor reports the position of joint 'a'" in refusal(changed("sensors.joints.fields", only_velocity))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("sensors.tcp.topic", "target_pose", "sensors.target.topic: 'target_pose' is already used by sensors.tcp (expected"),
        ("sensors.tcp.fields.positon", {"unit": "m", "low": 0, "high": 1}, "sensors.tcp.fields.positon: unknown field 'positon' (expected"),
        ("sensors.tcp.fields.position.joints", ["a"], "sensors.tcp.fields.position.joints: ['a'] (expected"),
        (f"{FIELD}.shape", [2], f"{FIELD}.shape: [2] (expected"),
        (f"{FIELD}.unit", "deg", f"{FIELD}.unit: 'deg' (expected"),
        (f"{FIELD}.joints", ABSENT, f"{FIELD}.joints: missing (expected"),
        (f"{FIELD}.joints", ["a", "b", "a"], f"{FIELD}.joints: duplicate joint 'a' (expected"),
        (f"{FIELD}.low", 4, f"{FIELD}: empty or inverted interval from low 4.0 to high 4.0 (expected"),
        (f"{FIELD}.low", [0, 5], f"{FIELD}: empty or inverted interval from low (0.0, 5.0) to high 4.0 (expected"),
        (f"{FIELD}.low", [0, 0, 0], f"{FIELD}.low: 3 values [0.0, 0.0, 0.0] (expected"),
        (f"{FIELD}.high", [], f"{FIELD}.high: 0 values [] (expected"),
        ("actuators.arm.type", "std_msgs/msg/Float46", "actuators.arm.type: unknown message type 'std_msgs/msg/Float46' (expected"),
        ("actuators.arm.type", "std_msgs/msg/Float64", "actuators.arm.joints: 2 joints (expected"),
        ("actuators.arm.frame", "base", "actuators.arm.frame: 'base' (expected"),
        ("actuators.leg", document()["actuators"]["arm"], "actuators.leg.joints.a: 'a' is also driven by actuators.arm (expected"),
        (f"{JOINT}.unit", "m", f"{JOINT}.unit: 'm' (expected"),
        (f"{JOINT}.position", None, f"{JOINT}.position: null (expected"),
        (f"{JOINT}.position", [0, 0.04], f"{JOINT}.position: [0.0, 0.04] (expected"),
        (f"{TARGET}.low", [0.5, 0.1, 0.1], f"{TARGET}: empty or inverted interval from low (0.5, 0.1, 0.1) to high (0.5, 0.5, 0.5) (expected"),
        (f"{TARGET}.low", [0.1, 0.1], f"{TARGET}: 2 values of low and 3 of high (expected"),
        (f"{TARGET}.low", 0.1, f"{TARGET}: type 'vector' with low 0.1 and high (0.5, 0.5, 0.5) (expected"),
        (f"{TARGET}.type", "scalar", f"{TARGET}: type 'scalar' with low (0.1, 0.1, 0.1) and high (0.5, 0.5, 0.5) (expected"),
        (f"{TARGET}.low", ABSENT, f"{TARGET}.low: missing key (expected with distribution: uniform)"),
        (f"{TARGET}.mean", 0.3, f"{TARGET}.mean: 0.3 (expected none with distribution: uniform); remove it"),
        (f"{TARGET}.distribution", "nromal", f"{TARGET}.distribution: \"nromal\" (expected 'uniform', 'log_uniform'"),
        (f"{TARGET}.distribution", "choice", f"{TARGET}.low: (0.1, 0.1, 0.1) (expected none with distribution: choice"),
        (f"{TARGET}.distribution", "normal", f"{TARGET}.mean: missing key (expected with distribution: normal)"),
        (TARGET, {**NORMAL, "mean": 2.0}, f"{TARGET}.mean: 2.0 (expected numbers from 0.0 to 1.0)"),
        (TARGET, {**NORMAL, "mean": [0.5, 0.5]}, f"{TARGET}.mean: (0.5, 0.5) (expected one number"),
        (TARGET, {**NORMAL, "distribution": "log_uniform"}, f"{TARGET}.mean: 0.5 (expected none"),
        (TARGET, LOG_UNIFORM, f"{TARGET}.low: 0.0 (expected numbers > 0 with distribution: log_uniform)"),
        (TARGET, {**CHOICE, "values": [[1], [1, 2]]}, f"{TARGET}.values[1]: (1.0, 2.0) (expected lists of one length"),
        (TARGET, {**CHOICE, "values": [[1], 2]}, f"{TARGET}.values[1]: 2.0 (expected lists for a vector"),
        (TARGET, {**CHOICE, "visibility": "evaluator", "observed": True}, f"{TARGET}.observed: true (expected false: visib"),
        ("reset_options.tcp_position", OBSERVED, "sensors.tcp.fields.position: duplicate observation key 'tcp_position'"),
        ("reset_options.applied_actions", OBSERVED, "reset_options.applied_actions: duplicate observation key"),
        ("task.instruction", "wave\0", "task.instruction: 'wave\\x00' (expected text without NUL"),
    ],
)  # fmt: skip
def test_sensors_actuators_reset_options_and_the_task_are_checked(path, value, message):
    assert refusal(changed(path, value)).startswith(message)


def test_a_continuous_joint_may_be_commanded_by_deltas():
    source = changed(f"{JOINT}.position", None, changed("actuators.arm.command", "position_delta"))
    limits = (contract := parse(source)).actuators["arm"].limits(contract.safety.margins)
    assert (limits.position_low[0], limits.position_high[0]) == (-float("inf"), float("inf"))


def test_a_joint_may_have_its_own_margins():
    own = {"actuators": {"arm": {"position": 0.1}}, "joints": {"b": {"position": 0.3, "velocity": 0.5}}}
    contract = parse(changed("safety.margins", own))
    limits, joints = ActionLayout(contract).limits, contract.actuators["arm"].joints
    inset = [joints["a"].position[1] - 0.1, joints["b"].position[1] - 0.3]
    assert limits.position_high.tolist() == inset
    assert limits.fastest.tolist() == [0.95 * joints["a"].velocity, 0.5 * joints["b"].velocity]


def test_margins_shrink_every_limit_and_deceleration_defaults_to_acceleration():
    contract = parse(changed(f"{JOINT}.deceleration", 10.0))
    limits = contract.actuators["arm"].limits(contract.safety.margins)
    assert (limits.position_low[0], limits.position_high[0]) == (-1.0 + 0.02, 2.0 - 0.02)
    assert (limits.fastest[0], limits.acceleration[0]) == (3.0 * 0.95, 8.0 * 0.9)
    assert limits.deceleration.tolist() == [10.0 * 0.9, 8.0 * 0.9]


def test_the_mappings_and_lists_of_a_contract_are_read_only():
    contract = parse(document())
    for mapping in (contract.sensors["joints"].fields, contract.task.parameters, contract.backends["fake"]):
        with pytest.raises(TypeError, match="'FrozenDict' object does not support item assignment"):
            mapping["x"] = 1
    assert contract.backends["fake"]["noise"] == (0.1, 0.2)


def test_contracts_with_another_order_of_joints_are_not_equal():
    joints = document()["actuators"]["arm"]["joints"]
    swapped = changed("actuators.arm.joints", {"b": joints["b"], "a": joints["a"]})
    assert parse(swapped) != parse(document())
    assert FrozenDict({"a": 1, "b": 2}) == {"b": 2, "a": 1}


def mixed(units):
    """Return the small document with joint a in rad and joint b in m."""
    return changed(f"{FIELD}.unit", units, changed("actuators.arm.joints.b.unit", "m"))


def test_units_are_checked_per_joint():
    assert parse(mixed(["rad", "m"])).sensors["joints"].fields["position"].units_by_joint() == {"a": "rad", "b": "m"}
    assert refusal(mixed(["rad"])).startswith(f"{FIELD}.unit: ['rad'] (expected one unit, or 2 of them")
    assert refusal(mixed(["rad", "ft"])).startswith(f"{FIELD}.unit: 'ft' (expected rad or m")
    assert refusal(mixed(["m", "rad"])).startswith(f"{JOINT}.unit: 'rad' (expected 'm'")


def test_only_sensors_of_different_joints_may_have_one_topic():
    joints = document()["sensors"]["joints"]

    def second(joint):
        return changed(
            "sensors.more", {**joints, "fields": {"position": {**joints["fields"]["position"], "joints": [joint]}}}
        )

    assert parse(second("wheel")).sensors["more"].topic == joints["topic"]
    assert "is already used by sensors.joints" in refusal(second(joints["fields"]["position"]["joints"][0]))
