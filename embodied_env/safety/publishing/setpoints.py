"""Setpoints between control steps, from the last published one towards an approved one.

A step approves a position p that is one control period T away. With n setpoints per step, h = T / n apart, the command
changes its velocity in equal parts from the last published position x and velocity w::

    q = x + w (T - h) / 2         where the published motion comes to rest if it slows down evenly during T
    u = (p - q) / T               the velocity at the end of the segment
    setpoint i:  v_i = w + (u - w) i / n,  x_i = x_(i-1) + v_i h,  i = 1 .. n

This is only the proposal: each setpoint passes the gate (`SafetyGate.limit`). A late step finds the motion still on its
way to p for another (T - h) / 2; then the robot brakes. `docs/concepts/setpoints.md` has the reasons.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from embodied_env.contract import FloatArray
from embodied_env.core.code_types import Severity
from embodied_env.core.types import ApprovedCommand, CommandState, Finding, SentCommand, WriteDelay
from embodied_env.safety.approved_commands import state_after
from embodied_env.safety.gate import SafetyGate
from embodied_env.safety.publishing.single import LastWrite, SingleCommands
from embodied_env.timing.clock import NS_PER_S, Clock

_NO_SPEED = 1e-9  # share of the velocity limit that counts as rest
_NO_COMMAND = Finding(gate="watchdog", severity=Severity.HOLD, code="wd.hold", detail="no command after the last one")


class _Writer(Protocol):
    """Part of the arbiter that setpoints use, with its lock held during each call."""

    clock: Clock
    reference: CommandState
    last: LastWrite
    delay: WriteDelay | None
    judged_ns: int

    def check_open(self) -> None: ...
    def last_published(self, now_ns: int) -> tuple[CommandState, float]: ...
    def write(self, command: ApprovedCommand, *, interval_ns: int | None = None) -> SentCommand: ...
    def brake(self, finding: Finding) -> ApprovedCommand: ...
    def settle(self, command: ApprovedCommand) -> ApprovedCommand: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Motion of one control period towards `goal`, the state of the approved command.

    Times are on the steady clock, arrays of shape (n_joints,).
    """

    goal: CommandState
    approved_ns: int
    start_ns: int
    start_velocities: FloatArray
    end_velocities: FloatArray


class Setpoints(SingleCommands):
    """Publishes several setpoints per step, each approved by the gate from the one before.

    An approved command is the goal of a segment. `send` publishes the first setpoint towards it, `send_setpoint` the
    others. A step starts at the goal of the step before, while the published motion follows that one.
    """

    def __init__(
        self,
        gate: SafetyGate,
        downstream_timeout_s: float | None = None,
        measured_velocities: Callable[[], tuple[FloatArray, FloatArray]] | None = None,
        *,
        per_step: int,
    ) -> None:
        """Publish `per_step` setpoints, at least 2, in each control period."""
        super().__init__(gate, downstream_timeout_s, measured_velocities)
        self._per_step = per_step
        self._interval_ns = self._period_ns // per_step
        self._control_s = self._period_ns / NS_PER_S
        self._ahead_s = (self._period_ns - self._interval_ns) / (2 * NS_PER_S)
        self.tick_s = self._interval_ns / NS_PER_S
        self._segment: Segment | None = None  # the motion in progress
        self._start: CommandState | None = None  # start of the step that is judged
        self._due_ns = 0  # when the next setpoint is due
        self._gaps_ns: list[int] = []  # gap before each setpoint since the last account; 0: at rest

    def reset(self) -> None:
        """Treat the robot as at rest, with no setpoint in the account."""
        super().reset()
        self._segment = None
        self._gaps_ns.clear()

    def end_motion(self, now_ns: int) -> None:
        """End the motion towards the goal, so that the next setpoint brakes."""
        self._segment = None
        self._skip_to_next(self._due_ns, now_ns)

    def reference_of_step(self, published: CommandState, now_ns: int) -> tuple[CommandState, float]:
        """Return the last step's goal, or where the motion can come to rest, and dt in s."""
        segment = self._segment
        if segment is None or self._is_over(segment, now_ns) or not self._follows(segment, published):
            self._start = self._resting_reference(published)
            return self._start, self._period_s
        self._start = replace(segment.goal, seq=published.seq)
        return self._start, min((now_ns - segment.approved_ns) / NS_PER_S, self._period_s)

    def send(self, arbiter: _Writer, command: ApprovedCommand) -> SentCommand:
        """Publish the first setpoint towards `command` when it is due."""
        arbiter.check_open()
        judged_ns, approved_ns, due_ns = arbiter.judged_ns, arbiter.clock.now_ns(), self.due_ns(arbiter.reference)
        if due_ns is not None:
            arbiter.clock.sleep_until_ns(due_ns)
            judged_ns += max(0, due_ns - approved_ns)
        now_ns = arbiter.clock.now_ns()
        if 2 * (now_ns - judged_ns) > self._period_ns:
            self.end_motion(now_ns)
            arbiter.judged_ns = judged_ns
            return arbiter.write(command)
        segment = self._segment_to(command, arbiter, approved_ns=approved_ns, now_ns=now_ns)
        sent = self._publish(arbiter, segment, now_ns, is_moving=due_ns is not None)
        self._segment = segment
        return replace(sent, values=command.values, command=arbiter.settle(command))

    def due_ns(self, reference: CommandState) -> int | None:
        """Return when the next setpoint is due, or None while the robot is commanded to be at rest."""
        return None if self._segment is None and not reference.velocities.any() else self._due_ns

    def send_setpoint(self, arbiter: _Writer) -> None:
        """Publish the next setpoint of the motion if it is due, or brake to rest without one."""
        due_ns, now_ns, segment = self.due_ns(arbiter.reference), arbiter.clock.now_ns(), self._segment
        if due_ns is None or now_ns < due_ns:
            return
        if segment is not None and not self._is_over(segment, now_ns):
            self._publish(arbiter, segment, now_ns, is_moving=True)
        elif arbiter.reference.velocities.any():
            arbiter.brake(_NO_COMMAND)
        else:
            self._segment = None

    def take_account(self) -> dict[str, float]:
        """Return the account of the setpoints since the last call."""
        gaps_ns, self._gaps_ns = self._gaps_ns, []
        worst_s = max(gaps_ns, default=0) / NS_PER_S
        return {"rate_hz": self._per_step / self._period_s, "sent": len(gaps_ns), "worst_gap_s": worst_s}

    def _publish(self, arbiter: _Writer, segment: Segment, now_ns: int, *, is_moving: bool) -> SentCommand:
        """Approve and publish the setpoint of `now_ns`.

        In motion, a late one catches up at most one that was missed. If the braking of one interval takes its place,
        the motion goes on with the next one.
        """
        before_ns = arbiter.last.after_ns
        reference, dt_s = arbiter.last_published(now_ns)
        dt_s = min(dt_s, (1 + is_moving) * self._interval_ns / NS_PER_S)
        setpoint = self._gate.limit(self._target(segment, reference, now_ns, dt_s), reference, dt_s)
        sent = arbiter.write(setpoint, interval_ns=self._interval_ns)
        if arbiter.delay is None or arbiter.delay.reference is None:
            self._gaps_ns.append(arbiter.last.after_ns - before_ns if is_moving else 0)
        self._skip_to_next(self._due_ns if is_moving else now_ns - self._interval_ns // 2, now_ns)
        return sent

    def _skip_to_next(self, due_ns: int, now_ns: int) -> None:
        """Set the deadline after `now_ns` on the grid of `due_ns`, without a burst of missed ones."""
        self._due_ns = due_ns + self._interval_ns * ((now_ns - due_ns) // self._interval_ns + 1)

    def _segment_to(self, command: ApprovedCommand, arbiter: _Writer, *, approved_ns: int, now_ns: int) -> Segment:
        """Return the segment from the last setpoint to `command`, with its first setpoint due now."""
        published = arbiter.reference
        goal = state_after(published if self._start is None else self._start, command, self._gate.layout.is_velocity)
        ends = (goal.positions - self._resting_positions(published)) / self._control_s
        return Segment(
            goal=goal,
            approved_ns=approved_ns,
            start_ns=max(arbiter.last.after_ns, now_ns - self._interval_ns),
            start_velocities=published.velocities,
            end_velocities=np.where(np.abs(ends) <= _NO_SPEED * self._gate.limits.fastest, 0.0, ends),
        )

    def _target(self, segment: Segment, published: CommandState, now_ns: int, dt_s: float) -> FloatArray:
        """Return the setpoint at `now_ns`, `dt_s` after the last, or the goal of an action server."""
        share = min(1.0, (now_ns - segment.start_ns) / self._period_ns)
        start, end = segment.start_velocities, segment.end_velocities
        positions = published.positions + (start + (end - start) * share) * dt_s
        return np.where(self._gate.limits.is_goal, segment.goal.positions, positions)

    def _is_over(self, segment: Segment, now_ns: int) -> bool:
        return now_ns - segment.start_ns > self._period_ns + (self._period_ns - self._interval_ns) // 2

    def _follows(self, segment: Segment, published: CommandState) -> bool:
        """Return whether motion is within one step of the goal, where the next step starts."""
        distances = np.abs(self._resting_positions(published) - segment.goal.positions)
        return bool((distances <= self._gate.limits.fastest * self._control_s).all())

    def _resting_reference(self, published: CommandState) -> CommandState:
        """Return the reference, q and w, of a step that follows no other, with room to brake."""
        x, w, limits = published.positions, published.velocities, self._gate.limits
        stop = w * w / (2.0 * limits.deceleration)
        low, high = np.minimum(x, limits.position_low + stop), np.maximum(x, limits.position_high - stop)
        return replace(published, positions=np.clip(self._resting_positions(published), low, high))

    def _resting_positions(self, published: CommandState) -> FloatArray:
        return np.asarray(published.positions + published.velocities * self._ahead_s)
