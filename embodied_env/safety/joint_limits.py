"""Compute the exact interval of next velocities within all limits.

State (x, v): the last published position and velocity. With limits low <= x <= high, V- <= v <= V+ (V- <= 0 <= V+),
acceleration A, deceleration D and any step dt > 0, the admissible next velocities are one interval [lower, upper]::

    upper = min( V+,  faster(v),  braking(high - x) )         lower = max( V-, -faster(-v), -braking(x - low) )
    braking(gap) = the largest w with  w dt + w^2 / (2 D) <= gap
                 = 2 gap D / (D dt + sqrt((D dt)^2 + 2 D gap))
    faster(v)    = v + A dt                                         for v >= 0 (speeding up)
                 = min(v + D dt, max(0, v + min(A, D) dt))          for v < 0 (braking, then perhaps crossing zero)

From the safe set K = {low <= x <= high, V- <= v <= V+, x + v^2/(2 D) <= high if v > 0, mirrored if v < 0} the interval
is never empty and every choice leads back into K: for v >= D dt the braked velocity v - D dt satisfies the braking
bound, since x + (v - D dt) dt + (v - D dt)^2/(2 D) = x + v^2/(2 D) - D dt^2/2; for 0 <= v < D dt zero does; both are
within the reach of acceleration; all other pairs of bounds meet, and intervals of the line that meet pairwise meet
jointly. Since 0 and every velocity between v and 0 are within [V-, V+], braking never reverses a joint: one with V- = 0
(or V+ = 0) never moves back, and no target that would move it back is kept as a rounding error.
dt may differ at each step, since v^2/(2 D) bounds the stopping distance of any partition into steps.

After a gap in velocity commands the controller may have stopped the joint, so v is lowered before limits and braking
start from it (`lowered_velocity`). With p the last published velocity, the reference q is

- 0 if the controller's own timeout has passed: its command is 0, whatever was published before;
- otherwise, for p >= 0 (mirrored below), min(p, max(0, m + max(A, D) age)) with m the velocity measured `age` ago;
- 0 if the command had been unchanged for 3 periods when m was measured, and |m| <= min(D T, p / 2), T the control
  period: the joint does not follow the command, and one period of braking stops it;
- p if neither is known: nothing indicates that the command has ended.

So 0 <= q <= p: lowered, never raised, never through zero. Let u be the true velocity, |u - m| <= max(A, D) age. In the
second case q = p, or u <= q < p, or u <= 0 = q: q is at least as near to u as p is, and never slower than the joint, so
braking from q is never harder than D. In the third u = m is as near to 0 as to p, or nearer, and braking it takes at
most D. In the first and third a joint at rest has q = 0: braking publishes 0 and leaves it at rest. What is published
next is within [q - D dt, q + A dt], as from any other reference.

All of this holds at the time t of the computation, while the robot receives the command at the time w of the write. If
the process is suspended in between, the robot may come to rest. With h the interval of the command (the control period,
or that of setpoints), b and e the clock before and after the last write, the arbiter reads w and writes only if

    w - t <= h / 2,   and the gaps t - b and w - b are on the same side of 3 periods and of the controller's timeout.

Otherwise it brakes from the reference of a new t. The last message reached the robot at some m, b <= m <= e <= t.

- A joint that has stopped since m, because its servo has arrived or its controller's timeout has passed at w, has
  w - m beyond that bound, so w - b is, and t - b is: the reference was 0 already. It cannot be set in motion faster
  than A dt, and braking leaves it at rest. A stop without a declared timeout is measured up to the age of a reading
  plus h / 2 before w.
- The velocity changes from m to w by at most D dt or A dt with dt <= t - e <= w - m: never faster than the limits.
- If m < e, the joint may still be moving when w - b is beyond the bound and w - m is not; then the reference 0 stops it
  harder than D. So a write with e - b above a control period guarantees no acceleration, neither its own nor that of
  the next command. A message that leaves late in such a write is itself old: this is what a suspension inside of a
  write leaves. The controller's timeout ends it.

When limits are tightened in motion, (x, v) may be outside the new K. Until it is inside, the step keeps the new limits
widened to what full braking needs (`braking_bounds`): for v > 0 and w = max(0, v - D dt), V+ to w and high to
x + w dt + w^2/(2 D), never beyond the limits before; by the formula above that is within the old K. The interval of the
widened limits holds w, and nothing faster in the direction of motion: the joint brakes at D and no harder.

A goal of an action server is limited in position only. Its other limits are infinite, and its velocity counts as 0.

Joints do not interact. For fewer than about 16 of them a loop over plain floats is faster than arrays.
"""

from __future__ import annotations

# ruff: noqa: FURB136 - conditions are faster than min() and max(): this runs per joint and step
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import EffectiveLimits, FloatArray

_EPSILON = sys.float_info.epsilon
_INF = math.inf
_ROUNDING = 8.0 * _EPSILON  # relative to the largest position, including the map from an action and back
_JERK_ROUNDING = 1e-9  # relative rounding error of v + a dt


@dataclass(frozen=True, slots=True, kw_only=True)
class JointBounds:
    """Limits of one joint, in its unit, unit/s and unit/s^2.

    A continuous joint has low -inf and high +inf. `velocity_low` <= 0 <= `velocity_high`. `fastest` is the larger speed
    of both directions. `direction` is 1 or -1 for a joint that moves in one direction only, otherwise 0. `extent` is
    the largest absolute value of the finite position limits, 0 without any. With `is_goal` only the position is
    limited.
    """

    low: float
    high: float
    velocity_low: float
    velocity_high: float
    acceleration: float
    deceleration: float
    fastest: float = field(init=False)
    direction: float = field(init=False)
    extent: float = field(init=False)
    is_goal: bool = field(init=False)

    def __post_init__(self) -> None:
        """Compute the fields that follow from the others."""
        object.__setattr__(self, "fastest", max(-self.velocity_low, self.velocity_high))
        object.__setattr__(self, "direction", float(self.velocity_low == 0.0) - float(self.velocity_high == 0.0))
        object.__setattr__(self, "is_goal", math.isinf(self.velocity_high))
        extent = max((abs(end) for end in (self.low, self.high) if math.isfinite(end)), default=0.0)
        object.__setattr__(self, "extent", extent)


_Interval = tuple[float, float, tuple[float, float, float], tuple[float, float, float]]
"""Lower, upper, and the largest speeds ahead and behind, by the limits of `_CODES`."""

_CODES = "pos.limit", "vel.limit", "acc.limit"


def joint_bounds(limits: EffectiveLimits) -> list[JointBounds]:
    """Return the limits joint by joint, as plain floats."""
    return [
        JointBounds(
            low=low,
            high=high,
            velocity_low=velocity_low,
            velocity_high=velocity_high,
            acceleration=acceleration,
            deceleration=deceleration,
        )
        for low, high, velocity_low, velocity_high, acceleration, deceleration in zip(
            limits.position_low.tolist(),
            limits.position_high.tolist(),
            limits.velocity_low.tolist(),
            limits.velocity_high.tolist(),
            limits.acceleration.tolist(),
            limits.deceleration.tolist(),
            strict=True,
        )
    ]


def limit_joints(
    positions: Sequence[float],
    velocities: Sequence[float],
    bounds: Sequence[JointBounds],
    targets: Sequence[float],
    is_velocity: Sequence[bool],
    dt_s: float,
) -> tuple[list[float], list[float], dict[int, tuple[str, float]]]:
    """Return the admissible step nearest to finite `targets`, and what was limited.

    A target is a position, or where `is_velocity` a velocity; the position of such a joint is measured, and used only
    if it has position limits. What was limited: index -> code of the limit, and its value in the unit of the target; a
    joint that is not there keeps its target bit for bit. The code "limits.infeasible" means that no velocity is within
    every limit; the joint then brakes. `dt_s` > 0.
    """
    reached: list[float] = []
    chosen: list[float] = []
    limited: dict[int, tuple[str, float]] = {}
    intervals = velocity_intervals(positions, velocities, bounds, dt_s)
    rows = zip(positions, velocities, bounds, targets, is_velocity, intervals, strict=True)
    for x, v, b, target, by_velocity, interval in rows:
        w = target if by_velocity else (target - x) / dt_s
        y = x + w * dt_s if by_velocity else target
        is_inside = b.low <= x <= b.high and b.low <= y <= b.high
        if b.is_goal or not (is_inside and interval[0] <= w <= interval[1]):
            y, w, code, bound = _nearest_step(x, v, b, target, interval, dt_s, by_velocity=by_velocity)
            if code:
                limited[len(reached)] = code, bound
        reached.append(y)
        chosen.append(w)
    return reached, chosen, limited


def find_violation(  # noqa: C901, PLR0911, PLR0912 - one return per rule
    positions: Sequence[float],
    velocities: Sequence[float],
    bounds: Sequence[JointBounds],
    next_positions: Sequence[float],
    next_velocities: Sequence[float],
    dt_s: float,
) -> tuple[int, str] | None:
    """Return the first joint whose step violates a limit, with the limit, or None.

    This post-condition on published values is independent of `limit_joints`. It uses no interval, only that slowing
    down is limited by D and speeding up by A, and that the joint must be able to stop within its range. The tolerance
    is rounding plus 1e-9 of the larger velocity limit, but none for a joint against its only direction.
    """
    rows = zip(positions, velocities, bounds, next_positions, next_velocities, strict=True)
    for joint, (x, v, b, y, w) in enumerate(rows):
        if not (math.isfinite(y) and math.isfinite(w)):
            return joint, f"not finite: position {y}, velocity {w}"
        low, high = b.low, b.high
        if not low <= x <= high:
            low, high = min(low, x), max(high, x)
        if not low <= y <= high:
            return joint, f"position {y} outside [{b.low}, {b.high}]"
        if b.is_goal:
            continue
        acceleration, deceleration, extent = b.acceleration, b.deceleration, b.extent
        if not (-extent <= x <= extent and -extent <= y <= extent):
            extent = max(extent, abs(x), abs(y))
        allowed = 1e-9 * b.fastest + 2.0 * (_ROUNDING * extent / dt_s)
        if not abs((y - x) / dt_s - w) <= allowed:
            return joint, f"position {y} is inconsistent with velocity {w}"
        if not b.velocity_low - allowed <= w <= b.velocity_high + allowed or w * b.direction < 0.0:
            return joint, f"velocity {w} outside [{b.velocity_low}, {b.velocity_high}]"
        before, speed = abs(v), abs(w)
        if v * w < 0.0:  # to rest at D, then on at A
            slowest = acceleration if acceleration < deceleration else deceleration
            is_smooth = before / deceleration + speed / acceleration <= dt_s + allowed / slowest
        else:
            is_smooth = -deceleration * dt_s - allowed <= speed - before <= acceleration * dt_s + allowed
        if not is_smooth:
            return joint, f"velocity changes too fast: from {v} to {w} in {dt_s} s"
        stop = y + w * speed / (2.0 * deceleration)
        near = allowed * (dt_s + speed / deceleration)
        if not low - near <= stop <= high + near:
            is_braking = speed <= max(0.0, before - deceleration * dt_s) + allowed
            if not is_braking:
                return joint, f"stops only at {stop}, from position {y} and velocity {w}"
    return None


def limit_violation(
    position: float, velocity: float, next_position: float, next_velocity: float, bounds: JointBounds, dt_s: float
) -> str:
    """Return the limit violated by a step between two states, or ""."""
    found = find_violation([position], [velocity], [bounds], [next_position], [next_velocity], dt_s)
    return "" if found is None else found[1]


def is_unrecoverable(position: float, velocity: float, bounds: JointBounds, dt_s: float) -> bool:
    """Return whether the state is outside the safe set by more than rounding.

    The tolerance is twice the rounding bound, as the state carries the rounding of the step before.
    """
    if bounds.is_goal:
        return False
    ((lower, upper, _, _),) = velocity_intervals([position], [velocity], [bounds], dt_s)
    return lower - upper > 2.0 * (_ROUNDING * max(bounds.extent, abs(position)) / dt_s)


def is_in_safe_set(position: float, velocity: float, bounds: JointBounds) -> bool:
    """Return whether a state is in the safe set K of `bounds`, up to rounding."""
    stop = position + velocity * abs(velocity) / (2.0 * bounds.deceleration)
    slack = 1e-9 * (bounds.extent + abs(position) + (0.0 if bounds.is_goal else bounds.fastest))
    is_inside = bounds.low - slack <= min(position, stop) and max(position, stop) <= bounds.high + slack
    return is_inside and bounds.velocity_low * (1.0 + 1e-9) <= velocity <= bounds.velocity_high * (1.0 + 1e-9)


def brake_velocity(velocity: float, bounds: JointBounds, dt_s: float) -> float:
    """Return the velocity after one step of full braking towards zero, which it never passes."""
    return math.copysign(max(0.0, abs(velocity) - bounds.deceleration * dt_s), velocity)


def braking_bounds(
    position: float, velocity: float, narrow: JointBounds, before: JointBounds, dt_s: float
) -> JointBounds:
    """Return `narrow`, widened to what full braking needs if the joint moves too fast for it.

    `before` are the limits before `narrow`, with the same accelerations.
    """
    braked = brake_velocity(velocity, narrow, dt_s)
    stop = position + braked * dt_s + braked * abs(braked) / (2.0 * narrow.deceleration)
    high = min(before.high, max(narrow.high, stop)) if velocity > 0.0 else narrow.high
    low = max(before.low, min(narrow.low, stop)) if velocity < 0.0 else narrow.low
    highest = min(before.velocity_high, max(narrow.velocity_high, braked))
    lowest = max(before.velocity_low, min(narrow.velocity_low, braked))
    if (low, high, lowest, highest) == (narrow.low, narrow.high, narrow.velocity_low, narrow.velocity_high):
        return narrow
    return replace(narrow, low=low, high=high, velocity_low=lowest, velocity_high=highest)


def lowered_velocity(
    published: float, measured: float, age_s: float, bounds: JointBounds, *, settled: bool, period_s: float
) -> float:
    """Return `published` lowered towards the measured velocity after a gap.

    The rule and its proof are in the module docstring. `measured` is NaN if unknown. `settled` means that the command
    had been unchanged for 3 periods when the velocity was measured.
    """
    if not (math.isfinite(measured) and 0.0 <= age_s < math.inf):
        return published
    if settled and abs(measured) <= min(bounds.deceleration * period_s, 0.5 * abs(published)):
        return 0.0
    sign = math.copysign(1.0, published)
    fastest = sign * measured + max(bounds.acceleration, bounds.deceleration) * age_s
    return sign * min(abs(published), max(0.0, fastest))


def limit_jerk(
    desired: FloatArray, velocities: FloatArray, accelerations: FloatArray, limits: EffectiveLimits, dt_s: float
) -> FloatArray:
    """Return the velocities nearest to `desired` within the jerk limits.

    Arrays have the shape (..., n_joints), in units/s and units/s^2; the last two are the last published ones.
    """
    is_limited = np.isfinite(limits.jerk)
    if not is_limited.any():
        return desired
    if limits.is_goal.any():  # an infinite velocity would give NaN
        low, high = (np.where(limits.is_goal, 0.0, end) for end in (limits.velocity_low, limits.velocity_high))
        limits = replace(limits, velocity_low=low, velocity_high=high)
    jerk = np.where(is_limited, limits.jerk, 0.0)
    slope = jerk / np.minimum(limits.acceleration, limits.deceleration)
    highest = np.minimum(accelerations + jerk * dt_s, slope * (limits.velocity_high - velocities))
    lowest = np.maximum(accelerations - jerk * dt_s, -slope * (velocities - limits.velocity_low))
    if not (limits.velocity_low.all() and limits.velocity_high.all()):  # one way: one step onto rest can be undone
        backwards, forwards = (np.minimum(jerk * dt_s, way * velocities / dt_s) for way in (1.0, -1.0))
        lower = np.minimum(lowest, np.maximum(accelerations - jerk * dt_s, -backwards))
        higher = np.maximum(highest, np.minimum(accelerations + jerk * dt_s, forwards))
        lowest = np.where(limits.velocity_low == 0.0, lower, lowest)
        highest = np.where(limits.velocity_high == 0.0, higher, highest)
    ahead = desired - velocities
    reach = np.maximum(slope * np.abs(ahead), jerk * dt_s)  # one step can undo this much
    highest = np.where(ahead >= 0.0, np.minimum(highest, reach), highest)
    lowest = np.where(ahead <= 0.0, np.maximum(lowest, -reach), lowest)
    highest = np.maximum(highest, accelerations - jerk * dt_s)  # never beyond the jerk limit itself
    lowest = np.minimum(lowest, accelerations + jerk * dt_s)
    kept = np.clip(desired, velocities + lowest * dt_s, velocities + highest * dt_s)
    rounding = _JERK_ROUNDING * limits.fastest
    inside = np.clip(kept, limits.velocity_low, limits.velocity_high)
    kept = np.where(np.abs(kept - inside) <= rounding, inside, kept)  # of v + a dt
    return np.where(is_limited & (np.abs(kept - desired) > rounding), kept, desired)


def keeps_jerk(changes: FloatArray, limits: EffectiveLimits, dt_s: float) -> np.bool_ | NDArray[np.bool_]:
    """Return whether changes of acceleration, shape (..., n_joints), are within jerk limits.

    False without any.
    """
    is_limited = np.isfinite(limits.jerk)
    allowed = np.where(is_limited, limits.jerk * dt_s, np.inf) + 2.0 * _JERK_ROUNDING * limits.fastest / dt_s
    return is_limited.any() & (np.abs(changes) <= allowed).all(axis=-1)


def velocity_intervals(
    positions: Sequence[float], velocities: Sequence[float], bounds: Sequence[JointBounds], dt_s: float
) -> list[_Interval]:
    """Return each joint's admissible next velocities, and the speeds behind them.

    By the formulas of the module docstring. lower > upper means that the state is outside the safe set: no velocity is
    within every limit. The interval of a goal has no meaning.
    """
    intervals = []
    for x, v, b in zip(positions, velocities, bounds, strict=True):
        speed, gain, loss = abs(v), b.acceleration * dt_s, b.deceleration * dt_s
        onwards, back = speed + gain, gain
        if speed > 0.0:
            crossing = (gain if gain < loss else loss) - speed
            back = crossing if crossing > 0.0 else min(loss - speed, 0.0)
        faster_ahead, faster_behind = (onwards, back) if v >= 0.0 else (back, onwards)
        stop_ahead, stop_behind = b.high - x, x - b.low  # the gaps
        twice, square = 2.0 * b.deceleration, loss * loss
        if stop_ahead < _INF:
            reach = twice * stop_ahead
            stop_ahead = reach / (loss + math.sqrt(square + reach)) if reach > 0.0 else 0.0
        if stop_behind < _INF:
            reach = twice * stop_behind
            stop_behind = reach / (loss + math.sqrt(square + reach)) if reach > 0.0 else 0.0
        upper = stop_ahead if stop_ahead < faster_ahead else faster_ahead
        lower = -(stop_behind if stop_behind < faster_behind else faster_behind)
        upper = b.velocity_high if b.velocity_high < upper else upper
        lower = b.velocity_low if b.velocity_low > lower else lower
        ahead = stop_ahead, b.velocity_high, faster_ahead
        intervals.append((lower, upper, ahead, (stop_behind, -b.velocity_low, faster_behind)))
    return intervals


def _nearest_step(
    x: float, v: float, b: JointBounds, target: float, interval: _Interval, dt_s: float, *, by_velocity: bool
) -> tuple[float, float, str, float]:
    """Return position, velocity, code and bound of the step nearest to a target."""
    lower, upper, ahead, behind = interval
    low, high = b.low, b.high
    if b.is_goal:
        y = min(max(target, low), high)
        return y, 0.0, "" if y == target else "pos.limit", y
    if not low <= x <= high:  # a joint outside its range may move in, and is never moved by a jump
        low, high = min(low, x), max(high, x)
    if lower > upper:
        if is_unrecoverable(x, v, b, dt_s):
            w = brake_velocity(v, b, dt_s)
            y = min(max(x + w * dt_s, low), high)
            return y, w, "limits.infeasible", w if by_velocity else y
        lower = upper = lower if v >= 0.0 else upper  # the bounds are equal up to rounding: brake
    desired = target if by_velocity else (target - x) / dt_s
    w = desired if desired >= lower else lower
    w = w if w <= upper else upper
    is_allowed_direction = desired * b.direction >= 0.0
    if by_velocity:
        is_rounding = abs(desired - w) <= 4.0 * _EPSILON * (abs(desired) + abs(v))  # of v + A dt
        if is_rounding and b.low <= x + desired * dt_s <= b.high and is_allowed_direction:
            w = desired
    y = x + w * dt_s
    y = low if y < low else high if y > high else y
    if by_velocity:
        is_kept = w == desired
    else:
        extent = b.extent
        if not (-extent <= x <= extent and -extent <= y <= extent):
            extent = max(extent, abs(x), abs(y))
        is_rounding = abs(desired - w) <= _ROUNDING * extent / dt_s
        is_kept = is_rounding and low <= target <= high and is_allowed_direction
        y = target if is_kept else y
    code = "" if is_kept else _binding(w, ahead, behind, is_at_end=x >= b.high)
    return y, w, code, w if by_velocity else y


def _binding(
    w: float, ahead: tuple[float, float, float], behind: tuple[float, float, float], *, is_at_end: bool
) -> str:
    """Return the code of the limit that gave velocity w, one ahead if w is 0 and `is_at_end`."""
    is_ahead = w > 0.0 or (w == 0.0 and is_at_end)
    if w in ahead and (is_ahead or -w not in behind):
        return _CODES[ahead.index(w)]
    return _CODES[behind.index(-w)] if -w in behind else "pos.limit"
