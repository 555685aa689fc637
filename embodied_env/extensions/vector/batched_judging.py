"""Judge several slots' readings at once, and their results for an `ArrayTask`."""

from __future__ import annotations

from dataclasses import replace
from reprlib import repr as shown
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.spaces import field_layouts
from embodied_env.core.code_types import Quality
from embodied_env.envs.observation_builder import OUTSIDE, finite_bounds
from embodied_env.errors import TaskError
from embodied_env.extensions.vector.batched_types import BoolArray, IntArray, SnapshotBatch, TaskResultBatch
from embodied_env.processes.signals import Terminated
from embodied_env.tasks import ArrayTask, Task


class BatchedGapPolicy:
    """Finds the slots whose readings are all valid, and leaves the others to `GapPolicy`."""

    def __init__(self, contract: Contract) -> None:
        self._max_age_ns = {name: sensor.max_age_s * 1e9 for name, sensor in contract.sensors.items()}
        self._bounds = {
            name: [(each.field, *bounds) for each in field_layouts(name, sensor) if (bounds := finite_bounds(each))]
            for name, sensor in contract.sensors.items()
        }

    def apply(self, snapshot: SnapshotBatch) -> tuple[SnapshotBatch, BoolArray]:
        """Return the snapshot with its qualities, and the slots in which all readings are valid."""
        samples, are_valid = {}, np.ones(snapshot.now_ns.shape, dtype=np.bool_)
        for name, sample in snapshot.samples.items():
            age_ns = snapshot.now_ns - sample.stamp_ns
            are_valid &= (age_ns >= 0) & (age_ns <= self._max_age_ns[name]) & (sample.quality == int(Quality.OK))
            samples[name] = sample
            for field, low, high in self._bounds[name]:
                values = sample.values[field]
                is_within = (values >= low) & (values <= high)
                if not is_within.all():
                    others = tuple(range(1, values.ndim))
                    are_valid &= np.isfinite(values).all(axis=others)
                    are_within = is_within.all(axis=others)
                    quality = np.where(are_within, samples[name].quality, Quality.OUT_OF_RANGE).astype(np.int8)
                    before: Any = "" if (reason := samples[name].reason) is None else reason
                    reason = np.where(are_within, before, OUTSIDE.format(field))
                    samples[name] = replace(samples[name], quality=quality, reason=reason)
        return SnapshotBatch(now_ns=snapshot.now_ns, samples=samples), are_valid


def is_judged_at_once(task: Task) -> TypeGuard[ArrayTask]:
    """Return whether `judge_steps` takes the task, whose results depend on `evaluate` alone."""
    kind = type(task)
    return issubclass(kind, ArrayTask) and kind.judge is ArrayTask.judge and kind.reset is ArrayTask.reset


def judge_steps(
    task: ArrayTask, previous: SnapshotBatch, current: SnapshotBatch, applied: FloatArray, slots: IntArray
) -> TaskResultBatch | None:
    """Return the checked results of `task.evaluate`, or None if it raises or they are invalid."""
    try:
        result, n_slots = task.evaluate(previous, current, applied), len(applied)
        checked = TaskResultBatch(
            reward=_column(result.reward, n_slots, "fiu"),
            success=_column(result.verdict.success, n_slots, "b"),
            terms={name: _column(result.terms[name], n_slots, "fiu") for name in task.terms},
            failure=_by_reason(result.verdict.failure, n_slots),
            out_of_bounds=_by_reason(result.verdict.out_of_bounds, n_slots),
        )
        numbers = np.array((checked.reward, *checked.terms.values()))[:, slots]
        is_valid = len(result.terms) == len(checked.terms) and bool(np.isfinite(numbers).all())
    except Terminated:
        raise
    except (Exception, SystemExit):  # noqa: BLE001 - judging one by one raises it again, and names the slot
        return None
    return checked if is_valid else None


def _column(values: Any, n_slots: int, kinds: str) -> NDArray[Any]:  # noqa: ANN401 - of foreign code
    """Return an array with a value per slot, of `values` of a dtype among `kinds`.

    One value is that of each slot.
    """
    column = np.asarray(values)
    if column.dtype.kind not in kinds:
        raise TaskError(f"{shown(values)} (expected values of a dtype among {kinds!r})")
    return column if column.shape == (n_slots,) else np.full(n_slots, column)


def _by_reason(reasons: Any, n_slots: int) -> dict[str, BoolArray]:  # noqa: ANN401 - of foreign code
    column = _column(reasons, n_slots, "U")
    return {reason: column == reason for reason in set(column.tolist()) - {""}}
