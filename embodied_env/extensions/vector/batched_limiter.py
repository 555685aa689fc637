"""Limit commands of slots as arrays, as `CommandLimiter.limit` does where it refuses none.

The formulas are those of `embodied_env.safety.joint_limits`, bit for bit: rows are slots, columns are joints. They use
only + - * / sqrt, comparisons and `where`, in the order of the scalar formulas, and minimum and maximum where the
operands cannot be zeros of different signs. In arrays of shape (2, n_slots, n_joints) the first axis is the direction:
towards `high`, then towards `low`.
"""

from __future__ import annotations

import sys
from typing import NamedTuple, cast

import numpy as np

from embodied_env.contract import EffectiveLimits, FloatArray
from embodied_env.core.code_table import CODES, GATES
from embodied_env.core.code_types import Severity
from embodied_env.core.types import CommandState
from embodied_env.extensions.vector.batched_types import BoolArray, CommandStateBatch, GateReportBatch
from embodied_env.safety.command_limiter import ROUNDING, CommandLimiter
from embodied_env.safety.joint_limits import keeps_jerk

_BOX, _JERK, _LIMITS = (GATES.index(gate) for gate in ("space_box", "jerk", "joint_limits"))
_EPSILON = sys.float_info.epsilon
_POSITION, _VELOCITY, _ACCELERATION = CODES["pos.limit"], CODES["vel.limit"], CODES["acc.limit"]


class BatchedLimiter:
    """Makes commands within every limit of one contract, without state."""

    def __init__(self, limiter: CommandLimiter) -> None:
        """Use the limits of `limiter`, which enforces them and has no filter."""
        self._limiter, self._layout = limiter, limiter.layout
        self._has_deltas = bool(self._layout.is_delta.any())
        self._has_thresholds = not np.isnan(self._layout.scale.threshold).all()
        self._bounds = BatchedBounds(self._layout.limits, self._layout.is_velocity, None)

    def limit(
        self, requested: FloatArray, reference: CommandStateBatch, dt_s: float
    ) -> tuple[GateReportBatch, BoolArray]:
        """Return the report of each finite action, and whether limits are feasible and kept."""
        limiter, layout, bounds = self._limiter, self._layout, self._bounds
        if reference.slack is not None:
            bounds = BatchedBounds(layout.limits, layout.is_velocity, reference.slack)
        boxed = clipped(requested, layout.scale.low, layout.scale.high)
        target = self._target(boxed, reference)
        smooth = limiter.limit_jerk(target, cast("CommandState", reference), dt_s)  # by the same formula
        steps = limit_joint_batch(reference.positions, reference.velocities, smooth, bounds, dt_s)
        positions, velocities = steps.positions, steps.velocities
        are_sound = steps.are_feasible & keep_limits(
            reference.positions, reference.velocities, positions, velocities, bounds, dt_s
        )
        published = np.where(layout.is_velocity, velocities, positions) if limiter.has_velocity else positions
        are_kept = published == target
        applied = boxed if are_kept.all() else np.where(are_kept, boxed, self._as_action(published, reference))
        requested = requested.copy()
        for array in (requested, applied, published, velocities):
            array.setflags(write=False)
        severity = np.zeros((len(requested), len(GATES)), dtype=np.int8)
        code = np.zeros(severity.shape, dtype=np.int16)
        joint_code = np.where(requested != boxed, np.int16(CODES["box.clip"]), np.int16(0))
        code[:, _BOX] = joint_code.max(axis=1)
        if smooth is not target:
            of_jerk = np.where(smooth != target, np.int16(CODES["jerk.limit"]), np.int16(0))
            code[:, _JERK] = of_jerk.max(axis=1)
            joint_code = np.where(of_jerk, of_jerk, joint_code)
        code[:, _LIMITS] = steps.codes.max(axis=1)  # of equal severities the last counts
        np.multiply(code != 0, np.int8(Severity.LIMIT), out=severity)
        disposition = severity.max(axis=1)
        always = np.ones(len(requested), dtype=np.bool_)
        changes = (velocities - reference.velocities) / dt_s - reference.accelerations
        jerk = keeps_jerk(changes, layout.limits, dt_s) if limiter.has_jerk else ~always
        report = GateReportBatch(
            disposition=disposition,
            intervened=disposition >= int(Severity.LIMIT),
            requested=requested,
            applied=applied,
            applied_si=published,
            velocity_si=velocities,
            severity=severity,
            code=code,
            joint_code=np.where(steps.codes, steps.codes, joint_code),
            guaranteed={
                "position": self._are_inside(reference, published),
                "velocity": always,
                "acceleration": always.copy(),
                "jerk": np.asarray(jerk),
                "workspace": ~always,
            },
            dt_s=dt_s,
            boxed=boxed,
            target=target,
            smooth=smooth,
            limited=steps.codes,
        )
        return report, np.logical_and.reduce(are_sound, axis=1)

    def _are_inside(self, reference: CommandStateBatch, published: FloatArray) -> BoolArray:
        """Return the rows in which every position is certainly within its limits."""
        slack = 0.0 if reference.slack is None else reference.slack
        positions = np.where(self._layout.is_velocity, reference.positions, published)
        are_inside: BoolArray = (positions - slack >= self._bounds.low) & (positions + slack <= self._bounds.high)
        return np.asarray(are_inside.all(axis=1))

    def _target(self, action: FloatArray, reference: CommandStateBatch) -> FloatArray:
        """Map actions to target positions or velocities (`CommandLimiter.target`)."""
        scale = self._layout.scale
        if self._has_thresholds:
            chosen = np.where(action < scale.threshold, scale.low, scale.high)
            action = np.where(np.isnan(scale.threshold), action, chosen)
        mapped = scale.offset + np.where(action >= 0.0, scale.span, scale.span_below) * action
        mapped = _snapped(action, scale.low, scale.high, mapped, scale.si_low, scale.si_high)
        target = self._moved(mapped, reference.positions, self._bounds.low, self._bounds.high)
        if (within := self._limiter.hold_within) is None:
            return target
        below, above = within
        is_held = (reference.positions - below < target) & (target < reference.positions + above)
        return np.where(is_held, reference.positions, target)

    def _as_action(self, published: FloatArray, reference: CommandStateBatch) -> FloatArray:
        scale = self._layout.scale
        moved = self._moved(published, -reference.positions, scale.si_low, scale.si_high)
        span = np.where(moved >= scale.offset, scale.span, scale.span_below)
        return _snapped(moved, scale.si_low, scale.si_high, (moved - scale.offset) / span, scale.low, scale.high)

    def _moved(self, values: FloatArray, start: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
        """Add `start` to delta commands, without exceeding a bound by rounding."""
        if not self._has_deltas:
            return values
        end = values + start
        inside = clipped(end, low, high)
        is_rounding = np.abs(end - inside) <= ROUNDING * (np.abs(start) + np.abs(end))
        return np.where(self._layout.is_delta, np.where(is_rounding, inside, end), values)


def _snapped(
    x: FloatArray, x_low: FloatArray, x_high: FloatArray, y: FloatArray, y_low: FloatArray, y_high: FloatArray
) -> FloatArray:
    """Undo rounding of a map x -> y at its bounds (`embodied_env.contract.spaces`)."""
    y = np.where((x_low < x) & (x < x_high), clipped(y, y_low, y_high), y)
    y = np.where(x == x_low, y_low, y)
    return np.where((x == x_high) & (x_high != x_low), y_high, y)


# ----------------------------------------------------------------------------------------------------- limits of joints


class BatchedBounds:
    """Limits of joints (`JointBounds`), shape (n_joints,), or (n_slots, n_joints) if narrowed."""

    def __init__(self, limits: EffectiveLimits, is_velocity: BoolArray, slack: FloatArray | None) -> None:
        """Narrow `limits` by the uncertainty of measured positions, if any.

        `is_velocity` marks joints that are commanded by velocity.
        """
        self.low, self.high = limits.position_low, limits.position_high
        if slack is not None:
            self.low, self.high = self.low + slack, self.high - slack
        self.velocity_low, self.velocity_high = limits.velocity_low, limits.velocity_high
        self.fastest, self.is_velocity, self.is_goal = limits.fastest, is_velocity, limits.is_goal
        self.speeds = np.array((limits.velocity_high, -limits.velocity_low))[:, np.newaxis]
        self.direction = (self.velocity_low == 0.0) * 1.0 - (self.velocity_high == 0.0)
        self.acceleration, self.deceleration = limits.acceleration, limits.deceleration
        self.extent = np.max([np.where(np.isfinite(end), np.abs(end), 0.0) for end in (self.low, self.high)], axis=0)
        self.has_velocity, self.has_goal = bool(is_velocity.any()), bool(self.is_goal.any())
        self.has_one_way = bool(self.direction.any())
        self.has_infinite_range = bool(np.isinf(self.high - self.low).any())


class LimitedSteps(NamedTuple):
    """The limited steps of all joints, shape (n_slots, n_joints).

    `codes` are numbers of `CODES`, 0 where the target was kept bit for bit. Where not `are_feasible` the other values
    are undefined.
    """

    positions: FloatArray
    velocities: FloatArray
    codes: np.ndarray[tuple[int, ...], np.dtype[np.int16]]
    are_feasible: BoolArray


def clipped(values: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
    """Return ``min(max(value, low), high)`` of floats, which keeps the sign of a zero inside."""
    raised = np.where(values < low, low, values)
    return np.where(raised > high, high, raised)


def limit_joint_batch(
    positions: FloatArray, velocities: FloatArray, targets: FloatArray, bounds: BatchedBounds, dt_s: float
) -> LimitedSteps:
    """Return the admissible steps of `dt_s` > 0 nearest to finite targets (`limit_joints`).

    Targets are velocities where joints are commanded by velocity.
    """
    x, v = positions, velocities
    braking = _braking_velocities(np.array((bounds.high - x, x - bounds.low)), bounds, dt_s)
    faster = _max_next_velocities(np.array((v, -v)), bounds, dt_s)
    largest = np.minimum(braking, faster)
    largest = np.where(bounds.speeds < largest, bounds.speeds, largest)
    lower, upper = -largest[1], largest[0]
    are_feasible = np.ones(x.shape, dtype=np.bool_)
    crossed = lower > upper
    if crossed.any():
        are_feasible = ~(crossed & (lower - upper > 2.0 * _rounding_of_step(x, x, bounds, dt_s)))
        upper = np.where(crossed & (v >= 0.0), lower, upper)  # brake where the bounds are equal up to rounding
    desired = (targets - x) / dt_s
    if bounds.has_velocity:
        desired = np.where(bounds.is_velocity, targets, desired)
    is_allowed: BoolArray | bool = not bounds.has_one_way or desired * bounds.direction >= 0.0
    chosen = np.where(desired >= lower, desired, lower)
    chosen = np.where(chosen <= upper, chosen, upper)
    low, high = np.where(x < bounds.low, x, bounds.low), np.where(x > bounds.high, x, bounds.high)
    off = np.abs(desired - chosen)
    reached = clipped(x + chosen * dt_s, low, high)
    kept = (off <= _rounding_of_step(x, reached, bounds, dt_s)) & (low <= targets) & (targets <= high) & is_allowed
    reached = np.where(kept, targets, reached)
    if bounds.has_velocity:
        ahead = x + desired * dt_s
        is_rounding = off <= 4.0 * _EPSILON * (np.abs(desired) + np.abs(v))
        is_rounding &= bounds.is_velocity & (bounds.low <= ahead) & (ahead <= bounds.high) & is_allowed
        chosen = np.where(is_rounding, desired, chosen)
        kept = np.where(bounds.is_velocity, chosen == desired, kept)
        reached = np.where(bounds.is_velocity, clipped(x + chosen * dt_s, low, high), reached)
    if bounds.has_goal:
        goals = clipped(targets, bounds.low, bounds.high)
        reached, chosen = np.where(bounds.is_goal, goals, reached), np.where(bounds.is_goal, 0.0, chosen)
        kept = np.where(bounds.is_goal, goals == targets, kept)
    codes = np.zeros(x.shape, dtype=np.int16)
    if not kept.all():
        codes = np.where(kept, codes, _binding(x, chosen, braking, faster, bounds))
    return LimitedSteps(reached, chosen, codes, are_feasible)


def keep_limits(
    positions: FloatArray,
    velocities: FloatArray,
    next_positions: FloatArray,
    next_velocities: FloatArray,
    bounds: BatchedBounds,
    dt_s: float,
) -> BoolArray:
    """Return which joints' steps keep every limit, independently of `limit_joint_batch`."""
    x, v, next_x, next_v = positions, velocities, next_positions, next_velocities
    allowed = 1e-9 * bounds.fastest + 2.0 * _rounding_of_step(x, next_x, bounds, dt_s)
    low, high = np.minimum(bounds.low, x), np.maximum(bounds.high, x)
    are_inside = (low <= next_x) & (next_x <= high)
    before, speed = np.abs(v), np.abs(next_v)
    is_kept = are_inside & (bounds.velocity_low - allowed <= next_v) & (next_v <= bounds.velocity_high + allowed)
    if bounds.has_one_way:
        is_kept &= next_v * bounds.direction >= 0.0
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
    extent: FloatArray = np.maximum(bounds.extent, np.maximum(np.abs(positions), np.abs(reached)))
    return 8.0 * _EPSILON * extent / dt_s


def _binding(
    positions: FloatArray, chosen: FloatArray, braking: FloatArray, faster: FloatArray, bounds: BatchedBounds
) -> np.ndarray[tuple[int, ...], np.dtype[np.int16]]:
    """Return the number of the limit that gave `chosen`, in the direction that decides."""
    speeds = np.array((chosen, -chosen))
    codes = np.where(faster == speeds, np.int16(_ACCELERATION), np.int16(0))
    codes = np.where(bounds.speeds == speeds, _VELOCITY, codes)
    codes = np.where(braking == speeds, _POSITION, codes)
    is_forwards = (chosen > 0.0) | ((chosen == 0.0) & (positions >= bounds.high))
    first, second = np.where(is_forwards, codes, codes[::-1])
    return np.where(first != 0, first, np.where(second != 0, second, _POSITION))
