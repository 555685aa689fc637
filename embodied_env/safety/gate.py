"""The gate chain: an action goes in, an approved command comes out, with the reasons for every difference.

Order: latch, form, space box, mapping, joint limits, post-condition. Refuse before modifying, shape before limits;
nothing runs after the limiter but the check of what it made. The caller's array is never written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from embodied_env.contract import Contract, EffectiveLimits, FloatArray
from embodied_env.contract.spaces import ActionLayout
from embodied_env.errors import InternalFaultError
from embodied_env.safety.form import MalformedActionError, read_action
from embodied_env.safety.limits import (
    Bounds,
    JointStep,
    brake_velocity,
    is_hopeless,
    limit_joint,
    limit_velocity,
    violation,
)
from embodied_env.transition import CODES, Approved, Finding, GateReport, Severity

GATES = ("latch", "form", "space_box", "mapping", "joint_limits", "post_condition", "watchdog")
"""The gates in order: the axis of ``info["safety"]["severity"]`` and ``["code"]``. The watchdog stands beside them."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The last published command: positions and velocities of shape (n_joints,), its number, and its epoch.

    What is commanded by velocity has its measured position here, and zero when it has no position limits; `slack` is
    how far it may have moved since it was measured, in the joint's unit (None: not at all).
    """

    positions: FloatArray
    velocities: FloatArray
    seq: int
    epoch: int
    slack: FloatArray | None = None


_ROUNDING = 4.0 * float(np.finfo(np.float64).eps)

_ABSURD = 1e100  # a speed at which even the arithmetic of the limits overflows; only monitoring lets one come so far


class SafetyGate:
    """Judges actions. It owns the latch and the count of malformed actions, and nothing else that changes."""

    def __init__(self, contract: Contract) -> None:
        """Resolve the limits of `contract` after margins."""
        self._mode = contract.safety.mode
        self._stop_after = contract.safety.nonfinite.stop_after
        self.layout = ActionLayout(contract)
        self._bounds = joint_bounds(self.layout.limits)
        self._malformed_in_a_row = 0
        self._latched: Finding | None = None

    @property
    def latched(self) -> Finding | None:
        """What latched a STOP or an ESTOP, or None."""
        return self._latched

    def latch(self, finding: Finding) -> None:
        """Latch a STOP or ESTOP. A latch is never weakened."""
        if self._latched is None or finding.severity > self._latched.severity:
            self._latched = finding

    def reset(self) -> None:
        """Begin an episode: a STOP is cleared, an ESTOP is not."""
        self._malformed_in_a_row = 0
        if self._latched is not None and self._latched.severity < Severity.ESTOP:
            self._latched = None

    def clear_estop(self) -> None:
        """Clear an ESTOP, out of band; a STOP is left, so nothing moves before `reset`. `step` never calls this."""
        if self._latched is not None:
            self._latched = replace(self._latched, severity=Severity.STOP)

    def judge(self, action: Any, reference: Reference, dt_s: float) -> Approved:  # noqa: ANN401 - agents send anything
        """Pass `action` through the chain.

        Args:
            action: what the agent sent, of any type; never written.
            reference: the last published command.
            dt_s: seconds since it was published, at most the control period.

        Returns:
            A command that keeps every limit: the action, the nearest admissible one, or braking.

        Raises:
            InternalFaultError: when even braking fails the post-condition. Nothing may be published then.
        """
        try:
            requested = read_action(action, self.layout)
        except MalformedActionError as error:
            return self._refuse_malformed(error, reference, dt_s)
        if self._latched is not None:
            return self._approve_braking(reference, dt_s, [_as_latch(self._latched)], requested)
        self._malformed_in_a_row = 0
        if not dt_s > 0.0:
            finding = Finding(gate="joint_limits", severity=Severity.HOLD, code="clock.dt", detail=f"dt {dt_s} s")
            return self._approve_braking(reference, dt_s, [finding], requested)
        return self._limit(requested, reference, dt_s)

    def brake(self, reference: Reference, dt_s: float, finding: Finding) -> Approved:
        """Return one tick of braking within the limits, for the reason given by `finding`."""
        return self._approve_braking(reference, dt_s, [finding], np.full(self.layout.size, np.nan))

    def _refuse_malformed(self, error: MalformedActionError, reference: Reference, dt_s: float) -> Approved:
        """HOLD for a malformed action; STOP when too many come in a row."""
        self._malformed_in_a_row += 1
        vector = np.full(self.layout.size, np.nan) if error.vector is None else error.vector
        findings = [Finding(gate="form", severity=Severity.HOLD, code=error.finding_code, detail=str(error))]
        if self._latched is not None:
            findings.insert(0, _as_latch(self._latched))
        elif self._malformed_in_a_row >= self._stop_after:
            detail = f"{self._malformed_in_a_row} malformed actions in a row"
            findings.append(Finding(gate="form", severity=Severity.STOP, code="form.repeated", detail=detail))
            self.latch(findings[-1])
        return self._approve_braking(reference, dt_s, findings, vector)

    def _limit(self, requested: FloatArray, reference: Reference, dt_s: float) -> Approved:
        """Space box, mapping, joint limits, post-condition."""
        layout = self.layout
        boxed = np.minimum(np.maximum(requested, layout.scale.low), layout.scale.high)
        clipped = boxed != requested
        findings = [_box_finding(layout, requested, boxed, clipped, self._mode)] if clipped.any() else []
        if self._mode == "monitor":
            return self._monitor(requested, reference, dt_s, findings)
        target = self._target(boxed, reference)
        steps = self._steps(target, reference, dt_s)
        positions = np.array([step.position for step in steps])
        velocities = np.array([step.velocity for step in steps])
        published = self._published(positions, velocities)
        limited = _limit_findings(layout, target, steps, published)
        if infeasible := [finding for finding in limited if finding.code == "limits.infeasible"]:
            return self._refuse_infeasible(infeasible[0], reference, dt_s, findings, requested)
        findings += limited
        if problem := self._violation(reference, positions, velocities, dt_s):
            finding = Finding(gate="post_condition", severity=Severity.STOP, code="fault.internal", detail=problem)
            self.latch(finding)
            return self._approve_braking(reference, dt_s, [*findings, finding], requested)
        kept = np.array([not step.code for step in steps])
        applied = np.where(kept, boxed, self._as_action(published, reference))
        return self._approved(reference, dt_s, findings, requested, applied, published, velocities)

    def _refuse_infeasible(
        self, finding: Finding, reference: Reference, dt_s: float, findings: list[Finding], requested: FloatArray
    ) -> Approved:
        """STOP where our own commands led outside of the limits; HOLD where a measured position says so: it lags."""
        measured = {joint for joint, by in zip(self.layout.joints, self.layout.is_velocity, strict=True) if by}
        severity = Severity.HOLD if measured.issuperset(finding.joints) else Severity.STOP
        refused = replace(finding, severity=severity)
        if severity is Severity.STOP:
            self.latch(refused)
        return self._approve_braking(reference, dt_s, [*findings, refused], requested)

    def _published(self, positions: FloatArray, velocities: FloatArray) -> FloatArray:
        """Return what is sent of a step: the velocities of what is commanded so, else the positions."""
        return np.where(self.layout.is_velocity, velocities, positions)

    def hold_action(self, reference: Reference) -> FloatArray:
        """Return the action that asks for the reference to stay as it is, at rest. Flat, shape (n_joints,)."""
        return self._as_action(self._published(reference.positions, np.zeros(self.layout.size)), reference)

    def _target(self, action: FloatArray, reference: Reference) -> FloatArray:
        """Map an action to the positions or velocities that it asks for. Rounding does not lead over a bound."""
        mapped = self.layout.scale.to_si(action)
        limits = self.layout.limits
        moved = _undo_rounding(
            reference.positions + mapped, reference.positions, limits.position_low, limits.position_high
        )
        return np.where(self.layout.is_delta, moved, mapped)

    def _as_action(self, published: FloatArray, reference: Reference) -> FloatArray:
        """Map what is published back to the action that asks for it."""
        scale = self.layout.scale
        moved = _undo_rounding(published - reference.positions, reference.positions, scale.si_low, scale.si_high)
        return scale.from_si(np.where(self.layout.is_delta, moved, published))

    def _steps(self, target: FloatArray, reference: Reference, dt_s: float) -> list[JointStep]:
        """Limit joint by joint."""
        state = zip(reference.positions.tolist(), reference.velocities.tolist(), target.tolist(), strict=True)
        return [
            limit_velocity(x, v, t, bounds, dt_s) if is_velocity else limit_joint(x, v, t, bounds, dt_s)
            for (x, v, t), bounds, is_velocity in zip(
                state, self._bounds_at(reference), self.layout.is_velocity, strict=True
            )
        ]

    def _bounds_at(self, reference: Reference) -> list[Bounds]:
        """Return the limits that hold here: nearer by as much as a measured position may be off."""
        if reference.slack is None:
            return self._bounds
        return [
            replace(bounds, low=bounds.low + slack, high=bounds.high - slack)
            for bounds, slack in zip(self._bounds, reference.slack.tolist(), strict=True)
        ]

    def _is_inside(self, reference: Reference, published: FloatArray) -> bool:
        """Tell whether every position is known to be within its limits."""
        slack = 0.0 if reference.slack is None else reference.slack
        positions = np.where(self.layout.is_velocity, reference.positions, published)
        low, high = self.layout.limits.position_low, self.layout.limits.position_high
        return bool(((positions - slack >= low) & (positions + slack <= high)).all())

    def _monitor(self, requested: FloatArray, reference: Reference, dt_s: float, findings: list[Finding]) -> Approved:
        """Report what the limits would do, and do none of it; only what is no number in SI units is refused."""
        with np.errstate(over="ignore", invalid="ignore"):
            target = self._target(requested, reference)
            velocities = np.where(self.layout.is_velocity, target, (target - reference.positions) / dt_s)
        if not (np.abs(velocities) < _ABSURD).all():
            detail = f"the action {requested.tolist()} is not finite in SI units"
            finding = Finding(gate="form", severity=Severity.HOLD, code="form.nan", detail=detail)
            return self._approve_braking(reference, dt_s, [*findings, finding], requested)
        steps = self._steps(target, reference, dt_s)
        findings = [*findings, *_limit_findings(self.layout, target, steps, target)]
        return self._approved(reference, dt_s, findings, requested, requested, target, velocities)

    def _approve_braking(
        self, reference: Reference, dt_s: float, findings: list[Finding], requested: FloatArray
    ) -> Approved:
        """Approve full braking within the limits; with dt <= 0 no time has passed and the last command is repeated."""
        sound = True
        if dt_s > 0.0:
            velocities = np.array(
                [brake_velocity(v, b, dt_s) for v, b in zip(reference.velocities.tolist(), self._bounds, strict=True)]
            )
            positions = self._kept_inside(reference.positions + velocities * dt_s, reference)
            problem = self._violation(reference, positions, velocities, dt_s)
            sound = not problem
            if problem and not self._is_hopeless(reference, dt_s):
                raise InternalFaultError(f"braking breaks a limit, nothing is published: {problem}")
        else:
            positions, velocities = reference.positions.copy(), reference.velocities.copy()
        published = self._published(positions, velocities)
        applied = self._as_action(published, reference)
        return self._approved(reference, dt_s, findings, requested, applied, published, velocities, sound=sound)

    def _kept_inside(self, positions: FloatArray, reference: Reference) -> FloatArray:
        """Keep commanded positions inside their limits, and a joint found outside from going further out."""
        low = np.minimum(self.layout.limits.position_low, reference.positions)
        high = np.maximum(self.layout.limits.position_high, reference.positions)
        return np.where(self.layout.is_velocity, positions, np.clip(positions, low, high))

    def _violation(self, reference: Reference, positions: FloatArray, velocities: FloatArray, dt_s: float) -> str:
        """Return the first broken limit of the exact values to be published, or "". Monitoring promises none."""
        if self._mode == "monitor":
            return ""
        for i, bounds in enumerate(self._bounds_at(reference)):
            problem = violation(
                float(reference.positions[i]),
                float(reference.velocities[i]),
                float(positions[i]),
                float(velocities[i]),
                bounds,
                dt_s,
            )
            if problem:
                return f"{self.layout.joints[i]}: {problem}"
        return ""

    def _is_hopeless(self, reference: Reference, dt_s: float) -> bool:
        """Tell whether a joint is where not even braking keeps every limit."""
        state = zip(
            reference.positions.tolist(), reference.velocities.tolist(), self._bounds_at(reference), strict=True
        )
        return any(is_hopeless(x, v, bounds, dt_s) for x, v, bounds in state)

    def _approved(  # noqa: PLR0913 - the parts of the report
        self,
        reference: Reference,
        dt_s: float,
        findings: list[Finding],
        requested: FloatArray,
        applied: FloatArray,
        published: FloatArray,
        velocities: FloatArray,
        *,
        sound: bool = True,
    ) -> Approved:
        """Build the approved command and its report, to be read only: the only place that makes an `Approved`."""
        for array in (requested, applied, published, velocities):
            array.flags.writeable = False
        disposition = max((finding.severity for finding in findings), default=Severity.PASS)
        sound = sound and self._mode == "enforce"
        report = GateReport(
            disposition=disposition,
            findings=tuple(findings),
            intervened=disposition >= (Severity.LIMIT if self._mode == "enforce" else Severity.HOLD),
            requested=requested,
            applied=applied,
            applied_si=published,
            velocity_si=velocities,
            dt_s=dt_s,
            guaranteed={
                "position": sound and self._is_inside(reference, published),
                "velocity": sound,
                "acceleration": sound,
                "jerk": False,
            },
        )
        return Approved(values=published, seq=reference.seq + 1, epoch=reference.epoch, report=report)


def _undo_rounding(value: FloatArray, reference: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
    """Put what rounding carried over a bound back on it. `value` is a sum or difference with `reference`."""
    inside = np.clip(value, low, high)
    return np.where(np.abs(value - inside) <= _ROUNDING * (np.abs(reference) + np.abs(value)), inside, value)


def joint_bounds(limits: EffectiveLimits) -> list[Bounds]:
    """Return the limits joint by joint, as plain floats."""
    return [
        Bounds(low=low, high=high, velocity=velocity, acceleration=acceleration, deceleration=deceleration)
        for low, high, velocity, acceleration, deceleration in zip(
            limits.position_low.tolist(),
            limits.position_high.tolist(),
            limits.velocity.tolist(),
            limits.acceleration.tolist(),
            limits.deceleration.tolist(),
            strict=True,
        )
    ]


def severity_and_code(report: GateReport) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return per gate of `GATES` its severity (int8) and the number of the code of its gravest finding (int16)."""
    severity = np.zeros(len(GATES), dtype=np.int8)
    code = np.zeros(len(GATES), dtype=np.int16)
    for finding in report.findings:
        gate = GATES.index(finding.gate)
        if finding.severity >= severity[gate]:
            severity[gate] = finding.severity
            code[gate] = CODES[finding.code]
    return severity, code


def _as_latch(latched: Finding) -> Finding:
    code = "latch.estop" if latched.severity is Severity.ESTOP else "latch.stop"
    return Finding(gate="latch", severity=latched.severity, code=code, detail=f"latched by {latched.code}")


def _box_finding(
    layout: ActionLayout, requested: FloatArray, boxed: FloatArray, clipped: np.ndarray[Any, Any], mode: str
) -> Finding:
    passed_on = requested if mode == "monitor" else boxed
    return Finding(
        gate="space_box",
        severity=Severity.LIMIT,
        code="box.clip",
        joints=tuple(name for name, hit in zip(layout.joints, clipped, strict=True) if hit),
        before=requested[clipped],
        after=passed_on[clipped],
        limit=boxed[clipped],
        margin=passed_on[clipped] - requested[clipped],
    )


def _limit_findings(
    layout: ActionLayout, target: FloatArray, steps: list[JointStep], published: FloatArray
) -> list[Finding]:
    """One finding per bound that held, with the joints it held."""
    findings = []
    codes = sorted({step.code for step in steps if step.code}, key=lambda code: CODES[code])
    for code in codes:
        hit = np.array([step.code == code for step in steps])
        findings.append(
            Finding(
                gate="joint_limits",
                severity=Severity.LIMIT,
                code=code,
                joints=tuple(name for name, is_hit in zip(layout.joints, hit, strict=True) if is_hit),
                before=target[hit],
                after=published[hit],
                limit=np.array([step.bound for step in steps])[hit],
                margin=published[hit] - target[hit],
            )
        )
    return findings
