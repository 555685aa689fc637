"""How late readings are: what stamps show, and what only the motion shows.

A stamp may be that of a publication, and hide what was before it. A sensor that moves with the joints is then late
against them: the delay is searched at which its fields follow the joints' motion best.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from embodied_env.latency.intervals import CONFIDENCE, median_interval, student_quantile
from embodied_env.latency.profile import Estimate
from embodied_env.latency.response import Move, peak
from embodied_env.transition import FloatArray

_LEAST_EXPLAINED = 0.5  # of what a field does; less may be chance
_LEAST_READINGS = 8  # of a sensor during a move
_LEAST_MOVES = 4
_MOST_FIELDS = 8  # those that follow the joints best
_COARSE_S = 0.004
_FINE_S = 0.0005
_EARLY_S = 0.1  # a sensor may be that much ahead of the joints


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a sensor said during a move: when by its own stamps, shape (m,), and what, shape (m, n_values)."""

    stamped_s: FloatArray
    values: FloatArray


@dataclass(frozen=True, kw_only=True)
class Behind:
    """How much later than the joints a sensor is; the half width is that of the interval of confidence."""

    delay_s: float
    half_s: float
    correlation: float
    moves: int


def lateness(samples_s: FloatArray) -> Estimate:
    """Return the estimate of a stage whose single measurements are `samples_s`, shape (n,), in order of time."""
    value_s, low_s, high_s = median_interval(samples_s)
    p95_s = float(np.percentile(samples_s, 95.0))
    return Estimate(
        value_s=value_s,
        low_s=low_s,
        high_s=high_s,
        method="stamp",
        n=len(samples_s),
        detail=f"median; 95 % of the readings within {p95_s:.4f} s",
        samples_s=tuple(samples_s.tolist()),
    )


def behind(moves: Sequence[Move], seen: Sequence[Seen], longest_s: float, *, integrated: bool) -> Behind | str:
    """Return how much later than the readings of `moves` those in `seen` are, move by move, or why it is not known.

    Args:
        moves: the joints' motion.
        seen: what the sensor said during each of them.
        longest_s: the greatest delay that is looked for.
        integrated: whether fields may also follow the integral of the motion (what is measured is a velocity).
    """
    pairs = [(move, each) for move, each in zip(moves, seen, strict=True) if len(each.stamped_s) >= _LEAST_READINGS]
    if len(pairs) < _LEAST_MOVES:
        return f"too few readings while the joints moved: {len(pairs)} moves with {_LEAST_READINGS} or more"
    courses = [False, True] if integrated else [False]
    delays = np.arange(-_EARLY_S, longest_s, _COARSE_S)
    best: tuple[float, FloatArray, FloatArray, bool] | None = None
    for is_integral in courses:
        left, whole = _left_over(pairs, delays, is_integral)
        explained = 1.0 - left.sum(axis=0).min() / max(1e-300, float(whole.sum()))
        if best is None or explained > best[0]:
            best = explained, left, whole, is_integral
    assert best is not None  # noqa: S101 - there is at least one course
    explained, left, whole, is_integral = best
    if not whole.any():
        return "nothing in it moves"
    if explained < _LEAST_EXPLAINED:
        return f"nothing in it moves with the joints: at most {100 * max(0.0, explained):.0f} % of what it does"
    at_s = float(delays[left.sum(axis=0).argmin()])
    fine = at_s + np.arange(-2 * _COARSE_S, 2 * _COARSE_S + _FINE_S / 2, _FINE_S)
    left, whole = _left_over(pairs, fine, is_integral)
    score = -left.sum(axis=0)
    delay_s = peak(fine, score, int(score.argmax()))
    alone = [peak(fine, score + part, int((score + part).argmax())) for part in left]  # without each move
    n = len(alone)
    spread_s = math.sqrt((n - 1) / n * float(((np.array(alone) - np.mean(alone)) ** 2).sum()))
    half_s = max(student_quantile(n - 1) * spread_s, _FINE_S)
    correlation = math.sqrt(max(0.0, 1.0 - float(left.sum(axis=0).min()) / max(1e-300, float(whole.sum()))))
    return Behind(delay_s=delay_s, half_s=half_s, correlation=correlation, moves=n)


def captured(stamps: Estimate | None, found: Behind | str, *, is_stamped: bool) -> Estimate | str:
    """Put together what stamps and motion say of a sensor, or say why nothing is known.

    Args:
        stamps: by the stamps of its messages, if they have any.
        found: by its motion.
        is_stamped: whether its messages carry a time of acquisition at all, be it true or not.
    """
    if stamps is None:
        return "no stamps, and " + found if isinstance(found, str) else "no stamps"
    if isinstance(found, str):
        if not is_stamped:
            return f"its messages carry no time of acquisition, and {found}"
        detail = f"{stamps.detail}; lateness before the stamp is not identifiable: {found}"
        return _changed(stamps, 0.0, 0.0, "stamp", detail)
    text = f"{found.delay_s * 1e3:.1f} +- {found.half_s * 1e3:.1f} ms behind the joints' stamps"
    text += f", correlation {found.correlation:.3f}"
    if is_stamped and found.delay_s - found.half_s <= _COARSE_S / 2:
        return _changed(stamps, 0.0, 0.0, "stamp", f"{stamps.detail}; {text}")
    method = "stamp+xcorr" if is_stamped else "xcorr"
    return _changed(stamps, found.delay_s, found.half_s, method, f"{stamps.detail}; {text}")


def _changed(stamps: Estimate, delay_s: float, half_s: float, method: str, detail: str) -> Estimate:
    low_s = math.hypot(stamps.value_s - stamps.low_s, half_s)
    high_s = math.hypot(stamps.high_s - stamps.value_s, half_s)
    value_s = stamps.value_s + delay_s
    return Estimate(
        value_s=value_s,
        low_s=value_s - low_s,
        high_s=value_s + high_s,
        method=method,
        n=stamps.n,
        confidence=CONFIDENCE,
        detail=detail,
        samples_s=tuple(sample_s + delay_s for sample_s in stamps.samples_s),
    )


def _left_over(
    pairs: Sequence[tuple[Move, Seen]],
    delays: FloatArray,
    is_integral: bool,  # noqa: FBT001 - private
) -> tuple[FloatArray, FloatArray]:
    """Return what the motion does not explain, shape (n_moves, n_delays), and what there is, shape (n_moves,).

    Each field is explained by a constant, the motion and its square, each move for itself: a camera or a tool point
    follows a joint nearly linearly as long as it moves little.
    """
    left, whole = np.zeros((len(pairs), len(delays))), np.zeros(len(pairs))
    for i, (move, seen) in enumerate(pairs):
        motion = move.readings - move.readings.mean()
        if is_integral:
            steps = np.diff(move.read_s) * (motion[1:] + motion[:-1]) / 2.0
            motion = np.concatenate([[0.0], np.cumsum(steps)])
        motion /= max(1e-300, float(np.abs(motion).max()))
        # the same readings for every delay, and only those whose motion is known
        inside = (seen.stamped_s - delays[-1] >= move.read_s[0]) & (seen.stamped_s - delays[0] <= move.read_s[-1])
        values = seen.values[inside]
        if len(values) < _LEAST_READINGS:
            continue
        values = _following(values - values.mean(axis=0))
        if not values.size:
            continue
        whole[i] = float((values**2).sum())
        drift = [seen.stamped_s[inside]] if is_integral else []  # an integral of what is not quite zero at rest
        for k, delay_s in enumerate(delays):
            x = np.interp(seen.stamped_s[inside] - delay_s, move.read_s, motion)
            terms = np.stack([np.ones_like(x), x, x * x, *drift], axis=1)
            rest = values - terms @ np.linalg.lstsq(terms, values, rcond=None)[0]
            left[i, k] = float((rest**2).sum())
    return left, whole


def _following(values: FloatArray) -> FloatArray:
    """Return the fields that change most, each of unit size; none of those that do not change."""
    sizes = np.sqrt((values**2).sum(axis=0))
    chosen = np.argsort(sizes)[::-1][:_MOST_FIELDS]
    chosen = chosen[sizes[chosen] > max(1e-9, 0.05 * float(sizes.max(initial=0.0)))]
    following: FloatArray = values[:, chosen]
    return following / max(1e-300, float(sizes.max(initial=0.0)))
