"""How long things took and how old they were: stages of steps, sensors, clocks, row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from embodied_env.analysis.report.row_access import count_of, finite, get_mapping, text_of
from embodied_env.analysis.report.time_series import MOST_NAMES, Timeline
from embodied_env.analysis.statistics import QuantileSketch
from embodied_env.core.codes import Quality
from embodied_env.core.latency.statistics import STAGES
from embodied_env.record.schema import step_info_schema

Stage = tuple[str, str]
"""The name of a stage, and of a sensor, or ""."""

NO_NUMBER = -1
"""In place of a quality: it says that the value was measured, and there is none."""

_AGE_IS_KNOWN = (Quality.OK, Quality.OUT_OF_RANGE, Quality.STALE, Quality.INVALID, Quality.LOST)
"""Where the last good reading was handed out, its age is what it is."""

_OK = int(Quality.OK)


def stage_label(stage: Stage) -> str:
    """Return the name of a stage for people."""
    name, sensor = stage
    said = name.removesuffix("_s").replace("_", " ")
    return f"{said} · {sensor}" if sensor else said


def stage_meaning(name: str) -> str:
    """Return what a stage is, by the schema of info; "" where it does not know it."""
    properties = step_info_schema()["properties"]["latency"]["properties"]
    return str(properties.get(name, {}).get("description", ""))


def quality_name(code: int) -> str:
    """Return the name of a quality; what is no quality is said to be none."""
    if code == NO_NUMBER:
        return "NO NUMBER"
    try:
        return Quality(code).name
    except ValueError:
        return f"unknown code {code}"


class Stages:
    """The stages of all steps. Only measured values are counted; the others by what is known about them."""

    def __init__(self, timeline: Timeline) -> None:
        """Begin with no step."""
        self.sketches: dict[Stage, QuantileSketch] = {}
        self.unmeasured: Counter[tuple[Stage, int]] = Counter()
        self.first_not_measured: dict[tuple[Stage, int], int] = {}
        self.steps = 0  # that have an account of latency
        self._timeline = timeline

    def add(self, step: int, info: Mapping[str, Any]) -> None:
        """Take in the info of the step number `step`."""
        latency = get_mapping(info, "latency")
        self.steps += bool(latency)
        for stage, code, value in _entries(latency):
            seconds = finite(value)
            if code == _OK and seconds is not None:
                self._measured(stage, seconds)
            else:
                self._not_measured(step, stage, NO_NUMBER if code == _OK else code)

    def in_order(self) -> list[Stage]:
        """Return the measured stages in the order in which they happen."""
        return sorted(self.sketches, key=_place)

    def not_measured(self) -> list[tuple[Stage, int]]:
        """Return stage and quality of what was not measured, in the order in which stages happen."""
        return sorted(self.unmeasured, key=lambda key: (_place(key[0]), key[1]))

    def absent(self) -> list[str]:
        """Return the stages that no step has: this world can never measure them."""
        found = {name for name, _ in self.sketches} | {name for (name, _), _ in self.unmeasured}
        return [name for name in STAGES if name not in found]

    def _measured(self, stage: Stage, seconds: float) -> None:
        if stage not in self.sketches:
            if len(self.sketches) >= MOST_NAMES:
                self._timeline.leave_out()
                return
            self.sketches[stage] = QuantileSketch()
        self.sketches[stage].add(seconds)
        self._timeline.add(("stage", stage), 1e3 * seconds)

    def _not_measured(self, step: int, stage: Stage, code: int) -> None:
        key = (stage, code)
        if key in self.unmeasured or len(self.unmeasured) < MOST_NAMES:
            self.unmeasured[key] += 1
            self.first_not_measured.setdefault(key, step)
        else:
            self._timeline.leave_out()


def _entries(latency: Mapping[str, Any]) -> Iterator[tuple[Stage, int, object]]:
    qualities = get_mapping(latency, "quality")
    yield from _entries_of(latency, {name: code for name, code in qualities.items() if name != "injected"}, "")
    yield from _entries_of(get_mapping(latency, "injected"), get_mapping(qualities, "injected"), "injected.")


def _entries_of(
    values: Mapping[str, Any], qualities: Mapping[str, Any], prefix: str
) -> Iterator[tuple[Stage, int, object]]:
    """Yield stage, quality and value; of what was put into a world that waits under names of their own."""
    for key, quality in qualities.items():
        name, value = f"{prefix}{text_of(key)}", values.get(key)
        if isinstance(quality, Mapping):
            for sensor, code in quality.items():
                yield (name, text_of(sensor)), _code(code), get_mapping(value).get(sensor)
        else:
            yield (name, ""), _code(quality), value


def _code(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else int(Quality.UNKNOWN)


def _place(stage: Stage) -> tuple[int, str, str]:
    name, sensor = stage
    return (STAGES.index(name) if name in STAGES else len(STAGES), name, sensor)


class Sensor:
    """One sensor over all steps."""

    def __init__(self) -> None:
        """Begin with no reading."""
        self.steps = 0
        self.ages = QuantileSketch()
        self.qualities: Counter[int] = Counter()
        self.stamp_qualities: Counter[int] = Counter()
        self.suspected: Counter[str] = Counter()
        self.lost = self.duplicated = self.reordered = 0
        self.confidence = QuantileSketch()
        self.confidence_unknown = 0


class Sensors:
    """The readings of all steps, by sensor. An age counts where it is known: the stamp is good."""

    def __init__(self, timeline: Timeline) -> None:
        """Begin with no step."""
        self.by_name: dict[str, Sensor] = {}
        self._timeline = timeline

    def add(self, info: Mapping[str, Any]) -> None:
        """Take in the info of one step."""
        for name, account in get_mapping(info, "sensors").items():
            if name not in self.by_name and len(self.by_name) >= MOST_NAMES:
                self._timeline.leave_out()
                continue
            self._add(text_of(name), get_mapping(account))

    def _add(self, name: str, account: Mapping[str, Any]) -> None:
        sensor = self.by_name.setdefault(name, Sensor())
        sensor.steps += 1
        quality, stamp = _code(account.get("quality")), _code(account.get("stamp_quality", _OK))
        sensor.qualities[quality] += 1
        if "stamp_quality" in account:
            sensor.stamp_qualities[stamp] += 1
        if suspect := text_of(account.get("suspect_clock")):
            sensor.suspected[suspect] += 1
        sensor.lost += count_of(account.get("lost"))
        sensor.duplicated += count_of(account.get("duplicated"))
        sensor.reordered += count_of(account.get("reordered"))
        age_s = finite(account.get("age_s"))
        if age_s is not None and quality in _AGE_IS_KNOWN and stamp == _OK:
            sensor.ages.add(age_s)
            self._timeline.add(("age", name), 1e3 * age_s)
        if "confidence" in account:
            confidence = finite(account["confidence"])
            if confidence is None:
                sensor.confidence_unknown += 1
            else:
                sensor.confidence.add(confidence)


class Clocks:
    """The clock of a world that moves by itself, as each step tells it."""

    def __init__(self) -> None:
        """Begin with no step."""
        self.steps = 0
        self.modes: Counter[str] = Counter()
        self.middleware: Counter[str] = Counter()
        self.noticed: Counter[str] = Counter()
        self.most_epochs = 0
        self.rtf = QuantileSketch()
        self.offset_errors = QuantileSketch()

    def add(self, row: Mapping[str, Any]) -> None:
        """Take in the row of one step."""
        clock = get_mapping(row, "info", "latency", "clock")
        if jump := text_of(get_mapping(row, "inner", "clock").get("jump")):
            self.noticed[jump] += 1
        if not clock:
            return
        self.steps += 1
        self.modes[text_of(clock.get("mode")) or "unknown"] += 1
        self.middleware[text_of(clock.get("rmw")) or "not told, steps:"] += 1
        self.most_epochs = max(self.most_epochs, count_of(clock.get("epoch")))
        for sketch, key in ((self.rtf, "rtf"), (self.offset_errors, "offset_error_s")):
            if (value := finite(clock.get(key))) is not None:
                sketch.add(value)
