"""Sections of a report: latency by stage, what was not measured, sensors, and clocks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable
from typing import TypeVar

from embodied_env.analysis.report.collectors import RunCollector
from embodied_env.analysis.report.figures import Line, lines_figure
from embodied_env.analysis.report.formatting import MEANING_OF_QUALITY, format_number, milliseconds, plural, share_of
from embodied_env.analysis.report.html import (
    BLUE,
    ORANGE,
    VERMILION,
    Block,
    facts,
    grid,
    group,
    paragraph,
    section,
    subheading,
    table,
)
from embodied_env.analysis.report.time_series import Curve, Timeline
from embodied_env.analysis.report.timing_collectors import Sensor, Stage, quality_name, stage_label, stage_meaning
from embodied_env.analysis.statistics import Percentiles
from embodied_env.core.codes import Quality

_Key = TypeVar("_Key")

MOST_FIGURES = 48
"""Figures of one section; the others are in the table."""

_SPREAD = ("count", "p50, ms", "p95, ms", "p99, ms", "most, ms")


def latency_section(account: RunCollector) -> Block:
    """Return each stage in a table, and over time."""
    stages = account.stages.in_order()
    if not stages:
        why = "no step has an account of its latency" if account.steps else "there is no step"
        return section("Latency by stage", paragraph(f"Nothing was measured: {why}.", kind="warning"), anchor="latency")
    rows = [(stage_label(stage), *_cells(account.stages.sketches[stage].percentiles())) for stage in stages]
    charted = _charted(account, stages)
    meanings = [(stage_label((name, "")), stage_meaning(name)) for name in dict.fromkeys(name for name, _ in stages)]
    parts = [
        paragraph("Only what was measured counts; what was not is told below.", kind="note"),
        table(("stage", *_SPREAD), rows, numbers=(1, 2, 3, 4, 5)),
        subheading("Over time"),
        _figures(account.timeline, [(stage_label(stage), ("stage", stage)) for stage in charted]),
        _left(len(stages) - len(charted), "stage is", "stages are"),
        subheading("What the stages are"),
        facts(meanings),
    ]
    return section("Latency by stage", *parts, anchor="latency")


def not_measured_section(account: RunCollector) -> Block:
    """Return what was not measured, and why."""
    stages = account.stages
    rows = [
        (
            stage_label(stage),
            quality_name(quality),
            MEANING_OF_QUALITY.get(quality, "not known to this version"),
            f"{stages.unmeasured[stage, quality]:,}",
            share_of(stages.unmeasured[stage, quality], account.steps),
            f"{stages.first_not_measured[stage, quality]:,}",
        )
        for stage, quality in stages.not_measured()
    ]
    header = ("stage", "quality", "why", "steps", "share", "first at step")
    parts = [table(header, rows, numbers=(3, 4, 5)) if rows else paragraph("Every stage that is told was measured.")]
    if account.steps > stages.steps:
        missing = plural(account.steps - stages.steps, "step has", "steps have")
        parts.append(paragraph(f"{missing} no account of latency at all.", kind="warning"))
    if absent := [stage_label((name, "")) for name in stages.absent()]:
        parts.append(paragraph(f"In no step, since this world never measures it: {', '.join(absent)}.", kind="note"))
    return section("What was not measured", *parts, anchor="not-measured")


def sensors_section(account: RunCollector) -> Block:
    """Return how old readings were, what was known about them, and what was lost."""
    sensors = account.sensors.by_name
    if not sensors:
        return section("Sensors", paragraph("No step tells of a sensor.", kind="warning"), anchor="sensors")
    rows = [
        (name, *_cells(sensor.ages.percentiles()), _lost(sensor), _confidence(sensor))
        for name, sensor in sensors.items()
    ]
    header = (
        "sensor",
        "known ages",
        *(f"age {name}" for name in _SPREAD[1:]),
        "lost / twice / out of order",
        "confidence, p50",
    )
    parts = [
        table(header, rows, numbers=(1, 2, 3, 4, 5, 6, 7)),
        paragraph(
            "The age is from the acquisition to the reading, on the world's clock, where the stamp is good.",
            kind="note",
        ),
        table(
            ("sensor", "qualities of its readings"), [(name, _qualities(sensor)) for name, sensor in sensors.items()]
        ),
    ]
    charted = [name for name, sensor in sensors.items() if sensor.ages.count][:MOST_FIGURES]
    parts.append(_figures(account.timeline, [(f"age · {name}", ("age", name)) for name in charted]))
    return section("Sensor ages", *parts, anchor="sensors")


def clock_section(account: RunCollector) -> Block:
    """Return deadlines, and what was known of the clocks of a world that moves by itself."""
    clocks, summary = account.clocks, account.outcomes.summary()
    if not clocks.steps:
        said = "Steps have no account of a clock: the world waits for each action, or its clock is its own."
        return section("Deadlines and clocks", paragraph(said), anchor="clocks")
    rtf, error = clocks.rtf.percentiles(), clocks.offset_errors.percentiles()
    noticed = _counted(clocks.noticed, str) or "nothing"
    pairs = [
        ("Missed deadlines", f"{summary['missed_deadlines']:,} in {plural(account.steps, 'step')}"),
        ("Stamps are of", _counted(clocks.modes, _clock_name)),
        ("Middleware", _counted(clocks.middleware, str)),
        ("Clock was set", f"{plural(clocks.most_epochs, 'time')} since the connection"),
        ("Noticed in steps", noticed),
        (
            "Real-time factor",
            f"{format_number(rtf.least)} to {format_number(rtf.most)}, median {format_number(rtf.p50)}",
        ),
        ("Error of the clock's offset", f"at most {milliseconds(error.most)} ms, median {milliseconds(error.p50)} ms"),
    ]
    return section("Deadlines and clocks", facts(pairs), anchor="clocks")


def _clock_name(mode: str) -> str:
    return {"wall": "UTC, steps:", "sim": "simulated time, steps:"}.get(mode, mode)


def _charted(account: RunCollector, stages: list[Stage]) -> list[Stage]:
    """Return what gets a figure: stages of the step first, then those of sensors by their p95."""
    of_sensors = sorted(
        (stage for stage in stages if stage[1]), key=lambda stage: -account.stages.sketches[stage].quantile(0.95)
    )
    chosen = set(([stage for stage in stages if not stage[1]] + of_sensors)[:MOST_FIGURES])
    return [stage for stage in stages if stage in chosen]


def _figures(timeline: Timeline, named: list[tuple[str, Hashable]]) -> Block:
    """Return a figure of each that is drawn, and say which need none, since they never change."""
    drawn, constant = [], []
    for title, name in named:
        curve = timeline.curve(name)
        values = {value for side in (curve.least, curve.most) for value in side if math.isfinite(value)}
        if len(values) == 1 and timeline.buckets > 1:
            constant.append(f"{title} ({format_number(values.pop())} ms)")
        else:
            drawn.append(_figure(timeline, title, curve))
    said = paragraph(f"The same at every step, so not drawn: {', '.join(constant)}.", kind="note") if constant else None
    return group(grid(drawn), said)


def _figure(timeline: Timeline, title: str, curve: Curve) -> Block:
    if timeline.width == 1:
        lines = [Line(name="each step", y=curve.p50, colour=BLUE)]
    else:
        lines = [
            Line(name="p99", y=curve.p99, colour=VERMILION, dash="dot", width=1.6),
            Line(name="p95", y=curve.p95, colour=ORANGE, dash="dash", width=1.6),
            Line(name="p50", y=curve.p50, colour=BLUE, width=2.0),
        ]
    return lines_figure(title, timeline.first_steps, lines, x_title=step_axis(timeline), y_title="ms")


def step_axis(timeline: Timeline) -> str:
    """Return what the horizontal axis of a figure over time is."""
    return "step" if timeline.width == 1 else f"step, {timeline.width:,} to a point"


def _cells(spread: Percentiles) -> tuple[str, ...]:
    if not spread.count:
        return ("0", "none", "none", "none", "none")
    return (f"{spread.count:,}", *(milliseconds(value) for value in (spread.p50, spread.p95, spread.p99, spread.most)))


def _lost(sensor: Sensor) -> str:
    return f"{sensor.lost:,} / {sensor.duplicated:,} / {sensor.reordered:,}"


def _confidence(sensor: Sensor) -> str:
    if sensor.confidence.count:
        return format_number(sensor.confidence.percentiles().p50)
    return "unknown" if sensor.confidence_unknown else "none told"


def _qualities(sensor: Sensor) -> str:
    parts = [_counted(sensor.qualities, quality_name)]
    if any(code != Quality.OK for code in sensor.stamp_qualities):
        parts.append(f"stamps: {_counted(sensor.stamp_qualities, quality_name)}")
    if sensor.suspected:
        parts.append(f"stamped by a clock like: {_counted(sensor.suspected, str)}")
    return "; ".join(parts)


def _counted(counter: Counter[_Key], name: Callable[[_Key], str]) -> str:
    return ", ".join(f"{name(key)} {count:,}" for key, count in counter.most_common(12))


def _left(count: int, one: str, many: str) -> Block | None:
    return paragraph(f"{plural(count, one, many)} in the table only.", kind="note") if count > 0 else None
