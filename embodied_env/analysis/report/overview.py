"""Charts of all episodes of a run: success rates, why they ended, and the strip to choose one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from embodied_env.analysis.report.charts import Bar, Interval, episode_strip, interval_chart
from embodied_env.analysis.report.formatting import format_number, plural, share_of
from embodied_env.analysis.report.outcomes import Episode, Outcomes, Rate

KINDS = {
    "success": "success",
    "failure": "failure",
    "stopped": "stopped: gates, readings, world or policy",
    "time": "time limit",
    "apart": "solved at reset or first step: in no rate",
    "cut": "cut off",
}
"""Kinds of ends in the strip, by their name in the style sheet."""

_MOST_BARS = 240
_MOST_REASONS = 8


def draw_rates(outcomes: Outcomes) -> str:
    """Draw both success rates with their intervals."""
    return interval_chart(
        "Success rate, 95 % interval", [rate_interval(how, noun, rate) for how, noun, rate in outcomes.rates()]
    )


def rate_interval(name: str, noun: str, rate: Rate, style: str = "a") -> Interval:
    """Return a success rate as a row of an interval chart."""
    text = f"no {noun}"
    if rate.trials:
        share, low, high = (f"{100 * value:.0f}" for value in (rate.share, rate.low, rate.high))
        text = f"{share}\u00a0% ({low} to {high}\u00a0%), {rate.successes:,} of {plural(rate.trials, noun)}"
    return Interval(name, rate.share, rate.low, rate.high, text, style)


def draw_reasons(summary: Mapping[str, Any]) -> str:
    """Draw the share of the episodes that ended for each reason, with its interval."""
    reasons, total = sorted(summary["end_reasons"].items(), key=lambda item: (-item[1], item[0])), summary["episodes"]
    rows = []
    for reason, count in reasons[:_MOST_REASONS]:
        rate = Rate.of(count, total)
        rows.append(
            Interval(reason, rate.share, rate.low, rate.high, f"{count:,} ({share_of(count, total)})", "reason")
        )
    if more := reasons[_MOST_REASONS:]:
        others = sum(count for _, count in more)
        rows.append(Interval(plural(len(more), "other reason"), math.nan, math.nan, math.nan, f"{others:,}"))
    return interval_chart("Why episodes ended", rows) if rows else ""


def draw_strip(episodes: Sequence[Episode], shown: Iterable[int]) -> str:
    """Draw all episodes in order; the episodes with the numbers `shown` are links to their charts.

    Many episodes share columns, which then are links to their first episode that is shown.
    """
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
    return episode_strip(title, bars) if bars else ""


def _describe(group: Sequence[Episode]) -> str:
    first, last = group[0], group[-1]
    if first is last:
        return (
            f"episode {first.number}: {first.end}, {plural(first.steps, 'step')}, return {format_number(first.reward)}"
        )
    ends = Counter(episode.end for episode in group).most_common(3)
    return f"episodes {first.number} to {last.number}: {', '.join(f'{end} {count}' for end, count in ends)}"
