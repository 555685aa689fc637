"""In a free-running world, a delay appears in its own field and in each sum that contains it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import scripted_tasks
from delayed_fake import DelayedFake, FakeDelays
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_tasks import PERIOD_NS, PERIOD_S, OneClock

from embodied_env.backends.fake_backend import FakeBackend
from embodied_env.core.code_types import Quality
from embodied_env.core.types import ActuationEvidence, ClockStatus, Sample, Snapshot
from embodied_env.envs.latency_info import CommandsInFlight, LatencyInfoBuilder
from embodied_env.envs.stepper import Stepper
from embodied_env.tasks import load_task
from embodied_env.timing.clock import NS_PER_S, ManualClock
from embodied_env.timing.ledger import Ledger, LedgerState, StepEvent

CONTRACT = scripted_tasks.contract(episode__horizon_steps=1000)
DELAY_S = 0.007
TOLERANCE_S = 1e-9

SENSOR_STAGES = ("driver_s", "transport_s", "queue_s", "hold_s")
STEP_STAGES = ("handoff_s", "inference_s", "gate_s", "publish_s", "actuation_s")
SUMS = {
    "driver_s": {"capture_age_s", "data_age_s", "obs_age_max_s", "end_to_end_s"},
    "transport_s": {"capture_age_s", "data_age_s", "obs_age_max_s", "end_to_end_s"},
    "queue_s": {"capture_age_s", "data_age_s", "obs_age_max_s", "end_to_end_s"},
    "inference_s": {"obs_to_command_s", "data_age_s", "end_to_end_s"},
    "publish_s": {"obs_to_command_s", "data_age_s", "end_to_end_s"},
    "actuation_s": {"end_to_end_s"},
}


def latency_with(*, inference_s=0.0, **delays):
    """Return the latency of the third step of a world with these delays, as one flat dict."""
    clock = OneClock(start_ns=NS_PER_S)
    backend = DelayedFake(CONTRACT, clock=clock, delays=FakeDelays(**delays))
    stepper = Stepper(CONTRACT, backend, load_task(CONTRACT, trust=True), clock=clock)
    stepper.reset(world_seed=1, options={}, seeded=True)
    for _ in range(3):
        clock.advance_ns(round(inference_s * NS_PER_S))
        stepper.begin(np.zeros(2))
        info = stepper.finish().info
    stepper.close()
    return info["latency"]


def flat(latency):
    """Return seconds by stage, with the value of the joints for a stage of each sensor."""
    return {
        name: value["joints"] if isinstance(value, dict) else value
        for name, value in latency.items()
        if name.endswith("_s")
    }


CALM = flat(latency_with())


@pytest.mark.parametrize(("name", "stage"), [(f"{n}", n) for n in SUMS])
def test_delay_appears_only_in_its_stage_and_sums(name, stage):
    found = flat(latency_with(**{name: DELAY_S}))
    grown = {other for other in found if abs(found[other] - CALM[other] - DELAY_S) < TOLERANCE_S}
    same = {other for other in found if abs(found[other] - CALM[other]) < TOLERANCE_S}
    moved = {"world_s"}  # the rest of the period is shorter by the time spent before the command
    assert {other for other in grown if other in (*SENSOR_STAGES, *STEP_STAGES)} == {stage}
    assert grown - {stage} - {"policy_s"} == SUMS[stage]
    assert set(found) - grown - same <= moved


def test_data_age_is_that_of_the_previous_observation_and_end_to_end_adds_actuation():
    latency = latency_with(driver_s=0.004, inference_s=0.011, actuation_s=0.02)
    age_s = latency["data_age_s"]["joints"]
    assert age_s == pytest.approx(0.004 + latency["obs_to_command_s"])
    assert latency["end_to_end_s"] == pytest.approx(age_s + 0.02)


def test_late_steps_and_missed_deadlines_are_counted():
    latency = latency_with(inference_s=2.5 * PERIOD_S)
    assert latency["overruns"] == 3
    assert latency["missed_deadlines"] == 6  # two in each of the three steps
    assert latency["overrun_s"] == latency["jitter_s"] == pytest.approx(1.5 * PERIOD_S)


def test_a_lockstep_world_has_neither_data_age_nor_deadlines_nor_clock():
    clock = OneClock()
    stepper = Stepper(CONTRACT, FakeBackend(CONTRACT, clock=clock), load_task(CONTRACT, trust=True), clock=clock)
    stepper.reset(world_seed=1, options={}, seeded=True)
    stepper.begin(np.zeros(2))
    latency = stepper.finish().info["latency"]
    assert not {"data_age_s", "jitter_s", "overrun_s", "missed_deadlines", "clock", "actuation_s"} & set(latency)


NOW_NS = 50 * NS_PER_S


def sample(name="joints", **fields):
    whole = {
        "values": {},
        "stamp_ns": NOW_NS - 9_000_000,
        "header_ns": NOW_NS - 9_000_000,
        "source_ns": NOW_NS - 6_000_000,
        "received_ns": NOW_NS - 4_000_000,
        "arrival_system_ns": NOW_NS - 3_000_000,
        "arrival_ns": NOW_NS - 3_000_000,
        **fields,
    }
    return Sample(sensor=name, **whole)


WALL = ClockStatus(mode="wall")


def builder(sensors=("joints",), *, primary=None, **changes):
    known: dict = {"transport": False, "moves_by_itself": True, "pacer": None, "commands": None}
    return LatencyInfoBuilder(sensors=sensors, primary=primary, period_ns=PERIOD_NS, **{**known, **changes})


def account(*samples, clock=WALL, actuation=None, commands=None):
    """Return the latency of a step with these samples at its start and end, and its command sent at NOW_NS."""
    names = tuple(each.sensor for each in samples)
    stages = builder(names, primary=names[0], transport=True, commands=commands or CommandsInFlight())
    ledger = Ledger(ManualClock(start_ns=NOW_NS))
    ledger.load(LedgerState(stamps_ns=(NOW_NS,) * len(StepEvent), is_first=True, is_marked=False))
    snapshot = Snapshot(
        now_ns=NOW_NS, samples={each.sensor: each for each in samples}, clock=clock, actuation=actuation
    )
    return stages.build(ledger, snapshot, snapshot)


def stage(latency, name, sensor="joints"):
    value, quality = latency[name], latency["quality"][name]
    return (value[sensor], quality[sensor]) if isinstance(value, dict) else (value, quality)


def test_sensor_stages_add_up():
    latency = account(sample())
    parts = [stage(latency, name)[0] for name in SENSOR_STAGES]
    assert parts == [0.003, 0.002, 0.001, 0.003]
    assert stage(latency, "capture_age_s") == (pytest.approx(sum(parts)), Quality.OK)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("driver_s", {"header_ns": NOW_NS}),
        ("transport_s", {"source_ns": NOW_NS}),
        ("queue_s", {"received_ns": NOW_NS}),
        ("hold_s", {"arrival_ns": NOW_NS + 1}),
        ("capture_age_s", {"stamp_ns": NOW_NS + 1}),
    ],
)
def test_negative_duration_is_kept_and_marked(name, fields):
    value, quality = stage(account(sample(**fields)), name)
    assert value < 0
    assert quality == Quality.NEGATIVE


@pytest.mark.parametrize(
    ("name", "fields", "expected"),
    [
        ("driver_s", {"header_ns": None}, Quality.UNKNOWN),
        ("driver_s", {"source_ns": None}, Quality.UNKNOWN),
        ("driver_s", {"stamp_quality": Quality.FALLBACK_SOURCE}, Quality.FALLBACK_SOURCE),
        ("transport_s", {"source_ns": None}, Quality.UNKNOWN),
        ("transport_s", {"received_ns": None}, Quality.UNKNOWN),
        ("transport_s", {"transport_quality": Quality.JUMP}, Quality.JUMP),
        ("queue_s", {"arrival_system_ns": None}, Quality.UNKNOWN),
        ("queue_s", {"transport_quality": Quality.JUMP}, Quality.JUMP),
        ("transport_excess_s", {"transport_excess_s": None}, Quality.UNKNOWN),
        ("actuation_s", {}, Quality.UNKNOWN),
        ("end_to_end_s", {}, Quality.UNKNOWN),
    ],
)
def test_a_duration_that_cannot_be_computed_is_nan_with_the_reason(name, fields, expected):
    value, quality = stage(account(sample(**fields)), name)
    assert math.isnan(value)
    assert quality == expected


def test_an_age_has_the_quality_of_its_stamp_and_needs_a_real_time_factor_of_one():
    for known in (Quality.UNSYNCED, Quality.FALLBACK_SOURCE, Quality.FALLBACK_RECEIVED):
        latency = account(sample(stamp_quality=known))
        assert stage(latency, "capture_age_s")[1] == stage(latency, "data_age_s")[1] == known
    for rtf in (0.2, 0.98, 1.02, 5.0):
        value, quality = stage(account(sample(), clock=ClockStatus(mode="sim", rtf=rtf)), "data_age_s")
        assert (math.isnan(value), quality) == (True, Quality.UNSYNCED)


def test_unsynced_clocks_report_only_transport_excess():
    latency = account(sample(transport_quality=Quality.UNSYNCED, transport_excess_s=0.002))
    value, quality = stage(latency, "transport_s")
    assert math.isnan(value)
    assert quality == Quality.UNSYNCED
    assert stage(latency, "transport_excess_s") == (0.002, Quality.OK)
    assert stage(account(sample(transport_quality=Quality.UNSYNCED)), "transport_s") == (0.002, Quality.UNSYNCED)


def test_the_age_of_a_held_reading_is_measured_without_its_transport_unless_the_world_is_lost():
    latency, good = account(sample(quality=Quality.STALE)), account(sample())
    for name in ("capture_age_s", "hold_s", "data_age_s"):
        assert stage(latency, name) == stage(good, name)
    assert latency["obs_age_max_s"] == good["obs_age_max_s"]
    assert latency["quality"]["obs_age_max_s"] == Quality.OK
    others = set(SENSOR_STAGES) - {"hold_s"}
    assert {stage(latency, name)[1] for name in others} == {Quality.STALE}
    lost = account(sample(quality=Quality.LOST))
    assert {stage(lost, name)[1] for name in (*SENSOR_STAGES, "capture_age_s", "data_age_s")} == {Quality.LOST}


def test_the_skew_is_between_the_first_and_the_last_reading_with_the_quality_of_the_worst():
    latency = account(sample(), sample("beacon", stamp_ns=NOW_NS - 20_000_000))
    assert stage(latency, "obs_skew_s") == (pytest.approx(0.011), Quality.OK)
    unsynced = account(sample(), sample("beacon", stamp_quality=Quality.UNSYNCED))
    assert stage(unsynced, "obs_skew_s")[1] == Quality.UNSYNCED


def test_lost_world_keeps_its_last_clock_status():
    stages = builder()
    ledger = Ledger(ManualClock())
    known = Snapshot(now_ns=NOW_NS, samples={"joints": sample()}, clock=ClockStatus(mode="wall", epoch=3))
    stages.build(ledger, known, known)
    lost = replace(known, clock=None)
    assert stages.build(ledger, known, lost)["clock"]["epoch"] == 3


def in_flight(*left):
    commands = CommandsInFlight()
    for seq, published_ns in left:
        commands.record_sent(seq, published_ns)
    return commands


@pytest.mark.parametrize(
    ("seq", "acted_ns", "method", "found"),
    [
        (1, NOW_NS + 30_000_000, "echo", (0.03, Quality.OK, 2, 1)),
        (3, NOW_NS, "echo", (None, Quality.UNKNOWN, -1, 0)),
        (1, NOW_NS - 1, "controller", (-1e-9, Quality.NEGATIVE, 2, 2)),
    ],
    ids=["sent", "unknown", "before it was sent"],
)
def test_evidence_is_matched_by_the_number_of_its_command(seq, acted_ns, method, found):
    evidence = ActuationEvidence(seq=seq, acted_ns=acted_ns, method=method)
    latency = account(sample(), actuation=evidence, commands=in_flight((1, NOW_NS), (2, NOW_NS + 1), (4, NOW_NS + 2)))
    value, quality = stage(latency, "actuation_s")
    value = None if math.isnan(value) else value
    assert (value, quality, latency["actuation_behind"], latency["actuation_method"]) == found


def test_declared_actuation_is_not_a_measurement():
    evidence = ActuationEvidence(seq=1, acted_ns=NOW_NS + 1, method="declared")
    latency = account(sample(), actuation=evidence, commands=in_flight((1, NOW_NS)))
    assert stage(latency, "actuation_s")[1] == stage(latency, "end_to_end_s")[1] == Quality.DECLARED


QUALITIES = st.sampled_from(list(Quality))
STAMPS = st.integers(NOW_NS - 10 * NS_PER_S, NOW_NS + NS_PER_S)


@given(
    fields=st.fixed_dictionaries(
        {
            "quality": QUALITIES,
            "stamp_quality": QUALITIES,
            "transport_quality": QUALITIES,
            "stamp_ns": STAMPS,
            "header_ns": st.none() | STAMPS,
            "source_ns": st.none() | STAMPS,
            "received_ns": st.none() | STAMPS,
            "arrival_ns": STAMPS,
            "arrival_system_ns": st.none() | STAMPS,
        }
    )
)
def test_ok_values_are_finite_and_not_negative(fields):
    latency = account(sample(**fields))
    for name in latency["quality"]:
        value, quality = stage(latency, name)
        if quality == Quality.OK and name != "jitter_s":
            assert value >= 0


READINGS = st.fixed_dictionaries(
    {
        "quality": st.just(Quality.OK) | QUALITIES,
        "stamp_quality": st.just(Quality.OK) | QUALITIES,
        "stamp_ns": st.just(NOW_NS) | STAMPS,
        "arrival_ns": st.just(NOW_NS) | STAMPS,
    }
)


@settings(max_examples=30)
@given(first=READINGS, second=READINGS)
def test_sensor_stages_are_independent_and_aggregates_take_the_worst(first, second):
    alone = [account(sample(name, **fields)) for name, fields in (("joints", first), ("beacon", second))]
    both = account(sample(**first), sample("beacon", **second))
    for name in ("capture_age_s", "hold_s"):
        assert both[name] == {**alone[0][name], **alone[1][name]}
        assert both["quality"][name] == {**alone[0]["quality"][name], **alone[1]["quality"][name]}
    ages = both["quality"]["capture_age_s"].values()
    assert both["obs_age_max_s"] == max(both["capture_age_s"].values())
    assert both["quality"]["obs_age_max_s"] == next((code for code in ages if code), 0)
    stamps = [first["stamp_ns"], second["stamp_ns"]]
    assert both["obs_skew_s"] == (max(stamps) - min(stamps)) / NS_PER_S


def test_stages_without_sensors_are_unknown():
    stages = builder((), moves_by_itself=False)
    nothing = Snapshot(now_ns=NOW_NS, samples={})
    latency = stages.build(Ledger(ManualClock()), nothing, nothing)
    for name in ("obs_skew_s", "obs_age_max_s"):
        assert math.isnan(latency[name])
        assert latency["quality"][name] == Quality.UNKNOWN
