import json
import math

import numpy as np
import pytest
import scripted_tasks
import yaml
from evidence import assert_replays, assert_sound
from hypothesis import given
from hypothesis import strategies as st
from safety_strategies import examples
from scripted_tasks import JOINTS, PERIOD_NS

import embodied_env
from embodied_env.contract import parse_contract
from embodied_env.contract.contract_loader import find_contract
from embodied_env.contract.required_sensors import required_sensors
from embodied_env.contract.robot_files import SAFETY_RULES
from embodied_env.core.code_table import CODE_TABLE, CODES
from embodied_env.core.code_types import Quality, Severity
from embodied_env.core.types import SafetyContext, Sample, SensorStatus, Snapshot
from embodied_env.errors import ContractError
from embodied_env.safety.gate import SafetyGate
from embodied_env.safety.interlocks.loads import LoadGate
from embodied_env.safety.interlocks.observation import JUDGED_BY_AGE

EFFORT = {"sensor": "joints", "field": "effort"}
LEVELS = {"warn": 1.0, "hold": 2.0, "stop": 3.0}
AT_ZERO = np.zeros(2)


def contract_with(**loads):
    document = scripted_tasks.document()
    document["sensors"]["joints"]["fields"]["effort"] = {"joints": [*JOINTS], "unit": "N*m", "low": -9.0, "high": 9.0}
    document["safety"]["loads"] = loads
    return parse_contract(json.dumps(document))


def load_gate(**keys) -> LoadGate:
    gate = SafetyGate(contract_with(arm={**EFFORT, **keys}))
    (found,) = [each for each in gate.interlocks if isinstance(each, LoadGate)]
    return found


def context(effort, step=1, *, measured=(0.0, 0.0), age_s=0.0, quality=Quality.OK) -> SafetyContext:
    now_ns = step * PERIOD_NS
    sample = Sample(sensor="joints", values={"effort": np.array(effort)}, stamp_ns=now_ns, arrival_ns=now_ns)
    return SafetyContext(
        sensors={"joints": SensorStatus(quality=quality, age_s=age_s)},
        measured=np.array(measured),
        snapshot=Snapshot(now_ns=now_ns, samples={"joints": sample}),
    )


def codes_of(findings) -> list[tuple[str, tuple[str, ...]]]:
    assert all(each.severity is CODE_TABLE[each.code].severity for each in findings)
    return [(each.code, each.joints) for each in findings]


# ------------------------------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(
    ("level", "limit", "below"), [("warn", 1.0, None), ("hold", 2.0, "warn"), ("stop", 3.0, "hold")]
)
def test_a_load_equal_to_its_limit_passes_and_a_larger_one_does_not(level, limit, below, sign):
    gate = load_gate(**LEVELS)
    at_limit = gate.judge(context([0.0, sign * limit]), AT_ZERO)
    assert codes_of(at_limit) == ([] if below is None else [(f"load.{below}", JOINTS[1:])])
    above = gate.judge(context([0.0, sign * math.nextafter(limit, 9.0)]), AT_ZERO)
    assert codes_of(above) == [(f"load.{level}", JOINTS[1:])]


@pytest.mark.parametrize("level", LEVELS)
def test_a_limit_that_is_not_declared_does_not_exist(level):
    gate = load_gate(**{level: LEVELS[level]})
    assert codes_of(gate.judge(context([8.0, 0.0]), AT_ZERO)) == [(f"load.{level}", JOINTS[:1])]


def test_a_load_is_too_large_once_its_duration_has_passed():
    gate = load_gate(stop=3.0, duration_s=0.1)
    assert [codes_of(gate.judge(context([8.0, 0.0], step), AT_ZERO)) for step in (1, 2)] == [[], []]
    assert codes_of(gate.judge(context([8.0, 8.0], 3), AT_ZERO)) == [("load.stop", JOINTS[:1])]  # the other one is new
    assert codes_of(gate.judge(context([0.0, 8.0], 4), AT_ZERO)) == []
    assert codes_of(gate.judge(context([8.0, 8.0], 5), AT_ZERO)) == [("load.stop", JOINTS[1:])]


def test_a_reset_clears_the_durations():
    gate = load_gate(stop=3.0, duration_s=0.05)
    gate.judge(context([8.0, 0.0], 1), AT_ZERO)
    gate.reset()
    assert codes_of(gate.judge(context([8.0, 0.0], 9), AT_ZERO)) == []


@pytest.mark.parametrize(
    ("measured", "found"),
    [(0.1, False), (-0.1, False), (math.nextafter(0.1, 1.0), True), (-0.2, True), (math.nan, True)],
)
def test_a_stall_is_a_load_of_a_joint_away_from_its_command(measured, found):
    gate = load_gate(stop=3.0, tracking_error=0.1)
    stalls = codes_of(gate.judge(context([0.0, 8.0], measured=(0.9, measured)), AT_ZERO))
    assert stalls == ([("load.stop", JOINTS[1:])] if found else [])
    assert codes_of(gate.judge(context([0.0, 2.0], 2, measured=(0.9, 0.9)), AT_ZERO)) == []


# ------------------------------------------------------------------------------------------------------------ unknown


@pytest.mark.parametrize(
    "unknown",
    [
        *({"quality": each} for each in Quality if each not in JUDGED_BY_AGE),
        *({"age_s": age_s} for age_s in (math.nextafter(0.15, 1.0), math.inf, math.nan)),
        *({"effort": [0.0, value]} for value in (math.nan, math.inf, -math.inf)),
    ],
    ids=str,
)
def test_an_unknown_load_is_a_hold_and_clears_no_duration(unknown):
    gate = load_gate(stop=3.0, duration_s=0.1)
    gate.judge(context([8.0, 0.0], 1), AT_ZERO)
    assert codes_of(gate.judge(context(**{"effort": [0.0, 0.0], "step": 2, **unknown}), AT_ZERO)) == [
        ("load.unknown", ())
    ]
    assert codes_of(gate.judge(context([8.0, 0.0], 3), AT_ZERO)) == [("load.stop", JOINTS[:1])]


@pytest.mark.parametrize("quality", [Quality.OK, Quality.OUT_OF_RANGE, Quality.MISSING])
def test_a_valid_load_may_be_as_old_as_its_sensor_permits(quality):
    assert load_gate(stop=3.0).judge(context([3.0, 0.0], age_s=0.15, quality=quality), AT_ZERO) == []


@pytest.mark.parametrize("missing", [{"sensors": {}}, {"snapshot": None}], ids=str)
def test_a_missing_load_is_a_hold(missing):
    known = context([0.0, 0.0])
    given_ = {"sensors": known.sensors, "measured": known.measured, "snapshot": known.snapshot, **missing}
    assert codes_of(load_gate(stop=3.0).judge(SafetyContext(**given_), AT_ZERO)) == [("load.unknown", ())]


def test_a_temperature_is_a_load_and_its_sensor_is_required():
    document = scripted_tasks.document()
    field = {"temperature": {"unit": "degC", "low": -40.0, "high": 200.0}}
    sensor = {"topic": "motor", "type": "sensor_msgs/msg/Temperature", "fields": field, "max_age_s": 5.0}
    document["sensors"]["motor"] = sensor
    document["safety"]["loads"] = {"heat": {"sensor": "motor", "field": "temperature", "stop": 70.0}}
    contract = parse_contract(json.dumps(document))
    assert "motor" in required_sensors(contract)
    (gate,) = [each for each in SafetyGate(contract).interlocks if isinstance(each, LoadGate)]
    for celsius, found in ((70.0, []), (70.5, [("load.stop", ())])):
        sample = Sample(sensor="motor", values={"temperature": np.array([celsius])}, stamp_ns=0, arrival_ns=0)
        status = SensorStatus(quality=Quality.OK, age_s=0.0)
        snapshot = Snapshot(now_ns=0, samples={"motor": sample})
        hot = SafetyContext(sensors={"motor": status}, measured=AT_ZERO, snapshot=snapshot)
        assert codes_of(gate.judge(hot, AT_ZERO)) == found


# ----------------------------------------------------------------------------------------------------------- property

MAGNITUDES = st.sampled_from([0.0, 1.0, 1.5, -2.5, 3.0, 4.0, -8.0, math.nan])
STEPS = st.lists(st.tuples(MAGNITUDES, MAGNITUDES, st.sampled_from([0.0, 0.1, 0.3, math.nan])), max_size=12)


@examples(200)
@given(STEPS, st.integers(0, 3), st.sampled_from([None, 0.1]))
def test_findings_are_those_of_a_model_that_looks_back(steps, lasting, tracking_error):
    """A load is too large when it is at each known step of the last `lasting` periods and a step before."""
    keys = {} if tracking_error is None else {"tracking_error": tracking_error}
    gate, known = load_gate(**LEVELS, duration_s=lasting * PERIOD_NS / 1e9, **keys), []

    def is_too_large(joint, limit):
        since = None
        for step, efforts, is_stalled in known:
            is_above = abs(efforts[joint]) > limit and is_stalled
            since = None if not is_above else step if since is None else since
        return since is not None and known[-1][0] - since >= lasting

    for step, (*efforts, error) in enumerate(steps, start=1):
        findings = gate.judge(context(efforts, step, measured=(error, error)), AT_ZERO)
        if any(map(math.isnan, efforts)):
            assert codes_of(findings) == [("load.unknown", ())]
            continue
        known.append((step, efforts, tracking_error is None or not error <= tracking_error))
        hits = {level: [is_too_large(joint, limit) for joint in (0, 1)] for level, limit in LEVELS.items()}
        worst = next((level for level in ("stop", "hold", "warn") if any(hits[level])), None)
        joints = tuple(name for name, is_hit in zip(JOINTS, hits.get(worst, (False, False)), strict=True) if is_hit)
        assert codes_of(findings) == ([] if worst is None else [(f"load.{worst}", joints)])


# ----------------------------------------------------------------------------------------------------------- contracts


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ({"sensor": "jionts"}, ".sensor"),
        ({"field": "efort"}, ".field"),
        ({"stop": None}, ""),
        ({"hold": 3.0}, ""),
        ({"warn": 4.0}, ""),
        ({"stop": 0.0}, ".stop"),
        ({"duration_s": -1.0}, ".duration_s"),
        ({"duration_s": 3601.0}, ".duration_s"),
        ({"tracking_error": 0.0}, ".tracking_error"),
        ({"sensor": "beacon", "field": "position", "tracking_error": 0.1}, ".tracking_error"),
    ],
)
def test_an_invalid_load_is_rejected(keys, path):
    with pytest.raises(ContractError) as caught:
        contract_with(arm={**EFFORT, "stop": 3.0, **keys})
    assert caught.value.path == f"safety.loads.arm{path}"


WRENCH = {
    "topic": "wrench",
    "type": "geometry_msgs/msg/WrenchStamped",
    "max_age_s": 0.1,
    "fields": {"force": {"unit": "N", "low": [-60.0, -60.0, -80.0], "high": 60.0}},
}


@pytest.mark.parametrize(
    ("safety", "path"),
    [
        ({"loads": {"tip": {"sensor": "wrench", "field": "force", "warn": 70.0, "stop": 80.0}}}, "safety.loads.tip"),
        ({"loads": {"tip": {"sensor": "wrench", "field": "force", "warn": 70.0, "stop": 79.0}}}, None),
        ({"loads": {"arm": {**EFFORT, "stop": 10.0}}}, None),  # beyond its range, efforts are reported
        ({"forces": {"wrench": {"field": "force", "limit": 117.0}}}, "safety.forces.wrench.limit"),
        ({"forces": {"wrench": {"field": "force", "limit": 116.0}}}, None),  # norm of 60, 60, 80: 116.6
    ],
)
def test_a_limit_that_a_saturating_sensor_never_exceeds_is_rejected(safety, path):
    document = json.loads(contract_with().text)
    document["sensors"]["wrench"] = WRENCH
    document["safety"].update(safety)
    if path is None:
        parse_contract(json.dumps(document))
        return
    with pytest.raises(ContractError) as caught:
        parse_contract(json.dumps(document))
    assert caught.value.path == path


def test_joints_commanded_by_velocity_have_no_stall():
    document = json.loads(contract_with(arm={**EFFORT, "stop": 3.0}).text)
    document["actuators"]["arm"]["command"] = "velocity"
    document["safety"]["loads"]["arm"]["tracking_error"] = 0.1
    with pytest.raises(ContractError) as caught:
        parse_contract(json.dumps(document))
    assert caught.value.path == "safety.loads.arm.tracking_error"


@pytest.mark.parametrize(
    ("change", "is_as_tight"),
    [
        ({}, True),
        *(({key: 0.5}, True) for key in (*LEVELS, "duration_s", "tracking_error")),
        *(({key: 9.0}, False) for key in (*LEVELS, "duration_s", "tracking_error")),
        *(({key: None}, False) for key in LEVELS),
        ({"tracking_error": None}, True),
        ({"sensor": "beacon"}, False),
        ({"field": "velocity"}, False),
    ],
    ids=str,
)
def test_a_contract_may_only_tighten_the_loads_of_its_robot_file(change, is_as_tight):
    robot = {**EFFORT, **LEVELS, "duration_s": 1.0, "tracking_error": 1.0}
    rule = SAFETY_RULES["loads"]
    assert rule({"arm": robot}, {"arm": {**robot, **change}}) is is_as_tight
    assert rule({}, {"arm": robot})
    assert not rule({"arm": robot}, {})
    assert not rule({"arm": {**robot, "tracking_error": None}}, {"arm": robot})


# --------------------------------------------------------------------------------------------------------- whole runs


def arm_with(**load):
    file = find_contract("arm_reach")
    document = yaml.safe_load(file.read_text())
    joints = [f"j{number}" for number in range(1, 7)]
    effort = {"joints": joints, "unit": "N*m", "low": -500.0, "high": 500.0}
    document.setdefault("sensors", {})["joints"] = {"fields": {"effort": effort}}
    document.setdefault("safety", {})["loads"] = {"motors": {"sensor": "joints", "field": "effort", **load}}
    return parse_contract(json.dumps(document), source=str(file))


@pytest.mark.needs("explain")
def test_an_overloaded_arm_is_stopped_recorded_replayed_and_explained(tmp_path):
    env = embodied_env.make(arm_with(hold=0.5, stop=1.0, duration_s=0.1), record=tmp_path)
    env.reset(seed=1)
    infos, is_over = [], False
    while not is_over:
        *_, terminated, truncated, info = env.step(np.ones(6))
        infos.append(info)
        is_over = terminated or truncated
    env.close()
    assert infos[-1]["end_reason"] == "safety_stop:load.stop"
    assert CODES["load.stop"] in infos[-1]["safety"]["joints"].values()
    assert Severity.HOLD not in infos[0]["safety"]["severity"]
    text = embodied_env.explain(infos[-1])
    assert CODE_TABLE["load.stop"].meaning in text
    assert CODE_TABLE["load.stop"].next_step in text
    assert_sound(env.path)
    assert_replays(env.path)


@pytest.mark.needs("vector")
def test_slots_with_loads_are_judged_one_by_one_as_single_environments():
    contract = arm_with(hold=0.5, duration_s=0.1)
    envs = embodied_env.make_vec(contract, num_envs=16)
    single = embodied_env.make(contract)
    envs.reset(seed=1)
    single.reset(seed=1)
    codes = []
    for _ in range(6):
        *_, infos = envs.step(np.ones((16, 6)))
        *_, info = single.step(np.ones(6))
        assert infos["safety"]["code"][0].tolist() == info["safety"]["code"].tolist()
        codes += info["safety"]["code"].tolist()
    assert CODES["load.hold"] in codes
    envs.close()
    single.close()
