"""What a run's rows say of latency, observations, actions, tracking, gates, sensors and episodes, in one pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from embodied_env.analysis.comparison.episode_pairing import Episodes
from embodied_env.analysis.comparison.streams import EventCounter, Share, Stream
from embodied_env.analysis.report.action_collectors import firings
from embodied_env.analysis.report.outcome_collectors import Outcomes
from embodied_env.analysis.report.row_access import count_of, finite, flat, get_mapping, text_of
from embodied_env.analysis.report.timing_collectors import quality_name
from embodied_env.contract import Contract
from embodied_env.contract.schema import JointLimits
from embodied_env.contract.spaces import field_layouts
from embodied_env.core.codes import Quality, Severity
from embodied_env.core.latency.statistics import measured
from embodied_env.errors import RecordError
from embodied_env.record.arrays import Reference, is_reference
from embodied_env.record.rows import RESET, TRANSITION

MOST_STREAMS = 400
"""Numbers, and events, of a run that are told apart; what else its rows name is left out, and counted."""

MOST_COMPONENTS = 16
"""Components of a field that are told apart; more of them are taken together."""

_PER_STEP = 64  # numbers of such a field that are taken of one step, in turn
_MOST_ARRAYS = 256  # arrays beside the rows that are looked at, by field
_GOOD = (int(Quality.OK), int(Quality.OUT_OF_RANGE))

_INJECTED = "injected."
_ON_THE_ROBOT = {"age_s": "capture_age_s", "inference_s": "obs_to_command_s"}  # the others have the same name

Kind = Literal["outcome", "latency", "tracking", "observation", "evaluator", "action", "gate", "sensor"]


@dataclass(frozen=True, kw_only=True, order=True)
class FeatureName:
    """What a number or an event is of: its kind, its group, and which of the group. `unit` is "" where none is."""

    kind: Kind
    group: str
    component: str = ""
    unit: str = ""


class RunFeatures:
    """Takes in the rows of a run in order. Memory does not grow with the steps, but for episodes.

    Attributes:
        streams: numbers by name.
        events: what was so in some steps, by name.
        steps: transitions.
        resets: of them.
        left_out: numbers and events that were not taken in, since there were too many names.
        unreadable: rows that are neither of a reset nor of a transition.
        untracked: joints that are commanded, and that no sensor tells of.
    """

    def __init__(self, contract: Contract | None) -> None:
        """Begin with no row; `contract` names what is told, None: components have numbers, and nothing is tracked."""
        self.streams: dict[FeatureName, Stream] = {}
        self.events: dict[FeatureName, EventCounter] = {}
        self.outcomes = Outcomes()
        self.episodes = Episodes()
        self.steps = self.resets = self.left_out = self.unreadable = 0
        self._labels = {} if contract is None else _labels(contract)
        self._tracked, self.untracked = ([], ()) if contract is None else _tracked(contract)
        self._arrays: dict[FeatureName, _Thinned] = {}

    def add(self, row: object) -> None:
        """Take in one row, whatever it is."""
        known = get_mapping(row)
        if known.get("schema") not in (RESET, TRANSITION):
            self.unreadable += 1
            return
        self.outcomes.add(known)
        ended = self.episodes.add(known)
        if known["schema"] == RESET:
            self.resets += 1
            return
        self.steps += 1
        self._add_latency(known)
        self._add_values(known)
        self._add_tracking(known)
        self._add_events(known)
        if ended is not None:
            self._add_episode(*ended)

    def look_at(self, array: Callable[[Reference], NDArray[Any]]) -> None:
        """Take in the arrays beside the rows: of each field some, evenly over the run, each by its mean."""
        for name, thinned in self._arrays.items():
            stream = self._stream(name)
            for index, reference in enumerate(thinned.kept):
                try:
                    mean = finite(float(np.mean(array(reference), dtype=np.float64)))
                except (RecordError, ValueError, TypeError):
                    mean = None
                if stream is not None and mean is not None:
                    stream.add(mean, index)  # far apart, as if each were of its own episode
                elif stream is not None:
                    stream.miss()
        self._arrays = {}

    def share(self, name: FeatureName) -> Share:
        """Return in which share of the steps an event was; there must be a step."""
        event = self.events.get(name) or EventCounter()
        return event.share(self.steps, max(1, min(self.resets, self.steps)))

    def _add_latency(self, row: Mapping[str, Any]) -> None:
        for stage, seconds in as_on_the_robot(dict(measured(get_mapping(row, "info", "latency")))).items():
            name, _, sensor = stage.removesuffix("]").partition("[")
            self._put(FeatureName(kind="latency", group=name, component=sensor, unit="s"), seconds)

    def _add_values(self, row: Mapping[str, Any]) -> None:
        for key, value in _fields(row.get("observation"), "observation"):
            self._add_field("observation", key, value)
        for sensor, fields in get_mapping(row, "inner", "evaluator").items():
            for field, value in get_mapping(fields).items():
                self._add_field("evaluator", f"{sensor}_{field}", value)
        names = list(get_mapping(row, "info", "action", "applied_si"))
        for kind in ("requested", "applied"):
            values = list(flat(get_mapping(row, "info", "action").get(kind)))
            labels = names if len(names) == len(values) else [f"[{index}]" for index in range(len(values))]
            for label, number in zip(labels[:MOST_COMPONENTS], values, strict=False):
                self._put(FeatureName(kind="action", group=kind, component=text_of(label)), number)

    def _add_field(self, kind: Kind, key: str, value: object) -> None:
        group = text_of(key)
        if isinstance(value, dict) and is_reference(value):
            name = FeatureName(kind=kind, group=group, component="mean of each array")
            if name in self._arrays or len(self._arrays) < MOST_COMPONENTS:
                self._arrays.setdefault(name, _Thinned()).add(value)
            return
        values = list(flat(value))
        if len(values) <= MOST_COMPONENTS:
            for (component, unit), number in zip(self._labels_of(group, len(values)), values, strict=True):
                self._put(FeatureName(kind=kind, group=group, component=component, unit=unit), number)
            return
        units = {unit for _, unit in self._labels.get(group, ())}
        name = FeatureName(
            kind=kind, group=group, component="all together", unit=units.pop() if len(units) == 1 else ""
        )
        self._put_all(name, values)

    def _labels_of(self, key: str, size: int) -> Sequence[tuple[str, str]]:
        known = self._labels.get(key, ())
        if len(known) == size:
            return known
        return [("" if size == 1 else f"[{index}]", "") for index in range(size)]

    def _add_tracking(self, row: Mapping[str, Any]) -> None:
        applied = get_mapping(row, "inner", "report").get("applied_si")
        sensors, observation = get_mapping(row, "info", "sensors"), get_mapping(row, "inner", "observation")
        for place in self._tracked:
            if get_mapping(sensors, place.sensor).get("quality") not in _GOOD:
                continue
            told = observation.get(place.key)
            error = _error(_at(told, place.index), _at(applied, place.joint_index), wraps=place.wraps)
            self._put(FeatureName(kind="tracking", group=place.quantity, component=place.joint, unit=place.unit), error)

    def _add_events(self, row: Mapping[str, Any]) -> None:
        safety = get_mapping(row, "info", "safety")
        if safety.get("intervened") is True:
            self._note(FeatureName(kind="gate", group="any gate", component="changed the action"))
        for (gate, code, joint), severity in firings(row):
            if severity > Severity.PASS:
                self._note(
                    FeatureName(kind="gate", group=gate or "unknown", component=" · ".join(filter(None, (code, joint))))
                )
                self._note(FeatureName(kind="gate", group=gate or "unknown"))
        for sensor, account in get_mapping(row, "info", "sensors").items():
            quality = get_mapping(account).get("quality")
            if quality != Quality.OK:
                said = quality_name(quality) if isinstance(quality, int) else "no quality"
                self._note(FeatureName(kind="sensor", group=text_of(sensor), component=said))
            if count_of(get_mapping(account).get("lost")):
                self._note(FeatureName(kind="sensor", group=text_of(sensor), component="messages lost"))

    def _add_episode(self, reward: float | None, steps: int) -> None:
        lone = self.episodes.count  # each is of its own
        for group, unit, value in (("return", "", reward), ("length", "steps", float(steps))):
            self._put(FeatureName(kind="outcome", group=group, unit=unit), value, episode=lone)

    def _put(self, name: FeatureName, value: float | None, *, episode: int | None = None) -> None:
        stream = self._stream(name)
        if stream is None:
            return
        if value is None or not math.isfinite(value):
            stream.miss()
        else:
            stream.add(value, self.resets if episode is None else episode)

    def _put_all(self, name: FeatureName, values: Sequence[float | None]) -> None:
        """Take some numbers of a large field, at each step others."""
        stream = self._stream(name)
        if stream is None:
            return
        stride = math.ceil(len(values) / _PER_STEP)
        known = [value for value in values[self.steps % stride :: stride] if value is not None]
        if known:
            stream.add_all(known, self.resets)
        else:
            stream.miss()

    def _stream(self, name: FeatureName) -> Stream | None:
        stream = self.streams.get(name)
        if stream is None:
            if len(self.streams) >= MOST_STREAMS:
                self.left_out += 1
                return None
            stream = self.streams[name] = Stream(seed=f"{name.kind}/{name.group}/{name.component}")
        return stream

    def _note(self, name: FeatureName) -> None:
        if name not in self.events and len(self.events) >= MOST_STREAMS:
            self.left_out += 1
            return
        self.events.setdefault(name, EventCounter()).add(self.steps + self.resets)  # a reset lies between two episodes


class _Thinned:
    """Some of a stream of references, evenly spaced: every second is dropped whenever there are too many."""

    def __init__(self) -> None:
        self.kept: list[Reference] = []
        self._every, self._count = 1, 0

    def add(self, reference: Reference) -> None:
        if self._count % self._every == 0:
            self.kept.append(reference)
            if len(self.kept) >= _MOST_ARRAYS:
                self.kept = self.kept[::2]
                self._every *= 2
        self._count += 1


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where the reading of a commanded joint stands: in which component of which key of the observation."""

    joint: str
    joint_index: int
    sensor: str
    key: str
    index: int
    quantity: str  # "position" or "velocity"
    unit: str
    wraps: bool


def _tracked(contract: Contract) -> tuple[list[_Place], tuple[str, ...]]:
    """Return where commanded joints are told of, and the joints that no sensor of the agent tells of."""
    places: list[_Place] = []
    missing: list[str] = []
    index = 0
    for actuator in contract.actuators.values():
        quantity = "velocity" if actuator.is_velocity else "position"
        for joint, limits in actuator.joints.items():
            place = _place_of(contract, joint, index, quantity, limits)
            missing += [joint] if place is None else []
            places += [] if place is None else [place]
            index += 1
    return places, tuple(missing)


def _place_of(contract: Contract, joint: str, joint_index: int, quantity: str, limits: JointLimits) -> _Place | None:
    for name, sensor in contract.sensors.items():
        spec = sensor.fields.get(quantity)
        if spec is None or sensor.visibility != "agent" or joint not in (spec.joints or ()):
            continue
        return _Place(
            joint=joint,
            joint_index=joint_index,
            sensor=name,
            key=f"{name}_{quantity}",
            index=(spec.joints or ()).index(joint),
            quantity=quantity,
            unit=spec.units_by_joint()[joint],
            wraps=quantity == "position" and limits.position is None and limits.unit == "rad",
        )
    return None


def _error(told: float | None, applied: float | None, *, wraps: bool) -> float | None:
    """Return how far the joint is from its command; the nearer way round where it turns without end."""
    if told is None or applied is None:
        return None
    return math.remainder(told - applied, math.tau) if wraps else told - applied


def _at(values: object, index: int) -> float | None:
    return finite(values[index]) if isinstance(values, list) and index < len(values) else None


def _labels(contract: Contract) -> dict[str, list[tuple[str, str]]]:
    """Return name and unit of each component, by the key in the observation."""
    labels = {}
    for name, sensor in contract.sensors.items():
        for layout in field_layouts(name, sensor):
            spec = sensor.fields[layout.field]
            size = math.prod(layout.shape)
            units = spec.unit if isinstance(spec.unit, tuple) else (spec.unit,) * size
            names = spec.joints or (("",) if size == 1 else tuple(f"[{index}]" for index in range(size)))
            labels[layout.key] = list(zip(names, units, strict=False))
    return labels


def _fields(value: object, path: str) -> Iterator[tuple[str, object]]:
    """Yield the fields of an observation with their keys; one that is no dict is a field itself."""
    if isinstance(value, dict) and not is_reference(value):
        for key, item in value.items():
            if isinstance(item, dict) and not is_reference(item):
                yield from _fields(item, text_of(key))
            else:
                yield text_of(key), item
    elif value is not None:
        yield path, value


def as_on_the_robot(stages: Mapping[str, float]) -> dict[str, float]:
    """Return the stages by the names that a robot has for them: what was injected stands for what it replaces."""
    known = {stage: seconds for stage, seconds in stages.items() if not stage.startswith(_INJECTED)}
    for stage, seconds in stages.items():
        if stage.startswith(_INJECTED):
            name, bracket, sensor = stage.removeprefix(_INJECTED).partition("[")
            known[f"{_ON_THE_ROBOT.get(name, name)}{bracket}{sensor}"] = seconds
    return known
