"""Tests of differences between two samples, and the sample sizes that they need."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from embodied_env.core.confidence_intervals import CONFIDENCE, share_interval
from embodied_env.core.types import FloatArray
from embodied_env.errors import MissingDependencyError

try:
    import scipy  # loads stats when it is first used, which takes half a second
except ImportError:
    raise MissingDependencyError("scipy", needed_for="this statistical analysis") from None

POWER = 0.8  # probability of finding a difference, for the sizes of samples


@dataclass(frozen=True, kw_only=True)
class PairedTest:
    """McNemar's exact test, two-sided, with the counts of pairs in which only one succeeded."""

    pairs: int
    both: int
    only_a: int
    only_b: int
    neither: int
    p_value: float


def mcnemar_exact(outcomes: Sequence[tuple[bool, bool]]) -> PairedTest:
    """Test whether two runs succeed equally often from equal initial conditions.

    This is the exact binomial test of McNemar (1947). Only pairs that differ count: for equal runs each is equally
    likely to be the one that succeeds. `outcomes` has the success in run A and in run B of each pair.
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
    """Return the interval of ``share_b - share_a`` over one or more pairs.

    This is method 10 for paired data of Newcombe (1998). As `difference_interval`, with the correlation phi of both
    shares, whose numerator has the correction ``n / 2``.
    """
    a, b = (test.both + test.only_a) / test.pairs, (test.both + test.only_b) / test.pairs
    (low_a, high_a), (low_b, high_b) = share_interval(a, test.pairs), share_interval(b, test.pairs)
    product = test.both * test.neither - test.only_a * test.only_b
    spread = test.pairs * test.pairs * math.sqrt(a * (1.0 - a) * b * (1.0 - b))
    phi = (max(product - test.pairs / 2, 0.0) if product > 0 else product) / spread if spread else 0.0

    def distance(of_a: float, of_b: float) -> float:
        return math.sqrt(max(0.0, of_a * of_a - 2.0 * phi * of_a * of_b + of_b * of_b))

    return max(-1.0, b - a - distance(high_a - a, b - low_b)), min(1.0, b - a + distance(a - low_a, high_b - b))


def fisher_exact(a: tuple[int, int], b: tuple[int, int]) -> float:
    """Return the two-sided p-value of equal shares of (successes, trials) (Fisher 1922)."""
    table = [(successes, trials - successes) for successes, trials in (a, b)]
    return float(scipy.stats.fisher_exact(table).pvalue)


@dataclass(frozen=True, kw_only=True)
class MeanTest:
    """Difference ``mean_b - mean_a`` of two samples, and Student's t-test that it is 0."""

    difference: float
    interval: tuple[float, float] | None  # at 95 %; None with fewer than two values
    p_value: float | None  # two-sided; None with fewer than three values, too few for an estimate of the spread
    spread: float  # standard deviation of a difference of two values; NaN with fewer than two values


def compare_means(a: FloatArray, b: FloatArray, *, paired: bool) -> MeanTest:
    """Compare the means of samples without NaN, paired or by unequal variances (Welch 1947)."""
    difference = float(np.mean(b) - np.mean(a))
    fewest = min(len(a), len(b))
    if fewest < 2:
        return MeanTest(difference=difference, interval=None, p_value=None, spread=math.nan)
    if paired:
        spread = float(np.std(b - a, ddof=1))
        error, freedom = spread / math.sqrt(fewest), fewest - 1.0
    else:
        of_a, of_b = (float(np.var(values, ddof=1)) / len(values) for values in (a, b))
        spread, error = math.sqrt(of_a * len(a) + of_b * len(b)), math.sqrt(of_a + of_b)
        by_sample = of_a * of_a / (len(a) - 1) + of_b * of_b / (len(b) - 1)
        freedom = (of_a + of_b) ** 2 / by_sample if by_sample > 0.0 else fewest - 1.0
    half = float(scipy.stats.t.ppf(0.5 + CONFIDENCE / 2, freedom)) * error
    if error > 0.0:
        p_value = 2.0 * float(scipy.stats.t.sf(abs(difference) / error, freedom))
    else:
        p_value = float(difference == 0.0)
    return MeanTest(
        difference=difference,
        interval=(difference - half, difference + half),
        p_value=p_value if fewest > 2 else None,
        spread=spread,
    )


def reject_by_holm(p_values: Sequence[float | None], *, chance: float) -> list[bool]:
    """Return which hypotheses are rejected (Holm 1979).

    The probability of rejecting any true one is `chance`. A p-value of None is a hypothesis without a test, which
    counts as one.
    """
    order = sorted(range(len(p_values)), key=lambda index: math.inf if (p := p_values[index]) is None else p)
    rejected = [False] * len(p_values)
    for place, index in enumerate(order):
        p_value = p_values[index]
        if p_value is None or p_value > chance / (len(order) - place):
            break
        rejected[index] = True
    return rejected


def count_for_mean(spread: float, difference: float, *, paired: bool, chance: float) -> int:
    """Return how many pairs, or values of each sample, show a difference of the means.

    They do so with probability `POWER`. ``n = ((z_a + z_b) spread / difference)^2 + z_a^2 / 2`` pairs, where ``z_a``
    and ``z_b`` are the normal quantiles of ``1 - chance / 2`` and `POWER`; ``z_a^2 / 4`` for independent samples
    (Guenther 1981, who corrects the normal approximation for Student's t).
    """
    z = _quantiles(chance)
    return max(3, math.ceil((sum(z) * spread / difference) ** 2 + z[0] ** 2 / (2 if paired else 4)))


def count_for_shares(a: float, b: float, *, chance: float) -> int:
    """Return how many trials of each sample show that two shares differ.

    They do so with probability `POWER`. ``(z_a sqrt(2 m (1-m)) + z_b sqrt(a (1-a) + b (1-b)))^2 / (b-a)^2`` with the
    mean ``m``, and the correction for continuity (Fleiss, Levin & Paik 2003, chapter 4).
    """
    z, mean, distance = _quantiles(chance), (a + b) / 2, abs(b - a)
    root = z[0] * math.sqrt(2 * mean * (1 - mean)) + z[1] * math.sqrt(a * (1 - a) + b * (1 - b))
    return _corrected((root / distance) ** 2, distance)


def count_for_pairs(differing: float, distance: float, *, chance: float) -> int:
    """Return how many pairs show that two shares differ by `distance` (Connor 1987).

    They do so with probability `POWER`. ``(z_a sqrt(d) + z_b sqrt(d - distance^2))^2 / distance^2``, where ``d``, at
    least `distance`, is the share of the pairs in which only one succeeds; with the correction for continuity of
    `count_for_shares`.
    """
    z, differing = _quantiles(chance), max(differing, distance)
    root = z[0] * math.sqrt(differing) + z[1] * math.sqrt(max(0.0, differing - distance**2))
    return _corrected((root / distance) ** 2, distance)


def _corrected(count: float, distance: float) -> int:
    return math.ceil(count / 4 * (1 + math.sqrt(1 + 4 / (count * distance))) ** 2 - 1e-9)


def _quantiles(chance: float) -> tuple[float, float]:
    return NormalDist().inv_cdf(1 - chance / 2), NormalDist().inv_cdf(POWER)
