import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_pages import HOSTILE, Html

from embodied_env.extensions.report import charts as drawing


def charts(name=HOSTILE, x=(0, 1, 2), y=(1.0, math.nan, 3.0)):
    marks = drawing.Marks(name, [(1, 1)], 1, "brake")
    return {
        "line": drawing.line_chart(
            name, [drawing.Line(name, x, y, "a")], x_title=name, unit=name, limits=(0, 2), marks=[marks]
        ),
        "event": drawing.event_chart([marks], (0, 2), x_title=name),
        "interval": drawing.interval_chart(name, [drawing.Interval(name, 0.5, 0.1, 0.9, name)]),
        "timeline": drawing.stacked_timeline(
            [(name, [1.0, 2.0], 3.1)], [("s0", name), ("s1", name)], unit=name, limit=2.0
        ),
        "strip": drawing.episode_strip(name, [drawing.Bar(name, {"success": 1.0}, 3, -1.0, -1.0, "#episode-1")]),
    }


@pytest.mark.parametrize("kind", charts())
def test_texts_are_escaped(kind):
    drawn = Html(charts()[kind])
    assert not {tag for tag, _ in drawn.elements} & {"script", "img"}
    assert not drawn.open
    assert "alert(1)" in " ".join(drawn.shown)


@pytest.mark.parametrize("kind", charts())
def test_every_drawing_has_an_accessible_name(kind):
    drawn = Html(charts(name="speed")[kind])
    assert drawn.of("svg")
    for attributes in (*drawn.of("svg"), *drawn.of("a")):
        assert "speed" in attributes["aria-label"]


def points_of(source):
    return [
        [[int(part) for part in pair.split(",")] for pair in re.findall(r"-?\d+,-?\d+", path["d"])]
        for path in Html(source).of("path")
        if "curve" in path.get("class", "")
    ]


numbers = st.one_of(st.floats(-1e6, 1e6), st.just(math.nan), st.just(math.inf))


@settings(max_examples=60, deadline=None)
@given(st.lists(numbers, max_size=60), st.integers(1, 6))
def test_downsampling_keeps_the_extremes_and_the_order(values, columns):
    x = np.arange(len(values))
    places, kept = drawing.extremes(x, values, columns)
    good = [value for value in values if math.isfinite(value)]
    assert len(places) == len(kept) <= max(2 * columns, 0)
    assert (np.diff(places) > 0).all()
    assert set(kept[np.isfinite(kept)]) <= set(good)
    if good:
        assert (np.nanmin(kept), np.nanmax(kept)) == (min(good), max(good))
    else:
        assert not np.isfinite(kept).any()


def test_each_column_keeps_its_own_extremes():
    values = np.random.default_rng(3).normal(size=10 * drawing.COLUMNS)
    _, kept = drawing.extremes(np.arange(len(values)), values)
    assert len(kept) == 2 * drawing.COLUMNS
    np.testing.assert_array_equal(kept.reshape(-1, 2).max(axis=1), values.reshape(-1, 10).max(axis=1))


def test_drawing_of_a_long_series_is_bounded():
    assert len(drawing.line_chart("x", [drawing.Line("x", np.arange(100_000), np.random.default_rng(0).normal(size=100_000), "a")],
                          x_title="step")) < 12_000  # fmt: skip


@pytest.mark.parametrize(
    "values", [[], [1.0], [math.nan], [math.nan, 2.0, math.nan], [1e308, -1e308], [0.0, 0.0], [5e-324]]
)
def test_degenerate_series_are_drawn(values):
    (points,) = points_of(drawing.line_chart("x", [drawing.Line("x", range(len(values)), values, "a")], x_title="step"))
    assert len({tuple(point) for point in points}) == sum(map(math.isfinite, values))


def test_an_outlier_of_a_request_does_not_flatten_the_other_lines():
    x = np.arange(3)
    lines = [
        drawing.Line("requested", x, [1e6, 0, 0], "requested", sets_range=False),
        drawing.Line("applied", x, [0, 1, 0.5], "applied"),
    ]
    requested, applied = points_of(drawing.line_chart("j1", lines, x_title="step"))
    assert requested[0][1] < 0  # above the chart
    assert max(y for _, y in applied) - min(y for _, y in applied) > 300


def test_the_caption_names_the_range_of_a_line_that_leaves_the_chart():
    lines = [
        drawing.Line("requested", [0, 1], [9.0, 0.0], "requested", sets_range=False),
        drawing.Line("applied", [0, 1], [0, 1], "a"),
    ]
    assert "requested 0 to 9.00, cut off at the edge" in drawing.line_chart("j1", lines, x_title="step")
    assert "cut off" not in drawing.line_chart("j1", lines[1:], x_title="step")


def test_ends_beyond_the_limits_are_shaded():
    drawn = Html(
        drawing.line_chart("j1", [drawing.Line("x", [0, 1], [-2.0, 2.0], "a")], x_title="step", limits=(-1.0, 1.0))
    )
    assert len([each for each in drawn.of("rect") if each["class"] == "beyond"]) == 2
    drawn = Html(
        drawing.line_chart("j1", [drawing.Line("x", [0, 1], [-0.2, 0.2], "a")], x_title="step", limits=(-1.0, 1.0))
    )
    assert not drawn.of("rect")


def test_adjacent_marks_are_one_bar():
    drawn = Html(drawing.event_chart([drawing.Marks("gate", [(3, 4), (5, 5), (90, 90)], 4)], (0, 100), x_title="step"))
    (path,) = drawn.of("path")
    assert path["d"].count("M") == 2


def test_bars_of_the_strip_are_links_to_their_episodes():
    bars = [drawing.Bar("episode 1", {"success": 0.5, "failure": 0.5}, 3, -1.0, 2.0, "#episode-1"),
            drawing.Bar("episode 2", {"cut": 1.0}, 0, math.nan, math.nan)]  # fmt: skip
    drawn = Html(drawing.episode_strip("Episodes", bars))
    assert [link["href"] for link in drawn.of("a")] == ["#episode-1"]
    assert [rect["class"] for rect in drawn.of("rect") if rect["class"] != "hit"] == ["success", "failure", "cut"]


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3.7, 12.2), (1e-9, 3e-9), (1e12, 3e12)])
def test_ticks_are_round_and_inside(low, high):
    found = drawing.ticks(low, high)
    assert 2 <= len(found) <= 6
    assert all(low - 1e-9 * abs(low) <= tick <= high * (1 + 1e-9) for tick in found)
