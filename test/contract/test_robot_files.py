from __future__ import annotations

import dataclasses
import os

import pytest
import yaml
from strategies import document

from embodied_env.contract import load_contract, parse_contract
from embodied_env.contract.contract_loader import dump_contract
from embodied_env.contract.robot_files import limit_paths, real_rules, rules_of
from embodied_env.contract.sensor_schema import SensorSpec
from embodied_env.errors import ContractError

ROBOT_KEYS = ("sensors", "actuators", "safety", "backends")
REAL = {"estop": {"button": {"topic": "stop"}}, "downstream_timeout_s": 0.5, "relay": True}


def robot_document(**changes):
    whole = document()
    whole.setdefault("safety", {})["forces"] = {}
    keys = {key: whole[key] for key in ROBOT_KEYS if key in whole}
    keys["backends"] = {**keys.get("backends", {}), "real": REAL}
    return {"robot": "embodied_env/1", "name": "some_robot", **keys, **changes}


def task_document(**changes):
    whole = {key: value for key, value in document().items() if key not in ROBOT_KEYS}
    return {**whole, "robot": "some_robot.yaml", **changes}


def write(folder, robot=None, **changes):
    (folder / "some_robot.yaml").write_text(
        yaml.safe_dump(robot or robot_document(), sort_keys=False), encoding="utf-8"
    )
    path = folder / "contract.yaml"
    path.write_text(yaml.safe_dump(task_document(**changes), sort_keys=False), encoding="utf-8")
    return path


def path_refused(file):
    """Return the path of the key for which a contract file is refused."""
    with pytest.raises(ContractError) as caught:
        load_contract(file)
    return caught.value.path


def first_joint():
    ((name, actuator),) = document()["actuators"].items()
    joint = next(iter(actuator["joints"]))
    return name, joint, actuator["joints"][joint]


def test_a_contract_over_a_robot_file_has_the_fingerprint_of_the_same_contract_in_one_file(tmp_path):
    whole = document() | {key: value for key, value in robot_document().items() if key in ROBOT_KEYS}
    assert load_contract(write(tmp_path)).fingerprint == parse_contract(yaml.safe_dump(whole)).fingerprint


def test_mappings_merge_and_scalars_replace(tmp_path):
    name, joint, limits = first_joint()
    velocity = limits["velocity"] / 2
    contract = load_contract(write(tmp_path, actuators={name: {"joints": {joint: {"velocity": velocity}}}}))
    assert contract.actuators[name].joints[joint].velocity == velocity
    assert contract.actuators[name].joints[joint].acceleration == limits["acceleration"]


def test_lists_replace(tmp_path):
    robot = robot_document()
    fields = robot["sensors"]["joints"]["fields"]
    joints = fields["position"]["joints"]
    fields["position"]["joints"] = ["another", *joints]
    contract = load_contract(write(tmp_path, robot, sensors={"joints": {"fields": {"position": {"joints": joints}}}}))
    assert contract.sensors["joints"].fields["position"].joints == tuple(joints)


def test_null_replaces(tmp_path):
    robot = robot_document(safety={"latency": {"budget_s": 0.01}})
    path = write(tmp_path, robot, safety={"latency": {"budget_s": None}}, override_robot_limits=True)
    assert load_contract(path).safety.latency.budget_s is None


def test_a_removed_path_is_absent(tmp_path):
    extra = {"topic": "wrench", "type": "geometry_msgs/msg/WrenchStamped", "max_age_s": 0.1}
    fields = {"force": {"unit": "N", "low": -100.0, "high": 100.0}}
    robot = robot_document()
    robot["sensors"]["wrench"] = {**extra, "fields": fields}
    assert "wrench" not in load_contract(write(tmp_path, robot, remove=["sensors.wrench"])).sensors


def test_a_looser_joint_limit_is_rejected(tmp_path):
    name, joint, limits = first_joint()
    robot = robot_document()
    robot["actuators"][name]["joints"][joint] = {**limits, "deceleration": 1.0, "jerk": 10.0}
    for key in ("velocity", "acceleration", "deceleration", "jerk"):
        own = {name: {"joints": {joint: {key: 2 * robot["actuators"][name]["joints"][joint][key]}}}}
        assert path_refused(write(tmp_path, robot, actuators=own)) == f"actuators.{name}.joints.{joint}.{key}"


@pytest.mark.parametrize(
    ("robot_velocity", "own", "is_tighter"),
    [
        ([-0.2, 1.0], 1.0, False),
        ([-0.2, 1.0], 0.2, True),
        ([-0.2, 1.0], [-0.2, 0.5], True),
        ([-0.2, 1.0], [-0.3, 0.5], False),
        ([-0.2, 1.0], [0.0, 1.1], False),
        ([0.0, 1.0], [-0.1, 1.0], False),
        (1.0, [0.0, 1.0], True),
        (1.0, [0.0, 1.1], False),
    ],
)
def test_a_velocity_limit_by_direction_is_tighter_in_both(tmp_path, robot_velocity, own, is_tighter):
    name, joint, limits = first_joint()
    robot = robot_document()
    robot["actuators"][name]["joints"][joint] = {**limits, "velocity": robot_velocity}
    path = write(tmp_path, robot, actuators={name: {"joints": {joint: {"velocity": own}}}})
    if is_tighter:
        load_contract(path)
    else:
        assert path_refused(path) == f"actuators.{name}.joints.{joint}.velocity"


def two_joint_sensors():
    """Return a robot file with two sensors of the same joints, one of which may be older."""
    robot = robot_document()
    robot["sensors"]["slow"] = {**robot["sensors"]["joints"], "topic": "slow_joint_states", "max_age_s": 9.0}
    return robot


def test_two_sensors_of_the_same_joints_in_a_robot_file_loosen_nothing(tmp_path):
    assert load_contract(write(tmp_path, two_joint_sensors())).sensors["slow"].max_age_s == 9.0


@pytest.mark.parametrize(
    "changes",
    [
        {"remove": ["sensors.joints"]},
        {"sensors": {"joints": {"topic": "other_joint_states"}}},
        {"sensors": {"slow": {"topic": "slower_joint_states"}}},
        {"sensors": {"joints": {"visibility": "evaluator"}}},
        {"sensors": {"joints": {"fields": {"position": {"joints": ["j1"]}}}}},
    ],
    ids=["the fast one removed", "elsewhere", "the slow one elsewhere", "for the evaluator", "of one joint"],
)
def test_one_of_two_joint_sensors_does_not_replace_the_other(tmp_path, changes):
    assert path_refused(write(tmp_path, two_joint_sensors(), **changes)) in (
        "sensors.slow.max_age_s",
        "sensors.joints.visibility",
    )


def test_a_looser_limit_under_another_actuator_is_rejected(tmp_path):
    name, joint, limits = first_joint()
    joints = robot_document()["actuators"][name]["joints"]
    joints = {**joints, joint: {**limits, "velocity": 2 * limits["velocity"]}}
    other = {**robot_document()["actuators"][name], "joints": joints}
    assert (
        path_refused(write(tmp_path, remove=[f"actuators.{name}"], actuators={"another": other}))
        == f"actuators.another.joints.{joint}.velocity"
    )


@pytest.mark.parametrize(
    ("robot", "own", "path"),
    [
        ({}, {"mode": "monitor"}, "safety.mode"),
        ({}, {"margins": {"position": 0.0}}, "safety.margins.position"),
        ({}, {"margins": {"velocity": 1.0}}, "safety.margins.velocity"),
        ({}, {"margins": {"joints": {"a": {"velocity": 1.0}}}}, "safety.margins.joints"),
        ({}, {"margins": {"actuators": {"arm": {"position": 0.0}}}}, "safety.margins.joints"),
        ({}, {"tracking": {"joints": {"a": None}}}, "safety.tracking.joints"),
        ({}, {"tracking": {"actuators": {"arm": 0.2}}}, "safety.tracking.joints"),
        ({}, {"watchdog": {"stop_steps": 100}}, "safety.watchdog.stop_steps"),
        ({}, {"observation": {"require_stamp": False}}, "safety.observation.require_stamp"),
        ({}, {"tracking": None}, "safety.tracking"),
        ({}, {"tracking": {"tolerance": 0.5}}, "safety.tracking.tolerance"),
        ({"latency": {"budget_s": 0.01}}, {"latency": {"budget_s": 0.02}}, "safety.latency.budget_s"),
        (
            {"intervention": {"stop_share": 0.5}},
            {"intervention": {"stop_share": None}},
            "safety.intervention.stop_share",
        ),
        ({"gates": {"a": {"x": 1}}}, {"gates": {"a": {"x": 2}}}, "safety.gates"),
    ],
)
def test_looser_safety_is_rejected(tmp_path, robot, own, path):
    assert path_refused(write(tmp_path, robot_document(safety=robot), safety=own)) == path


@pytest.mark.parametrize(
    ("own", "path"),
    [
        ({"estop": {"button": {"topic": "elsewhere"}}}, "backends.real.estop"),
        ({"downstream_timeout_s": None}, "backends.real.downstream_timeout_s"),
        ({"allow_no_downstream_timeout": True}, "backends.real.allow_no_downstream_timeout"),
        ({"relay": False}, "backends.real.relay"),
        ({"start_outside": "inward"}, "backends.real.start_outside"),
        ({"start_outside": {"a": "inward"}}, "backends.real.start_outside"),
    ],
)
def test_a_looser_robot_profile_is_rejected(tmp_path, own, path):
    assert path_refused(write(tmp_path, backends={"real": own})) == path


def test_an_overridden_limit_is_named_with_the_contract(tmp_path):
    path = write(tmp_path, safety={"margins": {"velocity": 1.0}}, override_robot_limits=True)
    assert load_contract(path).robot.overridden == ("safety.margins.velocity",)


def test_tighter_limits_and_safety_are_accepted(tmp_path):
    name, joint, limits = first_joint()
    safety = {"margins": {"velocity": 0.5}, "latency": {"budget_s": 0.02}, "watchdog": {"stop_steps": 5}}
    own = {name: {"joints": {joint: {"velocity": limits["velocity"] / 2}}}}
    assert load_contract(write(tmp_path, safety=safety, actuators=own)).robot.overridden == ()


def test_a_chosen_value_is_unconfirmed_until_the_contract_confirms_or_replaces_it(tmp_path):
    name, joint, limits = first_joint()
    chosen = f"actuators.{name}.joints.{joint}.acceleration"
    robot = robot_document(chosen={chosen: "not published by the maker", "safety.margins.position": "assumed"})
    robot["safety"] = {"margins": {"position": 0.02}}
    assert set(load_contract(write(tmp_path, robot)).unconfirmed) == {chosen, "safety.margins.position"}
    confirmed = load_contract(write(tmp_path, robot, confirmed=[chosen]))
    assert set(confirmed.unconfirmed) == {"safety.margins.position"}
    own = {name: {"joints": {joint: {"acceleration": limits["acceleration"] / 2}}}}
    assert set(load_contract(write(tmp_path, robot, actuators=own)).unconfirmed) == {"safety.margins.position"}


@pytest.mark.parametrize("own", [0.4, 0.9, 1e6])
def test_a_measured_timeout_replaces_a_chosen_one_only_by_override(tmp_path, own):
    path = "backends.real.downstream_timeout_s"
    robot = robot_document(backends={"real": {"downstream_timeout_s": 0.5}})
    changes = {"backends": {"real": {"downstream_timeout_s": own}}}
    robot |= {"chosen": {path: "a guess"}}
    with pytest.raises(ContractError, match="loosens the limit"):
        load_contract(write(tmp_path, robot, **changes))
    contract = load_contract(write(tmp_path, robot, **changes, override_robot_limits=True))
    assert contract.backends["real"]["downstream_timeout_s"] == own
    assert contract.robot.overridden == (path,)
    assert not contract.unconfirmed


def test_a_confirmed_path_that_is_not_a_chosen_value_is_rejected(tmp_path):
    assert path_refused(write(tmp_path, confirmed=["control_period_s"])) == "confirmed"


def test_provenance_survives_a_round_trip_through_text(tmp_path):
    contract = load_contract(write(tmp_path, safety={"margins": {"velocity": 1.0}}, override_robot_limits=True))
    assert parse_contract(dump_contract(contract), trusted=False) == contract


def test_provenance_does_not_change_the_fingerprint(tmp_path):
    contract = load_contract(write(tmp_path))
    assert dataclasses.replace(contract, robot=None).fingerprint == contract.fingerprint


def test_the_robot_file_of_a_runs_contract_is_not_opened(tmp_path):
    path = write(tmp_path)
    with pytest.raises(ContractError) as caught:
        parse_contract(path.read_text(encoding="utf-8"), source=str(path), trusted=False)
    assert caught.value.path == "robot"


def test_an_unknown_robot_is_rejected_with_the_known_ones(tmp_path):
    path = write(tmp_path, robot=None)
    path.write_text(yaml.safe_dump(task_document(robot="no_such_robot")), encoding="utf-8")
    assert path_refused(path) == "robot"


def test_an_unknown_key_of_a_robot_file_is_rejected(tmp_path):
    assert path_refused(write(tmp_path, robot_document(task={"type": "a:B"}))) == "task"


def test_a_file_named_by_a_robot_file_is_relative_to_its_folder(tmp_path):
    (tmp_path / "robots").mkdir()
    (tmp_path / "robots" / "arm.xml").write_text("<mujoco/>", encoding="utf-8")
    (tmp_path / "robots" / "arm.urdf").write_text("<robot name='arm'/>", encoding="utf-8")
    profile = {"model": "arm.xml", "emulator": {"robot_description": "arm.urdf"}}
    robot = robot_document(backends={"mujoco": profile, "mujoco_ros": {"emulator": {"robot_description": "generated"}}})
    (tmp_path / "robots" / "some_robot.yaml").write_text(yaml.safe_dump(robot), encoding="utf-8")
    path = tmp_path / "contract.yaml"
    path.write_text(yaml.safe_dump(task_document(robot="robots/some_robot.yaml")), encoding="utf-8")
    contract = load_contract(path)
    assert contract.resolve_path(contract.backends["mujoco"]["model"]).samefile(tmp_path / "robots" / "arm.xml")
    assert contract.backends["mujoco"]["emulator"]["robot_description"] == "robots/arm.urdf"
    assert contract.backends["mujoco_ros"]["emulator"]["robot_description"] == "generated"


JOINTS = {"type": "sensor_msgs/msg/JointState", "max_age_s": 0.1}
POSITION = {"joints": ["a", "b"], "unit": "rad", "low": -4.0, "high": 4.0}
SCALED = {**POSITION, "driver": {"scale": 2.0}}
WRENCH = {
    "topic": "wrench",
    "type": "geometry_msgs/msg/WrenchStamped",
    "fields": {"force": {"unit": "N", "low": -100.0, "high": 100.0}},
    "max_age_s": 0.1,
}
EFFORT = {"joints": ["a", "b"], "unit": "N*m", "low": -90.0, "high": 90.0}
MOTORS = {**JOINTS, "topic": "motors", "fields": {"effort": EFFORT}, "max_age_s": 0.15}
SCAN = {"type": "std_msgs/msg/Bool", "fields": {"data": {"unit": "1", "low": 0, "high": 1}}, "max_age_s": 0.1}
LIMITS = {"position": [-1.0, 2.0], "velocity": 3.0, "acceleration": 8.0}
FAST = {"position": [-1.0, 2.0], "velocity": 40.0, "acceleration": 8.0}
ARM = {"topic": "commands", "type": "std_msgs/msg/Float64MultiArray", "command": "position"}


def arm(*joints, limits=LIMITS, **changes):
    return {**ARM, "joints": dict.fromkeys(joints, limits), **changes}


def base(**axes):
    limits = {"position": None, "acceleration": 1.0, "unit": "m"}
    joints = {axis.replace("_", "."): {**limits, "velocity": speed} for axis, speed in axes.items()}
    return {"topic": "cmd_vel", "type": "geometry_msgs/msg/Twist", "command": "twist", "joints": joints}


SPEED = {"linear": {"unit": "m/s", "low": -9.0, "high": 9.0}}
ODOM = {"topic": "odom", "type": "nav_msgs/msg/Odometry", "fields": SPEED, "max_age_s": 0.1}
BASE = {"sensors": {"odom": ODOM}, "actuators": {"base": base(linear_x=0.5)}}

RESET, HOMING = "backends.real.reset", {"real": {"reset": {"home": {"a": 0.0, "b": 0.0}}}}
RANGE = {
    "topic": "range",
    "type": "sensor_msgs/msg/Range",
    "fields": {"range": {"unit": "m", "low": 0.0, "high": 8.0}},
    "max_age_s": 0.1,
}
CLOUD = {**RANGE, "type": "sensor_msgs/msg/PointCloud2", "topic": "cloud"}
CLOUD["fields"] = {"points": {"unit": "m", "low": -5.0, "high": 5.0, "shape": [8, 3]}}
FINGER = {**JOINTS, "topic": "fingers", "fields": {"position": {**POSITION, "joints": ["c"]}}}
TRAJECTORIES = {
    "actuators": {"arm": arm("a", "b", type="trajectory_msgs/msg/JointTrajectory", trajectory_steps=4)},
    "backends": {"real": {}},
}


def hand(**gripper):
    """Return a gripper with an action server."""
    keys = {"topic": "hand", "type": "control_msgs/action/GripperCommand"}
    return arm("c", **keys, gripper={"open": 1.0, "closed": 0.0, **gripper})


ROUTES: dict = {
    "renamed joints": (
        {},
        {
            "remove": ["actuators.arm", "sensors.joints"],
            "actuators": {"arm": arm("c", "d", limits=FAST)},
            "sensors": {"other": {**JOINTS, "topic": "x", "fields": {"position": {**POSITION, "joints": ["c", "d"]}}}},
        },
        "actuators.arm.joints",
    ),
    "renamed joints of another topic": (
        {},
        {
            "remove": ["actuators.arm", "sensors.joints"],
            "actuators": {"arm": arm("c", "d", limits=FAST, topic="velocity_controller/commands")},
            "sensors": {"other": {**JOINTS, "topic": "x", "fields": {"position": {**POSITION, "joints": ["c", "d"]}}}},
        },
        "actuators.arm.joints.c",
    ),
    "a second command of the same topic in a namespace": (
        {},
        {
            "actuators": {"other": arm("c", limits=FAST, topic="/robot_1/commands")},
            "sensors": {"other": {**JOINTS, "topic": "x", "fields": {"position": {**POSITION, "joints": ["c"]}}}},
        },
        "actuators.other.joints",
    ),
    "another order of values without names": (
        {},
        {"remove": ["actuators.arm"], "actuators": {"arm": arm("b", "a")}},
        "actuators.arm.joints",
    ),
    "the first of values without names": ({}, {"remove": ["actuators.arm.joints.a"]}, "actuators.arm.joints"),
    "velocities to a topic of positions": (
        {},
        {"actuators": {"arm": {"command": "velocity"}}},
        "actuators.arm.command",
    ),
    "a further axis": (
        {"actuators": {"base": base(linear_x=0.5)}},
        {"actuators": {"base": base(linear_x=0.5, linear_y=9.0)}},
        "actuators.base.joints.linear.y",
    ),
    "another unit": (
        {},
        {
            "actuators": {"arm": {"joints": {"a": {"unit": "m"}}}},
            "sensors": {"joints": {"fields": {"position": {"unit": ["m", "rad"]}}}},
        },
        "actuators.arm.joints.a.unit",
    ),
    "no position limit": (
        {"actuators": {"arm": arm("a", "b", command="velocity")}},
        {"actuators": {"arm": {"joints": {"a": {"position": None}}}}},
        "actuators.arm.joints.a.position",
    ),
    "no deceleration": (
        {"actuators": {"arm": arm("a", "b", limits={**LIMITS, "deceleration": 1.0})}},
        {"actuators": {"arm": {"joints": {"a": {"deceleration": None}}}}},
        "actuators.arm.joints.a.deceleration",
    ),
    "an older reading": ({}, {"sensors": {"joints": {"max_age_s": 9.0}}}, "sensors.joints.max_age_s"),
    "an older reading under another name": (
        {},
        {
            "remove": ["sensors.joints"],
            "sensors": {
                "other": {**JOINTS, "topic": "/joint_states", "fields": {"position": POSITION}, "max_age_s": 9.0}
            },
        },
        "sensors.other.max_age_s",
    ),
    "an older reading of the joints from another topic": (
        {},
        {
            "remove": ["sensors.joints"],
            "sensors": {"other": {**JOINTS, "topic": "x", "fields": {"position": POSITION}, "max_age_s": 9.0}},
        },
        "sensors.other.max_age_s",
    ),
    "an age counted from reception": ({}, {"sensors": {"joints": {"timeline": "receive"}}}, "sensors.joints.timeline"),
    "no stop at a gap": (
        {"sensors": {"scan": {**SCAN, "topic": "bumper", "timeline": "receive", "on_gap": "stop"}}},
        {"sensors": {"scan": {"on_gap": "hold"}}},
        "sensors.scan.on_gap",
    ),
    "joints that are not measured": (
        {"actuators": {"arm": arm("a", "b", limits={**LIMITS, "position": None}, command="velocity")}},
        {"remove": ["sensors.joints"]},
        "safety.observation.required",
    ),
    "joints that only the evaluator sees": (
        {"actuators": {"arm": arm("a", "b", limits={**LIMITS, "position": None}, command="velocity")}},
        {"sensors": {"joints": {"visibility": "evaluator"}}},
        "sensors.joints.visibility",
    ),
    "a force limit of another topic": (
        {"sensors": {"wrench": WRENCH}, "safety": {"forces": {"wrench": {"field": "force", "limit": 9.0}}}},
        {"sensors": {"wrench": {"topic": "wrench_filtered"}}},
        "sensors.wrench.topic",
    ),
    "a load of fewer joints": (
        {
            "sensors": {"motors": MOTORS},
            "safety": {"loads": {"arm": {"sensor": "motors", "field": "effort", "stop": 9.0}}},
        },
        {"sensors": {"motors": {"fields": {"effort": {"joints": ["a"]}}}}},
        "sensors.motors.fields",
    ),
    "another shape": (
        {"safety": {"workspace": {"self_collision": True}}, "backends": {"mujoco": {"model": "arm6.xml"}}},
        {"backends": {"mujoco": {"model": "cart.xml"}}},
        "safety.workspace",
    ),
    "all safety": (
        {"safety": {"margins": {"velocity": 0.5}}},
        {"remove": ["safety"], "safety": {}},
        "safety.margins.velocity",
    ),
    "a removed force limit": (
        {"sensors": {"wrench": WRENCH}, "safety": {"forces": {"wrench": {"field": "force", "limit": 9.0}}}},
        {"remove": ["safety.forces.wrench"]},
        "safety.forces",
    ),
    "a mask on the odometry of a base": (BASE, {"sensors": {"odom": {"mask": True}}}, "safety.observation.required"),
    "no odometry of a base": (BASE, {"remove": ["sensors.odom"]}, "safety.observation.required"),
    "no required sensors": ({}, {"safety": {"observation": {"required": []}}}, "safety.observation.required"),
    "an empty list of required sensors": (
        {"safety": {"observation": {"required": ["joints"]}}},
        {"safety": {"observation": {"required": []}}},
        "safety.observation.required",
    ),
    "another profile": (
        {},
        {"remove": ["backends.real"], "backends": {"real": {"downstream_timeout_s": 0.5, "relay": True}}},
        "backends.real.estop",
    ),
    "a removed e-stop": ({}, {"remove": ["backends.real.estop.button"]}, "backends.real.estop"),
    "e-stops of a wrong type": ({}, {"backends": {"real": {"estop": None}}}, "backends.real.estop"),
    "a relay of a wrong type": ({}, {"backends": {"real": {"relay": "yes"}}}, "backends.real.relay"),
    "the time of a simulator": ({}, {"backends": {"real": {"use_sim_time": True}}}, "backends.real.use_sim_time"),
    "a topic of several publishers": ({}, {"backends": {"real": {"shared": ["joints"]}}}, "backends.real.shared"),
    "no confirmation": (
        {"backends": {"real": {**REAL, "reset": {"confirm": "prompt"}}}},
        {"backends": {"real": {"reset": {"confirm": ""}}}},
        "backends.real.reset",
    ),
    "no reset": ({"backends": {"real": {"reset": {"confirm": "prompt"}}}}, {"remove": ["backends.real.reset"]}, RESET),
    "homing that ends far from home": (
        {"backends": HOMING},
        {"backends": {"real": {"reset": {"tolerance": 3.0}}}},
        RESET,
    ),
    "a reset service": ({"backends": HOMING}, {"backends": {"real": {"reset": {"service": "go"}}}}, RESET),
    "another topic of confirmation": (
        {"backends": {"real": {"reset": {"confirm": "topic"}}}},
        {"backends": {"real": {"reset": {"confirm_topic": "always_true"}}}},
        RESET,
    ),
    "a short discovery": ({}, {"backends": {"real": {"discovery_s": 0.0}}}, "backends.real.discovery_s"),
    "a world that may be silent": ({}, {"backends": {"real": {"step_timeout_s": 1e6}}}, "backends.real.step_timeout_s"),
    "another clock": ({}, {"backends": {"real": {"clocks": {"joints": {"sync": "none"}}}}}, "backends.real.clocks"),
    "clocks over those of a wrong type": (
        {"backends": {"real": {**REAL, "clocks": "auto"}}},
        {"backends": {"real": {"clocks": {"joints": {"sync": "none"}}}}},
        "backends.real.clocks",
    ),
    "another clock of all": (
        {},
        {"backends": {"real": {"clocks": {"default": {"sync": "none"}}}}},
        "backends.real.clocks",
    ),
    "a long period": ({}, {"control_period_s": 10.0}, "control_period_s"),
    "setpoints": ({}, {"actuators": {"arm": {"setpoint_rate_hz": 100}}}, "actuators.arm.setpoint_rate_hz"),
    "trajectories": (
        TRAJECTORIES,
        {"actuators": {"arm": {"trajectory_steps": None}}},
        "actuators.arm.trajectory_steps",
    ),
    **{
        f"a gripper with another {key}": (
            {"actuators": {"hand": hand(**{key: old})}, "sensors": {"finger": FINGER}},
            {"actuators": {"hand": {"gripper": {key: new}}}},
            f"actuators.hand.gripper.{key}",
        )
        for key, old, new in (
            ("max_effort", 5.0, 50.0),
            ("max_effort", 5.0, None),
            ("on_stop", "hold", "open"),
            ("max_silent_s", 1.0, 9.0),
            ("closed", 0.0, 0.3),
        )
    },
    "commands in other units": (
        {},
        {"actuators": {"arm": {"joints": {"a": {"driver": {"unit": "deg"}}}}}},
        "actuators.arm.joints.a.driver",
    ),
    "readings in other units": (
        {},
        {"sensors": {"joints": {"fields": {"position": {"driver": [{}, {"sign": -1}]}}}}},
        "sensors.joints.fields",
    ),
    "readings of another sensor in other units": (
        {},
        {"remove": ["sensors.joints"], "sensors": {"own": {**JOINTS, "topic": "own", "fields": {"position": SCALED}}}},
        "sensors.own.fields",
    ),
    "a finger more": (
        {
            "actuators": {"hand": arm("c", topic="hand", gripper={"open": 1.0, "closed": 0.0})},
            "sensors": {"finger": FINGER},
        },
        {"actuators": {"hand": {"gripper": {"mimic": {"d": 1.0}}}}},
        "actuators.hand.gripper.mimic",
    ),
    "a value for a missing measurement": (
        {"sensors": {"range": RANGE}},
        {"sensors": {"range": {"fields": {"range": {"no_return": 8.0}}}}},
        "sensors.range.fields",
    ),
    "padding of a cloud": (
        {"sensors": {"cloud": CLOUD}},
        {"sensors": {"cloud": {"fields": {"points": {"shape": None, "points": {"count": 8, "pad": 5.0}}}}}},
        "sensors.cloud.fields",
    ),
    "any frame": (
        {"sensors": {"range": {**RANGE, "frame": "front"}}},
        {"sensors": {"range": {"frame": None}}},
        "sensors.range.frame",
    ),
    "faster homing": (
        {"backends": {"real": {**REAL, "reset": {"home": {"a": 0.0, "b": 0.0}}}}},
        {"backends": {"real": {"reset": {"speed": 0.9}}}},
        "backends.real.reset",
    ),
}


@pytest.mark.parametrize("name", ROUTES)
def test_no_path_loosens_a_limit(tmp_path, name):
    robot, contract, path = ROUTES[name]
    whole = robot_document()
    for key, value in robot.items():
        whole[key] = {**whole[key], **value} if key != "safety" else value
    file = write(tmp_path, whole, **contract)
    with pytest.raises(ContractError, match="loosens") as caught:
        load_contract(file)
    assert caught.value.path == path
    overridden = load_contract(write(tmp_path, whole, **contract, override_robot_limits=True))
    assert path in overridden.robot.overridden
    assert set(overridden.robot.overridden) <= limit_paths(overridden)


def test_additional_sensors_may_be_required(tmp_path):
    path = write(tmp_path, safety={"observation": {"required": ["joints", "tcp"]}})
    assert load_contract(path).robot.overridden == ()


def test_a_robot_may_get_a_gripper_with_a_separate_topic(tmp_path):
    fields = {"position": {**POSITION, "joints": ["finger"]}}
    own = {"gripper": arm("finger", limits=FAST, topic="gripper/commands")}
    sensors = {"gripper": {**JOINTS, "topic": "gripper/joint_states", "fields": fields}}
    assert load_contract(write(tmp_path, actuators=own, sensors=sensors)).robot.overridden == ()


def test_removing_a_path_does_not_affect_its_alias(tmp_path):
    sources = {"sources": {"tcp": {"site": "tcp"}}}
    robot = robot_document(backends={"mujoco": sources, "mujoco_ros": sources})  # dumped as an anchor and its alias
    contract = load_contract(write(tmp_path, robot, remove=["backends.mujoco.sources.tcp"]))
    assert "*id" in (tmp_path / "some_robot.yaml").read_text(encoding="utf-8")
    assert (contract.backends["mujoco"], contract.backends["mujoco_ros"]) == ({"sources": {}}, sources)


URDF = """<robot name="arm"><link name="base"/><link name="one"/><link name="two"/>
<joint name="a" type="revolute"><parent link="base"/><child link="one"/><limit lower="-1" upper="2" velocity="{}"/></joint>
<joint name="b" type="revolute"><parent link="one"/><child link="two"/><limit lower="-1" upper="2" velocity="9"/></joint>
</robot>"""


def with_urdf(folder, **changes):
    """Write a robot file with a URDF in a separate folder, and a contract over it with another URDF of the same name."""
    (folder / "robots").mkdir(exist_ok=True)
    (folder / "robots" / "arm.urdf").write_text(URDF.format(0.5), encoding="utf-8")
    (folder / "arm.urdf").write_text(URDF.format(9), encoding="utf-8")
    robot = robot_document(safety={"urdf": "arm.urdf"})
    (folder / "robots" / "some_robot.yaml").write_text(yaml.safe_dump(robot), encoding="utf-8")
    path = folder / "contract.yaml"
    path.write_text(yaml.safe_dump(task_document(robot="robots/some_robot.yaml", **changes)), encoding="utf-8")
    return path


def test_the_urdf_of_a_robot_file_is_read_from_its_folder(tmp_path):
    assert load_contract(with_urdf(tmp_path)).actuators["arm"].joints["a"].velocity == 0.5
    with pytest.raises(ContractError, match="loosens") as caught:
        load_contract(with_urdf(tmp_path, safety={"urdf": "arm.urdf"}))
    assert caught.value.path == "safety.urdf"


def test_a_missing_urdf_of_a_robot_file_is_not_searched_beside_the_contract(tmp_path):
    path = with_urdf(tmp_path)
    (tmp_path / "robots" / "arm.urdf").unlink()
    with pytest.raises(ContractError, match="cannot read the file"):
        load_contract(path)


def bomb():
    rows = [
        "a: &a [x, x, x, x, x, x, x, x, x]",
        *(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
    ]
    return "robot: embodied_env/1\n" + "\n".join(rows)


def large(file):
    with file.open("wb") as opened:
        opened.truncate(100 * 2**20)


HOSTILE = {
    "a robot file over a robot file": lambda file: file.write_text(f"robot: {file.name}\nname: b"),
    "a contract": lambda file: file.write_text(yaml.safe_dump(document())),
    "a symbolic link to itself": lambda file: file.symlink_to(file.name),
    "a FIFO": os.mkfifo,
    "a folder": lambda file: file.mkdir(),
    "100 MB": large,
    "a bomb of aliases": lambda file: file.write_text(bomb()),
    "a recursive alias": lambda file: file.write_text("robot: embodied_env/1\nsensors: &a {x: *a}"),
    "a Python object": lambda file: file.write_text("robot: !!python/name:os.system"),
    "bytes": lambda file: file.write_bytes(b"\xff\xfe\x00"),
    "deep nesting": lambda file: file.write_text("robot: embodied_env/1\nsensors: " + "{a: " * 1000),
    "nothing": lambda file: file.write_text(""),
}


@pytest.mark.parametrize("place", [".", "../outside"])
def test_a_hostile_robot_file_gives_one_error(tmp_path, place):
    (tmp_path / "outside").mkdir()
    (tmp_path / "inside").mkdir()
    for number, make_hostile in enumerate(HOSTILE.values()):
        robot = f"{place}/robot_{number}.yaml"
        make_hostile(tmp_path / "inside" / robot)
        path = tmp_path / "inside" / "contract.yaml"
        path.write_text(yaml.safe_dump(task_document(robot=robot)), encoding="utf-8")
        with pytest.raises(ContractError):
            load_contract(path)


def test_invalid_paths_to_remove_are_rejected(tmp_path):
    unknown = (
        ["sensors.nothing"],
        None,
        5,
        [5],
        [""],
        ["."],
        ["sensors."],
        ["sensors..x"],
        ["name"],
        ["robot"],
        [["a"]],
    )
    for remove in unknown:
        assert path_refused(write(tmp_path, remove=remove)) == "remove"


def test_a_key_without_a_rule_cannot_be_added():
    added = dataclasses.make_dataclass("Added", [("extra", int, 0)], bases=(SensorSpec,), frozen=True, kw_only=True)
    with pytest.raises(TypeError, match="extra has no rule"):
        rules_of(added)


def test_the_profile_of_a_robot_has_a_rule_for_each_key():
    rules = real_rules()
    assert {"estop", "relay", "clocks", "reset"} <= set(rules)
    assert not rules["clocks"][1]({"a": {"sync": "ptp", "error_s": 0.1}}, {})
    assert rules["clocks"][1]({"a": {"sync": "auto"}}, {})


def test_a_topic_of_the_robot_file_cannot_become_an_action_server(tmp_path):
    name, joint, limits = first_joint()
    robot = robot_document()
    robot["backends"] = {"fake": {}}
    middle = sum(limits["position"]) / 2
    action = {
        "type": "control_msgs/action/GripperCommand",
        "command": "position",
        "frame": None,
        "gripper": {"open": limits["position"][1], "closed": middle},
    }
    robot["actuators"] = {name: {**robot["actuators"][name], "joints": {joint: limits}}}
    with pytest.raises(ContractError, match=r"actuators\..*\.type"):
        load_contract(write(tmp_path, robot, actuators={name: action}))
