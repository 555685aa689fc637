"""Intervals of confidence, as pure functions."""

from __future__ import annotations

from embodied_env.latency.distances import wilson_interval as share_interval


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
    return share_interval(successes / trials, trials, confidence=confidence)
