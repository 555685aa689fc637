"""Distances, intervals, tests and quantile sketches, as pure functions; scipy where it has them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embodied_env.errors import MissingDependencyError

try:
    from scipy import stats
except ImportError:
    raise MissingDependencyError(
        "scipy", needed_for="statistics of runs and calibrations", remedy='pip install "embodied_env[analysis]"'
    ) from None

CONFIDENCE = 0.95

FloatArray = NDArray[np.float64]

# --------------------------------------------------------------------------------------------------- distributions


def ks_distance(a: ArrayLike, b: ArrayLike) -> float:
    """Return the two-sample Kolmogorov-Smirnov distance: the largest gap between both empirical distributions.

    Args:
        a: finite numbers, 1 or more, in any order.
        b: the same.

    Raises:
        ValueError: when a sample is empty or has a number that is not finite.
    """
    samples = [np.asarray(values, dtype=np.float64).ravel() for values in (a, b)]
    for name, sample in zip("ab", samples, strict=True):
        if not (sample.size and np.isfinite(sample).all()):
            raise ValueError(f"sample {name} is empty or not finite: {sample} (expected 1 or more finite numbers)")
    with np.errstate(divide="ignore"):  # in the p-value of single numbers, which is not used
        return float(stats.ks_2samp(*samples, method="asymp").statistic)


def ks_noise(count_a: float, count_b: float, *, chance: float = 0.05) -> float:
    """Return the KS distance that two samples of one distribution exceed with probability `chance`, at most 1.

    From Kolmogorov's limiting distribution, which errs on the safe side, more so for values that repeat.

    Args:
        count_a: number of independent values in the one sample, above 0 (`autoregressive_count`).
        count_b: that in the other.
        chance: above 0 and below 1.

    Raises:
        ValueError: for a number that is not allowed.
    """
    _check_count("count_a", count_a)
    _check_count("count_b", count_b)
    _check_probability("chance", chance)
    return min(1.0, float(stats.kstwobign.isf(chance)) / math.sqrt(count_a * count_b / (count_a + count_b)))


# -------------------------------------------------------------------------------------------------- shares of trials


def wilson_interval(successes: int, trials: int, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the score interval of a share (Wilson 1927): low and high, both in [0, 1].

    Unlike the normal approximation it holds for few trials and for shares of 0 and 1.

    Args:
        successes: from 0 to `trials`.
        trials: 1 or more.
        confidence: of the interval, above 0 and below 1.

    Raises:
        ValueError: for counts or a confidence that are not allowed.
    """
    _check_count("trials", trials)
    _check_probability("confidence", confidence)
    interval = stats.binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    return float(interval.low), float(interval.high)


def share_interval(share: float, count: float, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the score interval of a share of `count` independent trials, which need not be a whole number.

    ``(p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n)``; for whole numbers it is `wilson_interval`.

    Args:
        share: of the trials that succeeded, 0 to 1.
        count: number of independent trials they are worth, above 0 (`autoregressive_count`).
        confidence: of the interval, above 0 and below 1.

    Raises:
        ValueError: for a number that is not allowed.
    """
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"share {share} is not allowed (expected 0 to 1)")
    _check_count("count", count)
    _check_probability("confidence", confidence)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    scale = 1.0 + z * z / count
    centre = (share + z * z / (2 * count)) / scale
    half = z * math.sqrt(share * (1.0 - share) / count + z * z / (4 * count * count)) / scale
    low = 0.0 if share == 0.0 else max(0.0, min(share, centre - half))
    high = 1.0 if share == 1.0 else min(1.0, max(share, centre + half))
    return low, high


def difference_interval(a: tuple[float, float, float], b: tuple[float, float, float]) -> tuple[float, float]:
    """Return the interval of ``share_b - share_a`` of two independent samples (Newcombe 1998, method 10).

    It is composed of the Wilson intervals of both shares, and has their confidence.

    Args:
        a: share, low and high end of its interval; 0 <= low <= share <= high <= 1.
        b: the same of the other.

    Raises:
        ValueError: when they are not in that order.
    """
    for name, (share, low, high) in (("a", a), ("b", b)):
        if not 0.0 <= low <= share <= high <= 1.0:
            raise ValueError(f"{name} {(share, low, high)} is not allowed (expected 0 <= low <= share <= high <= 1)")
    (share_a, low_a, high_a), (share_b, low_b, high_b) = a, b
    difference = share_b - share_a
    below = math.hypot(share_b - low_b, high_a - share_a)
    above = math.hypot(high_b - share_b, share_a - low_a)
    return max(-1.0, difference - below), min(1.0, difference + above)


def share_noise(a: tuple[float, float], b: tuple[float, float], *, chance: float = 0.05) -> float:
    """Return the difference of two shares that chance explains.

    It is the half of `difference_interval`, at a confidence of ``1 - chance``, on the side of no difference.

    Args:
        a: share, and how many independent trials it is worth.
        b: the same of the other.
        chance: above 0 and below 1.

    Raises:
        ValueError: for a number that is not allowed.
    """
    lower, upper = sorted((a, b))
    _, top = share_interval(*lower, confidence=1.0 - chance)
    bottom, _ = share_interval(*upper, confidence=1.0 - chance)
    return math.hypot(upper[0] - bottom, top - lower[0])


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


def mcnemar_exact(outcomes: Sequence[tuple[bool, bool]]) -> PairedTest:
    """Test whether two runs succeed equally often in the same situations (McNemar 1947, exact by the binomial).

    Only pairs that differ count: if both runs are equally good, each is equally likely to be the one that succeeds.

    Args:
        outcomes: success in run A, and in run B, of each pair.
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
        p_value=float(stats.binomtest(only_a, differ).pvalue) if differ else 1.0,
    )


# --------------------------------------------------------------------------------------------- means and medians


def student_quantile(degrees: int, confidence: float = CONFIDENCE) -> float:
    """Return t with P(|T| <= t) = `confidence` for Student's T of `degrees` >= 1 degrees of freedom."""
    return float(stats.t.ppf(0.5 + confidence / 2, degrees))


def median_interval(values: FloatArray, confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """Return the median of `values`, shape (n,) in order of time, and its interval by order statistics.

    Consecutive values are correlated, so they count as `median_effective_count` of them. With too few values for an
    interval it reaches from the least to the greatest.
    """
    ordered = np.sort(values)
    n = len(ordered)
    half = NormalDist().inv_cdf(0.5 + confidence / 2) * 0.5 / math.sqrt(median_effective_count(values))
    low, high = math.floor(n * (0.5 - half)) - 1, math.ceil(n * (0.5 + half))
    return float(np.median(ordered)), float(ordered[max(0, low)]), float(ordered[min(n - 1, high)])


def median_effective_count(values: FloatArray) -> float:
    """Return how many independent values determine the median as well as these, shape (n,) in order of time.

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
    """Return how many independent values `count` consecutive values are worth, from their lag-1 correlation.

    ``count (1 - r) / (1 + r)``: exact for the mean of a long first-order autoregression (Bartlett 1935; Thiebaux and
    Zwiers 1984), a rule of thumb for others. A negative correlation counts as none, so it is never more than `count`.

    Args:
        count: 1 or more.
        lag1: the correlation of each value with the next, -1 to 1.
        least: lower bound, e.g. the number of independent stretches.

    Raises:
        ValueError: for a number that is not allowed.
    """
    _check_count("count", count)
    if not -1.0 <= lag1 <= 1.0:
        raise ValueError(f"lag1 {lag1} is not allowed (expected -1 to 1)")
    correlation = max(0.0, lag1)
    worth = count * (1.0 - correlation) / (1.0 + correlation)
    return min(float(count), max(worth, float(least), 1.0))


# -------------------------------------------------------------------------------------------- quantiles of a stream

_ERROR = 0.005
"""Relative error of a percentile."""

_BASE = (1 + _ERROR) / (1 - _ERROR)
_LOG_BASE = math.log(_BASE)
_SMALLEST = 1e-12  # smaller absolute values count as zero


@dataclass(frozen=True, kw_only=True)
class Percentiles:
    """Percentiles and extremes of a stream of `count` numbers; percentiles within half a percent of their value."""

    count: int
    p50: float
    p95: float
    p99: float
    least: float
    most: float


class QuantileSketch:
    """Counts numbers in buckets whose width grows with the number (DDSketch, Masson et al. 2019): any sign, no NaN.

    From a picosecond to a day there are about 3 900 buckets of each sign, which bounds its size.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.count = 0
        self._positive: Counter[int] = Counter()
        self._negative: Counter[int] = Counter()
        self._zeros = 0
        self._least, self._most = math.inf, -math.inf

    def add(self, value: float) -> None:
        """Add one finite number."""
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
        """Return the number of rank `share` (0 to 1); NaN when there was none."""
        if not self.count:
            return math.nan
        rank, upto = share * (self.count - 1), 0
        for value, count in self._buckets():
            upto += count
            if upto > rank:
                return min(max(value, self._least), self._most)
        return self._most

    def percentiles(self) -> Percentiles:
        """Return percentiles and extremes; NaN, and infinities, when there was no number."""
        p50, p95, p99 = (self.quantile(share) for share in (0.5, 0.95, 0.99))
        return Percentiles(count=self.count, p50=p50, p95=p95, p99=p99, least=self._least, most=self._most)

    def _buckets(self) -> list[tuple[float, int]]:
        """Return the value of each bucket in ascending order, with its count."""
        cells = [(-_middle(index), self._negative[index]) for index in sorted(self._negative, reverse=True)]
        cells += [(0.0, self._zeros)] if self._zeros else []
        return cells + [(_middle(index), self._positive[index]) for index in sorted(self._positive)]


def _middle(index: int) -> float:
    """Return the number with the same relative distance to both ends of its bucket."""
    return 2.0 * _BASE**index / (_BASE + 1.0)


def _check_count(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} {value} is not allowed (expected a finite number above 0)")


def _check_probability(name: str, value: float) -> None:
    if not 0.0 < value < 1.0:
        raise ValueError(f"{name} {value} is not allowed (expected above 0 and below 1)")
