"""Limits a command (jerk, joint limits, filters, post-condition) and brakes within the same limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from embodied_env.contract import Contract, EffectiveLimits, FloatArray
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.batches import BoolArray, CommandStateBatch
from embodied_env.core.codes import Severity
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
    JointStep,
    brake_velocity,
    braking_bounds,
    is_in_safe_set,
    is_unrecoverable,
    joint_bounds,
    keeps_jerk,
    limit_jerk,
    limit_joint,
    limit_velocity,
    limit_violation,
)

_MOST_POINTS = 1000  # of a trajectory; a contract has less
ROUNDING = 4.0 * float(np.finfo(np.float64).eps)

MAX_REPRESENTABLE_SPEED = 1e100  # above it the arithmetic of the limits may overflow


class CommandLimiter:
    """Makes commands within every limit. Its only state is the limits in force."""

    def __init__(
        self, contract: Contract, *, filters: Mapping[str, CommandFilter], fixed_rate: bool, limits_elsewhere: bool
    ) -> None:
        self._mode = contract.safety.mode
        self.layout = ActionLayout(contract)
        self.has_velocity = bool(self.layout.is_velocity.any())
        self._is_velocity: list[bool] = self.layout.is_velocity.tolist()
        self._is_delta: list[bool] = self.layout.is_delta.tolist()
        self._has_delta = any(self._is_delta)
        self._is_goal, self._stop_goals = self.layout.is_goal, np.full(self.layout.size, np.nan)  # NaN: hold
        for name, part in self.layout.slices.items():
            if (gripper := contract.actuators[name].gripper) is not None and gripper.on_stop != "hold":
                self._stop_goals[part] = gripper.open if gripper.on_stop == "open" else gripper.closed
        scale = self.layout.scale
        self._si_range = list(zip(scale.si_low.tolist(), scale.si_high.tolist(), strict=True))
        self._box = list(zip(scale.low.tolist(), scale.high.tolist(), strict=True))
        self._bounds: list[JointBounds] = []
        self._before: list[JointBounds] | None = None  # wider limits that a joint may still brake from
        self.set_limits(self.layout.limits)
        self._filters = filters
        self._workspace = filters.get("workspace")
        self._fixed_rate = fixed_rate
        self._limits_elsewhere = limits_elsewhere
        self._keeps_limits = self._mode == "enforce" and not limits_elsewhere
        self._intervenes_from = Severity.LIMIT if self._mode == "enforce" else Severity.HOLD

    def set_limits(self, limits: EffectiveLimits, *, tighten: bool = False) -> None:
        """Enforce these limits; the action space stays that of the contract.

        With `tighten` a joint that moves too fast for them brakes into them from the limits before.
        """
        self._before = (self._before or self._bounds) if tighten else None
        self.is_tightening = tighten
        self._limits = limits
        self.has_jerk = bool(np.isfinite(limits.jerk).any())
        self._bounds = joint_bounds(limits)
        self._range = [(bounds.low, bounds.high) for bounds in self._bounds]

    def limit(
        self,
        target: FloatArray,
        reference: CommandState,
        dt_s: float,
        findings: list[Finding],
        requested: FloatArray,
        boxed: FloatArray | None = None,
    ) -> ApprovedCommand:
        """Limit, filter and check `target`. `boxed`: the action in the action space for `target`, if any."""
        joints = self.layout.joints
        if self._limits_elsewhere:
            velocities = np.where(self.layout.is_velocity, target, (target - reference.positions) / dt_s)
            applied = requested if boxed is None else boxed
            return self._approved(reference, dt_s, findings, requested, applied.copy(), target, velocities)
        smooth = self.limit_jerk(target, reference, dt_s)
        if smooth is not target:
            findings = findings + modification("jerk", "jerk.limit", joints, target, smooth)
        steps = self._steps(smooth, reference, dt_s)
        positions, velocities = np.array([step.position for step in steps]), np.array([step.velocity for step in steps])
        published = self._published(positions, velocities)
        found = limit_findings(joints, smooth, steps, published)
        if infeasible := [finding for finding in found if finding.code == "limits.infeasible"]:
            return self._refuse_infeasible(infeasible[0], reference, dt_s, findings, requested)
        findings = findings + found
        if self._filters:
            positions, velocities, found = self._apply_filters(positions, velocities, reference, dt_s)
            published = self._published(positions, velocities)
            if worst_severity(found) >= Severity.HOLD:
                return self.brake(reference, dt_s, findings + found, requested)
            findings += found
        if problem := self._violation(reference, positions, velocities, dt_s):
            finding = Finding(gate="post_condition", severity=Severity.STOP, code="fault.internal", detail=problem)
            return self.brake(reference, dt_s, [*findings, finding], requested)
        if boxed is not None and published.tolist() == target.tolist():
            applied = boxed
        else:
            applied = self.as_action(published, reference)
            if boxed is not None:
                np.copyto(applied, boxed, where=published == target)  # exactly the action where it was not changed
        return self._approved(reference, dt_s, findings, requested, applied, published, velocities)

    def brake(
        self, reference: CommandState, dt_s: float, findings: list[Finding], requested: FloatArray
    ) -> ApprovedCommand:
        """Approve full braking within the limits; with dt <= 0, repeat the last command.

        A STOP sends the grippers of action servers where their contract declares (`on_stop`).
        """
        sound = True
        if dt_s > 0.0:
            velocities = self._full_brake_velocities(reference, dt_s)
            positions = reference.positions + velocities * dt_s
            if worst_severity(findings) >= Severity.STOP:
                positions = np.where(np.isnan(self._stop_goals), positions, self._stop_goals)
            positions = self._clamp_position(positions, reference, dt_s)
            problem = self._violation(reference, positions, velocities, dt_s)
            sound = not problem
            if problem and not self._is_hopeless(reference, dt_s):
                raise InternalFaultError(f"braking would violate a limit, nothing is published: {problem}")
        else:
            positions, velocities = reference.positions.copy(), reference.velocities.copy()
        published = self._published(positions, velocities)
        applied = self.as_action(published, reference)
        return self._approved(reference, dt_s, findings, requested, applied, published, velocities, sound=sound)

    def extend(
        self, command: ApprovedCommand, reference: CommandState, actions: Iterable[FloatArray], due_ns: int
    ) -> ApprovedCommand:
        """Return `command` with the motion after it (`SafetyGate.extend`)."""
        dt_s, nothing = command.report.dt_s, np.full(self.layout.size, np.nan)
        is_velocity = self.layout.is_velocity
        points = [reference, state_after(reference, command, is_velocity)]
        for action in actions if command.report.disposition < Severity.HOLD else ():
            before, boxed = points[-1], self.boxed(action)
            approved = self.limit(self.target(boxed, before), before, dt_s, [], action, boxed)
            if approved.report.disposition >= Severity.HOLD:
                break
            points.append(state_after(before, approved, is_velocity))
        previewed = len(points) - 2
        while points[-1].velocities.any():
            if len(points) > _MOST_POINTS:
                raise InternalFaultError(f"trajectory not at rest after {_MOST_POINTS} points, nothing is published")
            braking = self.brake(points[-1], dt_s, [], nothing)
            points.append(state_after(points[-1], braking, is_velocity))
        trajectory = Trajectory(points=tuple(points), first_ns=due_ns, previewed=previewed)
        return approve_command(command.report, seq=command.seq, epoch=command.epoch, trajectory=trajectory)

    def boxed(self, action: FloatArray) -> FloatArray:
        """Return the nearest action in the action space: `action` itself inside it."""
        values = action.tolist()
        rows = zip(values, self._box, strict=True)
        boxed = [x if low <= x <= high else low if x < low else high for x, (low, high) in rows]
        return action if boxed == values else np.array(boxed)

    def monitor(
        self, requested: FloatArray, reference: CommandState, dt_s: float, findings: list[Finding]
    ) -> ApprovedCommand:
        """Report what the limits would change and change nothing; only non-finite SI values are refused."""
        with np.errstate(over="ignore", invalid="ignore"):
            target = self.target(requested, reference)
            velocities = np.where(self.layout.is_velocity, target, (target - reference.positions) / dt_s)
        if not (np.abs(velocities) < MAX_REPRESENTABLE_SPEED).all():
            detail = f"action is not finite in SI units: {requested.tolist()}"
            finding = Finding(gate="form", severity=Severity.HOLD, code="form.nan", detail=detail)
            return self.brake(reference, dt_s, [*findings, finding], requested)
        steps = self._steps(target, reference, dt_s)
        findings = [*findings, *limit_findings(self.layout.joints, target, steps, target)]
        return self._approved(reference, dt_s, findings, requested, requested, target, velocities)

    def limit_jerk(self, target: FloatArray, reference: CommandState | CommandStateBatch, dt_s: float) -> FloatArray:
        """Return the target nearest to `target` within the jerk limits; `target` itself without any."""
        limits = self._limits
        if not self.has_jerk:
            return target
        is_velocity, start = self.layout.is_velocity, reference.positions
        desired = np.where(is_velocity, target, (target - start) / dt_s)
        accelerations = np.zeros_like(desired) if reference.accelerations is None else reference.accelerations
        accelerations = np.where(reference.velocities == 0.0, 0.0, accelerations)  # braked to rest
        kept = limit_jerk(desired, reference.velocities, accelerations, limits, dt_s)
        return np.where(kept == desired, target, np.where(is_velocity, kept, start + kept * dt_s))

    def target(self, action: FloatArray, reference: CommandState) -> FloatArray:
        """Map an action to target positions or velocities; rounding never exceeds a bound."""
        mapped = self.layout.scale.each_to_si(action.tolist())
        return np.array(self._moved(mapped, reference, 1.0, self._range))

    def as_action(self, published: FloatArray, reference: CommandState) -> FloatArray:
        """Map published positions or velocities back to an action."""
        moved = self._moved(published.tolist(), reference, -1.0, self._si_range)
        return np.array(self.layout.scale.each_from_si(moved))

    def hold_action(self, reference: CommandState) -> FloatArray:
        """Return the action that holds the reference position at rest. Flat, shape (n_joints,)."""
        return self.as_action(self._published(reference.positions, np.zeros(self.layout.size)), reference)

    def _steps(self, target: FloatArray, reference: CommandState, dt_s: float) -> list[JointStep]:
        state = reference.positions.tolist(), reference.velocities.tolist(), target.tolist()
        rows = zip(*state, self._bounds_at(reference, dt_s), self._is_velocity, strict=True)
        return [
            limit_velocity(x, v, t, bounds, dt_s) if is_velocity else limit_joint(x, v, t, bounds, dt_s)
            for x, v, t, bounds, is_velocity in rows
        ]

    def _bounds_at(self, reference: CommandState, dt_s: float) -> list[JointBounds]:
        """Return the limits in force, narrowed by the uncertainty of measured positions."""
        widened = self._widened(reference, dt_s)
        if reference.slack is None:
            return widened
        return [
            replace(bounds, low=bounds.low + slack, high=bounds.high - slack)
            for bounds, slack in zip(widened, reference.slack.tolist(), strict=True)
        ]

    def _widened(self, reference: CommandState, dt_s: float) -> list[JointBounds]:
        """Return the limits in force, widened where a joint is still braking into them."""
        if self._before is None:
            return self._bounds
        state = zip(reference.positions.tolist(), reference.velocities.tolist(), strict=True)
        return [
            braking_bounds(x, v, narrow, before, dt_s)
            for (x, v), narrow, before in zip(state, self._bounds, self._before, strict=True)
        ]

    def _apply_filters(
        self, positions: FloatArray, velocities: FloatArray, reference: CommandState, dt_s: float
    ) -> tuple[FloatArray, FloatArray, list[Finding]]:
        """Apply the filters in turn; return positions, velocities and findings."""
        braking = self._full_brake_velocities(reference, dt_s)
        found: list[Finding] = []
        for name, command_filter in self._filters.items():
            proposal = ProposedCommand(
                joints=self.layout.joints,
                positions=_read_only(reference.positions),
                previous=_read_only(reference.velocities),
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
            velocities = braking + share * (velocities - braking)
            scaled = np.where(self._is_goal, positions, reference.positions + velocities * dt_s)
            positions = self._clamp_position(scaled, reference, dt_s)
            after = self._published(positions, velocities)
            detail = f"{name}: scaled to {share:.4g}: {decision.detail}"
            found += [replace(f, detail=detail) for f in modification(gate, code, self.layout.joints, before, after)]
        return positions, velocities, found

    def _violation(self, reference: CommandState, positions: FloatArray, velocities: FloatArray, dt_s: float) -> str:
        """Return the first violated limit of the exact values to be published, or ""; none while monitoring."""
        if self._mode == "monitor":
            return ""
        before = reference.positions.tolist(), reference.velocities.tolist()
        rows = zip(*before, positions.tolist(), velocities.tolist(), self._bounds_at(reference, dt_s), strict=True)
        for joint, row in enumerate(rows):
            if problem := limit_violation(*row, dt_s):
                return f"{self.layout.joints[joint]}: {problem}"
        return ""

    def _full_brake_velocities(self, reference: CommandState, dt_s: float) -> FloatArray:
        state = zip(reference.velocities.tolist(), self._bounds, strict=True)
        return np.array([brake_velocity(velocity, bounds, dt_s) for velocity, bounds in state])

    def _clamp_position(self, positions: FloatArray, reference: CommandState, dt_s: float) -> FloatArray:
        """Clip commanded positions to their limits; a joint already outside may not move further out."""
        low, high = self._limits.position_low, self._limits.position_high
        if self._before is not None:
            bounds = self._widened(reference, dt_s)
            low, high = np.array([b.low for b in bounds]), np.array([b.high for b in bounds])
        low, high = np.minimum(low, reference.positions), np.maximum(high, reference.positions)
        return np.where(self.layout.is_velocity, positions, np.clip(positions, low, high))

    def _refuse_infeasible(
        self, finding: Finding, reference: CommandState, dt_s: float, findings: list[Finding], requested: FloatArray
    ) -> ApprovedCommand:
        """STOP if commanded positions left the limits; HOLD if only measured ones did, since they lag."""
        measured = {joint for joint, by in zip(self.layout.joints, self.layout.is_velocity, strict=True) if by}
        severity = Severity.HOLD if measured.issuperset(finding.joints) else Severity.STOP
        return self.brake(reference, dt_s, [*findings, replace(finding, severity=severity)], requested)

    def _is_hopeless(self, reference: CommandState, dt_s: float) -> bool:
        """Tell whether even full braking violates a limit of some joint."""
        state = zip(reference.positions.tolist(), reference.velocities.tolist(), strict=True)
        bounds_at = self._bounds_at(reference, dt_s)
        return any(is_unrecoverable(x, v, bounds, dt_s) for (x, v), bounds in zip(state, bounds_at, strict=True))

    def _published(self, positions: FloatArray, velocities: FloatArray) -> FloatArray:
        """Return the values to send: velocities of joints commanded by velocity, else positions."""
        return np.where(self.layout.is_velocity, velocities, positions) if self.has_velocity else positions

    def _moved(
        self, values: list[float], reference: CommandState, sign: float, ranges: list[tuple[float, float]]
    ) -> list[float]:
        """Add (sign 1.0) or subtract the reference position of delta commands; rounding never exceeds a bound."""
        if not self._has_delta:
            return values
        moved = []
        rows = zip(values, reference.positions.tolist(), ranges, self._is_delta, strict=True)
        for value, start, (low, high), is_delta in rows:
            end = value + sign * start if is_delta else value
            if is_delta and not low <= end <= high:
                inside = min(max(end, low), high)
                end = inside if abs(end - inside) <= ROUNDING * (abs(start) + abs(end)) else end
            moved.append(end)
        return moved

    def _approved(  # noqa: PLR0913 - the parts of the report
        self,
        reference: CommandState,
        dt_s: float,
        findings: list[Finding],
        requested: FloatArray,
        applied: FloatArray,
        published: FloatArray,
        velocities: FloatArray,
        *,
        sound: bool = True,
    ) -> ApprovedCommand:
        """Return the approved command with its report; all arrays become read-only."""
        for array in (requested, applied, published, velocities):
            array.setflags(write=False)
        if reference.before_gap is not None:
            findings = [*findings, *gap_finding(self.layout.joints, reference.before_gap, reference.velocities)]
        is_late = self._late(reference, dt_s, velocities)
        any_late = any(is_late)
        if any_late and self._keeps_limits:
            findings = [*findings, tightened_finding(self.layout.joints, is_late, velocities)]
        disposition = worst_severity(findings)
        sound = sound and self._keeps_limits
        report = GateReport(
            disposition=disposition,
            findings=sorted_by_gate(findings),
            intervened=disposition >= self._intervenes_from,
            requested=requested,
            applied=applied,
            applied_si=published,
            velocity_si=velocities,
            dt_s=dt_s,
            guaranteed={
                "position": sound and not any_late and self._is_inside(reference, published),
                "velocity": sound and not any_late,
                "acceleration": sound,
                "jerk": sound and self.has_jerk and bool(self.keeps_jerk(reference, velocities, dt_s)),
                "workspace": sound and self._workspace is not None and getattr(self._workspace, "is_kept", False),
            },
        )
        return approve_command(report, seq=reference.seq + 1, epoch=reference.epoch)

    def _is_inside(self, reference: CommandState, published: FloatArray) -> bool:
        """Tell whether every position is certainly within its limits."""
        is_velocity = self.layout.is_velocity
        positions = np.where(is_velocity, reference.positions, published) if self.has_velocity else published
        slack = [0.0] * self.layout.size if reference.slack is None else reference.slack.tolist()
        for x, reach, (low, high) in zip(positions.tolist(), slack, self._range, strict=True):
            if not (x - reach >= low and x + reach <= high):
                return False
        return True

    def _late(self, reference: CommandState, dt_s: float, velocities: FloatArray) -> list[bool]:
        """Return which joints still violate tightened limits after this step."""
        if self._before is None:
            return []
        positions = reference.positions + velocities * dt_s
        state = zip(positions.tolist(), velocities.tolist(), strict=True)
        return [not is_in_safe_set(x, v, bounds) for (x, v), bounds in zip(state, self._bounds, strict=True)]

    def keeps_jerk(
        self, reference: CommandState | CommandStateBatch, velocities: FloatArray, dt_s: float
    ) -> np.bool_ | BoolArray:
        """Return whether every joint is certainly within its jerk limit; with rows of joints, for each row."""
        if not (self._fixed_rate and dt_s > 0.0):
            return np.zeros(velocities.shape[:-1], dtype=np.bool_)
        before = 0.0 if reference.accelerations is None else reference.accelerations
        return keeps_jerk((velocities - reference.velocities) / dt_s - before, self._limits, dt_s)


def _read_only(array: FloatArray) -> FloatArray:
    """Return a read-only copy, for plug-ins."""
    copy = array.copy()
    copy.flags.writeable = False
    return copy
