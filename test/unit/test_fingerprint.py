"""The fingerprint covers what gives a result its meaning, and nothing else."""

from __future__ import annotations

import importlib
import json
import sys

import pytest
import yaml
from strategies import ABSENT, changed, document, parse

from embodied_env.contract import load_contract, parse_contract
from embodied_env.contract.fingerprint import SEMANTICS, differences, meaning, task_class, to_plain
from embodied_env.errors import ContractError

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
        ("sensors.joints.fields.position.low", -4),  # written -4.0
    ],
)
def test_what_does_not_change_the_meaning_does_not_change_the_fingerprint(path, value):
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
def test_what_changes_the_meaning_changes_the_fingerprint(path, value):
    assert parse(changed(path, value)).fingerprint != SMALL.fingerprint


def test_the_unit_changes_the_fingerprint():
    source = changed("sensors.joints.fields.position.unit", "m")
    for joint in JOINTS:
        source = changed(f"actuators.arm.joints.{joint}.unit", "m", source)
    assert parse(source).fingerprint != SMALL.fingerprint


def test_the_order_of_actuators_changes_the_fingerprint_since_it_orders_the_joints():
    arm = document()["actuators"]["arm"]
    one, two = ({**arm, "topic": joint, "joints": {joint: JOINTS[joint]}} for joint in JOINTS)
    forth = parse(changed("actuators", {"one": one, "two": two}))
    back = parse(changed("actuators", {"two": two, "one": one}))
    assert forth.fingerprint != back.fingerprint


def test_comments_the_order_of_keys_and_the_way_numbers_are_written_do_not_change_the_fingerprint():
    backwards = dict(reversed(document().items()))
    text = "# a comment\n" + yaml.safe_dump(backwards, sort_keys=False).replace(
        "control_period_s: 0.05", "control_period_s: 5e-2"
    )
    assert parse_contract(text).fingerprint == SMALL.fingerprint


def test_one_and_one_point_zero_are_one_number_in_free_parameters():
    one, one_point_zero = (parse(changed("task.weight", weight)) for weight in (1, 1.0))
    assert one.fingerprint == one_point_zero.fingerprint


def test_true_and_one_are_two_values_in_free_parameters():
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
def test_what_is_read_from_a_message_changes_the_fingerprint(one, other):
    assert parse(changed("sensors.extra", one)).fingerprint != parse(changed("sensors.extra", other)).fingerprint


@pytest.mark.parametrize("name", ["arm_reach", "cart_goal", "door_open"])
def test_a_shipped_contract_has_a_fingerprint(name):
    assert len(load_contract(name).fingerprint) == 64


def test_the_meaning_names_the_schema_and_the_semantics():
    assert meaning(SMALL)["schema"] == "embodied_env/1"
    assert meaning(SMALL)["semantics"] == SEMANTICS


def test_a_backend_fingerprint_covers_the_profile():
    other = parse(changed("backends.fake.noise", [0.3]))
    assert other.backend_fingerprint("fake") != SMALL.backend_fingerprint("fake")


def test_a_backend_fingerprint_covers_the_name():
    twins = parse(changed("backends", {"a": {}, "b": {}}))
    assert twins.backend_fingerprint("a") != twins.backend_fingerprint("b")


HOVER = "class Hover:\n    version = 1\n"


@pytest.fixture
def hover(tmp_path, monkeypatch):
    """Return a function that writes a task of a third party and gives a contract with it."""

    def write(source):
        (tmp_path / "hover_task.py").write_text(source)
        monkeypatch.delitem(sys.modules, "hover_task", raising=False)
        importlib.invalidate_caches()
        return parse(changed("task", {"type": "hover_task:Hover"}))

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield write
    sys.modules.pop("hover_task", None)


def test_the_version_of_the_task_changes_the_fingerprint(hover):
    contract, again = hover(HOVER), parse(changed("task", {"type": "hover_task:Hover"}))
    before = contract.fingerprint
    task_class(again).version = 2
    assert again.fingerprint != before


def test_the_source_of_a_task_from_outside_changes_the_fingerprint(hover):
    before = hover(HOVER).fingerprint
    assert hover(HOVER + "    # and a line more\n").fingerprint != before


def test_the_source_of_our_own_tasks_is_not_covered():
    assert "source_sha256" not in meaning(SMALL)["task"]


@pytest.mark.parametrize(
    ("type_", "problem"),
    [
        ("nowhere.at_all:Task", "'nowhere.at_all:Task' cannot be imported: No module named 'nowhere'"),
        ("json:Task", "'json:Task' cannot be imported: module 'json' has no attribute 'Task'"),
        ("json:dumps", "'json:dumps' is not a class"),
        ("builtins:dict", "the source of 'builtins:dict' cannot be read"),
    ],
)
def test_a_task_that_cannot_be_identified_is_refused(type_, problem):
    with pytest.raises(ContractError) as caught:
        parse(changed("task.type", type_)).fingerprint  # noqa: B018 - it is computed when it is read
    assert caught.value.path == "task.type"
    assert caught.value.problem.startswith(problem)


def test_a_difference_names_the_path_and_both_values():
    other = parse(changed("actuators.arm.joints.a.velocity", 4.0))
    assert differences(meaning(SMALL), meaning(other)) == [("actuators.arm.joints.a.velocity", 3, 4)]


def test_another_order_of_joints_is_a_difference():
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
def test_differences_are_listed_where_they_are(a, b, found):
    assert differences(a, b) == found


def test_plain_values_are_json():
    plain = to_plain(SMALL)
    assert json.loads(json.dumps(plain)) == plain
    assert plain["episode"] == {"horizon_steps": 20, "kind": "time_limit"}
