"""Percentiles per stage, of measured values only."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_env.core import latency_statistics as statistics
from embodied_env.core.code_types import Quality
from embodied_env.core.latency_statistics import (
    KEPT,
    LatencyColumns,
    LatencyStatistics,
    Percentiles,
    Reservoir,
    StageStatistics,
    StreamSample,
)
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.record.json_values import to_json_types


def latency_statistics(infos):
    accumulated = LatencyStatistics()
    for info in infos:
        accumulated.add(info)
    return accumulated.statistics()


def of_gate(value, quality=Quality.OK):
    """Return an info with one stage, gate_s."""
    return {"latency": {"gate_s": value, "quality": {"gate_s": int(quality)}}}


def of_joints(value, quality=Quality.OK):
    """Return an info with one stage of one sensor, hold_s of joints."""
    return {"latency": {"hold_s": {"joints": value}, "quality": {"hold_s": {"joints": int(quality)}}}}


def test_percentiles_of_one_to_a_hundred():
    found = latency_statistics(of_gate(float(value)) for value in range(1, 101))
    assert found == {"gate_s": StageStatistics(count=100, p50_s=50.5, p95_s=95.05, p99_s=99.01, max_s=100.0)}


@pytest.mark.parametrize("quality", [quality for quality in Quality if quality is not Quality.OK])
@pytest.mark.parametrize(("info", "name"), [(of_gate, "gate_s"), (of_joints, "hold_s[joints]")])
def test_only_measured_values_count(info, name, quality):
    missing = map(info, (math.nan, None, math.inf))
    found = latency_statistics([info(1.0), info(99.0, quality), *missing])
    assert found == {name: StageStatistics(count=1, p50_s=1.0, p95_s=1.0, p99_s=1.0, max_s=1.0)}
    assert latency_statistics([info(1.0, quality)]) == {}


@pytest.mark.parametrize("info", [{}, {"latency": None}, {"latency": {}}, {"reset": {"duration_s": 1.0}}])
def test_info_without_latency_is_ignored(info):
    assert latency_statistics([info]) == {}


def test_beyond_capacity_count_and_maximum_are_exact(monkeypatch):
    monkeypatch.setattr(statistics, "EXACT", 2000)
    values = np.random.default_rng(5).permutation(20_000) / 20_000
    (found,) = latency_statistics(map(of_gate, values.tolist())).values()
    assert (found.count, found.max_s) == (20_000, values.max())
    assert [found.p50_s, found.p95_s, found.p99_s] == pytest.approx([0.5, 0.95, 0.99], abs=0.05)


@pytest.fixture(scope="module")
def infos():
    """Return the infos of an episode in which only the third action was marked."""
    env = EmbodiedEnv("arm_reach", backend="fake", host_timing=True)
    env.reset(seed=1)
    found = []
    for step in range(4):
        if step == 2:
            env.mark("policy")
        found.append(env.step(np.zeros(6))[4])
    env.close()
    return found


def test_the_policy_stage_counts_only_marked_steps_and_the_period_all_but_the_first(infos):
    found = latency_statistics(infos)
    assert (found["policy_s"].count, found["period_s"].count) == (1, len(infos) - 1)


def test_recorded_infos_have_the_same_statistics(infos):
    recorded = json.loads(json.dumps([to_json_types(info) for info in infos]))
    assert latency_statistics(recorded) == latency_statistics(infos)


def test_injected_stages_have_separate_names():
    latency = {
        "inference_s": 0.5,
        "injected": {"age_s": {"joints": 0.02, "tcp": 0.05}, "inference_s": 0.01, "end_to_end_s": math.nan},
        "quality": {
            "inference_s": 0,
            "injected": {"age_s": {"joints": 0, "tcp": int(Quality.FIRST)}, "inference_s": 0, "end_to_end_s": 0},
        },
    }
    found = {stage: each.p50_s for stage, each in latency_statistics([{"latency": latency}]).items()}
    assert found == {"inference_s": 0.5, "injected.age_s[joints]": 0.02, "injected.inference_s": 0.01}


numbers = st.one_of(st.floats(-1e9, 1e9), st.integers(-3, 3).map(float))  # the latter repeat


@settings(max_examples=25, deadline=None)
@given(st.lists(numbers, min_size=1, max_size=40))
def test_percentiles_of_a_short_stream_are_exact(values):
    sample = StreamSample()
    for value in values:
        sample.add(value)
    p50, p95, p99 = np.percentile(values, (50, 95, 99)).tolist()
    assert sample.percentiles() == Percentiles(len(values), p50, p95, p99, min(values), max(values))


def test_sample_of_a_long_stream_is_bounded_with_exact_extremes():
    values = np.random.default_rng(1).lognormal(-6, 2, 30_000)
    sample = StreamSample()
    for value in values.tolist():
        sample.add(value)
    assert len(sample.values()) == KEPT
    assert sample.percentiles().p50 == pytest.approx(np.median(values), rel=0.1)
    assert (sample.least, sample.most) == (values.min(), values.max())


@given(st.lists(st.lists(st.floats(-1e6, 1e6), max_size=40), max_size=8))
def test_numbers_added_at_once_give_the_same_sample_as_one_by_one(parts):
    at_once, one_by_one = Reservoir(capacity=30), Reservoir(capacity=30)
    for part in parts:
        at_once.extend(np.array(part))
        for value in part:
            one_by_one.add(value)
    assert at_once.values().tolist() == one_by_one.values().tolist()
    assert (at_once.count, at_once.most) == (one_by_one.count, one_by_one.most)


def test_a_stream_sample_has_extremes_and_sum_of_numbers_added_at_once():
    sample = StreamSample()
    assert (sample.percentiles().count, math.isnan(sample.percentiles().p50)) == (0, True)
    sample.extend(np.array([2.0, -1.0, 4.0]))
    assert (sample.least, sample.most, sample.total, sample.count) == (-1.0, 4.0, 5.0, 3)


def test_columns_of_several_environments_give_the_statistics_of_each():
    taken = np.array([[True, True], [True, False], [True, True]])
    seconds = np.array([[0.1, 0.2], [0.3, 0.4], [math.nan, 0.6]])
    qualities = np.array([[0, 0], [0, 0], [0, int(Quality.UNMARKED)]])
    gathered, single = ([LatencyStatistics() for _ in range(2)] for _ in range(2))
    columns = LatencyColumns(gathered)
    for step in range(3):
        values = {"gate_s": seconds[step], "quality": {"gate_s": qualities[step]}}
        columns.add({"latency": values}, taken[step])
        for slot in np.flatnonzero(taken[step]).tolist():
            value, quality = float(seconds[step, slot]), int(qualities[step, slot])
            single[slot].add({"latency": {"gate_s": value, "quality": {"gate_s": quality}}})
    assert [each.statistics() for each in gathered] == [each.statistics() for each in single]
