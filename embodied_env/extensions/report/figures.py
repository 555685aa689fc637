"""Figures of a report on all episodes and on the chosen one.

To add one of an episode, write a function and name it in `FIGURES`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embodied_env.extensions.report import charts
from embodied_env.extensions.report.charts import Bar, Interval, Line, Marks, line_chart
from embodied_env.extensions.report.episode_traces import ChunkCurves, EpisodeTrace
from embodied_env.extensions.report.html_pages import format_number, mapping_of, plural, share_of
from embodied_env.extensions.report.time_series import Trace
from embodied_env.record.run import read_json
from embodied_env.record.summary import EpisodeOutcome, Rate

KINDS = {
    "success": "success",
    "failure": "failure",
    "stopped": "stopped: gates, readings, world or policy",
    "time": "time limit",
    "apart": "solved at reset or first step: in no rate",
    "cut": "cut off",
}
"""Kinds of ends in the strip, by their name in the style sheet."""

MOST_JOINTS = 24
MOST_LINES = 8

_KINDS = ("requested", "applied", "measured")
_LONGEST_LIST = 30
_MOST_BARS = 240
_MOST_REASONS = 8


def draw_rates(rates: Iterable[tuple[str, str, Rate]]) -> str:
    """Draw success rates with their intervals, each with its label and the noun of a trial."""
    rows = []
    for name, noun, rate in rates:
        text = f"no {noun}"
        if rate.trials:
            share, low, high = (f"{100 * value:.0f}" for value in (rate.share, rate.low, rate.high))
            text = f"{share}\u00a0% ({low} to {high}\u00a0%), {rate.successes:,} of {plural(rate.trials, noun)}"
        rows.append(Interval(name, rate.share, rate.low, rate.high, text))
    return charts.interval_chart("Success rate, 95 % interval", rows)


def draw_reasons(summary: Mapping[str, Any]) -> str:
    """Draw the share of the episodes that ended for each reason, with its interval."""
    reasons, total = sorted(summary["end_reasons"].items(), key=lambda item: (-item[1], item[0])), summary["episodes"]
    rows = []
    for reason, count in reasons[:_MOST_REASONS]:
        rate, text = Rate.of(count, total), f"{count:,} ({share_of(count, total)})"
        rows.append(Interval(reason, rate.share, rate.low, rate.high, text, "reason"))
    if more := reasons[_MOST_REASONS:]:
        others = sum(count for _, count in more)
        rows.append(Interval(plural(len(more), "other reason"), math.nan, math.nan, math.nan, f"{others:,}"))
    return charts.interval_chart("Why episodes ended", rows) if rows else ""


def draw_strip(episodes: Sequence[EpisodeOutcome], shown: Iterable[int]) -> str:
    """Draw all episodes in order, in columns that link to the first of `shown` in them."""
    per_bar, numbers = max(1, math.ceil(len(episodes) / _MOST_BARS)), set(shown)
    bars = []
    for first in range(0, len(episodes), per_bar):
        group = episodes[first : first + per_bar]
        counts = Counter(episode.kind for episode in group)
        rewards = [episode.reward for episode in group if math.isfinite(episode.reward) and episode.steps]
        link = next((f"#episode-{episode.number}" for episode in group if episode.number in numbers), "")
        bars.append(
            Bar(
                text=_describe(group),
                shares={kind: counts[kind] / len(group) for kind in KINDS if counts[kind]},
                length=sum(episode.steps for episode in group) / len(group),
                low=min(rewards, default=math.nan),
                high=max(rewards, default=math.nan),
                href=link,
            )
        )
    title = "Episodes" if per_bar == 1 else f"Episodes, {per_bar} per column: mean length, range of returns"
    return charts.episode_strip(title, bars) if bars else ""


def _describe(group: Sequence[EpisodeOutcome]) -> str:
    first, last = group[0], group[-1]
    if first is last:
        size = f"{plural(first.steps, 'step')}, return {format_number(first.reward)}"
        return f"episode {first.number}: {first.end}, {size}"
    ends = Counter(episode.end for episode in group).most_common(3)
    return f"episodes {first.number} to {last.number}: {', '.join(f'{end} {count}' for end, count in ends)}"


def draw_events(trace: EpisodeTrace) -> Iterator[str]:
    """Draw the steps with a gate action, a bad or lost reading, or no policy."""
    order = {"brake": 0, "limit": 1, "notice": 2}
    events = sorted(trace.events.items(), key=lambda item: (order[item[0][0]], -item[1].count))
    marks = [Marks(text, spans.spans, spans.count, style) for (style, text), spans in events[:_LONGEST_LIST]]
    if marks:
        yield charts.event_chart(marks, (1, trace.steps), x_title="step")


def draw_joints(trace: EpisodeTrace) -> Iterator[str]:
    """Draw chunks, requested, applied and measured values of each joint, its limits and gates."""
    for index, name in enumerate([name for kind, name in trace.series if kind == "applied"][:MOST_JOINTS]):
        joint = trace.joints.by_name.get(name)
        lines = [
            Line(kind, series.steps, series.values, kind, sets_range=kind != "requested")
            for kind in _KINDS
            if (series := trace.series.get((kind, name))) is not None and (kind == "applied" or _has_value(series))
        ]
        marks = [
            Marks({"limit": "limited", "brake": "braked"}[style], spans.spans, spans.count, style)
            for (style, of), spans in sorted(trace.limited.items())
            if of in (name, "")
        ]
        limits = (-math.inf, math.inf) if joint is None else joint.limits
        unit = "action" if joint is None else joint.unit
        below = _chunk_lines(trace.chunks, index)
        yield charts.line_chart(name, lines, x_title="step", unit=unit, limits=limits, marks=marks, below=below)


def _chunk_lines(chunks: ChunkCurves, joint: int) -> list[Line]:
    if joint >= chunks.values.shape[1]:
        return []
    name = "chunks" if chunks.drawn == chunks.count else f"chunks, {chunks.drawn} of {chunks.count:,}"
    return [Line(name, chunks.steps, chunks.values[:, joint], "chunk", sets_range=False)]


def draw_rewards(trace: EpisodeTrace) -> Iterator[str]:
    """Draw the reward and its terms."""
    reward = trace.series.get(("reward", ""))
    lines = [] if reward is None else [Line("reward", reward.steps, reward.values, "reward")]
    yield from _draw_all(trace, "term", "reward and its terms", "", lines)


def draw_ages(trace: EpisodeTrace) -> Iterator[str]:
    """Draw the ages of the observed readings, unless all are 0, as in lockstep."""
    if any(np.any(series.values > 0.0) for (kind, _), series in trace.series.items() if kind == "age"):
        yield from _draw_all(trace, "age", "age of the readings", "ms")


def _draw_all(trace: EpisodeTrace, kind: str, title: str, unit: str, first: Sequence[Line] = ()) -> Iterator[str]:
    found = [(name, series) for (of, name), series in trace.series.items() if of == kind and _has_value(series)]
    lines = [*first, *(Line(name, series.steps, series.values, f"s{i % 8}") for i, (name, series) in enumerate(found))]
    for start in range(0, min(len(lines), 3 * MOST_LINES), MOST_LINES):
        yield charts.line_chart(title, lines[start : start + MOST_LINES], x_title="step", unit=unit)


def _has_value(series: Trace) -> bool:
    return bool(np.isfinite(series.values).any())


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


_FILE = "playback.json"
_MOST_EPISODES, _MOST_CHARTS = 5, 6  # that are drawn; charts of an episode


def draw_deviations(folder: Path) -> list[str]:
    """Return charts of the differences, first those that diverged first, of a valid file only."""
    try:
        content = read_json(folder / _FILE)
    except ValueError:
        return []
    episodes, period_s = mapping_of(content).get("episodes"), _number(mapping_of(content).get("control_period_s"))
    if not isinstance(episodes, list) or not 0.0 < period_s < math.inf:
        return []
    charts = []
    for number, episode in enumerate(episodes[:_MOST_EPISODES], start=1):
        columns = {name: mapping_of(each) for name, each in mapping_of(episode, "columns").items()}
        differing = [name for name, each in columns.items() if _number(each.get("worst")) > 0.0]
        diverged_s = {name: np.nan_to_num(_number(columns[name].get("diverged_s")), nan=math.inf) for name in differing}
        for name in sorted(differing, key=lambda each: diverged_s[each])[:_MOST_CHARTS]:
            values = columns[name].get("difference")
            if isinstance(values, list) and values:
                y = np.array([_number(value) for value in values])
                line = Line("played less recorded", period_s * np.arange(len(y)), y, "s0")
                charts.append(line_chart(f"episode {number}: {name}", [line], x_title="time, s"))
    return charts


def _number(value: Any) -> float:  # noqa: ANN401 - JSON types
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number else math.nan
