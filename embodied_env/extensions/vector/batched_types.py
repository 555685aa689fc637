"""Data types of batched steps, one row per slot for each of `embodied_env.core.types`.

Values that can differ between slots are arrays of shape (n_slots, ...). `SnapshotBatch.slot` gives the snapshot of one
slot to a task that judges slots one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.core.code_types import Quality
from embodied_env.core.types import FloatArray, Sample, Snapshot, TaskResult, Verdict, value_type
from embodied_env.envs.observation_builder import Observation
from embodied_env.envs.transition_builder import Info

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


def merge_rows(before: NDArray[Any], slots: list[int], rows: NDArray[Any] | list[Any]) -> NDArray[Any]:
    """Return an array with the rows of `slots`, from an array of all rows or a list of these.

    It is `rows` itself if that is an array of which all rows are taken. `before` stays as it is.
    """
    if len(slots) == len(before):
        return np.asarray(rows, dtype=before.dtype)
    merged = before.copy()
    merged[slots] = rows[slots] if isinstance(rows, np.ndarray) else rows
    return merged


@value_type(frozen=True, slots=True, kw_only=True)
class SampleBatch:
    """Newest reading of one sensor in each slot (`Sample`), in a world without a middleware."""

    sensor: str
    values: Mapping[str, NDArray[Any]]  # field -> (n_slots, *shape of the contract)
    stamp_ns: IntArray
    arrival_ns: IntArray
    seq: IntArray
    quality: NDArray[np.int8]
    reason: NDArray[np.object_] | None = None  # None: "" in each slot
    raw_sha256: Mapping[str, NDArray[np.object_]] = field(default_factory=dict)
    driver: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    confidence: FloatArray | None = None

    def __post_init__(self) -> None:
        """Make the values read-only, as those of a sample."""
        for values in self.values.values():
            values.setflags(write=False)

    def with_rows(self, rows: Mapping[int, Sample]) -> SampleBatch:
        """Return the batch with the samples of some slots, where invalid ones keep the values."""
        if not rows:
            return self
        slots, samples = list(rows), list(rows.values())
        valid = {slot: sample for slot, sample in rows.items() if sample.values}
        by_field: dict[str, Any] = {
            part: {
                name: merge_rows(array, list(valid), [getattr(sample, part)[name] for sample in valid.values()])
                for name, array in getattr(self, part).items()
            }
            for part in ("values", "raw_sha256", "driver")
        }
        others: dict[str, Any] = {
            part: merge_rows(before, slots, [getattr(sample, part) for sample in samples])
            for part in ("stamp_ns", "arrival_ns", "seq", "quality", "confidence")
            if (before := getattr(self, part)) is not None
        }
        return SampleBatch(sensor=self.sensor, **by_field, **others)

    @classmethod
    def empty(cls, sample: Sample, n_slots: int) -> SampleBatch:
        """Return a batch of samples like `sample`, but 0."""
        zeros = np.zeros(n_slots, dtype=np.int64)
        return cls(
            sensor=sample.sensor,
            values={name: np.zeros((n_slots, *value.shape), value.dtype) for name, value in sample.values.items()},
            stamp_ns=zeros,
            arrival_ns=zeros,
            seq=zeros,
            quality=np.zeros(n_slots, dtype=np.int8),
            raw_sha256={name: np.full(n_slots, "", dtype=object) for name in sample.raw_sha256},
            driver={name: np.zeros((n_slots, *value.shape), value.dtype) for name, value in sample.driver.items()},
            confidence=None if sample.confidence is None else np.full(n_slots, np.nan),
        )

    def slot(self, index: int) -> Sample:
        """Return the sample of one slot, with read-only arrays of its own."""
        values = {name: rows[index].copy() for name, rows in self.values.items()}
        for array in values.values():
            array.setflags(write=False)
        return Sample(
            sensor=self.sensor,
            values=values,
            stamp_ns=int(self.stamp_ns[index]),
            arrival_ns=int(self.arrival_ns[index]),
            seq=int(self.seq[index]),
            quality=Quality(self.quality[index]),
            raw_sha256={name: hashes[index] for name, hashes in self.raw_sha256.items()},
            driver={name: rows[index] for name, rows in self.driver.items()},
            confidence=None if self.confidence is None else float(self.confidence[index]),
        )


@value_type(frozen=True, slots=True, kw_only=True)
class SnapshotBatch:
    """The newest sample of each sensor in each slot, at the slot's world time `now_ns`."""

    now_ns: IntArray
    samples: Mapping[str, SampleBatch]

    def with_rows(self, snapshots: Mapping[int, Snapshot], n_slots: int) -> SnapshotBatch:
        """Return the batch with the snapshots of some of `n_slots`, 0 where there are no samples."""
        samples = {}
        for name, first in next(iter(snapshots.values())).samples.items():
            rows = {slot: snapshot.samples[name] for slot, snapshot in snapshots.items()}
            samples[name] = (self.samples.get(name) or SampleBatch.empty(first, n_slots)).with_rows(rows)
        now_ns = merge_rows(self.now_ns, list(snapshots), [each.now_ns for each in snapshots.values()])
        return SnapshotBatch(now_ns=now_ns, samples=samples)

    def slot(self, index: int) -> Snapshot:
        """Return the snapshot of one slot, with read-only arrays of its own."""
        samples = {name: sample.slot(index) for name, sample in self.samples.items()}
        return Snapshot(now_ns=int(self.now_ns[index]), samples=samples)


@value_type(frozen=True, slots=True, kw_only=True)
class SafetyContextBatch:
    """The context in which the gate judges each slot (`SafetyContext`), in lockstep worlds.

    A slot with a safety input that is not "ok", or a clock jump, is no candidate of `BatchedGate.judge`.
    """

    qualities: Mapping[str, NDArray[np.int8]]  # sensor that an action depends on -> (n_slots,)
    ages_s: Mapping[str, FloatArray]  # the same sensors -> (n_slots,)
    measured: FloatArray  # (n_slots, n_joints), NaN where unknown
    forces: Mapping[str, FloatArray] = field(default_factory=dict)  # sensor -> norm of its limited field, to rounding


@value_type(frozen=True, slots=True, kw_only=True)
class CommandStateBatch:
    """The last published command of each slot (`CommandState`), shape (n_slots, n_joints)."""

    positions: FloatArray
    velocities: FloatArray
    accelerations: FloatArray  # zero where nothing was published since the reset
    slack: FloatArray | None = None


@value_type(frozen=True, slots=True, kw_only=True)
class GateReportBatch:
    """The gate's report of each slot (`GateReport`), with vectors of shape (n_slots, n_joints).

    `severity` and `code` have a column per gate of `embodied_env.safety.findings.GATES`, as in ``info["safety"]``.
    From `boxed` on, the arrays have what the findings of a slot follow from (`BatchedGate.findings`).
    """

    disposition: NDArray[np.int8]
    intervened: BoolArray
    requested: FloatArray
    applied: FloatArray
    applied_si: FloatArray
    velocity_si: FloatArray
    severity: NDArray[np.int8]
    code: NDArray[np.int16]
    joint_code: NDArray[np.int16]  # (n_slots, n_joints), as ``info["safety"]["joints"]``
    guaranteed: Mapping[str, BoolArray]
    dt_s: float
    boxed: FloatArray  # actions within the action space
    target: FloatArray  # of these, as `applied_si`
    smooth: FloatArray  # targets within the jerk limits
    limited: NDArray[np.int16]  # code of the limit of each joint, 0 for none


@value_type(frozen=True, slots=True, kw_only=True)
class ApprovedCommandBatch:
    """The only commands that are sent, created by `extensions.vector.batched_gate` alone.

    `is_decided` is False in rows that the gate of a single environment must judge; their other values are undefined.
    """

    values: FloatArray  # (n_slots, n_joints), as `ApprovedCommand.values`
    is_decided: BoolArray
    report: GateReportBatch


@value_type(frozen=True, slots=True, kw_only=True)
class TaskResultBatch:
    """Reward, verdict and terms of one step (`TaskResult`), arrays of shape (n_slots,)."""

    reward: FloatArray
    success: BoolArray
    terms: Mapping[str, FloatArray]
    failure: Mapping[str, BoolArray] = field(default_factory=dict)  # slots by reason, of which the first counts
    out_of_bounds: Mapping[str, BoolArray] = field(default_factory=dict)  # the same

    def slot(self, index: int) -> TaskResult:
        """Return the result of one slot."""
        verdict = Verdict(
            success=bool(self.success[index]),
            failure=next((reason for reason, slots in self.failure.items() if slots[index]), ""),
            out_of_bounds=next((reason for reason, slots in self.out_of_bounds.items() if slots[index]), ""),
        )
        terms = {name: float(values[index]) for name, values in self.terms.items()}
        return TaskResult(reward=float(self.reward[index]), verdict=verdict, terms=terms)

    @classmethod
    def of(cls, results: Mapping[int, TaskResult], terms: Sequence[str], n_slots: int) -> TaskResultBatch:
        """Return the results of some slots, with 0 for the values of the others."""

        def column(values: Iterable[Any], dtype: type) -> NDArray[Any]:
            rows: NDArray[Any] = np.zeros(n_slots, dtype=dtype)
            rows[list(results)] = list(values)
            return rows

        def reasons(name: str) -> dict[str, BoolArray]:
            found = {slot: getattr(result.verdict, name) for slot, result in results.items()}
            return {why: column((each == why for each in found.values()), bool) for why in set(found.values()) - {""}}

        return cls(
            reward=column((result.reward for result in results.values()), float),
            success=column((result.verdict.success for result in results.values()), bool),
            terms={name: column((result.terms[name] for result in results.values()), float) for name in terms},
            failure=reasons("failure"),
            out_of_bounds=reasons("out_of_bounds"),
        )


@value_type(frozen=False, slots=True, kw_only=True)
class StepResults:
    """The steps of the slots `rows`, taken as arrays like a `Transition` for one.

    Other rows are undefined.
    """

    rows: BoolArray
    observation: Observation
    action: Any  # of the agent: rows by slot, or a list
    reward: FloatArray
    terminated: BoolArray
    truncated: BoolArray  # by a `TimeLimit`, too
    info: Info  # nested arrays without masks
    end_reasons: Mapping[int, tuple[str, ...]]  # of the slots whose episode has ended
    report: GateReportBatch
    stamps_ns: IntArray  # by `StepEvent`, (n_events, n_slots)
    is_marked: BoolArray
    snapshot: SnapshotBatch

    def infos(self, rows: BoolArray) -> Info:
        """Return the infos of `rows`, stacked with masks."""
        return _stacked(self.info, rows, is_full=bool(rows.all())) if rows.any() else {}

    def final(self, rows: BoolArray) -> Info:
        """Return ``final_obs`` and ``final_info`` of `rows`."""
        if not rows.any():
            return {}
        observations = np.full(len(rows), None, dtype=object)
        for slot in np.flatnonzero(rows):
            observations[slot] = {key: values[slot].copy() for key, values in self.observation.items()}
        infos = {"final_obs": observations, "final_info": self.infos(rows)}
        return {**infos, **{f"_{key}": rows.copy() for key in infos}}


def _stacked(values: Mapping[str, Any], rows: BoolArray, *, is_full: bool) -> Info:
    """Return nested arrays as infos that only `rows` have, with masks, in new arrays.

    Rows of a masked array that are masked do not have them.
    """
    infos: Info = {}
    for key, value in values.items():
        kind = type(value)
        if kind is np.ndarray and is_full:
            infos[key], infos["_" + key] = value.copy(), rows.copy()
        elif kind is np.ndarray:
            infos[key] = np.full_like(value, None if value.dtype == object else 0)
            infos[key][rows], infos["_" + key] = value[rows], rows.copy()
        elif kind is dict:
            infos[key], infos["_" + key] = _stacked(value, rows, is_full=is_full), rows.copy()
        elif (known := rows & ~np.ma.getmaskarray(value)).any():
            infos[key], infos["_" + key] = np.where(known, value.data, 0), known
    return infos
