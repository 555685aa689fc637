"""Latency stages, sensor readings and clocks over the steps of a run, and their sections of the report."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from embodied_env.analysis.report.figures import BLUE, ORANGE, VERMILION, Line, lines_figure
from embodied_env.analysis.report.formatting import format_number, milliseconds, share_of
from embodied_env.analysis.report.time_series import BoundedDict, Occurrences, Timeline
from embodied_env.analysis.statistics import Sample
from embodied_env.core.codes import Quality
from embodied_env.core.latency.statistics import STAGES
from embodied_env.record.schema import step_info_schema

Stage = tuple[str, str]
"""Name of a stage, and of its sensor or ""."""

MOST_FIGURES = 48

_AGE_IS_KNOWN = (Quality.OK, Quality.OUT_OF_RANGE, Quality.STALE, Quality.INVALID, Quality.LOST)
"""Qualities of readings whose age is known: a repeated reading keeps its stamp."""

_CLOCKS = {"wall": "UTC, steps:", "sim": "simulated time, steps:"}
_MEANING_OF_QUALITY = {
    Quality.OK: "marked as measured, but without a value",
    Quality.STALE: "the reading was older than the contract allows; the last valid one was used",
    Quality.INVALID: "the message was malformed or not finite; the last valid reading was used",
    Quality.LOST: "the backend did not answer; the last valid reading was used",
    Quality.OUT_OF_RANGE: "outside the declared range, passed on unchanged",
    Quality.FUTURE: "stamped later than now",
    Quality.ZERO_STAMP: "the message has no stamp",
    Quality.NEGATIVE: "the difference is negative: the two clocks disagree",
    Quality.FIRST: "the first step of an episode: measured from the reset",
    Quality.UNMARKED: "the agent did not mark the end of its policy: an upper bound, not a measurement",
    Quality.UNKNOWN: "a stamp that it needs is missing",
    Quality.UNSYNCED: "its stamps are of clocks that are not synchronised, or whose error exceeds the duration",
    Quality.FALLBACK_SOURCE: "no stamp in the message: the time of its publication was used",
    Quality.FALLBACK_RECEIVED: "no stamp of the message or its publication: the time of its arrival was used",
    Quality.JUMP: "a clock was set between its two stamps",
    Quality.DECLARED: "not measured: declared, or from a calibration",
}

_Key = TypeVar("_Key")


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
        """Start without steps."""
        self.samples: BoundedDict[Stage, Sample] = BoundedDict(Sample)
        self.unmeasured: BoundedDict[tuple[Stage, int], Occurrences] = BoundedDict(Occurrences)
        self._timeline = timeline

    def add(self, step: int, latency: Mapping[str, Any]) -> None:
        """Add ``info["latency"]`` of a step."""
        for stage, quality, seconds in stages_of(latency):
            if quality != Quality.OK or seconds is None:
                if (occurrences := self.unmeasured.entry((stage, quality))) is not None:
                    occurrences.add(step)
            elif (sample := self.samples.entry(stage)) is not None:
                sample.add(seconds)
                self._timeline.add(("stage", stage), 1e3 * seconds)

    def latency_section(self) -> dict[str, Any]:
        """Return the rows, figures and descriptions of the measured stages."""
        stages = sorted(self.samples, key=stage_place)
        described = step_info_schema()["properties"]["latency"]["properties"]
        return {
            "rows": [(stage_label(stage), *_percentile_cells(self.samples[stage])) for stage in stages],
            "figures": _figures(self._timeline, [(stage_label(stage), ("stage", stage)) for stage in stages]),
            "meanings": [
                (stage_label((name, "")), described.get(name, {}).get("description", ""))
                for name in dict.fromkeys(name for name, _ in stages)
            ],
        }

    def not_measured_section(self, steps: int) -> dict[str, Any]:
        """Return the rows of what was not measured, and the stages that no step has."""
        rows = []
        for stage, quality in sorted(self.unmeasured, key=lambda key: (stage_place(key[0]), key[1])):
            found = self.unmeasured[stage, quality]
            counts = f"{found.steps:,}", share_of(found.steps, steps), f"{found.first_step:,}"
            kind = Quality(quality)
            rows.append((stage_label(stage), kind.name, _MEANING_OF_QUALITY[kind], *counts))
        known = {name for name, _ in self.samples} | {name for (name, _), _ in self.unmeasured}
        return {"rows": rows, "absent": [stage_label((name, "")) for name in STAGES if name not in known]}


def stages_of(latency: Mapping[str, Any]) -> Iterator[tuple[Stage, int, float | None]]:
    """Yield each stage with its quality and its value in seconds; injected delays are ``injected.NAME``."""
    qualities = {name: quality for name, quality in latency["quality"].items() if name != "injected"}
    injected = latency.get("injected", {}), latency["quality"].get("injected", {})
    for prefix, values, quality_of in (("", latency, qualities), ("injected.", *injected)):
        for name, quality in quality_of.items():
            value = values.get(name)
            if isinstance(quality, dict):
                for sensor, each in quality.items():
                    yield (f"{prefix}{name}", sensor), each, (value or {}).get(sensor)
            else:
                yield (f"{prefix}{name}", ""), quality, value


class _Sensor:
    """Readings of one sensor over all steps."""

    def __init__(self) -> None:
        self.ages = Sample()
        self.confidence = Sample()
        self.counts: Counter[str] = Counter()  # lost, duplicated, reordered
        self.qualities: Counter[int] = Counter()
        self.stamp_qualities: Counter[int] = Counter()
        self.suspected: Counter[str] = Counter()

    def described_qualities(self) -> str:
        """Return the qualities of the readings and, where they are not all OK, of their stamps."""
        parts = [_counted(self.qualities, lambda code: Quality(code).name)]
        if any(code != Quality.OK for code in self.stamp_qualities):
            parts.append(f"stamps: {_counted(self.stamp_qualities, lambda code: Quality(code).name)}")
        if self.suspected:
            parts.append(f"stamped by a clock like: {_counted(self.suspected, str)}")
        return "; ".join(parts)


class Sensors:
    """Readings of all steps by sensor. Only ages whose stamp is good are counted."""

    def __init__(self, timeline: Timeline) -> None:
        """Start without steps."""
        self.by_name: BoundedDict[str, _Sensor] = BoundedDict(_Sensor)
        self._timeline = timeline

    def add(self, sensors: Mapping[str, Any]) -> None:
        """Add ``info["sensors"]`` of a step."""
        for name, reading in sensors.items():
            sensor = self.by_name.entry(name)
            if sensor is None:
                continue
            sensor.qualities[reading["quality"]] += 1
            if "stamp_quality" in reading:
                sensor.stamp_qualities[reading["stamp_quality"]] += 1
            if suspect := reading.get("suspect_clock"):
                sensor.suspected[suspect] += 1
            for count in ("lost", "duplicated", "reordered"):
                sensor.counts[count] += reading[count]
            if reading["quality"] in _AGE_IS_KNOWN and reading.get("stamp_quality", Quality.OK) == Quality.OK:
                sensor.ages.add(reading["age_s"])
                self._timeline.add(("age", name), 1e3 * reading["age_s"])
            if (confidence := reading.get("confidence")) is not None:
                sensor.confidence.add(confidence)

    def section(self) -> dict[str, Any]:
        """Return the rows and figures of all sensors."""
        rows = []
        for name, sensor in self.by_name.items():
            lost = " / ".join(f"{sensor.counts[count]:,}" for count in ("lost", "duplicated", "reordered"))
            rows.append(
                (name, *_percentile_cells(sensor.ages), lost, format_number(sensor.confidence.percentiles().p50))
            )
        charted = [name for name, sensor in self.by_name.items() if sensor.ages.count]
        return {
            "rows": rows,
            "qualities": [(name, sensor.described_qualities()) for name, sensor in self.by_name.items()],
            "figures": _figures(self._timeline, [(f"age · {name}", ("age", name)) for name in charted]),
        }


class Clocks:
    """Clock of a free-running backend, from the account of each step."""

    def __init__(self) -> None:
        """Start without steps."""
        self._modes: Counter[str] = Counter()
        self._middleware: Counter[str] = Counter()
        self._jumps: Counter[str] = Counter()
        self._most_epochs = 0
        self._rtf, self._offset_errors = Sample(), Sample()

    def add(self, row: Mapping[str, Any]) -> None:
        """Add the row of a step."""
        clock, recorded = row["info"]["latency"].get("clock"), row["inner"]["clock"]
        if recorded and recorded["jump"]:
            self._jumps[recorded["jump"]] += 1
        if clock:
            self._modes[clock["mode"]] += 1
            self._middleware[clock["rmw"] or "unknown middleware, steps:"] += 1
            self._most_epochs = max(self._most_epochs, clock["epoch"])
            self._rtf.add(clock["rtf"])
            self._offset_errors.add(clock["offset_error_s"])

    def section(self, missed_deadlines: str) -> dict[str, Any]:
        """Return names and values; none when no step has a clock."""
        rtf, error = self._rtf.percentiles(), self._offset_errors.percentiles()
        facts = [
            ("Missed deadlines", missed_deadlines),
            ("Clock of the stamps", _counted(self._modes, lambda mode: _CLOCKS.get(mode, mode))),
            ("Middleware", _counted(self._middleware, str)),
            ("Clock was set", f"{self._most_epochs:,} times since the connection"),
            ("Clock jumps in steps", _counted(self._jumps, str) or "none"),
            (
                "Real-time factor",
                f"{format_number(rtf.least)} to {format_number(rtf.most)}, median {format_number(rtf.p50)}",
            ),
            (
                "Error of the clock offset",
                f"at most {milliseconds(error.most)} ms, median {milliseconds(error.p50)} ms",
            ),
        ]
        return {"facts": facts if self._modes else []}


def step_axis(timeline: Timeline) -> str:
    """Return the title of the horizontal axis of a figure over time."""
    return "step" if timeline.width == 1 else f"step, {timeline.width:,} per point"


def _figures(timeline: Timeline, named: Iterable[tuple[str, Hashable]]) -> dict[str, Any]:
    """Return a figure of each of the first `MOST_FIGURES` curves, and the names of constant ones, which need none."""
    all_named = list(named)
    drawn, constant = [], []
    for title, name in all_named[:MOST_FIGURES]:
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
    return {"drawn": drawn, "constant": constant, "more": max(0, len(all_named) - MOST_FIGURES)}


def _percentile_cells(sample: Sample) -> tuple[str, ...]:
    """Return the cells "count", "p50", "p95", "p99" and "max" of durations, in ms."""
    found = sample.percentiles()
    return (f"{found.count:,}", *map(milliseconds, (found.p50, found.p95, found.p99, found.most)))


def _counted(counter: Counter[_Key], name: Callable[[_Key], str]) -> str:
    return ", ".join(f"{name(key)} {count:,}" for key, count in counter.most_common(12))
