"""The page of a comparison: both outcomes and the largest differences of two runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from embodied_env._version import __version__
from embodied_env.analysis.comparison.compare import CHANCE, Comparison, Outcome, Side
from embodied_env.analysis.comparison.features import MOST_STREAMS
from embodied_env.analysis.comparison.gap_tables import (
    MOST_ROWS,
    describe_gap,
    gap_table,
    label,
    label_with_unit,
    latency_table,
    quantile_figures,
)
from embodied_env.analysis.report.figures import library
from embodied_env.analysis.report.formatting import describe_value, format_number, mapping_of, percent, plural
from embodied_env.analysis.report.html import bar, code, render_page, write_page
from embodied_env.analysis.report.timing import stage_place
from embodied_env.core.latency.statistics import KEPT
from embodied_env.core.outcome_counts import describe_exclusions

_MOST_RANKED = 15
_MOST_UNCLEAR = 5


def write_comparison(comparison: Comparison, path: str | Path) -> None:
    """Write the page of `comparison` to `path`.

    Raises:
        RecordError: when it cannot be written.
        MissingDependencyError: when plotly or jinja2 is not installed.
    """
    write_page(Path(path), build_comparison_page(comparison))


def build_comparison_page(comparison: Comparison) -> str:
    """Return the page of `comparison`."""
    sides = {"A": comparison.a, "B": comparison.b}
    backends = [describe_value(side.manifest.get("backend")) for side in sides.values()]
    latency = sorted(comparison.of("latency"), key=lambda gap: stage_place((gap.name.group, gap.name.component)))
    tracking = comparison.of("tracking")
    gates = sorted(comparison.of("gate"), key=lambda gap: (gap.name.group != "any gate", gap.name))
    outcomes = comparison.of("outcome")
    ended_by = [gap for gap in outcomes if gap.name.group == "ended by"]
    return render_page(
        "compare.html",
        title=f"{describe_value(comparison.a.manifest['contract']['name'])}: {backends[0]} and {backends[1]}",
        script=library(),
        version=__version__,
        kept=KEPT,
        chance=percent(CHANCE),
        comparison=comparison,
        runs=[f"{name}: {side.path.resolve().name}" for name, side in sides.items()],
        problems=[f"run {name}: {side.problem}" for name, side in sides.items() if side.problem],
        ignored=[
            (code(found.path), code(_as_json(found.a)), code(_as_json(found.b))) for found in comparison.terms.ignored
        ],
        warnings=list(_warnings(comparison)),
        cards=_cards(comparison, backends),
        ranking=_ranking(comparison),
        rates=[
            (f"{outcome.how}, run {name}", *rate.cells())
            for outcome in comparison.outcomes
            for name, rate in (("A", outcome.a), ("B", outcome.b))
        ],
        differences=[_difference(outcome) for outcome in comparison.outcomes],
        paired_tests=_paired_tests(comparison),
        ended_by=gap_table("reason", ended_by, lambda name: name.component),
        return_and_length=gap_table("", [gap for gap in outcomes if gap.name.group in ("return", "length")]),
        latency=latency_table(latency) | {"figures": quantile_figures(latency, unit="ms", scale=1e3)},
        tracking=gap_table("joint", tracking, lambda name: f"{name.component}, {name.group} ({name.unit})")
        | {"figures": quantile_figures(tracking)},
        gates=gap_table("gate", gates),
        observations=[
            (title, gap_table("field", gaps, label_with_unit) | {"figures": quantile_figures(gaps)})
            for kind, title in (("observation", "Visible to the agent"), ("evaluator", "Visible to the evaluator only"))
            if (gaps := comparison.of(kind))
        ],
        actions=gap_table("action", comparison.of("action")),
        sensors=gap_table("sensor", comparison.of("sensor")),
        one_sided=[(label(one.name), f"run {one.run}", f"{one.count:,}") for one in comparison.one_sided[:MOST_ROWS]],
        what_ran=[(name, a, b, "" if a == b else "differs") for name, a, b in _facts(comparison.a, comparison.b)],
    )


def _warnings(comparison: Comparison) -> Iterator[str]:
    yield from comparison.terms.notes
    a, b = comparison.a, comparison.b
    if a.path.resolve() == b.path.resolve():
        yield "A and B are the same run."
    policies = [describe_value(side.manifest.get("policy")) for side in (a, b)]
    if policies[0] != policies[1]:
        yield f"The policies differ: {policies[0]} and {policies[1]}. That may cause any of the differences."
    for name, side in (("A", a), ("B", b)):
        if not side.summary["episodes"]:
            what = f"{plural(side.steps, 'step')}, and no episode that ended" if side.steps else "no step"
            yield f"Run {name} has {what}: it is no evidence of success."
        yield from (f"Run {name}: episodes {counts}." for counts in describe_exclusions(side.summary))
        if side.left_out:
            yield f"Run {name} has more than {MOST_STREAMS} names: {side.left_out:,} values are left out."


def _cards(comparison: Comparison, backends: list[str]) -> list[tuple[str, str, str]]:
    """Return label, value and details of the most important numbers."""
    first = comparison.outcomes[0]
    cards = [
        (f"Success rate of {name}, {backend}", percent(rate.share), rate.describe("episode"))
        for name, backend, rate in zip("AB", backends, (first.a, first.b), strict=True)
    ]
    if first.difference is not None:
        low, high = first.difference
        details = f"95 % interval {_points(low)} to {_points(high)} points"
        cards.append(("B - A", f"{_points(first.b.share - first.a.share)} points", details))
    more = sum(ranked.gap.is_more_than_chance for ranked in comparison.ranking)
    groups = {(gap.name.kind, gap.name.group) for gap in comparison.gaps}
    cards.append(("More than chance", f"{more}", f"of {plural(len(groups), 'compared group')}"))
    return cards


def _ranking(comparison: Comparison) -> dict[str, Any]:
    clear = [found for found in comparison.ranking if found.gap.is_more_than_chance]
    unclear = [found.gap for found in comparison.ranking if not found.gap.is_more_than_chance]
    rows = []
    for place, found in enumerate(clear[:_MOST_RANKED], 1):
        gap, others = found.gap, f" (and {found.others} more in its group)" if found.others else ""
        distance = f"{gap.distance:.2f}"
        rows.append((str(place), f"{label(gap.name)}{others}", distance, *describe_gap(gap), bar(gap.distance)))
    return {
        "rows": rows,
        "more": len(clear) - len(rows),
        "unclear": [f"{label(gap.name)} ({gap.distance:.2f})" for gap in unclear[:_MOST_UNCLEAR]],
        "unclear_count": len(unclear),
    }


def _difference(outcome: Outcome) -> str:
    how = f"{outcome.how[0].upper()}{outcome.how[1:]}"
    if outcome.difference is None:
        return f"{how}: a run has no such episode, so there is no difference."
    low, high = outcome.difference
    meaning = "which excludes 0" if low > 0 or high < 0 else "which includes 0: the rates may be equal"
    difference = _points(outcome.b.share - outcome.a.share)
    return f"{how}: B - A is {difference} points, 95 % interval {_points(low)} to {_points(high)}, {meaning}."


def _points(difference: float) -> str:
    return f"{100 * difference:+.1f}"


def _paired_tests(comparison: Comparison) -> list[tuple[str, ...]]:
    tests = [(outcome.how, outcome.paired) for outcome in comparison.outcomes if outcome.paired is not None]
    return [
        (how, *(f"{n:,}" for n in (t.pairs, t.both, t.only_a, t.only_b, t.neither)), format_number(t.p_value))
        for how, t in tests
    ]


def _facts(a: Side, b: Side) -> Iterator[tuple[str, str, str]]:
    """Yield name and both values of what ran."""

    def both(name: str, *path: str) -> tuple[str, str, str]:
        of_a, of_b = (describe_value(mapping_of(side.manifest, *path[:-1]).get(path[-1])) for side in (a, b))
        return name, of_a, of_b

    yield both("contract fingerprint", "contract", "fingerprint")
    for key in ("backend", "backend_fingerprint", "policy", "pacing", "clock", "started_utc"):
        yield both(key.replace("_", " ").replace("utc", "(UTC)"), key)
    yield both("host", "host", "platform")
    for name in {**a.manifest["versions"], **b.manifest["versions"]}:
        yield both(f"version of {name}", "versions", name)
    yield "steps", f"{a.steps:,}", f"{b.steps:,}"
    yield "resets", f"{a.resets:,}", f"{b.resets:,}"
    for name, key in (("episodes", "episodes"), ("unfinished episodes", "unfinished"), ("truncated", "truncated")):
        yield name, f"{a.summary[key]:,}", f"{b.summary[key]:,}"


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
