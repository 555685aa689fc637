"""The page of a comparison: what came of both runs, and their largest differences, in one place."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from embodied_env._version import __version__
from embodied_env.analysis.comparison.comparability import Mismatch
from embodied_env.analysis.comparison.compare import CHANCE, Comparison, Gap, Outcome, Ranked, Rate, Side
from embodied_env.analysis.comparison.features import MOST_STREAMS
from embodied_env.analysis.comparison.gap_tables import (
    MOST_ROWS,
    describe_gap,
    figures,
    gap_rows,
    gap_table,
    label,
    label_in_kind,
    label_with_unit,
    left_out,
    share_text,
)
from embodied_env.analysis.comparison.streams import Numbers, Share
from embodied_env.analysis.report.figures import library
from embodied_env.analysis.report.formatting import format_number, milliseconds, percent, plural
from embodied_env.analysis.report.html import (
    Block,
    Cell,
    Html,
    bar,
    bullets,
    cards,
    code,
    group,
    heading,
    paragraph,
    render_page,
    section,
    subheading,
    table,
    verdict,
    write_page,
)
from embodied_env.analysis.report.outcome_sections import said_of
from embodied_env.analysis.report.row_access import get_mapping
from embodied_env.core.latency.statistics import KEPT, STAGES
from embodied_env.core.outcome_counts import describe_exclusions

_RANKED = 15


def write_comparison(comparison: Comparison, path: str | Path) -> None:
    """Write the page of `comparison` to `path`.

    Raises:
        RecordError: when it cannot be written.
        MissingDependencyError: when plotly or jinja2 is not installed.
    """
    write_page(Path(path), build_comparison_page(comparison))


def build_comparison_page(comparison: Comparison) -> Html:
    """Return the page of `comparison`."""
    names = [_where(side) for side in (comparison.a, comparison.b)]
    contract = said_of(get_mapping(comparison.a.manifest, "contract").get("name"))
    title = f"{contract}: {names[0]} beside {names[1]}"
    blocks = [
        _head(title, comparison),
        _ranking_section(comparison),
        _outcome_section(comparison),
        _latency_section(comparison),
        _tracking_section(comparison),
        _gates_section(comparison),
        _observations_section(comparison),
        _actions_section(comparison),
        _sensors_section(comparison),
        _one_sided_section(comparison),
        _what_ran_section(comparison),
        _how_section(comparison),
    ]
    return render_page(title=title, blocks=blocks, scripts=[library()])


def _where(side: Side) -> str:
    return said_of(side.manifest.get("backend"))


def _head(title: str, comparison: Comparison) -> Block:
    runs = [
        f"{name}: {side.path.resolve().name}" for name, side in zip("AB", (comparison.a, comparison.b), strict=True)
    ]
    top = heading(title, " · ".join(runs))
    return group(top, _verdict(comparison), _warnings(comparison), cards(_cards(comparison)))


def _verdict(comparison: Comparison) -> Block:
    problems = [
        f"run {name}: {side.problem}"
        for name, side in zip("AB", (comparison.a, comparison.b), strict=True)
        if side.problem
    ]
    if problems:
        return verdict(good=False, word="Not sound evidence", said="; ".join(problems))
    same = "one contract, one stack of wrappers"
    if comparison.terms.ignored:
        return verdict(good=False, word="Compared all the same", said="the runs are not of one kind; see below")
    return verdict(good=True, word="Comparable", said=f"Both runs are whole, of {same}.")


def _warnings(comparison: Comparison) -> Block:
    parts = []
    if comparison.terms.ignored:
        parts.append(paragraph("These differ, and were ignored as asked:", kind="warning"))
        parts.append(mismatches(comparison.terms.ignored))
    parts += [paragraph(f"--ignore {path}: it does not differ.", kind="note") for path in comparison.terms.idle]
    parts += [paragraph(note, kind="warning") for note in comparison.terms.notes]
    if comparison.a.path.resolve() == comparison.b.path.resolve():
        parts.append(paragraph("A and B are the same run.", kind="warning"))
    policies = [said_of(side.manifest.get("policy")) for side in (comparison.a, comparison.b)]
    if policies[0] != policies[1]:
        other = f"The policies differ, {policies[0]} and {policies[1]}: so may what comes of it, in any world."
        parts.append(paragraph(other, kind="warning"))
    for name, side in zip("AB", (comparison.a, comparison.b), strict=True):
        if not side.summary["episodes"]:
            what = "has no step" if not side.steps else f"has {plural(side.steps, 'step')}, and no episode that ended"
            parts.append(paragraph(f"Run {name} {what}: it says nothing of success.", kind="warning"))
        parts += [
            paragraph(f"Run {name}: episodes {said}.", kind="warning") for said in describe_exclusions(side.summary)
        ]
        if side.unreadable:
            left = f"Run {name}: {plural(side.unreadable, 'row')} of no known kind, left out."
            parts.append(paragraph(left, kind="warning"))
        if side.left_out:
            more = f"Run {name} names more than {MOST_STREAMS} things: {side.left_out:,} values are left out."
            parts.append(paragraph(more, kind="warning"))
    return group(*parts)


def mismatches(found: Iterable[Mismatch]) -> Block:
    """Return a table of what differs between the kinds of two runs."""
    rows = [(code(m.path), code(_json(m.a)), code(_json(m.b))) for m in found]
    return table(("path", "run A", "run B"), rows)


def _cards(comparison: Comparison) -> list[tuple[str, str, str]]:
    first = comparison.outcomes[0]
    found = [
        (f"Success rate of {name}, {_where(side)}", percent(rate.share), _interval(rate, "episode"))
        for name, side, rate in (("A", comparison.a, first.a), ("B", comparison.b, first.b))
    ]
    if first.difference is not None:
        low, high = first.difference
        below = f"95 % interval {_points(low)} to {_points(high)} points"
        found.append(("B less A", f"{_points(first.b.share - first.a.share)} points", below))
    more = sum(ranked.gap.is_more_than_chance for ranked in comparison.ranking)
    found.append(("Differ by more than chance", f"{more}", f"of {plural(len(_groups(comparison)), 'thing')} compared"))
    return found


def _groups(comparison: Comparison) -> set[tuple[str, str]]:
    return {(gap.name.kind, gap.name.group) for gap in comparison.gaps}


def _points(difference: float) -> str:
    return f"{100 * difference:+.1f}"


def _interval(rate: Rate, unit: str) -> str:
    if not rate.trials:
        return f"no {unit}, so no rate"
    of = f"{rate.successes:,} of {plural(rate.trials, unit)}"
    return f"{of}; 95 % interval {percent(rate.low)} to {percent(rate.high)}"


def _ranking_section(comparison: Comparison) -> Block:
    ranked = [found for found in comparison.ranking if found.gap.is_more_than_chance]
    perhaps = [found for found in comparison.ranking if not found.gap.is_more_than_chance]
    parts = []
    if ranked:
        parts.append(_ranking_table(ranked[:_RANKED]))
        if len(ranked) > _RANKED:
            parts.append(paragraph(f"and {len(ranked) - _RANKED} more below.", kind="note"))
    else:
        parts.append(paragraph("No difference is larger than chance can make it, with as much as these runs tell."))
    if perhaps:
        largest = ", ".join(f"{label(found.gap.name)} ({found.gap.distance:.2f})" for found in perhaps[:5])
        note = f"Too few to tell from chance, the largest of {len(perhaps)}: {largest}."
        parts.append(paragraph(note, kind="note"))
    parts.append(
        paragraph(
            "The distance is that between the two distributions (Kolmogorov-Smirnov), or between the two shares: "
            "0 is the same, 1 has nothing in common. A number is told by its median.",
            kind="note",
        )
    )
    return section("Largest differences", *parts, anchor="largest")


def _ranking_table(ranked: Sequence[Ranked]) -> Block:
    rows = []
    for place, found in enumerate(ranked, 1):
        others = f" (and {found.others} more of it)" if found.others else ""
        what = f"{label(found.gap.name)}{others}"
        rows.append((str(place), what, f"{found.gap.distance:.2f}", *describe_gap(found.gap), bar(found.gap.distance)))
    return table(("", "what", "distance", "run A", "run B", ""), rows, numbers=(0, 2, 3, 4))


def _outcome_section(comparison: Comparison) -> Block:
    rows = [
        (f"{outcome.how}, run {name}", *_rate_cells(rate))
        for outcome in comparison.outcomes
        for name, rate in (("A", outcome.a), ("B", outcome.b))
    ]
    header = ("success rate", "successes", "of", "rate", "95 % interval (Wilson)", "")
    parts = [table(header, rows, numbers=(1, 2, 3))]
    parts += [paragraph(_difference(outcome)) for outcome in comparison.outcomes]
    parts.append(_paired(comparison))
    reasons = [gap for gap in comparison.of("outcome") if gap.name.group == "ended by"]
    lone = [gap for gap in comparison.of("outcome") if gap.name.group in ("return", "length")]
    if reasons:
        parts += [subheading("Why episodes ended"), gap_table("reason", reasons, label_of=lambda n: n.component)]
    if lone:
        parts += [subheading("Return and length of episodes"), gap_table("", lone)]
    return section("Outcome", *parts, anchor="outcome")


def _rate_cells(rate: Rate) -> tuple[Cell, ...]:
    if not rate.trials:
        return ("0", "0", "none", "none", "")
    interval = f"{percent(rate.low)} to {percent(rate.high)}"
    shown = bar(rate.share, low=rate.low, high=rate.high)
    return (f"{rate.successes:,}", f"{rate.trials:,}", percent(rate.share), interval, shown)


def _difference(outcome: Outcome) -> str:
    if outcome.difference is None:
        return f"{_sentence(outcome)}: a run has no such episode, so there is no difference to tell."
    low, high = outcome.difference
    found = f"B less A is {_points(outcome.b.share - outcome.a.share)} points"
    word = "which leaves 0 out" if low > 0 or high < 0 else "which has 0 in it: the rates may be equal"
    return f"{_sentence(outcome)}: {found}, 95 % interval {_points(low)} to {_points(high)}, {word}."


def _sentence(outcome: Outcome) -> str:
    return outcome.how[0].upper() + outcome.how[1:]


def _paired(comparison: Comparison) -> Block:
    pairing = comparison.pairing
    if pairing.problem:
        return paragraph(f"No paired test: {pairing.problem}.", kind="note")
    rows = [
        (
            outcome.how,
            *(f"{n:,}" for n in (test.pairs, test.both, test.only_a, test.only_b, test.neither)),
            format_number(test.p_value),
        )
        for outcome in comparison.outcomes
        if (test := outcome.paired) is not None
    ]
    header = ("success", "pairs", "both", "only A", "only B", "neither", "p")
    parts = [
        subheading("The same situations, pair by pair"),
        paragraph(
            f"{plural(len(pairing.pairs), 'pair')} of episodes whose worlds took the same seed and options; McNemar's "
            f"exact test, two-sided. Without a counterpart: {pairing.only_a:,} of A, {pairing.only_b:,} of B."
        ),
        table(header, rows, numbers=(1, 2, 3, 4, 5, 6)),
    ]
    if pairing.drawn_apart:
        apart = plural(pairing.drawn_apart, "pair")
        parts.append(paragraph(f"In {apart} the worlds drew different values from the same seed.", kind="warning"))
    return group(*parts)


def _latency_section(comparison: Comparison) -> Block:
    gaps = sorted(comparison.of("latency"), key=_place)
    if not gaps:
        return section("Latency by stage", paragraph("No stage was measured in both runs."), anchor="latency")
    shown = gap_rows("stage, ms: p50 / p95 / p99", gaps, label_of=label_in_kind, cell=_percentiles)
    parts = [shown, figures(gaps, unit="ms", scale=1e3)]
    return section("Latency by stage", *parts, anchor="latency")


def _place(gap: Gap) -> tuple[int, str]:
    group = gap.name.group
    return (STAGES.index(group) if group in STAGES else len(STAGES), group)


def _percentiles(found: Numbers | Share) -> str:
    if isinstance(found, Share):
        return share_text(found)
    return " / ".join(milliseconds(found.quantile(share)) for share in (0.5, 0.95, 0.99))


def _tracking_section(comparison: Comparison) -> Block:
    gaps = comparison.of("tracking")
    parts = [
        paragraph("The reading at the end of a step, less the command that was applied in it.", kind="note"),
        gap_table("joint", gaps, label_of=lambda name: f"{name.component}, {name.group} ({name.unit})")
        if gaps
        else paragraph("There is no joint whose command and reading are known in both runs."),
        figures(gaps),
    ]
    if comparison.untracked:
        parts.append(paragraph(f"No sensor tells of: {', '.join(comparison.untracked)}.", kind="note"))
    return section("Tracking error", *parts, anchor="tracking")


def _gates_section(comparison: Comparison) -> Block:
    gaps = comparison.of("gate")
    if not gaps:
        return section("Gates", paragraph("No gate fired in either run."), anchor="gates")
    ordered = sorted(gaps, key=lambda gap: (gap.name.group != "any gate", gap.name))
    return section("Gates: in which share of the steps", gap_table("gate", ordered), anchor="gates")


def _observations_section(comparison: Comparison) -> Block:
    parts = []
    for kind, what in (("observation", "What the agent saw"), ("evaluator", "What only the evaluator saw")):
        gaps = comparison.of(kind)
        if gaps:
            parts += [subheading(what), gap_table("field", gaps, label_of=label_with_unit), figures(gaps)]
    return section(
        "Observations by field", *(parts or [paragraph("No field has numbers in both runs.")]), anchor="observations"
    )


def _actions_section(comparison: Comparison) -> Block:
    gaps = comparison.of("action")
    shown = gap_table("action", gaps) if gaps else paragraph("No action is told in both runs.")
    return section("Actions, requested and applied", shown, anchor="actions")


def _sensors_section(comparison: Comparison) -> Block:
    gaps = comparison.of("sensor")
    said_so = "Every reading of both runs was good, and none was lost."
    shown = gap_table("sensor", gaps) if gaps else paragraph(said_so)
    return section("Readings that were not good: in which share of the steps", shown, anchor="sensors")


def _one_sided_section(comparison: Comparison) -> Block | None:
    if not comparison.one_sided:
        return None
    rows = [(label(found.name), f"run {found.run}", f"{found.count:,}") for found in comparison.one_sided[:MOST_ROWS]]
    parts = [table(("what", "only in", "numbers"), rows, numbers=(2,)), left_out(comparison.one_sided)]
    return section("What only one run tells", *parts, anchor="one-sided")


def _what_ran_section(comparison: Comparison) -> Block:
    rows = []
    for name, first, second in _facts(comparison.a, comparison.b):
        rows.append((name, first, second, "" if first == second else "differs"))
    return section("What ran", table(("", "run A", "run B", ""), rows), anchor="what-ran")


def _facts(a: Side, b: Side) -> Iterable[tuple[str, str, str]]:
    def both(name: str, *keys: str) -> tuple[str, str, str]:
        first, second = (said_of(get_mapping(side.manifest, *keys[:-1]).get(keys[-1])) for side in (a, b))
        return name, first, second

    yield both("contract fingerprint", "contract", "fingerprint")
    for key in ("backend", "backend_fingerprint", "policy", "pacing", "clock", "started_utc"):
        yield both(key.replace("_", " ").replace("utc", "(UTC)"), key)
    yield both("host", "host", "platform")
    for name in dict.fromkeys((*get_mapping(a.manifest, "versions"), *get_mapping(b.manifest, "versions"))):
        yield both(f"version of {name}", "versions", str(name))
    yield "steps", f"{a.steps:,}", f"{b.steps:,}"
    yield "resets", f"{a.resets:,}", f"{b.resets:,}"
    for name, key in (("episodes", "episodes"), ("unfinished episodes", "unfinished"), ("truncated", "truncated")):
        yield name, f"{a.summary[key]:,}", f"{b.summary[key]:,}"


def _how_section(comparison: Comparison) -> Block:
    tests = len(comparison.gaps)
    return section(
        "How this page was made",
        bullets(
            [
                f"Made by embodied_env {__version__} from the logs of both runs, each counted in one pass.",
                (
                    f"Up to {KEPT:,} numbers of a kind, distances and percentiles are exact; of more, a fair sample of "
                    f"{KEPT:,} is kept, drawn by a fixed seed."
                ),
                (
                    "Steps that follow one another hang together, so they count as fewer: by the correlation of each "
                    "number with that of the next step, but as one for each episode at least."
                ),
                (
                    f"More than chance: if the runs did not differ, any of the {tests} distances would be called so "
                    f"with a probability of about {percent(CHANCE)} in all; a success rate by itself with as much."
                ),
                "Only what was measured counts as latency, and only good readings count as tracked.",
            ]
        ),
        anchor="how",
    )


def _json(value: object) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
