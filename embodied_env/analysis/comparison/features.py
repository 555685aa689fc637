"""Features of a run for its comparison with another: numbers and events by name, collected in one pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embodied_env.analysis.comparison.episode_pairing import Episodes
from embodied_env.analysis.comparison.streams import Share, Stream, event_share
from embodied_env.analysis.report.actions import action_values, firings
from embodied_env.analysis.report.outcomes import Outcomes
from embodied_env.analysis.report.time_series import BoundedDict, Occurrences
from embodied_env.contract import Contract
from embodied_env.contract.spaces import field_layouts
from embodied_env.core.codes import Quality, Severity
from embodied_env.core.latency.statistics import Stage, stages_of
from embodied_env.core.types import FloatArray
from embodied_env.errors import RecordError
from embodied_env.record.arrays import Reference, is_reference
from embodied_env.record.rows import RESET

MOST_STREAMS = 400
"""Names of numbers, and of events, of a run; further ones are counted and left out."""

MOST_COMPONENTS = 16
"""Components of a field with streams of their own; larger fields have one stream."""

_PER_STEP = 64  # numbers of a large field that are added per step, in turn
_MOST_ARRAYS = 256  # arrays of a field that are read
_GOOD = (int(Quality.OK), int(Quality.OUT_OF_RANGE))
_INJECTED = "injected."
_ON_THE_ROBOT = {"age_s": "capture_age_s", "inference_s": "obs_to_command_s"}  # other stages have the same name

Kind = Literal["outcome", "latency", "tracking", "observation", "evaluator", "action", "gate", "sensor"]


@dataclass(frozen=True, kw_only=True, order=True)
class FeatureName:
    """Name of a number or an event; `unit` is "" where it has none."""

    kind: Kind
    group: str
    component: str = ""
    unit: str = ""


class _TrackedJoint(NamedTuple):
    """A commanded joint, and where the observation has its reading."""

    name: FeatureName
    command_index: int
    sensor: str
    key: str
    component: int  # of the field `key`
    wraps: bool


class _SparseReferences:
    """References to arrays, evenly over the run: every second one is dropped when there are too many."""

    def __init__(self) -> None:
        self.kept: list[Reference] = []
        self._stride, self._count = 1, 0

    def add(self, reference: Reference) -> None:
        if self._count % self._stride == 0:
            self.kept.append(reference)
            if len(self.kept) >= _MOST_ARRAYS:
                self.kept = self.kept[::2]
                self._stride *= 2
        self._count += 1


class RunFeatures:
    """Features of the rows of a run. Memory grows with episodes only.

    Attributes:
        streams: numbers by name.
        events: steps with an event, by name.
        steps: transitions.
        resets: rows of resets.
        untracked: commanded joints without a reading.
    """

    def __init__(self, contract: Contract | None) -> None:
        """Start without rows; without `contract` components have numbers for names, and no joint is tracked."""
        self.streams: BoundedDict[FeatureName, Stream] = BoundedDict(Stream, MOST_STREAMS)
        self.events: BoundedDict[FeatureName, Occurrences] = BoundedDict(Occurrences, MOST_STREAMS)
        self.outcomes = Outcomes()
        self.episodes = Episodes()
        self.steps = self.resets = 0
        self._labels = {} if contract is None else _component_labels(contract)
        self._tracked, self.untracked = ([], []) if contract is None else _tracked_joints(contract)
        self._arrays: BoundedDict[FeatureName, _SparseReferences] = BoundedDict(_SparseReferences, MOST_COMPONENTS)

    @property
    def left_out(self) -> int:
        """Numbers and events that were not added, since there are too many names."""
        return self.streams.left_out + self.events.left_out

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row that fits its schema; one that an outer wrapper added counts in the outcomes only."""
        ended = self.outcomes.add(row)
        if row["schema"] == RESET:
            self.resets += 1
            self.episodes.begin(row)
            return
        self.steps += 1
        if row["inner"] is not None:
            self._add_latency(row["info"]["latency"])
            self._add_values(row)
            self._add_tracking(row)
            self._add_events(row)
        if ended is not None:
            self.episodes.end(ended)
            independent = self.episodes.count  # episodes are independent
            for group, unit, value in (("return", "", ended.reward), ("length", "steps", ended.steps)):
                self._add(FeatureName(kind="outcome", group=group, unit=unit), [value], episode=independent)

    def read_arrays(self, read_array: Callable[[Reference], NDArray[Any]]) -> None:
        """Add the mean of some arrays of each field, evenly over the run; `read_array` is that of its `Run`."""
        for name, sparse in self._arrays.items():
            for index, reference in enumerate(sparse.kept):
                try:
                    mean = float(np.mean(read_array(reference), dtype=np.float64))
                except (RecordError, ValueError, TypeError):
                    mean = math.nan
                self._add(name, [mean], episode=index)  # so far apart that they are independent
        self._arrays.clear()

    def share(self, name: FeatureName) -> Share:
        """Return the share of the steps with an event; there must be a step."""
        return event_share(self.events.get(name, Occurrences()), self.steps, max(1, min(self.resets, self.steps)))

    def _add(self, name: FeatureName, values: Iterable[float | None], *, episode: int | None = None) -> None:
        stream = self.streams.entry(name)
        if stream is None:
            return
        known = [float(value) for value in values if value is not None and math.isfinite(value)]
        if known:
            stream.add_step(known, self.resets if episode is None else episode)
        else:
            stream.missing += 1

    def _add_event(self, name: FeatureName) -> None:
        if (event := self.events.entry(name)) is not None:
            event.add(self.steps + self.resets)  # so that steps of two episodes are not adjacent

    def _add_latency(self, latency: Mapping[str, Any]) -> None:
        for (stage, sensor), seconds in as_on_the_robot(latency).items():
            self._add(FeatureName(kind="latency", group=stage, component=sensor, unit="s"), [seconds])

    def _add_values(self, row: Mapping[str, Any]) -> None:
        for key, value in _fields_of(row["observation"], "observation"):
            self._add_field("observation", key, value)
        for sensor, fields in (row["inner"]["evaluator"] or {}).items():
            for field, value in fields.items():
                self._add_field("evaluator", f"{sensor}_{field}", value)
        action = row["info"]["action"]
        for kind in ("requested", "applied"):
            joints = list(zip(action["applied_si"], action_values(action[kind]), strict=False))
            for joint, value in joints[:MOST_COMPONENTS]:
                self._add(FeatureName(kind="action", group=kind, component=joint), [value])

    def _add_field(self, kind: Kind, key: str, value: Any) -> None:  # noqa: ANN401 - JSON types
        if is_reference(value):
            sparse = self._arrays.entry(FeatureName(kind=kind, group=key, component="mean of each array"))
            if sparse is not None:
                sparse.add(value)
            return
        values, labels = _numbers_of(value), self._labels.get(key, [])
        if len(values) > MOST_COMPONENTS:
            units = {unit for _, unit in labels}
            unit = units.pop() if len(units) == 1 else ""
            stride = math.ceil(len(values) / _PER_STEP)
            name = FeatureName(kind=kind, group=key, component="all together", unit=unit)
            self._add(name, values[self.steps % stride :: stride].tolist())
            return
        if len(labels) != len(values):
            labels = [(_component_name(index, len(values)), "") for index in range(len(values))]
        for (component, unit), number in zip(labels, values.tolist(), strict=True):
            self._add(FeatureName(kind=kind, group=key, component=component, unit=unit), [number])

    def _add_tracking(self, row: Mapping[str, Any]) -> None:
        inner, sensors = row["inner"], row["info"]["sensors"]
        for joint in self._tracked:
            if sensors.get(joint.sensor, {}).get("quality") not in _GOOD:
                continue
            try:
                values = inner["observation"][joint.key]
                values = values[-1] if isinstance(values[-1], list) else values  # the newest of a history
                error = values[joint.component] - inner["report"]["applied_si"][joint.command_index]
            except (KeyError, IndexError, TypeError):  # an observation is JSON of any form
                error = math.nan
            if joint.wraps and math.isfinite(error):
                error = math.remainder(error, math.tau)
            self._add(joint.name, [error])

    def _add_events(self, row: Mapping[str, Any]) -> None:
        if row["info"]["safety"]["intervened"]:
            self._add_event(FeatureName(kind="gate", group="any gate", component="changed the action"))
        for (gate, code, joint), severity in firings(row):
            if severity > Severity.PASS:
                component = f"{code} · {joint}" if joint else code
                self._add_event(FeatureName(kind="gate", group=gate, component=component))
                self._add_event(FeatureName(kind="gate", group=gate))
        for sensor, reading in row["info"]["sensors"].items():
            if reading["quality"] != Quality.OK:
                quality = Quality(reading["quality"]).name
                self._add_event(FeatureName(kind="sensor", group=sensor, component=quality))
            if reading["lost"]:
                self._add_event(FeatureName(kind="sensor", group=sensor, component="messages lost"))


def as_on_the_robot(latency: Mapping[str, Any]) -> dict[Stage, float]:
    """Return the measured stages of ``info["latency"]``, s; injected delays replace those that they stand for."""
    found = {}
    for (name, sensor), quality, seconds in stages_of(latency):
        if quality == Quality.OK and seconds is not None:
            injected = name.removeprefix(_INJECTED)
            found[name if injected == name else _ON_THE_ROBOT.get(injected, injected), sensor] = seconds
    return found


def _tracked_joints(contract: Contract) -> tuple[list[_TrackedJoint], list[str]]:
    """Return the commanded joints with their readings, and those that no sensor of the agent reads."""
    tracked, untracked = [], []
    commanded = [(spec, joint) for spec in contract.actuators.values() for joint in spec.joints]
    for index, (actuator, joint) in enumerate(commanded):
        quantity, limits = "velocity" if actuator.is_velocity else "position", actuator.joints[joint]
        for sensor_name, sensor in contract.sensors.items():
            field = sensor.fields.get(quantity)
            if field is not None and sensor.visibility == "agent" and joint in (joints := field.joints or ()):
                unit = field.units_by_joint()[joint]
                name = FeatureName(kind="tracking", group=quantity, component=joint, unit=unit)
                wraps = quantity == "position" and limits.position is None and limits.unit == "rad"
                key = f"{sensor_name}_{quantity}"
                tracked.append(_TrackedJoint(name, index, sensor_name, key, joints.index(joint), wraps))
                break
        else:
            untracked.append(joint)
    return tracked, untracked


def _component_labels(contract: Contract) -> dict[str, list[tuple[str, str]]]:
    """Return name and unit of each component, by key of the observation."""
    labels = {}
    for name, sensor in contract.sensors.items():
        for layout in field_layouts(name, sensor):
            spec, size = sensor.fields[layout.field], math.prod(layout.shape)
            units = spec.unit if isinstance(spec.unit, tuple) else (spec.unit,) * size
            names = spec.joints or [_component_name(index, size) for index in range(size)]
            labels[layout.key] = list(zip(names, units, strict=False))
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
    """Return the numbers of a field as a flat array; NaN for null, and for anything else that is no number."""
    try:
        return np.asarray(value, dtype=np.float64).ravel()
    except (TypeError, ValueError, OverflowError):
        return np.array([math.nan])
