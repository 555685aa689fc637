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
        ("sensors.tcp.type", "Pose", "sensors.tcp.type: 'Pose' is not known; allowed: geometry_msgs/msg/PointStamped, geometry_msgs/msg/PoseStamped, sensor_msgs/msg/JointState, sensor_msgs/msg/Range"),
        ("sensors.tcp.topic", "tcp pose", "sensors.tcp.topic: 'tcp pose' is not a ROS 2 topic name"),
        ("sensors.tcp.topic", "~pose", "sensors.tcp.topic: '~pose' is not a ROS 2 topic name"),
        ("sensors.tcp.topic", "target_pose", "sensors.tcp.topic: 'target_pose' is read by two sensors; allowed: one sensor per topic"),
        ("sensors.tcp.max_age_s", 0, "sensors.tcp.max_age_s: 0.0 is not allowed; allowed: a finite number of seconds > 0"),
        ("sensors.tcp.timeline", "receive", "sensors.tcp.timeline: 'receive' cannot be honoured by any backend yet; allowed: header"),
        ("sensors.tcp.rate_hz", -1, "sensors.tcp.rate_hz: -1.0 is not allowed; allowed: 0 (at every step) or a rate in Hz"),
        ("sensors.tcp.fields", {}, "sensors.tcp.fields: there is none; at least one field is needed"),
        ("sensors.tcp.fields.positon", {"unit": "m", "low": 0, "high": 1}, "sensors.tcp.fields.positon: geometry_msgs/msg/PoseStamped: 'positon' is not known (did you mean 'position'?); allowed: orientation, position"),
        ("sensors.tcp.fields.position.joints", ["a"], "sensors.tcp.fields.position.joints: geometry_msgs/msg/PoseStamped position has no joints; allowed: only with sensor_msgs/msg/JointState"),
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
        ("actuators.arm.type", "std_msgs/msg/Float64", "actuators.arm.type: 'std_msgs/msg/Float64' is not known (did you mean 'std_msgs/msg/Float64MultiArray'?); allowed: std_msgs/msg/Float64MultiArray"),
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


def test_a_joint_that_no_sensor_reports_is_missing():
    assert refusal(changed(f"{FIELD}.joints", ["b"])) == (
        f"{JOINT}: no sensor reports the position of 'a'; needed: a sensor_msgs/msg/JointState sensor whose field "
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
        ("task.type", "reach", "task.type: 'reach' is not a class; allowed: module:Class, e.g. embodied_env.tasks.reach:Reach"),
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


@pytest.mark.parametrize(
    ("now_ns", "due_ns"),
    [(0, 0), (99, 0), (33_333_333, 33_333_333), (50_000_000, 33_333_333), (1_000_000_000, 1_000_000_000)],
)
def test_a_sensor_is_due_at_multiples_of_its_rate_since_the_reset(now_ns, due_ns):
    sensor = parse(changed("sensors.tcp.rate_hz", 30)).sensors["tcp"]
    assert sensor.due_ns(7 + now_ns, 7) == 7 + due_ns


def test_a_sensor_without_a_rate_is_due_now():
    assert parse(document()).sensors["tcp"].due_ns(123, 0) == 123
