"""Tables and figures of gaps: what differs between two runs, and by how much."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from embodied_env.analysis.comparison.compare import Gap
from embodied_env.analysis.comparison.features import FeatureName
from embodied_env.analysis.comparison.streams import QUANTILES, Numbers, Share
from embodied_env.analysis.report.figures import Line, lines_figure
from embodied_env.analysis.report.formatting import format_number, milliseconds, percent
from embodied_env.analysis.report.html import (
    BLUE,
    VERMILION,
    Block,
    bar,
    grid,
    group,
    paragraph,
    table,
)
from embodied_env.analysis.report.timing_collectors import stage_label

MOST_ROWS = 60
_MOST_FIGURES = 6
_WORDS: Mapping[str, str] = {
    "outcome": "outcome",
    "latency": "latency",
    "tracking": "tracking error",
    "observation": "observation",
    "evaluator": "evaluator",
    "action": "action",
    "gate": "gate",
    "sensor": "sensor",
}


def label(name: FeatureName) -> str:
    """Return what a gap is of, for people: "latency · end to end", "observation · joints_position · j3"."""
    return " · ".join(filter(None, (_WORDS[name.kind], label_in_kind(name))))


def label_in_kind(name: FeatureName) -> str:
    """Return what a gap is of among those of its kind: "end to end", "joints_position · j3"."""
    if name.kind == "latency":
        return stage_label((name.group, name.component))
    return " · ".join(filter(None, (name.group, name.component)))


def label_with_unit(name: FeatureName) -> str:
    """Return the same with the unit."""
    return label_in_kind(name) + (f" ({name.unit})" if name.unit not in ("", "1") else "")


def describe_gap(gap: Gap) -> tuple[str, str]:
    """Return what both runs say, in a few characters: a median with its unit, or a share."""
    return _describe(gap.name, gap.a), _describe(gap.name, gap.b)


def share_text(found: Share) -> str:
    """Return a share; one that is there never reads as 0 %, and one that is not whole never as 100 %."""
    if 0 < found.count < found.total / 1000:
        return "< 0.1 %"
    return "> 99.9 %" if found.total * 0.999 < found.count < found.total else percent(found.share)


def gap_table(what: str, gaps: Sequence[Gap], *, label_of: Callable[[FeatureName], str] = label_in_kind) -> Block:
    """Return gaps, the largest first if there are too many; `label_of` names a gap."""
    is_share = all(isinstance(gap.a, Share) for gap in gaps)
    how = what if is_share else f"{what or 'median'}{': median' if what else ''} (5 % to 95 %)"
    return gap_rows(how, gaps, label_of=label_of, cell=_cell)


def gap_rows(
    what: str, gaps: Sequence[Gap], *, label_of: Callable[[FeatureName], str], cell: Callable[[Numbers | Share], str]
) -> Block:
    """Return gaps as a table; `cell` says what one run tells of one."""
    shown = gaps if len(gaps) <= MOST_ROWS else sorted(gaps, key=lambda gap: -gap.distance)[:MOST_ROWS]
    rows = [(label_of(gap.name), _distance(gap), cell(gap.a), cell(gap.b), bar(gap.distance)) for gap in shown]
    found, note = table((what, "distance", "run A", "run B", ""), rows, numbers=(1, 2, 3)), None
    if any(gap.distance > 0.0 and not gap.is_more_than_chance for gap in shown):
        note = paragraph("In parentheses: a distance that chance can make.", kind="note")
    return group(found, note, left_out(gaps))


def figures(gaps: Sequence[Gap], *, unit: str = "", scale: float = 1.0) -> Block:
    """Return the quantiles of both runs for the largest gaps between numbers that are more than chance."""
    clear = sorted((gap for gap in gaps if gap.is_more_than_chance), key=lambda gap: -gap.distance)
    return grid(_figure(gap, unit, scale) for gap in clear[:_MOST_FIGURES])


def left_out(found: Sequence[object]) -> Block | None:
    """Return how many of `found` no table has room for."""
    left = len(found) - MOST_ROWS
    return paragraph(f"and {left:,} more, which --json has.", kind="note") if left > 0 else None


def _describe(name: FeatureName, found: Numbers | Share) -> str:
    if isinstance(found, Share):
        return share_text(found)
    if name.unit == "s":
        return f"{milliseconds(found.quantile(0.5))} ms"
    return " ".join(filter(None, (format_number(found.quantile(0.5)), "" if name.unit == "1" else name.unit)))


def _cell(found: Numbers | Share) -> str:
    if isinstance(found, Share):
        return share_text(found)
    low, middle, high = (found.quantile(share) for share in (0.05, 0.5, 0.95))
    return f"{format_number(middle)} ({format_number(low)} to {format_number(high)})"


def _distance(gap: Gap) -> str:
    said = f"{gap.distance:.2f}"
    return said if gap.is_more_than_chance or not gap.distance else f"({said})"


def _figure(gap: Gap, unit: str, scale: float) -> Block | None:
    if isinstance(gap.a, Share) or isinstance(gap.b, Share):
        return None
    lines = [
        Line(name="run A", y=[scale * value for value in gap.a.quantiles], colour=BLUE, width=2.0),
        Line(name="run B", y=[scale * value for value in gap.b.quantiles], colour=VERMILION, dash="dash", width=2.0),
    ]
    x = [100 * share for share in QUANTILES]
    y_title = unit or ("" if gap.name.unit == "1" else gap.name.unit) or "value"
    return lines_figure(label_in_kind(gap.name), x, lines, x_title="% of the numbers lie below", y_title=y_title)
