"""Measure the age of sensor readings from their stamps and from the motion that they show.

A stamp may be taken at publication, which hides the time before it. A sensor that moves with the joints then lags
behind them: its delay is the one at which its fields best follow the motion of the joints.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import scipy

from embodied_env.core.actuator_response import Move, peak
from embodied_env.core.confidence_intervals import CONFIDENCE, median_estimate
from embodied_env.core.types import FloatArray
from embodied_env.timing.latency_profile import Estimate

_LEAST_EXPLAINED = 0.8  # of the changes of a field, since less may be chance
_QUANTILE = 0.25  # of the explained shares: three of four fields are explained at least as well
_LEAST_READINGS = 8  # of a sensor during a move
_LEAST_MOVES = 4
_LEAST_GROUPS = 3  # joints, or else moves, that the interval is made of
_MOST_FIELDS = 8  # those that change most
_STILL = 1e-12  # sum of squares of a field that does not move
_TRUSTED_S = 0.002  # stamps that are not shown to be later than this are trusted
_EXACT = 1e-9  # least share that is not explained
_STAMP_ERROR_S = 5e-4
_COARSE_S, _FINE_S = 0.004, 0.0005
_EARLY_S = 0.1  # greatest time that a sensor may be ahead of the joints


@dataclass(frozen=True, kw_only=True)
class MoveSamples:
    """Readings of a sensor in a move, with stamps (m,) and values (m, n_values)."""

    stamped_s: FloatArray
    values: FloatArray


@dataclass(frozen=True, kw_only=True)
class SensorLag:
    """Delay of a sensor relative to the joints, with half the width of its interval."""

    delay_s: float
    half_s: float
    correlation: float
    moves: int


def stamp_latency(samples_s: FloatArray) -> Estimate:
    """Return the estimate of a stage from its measurements, shape (n,), in order of time."""
    detail = f"median; 95 % of the readings within {np.percentile(samples_s, 95.0):.4f} s"
    return median_estimate(samples_s, method="stamp", detail=detail)


def estimate_lag(
    moves: Sequence[Move], seen: Sequence[MoveSamples], longest_s: float, *, integrated: bool
) -> SensorLag | str:
    """Return a sensor's delay relative to the joints, or why it is not known.

    The delay is at most `longest_s`. `seen` has its readings during each of `moves`. With `integrated`, fields may also
    follow the integral of the motion, which is then a velocity.
    """
    pairs = [(move, each) for move, each in zip(moves, seen, strict=True) if len(each.stamped_s) >= _LEAST_READINGS]
    if len(pairs) < _LEAST_MOVES:
        return f"too few readings while the joints moved: {len(pairs)} moves with {_LEAST_READINGS} or more"
    delays = np.arange(-_EARLY_S, longest_s, _COARSE_S)
    fits = {
        is_integral: _fit(pairs, delays, is_integral=is_integral) for is_integral in (False, True)[: 1 + integrated]
    }
    is_integral, fit = max(fits.items(), key=lambda item: item[1].explained)
    if not fit.parts:
        return "none of its fields change"
    if fit.explained < _LEAST_EXPLAINED:
        return f"the joints explain at most {100 * max(0.0, fit.explained):.0f} % of its changes"
    fine = delays[fit.scores().sum(axis=0).argmax()] + np.arange(-2 * _COARSE_S, 2 * _COARSE_S + _FINE_S / 2, _FINE_S)
    fit = _fit(pairs, fine, is_integral=is_integral, only=fit.parts)
    if fit.explained < _LEAST_EXPLAINED:
        return "its changes have no delay that is common to all moves"
    groups = [pairs[i][0].joint for i, _ in fit.parts]
    if len(set(groups)) < _LEAST_GROUPS:  # few joints: jackknife over moves
        groups = [str(i) for i, _ in fit.parts]
    n = len(set(groups))
    if n < _LEAST_GROUPS:
        return f"it shows too few moves: {n}"
    scores = fit.scores()
    jackknife = []
    for group in dict.fromkeys(groups):
        others = scores[[each != group for each in groups]].sum(axis=0)
        jackknife.append(peak(fine, others, int(others.argmax())))
    spread_s = math.sqrt((n - 1) / n * float(((np.array(jackknife) - np.mean(jackknife)) ** 2).sum()))
    score = scores.sum(axis=0)
    return SensorLag(
        delay_s=peak(fine, score, int(score.argmax())),
        half_s=float(scipy.stats.t.ppf(0.5 + CONFIDENCE / 2, n - 1)) * spread_s + _STAMP_ERROR_S,
        correlation=math.sqrt(max(0.0, fit.explained)),
        moves=len({i for i, _ in fit.parts}),
    )


def combine_evidence(stamps: Estimate, lag: SensorLag | str, *, is_stamped: bool) -> Estimate | str:
    """Return the age by stamps (of acquisition if `is_stamped`) and motion, or why not known."""
    if isinstance(lag, str):
        if not is_stamped:
            return f"its messages have no acquisition stamp, and {lag}"
        return replace(stamps, detail=f"{stamps.detail}; delay before the stamp is not identifiable: {lag}")
    detail = f"{stamps.detail}; {lag.delay_s * 1e3:.1f} +- {lag.half_s * 1e3:.1f} ms behind the stamps of the joints"
    detail += f", correlation {lag.correlation:.3f}"
    if is_stamped and lag.delay_s - lag.half_s <= _TRUSTED_S:
        return replace(stamps, high_s=stamps.high_s + max(0.0, lag.delay_s + lag.half_s), detail=detail)
    value_s = stamps.value_s + lag.delay_s
    return replace(
        stamps,
        value_s=value_s,
        low_s=value_s - math.hypot(stamps.value_s - stamps.low_s, lag.half_s),
        high_s=value_s + math.hypot(stamps.high_s - stamps.value_s, lag.half_s),
        method="stamp+xcorr" if is_stamped else "xcorr",
        detail=detail,
        samples_s=tuple(sample_s + lag.delay_s for sample_s in stamps.samples_s),
    )


class _MotionFit(NamedTuple):
    """Fit of the fields of a sensor to the motion of the joints, for each delay.

    `parts`: (index of the move, field) of the fields that the motion explains, or of all if it explains none. `left`:
    share of their squares that is not explained, shape (n_parts, n_delays). `counts`: their readings, shape (n_parts,).
    """

    parts: list[tuple[int, int]]
    left: FloatArray
    counts: FloatArray
    explained: float

    def scores(self) -> FloatArray:
        """Return the log-likelihood of each part and delay for noise of unknown size."""
        return -self.counts[:, np.newaxis] * np.log(self.left) / 2.0


def _fit(
    pairs: Sequence[tuple[Move, MoveSamples]],
    delays: FloatArray,
    *,
    is_integral: bool,
    only: Sequence[tuple[int, int]] = (),
) -> _MotionFit:
    """Fit the motion to each moving field, or to those in `only` with one common delay."""
    parts, left, counts = [], [], []
    for i, (move, seen) in enumerate(pairs):
        count, unexplained = _unexplained_shares(move, seen, delays, is_integral=is_integral)
        for field, shares in enumerate(unexplained):
            if not only or (i, field) in only:
                parts.append((i, field))
                left.append(shares)
                counts.append(float(count))
    if not parts:
        return _MotionFit([], np.zeros((0, len(delays))), np.zeros(0), 0.0)
    fit = _MotionFit(parts, np.maximum(np.array(left), _EXACT), np.array(counts), 0.0)
    if only:
        explained = 1.0 - np.array(left)[:, fit.scores().sum(axis=0).argmax()]
    else:
        explained = 1.0 - np.array(left).min(axis=1)  # each field at its own delay
        if explained.max() >= _LEAST_EXPLAINED:
            kept = np.flatnonzero(explained >= _LEAST_EXPLAINED)
            explained = explained[kept]
            fit = _MotionFit([parts[k] for k in kept], fit.left[kept], fit.counts[kept], 0.0)
    return fit._replace(explained=float(np.quantile(explained, _QUANTILE)))


def _unexplained_shares(
    move: Move, seen: MoveSamples, delays: FloatArray, *, is_integral: bool
) -> tuple[int, FloatArray]:
    """Return the number of readings, and each field's share not explained by the motion.

    The shares have shape (n_fields, n_delays). The model is linear and quadratic, since a field depends smoothly on a
    joint that moves little.
    """
    motion = move.readings - move.readings.mean()
    if is_integral:
        steps = np.diff(move.read_s) * (motion[1:] + motion[:-1]) / 2.0
        motion = np.concatenate([[0.0], np.cumsum(steps)])
    motion /= max(1e-300, float(np.abs(motion).max()))
    # the same readings for every delay, and only those whose motion is known
    inside = (seen.stamped_s - delays[-1] >= move.read_s[0]) & (seen.stamped_s - delays[0] <= move.read_s[-1])
    stamped_s, values = seen.stamped_s[inside], seen.values[inside]
    if len(values) < _LEAST_READINGS:
        return 0, np.zeros((0, len(delays)))
    values = values - values.mean(axis=0)
    sizes = (values**2).sum(axis=0)
    chosen = np.argsort(sizes)[::-1][:_MOST_FIELDS]
    values = values[:, chosen[sizes[chosen] > _STILL]]
    whole, left = (values**2).sum(axis=0), np.zeros((values.shape[1], len(delays)))
    drift = [stamped_s] if is_integral else []  # an integral of what is not quite zero at rest
    for k, delay_s in enumerate(delays):
        x = np.interp(stamped_s - delay_s, move.read_s, motion)
        terms = np.stack([np.ones_like(x), x, x * x, *drift], axis=1)
        rest = values - terms @ np.linalg.lstsq(terms, values, rcond=None)[0]
        left[:, k] = (rest**2).sum(axis=0) / whole
    return len(values), left
