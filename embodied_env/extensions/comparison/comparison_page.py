"""The page of a comparison, with findings and differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from embodied_env._version import __version__
from embodied_env.core.significance_tests import POWER
from embodied_env.extensions.comparison import comparison_findings as findings
from embodied_env.extensions.comparison.effect_sizes import CHANCE, VERDICTS, FeatureDifference
from embodied_env.extensions.comparison.joint_response import Motion
from embodied_env.extensions.comparison.run_comparison import Comparison, Side
from embodied_env.extensions.comparison.run_features import SECTIONS
from embodied_env.extensions.report.charts import Interval, Line, interval_chart, line_chart
from embodied_env.extensions.report.figures import draw_rates
from embodied_env.extensions.report.html_pages import describe_value, render_page
from embodied_env.extensions.report.totals import stage_label
from embodied_env.record.manifest import name_of_policy, world_of, write_text

_MOST_ROWS = 8  # of a chart
_MOST_OF_GROUP = 3
_MOST_JOINTS = 2
_MOST_PAIRS = 2
_MOTION = ("tracking", "gain", "offset", "delay")


def write_comparison(comparisons: Sequence[Comparison], path: str | Path, *, replace: bool = True) -> None:
    """Write the page of `comparisons`, all with the same first run, to `path`.

    Raises:
        RecordError: when it cannot be written.
        MissingDependencyError: when jinja2 is not installed.
    """
    sides = [comparisons[0].a, *(comparison.b for comparison in comparisons)]
    contract = describe_value(sides[0].run.manifest["contract"]["name"])
    rates = [(f"{side.name}: {name_of_side(side)}", *side.features.outcomes.rates()[0][1:]) for side in sides]
    page = render_page(
        "compare.html",
        title=f"{contract}: {', '.join(dict.fromkeys(map(name_of_side, sides)))}",
        version=__version__,
        chance=CHANCE,
        power=POWER,
        verdicts=VERDICTS,
        comparisons=comparisons,
        sides=sides,
        versions=dict.fromkeys(name for side in sides for name in side.run.manifest["versions"]),
        success_chart=draw_rates(rates),
        sections=SECTIONS,
        effects_chart=effects_chart,
        overlays=overlays,
        stage_label=stage_label,
        name_of_side=name_of_side,
        words=findings,
    )
    write_text(Path(path), page, replace=replace)


def name_of_side(side: Side) -> str:
    """Return the policy of a run and its backend, such as "scripted on mujoco (simulator)"."""
    manifest = side.run.manifest
    policy = describe_value(name_of_policy(manifest.get("policy")))
    return f"{policy} on {describe_value(manifest.get('backend'))} ({world_of(manifest)})"


def overlays(comparison: Comparison) -> list[str]:
    """Return the motion of the joints that differ most, in episodes with equal starts if any."""
    a, b = comparison.a.features, comparison.b.features
    joints = [found.name.component for found in comparison.differences if found.name.kind in _MOTION]
    kept = [(i, j) for i, j in comparison.pairing.indices if i in a.drawn and j in b.drawn]
    pairs = kept[:_MOST_PAIRS] or list(zip(a.drawn, b.drawn, strict=False))[:1]
    drawn = []
    for joint in list(dict.fromkeys(joints))[:_MOST_JOINTS]:
        tracked = a.tracked[joint]
        for i, j in pairs:
            motions = [
                motions[list(side.features.tracked).index(joint)]
                for side, motions in ((comparison.a, a.drawn[i]), (comparison.b, b.drawn[j]))
            ]
            if all(len(motion.read_s) for motion in motions):
                names = comparison.a.name, comparison.b.name
                title = f"{joint} · episode {i + 1}" + ("" if i == j else f" and {j + 1}")
                longest_s = 1.5 * min(float(np.ptp(motion.read_s)) for motion in motions)
                lines = [line for motion, name, style in zip(motions, names, "ab", strict=True)
                         for line in _lines(motion, name, style, longest_s)]  # fmt: skip
                drawn.append(line_chart(title, lines, x_title="time, s", unit=tracked.unit))
    return drawn


def _lines(motion: Motion, name: str, style: str, longest_s: float) -> list[Line]:
    start_s = motion.commanded_s[-len(motion.read_s)]  # of the first command
    curves = (
        (f"command of {name}", motion.commanded_s - start_s, motion.commands, f"{style} command"),
        (f"measured in {name}", motion.read_s - start_s, motion.readings, style),
    )
    return [Line(text, t[t <= longest_s], values[t <= longest_s], kind) for text, t, values, kind in curves]


def effects_chart(comparison: Comparison, shown: Sequence[FeatureDifference]) -> str:
    """Return the differences as multiples of what matters, with their intervals."""
    leading = [found for group in findings.group_differences(shown) for found in group[:_MOST_OF_GROUP]]
    rows = []
    for found in sorted(leading, key=shown.index)[:_MOST_ROWS]:
        low, high = found.interval or (math.nan, math.nan)
        levels = " → ".join(findings.describe_level(found.name, level.mean) for level in (found.a, found.b))
        is_certain = found.verdict == "differs"
        text = f"{levels} · {found.relevance:.1f} times{'' if is_certain else f', {found.verdict}'}"
        value, low, high = (size / found.scale.matters for size in (found.difference, low, high))
        rows.append(Interval(findings.label(found.name), value, low, high, text, "s0" if is_certain else "s7"))
    if not rows:
        return ""
    ends = [end for row in rows for end in (row.value, row.low, row.high) if math.isfinite(end)]
    title = f"{comparison.b.name} - {comparison.a.name}, in multiples of what matters"
    return interval_chart(title, rows, span=(1.05 * min(0.0, *ends), 1.05 * max(0.0, *ends)), reference=0.0)
