"""Values of a run by name: over time in buckets of steps, and with a bound on the number of names."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

BUCKETS = 120
MOST_NAMES = 400

_PERCENTILES = (0.0, 50.0, 95.0, 99.0, 100.0)

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class BoundedDict(dict[_Key, _Value]):
    """Entries created on first use, at most `most` of them; `left_out` counts calls of `entry` that found no room."""

    def __init__(self, create: Callable[[], _Value], most: int = MOST_NAMES) -> None:
        super().__init__()
        self.left_out = 0
        self._create = create
        self._most = most

    def entry(self, key: _Key) -> _Value | None:
        """Return the entry of `key`, created if necessary; None when the dict is full."""
        if key not in self:
            if len(self) >= self._most:
                self.left_out += 1
                return None
            self[key] = self._create()
        return self[key]


class Occurrences:
    """Counts the steps in which something occurred, from `first_step` to `last_step`.

    `adjacent` counts those that followed another one directly.
    """

    def __init__(self) -> None:
        self.steps = self.adjacent = self.first_step = self.last_step = 0

    def add(self, step: int) -> None:
        """Count `step`, in ascending order; the same step counts once."""
        if not self.steps:
            self.first_step = step
        elif step == self.last_step:
            return
        else:
            self.adjacent += step == self.last_step + 1
        self.steps += 1
        self.last_step = step


class Curve(NamedTuple):
    """Percentiles and the number of values of each bucket; NaN where a bucket has no value."""

    least: Sequence[float]
    p50: Sequence[float]
    p95: Sequence[float]
    p99: Sequence[float]
    most: Sequence[float]
    counts: Sequence[int]


class Timeline:
    """Percentiles of named values per bucket of steps. Only the values of the current bucket are kept in memory."""

    def __init__(self, steps: int) -> None:
        """Divide `steps` into at most `BUCKETS` of equal length; later steps go into the last one."""
        self.width = max(1, math.ceil(steps / BUCKETS))
        self.buckets = max(1, math.ceil(steps / self.width))
        self.series: BoundedDict[Hashable, list[tuple[int, list[float], int]]] = BoundedDict(list)
        self.first_steps = [1 + index * self.width for index in range(self.buckets)]
        self._steps_in_bucket = [0] * self.buckets
        self._bucket = 0
        self._open: dict[Hashable, array[float]] = {}

    def begin_step(self, step: int) -> None:
        """Assign the values that follow to `step`, from 1."""
        bucket = min((step - 1) // self.width, self.buckets - 1)
        if bucket != self._bucket:
            self._close()
            self._bucket = bucket
        self._steps_in_bucket[bucket] += 1

    def add(self, name: Hashable, value: float) -> None:
        """Add a finite value of the current step."""
        if self.series.entry(name) is not None:
            self._open.setdefault(name, array("d")).append(value)

    def curve(self, name: Hashable) -> Curve:
        """Return the curve of `name`."""
        self._close()
        table = np.full((self.buckets, len(_PERCENTILES)), np.nan)
        counts = [0] * self.buckets
        for bucket, values, count in self.series.get(name, ()):
            table[bucket], counts[bucket] = values, count
        least, p50, p95, p99, most = table.T.tolist()
        return Curve(least, p50, p95, p99, most, counts)

    def shares(self, name: Hashable) -> list[float]:
        """Return the share of steps per bucket that have a value of `name`, at most one per step; NaN without steps."""
        counts = self.curve(name).counts
        return [n / steps if steps else math.nan for n, steps in zip(counts, self._steps_in_bucket, strict=True)]

    def _close(self) -> None:
        for name, values in self._open.items():
            percentiles = np.percentile(np.asarray(values), _PERCENTILES).tolist()
            self.series[name].append((self._bucket, percentiles, len(values)))
        self._open = {}
