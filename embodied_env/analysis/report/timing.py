"""Latency stages, sensor readings and clocks over the steps of a run, and their figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from embodied_env.analysis.report.figures import BLUE, ORANGE, VERMILION, Line, lines_figure
from embodied_env.analysis.report.formatting import format_number
from embodied_env.analysis.report.time_series import BoundedDict, Occurrences, Timeline
from embodied_env.analysis.statistics import Sample
from embodied_env.core.codes import Quality
from embodied_env.core.latency.statistics import STAGES, Stage, all_stages_of
from embodied_env.record.schema import step_info_schema

MOST_FIGURES = 48

_AGE_IS_KNOWN = (Quality.OK, Quality.OUT_OF_RANGE, Quality.STALE, Quality.INVALID, Quality.LOST)
"""Qualities of readings whose age is known: a repeated reading keeps its stamp."""

_CLOCKS = {"wall": "UTC, steps:", "sim": "simulated time, steps:"}


def stage_label(stage: Stage) -> str:
    """Return the name of a stage for people."""
    name, sensor = stage
    label = name.removesuffix("_s").replace("_", " ")
    return f"{label} · {sensor}" if sensor else label


def stage_place(stage: Stage) -> tuple[int, str, str]:
    """Return the sort key of a stage: in the order in which stages happen."""
    name, sensor = stage
    return (STAGES.index(name) if name in STAGES else len(STAGES), name, sensor)


class Stages:
    """Stages of all steps. Only measured values are in the samples; the others are counted by quality."""

    def __init__(self, timeline: Timeline) -> None:
        self.samples: BoundedDict[Stage, Sample] = BoundedDict(Sample)
        self.unmeasured: BoundedDict[tuple[Stage, int], Occurrences] = BoundedDict(Occurrences)
        self._timeline = timeline

    def add(self, step: int, info: Mapping[str, Any]) -> None:
        """Add the stages in the info of a step."""
        for stage, quality, seconds in all_stages_of(info):
            if quality != Quality.OK or seconds is None:
                if (occurrences := self.unmeasured.entry((stage, quality))) is not None:
                    occurrences.add(step)
            elif (sample := self.samples.entry(stage)) is not None:
                sample.add(seconds)
                self._timeline.add(("stage", stage), 1e3 * seconds)

    def section(self) -> dict[str, Any]:
        """Return the measured stages with percentiles, figures and descriptions, and what was not measured."""
        stages = sorted(self.samples, key=stage_place)
        described = step_info_schema()["properties"]["latency"]["properties"]
        unmeasured = sorted(self.unmeasured, key=lambda key: (stage_place(key[0]), key[1]))
        known = {name for name, _ in (*self.samples, *(stage for stage, _ in unmeasured))}
        return {
            "measured": [(stage_label(stage), self.samples[stage].percentiles()) for stage in stages],
            "figures": _figures(self._timeline, [(stage_label(stage), ("stage", stage)) for stage in stages]),
            "descriptions": {
                stage_label((name, "")): described.get(name, {}).get("description", "") for name, _ in stages
            },
            "unmeasured": [(stage_label(key[0]), Quality(key[1]).name, self.unmeasured[key]) for key in unmeasured],
            "absent": [stage_label((name, "")) for name in STAGES if name not in known],
        }


class _Sensor:
    """Readings of one sensor over all steps."""

    def __init__(self) -> None:
        self.ages = Sample()
        self.confidence = Sample()
        self.counts: Counter[str] = Counter()  # lost, duplicated, reordered
        self.qualities: Counter[str] = Counter()
        self.stamp_qualities: Counter[str] = Counter()
        self.suspected: Counter[str] = Counter()


class Sensors:
    """Readings of all steps by sensor. Only ages whose stamp is good are counted."""

    def __init__(self, timeline: Timeline) -> None:
        self.by_name: BoundedDict[str, _Sensor] = BoundedDict(_Sensor)
        self._timeline = timeline

    def add(self, sensors: Mapping[str, Any]) -> None:
        """Add ``info["sensors"]`` of a step."""
        for name, reading in sensors.items():
            sensor = self.by_name.entry(name)
            if sensor is None:
                continue
            sensor.qualities[Quality(reading["quality"]).name] += 1
            if "stamp_quality" in reading:
                sensor.stamp_qualities[Quality(reading["stamp_quality"]).name] += 1
            if suspect := reading.get("suspect_clock"):
                sensor.suspected[suspect] += 1
            for count in ("lost", "duplicated", "reordered"):
                sensor.counts[count] += reading[count]
            if reading["quality"] in _AGE_IS_KNOWN and reading.get("stamp_quality", Quality.OK) == Quality.OK:
                sensor.ages.add(reading["age_s"])
                self._timeline.add(("age", name), 1e3 * reading["age_s"])
            if (confidence := reading.get("confidence")) is not None:
                sensor.confidence.add(confidence)

    def figures(self) -> dict[str, Any]:
        """Return the figures of the ages of each sensor."""
        charted = [name for name, sensor in self.by_name.items() if sensor.ages.count]
        return _figures(self._timeline, [(f"age · {name}", ("age", name)) for name in charted])


class Clocks:
    """Clock of a free-running backend, as reported by each step."""

    def __init__(self) -> None:
        self.modes: Counter[str] = Counter()
        self.middleware: Counter[str] = Counter()
        self.jumps: Counter[str] = Counter()
        self.most_epochs = 0
        self.rtf, self.offset_errors = Sample(), Sample()

    def add(self, row: Mapping[str, Any]) -> None:
        """Add the row of a step."""
        clock, recorded = row["info"]["latency"].get("clock"), row["inner"]["clock"]
        if recorded and recorded["jump"]:
            self.jumps[recorded["jump"]] += 1
        if clock:
            self.modes[_CLOCKS.get(clock["mode"], clock["mode"])] += 1
            self.middleware[clock["rmw"] or "unknown middleware, steps:"] += 1
            self.most_epochs = max(self.most_epochs, clock["epoch"])
            self.rtf.add(clock["rtf"])
            self.offset_errors.add(clock["offset_error_s"])


def step_axis(timeline: Timeline) -> str:
    """Return the title of the horizontal axis of a figure over time."""
    return "step" if timeline.width == 1 else f"step, {timeline.width:,} per point"


def _figures(timeline: Timeline, named: Sequence[tuple[str, Hashable]]) -> dict[str, Any]:
    """Return a figure of each of the first `MOST_FIGURES` curves, and the names of constant ones, which need none."""
    drawn, constant = [], []
    for title, name in named[:MOST_FIGURES]:
        curve = timeline.curve(name)
        values = {value for side in (curve.least, curve.most) for value in side if math.isfinite(value)}
        if len(values) == 1 and timeline.buckets > 1:
            constant.append(f"{title} ({format_number(values.pop())} ms)")
            continue
        lines = [Line("each step", curve.p50, BLUE)]
        if timeline.width > 1:
            lines = [
                Line("p99", curve.p99, VERMILION, dash="dot", width=1.6),
                Line("p95", curve.p95, ORANGE, dash="dash", width=1.6),
                Line("p50", curve.p50, BLUE, width=2.0),
            ]
        drawn.append(lines_figure(title, timeline.first_steps, lines, x_title=step_axis(timeline), y_title="ms"))
    return {"drawn": drawn, "constant": constant, "more": max(0, len(named) - MOST_FIGURES)}
