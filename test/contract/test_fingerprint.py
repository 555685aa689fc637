"""The fingerprint covers everything that affects a result, and nothing else."""

from __future__ import annotations

import dataclasses
import importlib
import json

import pytest
from strategies import ABSENT, changed, document, parse

from embodied_env.contract import parse_contract
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
        ("episode.kind", "finite_horizon"),
        ("sensors.tcp.type", "geometry_msgs/msg/PointStamped"),
        ("sensors.tcp.rate_hz", 10),
        ("sensors.tcp.mask", True),
        ("sensors.joints.fields.position.low", -4.1),
        ("sensors.joints.fields.position.joints", ["b", "a"]),
        ("applied_actions", 1),
        ("actuators.arm.command", "velocity"),
        ("actuators.arm.type", "sensor_msgs/msg/JointState"),
        ("actuators.arm.joints", {"b": JOINTS["b"], "a": JOINTS["a"]}),
        ("actuators.arm.joints.a.position", [-1.0, 2.1]),
        ("actuators.arm.joints.a.deceleration", 9.0),
        ("safety.mode", "monitor"),
        ("safety.watchdog", {"hold_steps": 1}),
        ("reset_options.target.high", [0.5, 0.5, 0.6]),
        ("task.success_radius_m", 0.04),
    ],
)
def test_relevant_changes_change_fingerprint(path, value):
    assert parse(changed(path, value)).fingerprint != SMALL.fingerprint


def test_the_order_of_keys_keeps_the_fingerprint():
    assert parse(dict(reversed(document().items()))).fingerprint == SMALL.fingerprint
    task = document()["task"]
    assert parse(changed("task", dict(reversed(task.items())))).fingerprint == SMALL.fingerprint


def test_every_key_of_a_sensor_and_an_actuator_but_topic_and_qos_is_covered():
    plain, found = to_plain(SMALL, with_defaults=True), meaning(SMALL, with_defaults=True)
    for group in ("sensors", "actuators"):
        for name, spec in plain[group].items():
            assert found[group][name] == {key: value for key, value in spec.items() if key not in ("topic", "qos")}
    assert found["safety"] == plain["safety"]


def test_the_order_of_actuators_changes_the_fingerprint():
    arm = document()["actuators"]["arm"]
    one, two = ({**arm, "topic": joint, "joints": {joint: JOINTS[joint]}} for joint in JOINTS)
    forth = parse(changed("actuators", {"one": one, "two": two}))
    back = parse(changed("actuators", {"two": two, "one": one}))
    assert forth.fingerprint != back.fingerprint


def test_equal_numbers_share_a_fingerprint_and_true_is_no_number():
    one, one_point_zero, true = (parse(changed("task.weight", weight)).fingerprint for weight in (1, 1.0, True))
    assert one == one_point_zero != true


def test_the_fingerprint_document_has_versions_of_schema_semantics_and_shipped_task():
    found = meaning(SMALL)
    assert (found["schema"], found["semantics"]) == ("embodied_env/1", SEMANTICS)
    assert found["task"]["version"] == SHIPPED_TASKS["reach"][1]


def test_a_backend_fingerprint_covers_name_and_profile():
    other = parse(changed("backends.fake.noise", [0.3]))
    assert other.backend_fingerprint("fake") != SMALL.backend_fingerprint("fake")
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
    (tmp_path / "one.urdf").unlink()  # it was read with the contract
    assert with_urdf(tmp_path, "other.urdf", ROBOT).fingerprint == one.fingerprint
    assert with_urdf(tmp_path, "one.urdf", ROBOT.replace('effort="1"', 'effort="2"')).fingerprint != one.fingerprint


def test_unread_file_content_has_no_fingerprint():
    contract = dataclasses.replace(SMALL, safety=dataclasses.replace(SMALL.safety, urdf="arm.urdf"))
    with pytest.raises(ContractError, match=r"content not known: 'arm\.urdf'"):
        contract.fingerprint  # noqa: B018 - it is computed when it is read


def test_opposite_velocity_limits_are_one_number_and_others_change_the_fingerprint():
    path, same = "actuators.arm.joints.a.velocity", parse(changed("actuators.arm.joints.a.velocity", [-3.0, 3.0]))
    assert (same, same.fingerprint) == (SMALL, SMALL.fingerprint)
    other = parse(changed(path, [-1.0, 3.0]))
    assert differences(meaning(SMALL), meaning(other)) == [(path, 3, [-1, 3])]


def test_joint_order_is_a_difference():
    swapped = parse(changed("actuators.arm.joints", {"b": JOINTS["b"], "a": JOINTS["a"]}))
    assert differences(meaning(SMALL), meaning(swapped)) == [("joint_order[0]", "a", "b"), ("joint_order[1]", "b", "a")]


@pytest.mark.parametrize(
    ("a", "b", "found"),
    [
        ({"x": 1}, {}, [("x", 1, None)]),
        ({}, {"x": None}, [("x", None, None)]),
        ({"x": [1, 2]}, {"x": [1, 3]}, [("x[1]", 2, 3)]),
        ({"x": {"y": 1}}, {"x": 1}, [("x", {"y": 1}, 1)]),
        ({"x": 1}, {"x": True}, [("x", 1, True)]),
    ],
)
def test_differences_are_listed_with_their_paths(a, b, found):
    assert differences(a, b) == found
