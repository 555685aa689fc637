"""Intervals of confidence: of a median, of a mean of groups, of parameters that were fitted to groups.

What is measured one after the other is alike, so that n readings say less than n independent ones. So groups are
counted that are far enough apart, not readings.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from embodied_env.transition import FloatArray

CONFIDENCE = 0.95

_LEAST_GROUPS = 3


def student_quantile(degrees: int, confidence: float = CONFIDENCE) -> float:
    """Return t with P(|T| <= t) = `confidence` for Student's T of `degrees` >= 1 degrees of freedom.

    Exact for 1 and 2; above by the expansion in 1 / degrees of Abramowitz and Stegun 26.7.5, within 0.5 % from 3 on.
    """
    p = (1.0 + confidence) / 2.0
    if degrees == 1:
        return math.tan(math.pi * (p - 0.5))
    if degrees == 2:
        return (2.0 * p - 1.0) * math.sqrt(1.0 / (2.0 * p * (1.0 - p)))
    z, n = NormalDist().inv_cdf(p), float(degrees)
    terms = (
        (z**3 + z) / 4.0,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96.0,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384.0,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160.0,
    )
    return z + sum(term / n**power for power, term in enumerate(terms, start=1))


def effective_count(values: FloatArray) -> float:
    """Return how many independent values say as much of the median as these, which follow each other. Shape (n,).

    By the autocorrelation of being above the median, summed until it is first below 0.05.
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


def median_interval(values: FloatArray, confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """Return the median of `values`, shape (n,) in order of time, and its interval by order statistics.

    With too few values for an interval it is from the least to the greatest.
    """
    ordered = np.sort(values)
    n = len(ordered)
    half = NormalDist().inv_cdf((1.0 + confidence) / 2.0) * 0.5 / math.sqrt(effective_count(values))
    low, high = math.floor(n * (0.5 - half)) - 1, math.ceil(n * (0.5 + half))
    return float(np.median(ordered)), float(ordered[max(0, low)]), float(ordered[min(n - 1, high)])


def grouped_interval(
    jacobian: FloatArray, residuals: FloatArray, groups: NDArray[np.intp], weights: FloatArray
) -> tuple[float, FloatArray]:
    """Return the half width of the interval of ``weights @ parameters``, and what each group alone would change.

    The jackknife over groups, one linear step each: the parameters were fitted by least squares.

    Args:
        jacobian: of the model by its parameters, shape (n, n_parameters).
        residuals: measured less modelled, shape (n,).
        groups: which group each row belongs to, shape (n,).
        weights: shape (n_parameters,).

    Returns:
        The half width (infinite with fewer than three groups), and shape (n_groups,) how far the value would move
        without each group.
    """
    names = np.unique(groups)
    sizes = np.maximum(np.sqrt((jacobian**2).sum(axis=0)), 1e-300)
    jacobian, weights = jacobian / sizes, np.where(sizes > 1e-12 * sizes.max(), weights / sizes, 0.0)
    whole = jacobian.T @ jacobian
    moved = np.zeros(len(names))
    for i, name in enumerate(names):
        rows = groups == name
        part = jacobian[rows]
        change = np.linalg.lstsq(whole - part.T @ part, -(part.T @ residuals[rows]), rcond=1e-8)[0]
        moved[i] = float(weights @ change)
    n = len(names)
    if n < _LEAST_GROUPS:
        return math.inf, moved
    spread = math.sqrt((n - 1) / n * float(((moved - moved.mean()) ** 2).sum()))
    return student_quantile(n - 1) * spread, moved
