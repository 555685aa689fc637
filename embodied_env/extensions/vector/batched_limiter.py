"""Limits the commands of several slots as arrays: `CommandLimiter.limit` for the steps that it does not refuse."""

from __future__ import annotations

import numpy as np

from embodied_env.contract import FloatArray
from embodied_env.core.codes import CODES, Severity
from embodied_env.extensions.vector.batched_limits import BatchedBounds, clipped, keep_limits, limit_joint_batch
from embodied_env.extensions.vector.batches import BoolArray, CommandStateBatch, GateReportBatch
from embodied_env.safety.command_limiter import ROUNDING, CommandLimiter
from embodied_env.safety.findings import GATES
from embodied_env.safety.joint_limits import keeps_jerk, limit_jerk

_BOX, _JERK, _LIMITS = (GATES.index(gate) for gate in ("space_box", "jerk", "joint_limits"))


class BatchedLimiter:
    """Makes commands within every limit of one contract. Without state."""

    def __init__(self, limiter: CommandLimiter) -> None:
        """Use the limits of `limiter`, which enforces them and has no filter."""
        self._limiter, self._layout = limiter, limiter.layout
        self._has_deltas = bool(self._layout.is_delta.any())
        self._has_thresholds = not np.isnan(self._layout.scale.threshold).all()
        self._bounds = BatchedBounds(self._layout.limits, self._layout.is_velocity, None)

    def limit(
        self, requested: FloatArray, reference: CommandStateBatch, dt_s: float
    ) -> tuple[GateReportBatch, BoolArray]:
        """Return the report of each row of finite actions, and whether the limits are feasible and kept there."""
        limiter, layout, bounds = self._limiter, self._layout, self._bounds
        if reference.slack is not None:
            bounds = BatchedBounds(layout.limits, layout.is_velocity, reference.slack)
        boxed = clipped(requested, layout.scale.low, layout.scale.high)
        target = self._target(boxed, reference)
        smooth = self._smooth(target, reference, dt_s)
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

    def _smooth(self, target: FloatArray, reference: CommandStateBatch, dt_s: float) -> FloatArray:
        """Return the targets nearest to `target` within the jerk limits (`CommandLimiter.limit_jerk`)."""
        if not self._limiter.has_jerk:
            return target
        is_velocity, start, velocities = self._layout.is_velocity, reference.positions, reference.velocities
        desired = np.where(is_velocity, target, (target - start) / dt_s)
        accelerations = np.where(velocities == 0.0, 0.0, reference.accelerations)  # braked to rest
        kept = limit_jerk(desired, velocities, accelerations, self._layout.limits, dt_s)
        return np.where(kept == desired, target, np.where(is_velocity, kept, start + kept * dt_s))

    def _as_action(self, published: FloatArray, reference: CommandStateBatch) -> FloatArray:
        """Map published values back to actions (`CommandLimiter.as_action`)."""
        scale = self._layout.scale
        moved = self._moved(published, -reference.positions, scale.si_low, scale.si_high)
        span = np.where(moved >= scale.offset, scale.span, scale.span_below)
        return _snapped(moved, scale.si_low, scale.si_high, (moved - scale.offset) / span, scale.low, scale.high)

    def _moved(self, values: FloatArray, start: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
        """Add `start` to delta commands; rounding never exceeds a bound."""
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
