"""The formulas of `embodied_env.safety.joint_limits` as arrays, bit for bit: rows are slots, columns are joints.

They use only + - * / sqrt, comparisons and `where`, in the order of the scalar formulas, and minimum and maximum where
the operands cannot be zeros of different signs. In arrays of shape (2, n_slots, n_joints) the first axis is the
direction: towards `high`, then towards `low`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from embodied_env.contract import EffectiveLimits, FloatArray
from embodied_env.core.batches import BoolArray
from embodied_env.core.codes import CODES

_EPSILON = sys.float_info.epsilon
_POSITION, _VELOCITY, _ACCELERATION = CODES["pos.limit"], CODES["vel.limit"], CODES["acc.limit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchedBounds:
    """Limits of joints (`JointBounds`), arrays of shape (n_joints,), or (n_slots, n_joints) where narrowed."""

    low: FloatArray
    high: FloatArray
    velocity: FloatArray
    acceleration: FloatArray
    deceleration: FloatArray
    is_velocity: BoolArray
    is_goal: BoolArray
    extent: FloatArray = field(init=False)
    has_velocity: bool = field(init=False)
    has_position: bool = field(init=False)
    has_goal: bool = field(init=False)
    has_infinite_range: bool = field(init=False)

    def __post_init__(self) -> None:
        """Compute `extent` and the kinds of joints."""
        low, high = (np.where(np.isfinite(ends), np.abs(ends), 0.0) for ends in (self.low, self.high))
        object.__setattr__(self, "extent", np.maximum(low, high))
        object.__setattr__(self, "has_velocity", bool(self.is_velocity.any()))
        object.__setattr__(self, "has_position", not self.is_velocity.all())
        object.__setattr__(self, "has_goal", bool(self.is_goal.any()))
        object.__setattr__(self, "has_infinite_range", bool(np.isinf(self.high - self.low).any()))

    @staticmethod
    def of(limits: EffectiveLimits, is_velocity: BoolArray) -> BatchedBounds:
        """Return the bounds of `limits`; `is_velocity`: the joints commanded by velocity."""
        return BatchedBounds(
            low=limits.position_low,
            high=limits.position_high,
            velocity=limits.velocity,
            acceleration=limits.acceleration,
            deceleration=limits.deceleration,
            is_velocity=is_velocity,
            is_goal=limits.is_goal,
        )

    def narrowed(self, slack: FloatArray | None) -> BatchedBounds:
        """Return the bounds narrowed by the uncertainty of measured positions, if any."""
        return self if slack is None else replace(self, low=self.low + slack, high=self.high - slack)


class LimitedSteps(NamedTuple):
    """The limited steps of all joints (`JointStep`), shape (n_slots, n_joints).

    `codes` are numbers of `CODES`, 0 where the target was kept bit for bit. Where not `are_feasible` the other values
    are undefined.
    """

    positions: FloatArray
    velocities: FloatArray
    codes: np.ndarray[tuple[int, ...], np.dtype[np.int16]]
    are_feasible: BoolArray


def clipped(values: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
    """Return ``min(max(value, low), high)`` of Python floats, which keeps the sign of a zero inside."""
    raised = np.where(values < low, low, values)
    return np.where(raised > high, high, raised)


def limit_joints(
    positions: FloatArray, velocities: FloatArray, targets: FloatArray, bounds: BatchedBounds, dt_s: float
) -> LimitedSteps:
    """Return the admissible steps of `dt_s` > 0 nearest to finite targets (`limit_joint`, `limit_velocity`).

    Targets are velocities where joints are commanded by velocity.
    """
    x, v = positions, velocities
    braking = _braking_velocities(np.array((bounds.high - x, x - bounds.low)), bounds, dt_s)
    faster = _max_next_velocities(np.array((v, -v)), bounds, dt_s)
    largest = np.minimum(np.minimum(braking, faster), bounds.velocity)
    lower, upper = -largest[1], largest[0]
    are_feasible = np.ones(x.shape, dtype=np.bool_)
    crossed = lower > upper
    if crossed.any():
        are_feasible = ~(crossed & (lower - upper > 2.0 * _rounding_of_step(x, x, bounds, dt_s)))
        brake = np.where(v >= 0.0, lower, upper)
        lower, upper = np.where(crossed, brake, lower), np.where(crossed, brake, upper)
    desired = (targets - x) / dt_s
    if bounds.has_velocity:
        desired = np.where(bounds.is_velocity, targets, desired)
    chosen = np.where(desired >= lower, desired, lower)
    chosen = np.where(chosen <= upper, chosen, upper)
    low, high = np.where(x < bounds.low, x, bounds.low), np.where(x > bounds.high, x, bounds.high)
    off = np.abs(desired - chosen)
    if bounds.has_velocity:
        ahead = x + desired * dt_s
        is_rounding = off <= 4.0 * _EPSILON * (np.abs(desired) + np.abs(v))
        is_kept = bounds.is_velocity & is_rounding & (bounds.low <= ahead) & (ahead <= bounds.high)
        chosen = np.where(is_kept, desired, chosen)
        kept = bounds.is_velocity & (chosen == desired)
    reached = clipped(x + chosen * dt_s, low, high)
    if bounds.has_position:
        is_near = (off <= _rounding_of_step(x, reached, bounds, dt_s)) & (low <= targets) & (targets <= high)
        if bounds.has_velocity:
            is_near &= ~bounds.is_velocity
        reached = np.where(is_near, targets, reached)
        kept = kept | is_near if bounds.has_velocity else is_near
    if bounds.has_goal:
        goals = clipped(targets, bounds.low, bounds.high)
        reached, chosen = np.where(bounds.is_goal, goals, reached), np.where(bounds.is_goal, 0.0, chosen)
        kept = np.where(bounds.is_goal, goals == targets, kept)
    codes = np.where(kept, 0, _binding(x, chosen, braking, faster, bounds))
    return LimitedSteps(reached, chosen, codes, are_feasible)


def keep_limits(
    positions: FloatArray,
    velocities: FloatArray,
    next_positions: FloatArray,
    next_velocities: FloatArray,
    bounds: BatchedBounds,
    dt_s: float,
) -> BoolArray:
    """Return which joints' steps are within every limit, independently of `limit_joints` (`limit_violation`)."""
    x, v, next_x, next_v = positions, velocities, next_positions, next_velocities
    allowed = 1e-9 * bounds.velocity + 2.0 * _rounding_of_step(x, next_x, bounds, dt_s)
    low, high = np.minimum(bounds.low, x), np.maximum(bounds.high, x)
    are_inside = (low <= next_x) & (next_x <= high)
    before, speed = np.abs(v), np.abs(next_v)
    is_kept = are_inside & (speed <= bounds.velocity + allowed)
    is_kept &= np.abs((next_x - x) / dt_s - next_v) <= allowed
    faster, slower = bounds.acceleration, bounds.deceleration
    is_smooth = (speed - before <= faster * dt_s + allowed) & (before - speed <= slower * dt_s + allowed)
    is_turning = v * next_v < 0.0
    if is_turning.any():
        in_time = before / slower + speed / faster <= dt_s + allowed / np.minimum(faster, slower)
        is_smooth = np.where(is_turning, in_time, is_smooth)
    stop = next_x + next_v * speed / (2.0 * slower)
    near = allowed * (dt_s + speed / slower)
    can_stop = (low - near <= stop) & (stop <= high + near)
    can_stop |= speed <= np.maximum(0.0, before - slower * dt_s) + allowed
    is_kept &= is_smooth & can_stop
    if bounds.has_goal:
        is_kept = np.where(bounds.is_goal, are_inside, is_kept)
    return is_kept & np.isfinite(next_x) & np.isfinite(next_v)


def _braking_velocities(gaps: FloatArray, bounds: BatchedBounds, dt_s: float) -> FloatArray:
    step = bounds.deceleration * dt_s
    twice = 2.0 * bounds.deceleration * np.where(gaps > 0.0, gaps, 0.0)
    fastest = twice / (step + np.sqrt(step * step + twice))
    return np.where(gaps == np.inf, np.inf, fastest) if bounds.has_infinite_range else fastest


def _max_next_velocities(velocities: FloatArray, bounds: BatchedBounds, dt_s: float) -> FloatArray:
    acceleration, deceleration = bounds.acceleration, bounds.deceleration
    crossing = np.maximum(velocities + np.minimum(acceleration, deceleration) * dt_s, 0.0)
    turned = np.minimum(velocities + deceleration * dt_s, crossing)
    return np.where(velocities >= 0.0, velocities + acceleration * dt_s, turned)


def _rounding_of_step(positions: FloatArray, reached: FloatArray, bounds: BatchedBounds, dt_s: float) -> FloatArray:
    extent = np.maximum(bounds.extent, np.maximum(np.abs(positions), np.abs(reached)))
    return 8.0 * _EPSILON * extent / dt_s


def _binding(
    positions: FloatArray, chosen: FloatArray, braking: FloatArray, faster: FloatArray, bounds: BatchedBounds
) -> np.ndarray[tuple[int, ...], np.dtype[np.int16]]:
    """Return the number of the limit that gave `chosen`, which one of the two directions decides."""
    speeds = np.array((chosen, -chosen))
    codes = np.where(faster == speeds, _ACCELERATION, 0)
    codes = np.where(bounds.velocity == speeds, _VELOCITY, codes)
    codes = np.where(braking == speeds, _POSITION, codes)
    is_forwards = (chosen > 0.0) | ((chosen == 0.0) & (positions >= bounds.high))
    first, second = np.where(is_forwards, codes, codes[::-1])
    return np.where(first != 0, first, np.where(second != 0, second, _POSITION))
