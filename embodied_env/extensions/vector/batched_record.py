"""Record steps taken as arrays in a run for each slot, as a single environment would.

A row is laid out once for all slots by `embodied_env.record.rows`, with arrays in place of values, and then split. Its
durations of the host are those of the step of all slots: the times of one slot alone are not known.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.core.code_types import Quality, Severity
from embodied_env.core.info_schema import without_host_timing
from embodied_env.core.latency_statistics import LatencyColumns
from embodied_env.core.types import ExternalInputs, Finding, GateReport, SafetyContext, Sample, Snapshot, Transition
from embodied_env.envs.transition_builder import Info
from embodied_env.extensions.vector.batched_types import GateReportBatch, SampleBatch, StepResults
from embodied_env.processes.signals import deferred_signals
from embodied_env.record import RecordTransitions
from embodied_env.record.arrays import is_stored_apart
from embodied_env.record.json_values import to_json_types
from embodied_env.record.row_types import Row
from embodied_env.record.rows import finding_rows, step_account, transition_row
from embodied_env.record.writer_thread import FLUSH_PERIOD_S, GATHER_S, MAX_JOBS_IN_LOCKSTEP, Job, WriterThread
from embodied_env.timing.ledger import StepEvent

_Values = Iterable[Any]  # of each slot: a list, or a `repeat` of one that all have
_QUALITIES = np.array([each.name for each in Quality], dtype=object)
_SEVERITIES = np.array([each.name for each in Severity], dtype=object)


@dataclass(eq=False, slots=True)
class Column:
    """Values of a field per slot, a list or an array that the record does not change."""

    values: Sequence[Any] | NDArray[Any]


class BatchedRecorder:
    """Records the steps of slots into the runs of their `RecordTransitions`."""

    def __init__(self, recorders: Sequence[RecordTransitions]) -> None:
        """Let one thread write the rows of all, before the first one."""
        self._recorders, self._base = recorders, recorders[0].unwrapped
        contract = self._base.contract
        settles: list[Job] = []
        self._writer = WriterThread(
            partial(_run_each, settles),
            settle_every_s=FLUSH_PERIOD_S,
            blocks=True,
            gather_s=GATHER_S,
            max_jobs=MAX_JOBS_IN_LOCKSTEP,
            users=len(recorders),
        )
        weakref.finalize(self, self._writer.close_when_idle).atexit = False
        self._runs = [recorder.join(self._writer) for recorder in recorders]
        settles += [run.settle for run in self._runs]
        self._latency = LatencyColumns([run.summary.latency for run in self._runs])
        self._evaluator = [name for name, sensor in contract.sensors.items() if sensor.visibility == "evaluator"]
        nothing = SafetyContext(sensors={}, measured=np.empty(0))
        self._inputs = ExternalInputs(
            safety_context=nothing, dt_s=self._base.contract.control_period_s
        )  # of an ordinary step

    def record(self, steps: StepResults, findings: Mapping[int, Sequence[Finding]]) -> Info:
        """Record each slot's step with the findings of its gate, and return the agents' infos."""
        if slots := np.flatnonzero(steps.rows).tolist():
            self._latency.add(steps.info, steps.rows)
            is_collecting = gc.isenabled()
            gc.disable()  # rows are many objects without cycles
            try:
                self._write(zip(slots, split_rows(self._columns(steps, findings), slots), strict=True))
            finally:
                if is_collecting:
                    gc.enable()
        losses = [recorder.losses for recorder in self._recorders]
        complete, lost = np.array([each.complete for each in losses]), np.array([each.rows for each in losses])
        info = steps.info if self._base.host_timing else without_host_timing(steps.info)
        return {**info, "record": {"complete": complete, "lost": lost}}

    def _write(self, rows: Iterable[tuple[int, Row]]) -> None:
        written, ends = [], []
        with deferred_signals():  # an interrupt must not lose a row of steps that are taken
            for slot, row in rows:
                ends.append((slot, row["terminated"] or row["truncated"]))
                if (encoded := self._recorders[slot].encode_made(row)) is not None:
                    written.append((self._runs[slot], encoded))
            jobs = [partial(run.write, row) for run, row in written]
            if not self._writer.submit(partial(_run_each, jobs), sum(row.nbytes for _, row in written)):
                for run, lost in written:
                    run.losses.note_dropped(lost.number)
        for slot, is_over in ends:
            self._recorders[slot].end_step(is_over=is_over)

    def _columns(self, steps: StepResults, findings: Mapping[int, Sequence[Finding]]) -> Row:
        slots, is_over = range(len(steps.rows)), steps.info["end_reason"] != ""
        action, reward = _action(steps.action), steps.reward.astype(np.float64)
        transition = Transition(
            observation=steps.observation,
            action=action,
            reward=_any(reward),
            terminated=_any(steps.terminated),
            truncated=_any(is_over & ~steps.terminated),
            info={},
            end_reasons=(),
            report=_report(steps.report),
            stamps_ns=_stamps(steps),
            snapshot=Snapshot(
                now_ns=_any(steps.snapshot.now_ns),
                samples={name: _sample(sample) for name, sample in steps.snapshot.samples.items()},
            ),
            external_inputs=replace(self._inputs, instruction=_any(steps.info["instruction"])),
        )
        outer = {"observation": steps.observation, "action": action, "reward": reward, "info": steps.info}
        outer |= {"terminated": steps.terminated, "truncated": steps.truncated}
        columns = transition_row(None, row=0, outer=outer, evaluator=())
        columns["inner"] = inner = step_account(transition, action, self._evaluator)
        inner["findings"] = Column([finding_rows(findings.get(slot, ())) for slot in slots])
        inner["end_reasons"] = Column([steps.end_reasons.get(slot, ()) for slot in slots])
        for name, sample in steps.snapshot.samples.items():
            inner["sensors"][name]["quality"] = Column(_QUALITIES[sample.quality])
        return columns


def _action(action: Any) -> Any:  # noqa: ANN401 - of agents
    acted = to_json_types(action)
    return {name: Column(part) for name, part in acted.items()} if isinstance(acted, dict) else Column(acted)


def _any(values: NDArray[Any] | None) -> Any:  # noqa: ANN401 - in place of a value of one slot
    return None if values is None else Column(values)


def _report(report: GateReportBatch) -> GateReport:
    names = ("intervened", "requested", "applied", "applied_si", "velocity_si")
    same = {name: _any(getattr(report, name)) for name in names}
    guaranteed = {name: _any(column) for name, column in report.guaranteed.items()}
    severities = _any(_SEVERITIES[report.disposition])
    return GateReport(disposition=severities, findings=(), dt_s=report.dt_s, guaranteed=guaranteed, **same)


def _stamps(steps: StepResults) -> dict[str, Any]:
    marked = np.ma.masked_array(steps.stamps_ns[StepEvent.MARKED], mask=~steps.is_marked)
    return {**{event.name.lower(): steps.stamps_ns[event] for event in StepEvent}, "marked": marked}


def _sample(sample: SampleBatch) -> Sample:
    same = {name: _any(getattr(sample, name)) for name in ("stamp_ns", "arrival_ns", "seq", "confidence")}
    reason = "" if sample.reason is None else _any(sample.reason)
    hashes = {name: _any(column) for name, column in sample.raw_sha256.items()}
    driver = {name: _any(column) for name, column in sample.driver.items()}
    return Sample(sensor=sample.sensor, values=sample.values, reason=reason, raw_sha256=hashes, driver=driver, **same)


def _run_each(jobs: Sequence[Job]) -> None:
    for job in jobs:
        job()


def split_rows(columns: Row, slots: Sequence[int]) -> Iterator[Row]:
    """Yield the row of each of `slots`, made when it is taken. Rows may share values.

    Each `Column` and each array in `columns` has a value per slot. Everything else is the same in each row. A key whose
    value is masked in a masked array is absent. Arrays that rows refer to remain arrays.
    """
    rows = _Splitter(slots).split(columns)
    return (dict(row) for _, row in zip(slots, rows, strict=False))


class _Splitter:
    """Splits columns, each once, also if it is found in several places."""

    def __init__(self, slots: Sequence[int]) -> None:
        self._slots, self._places = slots, np.array(slots)
        self._known: dict[
            int, tuple[Any, Sequence[Any] | repeat[Any]]
        ] = {}  # by id, which is unique while the value is held

    def split(self, value: Any) -> _Values:  # noqa: ANN401 - of a row
        if isinstance(value, Mapping):
            return self._split_mapping(value)
        if isinstance(value, Column):
            value = value.values
        elif not isinstance(value, np.ndarray):
            return repeat(value)
        if id(value) not in self._known:
            self._known[id(value)] = value, self._pick(value)
        return self._known[id(value)][1]

    def _pick(self, values: list[Any] | NDArray[Any]) -> Sequence[Any] | repeat[Any]:
        if isinstance(values, list):
            return [values[slot] for slot in self._slots]
        picked: NDArray[Any] = values if len(values) == len(self._slots) else values[self._places]
        if picked.ndim > 1 and is_stored_apart(picked[0]):
            return list(picked)
        if picked.dtype != object and picked.tobytes() == picked[:1].tobytes() * len(picked):  # each bit
            return repeat(picked[0].tolist())
        return [*picked.tolist()]

    def _split_mapping(self, value: Mapping[str, Any]) -> _Values:
        parts = [self.split(item) for item in value.values()]
        masks = {key: np.ma.getmaskarray(item)[self._places] for key, item in value.items() if np.ma.isMA(item)}
        if not masks and all(isinstance(part, repeat) for part in parts):
            return repeat({key: next(iter(part)) for key, part in zip(value, parts, strict=True)})
        # the slots limit the number of rows, and are no part of them; a row is made when it is needed, and soon freed
        rows = map(dict, map(zip, repeat(tuple(value)), zip(*parts, self._slots, strict=False)))
        return self._without_masked(rows, masks) if masks else rows

    def _without_masked(self, rows: Iterable[Row], masks: Mapping[str, NDArray[np.bool_]]) -> Iterator[Row]:
        for place, row in enumerate(rows):
            for key, mask in masks.items():
                if mask[place]:
                    del row[key]
            yield row
