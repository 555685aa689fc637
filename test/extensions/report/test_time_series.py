"""Values and events over the steps of an episode, in bounded memory."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_env.extensions.report.charts import COLUMNS
from embodied_env.extensions.report.time_series import BoundedDict, Spans, Trace


def test_short_trace_keeps_every_value():
    trace = Trace()
    for step, value in enumerate((5.0, float("nan"), 7.0), start=1):
        trace.add(step, value)
    trace.end()
    assert trace.steps.tolist() == [1.0, 2.0, 3.0]
    np.testing.assert_array_equal(trace.values, [5.0, np.nan, 7.0])


def test_long_trace_is_bounded_and_keeps_its_extremes():
    trace, values = Trace(), np.random.default_rng(2).normal(size=20_000)
    for step, value in enumerate(values):
        trace.add(step, float(value))
    assert len(trace.values) < 8 * COLUMNS
    trace.end()
    assert len(trace.values) <= 2 * COLUMNS
    assert (trace.values.min(), trace.values.max()) == (values.min(), values.max())
    np.testing.assert_array_equal(values[trace.steps.astype(int)], trace.values)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 200), unique=True).map(sorted))
def test_spans_cover_exactly_their_steps(steps):
    spans = Spans()
    for step in steps:
        spans.add(step)
        spans.add(step)
    covered = [step for first, last in spans.spans for step in range(first, last + 1)]
    assert (spans.count, covered) == (len(steps), steps)


def test_many_spans_are_joined_but_counted_exactly():
    spans = Spans()
    for step in range(0, 10_000, 2):
        spans.add(step)
    assert len(spans.spans) <= COLUMNS
    assert (spans.count, spans.spans[0][0], spans.spans[-1][1]) == (5_000, 0, 9_998)


def test_names_are_bounded_and_the_rest_is_counted():
    names = BoundedDict(list, 3)
    for name in range(5):
        names.entry(name)
    assert (len(names), names.left_out) == (3, 2)
