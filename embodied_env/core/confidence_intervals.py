"""Confidence intervals of shares (Wilson), their differences (Newcombe), and medians."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from embodied_env.core.types import FloatArray
from embodied_env.timing.latency_profile import Estimate

CONFIDENCE = 0.95


def share_interval(share: float, count: float, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the low and high end in [0, 1] of the score interval of a share (Wilson 1927).

    ``(p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n)``. Unlike the normal approximation it holds for few trials
    and for shares of 0 and 1. `scipy.stats` has it for whole numbers of trials only. `count` may be a number of trials
    that correlated ones are worth, above 0.
    """
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    scale = 1.0 + z * z / count
    centre = (share + z * z / (2 * count)) / scale
    half = z * math.sqrt(share * (1.0 - share) / count + z * z / (4 * count * count)) / scale
    low = 0.0 if share == 0.0 else max(0.0, min(share, centre - half))
    high = 1.0 if share == 1.0 else min(1.0, max(share, centre + half))
    return low, high


def difference_interval(a: tuple[float, float, float], b: tuple[float, float, float]) -> tuple[float, float]:
    """Return the interval of ``share_b - share_a`` of two independent samples.

    This is method 10 of Newcombe (1998). It combines the Wilson intervals of both shares, and has their confidence.
    Each argument has the share, and the low and high end of its interval.
    """
    (share_a, low_a, high_a), (share_b, low_b, high_b) = a, b
    difference = share_b - share_a
    below = math.hypot(share_b - low_b, high_a - share_a)
    above = math.hypot(high_b - share_b, share_a - low_a)
    return max(-1.0, difference - below), min(1.0, difference + above)


def median_estimate(samples_s: FloatArray, *, method: str, detail: str) -> Estimate:
    """Return the median of durations (n,) in order of time, as an estimate.

    The interval is that of order statistics at 95 %. Successive values are correlated, so they count as
    `median_effective_count` independent ones. With fewer than six of them it reaches from the least to the greatest
    value, which covers the median with probability ``1 - 0.5**(count - 1)`` only. The detail then has that figure.
    """
    ordered = np.sort(samples_s)
    n = len(ordered)
    count = median_effective_count(samples_s)
    if (covered := 1.0 - 0.5 ** (count - 1.0)) < CONFIDENCE:
        detail += f"; of few independent values, so the interval covers about {100 * covered:.0f} %, not 95 %"
    half = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2) * 0.5 / math.sqrt(count)
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
    """Return how many independent values determine the median as well as `values`.

    The values have the shape (n,), in order of time. The count follows from the autocorrelation of being above the
    median, summed until it is first below 0.05.
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
