from __future__ import annotations

import dataclasses
import os

import pytest
import yaml
from strategies import changed, document

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


def test_a_contract_over_a_robot_file_has_the_fingerprint_of_the_same_contract_in_one_file(tmp_path):
    whole = document() | {key: value for key, value in robot_document().items() if key in ROBOT_KEYS}
    assert load_contract(write(tmp_path)).fingerprint == parse_contract(yaml.safe_dump(whole)).fingerprint


def test_mappings_merge_and_scalars_replace(tmp_path):
    contract = load_contract(write(tmp_path, actuators={"arm": {"joints": {"a": {"velocity": 1.5}}}}))
    joint = contract.actuators["arm"].joints["a"]
    assert (joint.velocity, joint.acceleration) == (1.5, 8.0)


def test_lists_replace(tmp_path):
    path = "sensors.joints.fields.position.joints"
    robot = changed(path, ["another", "a", "b"], robot_document())
    contract = load_contract(write(tmp_path, robot, **changed(path, ["a", "b"], {})))
    assert contract.sensors["joints"].fields["position"].joints == ("a", "b")


def test_null_replaces(tmp_path):
    robot = robot_document(safety={"latency": {"budget_s": 0.01}})
    path = write(tmp_path, robot, safety={"latency": {"budget_s": None}}, override_robot_limits=True)
    assert load_contract(path).safety.latency.budget_s is None


def test_a_removed_path_is_absent(tmp_path):
    robot = changed("sensors.wrench", SENSORS["wrench"], robot_document())
    assert "wrench" not in load_contract(write(tmp_path, robot, remove=["sensors.wrench"])).sensors


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
    path = "actuators.arm.joints.a.velocity"
    file = write(tmp_path, changed(path, robot_velocity, robot_document()), **changed(path, own, {}))
    if is_tighter:
        load_contract(file)
    else:
        assert path_refused(file) == path


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


def test_tighter_limits_and_safety_are_accepted(tmp_path):
    safety = {"margins": {"velocity": 0.5}, "latency": {"budget_s": 0.02}, "watchdog": {"stop_steps": 5}}
    own = {"arm": {"joints": {"a": {"velocity": 1.5}}}}
    assert load_contract(write(tmp_path, safety=safety, actuators=own)).robot.overridden == ()


def test_a_chosen_value_is_unconfirmed_until_the_contract_confirms_or_replaces_it(tmp_path):
    chosen = "actuators.arm.joints.a.acceleration"
    robot = robot_document(chosen={chosen: "not published by the maker", "safety.margins.position": "assumed"})
    assert set(load_contract(write(tmp_path, robot)).unconfirmed) == {chosen, "safety.margins.position"}
    confirmed = load_contract(write(tmp_path, robot, confirmed=[chosen]))
    assert set(confirmed.unconfirmed) == {"safety.margins.position"}
    own = changed(chosen, 4.0, {})
    assert set(load_contract(write(tmp_path, robot, **own)).unconfirmed) == {"safety.margins.position"}


@pytest.mark.parametrize("own", [0.4, 0.9, 1e6])
def test_a_measured_timeout_replaces_a_chosen_one_only_by_override(tmp_path, own):
    path = "backends.real.downstream_timeout_s"
    robot, changes = robot_document(chosen={path: "a guess"}), changed(path, own, {})
    assert path_refused(write(tmp_path, robot, **changes)) == path
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


LIMITS = {"position": [-1.0, 2.0], "velocity": 3.0, "acceleration": 8.0}
FAST = {**LIMITS, "velocity": 40.0}
UNLIMITED = {**LIMITS, "position": None}


def arm(*joints, limits=LIMITS, **changes):
    spec = {"topic": "commands", "type": "std_msgs/msg/Float64MultiArray", "command": "position"}
    return {**spec, "joints": dict.fromkeys(joints, limits), **changes}


def sensor(topic, type_, fields, **keys):
    return {"topic": topic, "type": type_, "fields": fields, "max_age_s": 0.1, **keys}


def states(topic, *joints, name="position", unit="rad", **keys):
    fields = {name: {"joints": list(joints), "unit": unit, "low": -4.0, "high": 4.0}}
    return sensor(topic, "sensor_msgs/msg/JointState", fields, **keys)


def base(**axes):
    limits = {"position": None, "acceleration": 1.0, "unit": "m"}
    joints = {axis.replace("_", "."): {**limits, "velocity": speed} for axis, speed in axes.items()}
    return {"topic": "cmd_vel", "type": "geometry_msgs/msg/Twist", "command": "twist", "joints": joints}


def nested(changes, within=None):
    """Return a document with values at dotted paths."""
    for path, value in changes.items():
        within = changed(path, value, {} if within is None else within)
    return within or {}


GRIPPER = {"open": 1.0, "closed": 0.0}
SENSORS = {
    "wrench": sensor(
        "wrench", "geometry_msgs/msg/WrenchStamped", {"force": {"unit": "N", "low": -100.0, "high": 100.0}}
    ),
    "motors": states("motors", "a", "b", name="effort", unit="N*m", max_age_s=0.15),
    "range": sensor("range", "sensor_msgs/msg/Range", {"range": {"unit": "m", "low": 0.0, "high": 8.0}}),
    "bumper": sensor("bumper", "std_msgs/msg/Bool", {"data": {"unit": "1", "low": 0, "high": 1}}, timeline="receive"),
    "finger": states("fingers", "c"),
    "odom": sensor("odom", "nav_msgs/msg/Odometry", {"linear": {"unit": "m/s", "low": -9.0, "high": 9.0}}),
}
WHOLE = {f"sensors.{name}": spec for name, spec in SENSORS.items() if name != "odom"} | {
    "actuators.hand": arm("c", topic="hand", type="control_msgs/action/GripperCommand", gripper=GRIPPER),
    "safety.forces.wrench": {"field": "force", "limit": 9.0},
    "safety.loads.arm": {"sensor": "motors", "field": "effort", "stop": 3.0},
}
HOME = {"home": {"a": 0.0, "b": 0.0}}
NO_SYNC = {"sync": "none"}

LOOSER: list = [  # key of the contract, its value, and that of the robot file if it is not its default
    ("actuators.arm.joints.a.velocity", 6.0),
    ("actuators.arm.joints.a.acceleration", 16.0),
    ("actuators.arm.joints.a.deceleration", 2.0, 1.0),
    ("actuators.arm.joints.a.deceleration", None, 1.0),
    ("actuators.arm.joints.a.jerk", 20.0, 10.0),
    ("actuators.arm.joints.a.driver", {"unit": "deg"}),
    ("actuators.arm.command", "velocity"),
    ("actuators.arm.setpoint_rate_hz", 100),
    ("actuators.hand.gripper.max_effort", 50.0, 5.0),
    ("actuators.hand.gripper.max_effort", None, 5.0),
    ("actuators.hand.gripper.on_stop", "open", "hold"),
    ("actuators.hand.gripper.max_silent_s", 9.0, 1.0),
    ("actuators.hand.gripper.closed", 0.3, 0.0),
    ("control_period_s", 10.0),
    ("safety.mode", "monitor"),
    ("safety.margins.position", 0.0),
    ("safety.margins.velocity", 1.0),
    ("safety.margins.joints", {"a": {"velocity": 1.0}}),
    ("safety.tracking.joints", {"a": None}),
    ("safety.watchdog.stop_steps", 100),
    ("safety.observation.require_stamp", False),
    ("safety.observation.required", []),
    ("safety.observation.required", [], ["joints"]),
    ("safety.tracking", None),
    ("safety.tracking.tolerance", 0.5),
    ("safety.latency.budget_s", 0.02, 0.01),
    ("safety.intervention.stop_share", None, 0.5),
    ("safety.gates.a", {"x": 2}, {"x": 1}),
    ("sensors.joints.max_age_s", 9.0),
    ("sensors.joints.timeline", "receive"),
    ("sensors.joints.fields.position.driver", [{}, {"sign": -1}]),
    ("sensors.bumper.on_gap", "hold", "stop"),
    ("sensors.range.frame", None, "front"),
    ("sensors.range.fields.range.no_return", 8.0),
    ("sensors.wrench.topic", "wrench_filtered"),
    ("sensors.motors.fields.effort.joints", ["a"]),
    ("backends.real.estop.button.topic", "elsewhere"),
    ("backends.real.estop", None),
    ("backends.real.downstream_timeout_s", None),
    ("backends.real.allow_no_downstream_timeout", True),
    ("backends.real.relay", False),
    ("backends.real.relay", "yes"),
    ("backends.real.start_outside", "inward"),
    ("backends.real.start_outside", {"a": "inward"}),
    ("backends.real.use_sim_time", True),
    ("backends.real.shared", ["joints"]),
    ("backends.real.discovery_s", 0.0),
    ("backends.real.step_timeout_s", 1e6),
    ("backends.real.clocks", {"joints": NO_SYNC}),
    ("backends.real.clocks", {"joints": NO_SYNC}, "auto"),
    ("backends.real.clocks", {"default": NO_SYNC}),
    ("backends.real.reset", {"confirm": ""}, {"confirm": "prompt"}),
    ("backends.real.reset", {"confirm_topic": "always_true"}, {"confirm": "topic"}),
    ("backends.real.reset", {"tolerance": 3.0}, HOME),
    ("backends.real.reset", {"speed": 0.9}, HOME),
    ("backends.real.reset", {"service": "go"}, HOME),
]

BASE = {"sensors.odom": SENSORS["odom"], "actuators.base": base(linear_x=0.5)}
OTHER_JOINTS = {"remove": ["actuators.arm", "sensors.joints", "safety.loads"], "sensors.other": states("x", "d", "e")}
FREE_ARM = {"actuators.arm": arm("a", "b", limits=UNLIMITED, command="velocity")}
TRAJECTORY = "trajectory_msgs/msg/JointTrajectory"
CLOUD = sensor(
    "cloud", "sensor_msgs/msg/PointCloud2", {"points": {"unit": "m", "low": -5.0, "high": 5.0, "shape": [8, 3]}}
)

ROUTES: dict = {  # changes of the robot file, of the contract, and the limit that is loosened
    "renamed joints": ({}, {**OTHER_JOINTS, "actuators.arm": arm("d", "e", limits=FAST)}, "actuators.arm.joints"),
    "renamed joints of another topic": (
        {},
        {**OTHER_JOINTS, "actuators.arm": arm("d", "e", limits=FAST, topic="velocity_controller/commands")},
        "actuators.arm.joints.d",
    ),
    "a second command of the same topic in a namespace": (
        {},
        {"actuators.other": arm("d", limits=FAST, topic="/robot_1/commands"), "sensors.other": states("x", "d")},
        "actuators.other.joints",
    ),
    "another order of values without names": (
        {},
        {"remove": ["actuators.arm"], "actuators.arm": arm("b", "a")},
        "actuators.arm.joints",
    ),
    "the first of values without names": ({}, {"remove": ["actuators.arm.joints.a"]}, "actuators.arm.joints"),
    "a joint of another actuator": (
        {},
        {"remove": ["actuators.arm"], "actuators.another": arm("a", "b", limits={**LIMITS, "velocity": 6.0})},
        "actuators.another.joints.a.velocity",
    ),
    "a further axis": (
        BASE,
        {"actuators.base": base(linear_x=0.5, linear_y=9.0)},
        "actuators.base.joints.linear.y",
    ),
    "another unit": (
        {},
        {"actuators.arm.joints.a.unit": "m", "sensors.joints.fields.position.unit": ["m", "rad"]},
        "actuators.arm.joints.a.unit",
    ),
    "no position limit": (
        {"actuators.arm.command": "velocity"},
        {"actuators.arm.joints.a.position": None},
        "actuators.arm.joints.a.position",
    ),
    "margins of an actuator": ({}, {"safety.margins.actuators.arm.position": 0.0}, "safety.margins.joints"),
    "tolerance of an actuator": ({}, {"safety.tracking.actuators.arm": 0.2}, "safety.tracking.joints"),
    "an older reading under another name": (
        {},
        {"remove": ["sensors.joints"], "sensors.other": states("/joint_states", "a", "b", max_age_s=9.0)},
        "sensors.other.max_age_s",
    ),
    "an older reading of the joints from another topic": (
        {},
        {"remove": ["sensors.joints"], "sensors.other": states("x", "a", "b", max_age_s=9.0)},
        "sensors.other.max_age_s",
    ),
    "readings of another sensor in other units": (
        {},
        {
            "remove": ["sensors.joints"],
            "sensors.other": states("x", "a", "b"),
            "sensors.other.fields.position.driver": {"scale": 2.0},
        },
        "sensors.other.fields",
    ),
    "joints that are not measured": (FREE_ARM, {"remove": ["sensors.joints"]}, "safety.observation.required"),
    "joints that only the evaluator sees": (
        FREE_ARM,
        {"sensors.joints.visibility": "evaluator"},
        "sensors.joints.visibility",
    ),
    "another shape": (
        {"safety.workspace.self_collision": True, "backends.mujoco.model": "arm6.xml"},
        {"backends.mujoco.model": "cart.xml"},
        "safety.workspace",
    ),
    "all safety": (
        {"safety": {"margins": {"velocity": 0.5}}},
        {"remove": ["safety"], "safety": {}},
        "safety.margins.velocity",
    ),
    "a removed force limit": ({}, {"remove": ["safety.forces.wrench"]}, "safety.forces"),
    "a mask on the odometry of a base": (
        BASE,
        {"sensors.odom.mask": True},
        "safety.observation.required",
    ),
    "no odometry of a base": (
        BASE,
        {"remove": ["sensors.odom"]},
        "safety.observation.required",
    ),
    "another profile": (
        {},
        {"remove": ["backends.real"], "backends.real": {"downstream_timeout_s": 0.5, "relay": True}},
        "backends.real.estop",
    ),
    "a removed e-stop": ({}, {"remove": ["backends.real.estop.button"]}, "backends.real.estop"),
    "no reset": (
        {"backends.real.reset": {"confirm": "prompt"}},
        {"remove": ["backends.real.reset"]},
        "backends.real.reset",
    ),
    "trajectories": (
        {"actuators.arm": arm("a", "b", type=TRAJECTORY, trajectory_steps=4)},
        {"actuators.arm.trajectory_steps": None},
        "actuators.arm.trajectory_steps",
    ),
    "a finger more": (
        {"actuators.hand": arm("c", topic="hand", gripper=GRIPPER)},
        {"actuators.hand.gripper.mimic": {"d": 1.0}},
        "actuators.hand.gripper.mimic",
    ),
    "padding of a cloud": (
        {"sensors.cloud": CLOUD},
        {"sensors.cloud.fields.points.shape": None, "sensors.cloud.fields.points.points": {"count": 8, "pad": 5.0}},
        "sensors.cloud.fields",
    ),
}


def check_loosened(folder, robot, contract):
    """Return the limit for which a contract is refused unless it overrides it."""
    whole = nested({**WHOLE, **robot}, robot_document())
    with pytest.raises(ContractError, match="loosens") as caught:
        load_contract(write(folder, whole, **nested(contract)))
    overridden = load_contract(write(folder, whole, **nested(contract), override_robot_limits=True))
    assert caught.value.path in overridden.robot.overridden
    assert set(overridden.robot.overridden) <= limit_paths(overridden)
    return caught.value.path


@pytest.mark.parametrize("row", LOOSER, ids=lambda row: f"{row[0]} {row[1]}")
def test_no_value_of_a_key_is_looser(tmp_path, row):
    key, own, *theirs = row
    found = check_loosened(tmp_path, {key: theirs[0]} if theirs else {}, {key: own})
    assert f"{key}.".startswith(f"{found}.")


@pytest.mark.parametrize("name", ROUTES)
def test_no_path_loosens_a_limit(tmp_path, name):
    robot, contract, path = ROUTES[name]
    assert check_loosened(tmp_path, robot, contract) == path


def test_additional_sensors_may_be_required(tmp_path):
    path = write(tmp_path, safety={"observation": {"required": ["joints", "tcp"]}})
    assert load_contract(path).robot.overridden == ()


def test_a_robot_may_get_a_gripper_with_a_separate_topic(tmp_path):
    own = {"gripper": arm("finger", limits=FAST, topic="gripper/commands")}
    sensors = {"gripper": states("gripper/joint_states", "finger")}
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
    for remove in (None, 5, [5], [["a"]], [""], ["."], ["sensors."], ["sensors..x"], ["sensors.nothing"], ["name"]):
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
    robot = robot_document(backends={"fake": {}}, actuators={"arm": arm("a")})
    action = {"type": "control_msgs/action/GripperCommand", "gripper": {"open": 2.0, "closed": 0.5}}
    assert path_refused(write(tmp_path, robot, actuators={"arm": action})) == "actuators.arm.type"
