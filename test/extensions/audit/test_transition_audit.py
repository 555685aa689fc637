"""The audit finds no problem in recorded rows, and exactly one, by name, for each contradiction."""

import copy
import dataclasses
import functools
import math
import types

import gymnasium
import numpy as np
import pytest
import strategies
from delayed_fake import FakeDelays
from scripted_tasks import OneClock

from embodied_env.backends.fake_backend import ScriptedFault
from embodied_env.contract import load_contract
from embodied_env.core.code_table import GATES
from embodied_env.core.code_types import Quality
from embodied_env.core.info_schema import info_schema
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.extensions.audit import audit_transition
from embodied_env.record import RecordTransitions, read_run
from embodied_env.timing.clock import ManualClock

STEP = info_schema()["$defs"]["step"]
PLAIN: dict = {
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
    """Return one number per gate, 0 for those not named."""
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


# ----------------------------------------------------------------------------------------------------------- basic rules


def test_plain_third_party_row_passes():
    assert audit_transition(PLAIN) == []


def test_rows_with_numpy_arrays_pass():
    row = {**PLAIN, "observation": {"image": np.zeros((2, 2))}, "action": np.zeros(2), "reward": np.float32(0.5)}
    assert audit_transition({**row, "terminated": np.bool_(False), "truncated": np.bool_(True)}) == []


@pytest.mark.parametrize("path", [*PLAIN, "info__action_clipped", "info__wrapper_version"])
def test_missing_field_is_reported(path):
    (problem,) = audit_transition(changed(PLAIN, **{path: ABSENT}))
    assert problem.startswith(f"{path.replace('__', '.')} is missing (expected in ")


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        *(("reward", value, "a finite number") for value in (math.nan, math.inf, True, np.True_, "1", None, [1.0])),
        *(("terminated", value, "true or false") for value in (0, 1.0, "no", None)),
        *(("truncated", value, "true or false") for value in (0, 1.0, "no", None)),
        *(("info", value, "a mapping") for value in (None, [], "info", 3)),
        *(("info__latency_ms", value, "a finite number >= 0") for value in (-0.1, math.nan, math.inf, True, "1", None)),
        *(("info__action_clipped", value, "true or false") for value in (0, "no", None)),
        *(("info__wrapper_version", value, "a non-empty string") for value in ("", 2, None)),
    ],
)
def test_wrong_type_is_reported_with_the_expected_type(path, value, expected):
    (problem,) = audit_transition(changed(PLAIN, **{path: value}))
    assert problem == f"{path.replace('__', '.')} is {value!r} (expected {expected})"


@pytest.mark.parametrize("reward", [0, -3, 10**400, np.float64(1.5), np.int64(2)])
def test_any_finite_number_is_a_valid_reward(reward):
    assert audit_transition({**PLAIN, "reward": reward}) == []


def test_transition_is_not_both_terminated_and_truncated():
    (problem,) = audit_transition({**PLAIN, "truncated": True})
    assert problem == "terminated and truncated are both true (expected at most one of them)"


@pytest.mark.parametrize("schema", ["somebody/1", 5, None])
def test_third_party_schema_is_not_checked(schema):
    assert audit_transition({**PLAIN, "schema": schema}) == []


# ------------------------------------------------------------------------------------------------------ recorded worlds


def small(**settings):
    """Return a contract whose tip is placed by the reset option ``tcp`` in the fake world."""
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


DELAYS = FakeDelays(driver_s=0.002, transport_s=0.001, queue_s=0.0005, publish_s=0.003, actuation_s=0.02)
SAME = {"tcp": [0.3, 0.3, 0.3], "target": [0.3, 0.3, 0.3]}
MALFORMED = [[math.nan] * 6, np.zeros(3), "left", None, [1e308] * 6, np.full(6, 2.0), object(), [True] * 6, {"arm": 1}]


def monitored():
    contract = load_contract("arm_reach")
    return dataclasses.replace(contract, safety=dataclasses.replace(contract.safety, mode="monitor"))


def scripts(actions):
    """Return a policy that repeats these actions."""
    return lambda _env, step: actions[step % len(actions)]


def sampled(env, _step):
    return env.action_space.sample()


WORLDS = {  # environment, policy, steps, options of reset
    "fake": (arm, sampled, 12, None),
    "fake with malformed actions": (arm, lambda e, k: MALFORMED[k // 2 % 9] if k % 2 else sampled(e, k), 20, None),
    "fake that is lost": (lambda: arm(faults=[ScriptedFault(kind="refuse", step=3)]), sampled, 3, None),
    "fake that is late": (
        lambda: arm(faults=[ScriptedFault(kind="delay", step=3, delay_s=9.0)], clock=ManualClock()), sampled, 3, None,
    ),
    "fake that runs freely": (lambda: arm(free_running=True, clock=ManualClock()), sampled, 6, None),
    "fake with delays": (
        lambda: arm(backend="delayed_fake", clock=OneClock(start_ns=1), delays=DELAYS), sampled, 4, None,
    ),
    "fake under a virtual clock": (lambda: arm(clock="virtual", host_timing=True), sampled, 6, None),
    "fake, the evaluator's info": (lambda: arm(evaluator_info=True), sampled, 3, None),
    "fake that only monitors": (lambda: EmbodiedEnv(monitored(), backend="fake"), scripts(MALFORMED[4:6]), 6, None),
    "stopped after malformed actions": (arm, scripts(MALFORMED[:1]), 3, None),
    "success": (lambda: EmbodiedEnv(small(), backend="fake"), sampled, 1, SAME),
    "finite horizon": (
        lambda: EmbodiedEnv(small(episode={"horizon_steps": 3, "kind": "finite_horizon"}), backend="fake"), sampled, 3, None,
    ),
    "two actuators": (lambda: EmbodiedEnv(two_actuators(), backend="fake"), sampled, 4, None),
    "two actuators, malformed": (
        lambda: EmbodiedEnv(two_actuators(), backend="fake"), scripts([{"left": [0.0]}, np.zeros(2)]), 2, None,
    ),
    "mujoco": (lambda: EmbodiedEnv("arm_reach", backend="mujoco"), sampled, 12, None),
}  # fmt: skip


@functools.cache
def play(name, folder):
    """Return a world's contract, the recorded rows of an episode in it, and the same rows as returned by step."""
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


def test_every_recorded_row_and_step_result_passes_under_its_contract(world):
    contract, *both = world
    for rows in both:
        assert [audit_transition(row, contract) for row in rows] == [[]] * len(rows)


# ----------------------------------------------------------------------------------------------------- contradictions


@pytest.fixture
def rows(folder):
    """Return valid rows by name, of different contracts."""
    return {
        "first": play("fake", folder)[1][0],
        "second": play("fake", folder)[1][1],
        "refused": play("stopped after malformed actions", folder)[1][0],
        "lost": play("fake that is lost", folder)[1][-1],
        "delayed": play("fake with delays", folder)[1][1],
        "monitored": play("fake that only monitors", folder)[1][1],
    }


def the_problem(row, contract=None):
    (problem,) = audit_transition(row, contract)
    return problem


@pytest.mark.parametrize("path", ["inner", "inner__now_ns", *(f"info__{key}" for key in STEP["required"])])
def test_missing_key_of_a_recorded_row_is_reported(rows, path):
    problem = the_problem(changed(rows["first"], **{path: ABSENT}))
    assert problem.startswith((f"{path.replace('__', '.')}: missing key", f"{path.replace('__', '.')} is missing"))


CONTRADICTIONS = [  # row, changes, start of the one problem
    ("first", {"truncated": True, "inner__truncated": True}, "inner.truncated is True (expected"),
    ("lost", {"inner__end_reasons": ["tired"]}, "inner.end_reasons[0] is 'tired' (expected"),
    ("first", {"info__end_reason": "tired"}, "info.end_reason is 'tired' (expected"),
    ("first", {f"info__safety__severity__{LIMITS}": 0}, f"info.safety.severity is {by_gate()} (expected"),
    ("first", {f"info__safety__code__{LIMITS}": 31}, f"info.safety.code is {by_gate(joint_limits=31)} (expected"),
    ("first", {"info__safety__disposition": 9}, "info.safety.disposition is 9 (expected"),
    (
        "first",
        {"inner__report__disposition": "HOLD"},
        "inner.report.disposition is 'HOLD' (expected 'LIMIT' from inner.findings)",
    ),
    ("monitored", {"info__action_clipped": True}, "info.action_clipped is True (expected"),
    ("first", {"info__safety__intervened": False}, "info.safety.intervened is False (expected"),
    ("first", {"info__action__requested__0": 0.0}, "info.action.requested is [0.0, "),
    ("first", {"info__action__applied_si__j1": 5.0}, "info.action.applied_si is [5.0, "),
    ("first", {"info__safety__guaranteed__jerk": True}, "info.safety.guaranteed is {"),
    ("first", {"info__step_index": 0}, "info.step_index is 0 (expected"),
    ("first", {"info__step_index": 1.5}, "info.step_index is 1.5 (expected"),
    ("first", {"info__latency__gate_s": -0.5}, "info.latency.gate_s is -0.5 (expected"),
    ("first", {"inner__sensors__tcp__quality": "FINE"}, "inner.sensors.tcp.quality is 'FINE' (expected"),
    ("first", {"inner__findings__0__code": "bad.luck"}, "inner.findings[0].code is 'bad.luck' (expected"),
    ("first", {"inner__findings__0__gate": "gut"}, "inner.findings[0].gate is 'gut' (expected"),
    ("first", {"inner__stamps_ns__gated": None}, "inner.stamps_ns.gated is None (expected"),
    *(
        ("second", {f"info__latency__{stage}_s": 0.5}, f"info.latency.{stage}_s is 0.5 (expected the difference")
        for stage in ("handoff", "inference", "policy", "gate", "publish", "obs_to_command", "world", "period")
    ),
    *(
        ("delayed", {f"info__latency__{stage}__joints": 0.9}, f"info.latency.{stage}.joints is 0.9 (expected the diff")
        for stage in ("driver_s", "queue_s")
    ),
    ("delayed", {"inner__sensors__joints__header_ns": None}, "info.latency.driver_s.joints is 0.002 (expected null"),
    ("delayed", {"info__latency__quality__data_age_s__tcp": ABSENT}, "info.latency.quality.data_age_s has the sensors"),
    ("first", {"observation__tcp_position": ABSENT}, "observation.tcp_position is None (expected ["),
]


@pytest.mark.parametrize(("name", "changes", "sentence"), CONTRADICTIONS, ids=[c[2][:60] for c in CONTRADICTIONS])
def test_contradiction_is_reported_once(rows, name, changes, sentence):
    assert audit_transition(rows[name]) == []
    assert the_problem(changed(rows[name], **changes)).startswith(sentence)


def test_rendering_is_at_most_as_long_as_the_stage_that_it_is_part_of(rows):
    of_world = rows["second"]["info"]["latency"]["world_s"]
    assert not audit_transition(changed(rows["second"], info__latency__render_s=of_world))
    problem = the_problem(changed(rows["second"], info__latency__render_s=of_world + 1e-9))
    assert problem.startswith("info.latency.render_s is ")


@pytest.mark.parametrize("wrong_ns", [-1, 1])
def test_stage_error_of_one_nanosecond_is_reported(rows, wrong_ns):
    row = rows["second"]
    ns = round(row["info"]["latency"]["gate_s"] * 1e9)
    problem = the_problem(changed(row, info__latency__gate_s=(ns + wrong_ns) / 1e9))
    assert problem.endswith(f"(expected the difference of its stamps, {ns} ns)")


def test_later_of_two_equally_severe_findings_gives_the_code(rows):
    row = rows["first"]
    (finding,) = row["inner"]["findings"]
    row = changed(row, inner__findings=[finding, {**finding, "code": "vel.limit"}])
    assert (
        the_problem(row)
        == f"info.safety.code is {by_gate(joint_limits=32)} (expected {by_gate(joint_limits=31)} from inner.findings)"
    )
    assert audit_transition(changed(row, **{f"info__safety__code__{LIMITS}": 31})) == []


# ------------------------------------------------------------------------------------------------------------- contract


@pytest.fixture(scope="module")
def contract():
    return load_contract("arm_reach")


def both(path, value):
    """Return changes that put `value` at `path` in both records, so that only the contract contradicts it."""
    return {path: value, f"inner__{path}": value}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (both("observation__tcp_position", ABSENT), "inner.observation.tcp_position is missing"),
        (both("observation__reward", [1.0]), "inner.observation.reward is not in the contract (expected"),
        (both("observation__tcp_position", [0.0, 0.0]), "inner.observation.tcp_position is [0.0, 0.0] (expected"),
        (both("observation__tcp_position", [0.0, None, 0.0]), "inner.observation.tcp_position is [0.0, None, 0.0] (expected"),
        (both("observation__tcp_position", [0.0, [1], 0.0]), "inner.observation.tcp_position is [0.0, [1], 0.0] (expected"),
        (both("observation__tcp_position", ["0", "0", "0"]), "inner.observation.tcp_position is ['0', '0', '0'] (expected"),
        (both("observation__tcp_position", [0.0, 0.0, 2.5]), "inner.observation.tcp_position is [0.0, 0.0, 2.5] (expected"),
        (both("observation__joints_valid", [2]), "inner.observation.joints_valid is [2] (expected"),
        (both("observation", [1.0]), "inner.observation is [1.0] (expected"),
        (both("action", [0.0, 0.0]), "inner.action is [0.0, 0.0] (expected Box(-1.0, 1.0, (6,), float32)"),
        (both("action", [0.0, 0.0, 0.0, 0.0, 0.0, None]), "inner.action is [0.0, 0.0, 0.0, 0.0, 0.0, None] (expected"),
        (both("action", "left"), "inner.action is 'left' (expected"),
    ],
)  # fmt: skip
def test_value_outside_the_contract_spaces_is_reported(rows, contract, changes, sentence):
    row = changed(rows["first"], **changes)
    assert audit_transition(row) == []
    assert the_problem(row, contract).startswith(sentence)


@pytest.mark.parametrize("quality", [Quality.OUT_OF_RANGE, Quality.STALE, Quality.LOST])
def test_out_of_range_or_held_reading_with_its_quality_passes(rows, contract, quality):
    row = changed(
        rows["first"],
        **both("observation__tcp_position", [0.0, 0.0, 2.5]),
        info__sensors__tcp__quality=int(quality),
        inner__sensors__tcp__quality=quality.name,
    )
    assert audit_transition(row, contract) == []


def test_action_that_json_cannot_express_is_not_checked_for_shape(rows, contract):
    row = changed(rows["first"], **both("action", {"repr": "tensor([0., 0., 0., 0., 0., 0.])"}))
    assert audit_transition(row, contract) == []


def test_refused_action_of_wrong_shape_passes(rows, contract):
    assert audit_transition(changed(rows["refused"], **both("action", [1.0])), contract) == []


@pytest.mark.parametrize("action", [{"left": [0.0]}, [0.0, 0.0], {"left": [0.0], "right": [0.0], "tail": [0.0]}])
def test_action_without_the_contract_actuators_is_reported(folder, action):
    own, (row, *_), _ = play("two actuators", folder)
    assert the_problem(changed(row, **both("action", action)), own).startswith(f"inner.action is {action} (expected")


# -------------------------------------------------------------------------------------------------------------- images

IMAGE = {"sha256": "a" * 64, "dtype": "uint8", "shape": [4, 5, 3]}


@pytest.fixture
def seeing(contract):
    """Return a stand-in for the contract with a camera."""
    front = gymnasium.spaces.Box(0, 255, (4, 5, 3), np.uint8)
    space = gymnasium.spaces.Dict({**contract.observation_space.spaces, "front_image": front})
    same = ("name", "fingerprint", "sensors", "actuators", "reset_options", "action_space", "episode", "safety")
    same += ("applied_actions",)
    return types.SimpleNamespace(observation_space=space, **{name: getattr(contract, name) for name in same})


@pytest.mark.parametrize("image", [IMAGE, np.zeros((4, 5, 3), np.uint8), np.zeros((4, 5, 3), np.uint8).tolist()])
def test_row_with_an_image_as_reference_array_or_list_passes(rows, seeing, image):
    row = changed(rows["first"], **both("observation__front_image", image))
    assert audit_transition(row, seeing) == []
    assert image is not IMAGE or audit_transition(row) == []


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ({**IMAGE, "dtype": "float32"}, "an array of uint8 with the shape (4, 5, 3)"),
        ({**IMAGE, "shape": [5, 4, 3]}, "an array of uint8 with the shape (4, 5, 3)"),
        ({"sha256": "a" * 64}, "numbers of shape (4, 5, 3)"),
        (np.zeros((5, 4, 3), np.uint8), "numbers of shape (4, 5, 3)"),
        (np.full((4, 5, 3), -1), "[[[0, 0, 0]"),
    ],
)
def test_image_outside_the_contract_space_is_reported(rows, seeing, image, expected):
    problem = the_problem(changed(rows["first"], **both("observation__front_image", image)), seeing)
    assert problem.startswith("inner.observation.front_image is ")
    assert f"(expected {expected}" in problem


# --------------------------------------------------------------------------------------------------- step results only


def of_info(folder, step=1):
    own, _, returned = play("fake under a virtual clock", folder)
    return own, returned[step]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"info__contract": "0" * 64}, "info.contract is '000"),
        ({"truncated": True}, "truncated is True (expected"),
        ({"info__is_success": True}, "info.is_success is True (expected"),
        ({"info__safety__disposition": 2}, "info.safety.disposition is 2 (expected"),
        (
            {"info__safety__code": np.array(by_gate(form=10, joint_limits=32))},
            "info.safety.code of form is 10 at severity 0 (expected",
        ),
        ({"info__action_clipped": False}, "info.action_clipped is False (expected"),
        ({"info__latency__gate_s": 0.5}, "info.latency.obs_to_command_s is "),
        ({"info__latency_ms": 0.5}, "info.latency_ms is 0.5 (expected"),
        ({"info__latency": ABSENT}, "info.latency: missing key"),
        ({"observation__tcp_position": np.zeros(2)}, "observation.tcp_position is [0.0, 0.0] (expected"),
        ({"observation__tcp_position": np.full(3, np.nan)}, "observation.tcp_position is [None, None, None] (expected"),
        ({"action": np.zeros(5)}, "action is [0.0, 0.0, 0.0, 0.0, 0.0] (expected"),
    ],
)
def test_contradiction_in_a_step_result_is_reported_once(folder, changes, sentence):
    own, row = of_info(folder)
    assert the_problem(changed(row, **changes), own).startswith(sentence)


def test_step_result_without_a_contract_is_checked_by_the_basic_rules(folder):
    _, row = of_info(folder)
    assert audit_transition(changed(row, info__is_success=True)) == []


# ------------------------------------------------------------------------------------------------------- real wrappers
