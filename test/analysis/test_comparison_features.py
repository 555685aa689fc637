"""Features of a run in bounded memory: a uniform sample, and its autocorrelation."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest

from embodied_env.analysis.comparison.features import as_on_the_robot
from embodied_env.analysis.comparison.streams import QUANTILES, Stream, event_share
from embodied_env.analysis.report.time_series import Occurrences
from embodied_env.analysis.statistics import ks_distance
from embodied_env.core.latency.statistics import KEPT, Reservoir


def filled(values, **options):
    reservoir = Reservoir(**options)
    for value in values:
        reservoir.add(value)
    return reservoir


def stream_of(*episodes):
    stream = Stream()
    for index, values in enumerate(episodes):
        for value in values:
            stream.add_step([value], index)
    return stream


def test_sample_is_complete_up_to_its_capacity():
    assert filled([3.0, 1.0, 2.0], capacity=3).values().tolist() == [1.0, 2.0, 3.0]


def test_sample_is_bounded_and_reproducible():
    first, same, other = (filled(range(5000), capacity=50, seed=seed).values() for seed in "aab")
    assert len(first) == 50
    assert first.tolist() == same.tolist() != other.tolist()


def test_sample_is_uniform_over_time():
    """Each of 400 numbers is in one of 10 samples of 40; over 400 samples about 40 times."""
    counts = np.zeros(400)
    for seed in range(400):
        counts[filled(range(400), capacity=40, seed=str(seed)).values().astype(int)] += 1
    spread = math.sqrt(400 * 0.1 * 0.9)
    assert abs(counts[:40].mean() - 40) < 5 * spread / math.sqrt(40)
    assert abs(counts[-40:].mean() - 40) < 5 * spread / math.sqrt(40)
    assert abs(counts - 40).max() < 6 * spread


def test_sample_of_a_long_stream_has_its_distribution():
    values = np.random.default_rng(3).normal(size=100_000)
    assert ks_distance(filled(values).values(), values) < 1.63 / math.sqrt(KEPT)


def test_the_memory_of_a_stream_does_not_grow():
    reservoir = filled(range(3 * KEPT))
    assert len(reservoir.values()) == KEPT
    assert sys.getsizeof(reservoir._kept) < 12 * KEPT


def test_stream_has_count_mean_extremes_and_quantiles():
    found = stream_of([float(i) for i in range(1001)]).numbers()
    assert (found.count, found.missing, found.least, found.most, found.mean) == (1001, 0, 0.0, 1000.0, 500.0)
    assert [found.quantile(share) for share in (0.05, 0.5, 0.95)] == [50.0, 500.0, 950.0]
    assert (found.quantiles[0], found.quantiles[-1]) == (10.0, 990.0)
    assert sorted(QUANTILES) == list(QUANTILES)


def test_independent_numbers_count_fully():
    values = np.random.default_rng(1).normal(size=4000).tolist()
    assert stream_of(values).numbers().effective_count > 3500


def test_correlated_numbers_count_by_their_correlation():
    random, value, values = np.random.default_rng(2), 0.0, []
    for _ in range(40_000):
        value = 0.9 * value + random.normal()
        values.append(value)
    assert stream_of(values).numbers().effective_count == pytest.approx(40_000 / 19, rel=0.15)


def test_correlation_does_not_depend_on_the_offset():
    values = np.random.default_rng(1).normal(size=4000)
    near, far = (stream_of((values + offset).tolist()).numbers().effective_count for offset in (0.0, 1e6))
    assert far == pytest.approx(near, rel=1e-3)


def test_constant_per_episode_counts_once_per_episode():
    found = stream_of(*([float(episode % 7)] * 50 for episode in range(20))).numbers()
    assert found.effective_count == 20


def test_constant_numbers_count_fully():
    assert stream_of([0.0] * 50).numbers().effective_count == 50


def test_huge_numbers_do_not_overflow():
    found = stream_of([1e300, -1e300, 1e300]).numbers()
    assert found.effective_count == 3
    assert found.quantile(0.5) == 1e300


def test_numbers_of_one_step_count_as_one():
    stream = Stream()
    for step in range(30):
        stream.add_step([float(step // 10)] * 5, 0)
    found = stream.numbers()
    assert found.count == 150
    assert found.effective_count < 10


def test_event_counts_steps_once_with_their_correlation():
    scattered, together = Occurrences(), Occurrences()
    for step in range(0, 1000, 10):
        scattered.add(step)
        scattered.add(step)
    for step in range(100):
        together.add(step)
    first, second = event_share(scattered, 1000, 1), event_share(together, 1000, 1)
    assert (first.count, first.share) == (second.count, second.share) == (100, 0.1)
    assert second.effective_total < 10
    assert first.effective_total > 900


def test_absent_event_has_share_zero():
    assert event_share(Occurrences(), 10, 1).share == 0.0


def test_injected_delays_replace_the_stages_of_the_simulator():
    values = {"capture_age_s": {"joints": 0.0}, "obs_to_command_s": 0.001, "gate_s": 0.0002, "policy_s": 0.1}
    injected = {
        "age_s": {"joints": 0.02},
        "inference_s": 0.01,
        "data_age_s": {"joints": 0.03},
        "end_to_end_s": 0.07,
        "actuation_s": None,
    }
    quality = {**dict.fromkeys(values, 0), "capture_age_s": {"joints": 0}, "policy_s": 9}
    quality["injected"] = {**dict.fromkeys(injected, 0), "age_s": {"joints": 0}, "data_age_s": {"joints": 0}}
    assert as_on_the_robot({**values, "injected": injected, "quality": quality}) == {
        ("capture_age_s", "joints"): 0.02,
        ("obs_to_command_s", ""): 0.01,
        ("gate_s", ""): 0.0002,
        ("data_age_s", "joints"): 0.03,
        ("end_to_end_s", ""): 0.07,
    }
