"""Figures of one episode. To add one, write a function and name it in `FIGURES`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from embodied_env.analysis.report.charts import Line, Marks, event_chart, line_chart
from embodied_env.analysis.report.episode_traces import EpisodeTrace

MOST_JOINTS = 24
MOST_LINES = 8

_KINDS = ("requested", "applied", "measured")
_LONGEST_LIST = 30


def draw_events(trace: EpisodeTrace) -> Iterator[str]:
    """Draw the steps in which a gate acted, a reading was not good, a message was lost, or the policy was missing."""
    order = {"brake": 0, "limit": 1, "notice": 2}
    events = sorted(trace.events.items(), key=lambda item: (order[item[0][0]], -item[1].count))
    marks = [Marks(text, spans.spans, spans.count, style) for (style, text), spans in events[:_LONGEST_LIST]]
    if marks:
        yield event_chart("", marks, (1, trace.steps), x_title="step")


def draw_joints(trace: EpisodeTrace) -> Iterator[str]:
    """Draw of each joint what was requested, applied and measured, with its limits and where the gates acted."""
    for name in [name for kind, name in trace.series if kind == "applied"][:MOST_JOINTS]:
        joint = trace.joints.by_name.get(name)
        lines = [
            Line(kind, series.steps, series.values, kind, sets_range=kind != "requested")
            for kind in _KINDS
            if (series := trace.series.get((kind, name))) is not None
            and (kind == "applied" or _has_value(series.values))
        ]
        marks = [
            Marks({"limit": "limited", "brake": "braked"}[style], spans.spans, spans.count, style)
            for (style, of), spans in sorted(trace.limited.items())
            if of in (name, "")
        ]
        limits = (-math.inf, math.inf) if joint is None else joint.limits
        unit = "action" if joint is None else joint.unit
        yield line_chart(name, lines, x_title="step", unit=unit, limits=limits, marks=marks)


def draw_rewards(trace: EpisodeTrace) -> Iterator[str]:
    """Draw the reward and its terms; terms of equal value have one line each all the same."""
    if (reward := trace.series.get(("reward", ""))) is not None:
        yield line_chart("reward", [Line("reward", reward.steps, reward.values, "s0")], x_title="step")
    yield from _draw_all(trace, "term", "terms of the reward", "")


def draw_ages(trace: EpisodeTrace) -> Iterator[str]:
    """Draw the ages of the readings that the observation holds."""
    yield from _draw_all(trace, "age", "age of the readings", "ms")


def _draw_all(trace: EpisodeTrace, kind: str, title: str, unit: str) -> Iterator[str]:
    series = [(name, found) for (of, name), found in trace.series.items() if of == kind and _has_value(found.values)]
    for first in range(0, min(len(series), 3 * MOST_LINES), MOST_LINES):
        part = series[first : first + MOST_LINES]
        lines = [Line(name, found.steps, found.values, f"s{index}") for index, (name, found) in enumerate(part)]
        yield line_chart(title, lines, x_title="step", unit=unit)


def _has_value(values: object) -> bool:
    return any(map(math.isfinite, values))  # type: ignore[call-overload] # of an array


FIGURES: tuple[tuple[str, Callable[[EpisodeTrace], Iterator[str]]], ...] = (
    ("Events", draw_events),
    ("Joints", draw_joints),
    ("Reward", draw_rewards),
    ("Sensor ages", draw_ages),
)
"""Heading and function of the figures of an episode, in the order of the page."""


def draw_episode(trace: EpisodeTrace) -> list[tuple[str, list[str]]]:
    """Return the heading and the drawings of each entry of `FIGURES` that has any."""
    drawn = [(heading, list(draw(trace))) for heading, draw in FIGURES]
    return [(heading, figures) for heading, figures in drawn if figures]
