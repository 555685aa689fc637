"""The page of a comparison: both outcomes and the largest differences of two runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from embodied_env._version import __version__
from embodied_env.analysis.comparison.compare import CHANCE, Comparison, Gap
from embodied_env.analysis.comparison.features import MOST_STREAMS, FeatureName
from embodied_env.analysis.comparison.streams import QUANTILES, Numbers, Share
from embodied_env.analysis.report.figures import BLUE, VERMILION, Line, library, lines_figure
from embodied_env.analysis.report.formatting import describe_value, format_number, milliseconds, percent, plural
from embodied_env.analysis.report.html import render_page
from embodied_env.analysis.report.timing import stage_label, stage_place
from embodied_env.core.latency.statistics import KEPT
from embodied_env.core.outcome_counts import describe_exclusions
from embodied_env.record.manifest import name_of_policy, write_text

_MOST_FIGURES = 6


def write_comparison(comparison: Comparison, path: str | Path) -> None:
    """Write the page of `comparison` to `path`.

    Raises:
        RecordError: when it cannot be written.
        MissingDependencyError: when plotly or jinja2 is not installed.
    """
    sides = {"A": comparison.a, "B": comparison.b}
    backends = [describe_value(side.run.manifest.get("backend")) for side in sides.values()]
    page = render_page(
        "compare.html",
        title=f"{describe_value(comparison.a.run.manifest['contract']['name'])}: {backends[0]} and {backends[1]}",
        script=library(),
        version=__version__,
        kept=KEPT,
        chance=CHANCE,
        comparison=comparison,
        sides=sides,
        warnings=list(_warnings(comparison)),
        latency=sorted(comparison.of("latency"), key=lambda gap: stage_place((gap.name.group, gap.name.component))),
        gates=sorted(comparison.of("gate"), key=lambda gap: (gap.name.group != "any gate", gap.name)),
        describe_gap=describe_gap,
        describe_side=describe_side,
        label=label,
        label_in_kind=label_in_kind,
        quantile_figures=quantile_figures,
    )
    write_text(Path(path), page)


def label(name: FeatureName) -> str:
    """Return the name of a feature for people: "latency · end to end", "observation · joints_position · j3"."""
    kind = "tracking error" if name.kind == "tracking" else name.kind
    return " · ".join(filter(None, (kind, label_in_kind(name))))


def label_in_kind(name: FeatureName) -> str:
    """Return the name of a feature without its kind: "end to end", "joints_position · j3"."""
    if name.kind == "latency":
        return stage_label((name.group, name.component))
    return " · ".join(filter(None, (name.group, name.component)))


def describe_gap(gap: Gap) -> tuple[str, str]:
    """Return the median with its unit, or the share, of both runs."""
    return describe_side(gap.a, gap.name.unit), describe_side(gap.b, gap.name.unit)


def describe_side(side: Numbers | Share, unit: str) -> str:
    """Return the median in `unit`; or the share in percent, neither 0 % nor 100 % unless it is exactly that."""
    if isinstance(side, Share):
        if 0 < side.count < side.total / 1000:
            return "< 0.1 %"
        return "> 99.9 %" if side.total * 0.999 < side.count < side.total else percent(side.share)
    median = side.quantile(0.5)
    if unit == "s":
        return f"{milliseconds(median)} ms"
    return format_number(median) + ("" if unit in ("", "1") else f" {unit}")


def quantile_figures(gaps: Iterable[Gap], unit: str = "", scale: float = 1.0) -> list[str]:
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


def _warnings(comparison: Comparison) -> Iterator[str]:
    yield from comparison.terms.notes
    a, b = comparison.a, comparison.b
    if a.run.path.resolve() == b.run.path.resolve():
        yield "A and B are the same run."
    policies = [side.run.manifest.get("policy") for side in (a, b)]
    if policies[0] != policies[1]:
        names = list(dict.fromkeys(describe_value(name_of_policy(policy)) for policy in policies))
        found = f"{names[0]} and {names[1]}" if len(names) > 1 else f"{names[0]} of different content or library"
        yield f"The policies differ: {found}. That may cause any of the differences."
    for name, side in (("A", a), ("B", b)):
        if not side.summary["episodes"]:
            steps = side.features.steps
            what = f"{plural(steps, 'step')}, and no episode that ended" if steps else "no step"
            yield f"Run {name} has {what}, so it is no evidence of success."
        yield from (f"Run {name}: episodes {counts}." for counts in describe_exclusions(side.summary))
        if left_out := side.features.left_out:
            yield f"Run {name} has more than {MOST_STREAMS} names: {left_out:,} values are left out."
