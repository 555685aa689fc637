"""Numbers of a report over time, in buckets of steps."""

from __future__ import annotations

import math

import numpy as np

from embodied_env.analysis.report.time_series import BUCKETS, MOST_NAMES, Timeline


def test_short_timeline_has_a_bucket_per_step():
    timeline = Timeline(3)
    for step, value in enumerate((5.0, 6.0, 7.0), start=1):
        timeline.begin_step(step)
        timeline.add("a", value)
    assert (timeline.width, timeline.first_steps, timeline.curve("a").p50) == (1, [1, 2, 3], [5.0, 6.0, 7.0])


def test_bucket_covers_all_its_steps_exactly():
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


def test_bucket_without_values_is_a_gap():
    timeline = Timeline(3)
    for step in (1, 2, 3):
        timeline.begin_step(step)
        if step != 2:
            timeline.add("a", 1.0)
    assert math.isnan(timeline.curve("a").p50[1])
    assert timeline.shares("a") == [1.0, 0.0, 1.0]


def test_excess_steps_are_in_the_last_bucket():
    timeline = Timeline(2)
    for step in (1, 2, 3, 4):
        timeline.begin_step(step)
        timeline.add("a", float(step))
    assert timeline.curve("a").most == [1.0, 4.0]


def test_timeline_bounds_its_names_and_counts_the_rest():
    timeline = Timeline(1)
    timeline.begin_step(1)
    for name in range(MOST_NAMES + 5):
        timeline.add(name, 1.0)
    assert (len(timeline.series), timeline.series.left_out) == (MOST_NAMES, 5)


def test_timeline_without_steps_is_empty():
    assert Timeline(0).curve("a").counts == [0]
