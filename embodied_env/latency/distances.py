"""How far two runs lie apart, as pure functions: Kolmogorov-Smirnov, effective counts, and tests of shares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, kw_only=True)
class PairedTest:
    """McNemar's exact test of two shares over the same situations.

    `only_a` and `only_b` count the pairs in which only one of both succeeded; `p_value` is two-sided.
    """

    pairs: int
    both: int
    only_a: int
    only_b: int
    neither: int
    p_value: float


def ks_distance(a: ArrayLike, b: ArrayLike) -> float:
    """Return the two-sample Kolmogorov-Smirnov distance: the largest gap between both empirical distributions.

    ``D = sup_x |F_a(x) - F_b(x)|`` with ``F(x)`` the share of values <= x (Smirnov 1939). It is in [0, 1], symmetric,
    0 for equal samples, and the same after any strictly increasing map of both. Exact up to the rounding of two shares.

    Args:
        a: finite numbers, 1 or more, in any order.
        b: the same.

    Raises:
        ValueError: when a sample is empty, or has a number that is not finite.
    """
    first, second = _sorted("a", a), _sorted("b", b)
    at = np.concatenate([first, second])
    of_first = np.searchsorted(first, at, side="right") / len(first)
    of_second = np.searchsorted(second, at, side="right") / len(second)
    return float(np.abs(of_first - of_second).max())


def ks_noise(count_a: float, count_b: float, *, chance: float = 0.05) -> float:
    """Return which KS distance two samples of one distribution exceed with probability `chance`, at most 1.

    ``sqrt(-ln(chance / 2) / 2 / n)`` with the effective number ``n = count_a count_b / (count_a + count_b)``: the
    first term of Kolmogorov's distribution (Smirnov 1948), which is on the safe side, and more so for values that
    repeat.

    Args:
        count_a: the number of independent values in the one sample, above 0 (`effective_count`).
        count_b: that in the other.
        chance: above 0 and below 1.

    Raises:
        ValueError: for a number that is not allowed.
    """
    for name, count in (("count_a", count_a), ("count_b", count_b)):
        if not (math.isfinite(count) and count > 0):
            raise ValueError(f"{name} is {count}; allowed: a finite number above 0")
    if not 0.0 < chance < 1.0:
        raise ValueError(f"chance is {chance}; allowed: above 0 and below 1")
    effective = count_a * count_b / (count_a + count_b)
    return min(1.0, math.sqrt(-math.log(chance / 2) / (2 * effective)))


def effective_count(count: int, lag1: float, *, least: int = 1) -> float:
    """Return how many independent values `count` values in a row are worth, from their correlation with the next.

    ``count (1 - r) / (1 + r)``: exact for the mean of a long first-order autoregression (Bartlett 1935; Thiebaux and
    Zwiers 1984), a rule of thumb for others. A negative correlation counts as none, so it is never more than `count`.

    Args:
        count: 1 or more.
        lag1: the correlation of each value with the next, -1 to 1.
        least: what it is worth at least, e.g. the number of stretches that do not depend on one another.

    Raises:
        ValueError: for a number that is not allowed.
    """
    if count < 1:
        raise ValueError(f"count is {count}; allowed: 1 or more")
    if not -1.0 <= lag1 <= 1.0:
        raise ValueError(f"lag1 is {lag1}; allowed: -1 to 1")
    correlation = max(0.0, lag1)
    worth = count * (1.0 - correlation) / (1.0 + correlation)
    return min(float(count), max(worth, float(least), 1.0))


def mcnemar_exact(outcomes: Sequence[tuple[bool, bool]]) -> PairedTest:
    """Test whether two runs succeed equally often in the same situations (McNemar 1947, exact by the binomial).

    Only pairs that differ count: if both are as good, either is as likely to be the one that succeeds. The two-sided
    p-value is twice the smaller tail of Binomial(only_a + only_b, 1/2), at most 1; no such pair: 1.

    Args:
        outcomes: success in run A, and in run B, of each pair.
    """
    both = sum(a and b for a, b in outcomes)
    only_a = sum(a and not b for a, b in outcomes)
    only_b = sum(b and not a for a, b in outcomes)
    return PairedTest(
        pairs=len(outcomes),
        both=both,
        only_a=only_a,
        only_b=only_b,
        neither=len(outcomes) - both - only_a - only_b,
        p_value=_sign_test(only_a, only_b),
    )


def wilson_interval(share: float, count: float, *, confidence: float = 0.95) -> tuple[float, float]:
    """Return the score interval of a share (Wilson 1927): low and high, both in [0, 1].

    ``(p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n)``. Unlike the normal approximation it holds at few trials and
    at shares of 0 and 1.

    Args:
        share: of the trials that succeeded, 0 to 1.
        count: how many independent trials they are worth, above 0; no whole number if it is an `effective_count`.
        confidence: of the interval, above 0 and below 1.

    Raises:
        ValueError: for a number that is not allowed.
    """
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"share is {share}; allowed: 0 to 1")
    if not (math.isfinite(count) and count > 0):
        raise ValueError(f"count is {count}; allowed: a finite number above 0")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence is {confidence}; allowed: above 0 and below 1")
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    scale = 1.0 + z * z / count
    centre = (share + z * z / (2 * count)) / scale
    half = z * math.sqrt(share * (1.0 - share) / count + z * z / (4 * count * count)) / scale
    low = 0.0 if share == 0.0 else max(0.0, min(share, centre - half))
    high = 1.0 if share == 1.0 else min(1.0, max(share, centre + half))
    return low, high


def share_noise(a: tuple[float, float], b: tuple[float, float], *, chance: float = 0.05) -> float:
    """Return which difference of two shares is no more than chance: how far 0 may lie from it.

    It is the half of `difference_interval`, at a confidence of ``1 - chance``, on the side of no difference.

    Args:
        a: share, and how many independent trials it is worth.
        b: the same of the other.
        chance: above 0 and below 1.

    Raises:
        ValueError: for a number that is not allowed.
    """
    lower, upper = sorted((a, b))
    intervals = [(share, *wilson_interval(share, count, confidence=1.0 - chance)) for share, count in (lower, upper)]
    (share_low, _, top), (share_high, bottom, _) = intervals
    return math.hypot(share_high - bottom, top - share_low)


def difference_interval(a: tuple[float, float, float], b: tuple[float, float, float]) -> tuple[float, float]:
    """Return the interval of ``share_b - share_a`` of two independent samples (Newcombe 1998, method 10).

    It is put together from the Wilson intervals of both shares, and has their confidence.

    Args:
        a: share, low and high end of its interval; 0 <= low <= share <= high <= 1.
        b: the same of the other.

    Raises:
        ValueError: when they are not in that order.
    """
    for name, (share, low, high) in (("a", a), ("b", b)):
        if not 0.0 <= low <= share <= high <= 1.0:
            raise ValueError(f"{name} is {(share, low, high)}; allowed: 0 <= low <= share <= high <= 1, share first")
    (share_a, low_a, high_a), (share_b, low_b, high_b) = a, b
    difference = share_b - share_a
    below = math.hypot(share_b - low_b, high_a - share_a)
    above = math.hypot(high_b - share_b, share_a - low_a)
    return max(-1.0, difference - below), min(1.0, difference + above)


def _sign_test(only_a: int, only_b: int) -> float:
    """Return the two-sided p-value of as many heads and tails of a fair coin; exact in integers."""
    tosses = only_a + only_b
    term, tail = 1, 0
    for heads in range(min(only_a, only_b) + 1):
        tail += term
        term = term * (tosses - heads) // (heads + 1)
    return min(1.0, 2 * tail / 2**tosses) if tosses else 1.0


def _sorted(name: str, values: ArrayLike) -> NDArray[np.float64]:
    array = np.sort(np.asarray(values, dtype=np.float64), axis=None)
    if not array.size:
        raise ValueError(f"{name} has no number; allowed: 1 or more")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} has a number that is not finite; allowed: finite numbers")
    return array
