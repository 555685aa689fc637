"""The gate chain: an action goes in, an approved command comes out, with the reasons for every difference.

`embodied_env.safety.findings.GATES` is the order. Refuse before modifying, shape before limits, limits before what only
weakens; nothing runs after but the check of what is about to be published. The caller's array is never written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from embodied_env.contract import Contract, EffectiveLimits, FloatArray, JointLimits
from embodied_env.contract.runtime_values import are_equal, changed_limits, is_tighter
from embodied_env.core.codes import Severity
from embodied_env.core.types import ApprovedCommand, CommandState, Finding, SafetyContext
from embodied_env.safety.action_parsing import MalformedActionError, parse_action
from embodied_env.safety.command_filters import CommandFilter, reset_shaper
from embodied_env.safety.command_limiter import MAX_REPRESENTABLE_SPEED, CommandLimiter
from embodied_env.safety.findings import box_finding, latched_finding, worst_severity
from embodied_env.safety.interlocks import InterventionRate, make_interlocks, safety_input_findings

__all__ = ["CommandState", "SafetyGate"]


class SafetyGate:
    """Judges actions. It owns the latch and the count of malformed actions, and nothing else that changes."""

    def __init__(
        self,
        contract: Contract,
        *,
        shapers: Mapping[str, CommandFilter] | None = None,
        fixed_rate: bool = True,
        limits_elsewhere: bool = False,
    ) -> None:
        """Resolve the limits of `contract` after margins.

        Args:
            contract: says what is allowed.
            shapers: gates that weaken, by name, in order; ``workspace`` is the gate of that name.
            fixed_rate: dt is the same at every step, so jerk can be promised.
            limits_elsewhere: another process limits and has the last word: from the mapping on nothing is done here.
        """
        self._contract = contract
        self._mode = contract.safety.mode
        self._stop_after = contract.safety.nonfinite.stop_after
        self._shapers = dict(shapers or {})
        self._limiter = CommandLimiter(
            contract, shapers=self._shapers, fixed_rate=fixed_rate, limits_elsewhere=limits_elsewhere
        )
        self.layout = self._limiter.layout
        self._in_force = self._wanted = self.layout.limits
        scale = self.layout.scale
        self._box = list(zip(scale.low.tolist(), scale.high.tolist(), strict=True))
        self._refusals = make_interlocks(contract, self.layout)
        self._interventions = InterventionRate(contract.safety.intervention)
        self._malformed_in_a_row = 0
        self._latched: Finding | None = None

    @property
    def latched(self) -> Finding | None:
        """What latched a STOP or an ESTOP, or None."""
        return self._latched

    @property
    def limits(self) -> EffectiveLimits:
        """The limits in force, after margins."""
        return self._in_force

    @property
    def intervention_share(self) -> float:
        """Which share of the last steps, over the contract's window, was changed."""
        return self._interventions.share

    def latch(self, finding: Finding) -> None:
        """Latch a STOP or ESTOP. A latch is never weakened."""
        if self._latched is None or finding.severity > self._latched.severity:
            self._latched = finding

    def reset(self) -> None:
        """Begin an episode: a STOP is cleared, an ESTOP is not. Limits that were changed come into force."""
        self._enforce(self._wanted)
        self._malformed_in_a_row = 0
        self._interventions.reset()
        for refusal in self._refusals:
            refusal.reset()
        if self._latched is not None and self._latched.severity < Severity.ESTOP:
            self._latched = None
        for name, shaper in self._shapers.items():
            if problem := reset_shaper(shaper):
                detail = f"{name}: {problem}"
                self.latch(Finding(gate="plugins", severity=Severity.STOP, code="gate.plugin", detail=detail))

    def clear_estop(self) -> None:
        """Clear an ESTOP, out of band; a STOP is left, so nothing moves before `reset`. `step` never calls this."""
        if self._latched is not None:
            self._latched = replace(self._latched, severity=Severity.STOP)

    def change_limits(self, changes: Mapping[str, JointLimits]) -> bool:
        """Change the limits of joints, all or none. What is tighter holds at once, all else from the next `reset` on.

        Tighter is a smaller velocity or a narrower range. A joint that moves too fast for it brakes into it, at the
        contract's deceleration and no harder; until then reports say ``limits.tightened``, and guarantee neither
        position nor velocity. Another acceleration or jerk waits for a reset too.

        Args:
            changes: joint -> its limits, before margins. Those of the contract are the ceiling.

        Returns:
            Whether it is in force, and not only from the next `reset` on.

        Raises:
            UsageError: for a joint that is not there, or a limit beyond the contract's. Nothing has changed then.
            ContractError: for limits that no contract may have. Nothing has changed then.
        """
        wanted = changed_limits(self._contract, changes)
        if are_equal(wanted, self.layout.limits):
            wanted = self.layout.limits
        self._wanted = wanted
        if not is_tighter(wanted, self._in_force):
            return False
        self._tighten(wanted)
        return True

    def _tighten(self, limits: EffectiveLimits) -> None:
        self._in_force = limits
        self._limiter.tighten(limits)

    @property
    def changed(self) -> EffectiveLimits | None:
        """The limits in force where `change_limits` has changed them, or None."""
        return None if self._in_force is self.layout.limits else self._in_force

    def replay_limits(self, limits: EffectiveLimits | None, *, is_first: bool) -> None:
        """Enforce what `change_limits` had brought into force by a step of a run that is played back.

        Args:
            limits: those of the step; None: the contract's.
            is_first: it is the first step of an episode: the reset has brought them into force.
        """
        limits = self.layout.limits if limits is None else limits
        if are_equal(limits, self._in_force):
            return
        if is_first:
            self._enforce(limits)
        else:
            self._tighten(limits)

    @contextmanager
    def scaled_velocity_limits(self, share: float) -> Iterator[None]:
        """Keep this share of every velocity limit while it lasts, 0 < share <= 1. It begins at rest."""
        before = self._in_force
        self._enforce(replace(before, velocity=before.velocity * share))
        try:
            yield
        finally:
            self._enforce(before)

    def _enforce(self, limits: EffectiveLimits) -> None:
        self._in_force = limits
        self._limiter.set_limits(limits)

    def judge(
        self,
        action: Any,  # noqa: ANN401 - agents send anything
        reference: CommandState,
        dt_s: float,
        situation: SafetyContext | None = None,
    ) -> ApprovedCommand:
        """Pass `action` through the chain.

        Args:
            action: what the agent sent, of any type; never written.
            reference: the last published command.
            dt_s: seconds since it was published, at most the control period.
            situation: what is known beside the action; None: nothing beside it is judged.

        Returns:
            A command that keeps every limit: the action, the nearest admissible one, or braking.

        Raises:
            InternalFaultError: when even braking fails the post-condition. Nothing may be published then.
        """
        approved = self._latch_findings(self._judge(action, reference, dt_s, situation))
        self._interventions.count(intervened=approved.report.intervened)
        return approved

    def limit(self, target: FloatArray, reference: CommandState, dt_s: float) -> ApprovedCommand:
        """Pass a command through the chain from the joint limits on: what a relay does with what it is sent.

        Args:
            target: positions, or velocities of what is commanded so, shape (n_joints,), in units and units/s.
            reference: the last published command.
            dt_s: seconds since it was published, at most the control period.
        """
        target = np.array(target, dtype=np.float64)
        if self._latched is not None:
            return self._braked(reference, dt_s, [latched_finding(self._latched)])
        if not (np.abs(target) < MAX_REPRESENTABLE_SPEED).all():
            finding = Finding(gate="form", severity=Severity.HOLD, code="form.nan", detail=f"{target.tolist()}")
            return self._braked(reference, dt_s, [finding])
        if not dt_s > 0.0:
            return self._braked(reference, dt_s, [_no_time(dt_s)])
        requested = self._limiter.as_action(target, reference)
        return self._latch_findings(self._limiter.limit(target, reference, dt_s, [], requested))

    @property
    def has_velocity(self) -> bool:
        """Whether anything is commanded by velocity."""
        return self._limiter.has_velocity

    def hold_action(self, reference: CommandState) -> FloatArray:
        """Return the action that asks for the reference to stay as it is, at rest. Flat, shape (n_joints,)."""
        return self._limiter.hold_action(reference)

    def action_for(self, published: FloatArray, reference: CommandState) -> FloatArray:
        """Return the action that asks for `published`: positions, or velocities of what is commanded so. Flat."""
        return self._limiter.as_action(published, reference)

    def smoothed(self, target: FloatArray, reference: CommandState, dt_s: float) -> FloatArray:
        """Return the nearest command that keeps the jerk, where joints have a limit of it; shape (n_joints,)."""
        return self._limiter.limit_jerk(target, reference, dt_s)

    def brake(self, reference: CommandState, dt_s: float, finding: Finding) -> ApprovedCommand:
        """Return one tick of braking within the limits, for the reason given by `finding`."""
        return self._braked(reference, dt_s, [finding])

    def _braked(self, reference: CommandState, dt_s: float, findings: list[Finding]) -> ApprovedCommand:
        """Brake where nobody asked for anything."""
        return self._limiter.brake(reference, dt_s, findings, np.full(self.layout.size, np.nan))

    def _latch_findings(self, approved: ApprovedCommand) -> ApprovedCommand:
        """Latch what is to be latched."""
        for finding in approved.report.findings:
            if finding.severity >= Severity.STOP:
                self.latch(finding)
        return approved

    def _judge(
        self,
        action: Any,  # noqa: ANN401 - agents send anything
        reference: CommandState,
        dt_s: float,
        situation: SafetyContext | None,
    ) -> ApprovedCommand:
        """Refuse, or hand on what is an action."""
        inputs = [] if situation is None else safety_input_findings(situation.estops)
        for finding in inputs:
            if finding.severity >= Severity.STOP:
                self.latch(finding)  # also where the action is malformed
        try:
            requested = parse_action(action, self.layout)
        except MalformedActionError as error:
            beside = inputs if self._latched is not None else self._run_interlocks(situation, reference)
            return self._refuse_malformed(error, reference, dt_s, beside)
        if self._latched is not None:
            return self._limiter.brake(reference, dt_s, [latched_finding(self._latched), *inputs], requested)
        self._malformed_in_a_row = 0
        findings = self._run_interlocks(situation, reference) + self._downgrade_in_monitor_mode(
            self._interventions.check()
        )
        if not dt_s > 0.0:
            findings.append(_no_time(dt_s))
        if findings and worst_severity(findings) >= Severity.HOLD:
            return self._limiter.brake(reference, dt_s, findings, requested)
        boxed = requested
        if not self._is_within_box(requested):
            boxed = np.minimum(np.maximum(requested, self.layout.scale.low), self.layout.scale.high)
            findings += box_finding(self.layout, requested, boxed, self._mode)
        if self._mode == "monitor":
            return self._limiter.monitor(requested, reference, dt_s, findings)
        target = self._limiter.target(boxed, reference)
        return self._limiter.limit(target, reference, dt_s, findings, requested, boxed)

    def _is_within_box(self, requested: FloatArray) -> bool:
        """Tell whether an action is well inside of its space, and on none of its ends."""
        for value, (low, high) in zip(requested.tolist(), self._box, strict=True):  # noqa: SIM110 - faster than all()
            if not low < value < high:
                return False
        return True

    def _run_interlocks(self, situation: SafetyContext | None, reference: CommandState) -> list[Finding]:
        """Ask every gate that refuses. Of the inputs of the robot the latch is kept while monitoring, too."""
        if situation is None:
            return []
        found: list[Finding] = []
        for gate in self._refusals:
            if said := gate.check(situation, reference.positions):
                found += said
        return self._downgrade_in_monitor_mode(found)

    def _downgrade_in_monitor_mode(self, findings: list[Finding]) -> list[Finding]:
        """Monitoring says what would have been refused, and refuses nothing."""
        if self._mode == "enforce" or not findings:
            return findings
        return [replace(finding, severity=min(finding.severity, Severity.LIMIT)) for finding in findings]

    def _refuse_malformed(
        self, error: MalformedActionError, reference: CommandState, dt_s: float, beside: list[Finding]
    ) -> ApprovedCommand:
        """HOLD for a malformed action; STOP when too many come in a row, or for what is `beside` the action."""
        self._malformed_in_a_row += 1
        vector = np.full(self.layout.size, np.nan) if error.vector is None else error.vector
        findings = [Finding(gate="form", severity=Severity.HOLD, code=error.finding_code, detail=str(error)), *beside]
        if self._latched is not None:
            findings.append(latched_finding(self._latched))
        elif self._malformed_in_a_row >= self._stop_after:
            detail = f"{self._malformed_in_a_row} malformed actions in a row"
            findings.append(Finding(gate="form", severity=Severity.STOP, code="form.repeated", detail=detail))
        return self._limiter.brake(reference, dt_s, findings, vector)


def _no_time(dt_s: float) -> Finding:
    """No time has passed since the last command, or it went back."""
    return Finding(gate="joint_limits", severity=Severity.HOLD, code="clock.dt", detail=f"dt {dt_s} s")
