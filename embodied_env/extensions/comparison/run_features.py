"""Collect the numbers and events of a run by name, for comparison with another."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract
from embodied_env.contract.spaces import field_layouts
from embodied_env.core.code_types import Quality, Severity
from embodied_env.core.latency_statistics import Stage, StreamSample, stages_of
from embodied_env.core.types import FloatArray
from embodied_env.errors import RecordError
from embodied_env.extensions.comparison.joint_response import Motion, MotionRecorder, fit_joint_response
from embodied_env.extensions.report.time_series import BoundedDict, Sparse
from embodied_env.record.arrays import Reference, is_reference
from embodied_env.record.episode_pairing import MOST_EPISODES, Episodes
from embodied_env.record.row_types import RESET, RecordedRow, TransitionRow
from embodied_env.record.step_values import Joints, firings
from embodied_env.record.summary import Outcomes

MOST_STREAMS = 400
"""Names of numbers, and of events, of a run, beyond which more are counted and left out."""

MOST_COMPONENTS = 16
"""Components of a field with streams of their own, beyond which a field has one stream."""

MOST_DRAWN = 8
"""Episodes whose motion is kept for figures."""

_MOST_ARRAYS = 256  # arrays of a field that are read
_LARGEST = 1e60  # of a number, so that squares of variances are finite
_DERIVED = ("obs_age_max_s", "obs_skew_s", "overrun_s")  # from other stages
_INJECTED = "injected."
_ON_THE_ROBOT = {"age_s": "capture_age_s", "inference_s": "obs_to_command_s"}  # other stages have the same name

Kind = Literal[
    "outcome", "tracking", "gain", "offset", "gate", "action", "observation", "evaluator", "delay", "latency", "sensor"
]
Section = Literal["outcome", "motion", "readings", "timing"]
SECTIONS: tuple[Section, ...] = get_args(Section)
_TIMING = ("delay", "latency", "sensor")


@dataclass(frozen=True, kw_only=True, order=True)
class FeatureName:
    """Name of a number or an event, with its unit or ""."""

    kind: Kind
    group: str
    component: str = ""
    unit: str = ""

    @property
    def section(self) -> Section:
        """Section of the comparison."""
        if self.kind == "observation":  # what a policy sees
            return "readings"
        return "outcome" if self.kind == "outcome" else "timing" if self.kind in _TIMING else "motion"

    @property
    def is_event(self) -> bool:
        """Whether its values are shares of the steps."""
        return self.kind in ("gate", "sensor") or self == MISSED_DEADLINES

    @property
    def is_share_of_episodes(self) -> bool:
        """Whether an episode has it or not."""
        return self.kind == "outcome" and self.group in ("success", "ended by")


MISSED_DEADLINES = FeatureName(kind="latency", group="missed deadlines")


class Stream(StreamSample):
    """A sample of all numbers of one feature, and the mean of each episode."""

    def __init__(self) -> None:
        super().__init__()
        self._sums, self._counts = array("d"), array("q")

    def add_step(self, values: Sequence[float], episode: int) -> None:
        """Add the numbers of one step of `episode`, from 0."""
        for value in values:
            self.add(value)
        if episode < MOST_EPISODES:
            missing = episode + 1 - len(self._sums)
            self._sums.extend([0.0] * missing)
            self._counts.extend([0] * missing)
            self._sums[episode] += math.fsum(values)
            self._counts[episode] += len(values)

    def means(self, episodes: int) -> FloatArray:
        """Return the means of the first `episodes` episodes, NaN where one has no number."""
        found = np.full(episodes, np.nan)
        counts = np.array(self._counts)
        np.divide(np.array(self._sums), counts, out=found[: len(counts)], where=counts > 0)
        return found


class Event:
    """Number of steps of each episode in which something occurred."""

    def __init__(self) -> None:
        self.steps: Counter[int] = Counter()
        self._last = -1

    def add(self, step: int, episode: int) -> None:
        """Count `step` of `episode`, in ascending order and each step once."""
        if step != self._last and episode < MOST_EPISODES:
            self.steps[episode] += 1
        self._last = step


class RunFeatures:
    """Features of the rows of a run, whose memory grows with episodes only."""

    def __init__(self, contract: Contract | None, *, is_lockstep: bool = True) -> None:
        """Start without rows, and without joints and names of components if without `contract`."""
        self.streams: BoundedDict[FeatureName, Stream] = BoundedDict(Stream, MOST_STREAMS)  # of numbers
        self.events: BoundedDict[FeatureName, Event] = BoundedDict(Event, MOST_STREAMS)  # steps with one
        self.outcomes = Outcomes()
        self.episodes = Episodes()
        self.steps = self.resets = 0
        self._joints = Joints(contract)
        # commanded joints with a reading, and those without
        self.tracked = {name: joint for name, joint in self._joints.by_name.items() if joint.sensor}
        self.untracked = [name for name, joint in self._joints.by_name.items() if not joint.sensor]
        self.drawn: dict[int, list[Motion]] = {}  # of `tracked` in the first `MOST_DRAWN` episodes, from 0
        self.ranges: dict[FeatureName, float] = {}  # declared, of the components of fields
        self.injected: set[str] = set()  # stages whose delays take their time in the world in lockstep too
        self._period_s = 0.0 if contract is None else contract.control_period_s
        self._motion = MotionRecorder(list(self.tracked.values()), period_s=self._period_s, is_lockstep=is_lockstep)
        self._labels = {} if contract is None else _component_labels(contract)
        self._arrays: BoundedDict[FeatureName, Sparse[tuple[Reference, int]]] = BoundedDict(
            lambda: Sparse(_MOST_ARRAYS), MOST_COMPONENTS
        )
        self._steps_of: Counter[int] = Counter()  # steps of each episode with an account
        self._ended_by: dict[int, str] = {}
        self._missed = 0

    @property
    def left_out(self) -> int:
        """Numbers and events that were not added, since there are too many names."""
        return self.streams.left_out + self.events.left_out

    def add(self, row: RecordedRow) -> None:
        """Add a row, which counts in the outcomes only if an outer wrapper added it."""
        ended = self.outcomes.add(row)
        if row["schema"] == RESET:
            self._end_motion()
            self.resets += 1
            self.episodes.begin(row)
            self._motion.begin(row)
            self._missed = 0
            return
        self.steps += 1
        if row["inner"] is not None:
            self._steps_of[self._episode] += 1
            self._add_latency(row["info"]["latency"])
            self._add_values(row)
            self._add_tracking(row)
            self._add_events(row)
        if ended is not None:
            self.episodes.end(ended)
            self._ended_by[self._episode] = ended.reason
            values = {("return", ""): ended.reward, ("length", "steps"): ended.steps}
            if not ended.apart:
                values["success", ""] = ended.success
            for (group, unit), value in values.items():
                self._add(FeatureName(kind="outcome", group=group, unit=unit), [value])

    def close(self, read_array: Callable[[Reference], NDArray[Any]]) -> None:
        """End the last episode, and add the mean of some arrays of each field by `Run.array`."""
        self._end_motion()
        read = {name.component for name in self.streams if name.kind == "tracking"}
        self.untracked += [joint for joint in self.tracked if self.steps and joint not in read]
        for name, sparse in self._arrays.items():
            for reference, episode in sparse.kept:
                try:
                    mean = float(np.mean(read_array(reference), dtype=np.float64))
                except (RecordError, ValueError, TypeError):
                    mean = math.nan
                self._add(name, [mean], episode=episode)
        self._arrays.clear()

    def names(self) -> list[FeatureName]:
        """Return the features with a value, except success as a reason of an end."""
        others = (by for by in self._ended_by.values() if by != "success")
        reasons = (FeatureName(kind="outcome", group="ended by", component=by) for by in others)
        streams = (name for name, stream in self.streams.items() if stream.count)
        return list(dict.fromkeys((*streams, *reasons, *self.events)))

    def values(self, name: FeatureName) -> FloatArray:
        """Return the mean, or share of the steps, of a feature in each episode, NaN without one."""
        episodes = range(min(MOST_EPISODES, max(1, self.resets)))
        if name.group == "ended by":
            ends = (self._ended_by.get(episode) for episode in episodes)
            return np.array([math.nan if end is None else float(end == name.component) for end in ends])
        if name in self.streams:
            return self.streams[name].means(len(episodes))
        if not name.is_event:
            return np.full(len(episodes), np.nan)
        counts = self.events[name].steps if name in self.events else {}
        return np.array([counts.get(k, 0) / steps if (steps := self._steps_of.get(k)) else math.nan for k in episodes])

    @property
    def _episode(self) -> int:
        return max(0, self.resets - 1)

    def _end_motion(self) -> None:
        if not self._steps_of.get(self._episode):
            return
        motions = self._motion.motions()
        if len(self.drawn) < MOST_DRAWN:
            self.drawn[self._episode] = motions
        for joint, motion in zip(self.tracked.values(), motions, strict=True):
            if (response := fit_joint_response(motion, joint, self._period_s)) is None:
                continue
            offset, unit = f"{joint.quantity} offset", joint.unit
            self._add(
                FeatureName(kind="delay", group="response delay", component=joint.name, unit="s"), [response.delay_s]
            )
            self._add(FeatureName(kind="gain", group="gain", component=joint.name), [response.gain])
            self._add(FeatureName(kind="offset", group=offset, component=joint.name, unit=unit), [response.offset])

    def _add(self, name: FeatureName, values: Iterable[float | None], *, episode: int | None = None) -> None:
        stream = self.streams.entry(name)
        if stream is None:
            return
        known = [float(value) for value in values if value is not None and abs(value) < _LARGEST]
        if known:
            stream.add_step(known, self._episode if episode is None else episode)

    def _add_event(self, name: FeatureName) -> None:
        if (event := self.events.entry(name)) is not None:
            event.add(self.steps, self._episode)

    def _add_latency(self, latency: Mapping[str, Any]) -> None:
        self.injected |= {injected_as(name) for (name, _), *_ in stages_of(latency) if name.startswith(_INJECTED)}
        for (stage, sensor), seconds in as_on_the_robot(latency).items():
            if stage in _DERIVED:
                continue
            self._add(FeatureName(kind="latency", group=stage, component=sensor, unit="s"), [seconds])
        missed = latency.get("missed_deadlines") or 0  # since the reset
        if missed > self._missed:
            self._add_event(MISSED_DEADLINES)
        self._missed = missed

    def _add_values(self, row: TransitionRow) -> None:
        for key, value in _fields_of(row["observation"], "observation"):
            self._add_field("observation", key, value)
        for sensor, fields in row["inner"]["evaluator"].items():
            for field, value in fields.items():
                self._add_field("evaluator", f"{sensor}_{field}", value)
        for joint, value in list(self._joints.requested(row))[:MOST_COMPONENTS]:
            self._add(FeatureName(kind="action", group="requested", component=joint), [value])

    def _add_field(self, kind: Kind, key: str, value: Any) -> None:  # noqa: ANN401 - JSON types
        if is_reference(value):
            sparse = self._arrays.entry(FeatureName(kind=kind, group=key, component="mean"))
            if sparse is not None:
                sparse.add((value, self._episode))
            return
        values, labels = _numbers_of(value), self._labels.get(key, [])
        if len(values) > MOST_COMPONENTS:
            units = {unit for _, unit, _ in labels}
            name = FeatureName(kind=kind, group=key, component="mean", unit=units.pop() if len(units) == 1 else "")
            self.ranges[name] = max((size for *_, size in labels), default=math.nan)
            known = values[np.abs(values) < _LARGEST]
            self._add(name, [float(np.mean(known))] if known.size else [])
            return
        if len(labels) != len(values):
            labels = [(_component_name(index, len(values)), "", math.nan) for index in range(len(values))]
        for (component, unit, size), number in zip(labels, values.tolist(), strict=True):
            name = FeatureName(kind=kind, group=key, component=component, unit=unit)
            self._add(name, [number])
            self.ranges[name] = size

    def _add_tracking(self, row: TransitionRow) -> None:
        for joint, error in zip(self.tracked.values(), self._motion.add(row), strict=True):
            name = FeatureName(kind="tracking", group=joint.quantity, component=joint.name, unit=joint.unit)
            if not math.isnan(error):
                self._add(name, [abs(error)])

    def _add_events(self, row: TransitionRow) -> None:
        if row["info"]["safety"]["intervened"]:
            self._add_event(FeatureName(kind="gate", group="changed actions"))
        for (gate, code, joint), severity in firings(row):
            if severity > Severity.PASS:
                component = f"{code} · {joint}" if joint else code
                self._add_event(FeatureName(kind="gate", group=gate, component=component))
        for sensor, reading in row["info"]["sensors"].items():
            if reading["quality"] != Quality.OK:
                quality = Quality(reading["quality"]).name
                self._add_event(FeatureName(kind="sensor", group=sensor, component=quality))
            if reading["lost"]:
                self._add_event(FeatureName(kind="sensor", group=sensor, component="messages lost"))


def as_on_the_robot(latency: Mapping[str, Any]) -> dict[Stage, float]:
    """Return the measured stages of a latency, s, with injected delays for what they simulate."""
    found = {}
    for (name, sensor), quality, seconds in stages_of(latency):
        if quality == Quality.OK and seconds is not None:
            found[injected_as(name), sensor] = seconds
    return found


def injected_as(name: str) -> str:
    """Return the stage that an injected delay simulates, or the name of any other stage."""
    injected = name.removeprefix(_INJECTED)
    return name if injected == name else _ON_THE_ROBOT.get(injected, injected)


def _component_labels(contract: Contract) -> dict[str, list[tuple[str, str, float]]]:
    """Return name, unit and declared range of each component, by key of the observation."""
    labels = {}
    for name, sensor in contract.sensors.items():
        for layout in field_layouts(name, sensor):
            spec, size = sensor.fields[layout.field], math.prod(layout.shape)
            units = spec.unit if isinstance(spec.unit, tuple) else (spec.unit,) * size
            names = spec.joints or [_component_name(index, size) for index in range(size)]
            ranges = np.broadcast_to(np.subtract(spec.high, spec.low), size).tolist()
            labels[layout.key] = list(zip(names, units, ranges, strict=False))
    return labels


def _component_name(index: int, size: int) -> str:
    return "" if size == 1 else f"[{index}]"


def _fields_of(value: Any, key: str) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - JSON types
    """Yield the fields of an observation, of any depth, by their own key."""
    if isinstance(value, dict) and not is_reference(value):
        for name, item in value.items():
            yield from _fields_of(item, name)
    else:
        yield key, value


def _numbers_of(value: Any) -> FloatArray:  # noqa: ANN401 - JSON types
    """Return the numbers of a field as a flat array, with NaN for anything else."""
    try:
        return np.asarray(value, dtype=np.float64).ravel()
    except (TypeError, ValueError, OverflowError):
        return np.array([math.nan])
