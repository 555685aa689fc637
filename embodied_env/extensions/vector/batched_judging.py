"""Judge a step of several slots at once, if their task has one elementwise formula (`ArrayTask`)."""

from __future__ import annotations

from reprlib import repr as shown
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import FloatArray
from embodied_env.errors import TaskError
from embodied_env.extensions.vector.batches import BoolArray, IntArray, SnapshotBatch, TaskResultBatch
from embodied_env.processes.signals import Terminated
from embodied_env.tasks import ArrayTask, Task


def is_judged_at_once(task: Task) -> TypeGuard[ArrayTask]:
    """Return whether `judge_steps` takes the task: its results depend on `evaluate` alone."""
    kind = type(task)
    return issubclass(kind, ArrayTask) and kind.judge is ArrayTask.judge and kind.reset is ArrayTask.reset


def judge_steps(
    task: ArrayTask, previous: SnapshotBatch, current: SnapshotBatch, applied: FloatArray, slots: IntArray
) -> TaskResultBatch | None:
    """Return the results of `task.evaluate`, checked for `slots`; None if it raises or returns something else."""
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
    """Return an array with a value per slot, of `values` of a dtype among `kinds`; one value is that of each slot."""
    column = np.asarray(values)
    if column.dtype.kind not in kinds:
        raise TaskError(f"{shown(values)} (expected values of a dtype among {kinds!r})")
    return column if column.shape == (n_slots,) else np.full(n_slots, column)


def _by_reason(reasons: Any, n_slots: int) -> dict[str, BoolArray]:  # noqa: ANN401 - of foreign code
    """Return in which slots each reason of a verdict holds."""
    column = _column(reasons, n_slots, "U")
    return {reason: column == reason for reason in set(column.tolist()) - {""}}
