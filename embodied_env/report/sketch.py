"""Percentiles of a stream in bounded memory."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

_ERROR = 0.005
"""How far a percentile may be from the value of its rank, relatively."""

_BASE = (1 + _ERROR) / (1 - _ERROR)
_LOG_BASE = math.log(_BASE)
_SMALLEST = 1e-12  # what is nearer to zero counts as zero


@dataclass(frozen=True, kw_only=True)
class Spread:
    """What a stream of `count` numbers says, in its own unit; percentiles within half a percent of themselves."""

    count: int
    p50: float
    p95: float
    p99: float
    least: float
    most: float


class Sketch:
    """Counts numbers in buckets whose width grows with the number (DDSketch, Masson et al. 2019): any sign, no NaN.

    From a picosecond to a day there are about 3 900 buckets of each sign, so that is its size at most.
    """

    def __init__(self) -> None:
        """Begin with no number."""
        self.count = 0
        self._positive: Counter[int] = Counter()
        self._negative: Counter[int] = Counter()
        self._zeros = 0
        self._least, self._most = math.inf, -math.inf

    def add(self, value: float) -> None:
        """Take in one finite number."""
        self.count += 1
        self._least, self._most = min(self._least, value), max(self._most, value)
        size = abs(value)
        if size < _SMALLEST:
            self._zeros += 1
        else:
            (self._positive if value > 0 else self._negative)[math.ceil(math.log(size) / _LOG_BASE)] += 1

    @property
    def most(self) -> float:
        """The greatest number so far; minus infinity when there was none."""
        return self._most

    def quantile(self, share: float) -> float:
        """Return the number of rank `share` (0 to 1) among those that were taken in; NaN when there were none."""
        if not self.count:
            return math.nan
        rank = share * (self.count - 1)
        for value, upto in self._ranks():
            if upto > rank:
                return min(max(value, self._least), self._most)
        return self._most

    def spread(self) -> Spread:
        """Return percentiles and extremes; NaN, and infinities, when there was no number."""
        p50, p95, p99 = (self.quantile(share) for share in (0.5, 0.95, 0.99))
        return Spread(count=self.count, p50=p50, p95=p95, p99=p99, least=self._least, most=self._most)

    def _ranks(self) -> list[tuple[float, int]]:
        """Return the value of each bucket in ascending order, with how many numbers lie up to it."""
        cells = [(-_middle(index), self._negative[index]) for index in sorted(self._negative, reverse=True)]
        cells += [(0.0, self._zeros)] if self._zeros else []
        cells += [(_middle(index), self._positive[index]) for index in sorted(self._positive)]
        found, upto = [], 0
        for value, count in cells:
            upto += count
            found.append((value, upto))
        return found


def _middle(index: int) -> float:
    """Return the number that is as far from both ends of its bucket, relatively."""
    return 2.0 * _BASE**index / (_BASE + 1.0)
