"""The page of a comparison: the findings, and the differences in outcome, motion and timing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from embodied_env._version import __version__
from embodied_env.analysis.comparison.compare import Comparison, Side
from embodied_env.analysis.comparison.effects import CHANCE, VERDICTS, Difference
from embodied_env.analysis.comparison.features import Section
from embodied_env.analysis.comparison.findings import (
    describe_difference,
    describe_evidence,
    describe_interval,
    describe_level,
    describe_relative,
    group_differences,
    label,
)
from embodied_env.analysis.comparison.response import Motion
from embodied_env.analysis.report.charts import Interval, Line, interval_chart, line_chart
from embodied_env.analysis.report.formatting import describe_value, percent
from embodied_env.analysis.report.html import render_page
from embodied_env.analysis.report.totals import stage_label
from embodied_env.analysis.statistics import POWER
from embodied_env.record.manifest import name_of_policy, write_text

SECTIONS: tuple[Section, ...] = ("outcome", "motion", "timing")

_MOST_ROWS = 8  # of a chart
_MOST_OF_GROUP = 3
_MOST_JOINTS = 2
_MOST_PAIRS = 2
_MOTION = ("tracking", "gain", "offset", "delay")


def write_comparison(comparisons: Sequence[Comparison], path: str | Path) -> None:
    """Write the page of `comparisons`, all with the same first run, to `path`.

    Raises:
        RecordError: when it cannot be written.
        MissingDependencyError: when jinja2 is not installed.
    """
    sides = [comparisons[0].a, *(comparison.b for comparison in comparisons)]
    page = render_page(
        "compare.html",
        title=f"{describe_value(sides[0].run.manifest['contract']['name'])}: {_join(sides)}",
        version=__version__,
        chance=CHANCE,
        power=POWER,
        verdicts=VERDICTS,
        comparisons=comparisons,
        sides=sides,
        versions=dict.fromkeys(name for side in sides for name in side.run.manifest["versions"]),
        success_chart=_success_chart(sides),
        sections_of=sections_of,
        overlays=overlays,
        stage_label=stage_label,
        label=label,
        name_of_side=name_of_side,
        describe_level=describe_level,
        describe_difference=describe_difference,
        describe_evidence=describe_evidence,
        describe_interval=describe_interval,
        describe_relative=describe_relative,
    )
    write_text(Path(path), page)


def _join(sides: Sequence[Side]) -> str:
    """Return the policies and backends of the runs: "scripted on mujoco and real", "a, b and c on mujoco"."""
    policies, backends = (list(dict.fromkeys(names)) for names in zip(*map(_policy_and_backend, sides), strict=True))
    if len(policies) > 1 and len(backends) > 1:
        policies, backends = [name_of_side(side) for side in sides], []
    texts = [" and ".join(filter(None, (", ".join(names[:-1]), *names[-1:]))) for names in (policies, backends)]
    return " on ".join(filter(None, texts))


def _policy_and_backend(side: Side) -> tuple[str, str]:
    manifest = side.run.manifest
    return describe_value(name_of_policy(manifest.get("policy"))), describe_value(manifest.get("backend"))


def name_of_side(side: Side) -> str:
    """Return the policy of a run and its backend, as they are in a title: "scripted on mujoco"."""
    return " on ".join(_policy_and_backend(side))


def sections_of(comparison: Comparison) -> Iterator[tuple[Section, str, list[Difference], list[Difference]]]:
    """Yield each section with its chart, the differences that matter, and the others."""
    for section in SECTIONS:
        found = [difference for difference in comparison.differences if difference.name.section == section]
        shown = [difference for difference in found if difference.may_matter]
        others = [difference for difference in found if not difference.may_matter]
        yield section, _effects_chart(comparison, shown), shown, others


def overlays(comparison: Comparison) -> list[str]:
    """Return the motion of the joints that differ most, in episodes that began in the same situation, one over another.

    Without such episodes, in the first ones of both runs.
    """
    a, b = comparison.a.features, comparison.b.features
    joints = [found.name.component for found in comparison.differences if found.name.kind in _MOTION]
    kept = [(i, j) for i, j in comparison.pairing.indices if i < len(a.drawn) and j < len(b.drawn)]
    pairs = kept[:_MOST_PAIRS] or [(0, 0)] * bool(a.drawn and b.drawn)
    drawn = []
    for joint in list(dict.fromkeys(joints))[:_MOST_JOINTS]:
        tracked = a.tracked[joint]
        for i, j in pairs:
            motions = [
                motions[list(side.features.tracked).index(joint)]
                for side, motions in ((comparison.a, a.drawn[i]), (comparison.b, b.drawn[j]))
            ]
            if all(len(motion.read_s) for motion in motions):
                names, title = (comparison.a.name, comparison.b.name), f"{joint} · episodes {i + 1} and {j + 1}"
                longest_s = 1.5 * min(float(np.ptp(motion.read_s)) for motion in motions)
                lines = [line for motion, name, style in zip(motions, names, "ab", strict=True)
                         for line in _lines(motion, name, style, longest_s)]  # fmt: skip
                drawn.append(line_chart(title, lines, x_title="time, s", unit=tracked.unit))
    return drawn


def _lines(motion: Motion, name: str, style: str, longest_s: float) -> list[Line]:
    start_s = motion.commanded_s[-len(motion.read_s)]  # of the first command
    command, reading = motion.commanded_s - start_s, motion.read_s - start_s
    early, late = command <= longest_s, reading <= longest_s
    return [
        Line(f"command in {name}", command[early], motion.commands[early], {"a": "s5", "b": "s1"}[style]),
        Line(f"measured in {name}", reading[late], motion.readings[late], style),
    ]


def _success_chart(sides: Sequence[Side]) -> str:
    rows = []
    for side in sides:
        _, _, rate = side.features.outcomes.rates()[0]
        text = f"{percent(rate.share)} of {rate.trials} ({percent(rate.low)} to {percent(rate.high)})"
        rows.append(Interval(f"{side.name} · {name_of_side(side)}", rate.share, rate.low, rate.high, text))
    return interval_chart("Success rate with its 95 % interval", rows)


def _effects_chart(comparison: Comparison, shown: Sequence[Difference]) -> str:
    """Return the differences as multiples of what matters, with their intervals."""
    leading = [found for group in group_differences(shown) for found in group[:_MOST_OF_GROUP]]
    rows = []
    for found in sorted(leading, key=shown.index)[:_MOST_ROWS]:
        low, high = found.interval or (math.nan, math.nan)
        levels = " → ".join(describe_level(found.name, level.mean) for level in (found.a, found.b))
        is_certain = found.verdict == "differs"
        text = f"{levels} · {found.relevance:.1f} times{'' if is_certain else f', {found.verdict}'}"
        value, low, high = (size / found.scale.matters for size in (found.difference, low, high))
        rows.append(Interval(label(found.name), value, low, high, text, "s0" if is_certain else "s7"))
    if not rows:
        return ""
    ends = [end for row in rows for end in (row.value, row.low, row.high) if math.isfinite(end)]
    title = f"{comparison.b.name} - {comparison.a.name}, in multiples of what matters"
    return interval_chart(title, rows, span=(1.05 * min(0.0, *ends), 1.05 * max(0.0, *ends)), reference=0.0)
