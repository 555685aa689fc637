"""Draws of the reset options: a pure function of the contract's options, the seed and the given values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from statistics import NormalDist

import numpy as np

from embodied_env.contract.contract_schema import FloatArray, ResetOption
from embodied_env.core.types import ResetReport, ResetRequest

_LEAST, _MOST = math.ulp(0.0), 1.0 - 2.0**-53  # a quantile is finite within these


def draw_options(
    options: Mapping[str, ResetOption],
    seed: int,
    given: Mapping[str, FloatArray],
    rng: np.random.Generator | None = None,
) -> dict[str, FloatArray]:
    """Return the value of each reset option: the `given` one, otherwise one drawn by `seed`.

    Every option is drawn, so that setting one does not shift another. Uniform options share `rng` in the order of their
    names (None: a new one of the seed); each other option has a generator of the seed and its name.
    """
    shared = np.random.default_rng(seed) if rng is None else rng
    values = {}
    for name, option in sorted(options.items()):
        is_uniform = option.distribution == "uniform"
        own = shared if is_uniform else np.random.default_rng([seed, *b"reset_options.", *name.encode()])
        drawn = np.asarray(_draw(option, own))
        values[name] = np.array(given.get(name, drawn), dtype=np.float64)
        values[name].flags.writeable = False  # tasks see it before the record does
    return values


def with_observed_options(
    report: ResetReport, options: Mapping[str, ResetOption], request: ResetRequest
) -> ResetReport:
    """Return a backend's report with the observed options that have no effect in its world, drawn here."""
    missing = [name for name, option in options.items() if option.observed and name not in report.sampled]
    if not missing:
        return report
    values = draw_options(options, request.seed, request.options)
    sampled = {**report.sampled, **{name: values[name] for name in missing}}
    return replace(report, sampled=sampled, ignored=tuple(name for name in report.ignored if name not in missing))


def _draw(option: ResetOption, rng: np.random.Generator) -> FloatArray | float:
    if option.values is not None:
        return np.array(option.values[int(rng.integers(len(option.values)))])
    low, high = option.low_array, option.high_array
    if option.distribution == "log_uniform":
        return np.clip(np.exp(rng.uniform(np.log(low), np.log(high))), low, high)
    if option.distribution == "normal":
        columns = np.broadcast_arrays(rng.random(low.shape), np.array(option.mean), np.array(option.std), low, high)
        drawn = [
            _truncated_normal(*each) for each in zip(*(column.ravel().tolist() for column in columns), strict=True)
        ]
        return np.reshape(drawn, low.shape)
    return rng.uniform(low, high)


def _truncated_normal(share: float, mean: float, std: float, low: float, high: float) -> float:
    """Return the quantile of a truncated normal distribution: one draw of `share` in [0, 1), without rejection."""
    normal = NormalDist(mean, std)
    below = normal.cdf(low)
    quantile = below + share * (normal.cdf(high) - below)
    return min(max(normal.inv_cdf(min(max(quantile, _LEAST), _MOST)), low), high)
