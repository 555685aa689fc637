"""Numbers of a run over its steps, in a fixed number of buckets: each says what its own numbers say, exactly.

Only the numbers of the bucket that is open are kept, so memory grows with the buckets and the names, and with the steps
only by their share in one bucket.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

BUCKETS = 120
MOST_NAMES = 400
"""Curves that are kept; what else a run names is counted and left out."""

_SHARES = (0.0, 50.0, 95.0, 99.0, 100.0)


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One value per bucket; NaN where the bucket has no number."""

    least: Sequence[float]
    p50: Sequence[float]
    p95: Sequence[float]
    p99: Sequence[float]
    most: Sequence[float]
    count: Sequence[int]


class Timeline:
    """Takes in numbers by name, step by step."""

    def __init__(self, steps: int) -> None:
        """Divide `steps` into at most `BUCKETS` of equal length; what comes behind them goes into the last."""
        self.width = max(1, math.ceil(steps / BUCKETS))
        self.buckets = max(1, math.ceil(steps / self.width))
        self.left_out = 0
        self.steps_in_bucket = [0] * self.buckets
        self._bucket = 0
        self._open: dict[Hashable, array[float]] = {}
        self._closed: dict[Hashable, list[tuple[int, tuple[float, ...], int]]] = {}

    def begin_step(self, step: int) -> None:
        """Go on to the step number `step`, from 1; numbers that come are of it."""
        bucket = min((max(step, 1) - 1) // self.width, self.buckets - 1)
        if bucket != self._bucket:
            self._close()
            self._bucket = bucket
        self.steps_in_bucket[bucket] += 1

    def add(self, name: Hashable, value: float) -> None:
        """Take in one finite number of this step."""
        if name not in self._open:
            if name not in self._closed:
                if len(self._closed) >= MOST_NAMES:
                    self.leave_out()
                    return
                self._closed[name] = []
            self._open[name] = array("d")
        self._open[name].append(value)

    def leave_out(self) -> None:
        """Count a value that is told nowhere, since the run names too much."""
        self.left_out += 1

    @property
    def first_steps(self) -> list[int]:
        """The number of the first step of each bucket, from 1."""
        return [1 + index * self.width for index in range(self.buckets)]

    def names(self) -> list[Hashable]:
        """Return the names in the order in which they came."""
        return list(self._closed)

    def curve(self, name: Hashable) -> Curve:
        """Return what was taken in under `name`."""
        self._close()
        table = np.full((self.buckets, len(_SHARES)), np.nan)
        counts = [0] * self.buckets
        for bucket, values, count in self._closed.get(name, ()):
            table[bucket], counts[bucket] = values, count
        least, p50, p95, p99, most = table.T.tolist()
        return Curve(least=least, p50=p50, p95=p95, p99=p99, most=most, count=counts)

    def shares(self, name: Hashable) -> list[float]:
        """Return in which share of the steps of each bucket something came under `name`, at most once a step."""
        counts = self.curve(name).count
        return [count / steps if steps else math.nan for count, steps in zip(counts, self.steps_in_bucket, strict=True)]

    def _close(self) -> None:
        for name, values in self._open.items():
            found = tuple(np.percentile(np.asarray(values), _SHARES).tolist())
            self._closed[name].append((self._bucket, found, len(values)))
        self._open = {}
