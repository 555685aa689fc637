"""The audit of a transition: sound rows have no problem, and each contradiction has exactly one, by name."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import math
import re
import types
from importlib import resources

import gymnasium
import numpy as np
import pytest
import strategies
from delayed_fake import FakeDelays
from gymnasium.wrappers import RescaleAction, TimeLimit, TransformObservation, TransformReward
from scripted_tasks import OneClock

from embodied_env.backends.fake import Fault
from embodied_env.contract import load_contract
from embodied_env.core.clock import ManualClock
from embodied_env.core.codes import Quality
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.errors import UsageError
from embodied_env.record import RecordTransitions, audit_transition, read_run
from embodied_env.safety import GATES

STEP = json.loads(resources.files("embodied_env").joinpath("info.schema.json").read_text())["$defs"]["step"]
PLAIN = {
    "observation": {"position": 3},
    "action": "right",
    "reward": 1.0,
    "terminated": True,
    "truncated": False,
    "info": {"latency_ms": 12, "action_clipped": False, "wrapper_version": "v2"},
}
ABSENT = strategies.ABSENT

LIMITS = GATES.index("joint_limits")


def by_gate(**numbers):
    """Return one number per gate, 0 for those that are not named."""
    return [numbers.get(gate, 0) for gate in GATES]


def changed(row, **changes):
    """Return a copy of `row` with each value at its path (``__`` is a dot, a number an index), or without it."""
    result = copy.deepcopy(row)
    for path, value in changes.items():
        *parents, last = [int(part) if part.isdigit() else part for part in path.split("__")]
        node = functools.reduce(lambda found, part: found[part], parents, result)
        if value is ABSENT:
            del node[last]
        else:
            node[last] = value
    return result


# ------------------------------------------------------------------------------------------------------- the plain rules


def test_a_plain_row_of_anybody_is_sound():
    assert audit_transition(PLAIN) == []


def test_rows_with_arrays_as_step_returns_them_are_sound():
    row = {**PLAIN, "observation": {"image": np.zeros((2, 2))}, "action": np.zeros(2), "reward": np.float32(0.5)}
    assert audit_transition({**row, "terminated": np.bool_(False), "truncated": np.bool_(True)}) == []


@pytest.mark.parametrize("field", PLAIN)
def test_a_required_field_that_is_missing_is_named(field):
    (problem,) = audit_transition(changed(PLAIN, **{field: ABSENT}))
    assert problem == f"{field} is missing; a transition has observation, action, reward, terminated, truncated, info"


@pytest.mark.parametrize("key", PLAIN["info"])
def test_a_required_key_of_info_that_is_missing_is_named(key):
    (problem,) = audit_transition(changed(PLAIN, **{f"info__{key}": ABSENT}))
    assert problem.startswith(f"info.{key} is missing; the info of a transition has latency_ms")


@pytest.mark.parametrize(
    ("path", "value", "allowed"),
    [
        *(("reward", value, "a finite number") for value in (math.nan, math.inf, True, np.True_, "1", None, [1.0])),
        *(("terminated", value, "true or false") for value in (0, 1.0, "no", None)),
        *(("truncated", value, "true or false") for value in (0, 1.0, "no", None)),
        *(("info", value, "a mapping") for value in (None, [], "info", 3)),
        *(("info__latency_ms", value, "a finite number >= 0") for value in (-0.1, math.nan, math.inf, True, "1", None)),
        *(("info__action_clipped", value, "true or false") for value in (0, "no", None)),
        *(("info__wrapper_version", value, "text that is not empty") for value in ("", 2, None)),
    ],
)
def test_a_value_of_a_wrong_type_is_named_with_what_is_allowed(path, value, allowed):
    (problem,) = audit_transition(changed(PLAIN, **{path: value}))
    assert problem == f"{path.replace('__', '.')} is {value!r}; allowed: {allowed}"


@pytest.mark.parametrize("reward", [0, -3, 10**400, np.float64(1.5), np.int64(2)])
def test_every_finite_number_is_a_reward(reward):
    assert audit_transition({**PLAIN, "reward": reward}) == []


def test_a_transition_does_not_end_both_ways():
    (problem,) = audit_transition({**PLAIN, "truncated": True})
    assert problem == "terminated and truncated are both true; allowed: one of them, or none"


def test_every_problem_is_named_at_once():
    row = {**changed(PLAIN, action=ABSENT, info__latency_ms=-1.0), "reward": None}
    assert [problem.split(" is ")[0] for problem in audit_transition(row)] == ["action", "reward", "info.latency_ms"]


@pytest.mark.parametrize("schema", ["somebody/1", 5, None])
def test_the_schema_of_somebody_else_is_not_ours_to_judge(schema):
    assert audit_transition({**PLAIN, "schema": schema}) == []


# ------------------------------------------------------------------------------------------------------ recorded worlds


def small(**settings):
    """Return a contract whose tip stands where reset(options={"tcp": ...}) puts it, in the fake world."""
    document = strategies.document()
    document["reset_options"]["tcp"] = document["reset_options"]["target"]
    document["sensors"]["joints"]["mask"] = True
    for path, value in settings.items():
        document = strategies.changed(path.replace("__", "."), value, document)
    return strategies.parse(document)


def two_actuators():
    limits = strategies.document()["actuators"]["arm"]["joints"]["a"]
    actuator = {"type": "std_msgs/msg/Float64MultiArray", "command": "position_delta"}
    return small(
        actuators={
            "left": {**actuator, "topic": "left", "joints": {"a": limits}},
            "right": {**actuator, "topic": "right", "joints": {"b": limits}},
        }
    )


def arm(**options):
    return EmbodiedEnv("arm_reach", **{"backend": "fake", **options})


FAULTS = [Fault(kind=kind, step=2 + i) for i, kind in enumerate(("drop", "nan", "stale", "future"))]
DELAYS = FakeDelays(driver_s=0.002, transport_s=0.001, queue_s=0.0005, publish_s=0.003, actuation_s=0.02)
SAME = {"tcp": [0.3, 0.3, 0.3], "target": [0.3, 0.3, 0.3]}
MALFORMED = [[math.nan] * 6, np.zeros(3), "left", None, [1e308] * 6, np.full(6, 2.0), object(), [True] * 6, {"arm": 1}]


def monitored():
    contract = load_contract("arm_reach")
    return dataclasses.replace(contract, safety=dataclasses.replace(contract.safety, mode="monitor"))


def scripts(actions):
    """Return actions one after the other, then over again."""
    return lambda _env, step: actions[step % len(actions)]


def sampled(env, _step):
    return env.action_space.sample()


WORLDS = {  # environment, what acts, steps, options of reset
    "fake": (arm, sampled, 12, None),
    "fake with malformed actions": (arm, lambda e, k: MALFORMED[k // 2 % 9] if k % 2 else sampled(e, k), 20, None),
    "fake with faults": (lambda: arm(faults=FAULTS), sampled, 8, None),
    "fake that is lost": (lambda: arm(faults=[Fault(kind="refuse", step=3)]), sampled, 3, None),
    "fake that is late": (
        lambda: arm(faults=[Fault(kind="delay", step=3, delay_s=9.0)], clock=ManualClock()), sampled, 3, None,
    ),
    "fake that runs freely": (lambda: arm(free_running=True, clock=ManualClock()), sampled, 6, None),
    "fake with delays": (
        lambda: arm(backend="delayed_fake", clock=OneClock(start_ns=1), delays=DELAYS), sampled, 4, None,
    ),
    "fake under a virtual clock": (lambda: arm(clock="virtual"), sampled, 6, None),
    "fake, the evaluator's info": (lambda: arm(evaluator_info=True), sampled, 3, None),
    "fake that only monitors": (lambda: EmbodiedEnv(monitored(), backend="fake"), scripts(MALFORMED[4:6]), 6, None),
    "stopped after malformed actions": (arm, scripts(MALFORMED[:1]), 3, None),
    "success": (lambda: EmbodiedEnv(small(), backend="fake"), sampled, 1, SAME),
    "time limit": (lambda: EmbodiedEnv(small(episode__horizon_steps=3), backend="fake"), sampled, 3, None),
    "finite horizon": (
        lambda: EmbodiedEnv(small(episode={"horizon_steps": 3, "kind": "finite_horizon"}), backend="fake"), sampled, 3, None,
    ),
    "sensor gap": (
        lambda: EmbodiedEnv(small(sensors__tcp__on_gap="stop"), backend="fake", faults=FAULTS[:1]), sampled, 2, None,
    ),
    "two actuators": (lambda: EmbodiedEnv(two_actuators(), backend="fake"), sampled, 4, None),
    "two actuators, malformed": (
        lambda: EmbodiedEnv(two_actuators(), backend="fake"), scripts([{"left": [0.0]}, np.zeros(2)]), 2, None,
    ),
    "mujoco": (lambda: EmbodiedEnv("arm_reach", backend="mujoco"), sampled, 12, None),
    "mujoco with malformed actions": (
        lambda: EmbodiedEnv("arm_reach", backend="mujoco"), lambda e, k: MALFORMED[k // 2 % 9] if k % 2 else sampled(e, k), 18, None,
    ),
}  # fmt: skip


@functools.cache
def play(name, folder):
    """Return the contract of a world, the rows recorded of an episode in it, and the same rows as step returned them."""
    make, act, steps, options = WORLDS[name]
    env = RecordTransitions(make(), folder)
    env.reset(seed=4, options=options)
    env.action_space.seed(4)
    returned = []
    for step in range(steps):
        if step % 2:
            env.unwrapped.mark("policy")
        action = act(env, step)
        row = dict(zip(("observation", "reward", "terminated", "truncated", "info"), env.step(action), strict=True))
        returned.append({**row, "action": action})
    env.close()
    return env.unwrapped.contract, list(read_run(env.path).transitions()), returned


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("audited")


@pytest.fixture(params=WORLDS)
def world(request, folder):
    if "mujoco" in request.param:
        pytest.importorskip("mujoco")
    return play(request.param, folder)


def test_every_recorded_row_is_sound(world):
    _, rows, _ = world
    assert [audit_transition(row) for row in rows] == [[]] * len(rows)


def test_every_recorded_row_is_sound_under_its_contract(world):
    contract, rows, _ = world
    assert [audit_transition(row, contract) for row in rows] == [[]] * len(rows)


def test_what_step_returned_is_sound_under_its_contract(world):
    contract, _, returned = world
    assert [audit_transition(row, contract) for row in returned] == [[]] * len(returned)


def test_the_worlds_end_in_every_way_that_the_fake_knows(folder):
    ends = {play(name, folder)[1][-1]["info"]["end_reason"] for name in WORLDS if "mujoco" not in name}
    assert ends >= {
        "", "success", "time_limit", "horizon", "sensor_gap:tcp", "safety_stop:form.repeated",
        "backend_lost:refused", "backend_lost:timeout",
    }  # fmt: skip


# ------------------------------------------------------------------------------------- one contradiction, one problem


@pytest.fixture
def rows(folder):
    """Give sound rows by name, of contracts that differ."""
    return {
        "first": play("fake", folder)[1][0],
        "second": play("fake", folder)[1][1],
        "refused": play("stopped after malformed actions", folder)[1][0],
        "lost": play("fake that is lost", folder)[1][-1],
        "success": play("success", folder)[1][-1],
        "time_limit": play("time limit", folder)[1][-1],
        "delayed": play("fake with delays", folder)[1][1],
        "monitored": play("fake that only monitors", folder)[1][1],
    }


@pytest.fixture
def still(tmp_path):
    """Give a row whose action passed every gate."""
    env = RecordTransitions(arm(), tmp_path)
    env.reset(seed=1)
    env.step(np.zeros(6))
    env.close()
    (row,) = read_run(env.path).transitions()
    assert row["info"]["safety"]["disposition"] == 0
    return row


def the_problem(row, contract=None):
    (problem,) = audit_transition(row, contract)
    return problem


@pytest.mark.parametrize("key", STEP["required"])
def test_a_missing_key_of_info_is_named(rows, key):
    assert the_problem(changed(rows["first"], **{f"info__{key}": ABSENT})).startswith(f"info.{key} is missing")


INNER = (
    "observation action reward terminated truncated end_reasons findings stamps_ns report circumstances now_ns sensors "
    "clock actuation evaluator"
)


@pytest.mark.parametrize("key", INNER.split())
def test_a_missing_key_of_the_account_is_named(rows, key):
    assert the_problem(changed(rows["first"], **{f"inner__{key}": ABSENT})) == f"inner.{key} is missing"


def test_a_missing_account_is_named(rows):
    assert the_problem(changed(rows["first"], inner=ABSENT)) == "inner is missing"


def test_a_step_that_an_outer_wrapper_made_up_is_named(rows):
    assert the_problem(changed(rows["first"], inner=None)) == (
        "inner is null: an outer wrapper returned a step that the environment did not make"
    )


def test_a_row_of_a_later_schema_is_named(rows):
    problem = the_problem(changed(rows["first"], schema="embodied_env/transition/2"))
    assert problem == "schema is 'embodied_env/transition/2'; allowed: const embodied_env/transition/1"


@pytest.mark.parametrize("stage", ["driver_s", "queue_s"])
def test_a_stage_of_a_sensor_that_its_stamps_do_not_make_is_named(rows, stage):
    problem = the_problem(changed(rows["delayed"], **{f"info__latency__{stage}__joints": 0.9}))
    assert re.fullmatch(rf"info\.latency\.{stage}\.joints is 0\.9, but its stamps lie \d+ ns apart", problem)


def test_a_hold_that_is_not_from_the_arrival_to_the_observation_is_named(rows):
    problem = the_problem(changed(rows["first"], info__latency__hold_s__joints=0.9))
    assert problem.startswith("info.latency.hold_s.joints is 0.9, but its stamps lie ")


def test_a_stage_without_its_stamps_is_named(rows):
    problem = the_problem(changed(rows["delayed"], inner__sensors__joints__header_ns=None))
    assert problem == "info.latency.driver_s.joints is 0.002, but a stamp that it needs is not there"


def test_a_stage_that_is_called_measured_and_is_not_there_is_named(rows):
    problem = the_problem(changed(rows["delayed"], info__latency__end_to_end_s=None))
    assert problem == "info.latency.end_to_end_s is None, but its quality is OK; allowed: a measured duration"


def test_a_negative_stage_that_is_called_measured_is_named(rows):
    problem = the_problem(changed(rows["delayed"], info__latency__data_age_s__tcp=-0.5))
    assert problem == "info.latency.data_age_s.tcp is -0.5, but its quality is OK; allowed: a measured duration"


def test_a_stage_of_other_sensors_than_its_quality_is_named(rows):
    problem = the_problem(changed(rows["delayed"], info__latency__quality__data_age_s__tcp=ABSENT))
    assert problem.startswith(
        "info.latency.quality.data_age_s is of ['joints', 'target'], but info.latency.data_age_s is"
    )


CHANGED_OUTSIDE = {
    "observation__tcp_position__0": 9.0,
    "action__2": 0.125,
    "reward": 7.0,
    "terminated": True,
    "truncated": True,
}


@pytest.mark.parametrize("path", CHANGED_OUTSIDE)
def test_what_an_outer_wrapper_changed_is_named_with_both_values(rows, path):
    problem = the_problem(changed(rows["first"], **{path: CHANGED_OUTSIDE[path]}))
    name = path.replace("__0", "[0]").replace("__2", "[2]").replace("__", ".")
    assert problem.startswith(f"{name} is {CHANGED_OUTSIDE[path]!r}, but the environment ")
    assert problem.endswith(": an outer wrapper changed it")


def test_an_observation_that_an_outer_wrapper_left_out_is_named(rows):
    problem = the_problem(changed(rows["first"], observation__tcp_position=ABSENT))
    assert problem.startswith("observation.tcp_position is None, but the environment returned [")


CONTRADICTIONS = [  # row, changes, what the one problem begins with
    (
        "time_limit",
        {"truncated": False, "inner__truncated": False},
        "inner.truncated is False, but the end reason is 'time_limit'",
    ),
    (
        "success",
        {"terminated": False, "inner__terminated": False},
        "inner.terminated is False, but the end reason is 'success'",
    ),
    ("first", {"truncated": True, "inner__truncated": True}, "inner.truncated is True, but the end reason is ''"),
    (
        "first",
        {"info__end_reason": "time_limit"},
        "info.end_reason is 'time_limit', but the first of inner.end_reasons is ''",
    ),
    (
        "lost",
        {"info__end_reason": ""},
        "info.end_reason is '', but the first of inner.end_reasons is 'backend_lost:refused'",
    ),
    ("first", {"info__is_success": True}, "info.is_success is True, but the end reason is ''"),
    ("success", {"info__is_success": False}, "info.is_success is False, but the end reason is 'success'"),
    (
        "lost",
        {"inner__end_reasons": ["backend_lost:refused", "time_limit", "sensor_gap:tcp"]},
        "inner.end_reasons is ['backend_lost:refused', 'time_limit', 'sensor_gap:tcp']; allowed: in the order",
    ),
    ("lost", {"inner__end_reasons": ["tired"]}, "inner.end_reasons[0] is 'tired'; allowed: pattern"),
    ("first", {"info__end_reason": "tired"}, "info.end_reason is 'tired'; allowed: pattern"),
    ("first", {"info__safety__disposition": 2}, "info.safety.disposition is 2, but inner.findings make it 1"),
    (
        "first",
        {f"info__safety__severity__{LIMITS}": 0},
        f"info.safety.severity is {by_gate()}, but inner.findings make it",
    ),
    (
        "first",
        {f"info__safety__code__{LIMITS}": 31},
        f"info.safety.code is {by_gate(joint_limits=31)}, but inner.findings make it",
    ),
    ("first", {"info__safety__disposition": 9}, "info.safety.disposition is 9; allowed: enum [0, 1, 2, 3, 4]"),
    (
        "first",
        {"inner__report__disposition": "HOLD"},
        "inner.report.disposition is HOLD, but inner.findings make it LIMIT",
    ),
    ("first", {"info__action_clipped": False}, "info.action_clipped is False, but the disposition is LIMIT"),
    ("refused", {"info__action_clipped": False}, "info.action_clipped is False, but the disposition is HOLD"),
    ("monitored", {"info__action_clipped": True}, "info.action_clipped is True, but the disposition is LIMIT"),
    ("first", {"info__safety__intervened": False}, "info.safety.intervened is False, but the disposition is LIMIT"),
    ("first", {"info__action__requested__0": 0.0}, "info.action.requested is [0.0, "),
    ("first", {"info__action__applied__0": 0.0}, "info.action.applied is [0.0, "),
    ("first", {"info__action__applied_si__j1": 5.0}, "info.action.applied_si is [5.0, "),
    ("first", {"info__safety__dt_s": 0.1}, "info.safety.dt_s is 0.1, but inner.report makes it 0.05"),
    ("first", {"info__safety__guaranteed__jerk": True}, "info.safety.guaranteed is {"),
    ("first", {"info__latency_ms": 123.0}, "info.latency_ms is 123.0, but its stamps lie "),
    ("first", {"info__step_index": 0}, "info.step_index is 0; allowed: minimum 1"),
    ("first", {"info__step_index": 1.5}, "info.step_index is 1.5; allowed: integer"),
    ("first", {"info__latency__gate_s": -0.5}, "info.latency.gate_s is -0.5; allowed: minimum 0"),
    ("first", {"info__sensors__tcp__quality": 77}, "info.sensors.tcp.quality is 77; allowed: enum"),
    ("first", {"inner__sensors__tcp__quality": "FINE"}, "inner.sensors.tcp.quality is 'FINE'; allowed: enum"),
    ("first", {"inner__findings__0__code": "bad.luck"}, "inner.findings[0].code is 'bad.luck'; allowed: enum"),
    ("first", {"inner__findings__0__gate": "gut"}, "inner.findings[0].gate is 'gut'; allowed: enum"),
    ("first", {"inner__stamps_ns__gated": None}, "inner.stamps_ns.gated is None; allowed: integer"),
]


@pytest.mark.parametrize(("name", "changes", "sentence"), CONTRADICTIONS, ids=[c[2][:60] for c in CONTRADICTIONS])
def test_a_contradiction_has_one_problem_that_names_it(rows, name, changes, sentence):
    assert audit_transition(rows[name]) == []
    assert the_problem(changed(rows[name], **changes)).startswith(sentence)


STAGES = ["handoff", "inference", "policy", "gate", "publish", "obs_to_command", "world", "period"]


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_that_is_not_the_difference_of_its_stamps_is_named(rows, stage):
    problem = the_problem(changed(rows["second"], **{f"info__latency__{stage}_s": 0.5}))
    assert problem.startswith(f"info.latency.{stage}_s is 0.5, but its stamps lie ")


@pytest.mark.parametrize("wrong_ns", [-1, 1])
def test_a_stage_that_is_wrong_by_one_nanosecond_is_named(rows, wrong_ns):
    row = rows["second"]
    ns = round(row["info"]["latency"]["gate_s"] * 1e9)
    problem = the_problem(changed(row, info__latency__gate_s=(ns + wrong_ns) / 1e9))
    assert problem.endswith(f"but its stamps lie {ns} ns apart")


def test_stamps_out_of_order_are_named(rows):
    row = rows["second"]
    stamps = row["inner"]["stamps_ns"]
    between = (stamps["previous_returned"] + stamps["entered"] + 1) // 2
    row = changed(
        row, inner__stamps_ns__previous_entered=between, info__latency__period_s=(stamps["entered"] - between) / 1e9
    )
    assert the_problem(row).startswith(
        f"inner.stamps_ns.previous_returned is {stamps['previous_returned']}, before inner.stamps_ns.previous_entered {between}"
    )


def test_of_two_findings_as_grave_at_one_gate_the_later_gives_the_code(rows):
    row = rows["first"]
    (finding,) = row["inner"]["findings"]
    row = changed(row, inner__findings=[finding, {**finding, "code": "vel.limit"}])
    assert (
        the_problem(row)
        == f"info.safety.code is {by_gate(joint_limits=32)}, but inner.findings make it {by_gate(joint_limits=31)}"
    )
    assert audit_transition(changed(row, **{f"info__safety__code__{LIMITS}": 31})) == []


def test_an_action_that_was_changed_though_no_gate_fired_is_named(still):
    applied = [0.5, 0.0, 0.0, 0.0, 0.0, 0.0]
    problem = the_problem(changed(still, info__action__applied=applied, inner__report__applied=applied))
    assert problem.startswith("what was applied is [0.5, 0.0, 0.0, 0.0, 0.0, 0.0], but no gate fired and [0.0, 0.0")


def test_a_limit_that_limited_nothing_is_named(rows):
    row = rows["first"]
    applied = row["info"]["action"]["applied"]
    row = changed(row, info__action__requested=applied, inner__report__requested=applied)
    for finding in row["inner"]["findings"]:
        finding["margin"] = [0.0] * len(finding["margin"])
    assert the_problem(row).endswith("just as requested, but the disposition is LIMIT")


# --------------------------------------------------------------------------------------------------------- the contract


@pytest.fixture(scope="module")
def contract():
    return load_contract("arm_reach")


def both(path, value):
    """Return the changes that put `value` at `path` outside and inside, so that only the contract can object."""
    return {path: value, f"inner__{path}": value}


def test_a_row_of_another_contract_is_named(rows, contract):
    row = changed(rows["first"], info__contract="0" * 64)
    assert audit_transition(row) == []
    assert the_problem(row, contract) == (
        f"info.contract is {'0' * 64}, but the fingerprint of arm_reach is {contract.fingerprint}"
    )


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (both("observation__tcp_position", ABSENT), "inner.observation.tcp_position is missing"),
        (both("observation__reward", [1.0]), "inner.observation.reward is not in the contract; allowed: joints_position"),
        (both("observation__tcp_position", [0.0, 0.0]), "inner.observation.tcp_position is [0.0, 0.0]; allowed: numbers of the shape (3,)"),
        (both("observation__tcp_position", [0.0, None, 0.0]), "inner.observation.tcp_position is [0.0, None, 0.0]; allowed: numbers of"),
        (both("observation__tcp_position", [0.0, [1], 0.0]), "inner.observation.tcp_position is [0.0, [1], 0.0]; allowed: numbers of"),
        (both("observation__tcp_position", ["0", "0", "0"]), "inner.observation.tcp_position is ['0', '0', '0']; allowed: numbers of"),
        (both("observation__tcp_position", [0.0, 0.0, 2.5]), "inner.observation.tcp_position is [0.0, 0.0, 2.5]; allowed: [-2.0, -2.0, -2.0] to"),
        (both("observation__joints_valid", [2]), "inner.observation.joints_valid is [2]; allowed: [0] to [1]"),
        (both("observation", [1.0]), "inner.observation is [1.0]; allowed: a mapping of joints_position"),
        (both("action", [0.0, 0.0]), "inner.action is [0.0, 0.0], and no gate refused it; allowed: Box(-1.0, 1.0, (6,), float64)"),
        (both("action", [0.0, 0.0, 0.0, 0.0, 0.0, None]), "inner.action is [0.0, 0.0, 0.0, 0.0, 0.0, None], and no gate"),
        (both("action", "left"), "inner.action is 'left', and no gate refused it"),
    ],
)  # fmt: skip
def test_what_is_not_of_the_contracts_spaces_is_named(rows, contract, changes, sentence):
    row = changed(rows["first"], **changes)
    assert audit_transition(row) == []
    assert the_problem(row, contract).startswith(sentence)


@pytest.mark.parametrize("quality", [Quality.OUT_OF_RANGE, Quality.STALE, Quality.LOST])
def test_a_reading_out_of_range_whose_quality_says_so_or_that_is_held_is_sound(rows, contract, quality):
    row = changed(
        rows["first"],
        **both("observation__tcp_position", [0.0, 0.0, 2.5]),
        info__sensors__tcp__quality=int(quality),
        inner__sensors__tcp__quality=quality.name,
    )
    assert audit_transition(row, contract) == []


def test_an_action_that_json_cannot_say_is_not_judged_by_its_shape(rows, contract):
    row = changed(rows["first"], **both("action", {"repr": "tensor([0., 0., 0., 0., 0., 0.])"}))
    assert audit_transition(row, contract) == []


def test_an_action_of_a_wrong_shape_that_was_refused_is_sound(rows, contract):
    assert audit_transition(changed(rows["refused"], **both("action", [1.0])), contract) == []


@pytest.mark.parametrize("action", [{"left": [0.0]}, [0.0, 0.0], {"left": [0.0], "right": [0.0], "tail": [0.0]}])
def test_an_action_without_the_actuators_of_the_contract_is_named(folder, action):
    own, (row, *_), _ = play("two actuators", folder)
    assert the_problem(changed(row, **both("action", action)), own).startswith(f"inner.action is {action}, and no gate")


# -------------------------------------------------------------------------------------------------------------- images

IMAGE = {"sha256": "a" * 64, "dtype": "uint8", "shape": [4, 5, 3]}


@pytest.fixture
def seeing(contract):
    """Give a double of the contract with a camera."""
    front = gymnasium.spaces.Box(0, 255, (4, 5, 3), np.uint8)
    space = gymnasium.spaces.Dict({**contract.observation_space.spaces, "front_image": front})
    same = ("name", "fingerprint", "sensors", "action_space", "episode", "safety", "applied_actions")
    return types.SimpleNamespace(observation_space=space, **{name: getattr(contract, name) for name in same})


def test_a_row_that_refers_to_its_image_is_sound(rows, seeing):
    row = changed(rows["first"], **both("observation__front_image", IMAGE))
    assert audit_transition(row) == []
    assert audit_transition(row, seeing) == []


@pytest.mark.parametrize("image", [np.zeros((4, 5, 3), np.uint8), np.zeros((4, 5, 3), np.uint8).tolist()])
def test_a_row_that_has_its_image_as_an_array_or_a_list_is_sound(rows, seeing, image):
    assert audit_transition(changed(rows["first"], **both("observation__front_image", image)), seeing) == []


@pytest.mark.parametrize(
    ("image", "allowed"),
    [
        ({**IMAGE, "dtype": "float32"}, "an array of uint8 of the shape (4, 5, 3)"),
        ({**IMAGE, "shape": [5, 4, 3]}, "an array of uint8 of the shape (4, 5, 3)"),
        ({"sha256": "a" * 64}, "numbers of the shape (4, 5, 3)"),
        (np.zeros((5, 4, 3), np.uint8), "numbers of the shape (4, 5, 3)"),
        (np.full((4, 5, 3), -1), "[[[0, 0, 0]"),
    ],
)
def test_an_image_that_is_not_of_the_contracts_space_is_named(rows, seeing, image, allowed):
    problem = the_problem(changed(rows["first"], **both("observation__front_image", image)), seeing)
    assert problem.startswith("inner.observation.front_image is ")
    assert f"; allowed: {allowed}" in problem


def test_an_image_that_an_outer_wrapper_changed_is_named_by_its_hash(rows):
    row = changed(rows["first"], **both("observation__front_image", IMAGE))
    row["observation"]["front_image"] = {**IMAGE, "sha256": "b" * 64}
    assert the_problem(row).startswith("observation.front_image.sha256 is 'bbbb")


# ------------------------------------------------------------------------------------ rows as step returned them alone


def of_info(folder, step=1):
    own, _, returned = play("fake", folder)
    return own, returned[step]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"info__contract": "0" * 64}, "info.contract is 000"),
        ({"truncated": True}, "truncated is True, but the end reason is ''"),
        ({"info__is_success": True}, "info.is_success is True, but"),
        (
            {"info__safety__disposition": 2},
            "info.safety.disposition is 2, but the most severe of info.safety.severity is 1",
        ),
        (
            {"info__safety__code": np.array(by_gate(form=10, joint_limits=32))},
            "info.safety.code of form is 10, but its severity is 0",
        ),
        ({"info__action_clipped": False}, "info.action_clipped is False, but the disposition is LIMIT"),
        ({"info__latency__gate_s": 0.5}, "info.latency.obs_to_command_s is "),
        ({"info__latency_ms": 0.5}, "info.latency_ms is 0.5, but info.latency.obs_to_command_s is "),
        ({"info__latency": ABSENT}, "info.latency is missing"),
        ({"observation__tcp_position": np.zeros(2)}, "observation.tcp_position is [0.0, 0.0]; allowed"),
        ({"observation__tcp_position": np.full(3, np.nan)}, "observation.tcp_position is [None, None, None]; allowed"),
        ({"action": np.zeros(5)}, "action is [0.0, 0.0, 0.0, 0.0, 0.0], and no gate refused it"),
    ],
)
def test_a_contradiction_in_what_step_returned_has_one_problem_that_names_it(folder, changes, sentence):
    own, row = of_info(folder)
    assert the_problem(changed(row, **changes), own).startswith(sentence)


def test_without_a_contract_what_step_returned_is_held_to_the_plain_rules_only(folder):
    _, row = of_info(folder)
    assert audit_transition(changed(row, info__is_success=True)) == []


# ------------------------------------------------------------------------------------------------------- real wrappers


def recorded(env, folder, action, steps=1):
    env = RecordTransitions(env, folder)
    env.reset(seed=1)
    for _ in range(steps):
        env.step(action)
    env.close()
    return list(read_run(env.path).transitions())


def test_a_hidden_time_limit_is_found(tmp_path):
    first, last = recorded(TimeLimit(arm(), 2), tmp_path, np.zeros(6), steps=2)
    assert audit_transition(first) == []
    assert the_problem(last) == "truncated is True, but the environment returned False: an outer wrapper changed it"


def test_a_rewritten_reward_is_found(tmp_path):
    (row,) = recorded(TransformReward(arm(), lambda reward: reward + 100.0), tmp_path, np.zeros(6))
    assert the_problem(row).startswith("reward is ")


def test_an_action_that_was_changed_on_the_way_is_found(tmp_path):
    (row,) = recorded(RescaleAction(arm(), -2.0, 2.0), tmp_path, np.full(6, 0.5))
    assert the_problem(row).startswith("action[0] is 0.5, but the environment was given 0.25 (and 5 more differences)")


def test_an_observation_that_was_changed_on_the_way_is_found(tmp_path):
    env = arm()
    rounded = TransformObservation(env, lambda seen: {**seen, "tcp_position": seen["tcp_position"].round(1)}, None)
    (row,) = recorded(rounded, tmp_path, np.zeros(6))
    assert the_problem(row).startswith("observation.tcp_position[0] is ")


def test_wrappers_that_change_nothing_are_sound(tmp_path):
    (row,) = recorded(gymnasium.Wrapper(arm()), tmp_path, np.zeros(6))
    assert audit_transition(row) == []


def test_the_row_of_a_reset_is_no_transition(folder, tmp_path):
    env = RecordTransitions(arm(), tmp_path)
    env.reset(seed=1)
    env.close()
    (row,) = read_run(env.path).resets()
    assert [problem.split(" is ")[0] for problem in audit_transition(row)][:2] == ["action", "reward"]


def test_a_wrong_option_is_still_an_error_under_the_recorder(tmp_path):
    env = RecordTransitions(arm(), tmp_path)
    with pytest.raises(UsageError):
        env.reset(options={"goal": 1})
    env.close()
