"""How late readings are: what stamps show, and what only the motion shows.

A stamp may be that of a publication, and hide what was before it. A sensor that moves with the joints is then late
against them: the delay is searched at which its fields follow the joints' motion best.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from embodied_env.analysis.calibration.actuator_response import Move, peak
from embodied_env.analysis.statistics import CONFIDENCE, median_interval, student_quantile
from embodied_env.core.latency.profile import Estimate
from embodied_env.core.types import FloatArray

_LEAST_EXPLAINED = 0.8  # of what a field does; less may be chance
_MOST = 0.25  # three of four parts are explained so well
_LEAST_READINGS = 8  # of a sensor during a move
_LEAST_MOVES = 4
_LEAST_JOINTS = _LEAST_GROUPS = 3
_MOST_FIELDS = 8  # those that change most
_STILL = 1e-12  # sum of squares of what does not move
_TOLD_S = 0.002  # a lateness that may be less is not told from none: the interval goes up to what it may be
_EXACT = 1e-9  # a share that is left of what is explained altogether
_STAMPS_S = 5e-4  # neither is known better
_COARSE_S = 0.004
_FINE_S = 0.0005
_EARLY_S = 0.1  # a sensor may be that much ahead of the joints


@dataclass(frozen=True, kw_only=True)
class MoveSamples:
    """What a sensor said during a move: when by its own stamps, shape (m,), and what, shape (m, n_values)."""

    stamped_s: FloatArray
    values: FloatArray


@dataclass(frozen=True, kw_only=True)
class SensorLag:
    """How much later than the joints a sensor is; the half width is that of the interval of confidence."""

    delay_s: float
    half_s: float
    correlation: float
    moves: int


def stamp_latency(samples_s: FloatArray) -> Estimate:
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


def estimate_lag(
    moves: Sequence[Move], seen: Sequence[MoveSamples], longest_s: float, *, integrated: bool
) -> SensorLag | str:
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
    alike = max((_likeness(pairs, delays, is_integral) for is_integral in courses), key=lambda each: each.explained)
    if not alike.parts:
        return "nothing in it moves"
    if alike.explained < _LEAST_EXPLAINED:
        return f"nothing in it moves with the joints: at most {100 * max(0.0, alike.explained):.0f} % of what it does"
    at_s = float(delays[alike.score().argmax()])
    fine = at_s + np.arange(-2 * _COARSE_S, 2 * _COARSE_S + _FINE_S / 2, _FINE_S)
    alike = _likeness(pairs, fine, alike.is_integral, only=alike.parts)
    if alike.explained < _LEAST_EXPLAINED:
        return "what moves in it does so with no delay that is common to all moves"
    score = alike.score()
    best = int(score.argmax())
    names = [pairs[i][0].joint for i, _ in alike.parts]
    if len(set(names)) < _LEAST_JOINTS:  # of one joint, moves are what differs
        names = [str(i) for i, _ in alike.parts]
    alone = [peak(fine, without, int(without.argmax())) for without in alike.scores_without(names)]
    n = len(alone)
    if n < _LEAST_GROUPS:
        return f"too few moves show in it: {n}"
    spread_s = math.sqrt((n - 1) / n * float(((np.array(alone) - np.mean(alone)) ** 2).sum()))
    return SensorLag(
        delay_s=peak(fine, score, best),
        half_s=student_quantile(n - 1) * spread_s + _STAMPS_S,
        correlation=math.sqrt(max(0.0, alike.explained)),
        moves=len({i for i, _ in alike.parts}),
    )


def combine_evidence(stamps: Estimate | None, found: SensorLag | str, *, is_stamped: bool) -> Estimate | str:
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
    if is_stamped and found.delay_s - found.half_s <= _TOLD_S:
        believed = _changed(stamps, 0.0, 0.0, "stamp", f"{stamps.detail}; {text}")
        return replace(believed, high_s=believed.high_s + max(0.0, found.delay_s + found.half_s))
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


@dataclass(frozen=True, kw_only=True)
class _Likeness:
    """How well fields follow the joints' motion, for each delay: by move and field, each with noise of its own.

    `parts`: (index of a move, field), those whose motion the joints explain for the most part, or all if none does.
    `left` of their squares, shape (n_parts, n_delays), is not explained. `counts`: of their readings, shape (n_parts,).
    """

    parts: list[tuple[int, int]]
    left: FloatArray
    counts: FloatArray
    explained: float
    is_integral: bool

    def score(self) -> FloatArray:
        """Return the logarithm of the likelihood of each delay: what is not explained is noise, of an unknown size."""
        return -(self.counts @ np.log(self.left)) / 2.0

    def scores_without(self, names: Sequence[str]) -> list[FloatArray]:
        """Return the score without the parts of each name."""
        own = -self.counts[:, np.newaxis] * np.log(self.left) / 2.0
        return [own[[other != name for other in names]].sum(axis=0) for name in dict.fromkeys(names)]


def _likeness(
    pairs: Sequence[tuple[Move, MoveSamples]],
    delays: FloatArray,
    is_integral: bool,  # noqa: FBT001 - of a pure function, by name at every call but one
    only: Sequence[tuple[int, int]] | None = None,
) -> _Likeness:
    parts, left, counts = [], [], []
    for i, (move, seen) in enumerate(pairs):
        values, rest = _left_over(move, seen, delays, is_integral=is_integral)
        for k in range(values.shape[1]):
            if only is None or (i, k) in only:
                parts.append((i, k))
                left.append(rest[k])
                counts.append(float(len(values)))
    if not parts:
        return _Likeness(parts=[], left=np.zeros((0, 0)), counts=np.zeros(0), explained=0.0, is_integral=is_integral)
    shares = np.array(left)
    explained = 1.0 - shares.min(axis=1)  # each at its own delay; of those that are given, at the one of all
    if only is not None:
        own = -(np.array(counts) @ np.log(np.maximum(shares, _EXACT)))
        explained = 1.0 - shares[:, int(own.argmax())]
    kept = np.flatnonzero((explained >= _LEAST_EXPLAINED) | (only is not None) | (explained.max() < _LEAST_EXPLAINED))
    return _Likeness(
        parts=[parts[k] for k in kept],
        left=np.maximum(shares[kept], _EXACT),
        counts=np.array(counts)[kept],
        explained=float(np.quantile(explained[kept], _MOST)),
        is_integral=is_integral,
    )


def _left_over(
    move: Move, seen: MoveSamples, delays: FloatArray, *, is_integral: bool
) -> tuple[FloatArray, FloatArray]:
    """Return the fields that move, and of each the share that the motion does not explain, shape (n_fields, n_delays).

    Linear and quadratic: a field depends smoothly on a joint that moves little.
    """
    motion = move.readings - move.readings.mean()
    if is_integral:
        steps = np.diff(move.read_s) * (motion[1:] + motion[:-1]) / 2.0
        motion = np.concatenate([[0.0], np.cumsum(steps)])
    motion /= max(1e-300, float(np.abs(motion).max()))
    # the same readings for every delay, and only those whose motion is known
    inside = (seen.stamped_s - delays[-1] >= move.read_s[0]) & (seen.stamped_s - delays[0] <= move.read_s[-1])
    values = seen.values[inside]
    values = values - values.mean(axis=0) if len(values) else values
    sizes = (values**2).sum(axis=0)
    chosen = np.argsort(sizes)[::-1][:_MOST_FIELDS]
    values = values[:, chosen[sizes[chosen] > _STILL]]
    if len(values) < _LEAST_READINGS or not values.size:
        return np.zeros((0, 0)), np.zeros((0, len(delays)))
    whole, left = (values**2).sum(axis=0), np.zeros((values.shape[1], len(delays)))
    drift = [seen.stamped_s[inside]] if is_integral else []  # an integral of what is not quite zero at rest
    for k, delay_s in enumerate(delays):
        x = np.interp(seen.stamped_s[inside] - delay_s, move.read_s, motion)
        terms = np.stack([np.ones_like(x), x, x * x, *drift], axis=1)
        rest = values - terms @ np.linalg.lstsq(terms, values, rcond=None)[0]
        left[:, k] = (rest**2).sum(axis=0) / whole
    return values, left
