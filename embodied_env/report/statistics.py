"""Intervals of confidence, as pure functions."""

from __future__ import annotations

import math
from statistics import NormalDist


def wilson_interval(successes: int, trials: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Return the score interval of a share (Wilson 1927): low and high, both in [0, 1].

    ``(p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n)``. Unlike the normal approximation it holds at few trials and
    at shares of 0 and 1.

    Args:
        successes: from 0 to `trials`.
        trials: 1 or more.
        confidence: of the interval, above 0 and below 1.

    Raises:
        ValueError: for counts or a confidence that are not allowed.
    """
    if trials < 1:
        raise ValueError(f"trials is {trials}; allowed: 1 or more, since no trial says nothing of a share")
    if not 0 <= successes <= trials:
        raise ValueError(f"successes is {successes}; allowed: 0 to {trials}, the trials")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence is {confidence}; allowed: above 0 and below 1")
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share, z2 = successes / trials, z * z
    scale = 1.0 + z2 / trials
    centre = (share + z2 / (2 * trials)) / scale
    half = z * math.sqrt(share * (1.0 - share) / trials + z2 / (4 * trials * trials)) / scale
    low = 0.0 if successes == 0 else max(0.0, min(share, centre - half))
    high = 1.0 if successes == trials else min(1.0, max(share, centre + half))
    return low, high
