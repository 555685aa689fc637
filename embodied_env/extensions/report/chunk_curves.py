"""Read the action chunks of an episode, which are drawn below the actions that were applied."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embodied_env.core.info_types import ArrayReference
from embodied_env.core.types import FloatArray
from embodied_env.errors import RecordError
from embodied_env.extensions.report.time_series import Sparse
from embodied_env.record.row_types import TransitionRow
from embodied_env.record.step_values import Joints

MOST_CHUNKS = 24
"""Chunks of an episode that are drawn."""

_MOST_POINTS = 24  # actions of a chunk that are drawn


class _Kept(NamedTuple):
    step: int
    age: int
    actions: ArrayReference
    origins: list[float]


class ChunkCurves:
    """Chunks evenly over an episode, each from the step on in which it takes effect.

    Attributes:
        count: chunks of the episode, those that are not drawn included.
        steps: the step of each point; a chunk ends with a gap.
        values: of shape (n_points, n_joints), in the units of `Joints.values`; NaN in a gap.
    """

    def __init__(self, joints: Joints) -> None:
        self.count = 0
        self.steps: FloatArray = np.empty(0)
        self.values: FloatArray = np.empty((0, 0))
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
