"""Setpoints between control steps: the motion from the last published setpoint towards an approved one.

A step approves a position p that is one control period T away. With n setpoints per step, h = T / n apart, the command
changes its velocity in equal parts from the last published position x and velocity w::

    q = x + w (T - h) / 2         where the published motion comes to rest if it slows down evenly during T
    u = (p - q) / T               the velocity at the end of the segment
    setpoint i:  v_i = w + (u - w) i / n,  x_i = x_(i-1) + v_i h,  i = 1 .. n

This is only the proposal: each setpoint passes the gate (`SafetyGate.limit`). A late step finds the motion still on its
way to p for another (T - h) / 2; then the arbiter brakes. `docs/concepts/setpoints.md` has the reasons.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import EffectiveLimits, FloatArray
from embodied_env.core.types import CommandState
from embodied_env.timing.clock import NS_PER_S

_NO_SPEED = 1e-9  # share of the velocity limit that counts as rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The motion of one control period towards `goal`, the state once the approved command is reached.

    Where `is_goal`, an action server gets the goal itself. Times are on the steady clock, arrays of shape (n_joints,).
    """

    goal: CommandState
    approved_ns: int
    start_ns: int
    start_velocities: FloatArray
    end_velocities: FloatArray
    is_goal: NDArray[np.bool_]


class SetpointPlanner:
    """Plans the setpoints of one contract."""

    def __init__(self, *, control_period_ns: int, per_step: int) -> None:
        """Plan `per_step` setpoints, at least 2, in each control period."""
        self.per_step = per_step
        self.period_ns = control_period_ns // per_step
        self._control_ns = control_period_ns
        self._control_s = control_period_ns / NS_PER_S
        self._ahead_s = (control_period_ns - self.period_ns) / (2 * NS_PER_S)

    def begin_segment(
        self,
        goal: CommandState,
        published: CommandState,
        limits: EffectiveLimits,
        *,
        approved_ns: int,
        published_ns: int,
        now_ns: int,
    ) -> Segment:
        """Return the segment from the last published setpoint to `goal`; its first setpoint is due now."""
        ends = (goal.positions - self._resting_positions(published)) / self._control_s
        return Segment(
            goal=goal,
            approved_ns=approved_ns,
            start_ns=max(published_ns, now_ns - self.period_ns),
            start_velocities=published.velocities,
            end_velocities=np.where(np.abs(ends) <= _NO_SPEED * limits.fastest, 0.0, ends),
            is_goal=limits.is_goal,
        )

    def target(self, segment: Segment, published: CommandState, *, now_ns: int, dt_s: float) -> FloatArray:
        """Return the setpoint of `now_ns`, `dt_s` after the last published one; shape (n_joints,)."""
        share = min(1.0, (now_ns - segment.start_ns) / self._control_ns)
        start, end = segment.start_velocities, segment.end_velocities
        positions = published.positions + (start + (end - start) * share) * dt_s
        return np.where(segment.is_goal, segment.goal.positions, positions)

    def next_due_ns(self, due_ns: int, now_ns: int) -> int:
        """Return the deadline after `now_ns` on the grid of `due_ns`; missed ones are skipped, without a burst."""
        return due_ns + self.period_ns * ((now_ns - due_ns) // self.period_ns + 1)

    def is_over(self, segment: Segment, now_ns: int) -> bool:
        """Return whether the motion towards the goal has had its time."""
        return now_ns - segment.start_ns > self._control_ns + (self._control_ns - self.period_ns) // 2

    def follows(self, segment: Segment, published: CommandState, limits: EffectiveLimits) -> bool:
        """Return whether the published motion is within one step of the goal, so that the next step starts there."""
        distances = np.abs(self._resting_positions(published) - segment.goal.positions)
        return bool((distances <= limits.fastest * self._control_s).all())

    def resting_reference(self, published: CommandState, limits: EffectiveLimits) -> CommandState:
        """Return the reference of a step that follows no other: q and w, with room to brake within the limits."""
        x, w = published.positions, published.velocities
        stop = w * w / (2.0 * limits.deceleration)
        low, high = np.minimum(x, limits.position_low + stop), np.maximum(x, limits.position_high - stop)
        return replace(published, positions=np.clip(self._resting_positions(published), low, high))

    def _resting_positions(self, published: CommandState) -> FloatArray:
        return np.asarray(published.positions + published.velocities * self._ahead_s)
