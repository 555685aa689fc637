"""Robot files: merge rule, removal, tighter limits only, provenance."""

from __future__ import annotations

import dataclasses

import pytest
import yaml
from strategies import document

from embodied_env.contract import load_contract, parse_contract
from embodied_env.contract.fingerprint import to_plain
from embodied_env.contract.loader import dump_contract
from embodied_env.contract.robot_files import JOINT_RULES, SAFETY_RULES
from embodied_env.contract.schema import JointLimits, Safety, WorkspaceSpec
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
    (folder / "some_robot.yaml").write_text(yaml.safe_dump(robot or robot_document()), encoding="utf-8")
    path = folder / "contract.yaml"
    path.write_text(yaml.safe_dump(task_document(**changes)), encoding="utf-8")
    return path


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


def test_a_path_to_remove_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(ContractError) as caught:
        load_contract(write(tmp_path, remove=["sensors.nothing"]))
    assert caught.value.path == "remove"


@pytest.mark.parametrize("key", ["velocity", "acceleration", "deceleration", "jerk"])
def test_a_looser_joint_limit_is_refused(tmp_path, key):
    name, joint, limits = first_joint()
    robot = robot_document()
    robot["actuators"][name]["joints"][joint] = {**limits, "deceleration": 1.0, "jerk": 10.0}
    own = {name: {"joints": {joint: {key: 2 * robot["actuators"][name]["joints"][joint][key]}}}}
    with pytest.raises(ContractError) as caught:
        load_contract(write(tmp_path, robot, actuators=own))
    assert caught.value.path == f"actuators.{name}.joints.{joint}.{key}"


def test_a_looser_limit_is_refused_under_another_actuator_too(tmp_path):
    name, joint, limits = first_joint()
    joints = robot_document()["actuators"][name]["joints"]
    joints = {**joints, joint: {**limits, "velocity": 2 * limits["velocity"]}}
    other = {**robot_document()["actuators"][name], "joints": joints}
    with pytest.raises(ContractError) as caught:
        load_contract(write(tmp_path, remove=[f"actuators.{name}"], actuators={"another": other}))
    assert caught.value.path == f"actuators.another.joints.{joint}.velocity"


@pytest.mark.parametrize(
    ("robot", "own", "path"),
    [
        ({}, {"mode": "monitor"}, "safety.mode"),
        ({}, {"margins": {"position": 0.0}}, "safety.margins.position"),
        ({}, {"margins": {"velocity": 1.0}}, "safety.margins.velocity"),
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
def test_looser_safety_is_refused(tmp_path, robot, own, path):
    with pytest.raises(ContractError) as caught:
        load_contract(write(tmp_path, robot_document(safety=robot), safety=own))
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("own", "path"),
    [
        ({"estop": {"button": {"topic": "elsewhere"}}}, "backends.real.estop"),
        ({"downstream_timeout_s": None}, "backends.real.downstream_timeout_s"),
        ({"allow_no_downstream_timeout": True}, "backends.real.allow_no_downstream_timeout"),
        ({"relay": False}, "backends.real.relay"),
        ({"start_outside": "inward"}, "backends.real.start_outside"),
    ],
)
def test_a_looser_robot_profile_is_refused(tmp_path, own, path):
    with pytest.raises(ContractError) as caught:
        load_contract(write(tmp_path, backends={"real": own}))
    assert caught.value.path == path


def test_a_removed_estop_is_refused(tmp_path):
    with pytest.raises(ContractError) as caught:
        load_contract(write(tmp_path, remove=["backends.real.estop.button"]))
    assert caught.value.path == "backends.real.estop"


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


@pytest.mark.parametrize("own", [0.4, 0.9])
def test_a_measured_timeout_replaces_a_chosen_one_but_no_published_one(tmp_path, own):
    path = "backends.real.downstream_timeout_s"
    robot = robot_document(backends={"real": {"downstream_timeout_s": 0.5}})
    changes = {"backends": {"real": {"downstream_timeout_s": own}}}
    with pytest.raises(ContractError, match="loosens the limit"):
        load_contract(write(tmp_path, robot, **changes))
    contract = load_contract(write(tmp_path, {**robot, "chosen": {path: "a guess"}}, **changes))
    assert contract.backends["real"]["downstream_timeout_s"] == own
    assert not contract.unconfirmed


def test_a_confirmed_path_that_is_not_chosen_is_refused(tmp_path):
    with pytest.raises(ContractError) as caught:
        load_contract(write(tmp_path, confirmed=["control_period_s"]))
    assert caught.value.path == "confirmed"


def test_the_origin_survives_writing_the_contract_out(tmp_path):
    contract = load_contract(write(tmp_path, safety={"margins": {"velocity": 1.0}}, override_robot_limits=True))
    assert parse_contract(dump_contract(contract), trusted=False) == contract


def test_the_origin_does_not_change_the_fingerprint(tmp_path):
    contract = load_contract(write(tmp_path))
    assert dataclasses.replace(contract, robot=None).fingerprint == contract.fingerprint


def test_the_robot_file_of_a_runs_contract_is_not_opened(tmp_path):
    path = write(tmp_path)
    with pytest.raises(ContractError) as caught:
        parse_contract(path.read_text(encoding="utf-8"), source=str(path), trusted=False)
    assert caught.value.path == "robot"


def test_an_unknown_robot_is_refused_with_the_known_ones(tmp_path):
    path = write(tmp_path, robot=None)
    path.write_text(yaml.safe_dump(task_document(robot="no_such_robot")), encoding="utf-8")
    with pytest.raises(ContractError) as caught:
        load_contract(path)
    assert caught.value.path == "robot"


def test_an_unknown_key_of_a_robot_file_is_refused(tmp_path):
    with pytest.raises(ContractError) as caught:
        load_contract(write(tmp_path, robot_document(task={"type": "a:B"})))
    assert caught.value.path == "task"


def test_a_file_named_by_a_robot_file_is_relative_to_its_folder(tmp_path):
    (tmp_path / "robots").mkdir()
    (tmp_path / "robots" / "arm.xml").write_text("<mujoco/>", encoding="utf-8")
    (tmp_path / "robots" / "arm.urdf").write_text("<robot name='arm'/>", encoding="utf-8")
    profile = {"model": "arm.xml", "stand_in": {"robot_description": "arm.urdf"}}
    robot = robot_document(backends={"mujoco": profile, "mujoco_ros": {"stand_in": {"robot_description": "generated"}}})
    (tmp_path / "robots" / "some_robot.yaml").write_text(yaml.safe_dump(robot), encoding="utf-8")
    path = tmp_path / "contract.yaml"
    path.write_text(yaml.safe_dump(task_document(robot="robots/some_robot.yaml")), encoding="utf-8")
    contract = load_contract(path)
    assert contract.resolve_path(contract.backends["mujoco"]["model"]).samefile(tmp_path / "robots" / "arm.xml")
    assert contract.backends["mujoco"]["stand_in"]["robot_description"] == "robots/arm.urdf"
    assert contract.backends["mujoco_ros"]["stand_in"]["robot_description"] == "generated"


def leaves(value, path=""):
    if not (isinstance(value, dict) and value):
        return [path[:-1]]
    return [leaf for key, item in value.items() for leaf in leaves(item, f"{path}{key}.")]


def test_every_limit_and_safety_setting_has_a_rule():
    safety = to_plain(dataclasses.replace(Safety(), workspace=WorkspaceSpec()))
    assert {*leaves(safety), "tracking", "workspace"} == set(SAFETY_RULES)  # those two may be null
    assert {field.name for field in dataclasses.fields(JointLimits)} == set(JOINT_RULES)


def test_the_instruction_is_part_of_the_fingerprint():
    one = parse_contract(yaml.safe_dump(document()))
    instructed = document()
    instructed["task"] = {**instructed["task"], "instruction": "reach the target"}
    other = parse_contract(yaml.safe_dump(instructed))
    assert other.task.instruction == "reach the target"
    assert other.fingerprint != one.fingerprint
