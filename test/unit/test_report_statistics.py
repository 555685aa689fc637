"""Intervals, percentiles of streams, and numbers over time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_env.report.sketch import Sketch
from embodied_env.report.statistics import wilson_interval
from embodied_env.report.timeline import BUCKETS, MOST_NAMES, Timeline


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(0, 10, 0.0, 0.27753), (10, 10, 0.72247, 1.0), (5, 10, 0.23659, 0.76341), (81, 263, 0.25526, 0.36617), (1, 1, 0.20654, 1.0)],
)  # fmt: skip
def test_wilson_gives_the_published_intervals(successes, trials, low, high):
    assert wilson_interval(successes, trials) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 10_000), st.data())
def test_an_interval_holds_its_share_and_mirrors_with_failures(trials, data):
    successes = data.draw(st.integers(0, trials))
    low, high = wilson_interval(successes, trials)
    assert 0.0 <= low <= successes / trials <= high <= 1.0
    mirrored = wilson_interval(trials - successes, trials)
    assert (1 - mirrored[1], 1 - mirrored[0]) == pytest.approx((low, high))


def test_more_trials_of_the_same_share_narrow_the_interval():
    narrow, wide = wilson_interval(500, 1000), wilson_interval(5, 10)
    assert narrow[1] - narrow[0] < wide[1] - wide[0]


def test_more_confidence_widens_the_interval():
    sure, quick = wilson_interval(5, 10, confidence=0.99), wilson_interval(5, 10, confidence=0.9)
    assert sure[0] < quick[0]
    assert sure[1] > quick[1]


@pytest.mark.parametrize(
    ("successes", "trials", "confidence", "allowed"),
    [(0, 0, 0.95, "1 or more"), (3, 2, 0.95, "0 to 2"), (-1, 2, 0.95, "0 to 2"), (1, 2, 1.0, "below 1"), (1, 2, math.nan, "below 1")],
)  # fmt: skip
def test_what_is_no_count_or_confidence_is_refused(successes, trials, confidence, allowed):
    with pytest.raises(ValueError, match=allowed):
        wilson_interval(successes, trials, confidence=confidence)


NUMBERS = st.floats(-1e6, 1e6).filter(lambda value: value == 0 or abs(value) > 1e-9)


@given(st.lists(NUMBERS, min_size=1, max_size=300), st.sampled_from([0.0, 0.5, 0.95, 0.99, 1.0]))
def test_a_percentile_of_a_sketch_is_the_value_of_its_rank_within_half_a_percent(values, share):
    sketch = Sketch()
    for value in values:
        sketch.add(value)
    exact = sorted(values)[math.floor(share * (len(values) - 1))]
    assert abs(sketch.quantile(share) - exact) <= 0.00501 * abs(exact)


def test_a_sketch_of_nothing_says_so():
    spread = Sketch().spread()
    assert spread.count == 0
    assert math.isnan(spread.p50)


def test_a_sketch_does_not_grow_with_its_numbers():
    sketch = Sketch()
    for value in np.random.default_rng(1).lognormal(-6, 2, 50_000):
        sketch.add(float(value))
    assert len(sketch._positive) < 2_500


def test_a_timeline_of_few_steps_has_each_of_them():
    timeline = Timeline(3)
    for step, value in enumerate((5.0, 6.0, 7.0), start=1):
        timeline.begin_step(step)
        timeline.add("a", value)
    assert (timeline.width, timeline.first_steps, timeline.curve("a").p50) == (1, [1, 2, 3], [5.0, 6.0, 7.0])


def test_a_bucket_says_what_all_its_steps_say_exactly():
    timeline = Timeline(10 * BUCKETS)
    values = np.random.default_rng(2).normal(size=10 * BUCKETS)
    for step, value in enumerate(values, start=1):
        timeline.begin_step(step)
        timeline.add("a", float(value))
    curve = timeline.curve("a")
    table = values.reshape(BUCKETS, 10)
    np.testing.assert_allclose(curve.p95, np.percentile(table, 95, axis=1))
    np.testing.assert_allclose(curve.least, table.min(axis=1))
    np.testing.assert_allclose(curve.most, table.max(axis=1))


def test_a_bucket_without_a_number_is_a_gap():
    timeline = Timeline(3)
    for step in (1, 2, 3):
        timeline.begin_step(step)
        if step != 2:
            timeline.add("a", 1.0)
    assert math.isnan(timeline.curve("a").p50[1])
    assert timeline.shares("a") == [1.0, 0.0, 1.0]


def test_steps_behind_the_expected_ones_go_into_the_last_bucket():
    timeline = Timeline(2)
    for step in (1, 2, 3, 4):
        timeline.begin_step(step)
        timeline.add("a", float(step))
    assert timeline.curve("a").most == [1.0, 4.0]


def test_a_timeline_keeps_a_bounded_number_of_names_and_counts_the_rest():
    timeline = Timeline(1)
    timeline.begin_step(1)
    for name in range(MOST_NAMES + 5):
        timeline.add(name, 1.0)
    assert (len(timeline.names()), timeline.left_out) == (MOST_NAMES, 5)


def test_a_timeline_of_no_step_is_empty():
    assert Timeline(0).curve("a").count == [0]
