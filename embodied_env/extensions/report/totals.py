"""Sum up latency stages, sensor readings, clocks and gates over the steps of a run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from embodied_env.core.code_types import Quality, Severity
from embodied_env.core.info_types import SensorInfo
from embodied_env.core.latency_statistics import STAGES, Percentiles, Stage, StreamSample, all_stages_of
from embodied_env.extensions.report.charts import stacked_timeline
from embodied_env.extensions.report.time_series import BoundedDict, Spans
from embodied_env.record.row_types import StepRecord, TransitionRow
from embodied_env.record.step_values import Firing, firings

SEGMENTS = {
    "handoff_s": ("s0", "hand-off"),
    "inference_s": ("s1", "agent"),
    "gate_s": ("s2", "gate"),
    "publish_s": ("s3", "publish"),
    "world_s": ("s7", "world"),
}
"""Stages that follow each other without a gap in a step, with their styles and names in the timeline."""

_CLOCKS = {"wall": "UTC, steps:", "sim": "simulated time, steps:"}


def stage_label(stage: Stage) -> str:
    """Return the name of a stage for people."""
    name, sensor = stage
    label = name.removesuffix("_s").replace("_", " ")
    return f"{label} · {sensor}" if sensor else label


def stage_place(stage: Stage) -> tuple[int, str, str]:
    """Return the sort key of a stage in the order in which stages happen."""
    name, sensor = stage
    return (STAGES.index(name) if name in STAGES else len(STAGES), name, sensor)


class Stages:
    """Stages of all steps, with measured values in samples, others counted by quality."""

    def __init__(self) -> None:
        self.samples: BoundedDict[Stage, StreamSample] = BoundedDict(StreamSample)
        self.unmeasured: BoundedDict[tuple[Stage, int], Spans] = BoundedDict(Spans)

    def add(self, step: int, info: StepRecord) -> None:
        """Add the stages in the info of a step."""
        for stage, quality, seconds in all_stages_of(info):
            if quality != Quality.OK or seconds is None:
                if (spans := self.unmeasured.entry((stage, quality))) is not None:
                    spans.add(step)
            elif (sample := self.samples.entry(stage)) is not None:
                sample.add(seconds)

    def timeline(self, period_s: float | None) -> str:
        """Draw the stages that make up a step, and the control period if it paces them."""
        found = {name: self.samples[name, ""].percentiles() for name in SEGMENTS if (name, "") in self.samples}
        period = self.samples["period_s", ""].percentiles() if ("period_s", "") in self.samples else None
        rows = []
        for label in ("p50", "p95", "p99"):
            total = math.nan if period is None else 1e3 * getattr(period, label)
            rows.append((label, [1e3 * getattr(each, label) for each in found.values()], total))
        segments, limit = [SEGMENTS[name] for name in found], math.nan if period_s is None else 1e3 * period_s
        return stacked_timeline(rows, segments, unit="ms", limit=limit) if found else ""

    @property
    def measured(self) -> list[tuple[Stage, Percentiles]]:
        """Measured stages in the order in which they happen."""
        return [(stage, self.samples[stage].percentiles()) for stage in sorted(self.samples, key=stage_place)]

    @property
    def gaps(self) -> list[tuple[Stage, str, Spans]]:
        """Stages with the quality of the steps in which they were not measured."""
        ordered = sorted(self.unmeasured.items(), key=lambda item: (stage_place(item[0][0]), item[0][1]))
        return [(stage, Quality(quality).name, spans) for (stage, quality), spans in ordered]


def age_is_known(reading: SensorInfo) -> bool:
    """Return whether the age of a reading in an info, new or held, is measured."""
    return reading["quality"] != Quality.LOST and reading.get("stamp_quality", Quality.OK) == Quality.OK


class _Sensor:
    def __init__(self) -> None:
        self.ages = StreamSample()
        self.counts: Counter[str] = Counter()  # lost, duplicated, reordered
        self.qualities: Counter[str] = Counter()
        self.stamp_qualities: Counter[str] = Counter()
        self.suspected: Counter[str] = Counter()
        self.suspect_steps, self.suspect_motion = Spans(), ""  # of an odometry, and the newest reason


class Sensors:
    """Readings of all steps by sensor, with only those ages whose stamp is good."""

    def __init__(self) -> None:
        self.by_name: BoundedDict[str, _Sensor] = BoundedDict(_Sensor)

    def add(self, step: int, sensors: Mapping[str, SensorInfo]) -> None:
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
            if problem := reading.get("suspect_motion"):
                sensor.suspect_motion = problem
                sensor.suspect_steps.add(step)
            sensor.counts["lost"] += reading["lost"]
            sensor.counts["duplicated"] += reading["duplicated"]
            sensor.counts["reordered"] += reading["reordered"]
            if age_is_known(reading):
                sensor.ages.add(reading["age_s"])

    @property
    def lost(self) -> int:
        """Number of messages that were lost."""
        return sum(sensor.counts["lost"] for sensor in self.by_name.values())


class Clocks:
    """Clock of a free-running backend, as reported by each step."""

    def __init__(self) -> None:
        self.modes: Counter[str] = Counter()
        self.middleware: Counter[str] = Counter()
        self.jumps: Counter[str] = Counter()
        self.rtf, self.offset_errors = StreamSample(), StreamSample()

    def add(self, row: TransitionRow) -> None:
        """Add the row of a step."""
        clock, recorded = row["info"]["latency"].get("clock"), row["inner"]["clock"]
        if recorded and recorded["jump"]:
            self.jumps[recorded["jump"]] += 1
        if clock:
            self.modes[_CLOCKS.get(clock["mode"], clock["mode"])] += 1
            self.middleware[clock["rmw"] or "unknown middleware, steps:"] += 1
            self.rtf.add(clock["rtf"])
            self.offset_errors.add(clock["offset_error_s"])


class Gates:
    """Findings of the gates in all steps."""

    def __init__(self) -> None:
        self.found: BoundedDict[tuple[Firing, str], Spans] = BoundedDict(Spans)  # and their severity
        self.dispositions: Counter[str] = Counter()
        self.intervened = 0

    def add(self, step: int, row: TransitionRow) -> None:
        """Add the row of a step."""
        safety = row["info"]["safety"]
        self.intervened += safety["intervened"]
        self.dispositions[Severity(safety["disposition"]).name] += 1
        for firing, severity in firings(row):
            if (spans := self.found.entry((firing, severity.name))) is not None:
                spans.add(step)

    @property
    def ordered(self) -> list[tuple[tuple[Firing, str], Spans]]:
        """Findings, the most frequent one first."""
        return sorted(self.found.items(), key=lambda item: (-item[1].count, item[0]))
