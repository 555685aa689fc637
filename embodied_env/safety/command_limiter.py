"""Limits a command (jerk, joint limits, filters, post-condition) and brakes within them.

A command passes as lists of floats, one per joint in contract order; its report has arrays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import add, le, sub

import numpy as np

from embodied_env.contract import Contract, EffectiveLimits, FloatArray
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.code_types import Severity
from embodied_env.core.types import ApprovedCommand, CommandState, Finding, GateReport, Trajectory
from embodied_env.errors import InternalFaultError
from embodied_env.safety.approved_commands import approve_command, state_after
from embodied_env.safety.command_filters import CommandFilter, ProposedCommand, ask_filter, scale_of
from embodied_env.safety.findings import (
    gap_finding,
    limit_findings,
    modification,
    sorted_by_gate,
    tightened_finding,
    worst_severity,
)
from embodied_env.safety.joint_limits import (
    JointBounds,
    brake_velocity,
    braking_bounds,
    find_violation,
    is_in_safe_set,
    is_unrecoverable,
    joint_bounds,
    keeps_jerk,
    limit_jerk,
    limit_joints,
)

ROUNDING = 4.0 * float(np.finfo(np.float64).eps)

_MAX_REPRESENTABLE_SPEED = 1e100  # above it the arithmetic of the limits may overflow
_MOST_POINTS = 1000  # points of a trajectory; those of a valid contract have fewer

_Start = tuple[list[float], list[float], list[JointBounds]]
"""The reference positions and velocities of the joints, and the limits of this step."""


class CommandLimiter:
    """Limiter of commands, whose only state is the limits in force."""

    def __init__(
        self, contract: Contract, *, filters: Mapping[str, CommandFilter], fixed_rate: bool, limits_elsewhere: bool
    ) -> None:
        self._has_limits = contract.safety.mode == "enforce"
        self.layout = ActionLayout(contract)
        self.has_velocity = bool(self.layout.is_velocity.any())
        self._is_velocity: list[bool] = self.layout.is_velocity.tolist()
        self._is_delta: list[bool] = self.layout.is_delta.tolist()
        self._has_delta = any(self._is_delta)
        self._is_goal: list[bool] = self.layout.is_goal.tolist()
        self._stop_goals: list[float | None] = []  # None: hold
        for actuator in contract.actuators.values():
            goal = None
            if (gripper := actuator.gripper) is not None and gripper.on_stop != "hold":
                goal = gripper.open if gripper.on_stop == "open" else gripper.closed
            self._stop_goals += [goal] * len(actuator.joints)
        scale = self.layout.scale
        self._si_range: tuple[list[float], list[float]] = scale.si_low.tolist(), scale.si_high.tolist()
        self._box: tuple[list[float], list[float]] = scale.low.tolist(), scale.high.tolist()
        self._bounds: list[JointBounds] = []
        self._before: list[JointBounds] | None = None  # wider limits that a joint may still brake from
        self.set_limits(self.layout.limits)
        self._filters = filters
        self._workspace = filters.get("workspace")
        self._fixed_rate = fixed_rate
        self._limits_elsewhere = limits_elsewhere
        self._keeps_limits = self._has_limits and not limits_elsewhere
        self._intervenes_from = Severity.LIMIT if self._has_limits else Severity.HOLD

    def set_limits(self, limits: EffectiveLimits, *, tighten: bool = False) -> None:
        """Enforce these limits, while the action space stays that of the contract.

        With `tighten` a joint that moves too fast for them brakes into them from the limits before.
        """
        self._before = (self._before or self._bounds) if tighten else None
        self.is_tightening = tighten
        self._limits = limits
        self.has_jerk = bool(np.isfinite(limits.jerk).any())
        layout, scale = self.layout, self.layout.scale
        extents = np.maximum(np.abs(scale.si_low), np.abs(scale.si_high))
        rounding = np.where(layout.is_delta | layout.is_velocity | ~np.isfinite(extents), 0.0, ROUNDING * extents)
        below, above = rounding * (limits.velocity_low == 0.0), rounding * (limits.velocity_high == 0.0)
        self.hold_within = (below, above) if below.any() or above.any() else None
        self._bounds = joint_bounds(limits)
        self._low: list[float] = limits.position_low.tolist()
        self._high: list[float] = limits.position_high.tolist()

    def limit(  # noqa: C901 - the order of the limits, from top to bottom
        self,
        requested: list[float],
        reference: CommandState,
        dt_s: float,
        findings: list[Finding],
        target: list[float] | None = None,
    ) -> ApprovedCommand:
        """Limit, filter and check an action's target, by default the nearest in the action space."""
        boxed, (low, high) = requested, self._box
        if target is None:
            if not (all(map(le, low, requested)) and all(map(le, requested, high))):
                boxed = self.boxed(requested)
                findings = [*findings, modification("space_box", "box.clip", self.layout.joints, requested, boxed)]
            target = self.target(boxed, reference)
        if self._limits_elsewhere:
            velocities = self._velocities(target, reference, dt_s)
            return self._approved(reference, dt_s, findings, requested, boxed, target, velocities)
        names, start = self.layout.joints, self._start(reference, dt_s)
        wanted = target
        if self.has_jerk:
            wanted = self.limit_jerk(np.array(target), reference, dt_s).tolist()
            if wanted != target:
                findings = [*findings, modification("jerk", "jerk.limit", names, target, wanted)]
        positions, velocities, limited = limit_joints(*start, wanted, self._is_velocity, dt_s)
        published = self._published(positions, velocities) if self.has_velocity else positions
        if limited:
            found = limit_findings(names, wanted, published, limited)
            for each in found:
                if each.code == "limits.infeasible":
                    return self._refuse_infeasible(each, reference, dt_s, findings, requested)
            findings = findings + found
        if self._filters:
            positions, velocities, found = self._apply_filters(start, positions, velocities, dt_s)
            published = self._published(positions, velocities)
            findings = findings + found
            if worst_severity(found) >= Severity.HOLD:
                return self.brake(reference, dt_s, findings, requested)
        if self._has_limits and (violation := find_violation(*start, positions, velocities, dt_s)):
            problem = f"{names[violation[0]]}: {violation[1]}"
            finding = Finding(gate="post_condition", severity=Severity.STOP, code="fault.internal", detail=problem)
            return self.brake(reference, dt_s, [*findings, finding], requested)
        applied = boxed if published == target else self._changed_action(boxed, target, published, reference)
        return self._approved(reference, dt_s, findings, requested, applied, published, velocities)

    def brake(
        self, reference: CommandState, dt_s: float, findings: list[Finding], requested: list[float]
    ) -> ApprovedCommand:
        """Approve full braking within the limits, or repeat the last command with dt <= 0.

        A STOP sends the grippers of action servers where their contract declares (`on_stop`).
        """
        sound = True
        start = positions, velocities, bounds = self._start(reference, dt_s)
        if dt_s > 0.0:
            velocities = [brake_velocity(v, b, dt_s) for v, b in zip(velocities, bounds, strict=True)]
            positions = [x + v * dt_s for x, v in zip(positions, velocities, strict=True)]
            if worst_severity(findings) >= Severity.STOP:
                positions = [x if goal is None else goal for x, goal in zip(positions, self._stop_goals, strict=True)]
            positions = self._clamped(positions, start)
            violation = find_violation(*start, positions, velocities, dt_s) if self._has_limits else None
            sound = violation is None
            if violation and not any(is_unrecoverable(*row, dt_s) for row in zip(*start, strict=True)):
                problem = f"{self.layout.joints[violation[0]]}: {violation[1]}"
                raise InternalFaultError(f"braking would violate a limit, nothing is published: {problem}")
        published = self._published(positions, velocities)
        applied = self.as_action(published, reference)
        return self._approved(reference, dt_s, findings, requested, applied, published, velocities, sound=sound)

    def extend(
        self, command: ApprovedCommand, reference: CommandState, actions: Iterable[list[float]], due_ns: int
    ) -> ApprovedCommand:
        """Return `command` with the motion after it (`SafetyGate.extend`)."""
        dt_s, nothing = command.report.dt_s, [math.nan] * self.layout.size
        is_velocity = self.layout.is_velocity
        points = [reference, state_after(reference, command, is_velocity)]
        for action in actions if command.report.disposition < Severity.HOLD else ():
            approved = self.limit(action, points[-1], dt_s, [])
            if approved.report.disposition >= Severity.HOLD:
                break
            points.append(state_after(points[-1], approved, is_velocity))
        previewed = len(points) - 2
        while points[-1].velocities.any():
            if len(points) > _MOST_POINTS:
                raise InternalFaultError(f"trajectory not at rest after {_MOST_POINTS} points, nothing is published")
            braking = self.brake(points[-1], dt_s, [], nothing)
            points.append(state_after(points[-1], braking, is_velocity))
        trajectory = Trajectory(points=tuple(points), first_ns=due_ns, previewed=previewed)
        return approve_command(command.report, seq=command.seq, epoch=command.epoch, trajectory=trajectory)

    def monitor(
        self, requested: list[float], reference: CommandState, dt_s: float, findings: list[Finding]
    ) -> ApprovedCommand:
        """Report what the limits would change, and refuse only non-finite SI values."""
        names, boxed = self.layout.joints, self.boxed(requested)
        if boxed != requested:
            unclipped = modification("space_box", "box.clip", names, requested, requested, limit=boxed)
            findings = [*findings, unclipped]
        target = self.target(requested, reference)
        velocities = self._velocities(target, reference, dt_s)
        if not are_representable(velocities):
            detail = f"action is not finite in SI units: {requested}"
            finding = Finding(gate="form", severity=Severity.HOLD, code="form.nan", detail=detail)
            return self.brake(reference, dt_s, [*findings, finding], requested)
        *_, limited = limit_joints(*self._start(reference, dt_s), target, self._is_velocity, dt_s)
        findings = findings + limit_findings(names, target, target, limited)
        return self._approved(reference, dt_s, findings, requested, requested, target, velocities)

    def limit_jerk(self, target: FloatArray, reference: CommandState, dt_s: float) -> FloatArray:
        """Return the target nearest to `target` within the jerk limits, or `target` without any.

        Arrays have the shape (..., n_joints).
        """
        limits = self._limits
        if not self.has_jerk:
            return target
        is_velocity, start = self.layout.is_velocity, reference.positions
        desired = np.where(is_velocity, target, (target - start) / dt_s)
        accelerations = np.zeros_like(desired) if reference.accelerations is None else reference.accelerations
        accelerations = np.where(reference.velocities == 0.0, 0.0, accelerations)  # braked to rest
        kept = limit_jerk(desired, reference.velocities, accelerations, limits, dt_s)
        return np.where(kept == desired, target, np.where(is_velocity, kept, start + kept * dt_s))

    def keeps_jerk(self, reference: CommandState, velocities: FloatArray, dt_s: float) -> bool:
        """Return whether every joint is certainly within its jerk limit."""
        if not (self._fixed_rate and dt_s > 0.0):
            return False
        before = 0.0 if reference.accelerations is None else reference.accelerations
        return bool(keeps_jerk((velocities - reference.velocities) / dt_s - before, self._limits, dt_s))

    def as_action(self, published: list[float], reference: CommandState) -> list[float]:
        """Map published positions or velocities back to an action."""
        if self._has_delta:
            published = self._moved(published, (-reference.positions).tolist(), *self._si_range)
        return self.layout.scale.each_from_si(published)

    def _changed_action(
        self, action: list[float], target: list[float], published: list[float], reference: CommandState
    ) -> list[float]:
        """Return `action` where `target` was published bit for bit, else the published action."""
        rows = zip(action, target, published, self.as_action(published, reference), strict=True)
        return [given if sent == wanted else changed for given, wanted, sent, changed in rows]

    def target(self, action: list[float], reference: CommandState) -> list[float]:
        """Map an action to target positions or velocities without exceeding a bound by rounding.

        Rounding does not move a joint that has one direction only either, since the action that holds it maps onto its
        position.
        """
        target, positions = self.layout.scale.each_to_si(action), reference.positions.tolist()
        if self._has_delta:
            target = self._moved(target, positions, self._low, self._high)
        if self.hold_within is not None:
            below, above = self.hold_within
            rows = zip(target, positions, below.tolist(), above.tolist(), strict=True)
            target = [x if x - back < y < x + ahead else y for y, x, back, ahead in rows]
        return target

    def _moved(self, values: list[float], starts: list[float], lows: list[float], highs: list[float]) -> list[float]:
        """Add `starts` to the values of delta commands without exceeding a bound by rounding."""
        moved = []
        for value, start, low, high, is_delta in zip(values, starts, lows, highs, self._is_delta, strict=True):
            end = value + start if is_delta else value
            if is_delta and not low <= end <= high:
                inside = min(max(end, low), high)
                end = inside if abs(end - inside) <= ROUNDING * (abs(start) + abs(end)) else end
            moved.append(end)
        return moved

    def boxed(self, action: list[float]) -> list[float]:
        """Return the nearest action in the action space."""
        low, high = self._box
        return list(map(min, map(max, action, low), high))

    def _velocities(self, target: list[float], reference: CommandState, dt_s: float) -> list[float]:
        rows = zip(target, reference.positions.tolist(), self._is_velocity, strict=True)
        return [t if is_velocity else (t - x) / dt_s for t, x, is_velocity in rows]

    def _published(self, positions: list[float], velocities: list[float]) -> list[float]:
        """Return the velocities of joints commanded by velocity, and the positions of the others."""
        rows = zip(positions, velocities, self._is_velocity, strict=True)
        return [v if is_velocity else x for x, v, is_velocity in rows]

    def _start(self, reference: CommandState, dt_s: float) -> _Start:
        """Return the position, velocity and limits of each joint.

        The limits in force are widened where a joint still brakes into them, and narrowed by the uncertainty of a
        measured position.
        """
        positions, velocities, bounds = reference.positions.tolist(), reference.velocities.tolist(), self._bounds
        if self._before is not None:
            rows = zip(positions, velocities, bounds, self._before, strict=True)
            bounds = [braking_bounds(x, v, narrow, before, dt_s) for x, v, narrow, before in rows]
        if reference.slack is not None:
            slacks = zip(bounds, reference.slack.tolist(), strict=True)
            bounds = [replace(b, low=b.low + slack, high=b.high - slack) for b, slack in slacks]
        return positions, velocities, bounds

    def _apply_filters(
        self, start: _Start, positions: list[float], velocities: list[float], dt_s: float
    ) -> tuple[list[float], list[float], list[Finding]]:
        joints, (before_x, before_v, bounds) = self.layout.joints, start
        braking = [brake_velocity(v, b, dt_s) for v, b in zip(before_v, bounds, strict=True)]
        found: list[Finding] = []
        for name, command_filter in self._filters.items():
            proposal = ProposedCommand(
                joints=joints,
                positions=_read_only(before_x),
                previous=_read_only(before_v),
                velocities=_read_only(velocities),
                braking=_read_only(braking),
                dt_s=dt_s,
            )
            decision = ask_filter(command_filter, proposal)
            if decision.severity is Severity.PASS:
                continue
            gate, code = ("workspace", "ws.keepout") if name == "workspace" else ("plugins", "gate.plugin")
            share = scale_of(decision)
            if share == 0.0:
                severity = max(decision.severity, Severity.HOLD)
                found.append(Finding(gate=gate, severity=severity, code=code, detail=f"{name}: {decision.detail}"))
                continue
            before = self._published(positions, velocities)
            velocities = [slow + share * (fast - slow) for slow, fast in zip(braking, velocities, strict=True)]
            rows = zip(before_x, positions, velocities, self._is_goal, strict=True)
            scaled = [goal if is_goal else x + v * dt_s for x, goal, v, is_goal in rows]
            positions = self._clamped(scaled, start)
            after = self._published(positions, velocities)
            if before != after:
                detail = f"{name}: scaled to {share:.4g}: {decision.detail}"
                found.append(replace(modification(gate, code, joints, before, after), detail=detail))
        return positions, velocities, found

    def _clamped(self, positions: list[float], start: _Start) -> list[float]:
        """Clip commanded positions to their limits, or to `start` for a joint already outside."""
        return [
            y if is_velocity else min(max(y, min(b.low, x)), max(b.high, x))
            for y, x, b, is_velocity in zip(positions, start[0], start[2], self._is_velocity, strict=True)
        ]

    def _refuse_infeasible(
        self, finding: Finding, reference: CommandState, dt_s: float, findings: list[Finding], requested: list[float]
    ) -> ApprovedCommand:
        """STOP if commanded positions left the limits, or HOLD if only lagging measured ones did."""
        measured = {joint for joint, by in zip(self.layout.joints, self._is_velocity, strict=True) if by}
        severity = Severity.HOLD if measured.issuperset(finding.joints) else Severity.STOP
        return self.brake(reference, dt_s, [*findings, replace(finding, severity=severity)], requested)

    def _approved(  # noqa: PLR0913 - the parts of the report
        self,
        reference: CommandState,
        dt_s: float,
        findings: list[Finding],
        requested: list[float],
        applied: list[float],
        published: list[float],
        velocities: list[float],
        *,
        sound: bool = True,
    ) -> ApprovedCommand:
        sound, any_late = sound and self._keeps_limits, False
        if reference.before_gap is not None:
            before_gap, used = reference.before_gap.tolist(), reference.velocities.tolist()
            if before_gap != used:
                findings = [*findings, gap_finding(self.layout.joints, before_gap, used)]
        if self._before is not None and (late := self._late_joints(reference, dt_s, velocities)):
            any_late = True
            if self._keeps_limits:
                findings = [*findings, tightened_finding(self.layout.joints, late, velocities)]
        positions = published
        if self.has_velocity:
            rows = zip(published, reference.positions.tolist(), self._is_velocity, strict=True)
            positions = [x if is_velocity else sent for sent, x, is_velocity in rows]
        lowest = highest = positions
        if reference.slack is not None:
            slack = reference.slack.tolist()
            lowest, highest = list(map(sub, positions, slack)), list(map(add, positions, slack))
        is_inside = all(map(le, self._low, lowest)) and all(map(le, highest, self._high))  # certainly
        disposition = worst_severity(findings) if findings else Severity.PASS
        given, sent, velocity_si = np.array(requested), np.array(published), np.array(velocities)
        done = given if applied is requested else np.array(applied)
        for array in (given, done, sent, velocity_si):
            array.setflags(write=False)
        report = GateReport(
            disposition=disposition,
            findings=sorted_by_gate(findings) if findings else (),
            intervened=disposition >= self._intervenes_from,
            requested=given,
            applied=done,
            applied_si=sent,
            velocity_si=velocity_si,
            dt_s=dt_s,
            guaranteed={
                "position": sound and not any_late and is_inside,
                "velocity": sound and not any_late,
                "acceleration": sound,
                "jerk": sound and self.has_jerk and self.keeps_jerk(reference, velocity_si, dt_s),
                "workspace": sound and self._workspace is not None and getattr(self._workspace, "is_kept", False),
            },
        )
        return approve_command(report, seq=reference.seq + 1, epoch=reference.epoch)

    def _late_joints(self, reference: CommandState, dt_s: float, velocities: list[float]) -> list[int]:
        """Return the joints that still violate tightened limits after this step."""
        rows = zip(reference.positions.tolist(), velocities, self._bounds, strict=True)
        return [i for i, (x, v, bounds) in enumerate(rows) if not is_in_safe_set(x + v * dt_s, v, bounds)]


def are_representable(velocities: Iterable[float]) -> bool:
    """Return whether the arithmetic of the limits cannot overflow at these values."""
    return all(abs(v) < _MAX_REPRESENTABLE_SPEED for v in velocities)


def _read_only(values: Sequence[float]) -> FloatArray:
    array = np.array(values)
    array.setflags(write=False)
    return array
