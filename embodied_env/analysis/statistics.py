"""Distances, intervals, tests and samples, by scipy where it has them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from embodied_env.core.latency.profile import Estimate
from embodied_env.core.latency.statistics import Reservoir
from embodied_env.core.types import FloatArray
from embodied_env.errors import MissingDependencyError

try:
    import scipy  # loads stats when it is first used, which takes half a second
except ImportError:
    raise MissingDependencyError("scipy", needed_for="statistics of runs and calibrations") from None

CONFIDENCE = 0.95

# ------------------------------------------------------------------------------------------------------ distributions


def ks_distance(a: ArrayLike, b: ArrayLike) -> float:
    """Return the two-sample Kolmogorov-Smirnov distance: the largest gap between both empirical distributions."""
    with np.errstate(divide="ignore"):  # in the p-value of single numbers, which is not used
        return float(scipy.stats.ks_2samp(a, b, method="asymp").statistic)


def ks_noise(count_a: float, count_b: float, *, chance: float = 0.05) -> float:
    """Return the KS distance that two samples of one distribution exceed with probability `chance`, at most 1.

    From Kolmogorov's limiting distribution, which is conservative, more so for values that repeat. The counts are of
    independent values, above 0 (`autoregressive_count`).
    """
    return min(1.0, float(scipy.stats.kstwobign.isf(chance)) / math.sqrt(count_a * count_b / (count_a + count_b)))


@dataclass(frozen=True)
class Percentiles:
    """Percentiles and extremes of `count` numbers; NaN, and infinite extremes, without numbers."""

    count: int
    p50: float
    p95: float
    p99: float
    least: float
    most: float


class Sample(Reservoir):
    """Fair sample of a stream of numbers in bounded memory: all of them up to `KEPT`. Extremes and sum are exact."""

    def __init__(self) -> None:
        super().__init__()
        self.least, self.total = math.inf, 0.0

    def add(self, value: float) -> None:
        """Add a finite number."""
        super().add(value)
        self.least = min(self.least, value)
        self.total += value

    def percentiles(self) -> Percentiles:
        """Return the percentiles of the sample with the exact count and extremes."""
        p50, p95, p99 = np.quantile(self.values(), (0.5, 0.95, 0.99)).tolist() if self.count else [math.nan] * 3
        return Percentiles(self.count, p50, p95, p99, self.least, self.most)


# --------------------------------------------------------------------------------------------------- shares of trials


def share_interval(share: float, count: float, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the score interval of a share (Wilson 1927): low and high, both in [0, 1].

    ``(p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n)``. Unlike the normal approximation it holds for few trials
    and for shares of 0 and 1. `scipy.stats` has it for whole numbers of trials only. `count` is the number of
    independent trials that the share is worth, above 0 (`autoregressive_count`).
    """
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    scale = 1.0 + z * z / count
    centre = (share + z * z / (2 * count)) / scale
    half = z * math.sqrt(share * (1.0 - share) / count + z * z / (4 * count * count)) / scale
    low = 0.0 if share == 0.0 else max(0.0, min(share, centre - half))
    high = 1.0 if share == 1.0 else min(1.0, max(share, centre + half))
    return low, high


def difference_interval(a: tuple[float, float, float], b: tuple[float, float, float]) -> tuple[float, float]:
    """Return the interval of ``share_b - share_a`` of two independent samples (Newcombe 1998, method 10).

    It combines the Wilson intervals of both shares, and has their confidence. Each argument has the share, and the low
    and high end of its interval.
    """
    (share_a, low_a, high_a), (share_b, low_b, high_b) = a, b
    difference = share_b - share_a
    below = math.hypot(share_b - low_b, high_a - share_a)
    above = math.hypot(high_b - share_b, share_a - low_a)
    return max(-1.0, difference - below), min(1.0, difference + above)


def share_noise(a: tuple[float, float], b: tuple[float, float], *, chance: float = 0.05) -> float:
    """Return the difference of two shares that chance explains.

    It is the half of `difference_interval` on the side of no difference, at a confidence of ``1 - chance``. `a` and `b`
    have the share, and the number of independent trials that it is worth.
    """
    lower, upper = sorted((a, b))
    _, top = share_interval(*lower, confidence=1.0 - chance)
    bottom, _ = share_interval(*upper, confidence=1.0 - chance)
    return math.hypot(upper[0] - bottom, top - lower[0])


@dataclass(frozen=True, kw_only=True)
class PairedTest:
    """McNemar's exact test of two shares over the same situations.

    `only_a` and `only_b` count the pairs in which only one succeeded; `p_value` is two-sided.
    """

    pairs: int
    both: int
    only_a: int
    only_b: int
    neither: int
    p_value: float


def mcnemar_exact(outcomes: Sequence[tuple[bool, bool]]) -> PairedTest:
    """Test whether two runs succeed equally often in the same situations (McNemar 1947, exact by the binomial).

    Only pairs that differ count: for equal runs each is equally likely to be the one that succeeds. `outcomes` has the
    success in run A and in run B of each pair.
    """
    both = sum(a and b for a, b in outcomes)
    only_a = sum(a and not b for a, b in outcomes)
    only_b = sum(b and not a for a, b in outcomes)
    differ = only_a + only_b
    return PairedTest(
        pairs=len(outcomes),
        both=both,
        only_a=only_a,
        only_b=only_b,
        neither=len(outcomes) - both - differ,
        p_value=float(scipy.stats.binomtest(only_a, differ).pvalue) if differ else 1.0,
    )


def paired_difference_interval(test: PairedTest) -> tuple[float, float]:
    """Return the interval of ``share_b - share_a`` over one or more pairs (Newcombe 1998, paired data, method 10).

    As `difference_interval`, with the correlation phi of both shares, whose numerator has the correction ``n / 2``.
    """
    a, b = (test.both + test.only_a) / test.pairs, (test.both + test.only_b) / test.pairs
    (low_a, high_a), (low_b, high_b) = share_interval(a, test.pairs), share_interval(b, test.pairs)
    product = test.both * test.neither - test.only_a * test.only_b
    spread = test.pairs * test.pairs * math.sqrt(a * (1.0 - a) * b * (1.0 - b))
    phi = (max(product - test.pairs / 2, 0.0) if product > 0 else product) / spread if spread else 0.0

    def distance(of_a: float, of_b: float) -> float:
        return math.sqrt(max(0.0, of_a * of_a - 2.0 * phi * of_a * of_b + of_b * of_b))

    return max(-1.0, b - a - distance(high_a - a, b - low_b)), min(1.0, b - a + distance(a - low_a, high_b - b))


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the interval of the mean of independent values by Student's t; None for fewer than two."""
    if len(values) < 2:
        return None
    half = float(scipy.stats.t.ppf(0.5 + CONFIDENCE / 2, len(values) - 1) * np.std(values, ddof=1)) / len(values) ** 0.5
    return float(np.mean(values)) - half, float(np.mean(values)) + half


# ------------------------------------------------------------------------------------------------- correlated values


def median_estimate(samples_s: FloatArray, *, method: str, detail: str) -> Estimate:
    """Return the estimate of a duration: the median of its measurements, shape (n,) in order of time.

    The interval is that of order statistics at 95 %. Successive values are correlated, so they count as
    `median_effective_count` independent ones. With too few of them it reaches from the least to the greatest value.
    """
    ordered = np.sort(samples_s)
    n = len(ordered)
    half = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2) * 0.5 / math.sqrt(median_effective_count(samples_s))
    low, high = math.floor(n * (0.5 - half)) - 1, math.ceil(n * (0.5 + half))
    return Estimate(
        value_s=float(np.median(ordered)),
        low_s=float(ordered[max(0, low)]),
        high_s=float(ordered[min(n - 1, high)]),
        method=method,
        n=n,
        detail=detail,
        samples_s=tuple(samples_s.tolist()),
    )


def median_effective_count(values: FloatArray) -> float:
    """Return how many independent values determine the median as well as `values`, shape (n,) in order of time.

    From the autocorrelation of being above the median, summed until it is first below 0.05.
    """
    n = len(values)
    above = np.sign(values - np.median(values))
    above -= above.mean()
    power = float(above @ above)
    if n < 2 or power == 0.0:
        return float(n)
    total = 0.0
    for lag in range(1, n // 2):
        correlation = float(above[:-lag] @ above[lag:]) / power
        if correlation < 0.05:
            break
        total += correlation
    return max(1.0, n / (1.0 + 2.0 * total))


def autoregressive_count(count: int, lag1: float, *, least: int = 1) -> float:
    """Return how many independent values `count` successive values are worth, from their lag-1 correlation.

    ``count (1 - r) / (1 + r)``: exact for the mean of a long first-order autoregression (Bartlett 1935; Thiebaux and
    Zwiers 1984), a rule of thumb for others. A negative correlation counts as none, and rounding may take `lag1` out of
    -1 to 1. The result is at least `least`, e.g. the number of independent stretches.
    """
    correlation = min(1.0, max(0.0, lag1))
    worth = count * (1.0 - correlation) / (1.0 + correlation)
    return min(float(count), max(worth, float(least), 1.0))
