"""Data types of a step of several environments: arrays with one row per slot (one: `embodied_env.core.types`).

Values that can differ between slots are arrays of shape (n_slots, ...). `SnapshotBatch.slot` gives the snapshot of one
slot to a task that judges slots one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.core.codes import Quality
from embodied_env.core.types import FloatArray, Sample, Snapshot, TaskResult, Verdict

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleBatch:
    """The newest reading of one sensor in each slot (`Sample`), in a world without a middleware."""

    sensor: str
    values: Mapping[str, NDArray[Any]]  # field -> (n_slots, *shape of the contract)
    stamp_ns: IntArray
    arrival_ns: IntArray
    seq: IntArray
    quality: NDArray[np.int8]
    confidence: FloatArray | None = None

    def slot(self, index: int) -> Sample:
        """Return the sample of one slot, with arrays of its own."""
        return Sample(
            sensor=self.sensor,
            values={field: rows[index].copy() for field, rows in self.values.items()},
            stamp_ns=int(self.stamp_ns[index]),
            arrival_ns=int(self.arrival_ns[index]),
            seq=int(self.seq[index]),
            quality=Quality(self.quality[index]),
            confidence=None if self.confidence is None else float(self.confidence[index]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotBatch:
    """The newest sample of each sensor in each slot, at the instant `now_ns` of the slot's world clock."""

    now_ns: IntArray
    samples: Mapping[str, SampleBatch]

    def slot(self, index: int) -> Snapshot:
        """Return the snapshot of one slot, with arrays of its own."""
        samples = {name: sample.slot(index) for name, sample in self.samples.items()}
        return Snapshot(now_ns=int(self.now_ns[index]), samples=samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetyContextBatch:
    """The context in which the gate judges the action of each slot (`SafetyContext`), in lockstep worlds.

    A slot with a safety input that is not "ok", or a clock jump, is no candidate of `BatchedGate.judge`.
    """

    qualities: Mapping[str, NDArray[np.int8]]  # sensor that an action depends on -> (n_slots,)
    ages_s: Mapping[str, FloatArray]  # the same sensors -> (n_slots,)
    measured: FloatArray  # (n_slots, n_joints), NaN where unknown
    action_age_s: FloatArray  # (n_slots,), as the next
    latency_s: FloatArray
    forces: Mapping[str, FloatArray] = field(default_factory=dict)  # sensor -> norm of its limited field, to rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandStateBatch:
    """The last published command of each slot (`CommandState`), arrays of shape (n_slots, n_joints)."""

    positions: FloatArray
    velocities: FloatArray
    accelerations: FloatArray  # zero where nothing was published since the reset
    slack: FloatArray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReportBatch:
    """The gate's report of each slot (`GateReport`); vectors have the shape (n_slots, n_joints).

    `severity` and `code` have a column per gate of `embodied_env.safety.findings.GATES`, as in ``info["safety"]``.
    """

    disposition: NDArray[np.int8]
    intervened: BoolArray
    requested: FloatArray
    applied: FloatArray
    applied_si: FloatArray
    velocity_si: FloatArray
    severity: NDArray[np.int8]
    code: NDArray[np.int16]
    guaranteed: Mapping[str, BoolArray]
    dt_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovedCommandBatch:
    """Commands that passed the gate. Only `safety.approved_commands` creates one, and only this is sent.

    `is_decided` is False in rows that the gate of a single environment must judge; their other values are undefined.
    """

    values: FloatArray  # (n_slots, n_joints), as `ApprovedCommand.values`
    is_decided: BoolArray
    report: GateReportBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResultBatch:
    """Reward, verdict and terms of one step of each slot (`TaskResult`), arrays of shape (n_slots,)."""

    reward: FloatArray
    success: BoolArray
    terms: Mapping[str, FloatArray]
    failure: Mapping[str, BoolArray] = field(default_factory=dict)  # reason -> slots; the first that holds counts
    out_of_bounds: Mapping[str, BoolArray] = field(default_factory=dict)  # the same

    def slot(self, index: int | tuple[()]) -> TaskResult:
        """Return the result of one slot; with numbers in place of arrays, that of the index ()."""
        verdict = Verdict(
            success=bool(self.success[index]),
            failure=next((reason for reason, slots in self.failure.items() if slots[index]), ""),
            out_of_bounds=next((reason for reason, slots in self.out_of_bounds.items() if slots[index]), ""),
        )
        terms = {name: float(values[index]) for name, values in self.terms.items()}
        return TaskResult(reward=float(self.reward[index]), verdict=verdict, terms=terms)

    @classmethod
    def of(cls, results: Mapping[int, TaskResult], terms: Sequence[str], n_slots: int) -> TaskResultBatch:
        """Return the results of some slots; the values of the others are 0."""

        def column(values: Iterable[Any], dtype: type) -> NDArray[Any]:
            rows = np.zeros(n_slots, dtype=dtype)
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
