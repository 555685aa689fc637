"""Collect joints, rewards, ages, events and frames over the steps of each episode."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract
from embodied_env.contract.spaces import field_layouts
from embodied_env.core.code_types import Quality, Severity
from embodied_env.core.info_types import ArrayReference, SensorInfo
from embodied_env.core.types import FloatArray
from embodied_env.errors import RecordError
from embodied_env.extensions.report.key_frames import KeyFrames
from embodied_env.extensions.report.time_series import BoundedDict, Spans, Sparse, Trace
from embodied_env.extensions.report.totals import age_is_known
from embodied_env.record.row_types import RecordedReset, RecordedTransition, StepRecord, TransitionRow
from embodied_env.record.rows import is_no_action
from embodied_env.record.step_values import Joints, firings
from embodied_env.record.summary import EpisodeOutcome

MOST_CHUNKS = 24
"""Chunks of an episode that are drawn."""

_MOST_POINTS = 24  # actions of a chunk that are drawn


class _Kept(NamedTuple):
    step: int
    age: int
    actions: ArrayReference
    origins: list[float]


class ChunkCurves:
    """Chunks evenly over an episode, each from the step on in which it takes effect."""

    def __init__(self, joints: Joints) -> None:
        self.count = 0  # of all chunks of the episode
        self.steps: FloatArray = np.empty(0)  # of each point
        self.values: FloatArray = np.empty((0, 0))  # (n_points, n_joints), as `Joints.values`, NaN after a chunk
        self._joints = joints
        self._kept: Sparse[_Kept] = Sparse(MOST_CHUNKS)

    def add(self, step: int, row: TransitionRow) -> None:
        """Add the row of a step, in which a chunk may take effect."""
        if row["inner"] is not None and (chunk := row["inner"]["external_inputs"].get("chunk")) is not None:
            age = row["info"]["step_index"] - 1 - chunk["born"]
            self.count += 1
            self._kept.add(_Kept(step, age, chunk["actions"], self._joints.origins(row)))

    @property
    def drawn(self) -> int:
        """The number of chunks that are drawn."""
        return len(self._kept.kept)

    def read(self, read_array: Callable[[Mapping[str, Any]], NDArray[Any]], last_step: int) -> None:
        """Compute the points up to `last_step`, with `read_array` as `Run.array`."""
        steps, values = [], []
        width = len(self._kept.kept[0].origins) if self._kept.kept else 0
        for kept in self._kept.kept:
            try:
                actions = read_array(kept.actions)
            except RecordError:  # the audit reports it
                continue
            if actions.dtype != np.float64 or not actions.shape[1:] == (len(kept.origins),) == (width,):
                continue
            planned = self._joints.plan(actions[max(kept.age, 0) :], kept.origins)[: last_step + 1 - kept.step]
            places = np.linspace(0, len(planned) - 1, min(len(planned), _MOST_POINTS)).round().astype(int)
            steps += [*(kept.step + places).tolist(), kept.step]
            values += [*planned[places], np.full(width, np.nan)]
        self.steps, self.values = np.array(steps, dtype=np.float64), np.array(values).reshape(len(steps), width)


MOST_TRACED = 40
"""Episodes with charts. Each reason of an end is among them before any reason is there twice as often as another."""

_MOST_SERIES = 160
_MOST_EVENTS = 60
_ORDER = ("failure", "stopped", "time", "cut", "apart", "success")  # order of the kinds of ends


class EpisodeTrace:
    """The course of one episode, in bounded memory."""

    def __init__(self, outcome: EpisodeOutcome, joints: Joints, bgr: Collection[str] = ()) -> None:
        self.outcome = outcome
        self.joints = joints
        self.steps = 0
        # by kind ("requested", "applied", "measured", "reward", "term", "age" in ms) and name of joint, term or sensor
        self.series: BoundedDict[tuple[str, str], Trace] = BoundedDict(Trace, _MOST_SERIES)
        # steps by style of mark, and what occurred, or the joint on which a gate acted, "" for all joints
        self.events: BoundedDict[tuple[str, str], Spans] = BoundedDict(Spans, _MOST_EVENTS)
        self.limited: BoundedDict[tuple[str, str], Spans] = BoundedDict(Spans, _MOST_SERIES)
        self.frames = KeyFrames(bgr)
        self.chunks = ChunkCurves(joints)
        self._missed_deadlines = 0

    def add(self, row: RecordedTransition) -> None:
        """Add the row of a step, or only its reward and images if an outer wrapper added it."""
        self.steps += 1
        self._add_value("reward", "", row["reward"])
        self.frames.add(self.steps, row)
        if row["inner"] is None:
            self._add_event("notice", "step of an outer wrapper")
            return
        info = row["info"]
        for name, value in info["task"].items():
            self._add_value("term", name, value)
        for name, requested, applied, measured in self.joints.values(row):
            self._add_value("requested", name, requested)
            self._add_value("applied", name, applied)
            self._add_value("measured", name, measured)
        self.chunks.add(self.steps, row)
        for name, reading in info["sensors"].items():
            self._add_value("age", name, 1e3 * reading["age_s"] if age_is_known(reading) else math.nan)
        for style, text in self._events(row):
            self._add_event(style, text)
        for (_, _, joint), severity in firings(row):
            if severity > Severity.PASS and (spans := self.limited.entry((_style(severity), joint))) is not None:
                spans.add(self.steps)

    def end(self) -> None:
        """Keep only what charts show."""
        for trace in self.series.values():
            trace.end()

    @property
    def left_out(self) -> int:
        """Values that are not shown, since the episode has too many names."""
        return self.series.left_out + self.events.left_out + self.limited.left_out

    def _events(self, row: TransitionRow) -> Iterator[tuple[str, str]]:
        info, latency = row["info"], row["info"]["latency"]
        for (gate, code, _), severity in firings(row):
            if severity > Severity.PASS:
                yield _style(severity), f"{gate}: {code}"
        if is_no_action(row["action"]):
            yield "brake", "no action of the policy"
        if is_underrun(info):
            yield "brake", "chunk underrun"
        yield from _sensor_events(info["sensors"])
        missed = latency.get("missed_deadlines", 0)
        if missed > self._missed_deadlines:
            yield "brake", "deadline missed"
        self._missed_deadlines = missed
        if (clock := row["inner"]["clock"]) and clock["jump"]:
            yield "brake", f"clock jump: {clock['jump']}"

    def _add_value(self, kind: str, name: str, value: float | None) -> None:
        if (trace := self.series.entry((kind, name))) is not None:
            trace.add(self.steps, math.nan if value is None else value)

    def _add_event(self, style: str, text: str) -> None:
        if (spans := self.events.entry((style, text))) is not None:
            spans.add(self.steps)


class EpisodeTraces:
    """Traces of at most `MOST_TRACED` episodes of a run, with every end reason."""

    def __init__(self, contract: Contract | None) -> None:
        self.kept: list[EpisodeTrace] = []
        self._joints = Joints(contract)
        self._bgr = {
            layout.key
            for name, sensor in ({} if contract is None else contract.sensors).items()
            if (sensor.pixels or "").startswith("bgr")
            for layout in field_layouts(name, sensor)
        }
        self._open: EpisodeTrace | None = None

    def begin(self, outcome: EpisodeOutcome, row: RecordedReset) -> None:
        """Start the trace of the episode `outcome`, from the row of its reset."""
        self.close()
        self._open = EpisodeTrace(outcome, self._joints, self._bgr)
        self._open.frames.add(0, row)

    def add(self, row: RecordedTransition) -> None:
        """Add the row of a step."""
        if self._open is not None:
            self._open.add(row)

    def close(self) -> None:
        """End the trace of the newest episode, and choose whether it is kept."""
        trace, self._open = self._open, None
        if trace is None:
            return
        trace.end()
        self.kept.append(trace)
        if len(self.kept) > MOST_TRACED:
            self.kept.remove(self.by_importance()[-1])

    def by_importance(self) -> list[EpisodeTrace]:
        """Return one trace of each reason, then the second of each, failures and stops first."""
        ranks: Counter[tuple[str, str]] = Counter()
        keys = {}
        for trace in self.kept:
            end = trace.outcome.kind, trace.outcome.reason
            ranks[end] += 1
            keys[trace.outcome.number] = ranks[end], _ORDER.index(trace.outcome.kind), trace.outcome.number
        return sorted(self.kept, key=lambda trace: keys[trace.outcome.number])


def _sensor_events(sensors: Mapping[str, SensorInfo]) -> Iterator[tuple[str, str]]:
    for name, reading in sensors.items():
        if reading["quality"] != Quality.OK:
            yield "brake", f"{name}: {Quality(reading['quality']).name}"
        if reading["lost"]:
            yield "notice", f"{name}: messages lost"


def is_underrun(info: StepRecord) -> bool:
    """Return whether no action chunk had an action for this step."""
    chunk = info.get("annotations", {}).get("chunk", {})
    return "underruns" in chunk and chunk.get("id") is None


def _style(severity: Severity) -> str:
    return "limit" if severity is Severity.LIMIT else "brake"
