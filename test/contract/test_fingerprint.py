"""The fingerprint covers everything that affects a result, and nothing else."""

from __future__ import annotations

import dataclasses
import importlib
import json

import pytest
import yaml
from strategies import ABSENT, changed, document, parse

from embodied_env.contract import load_contract, parse_contract
from embodied_env.contract.contract_schema import EACH_ITS_OWN
from embodied_env.contract.fingerprint import SEMANTICS, SHIPPED_TASKS, differences, meaning, to_plain
from embodied_env.errors import ContractError
from embodied_env.plugins.plugin_table import BUILT_IN
from embodied_env.tasks import find_task

SMALL = parse(document())
JOINTS = document()["actuators"]["arm"]["joints"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("name", "another"),
        ("sensors.tcp.topic", "elsewhere"),
        ("actuators.arm.topic", "elsewhere"),
        ("backends.fake.noise", [0.3]),
        ("backends.mujoco", {"model": "arm6.xml"}),
        ("backends", ABSENT),
        ("safety", {"margins": {"position": 0.02}}),  # the rest are the defaults
        ("sensors.tcp.on_gap", "hold"),
        ("sensors.tcp.rate_hz", 0),
        ("sensors.tcp.confidence_radius_m", 0.1),
        ("applied_actions", 0),
        ("task.instruction", "reach the target"),
        ("sensors.joints.fields.position.low", -4),  # written as -4.0
    ],
)
def test_irrelevant_changes_keep_fingerprint(path, value):
    assert parse(changed(path, value)).fingerprint == SMALL.fingerprint


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("version", 2),
        ("control_period_s", 0.1),
        ("episode.horizon_steps", 21),
        ("episode.kind", "finite_horizon"),
        ("sensors.tcp.type", "geometry_msgs/msg/PointStamped"),
        ("sensors.tcp.max_age_s", 0.2),
        ("sensors.tcp.rate_hz", 10),
        ("sensors.tcp.on_gap", "stop"),
        ("sensors.tcp.visibility", "evaluator"),
        ("sensors.tcp.mask", True),
        ("sensors.tcp.timeline", "receive"),
        ("sensors.tcp.frame", "base_link"),
        ("sensors.tcp.confidence_radius_m", 0.2),
        ("sensors.tcp.fields.position.path", "pose.position"),
        ("applied_actions", 1),
        ("sensors.joints.fields.position.low", -4.1),
        ("sensors.joints.fields.position.joints", ["b", "a"]),
        ("actuators.arm.command", "position_delta"),
        ("actuators.arm.command", "velocity"),
        ("actuators.arm.type", "sensor_msgs/msg/JointState"),
        ("actuators.arm.scale", "physical"),
        ("actuators.arm.joints", {"b": JOINTS["b"], "a": JOINTS["a"]}),
        ("actuators.arm.joints.a.position", [-1.0, 2.1]),
        ("actuators.arm.joints.a.velocity", 3.1),
        ("actuators.arm.joints.a.acceleration", 8.1),
        ("actuators.arm.joints.a.deceleration", 9.0),
        ("safety.mode", "monitor"),
        ("safety.margins.position", 0.03),
        ("safety.nonfinite", {"stop_after": 4}),
        ("safety.observation", {"require_stamp": False}),
        ("safety.watchdog", {"hold_steps": 1}),
        ("reset_options.target.high", [0.5, 0.5, 0.6]),
        ("task.success_radius_m", 0.04),
    ],
)
def test_relevant_changes_change_fingerprint(path, value):
    assert parse(changed(path, value)).fingerprint != SMALL.fingerprint


def test_the_unit_changes_the_fingerprint():
    source = changed("sensors.joints.fields.position.unit", "m")
    for joint in JOINTS:
        source = changed(f"actuators.arm.joints.{joint}.unit", "m", source)
    assert parse(source).fingerprint != SMALL.fingerprint


def test_the_order_of_actuators_changes_the_fingerprint():
    arm = document()["actuators"]["arm"]
    one, two = ({**arm, "topic": joint, "joints": {joint: JOINTS[joint]}} for joint in JOINTS)
    forth = parse(changed("actuators", {"one": one, "two": two}))
    back = parse(changed("actuators", {"two": two, "one": one}))
    assert forth.fingerprint != back.fingerprint


def test_formatting_does_not_change_fingerprint():
    backwards = dict(reversed(document().items()))
    text = "# a comment\n" + yaml.safe_dump(backwards, sort_keys=False).replace(
        "control_period_s: 0.05", "control_period_s: 5e-2"
    )
    assert parse_contract(text).fingerprint == SMALL.fingerprint


def test_int_and_equal_float_parameters_share_a_fingerprint():
    one, one_point_zero = (parse(changed("task.weight", weight)) for weight in (1, 1.0))
    assert one.fingerprint == one_point_zero.fingerprint


def test_true_and_one_parameters_have_different_fingerprints():
    assert parse(changed("task.weight", True)).fingerprint != parse(changed("task.weight", 1)).fingerprint


def test_the_fingerprint_is_a_sha256_in_hex():
    assert len(bytes.fromhex(SMALL.fingerprint)) == 32


SCAN = {"type": "sensor_msgs/msg/LaserScan", "topic": "scan", "max_age_s": 0.1}
RANGES = {"unit": "m", "low": 0, "high": 8, "shape": [3]}
PICTURE = {"type": "sensor_msgs/msg/Image", "topic": "image", "max_age_s": 0.1, "encoding": "rgb8"}
PIXELS = {"image": {"unit": "1", "low": 0, "high": 255, "shape": [2, 2, 3]}}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({**SCAN, "fields": {"ranges": RANGES}}, {**SCAN, "fields": {"ranges": {**RANGES, "shape": [4]}}}),
        ({**SCAN, "fields": {"ranges": RANGES}}, {**SCAN, "fields": {"ranges": {**RANGES, "no_return": 8}}}),
        ({**SCAN, "fields": {"ranges": RANGES}}, {**SCAN, "fields": {"ranges": {**RANGES, "nan": 0}}}),
        ({**PICTURE, "fields": PIXELS}, {**PICTURE, "fields": PIXELS, "encoding": "bgr8"}),
    ],
)
def test_message_type_and_path_change_fingerprint(one, other):
    assert parse(changed("sensors.extra", one)).fingerprint != parse(changed("sensors.extra", other)).fingerprint


@pytest.mark.parametrize("name", ["arm_reach", "cart_goal", "door_open"])
def test_a_shipped_contract_has_a_fingerprint(name):
    assert len(load_contract(name).fingerprint) == 64


def test_the_fingerprint_document_has_schema_and_semantics_versions():
    assert meaning(SMALL)["schema"] == "embodied_env/1"
    assert meaning(SMALL)["semantics"] == SEMANTICS


def test_a_backend_fingerprint_covers_the_profile():
    other = parse(changed("backends.fake.noise", [0.3]))
    assert other.backend_fingerprint("fake") != SMALL.backend_fingerprint("fake")


def test_a_backend_fingerprint_covers_the_name():
    twins = parse(changed("backends", {"a": {}, "b": {}}))
    assert twins.backend_fingerprint("a") != twins.backend_fingerprint("b")


@pytest.mark.parametrize("type_", ["nowhere.at_all:Task", "nowhere/at_all.py:Task"])
def test_a_fingerprint_needs_no_task(type_):
    assert len(parse(changed("task.type", type_)).fingerprint) == 64


def test_the_folder_of_a_task_file_changes_no_fingerprint():
    files = ("hover.py", "./hover.py", "../tasks/hover.py", "./other.py")
    assert len({parse(changed("task.type", f"{file}:Hover")).fingerprint for file in files}) == 2


@pytest.mark.parametrize("name", sorted({*SHIPPED_TASKS, *BUILT_IN["tasks"]} - {EACH_ITS_OWN}))
def test_the_table_of_shipped_tasks_has_the_version_of_each_class(name):
    module, _, attribute = find_task(parse(changed("task.type", name))).partition(":")
    assert getattr(importlib.import_module(module), attribute).version == SHIPPED_TASKS[name][1]


def test_the_version_of_a_shipped_task_is_part_of_the_fingerprint():
    assert meaning(SMALL)["task"]["version"] == SHIPPED_TASKS["reach"][1]


ROBOT = """<robot name="r"><link name="base"/><link name="one"/><link name="two"/>{}</robot>""".format(
    "".join(
        f'<joint name="{name}" type="revolute"><parent link="{parent}"/><child link="{child}"/>'
        '<limit lower="-1" upper="2" velocity="3" effort="1"/></joint>'
        for name, parent, child in (("a", "base", "one"), ("b", "one", "two"))
    )
)


def with_urdf(folder, name, text):
    (folder / name).write_text(text)
    return parse_contract(json.dumps(changed("safety.urdf", name)), source=str(folder / "arm.yaml"))


def test_fingerprint_covers_file_content_not_path(tmp_path):
    one = with_urdf(tmp_path, "one.urdf", ROBOT)
    assert with_urdf(tmp_path, "other.urdf", ROBOT).fingerprint == one.fingerprint
    assert with_urdf(tmp_path, "one.urdf", ROBOT.replace('effort="1"', 'effort="2"')).fingerprint != one.fingerprint


def test_fingerprint_uses_content_read_with_the_contract(tmp_path):
    contract = with_urdf(tmp_path, "one.urdf", ROBOT)
    (tmp_path / "one.urdf").unlink()
    assert len(contract.fingerprint) == 64


def test_unread_file_content_has_no_fingerprint():
    contract = dataclasses.replace(SMALL, safety=dataclasses.replace(SMALL.safety, urdf="arm.urdf"))
    with pytest.raises(ContractError, match=r"content not known: 'arm\.urdf'"):
        contract.fingerprint  # noqa: B018 - it is computed when it is read


def test_opposite_velocity_limits_are_one_number_and_others_change_the_fingerprint():
    path, same = "actuators.arm.joints.a.velocity", parse(changed("actuators.arm.joints.a.velocity", [-3.0, 3.0]))
    assert (same, same.fingerprint) == (SMALL, SMALL.fingerprint)
    other = parse(changed(path, [-1.0, 3.0]))
    assert differences(meaning(SMALL), meaning(other)) == [(path, 3, [-1, 3])]


def test_a_difference_names_the_path_and_both_values():
    other = parse(changed("actuators.arm.joints.a.velocity", 4.0))
    assert differences(meaning(SMALL), meaning(other)) == [("actuators.arm.joints.a.velocity", 3, 4)]


def test_joint_order_is_a_difference():
    swapped = parse(changed("actuators.arm.joints", {"b": JOINTS["b"], "a": JOINTS["a"]}))
    assert differences(meaning(SMALL), meaning(swapped)) == [("joint_order[0]", "a", "b"), ("joint_order[1]", "b", "a")]


@pytest.mark.parametrize(
    ("a", "b", "found"),
    [
        ({"x": 1}, {"x": 1}, []),
        ({"x": 1}, {}, [("x", 1, None)]),
        ({}, {"x": None}, [("x", None, None)]),
        ({"x": [1, 2]}, {"x": [1, 3]}, [("x[1]", 2, 3)]),
        ({"x": [1]}, {"x": [1, 2]}, [("x", [1], [1, 2])]),
        ({"x": {"y": 1}}, {"x": 1}, [("x", {"y": 1}, 1)]),
        ({"x": 1}, {"x": True}, [("x", 1, True)]),
    ],
)
def test_differences_are_listed_with_their_paths(a, b, found):
    assert differences(a, b) == found


def test_plain_values_are_json():
    plain = to_plain(SMALL)
    assert json.loads(json.dumps(plain)) == plain
    assert plain["episode"] == {"horizon_steps": 20, "kind": "time_limit"}
