"""Values and events over the steps of a run, in bounded memory."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import numpy as np

from embodied_env.core.types import FloatArray
from embodied_env.extensions.report.charts import COLUMNS, extremes

MOST_NAMES = 400

_MOST_KEPT = 8 * COLUMNS  # values of a trace before it is shortened

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class BoundedDict(dict[_Key, _Value]):
    """At most `most` entries created on first use, with the refused calls as `left_out`."""

    def __init__(self, create: Callable[[], _Value], most: int = MOST_NAMES) -> None:
        super().__init__()
        self.left_out = 0
        self._create = create
        self._most = most

    def entry(self, key: _Key) -> _Value | None:
        """Return the entry of `key`, created if necessary, or None when the dict is full."""
        if key not in self:
            if len(self) >= self._most:
                self.left_out += 1
                return None
            self[key] = self._create()
        return self[key]


class Sparse(Generic[_Value]):
    """At most `most` items evenly over a stream, the first included, by dropping every second."""

    def __init__(self, most: int) -> None:
        self.kept: list[_Value] = []
        self._most, self._stride, self._count = most, 1, 0

    def add(self, item: _Value) -> None:
        """Add the next item of the stream."""
        if self._count % self._stride == 0:
            self.kept.append(item)
            if len(self.kept) > self._most:
                del self.kept[1::2]
                self._stride *= 2
        self._count += 1


class Trace:
    """Values of one name over the steps of an episode, or their extremes if many."""

    def __init__(self) -> None:
        self._steps, self._values = array("d"), array("d")

    def add(self, step: int, value: float) -> None:
        """Add the value of `step`, in ascending order and with NaN for a gap."""
        self._steps.append(step)
        self._values.append(value)
        if len(self._steps) >= _MOST_KEPT:
            self._shorten(2 * COLUMNS)

    def end(self) -> None:
        """Keep only what a chart shows."""
        self._shorten(COLUMNS)

    @property
    def steps(self) -> FloatArray:
        """The steps with a value."""
        return np.array(self._steps)

    @property
    def values(self) -> FloatArray:
        """The values of `steps`."""
        return np.array(self._values)

    def _shorten(self, columns: int) -> None:
        steps, values = extremes(self._steps, self._values, columns)
        self._steps, self._values = array("d", steps.tobytes()), array("d", values.tobytes())


class Spans:
    """Spans of adjacent steps in which something occurred, joined if there are many."""

    def __init__(self) -> None:
        self.count = 0
        self.spans: list[tuple[int, int]] = []
        self._reach = 1

    def add(self, step: int) -> None:
        """Add `step`, in ascending order and each step once."""
        if self.spans and step == self.spans[-1][1]:
            return
        self.count += 1
        self._append(step, step)
        while len(self.spans) > COLUMNS:
            self._reach *= 2
            spans, self.spans = self.spans, []
            for first, last in spans:
                self._append(first, last)

    def _append(self, first: int, last: int) -> None:
        if self.spans and first - self.spans[-1][1] <= self._reach:
            self.spans[-1] = self.spans[-1][0], last
        else:
            self.spans.append((first, last))
