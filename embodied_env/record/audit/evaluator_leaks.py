"""Leaks: components of the agent's observation that follow an evaluator's reading, number by number."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.record.arrays import MOST_IN_A_ROW, is_reference
from embodied_env.record.audit.violation import Violation, make_violation
from embodied_env.record.rows import RESET

STEPS = 20
"""Steps of equality in a row, counting only those in which the evaluator's component varied, that make a leak."""

Leaf = tuple[str, tuple[int, ...]]
"""A field of numbers: its path and its shape."""


class LeakWatch:
    """Takes in the rows of a run in order and keeps, for each pair of components, how long they have been equal.

    Two components are equal when the agent's is the evaluator's, or the evaluator's rounded to float32. What does not
    vary is never a leak, so constants may agree. Fields of more than 4096 numbers, and arrays beside the row (images),
    are not searched. Memory is bounded by (components of the agent) x (components of the evaluator).
    """

    def __init__(self) -> None:
        """Begin with no row."""
        self._leaks: dict[tuple[str, str], int] = {}
        self._leaves: tuple[list[Leaf], list[Leaf]] = ([], [])  # of the agent, of the evaluator
        self._before = np.empty(0)  # the evaluator's components of the row before
        self._steps = np.zeros((0, 0), dtype=np.int32)  # of equality until now, per pair
        self._most = self._steps  # the largest that it was

    def add(self, row: Mapping[str, Any]) -> None:
        """Take in one row, of a reset or of a transition."""
        inner = row.get("inner")
        truth_leaves, truth = _flat(inner.get("evaluator") if isinstance(inner, dict) else None, "")
        agent_leaves, agent = _flat(row.get("observation"), "observation")
        if (agent_leaves, truth_leaves) != self._leaves:
            self._settle()
            self._begin((agent_leaves, truth_leaves))
        if row.get("schema") != RESET:  # the jump at a reset is no variation; episodes may be short, and are added up
            self._steps += truth != self._before
            self._steps *= _equal(agent[:, None], truth)
            np.maximum(self._most, self._steps, out=self._most)
        self._before = truth

    def violations(self) -> list[Violation]:
        """Return each leak of the rows so far, with the longest time that it was seen."""
        self._settle()
        text = "{} equals evaluator {} over {} steps in which it varies: the evaluator's reading reaches the agent"
        return [
            make_violation("evaluator.leak", agent, truth, text.format(agent, truth, steps))
            for (agent, truth), steps in self._leaks.items()
        ]

    def _begin(self, leaves: tuple[list[Leaf], list[Leaf]]) -> None:
        """Begin with fields of other names or shapes: of what was before them nothing is known."""
        self._leaves = leaves
        agent, truth = (sum(math.prod(shape) for _, shape in side) for side in leaves)
        self._before = np.full(truth, np.nan)
        self._steps, self._most = (np.zeros((agent, truth), dtype=np.int32) for _ in range(2))

    def _settle(self) -> None:
        """Name the pairs that were equal for long enough."""
        pairs = np.argwhere(self._most >= STEPS)
        if len(pairs):
            agent, truth = (_names(side) for side in self._leaves)
            for i, j in pairs:
                pair = (agent[i], truth[j])
                self._leaks[pair] = max(self._leaks.get(pair, 0), int(self._most[i, j]))


def _equal(agent: NDArray[np.float64], truth: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Say which are equal; NaN is equal to nothing."""
    with np.errstate(over="ignore"):
        rounded = truth.astype(np.float32).astype(np.float64)
    equal: NDArray[np.bool_] = (agent == truth) | (agent == rounded)
    return equal


def _flat(value: Any, path: str) -> tuple[list[Leaf], NDArray[np.float64]]:  # noqa: ANN401 - JSON types
    """Return the fields of numbers in `value`, and their components one after the other; null is NaN."""
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
    except (TypeError, ValueError, OverflowError):  # no numbers, a ragged list, or an integer beyond every float
        for index, item in enumerate(value if isinstance(value, list) else ()):
            yield from _fields(item, f"{path}[{index}]")
        return
    if array.size <= MOST_IN_A_ROW:
        yield path, array


def _names(leaves: list[Leaf]) -> list[str]:
    return [
        path + "".join(f"[{position}]" for position in index) for path, shape in leaves for index in np.ndindex(*shape)
    ]
