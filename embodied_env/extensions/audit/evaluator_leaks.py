"""Find components of the agent's observation that equal an evaluator-only reading over many steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.record.arrays import MOST_IN_A_ROW, is_reference
from embodied_env.record.row_types import RESET
from embodied_env.record.violation import Violation, make_violation

STEPS = 20
"""Consecutive steps of equality that make a leak, counting only those in which the evaluator's component varied."""

Leaf = tuple[str, tuple[int, ...]]
"""Path and shape of a numeric field."""


class LeakDetector:
    """Counts, for each pair of components, the consecutive steps in which they were equal.

    The evaluator's component is compared as it is and rounded to float32. A constant is never a leak. Fields of more
    than 4096 numbers, and arrays stored outside the row (images), are not searched.
    Memory is bounded by (components of the agent) x (components of the evaluator).
    """

    def __init__(self) -> None:
        self._leaks: dict[tuple[str, str], int] = {}
        self._leaves: tuple[list[Leaf], list[Leaf]] = ([], [])  # of the agent, of the evaluator
        self._before = np.empty(0)  # the evaluator's components of the previous row
        self._steps = np.zeros((0, 0), dtype=np.int32)  # of equality until now, per pair
        self._most = self._steps  # the maximum of `_steps`

    def add(self, row: Mapping[str, Any]) -> None:
        """Compare the components of the next row."""
        inner = row.get("inner")
        truth_leaves, truth = _flatten(inner.get("evaluator") if isinstance(inner, dict) else None, "")
        agent_leaves, agent = _flatten(row.get("observation"), "observation")
        if (agent_leaves, truth_leaves) != self._leaves:  # start over for fields of other names or shapes
            self._collect_leaks()
            self._leaves = (agent_leaves, truth_leaves)
            self._before = np.full(truth.size, np.nan)
            self._steps, self._most = (np.zeros((agent.size, truth.size), dtype=np.int32) for _ in range(2))
        if row.get("schema") != RESET:  # the jump at a reset is no variation, and short episodes add up
            with np.errstate(over="ignore"):
                rounded = truth.astype(np.float32).astype(np.float64)
            is_equal = (agent[:, None] == truth) | (agent[:, None] == rounded)  # NaN equals nothing
            self._steps += truth != self._before
            self._steps *= is_equal
            np.maximum(self._most, self._steps, out=self._most)
        self._before = truth

    def violations(self) -> list[Violation]:
        """Return each leak so far, with its largest number of steps."""
        self._collect_leaks()
        text = "{} equals evaluator {} over {} varying steps: the agent sees an evaluator-only reading"
        return [
            make_violation("evaluator.leak", agent, truth, text.format(agent, truth, steps))
            for (agent, truth), steps in self._leaks.items()
        ]

    def _collect_leaks(self) -> None:
        pairs = np.argwhere(self._most >= STEPS)
        if len(pairs):
            agent, truth = (
                [f"{path}{''.join(f'[{i}]' for i in index)}" for path, shape in side for index in np.ndindex(*shape)]
                for side in self._leaves
            )
            for i, j in pairs:
                pair = (agent[i], truth[j])
                self._leaks[pair] = max(self._leaks.get(pair, 0), int(self._most[i, j]))


def _flatten(value: Any, path: str) -> tuple[list[Leaf], NDArray[np.float64]]:  # noqa: ANN401 - JSON types
    """Return the numeric fields in `value`, and all their components in one array with NaN for null."""
    found = list(_fields(value, path))
    parts = [array.ravel() for _, array in found]
    return [(where, array.shape) for where, array in found], np.concatenate([np.empty(0), *parts])


def _fields(value: Any, path: str) -> Iterator[tuple[str, NDArray[np.float64]]]:  # noqa: ANN401 - JSON types
    if isinstance(value, dict):
        if not is_reference(value):
            for key, item in value.items():
                yield from _fields(item, f"{path}.{key}" if path else key)
        return
    try:
        array = np.array(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):  # not numeric, ragged, or an integer larger than any float
        for index, item in enumerate(value if isinstance(value, list) else ()):
            yield from _fields(item, f"{path}[{index}]")
        return
    if array.size <= MOST_IN_A_ROW:
        yield path, array
