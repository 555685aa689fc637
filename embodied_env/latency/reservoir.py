"""A fair sample of a stream of numbers, in bounded memory."""

from __future__ import annotations

import math
import random
from array import array

import numpy as np
from numpy.typing import NDArray

KEPT = 8192
"""Numbers of a stream that are kept; up to so many, everything that is said of them is exact."""


class Reservoir:
    """A fair sample of a stream: each number is in it with the same probability (algorithm L, Li 1994).

    The same stream and seed give the same sample.
    """

    def __init__(self, *, capacity: int = KEPT, seed: str = "") -> None:
        """Keep at most `capacity` numbers, drawn by `seed`."""
        self.count = 0
        self._capacity = capacity
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._kept = array("d")
        self._weight = 1.0
        self._next = 0  # the count at which a number is taken

    def add(self, value: float) -> None:
        """Take in one number."""
        self.count += 1
        if len(self._kept) < self._capacity:
            self._kept.append(value)
            if len(self._kept) == self._capacity:
                self._next = self.count
                self._skip()
        elif self.count == self._next:
            self._kept[self._random.randrange(self._capacity)] = value
            self._skip()

    def add_all(self, values: array[float]) -> None:
        """Take in many numbers: as one by one, in less time."""
        before, missing = self.count, self._capacity - len(self._kept)
        self.count += len(values)
        if missing:
            self._kept.extend(values[:missing])
            if len(values) < missing:
                return
            self._next = before + missing
            self._skip()
        while self._next <= self.count:
            self._kept[self._random.randrange(self._capacity)] = values[self._next - before - 1]
            self._skip()

    def values(self) -> NDArray[np.float64]:
        """Return the sample, in ascending order."""
        return np.sort(np.asarray(self._kept))

    def _skip(self) -> None:
        self._weight *= math.exp(math.log(self._draw()) / self._capacity)
        self._next += math.floor(math.log(self._draw()) / math.log1p(-self._weight)) + 1

    def _draw(self) -> float:
        return self._random.random() or 2.0**-53  # in (0, 1): it has a logarithm, which is not 0
