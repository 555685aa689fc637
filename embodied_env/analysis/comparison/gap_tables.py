"""Differences of two runs as text, table rows and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from embodied_env.analysis.comparison.compare import Gap
from embodied_env.analysis.comparison.features import FeatureName
from embodied_env.analysis.comparison.streams import QUANTILES, Numbers, Share
from embodied_env.analysis.report.figures import BLUE, VERMILION, Line, lines_figure
from embodied_env.analysis.report.formatting import format_number, milliseconds, percent
from embodied_env.analysis.report.html import bar
from embodied_env.analysis.report.timing import stage_label

MOST_ROWS = 60
_MOST_FIGURES = 6


def label(name: FeatureName) -> str:
    """Return the name of a feature for people: "latency · end to end", "observation · joints_position · j3"."""
    kind = "tracking error" if name.kind == "tracking" else name.kind
    return " · ".join(filter(None, (kind, label_in_kind(name))))


def label_in_kind(name: FeatureName) -> str:
    """Return the name of a feature without its kind: "end to end", "joints_position · j3"."""
    if name.kind == "latency":
        return stage_label((name.group, name.component))
    return " · ".join(filter(None, (name.group, name.component)))


def label_with_unit(name: FeatureName) -> str:
    """Return the name of a feature without its kind, with its unit."""
    return label_in_kind(name) + (f" ({name.unit})" if name.unit not in ("", "1") else "")


def describe_gap(gap: Gap) -> tuple[str, str]:
    """Return the median with its unit, or the share, of both runs."""
    return _describe(gap.name.unit, gap.a), _describe(gap.name.unit, gap.b)


def gap_table(what: str, gaps: Sequence[Gap], name_of: Callable[[FeatureName], str] = label_in_kind) -> dict[str, Any]:
    """Return header and rows of a table of gaps, with medians or shares; `name_of` makes the first cell."""
    if not all(isinstance(gap.a, Share) for gap in gaps):
        what = f"{what}: median (5 % to 95 %)" if what else "median (5 % to 95 %)"

    def cell(numbers: Numbers) -> str:
        low, middle, high = (format_number(numbers.quantile(share)) for share in (0.05, 0.5, 0.95))
        return f"{middle} ({low} to {high})"

    return table_of_gaps(what, gaps, name_of, cell)


def latency_table(gaps: Sequence[Gap]) -> dict[str, Any]:
    """Return header and rows of a table of latency percentiles."""

    def cell(numbers: Numbers) -> str:
        return " / ".join(milliseconds(numbers.quantile(share)) for share in (0.5, 0.95, 0.99))

    return table_of_gaps("stage, ms: p50 / p95 / p99", gaps, label_in_kind, cell)


def table_of_gaps(
    what: str, gaps: Sequence[Gap], name_of: Callable[[FeatureName], str], cell: Callable[[Numbers], str]
) -> dict[str, Any]:
    """Return header and rows of a table of gaps, the largest ones if there are too many; `cell` describes numbers."""
    shown = gaps if len(gaps) <= MOST_ROWS else sorted(gaps, key=lambda gap: -gap.distance)[:MOST_ROWS]
    rows, has_chance = [], False
    for gap in shown:
        distance = f"{gap.distance:.2f}"
        is_chance = gap.distance > 0.0 and not gap.is_more_than_chance
        has_chance |= is_chance
        sides = (_percent_of(side) if isinstance(side, Share) else cell(side) for side in (gap.a, gap.b))
        rows.append((name_of(gap.name), f"({distance})" if is_chance else distance, *sides, bar(gap.distance)))
    return {
        "header": (what, "distance", "run A", "run B", ""),
        "rows": rows,
        "has_chance": has_chance,
        "more": max(0, len(gaps) - MOST_ROWS),
    }


def quantile_figures(gaps: Iterable[Gap], *, unit: str = "", scale: float = 1.0) -> list[str]:
    """Return figures of the quantiles of both runs, for the largest gaps between numbers that are more than chance."""
    clear = sorted((gap for gap in gaps if gap.is_more_than_chance), key=lambda gap: -gap.distance)[:_MOST_FIGURES]
    drawn = []
    for gap in clear:
        if isinstance(gap.a, Share) or isinstance(gap.b, Share):
            continue
        a, b = ([scale * value for value in side.quantiles] for side in (gap.a, gap.b))
        lines = [Line("run A", a, BLUE, width=2.0), Line("run B", b, VERMILION, dash="dash", width=2.0)]
        y_title = unit or ("" if gap.name.unit == "1" else gap.name.unit) or "value"
        shares = [100 * share for share in QUANTILES]
        drawn.append(lines_figure(label_in_kind(gap.name), shares, lines, x_title="% of values below", y_title=y_title))
    return drawn


def _describe(unit: str, side: Numbers | Share) -> str:
    if isinstance(side, Share):
        return _percent_of(side)
    median = side.quantile(0.5)
    if unit == "s":
        return f"{milliseconds(median)} ms"
    return format_number(median) + ("" if unit in ("", "1") else f" {unit}")


def _percent_of(share: Share) -> str:
    """Return a share in percent; neither 0 % nor 100 % unless it is exactly that."""
    if 0 < share.count < share.total / 1000:
        return "< 0.1 %"
    return "> 99.9 %" if share.total * 0.999 < share.count < share.total else percent(share.share)
