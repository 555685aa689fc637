"""Turn an action into an approved command, and report the reasons for every difference.

The order is `embodied_env.core.code_table.GATES`: interlocks refuse, then limits clip, then filters scale down; only
the post-condition on the exact values to be published follows. The caller's array is never written.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from embodied_env.contract import Contract, EffectiveLimits, FloatArray, JointLimits
from embodied_env.contract.runtime_values import are_equal, changed_limits, is_tighter
from embodied_env.contract.safety_schema import Intervention
from embodied_env.core.code_types import Severity
from embodied_env.core.types import ApprovedCommand, CommandState, Finding, SafetyContext
from embodied_env.processes.signals import Terminated
from embodied_env.safety.action_parsing import NO_ACTION, MalformedActionError, parse_action
from embodied_env.safety.command_filters import CommandFilter
from embodied_env.safety.command_limiter import CommandLimiter, are_representable
from embodied_env.safety.findings import latched_finding, rate_finding, safety_input_findings, worst_severity
from embodied_env.safety.interlocks.plugin_interlock import make_interlocks


class SafetyGate:
    """Gate that judges actions by the latch, the limits in force and its interlocks.

    Attributes:
        has_velocity: whether any joint is commanded by velocity.
        limits: those in force, after margins.
        changed: the limits in force where `change_limits` has changed them, or None.
        is_latched: whether a STOP or an ESTOP is latched.
    """

    def __init__(
        self,
        contract: Contract,
        *,
        filters: Mapping[str, CommandFilter] | None = None,
        fixed_rate: bool = True,
        limits_elsewhere: bool = False,
    ) -> None:
        """Resolve the limits of `contract` after margins.

        `filters` are applied in order; ``workspace`` is the gate of that name. With `fixed_rate` dt is the same at
        every step, so that jerk can be guaranteed. With `limits_elsewhere` a relay limits the command instead.
        """
        self.contract = contract
        self._mode = contract.safety.mode
        self._stop_after = contract.safety.nonfinite.stop_after
        self._filters = dict(filters or {})
        self._limiter = CommandLimiter(
            contract, filters=self._filters, fixed_rate=fixed_rate, limits_elsewhere=limits_elsewhere
        )
        self.layout = self._limiter.layout
        self.limits = self._wanted = self.layout.limits
        self.changed: EffectiveLimits | None = None
        self.interlocks = make_interlocks(contract, self.layout)
        self.interventions = InterventionRate(contract.safety.intervention)
        self.has_velocity = self._limiter.has_velocity
        self._malformed_in_a_row = 0
        self._latched: Finding | None = None
        self.is_latched = False

    @property
    def latched(self) -> Finding | None:
        """A copy of the finding that latched a STOP or an ESTOP, or None."""
        return None if self._latched is None else replace(self._latched)

    @property
    def is_ordinary(self) -> bool:
        """Whether nothing is latched or malformed, and limits are and were the contract's."""
        is_sound = self._latched is None and not self._malformed_in_a_row
        return is_sound and self.changed is None and not self._limiter.is_tightening

    def latch(self, finding: Finding) -> None:
        """Latch a finding, unless the latch is at least as severe."""
        if self._latched is None or finding.severity > self._latched.severity:
            self._latched = replace(finding)  # its own, since that of a report may be changed
            self.is_latched = True

    def latch_stops(self, findings: Iterable[Finding]) -> None:
        """Latch each STOP or ESTOP of `findings`."""
        for finding in findings:
            if finding.severity >= Severity.STOP:
                self.latch(finding)

    def reset(self) -> None:
        """Begin an episode, which clears a STOP, keeps an ESTOP and enforces changed limits."""
        self._enforce(self._wanted)
        self._malformed_in_a_row = 0
        self.interventions.reset()
        for interlock in self.interlocks:
            interlock.reset()
        if self._latched is not None and self._latched.severity < Severity.ESTOP:
            self._latched, self.is_latched = None, False
        for name, command_filter in self._filters.items():
            try:
                command_filter.reset()
            except Terminated:
                raise
            except (Exception, SystemExit) as error:  # noqa: BLE001 - of third-party code; the robot must brake
                detail = f"{name}: gate raised {type(error).__name__} from reset"
                self.latch(Finding(gate="plugins", severity=Severity.STOP, code="gate.plugin", detail=detail))

    def clear_estop(self) -> None:
        """Reduce an ESTOP to a STOP outside `step`, so that nothing moves before `reset`."""
        if self._latched is not None:
            self._latched = replace(self._latched, severity=Severity.STOP)

    def change_limits(self, changes: Mapping[str, JointLimits]) -> bool:
        """Change all these limits (before margins) or none, and return whether they apply at once.

        Smaller velocities and narrower ranges apply at once, all other changes from the next `reset`. A joint that
        moves too fast for them brakes into them at the contract's deceleration; until then reports have the finding
        ``limits.tightened`` and guarantee neither position nor velocity.

        Raises:
            UsageError: for an unknown joint, or a limit beyond the contract's; nothing has changed.
            ContractError: for invalid limits; nothing has changed.
        """
        wanted = changed_limits(self.contract, changes)
        if are_equal(wanted, self.layout.limits):
            wanted = self.layout.limits
        self._wanted = wanted
        if not is_tighter(wanted, self.limits):
            return False
        self._enforce(wanted, tighten=True)
        return True

    def begin_motion(self) -> None:
        """Enforce limits tightened since the reset in full, as the robot is at rest."""
        self._enforce(self.limits)

    def replay_limits(self, limits: EffectiveLimits | None, *, is_first: bool) -> None:
        """Enforce the limits of a recorded step, or those of the contract for None.

        They apply in full at the first step of an episode.
        """
        limits = self.layout.limits if limits is None else limits
        if are_equal(limits, self.limits):
            return
        self._enforce(limits, tighten=not is_first)

    @contextmanager
    def scaled_velocity_limits(self, share: float) -> Iterator[None]:
        """Scale the velocity limits of a robot at rest by `share`, in (0, 1], in the context."""
        before = self.limits
        low, high = before.velocity_low * share, before.velocity_high * share
        self._enforce(replace(before, velocity_low=low, velocity_high=high))
        try:
            yield
        finally:
            self._enforce(before)

    def _enforce(self, limits: EffectiveLimits, *, tighten: bool = False) -> None:
        self.limits, self.changed = limits, None if limits is self.layout.limits else limits
        self._limiter.set_limits(limits, tighten=tighten)

    def judge(  # noqa: C901, PLR0912 - the order of the gates, from top to bottom
        self,
        action: Any,  # noqa: ANN401 - agents send anything
        reference: CommandState,
        dt_s: float,
        context: SafetyContext | None = None,
    ) -> ApprovedCommand:
        """Return a command within every limit, the action, the nearest admissible one or braking.

        Args:
            action: the agent's action, of any type; never written.
            reference: the last published command.
            dt_s: time since it was published, at most the control period.
            context: what the interlocks judge; None: no interlocks.

        Raises:
            InternalFaultError: when even braking fails the post-condition. Nothing may be published then.
        """
        findings: list[Finding] = []
        if context is not None and context.estops:
            findings = safety_input_findings(context.estops)
            self.latch_stops(findings)  # even if the action is malformed
        malformed = None
        try:
            requested = parse_action(action, self.layout)
        except MalformedActionError as error:
            requested, malformed = error.values or [math.nan] * self.layout.size, error
        if self._latched is None:
            if malformed is None:
                findings += self.interventions.findings
            if context is not None:
                for interlock in self.interlocks:
                    findings += interlock.judge(context, reference.positions)
            if self._mode == "monitor":  # none refuses
                findings = [replace(found, severity=min(found.severity, Severity.LIMIT)) for found in findings]
        if malformed is not None:
            findings = self._refuse_malformed(malformed, findings)
        elif self._latched is not None:
            findings = [latched_finding(self._latched), *findings]
        else:
            self._malformed_in_a_row = 0
            if not dt_s > 0.0:
                findings.append(_no_time(dt_s))
        if findings and worst_severity(findings) >= Severity.HOLD:
            approved = self._limiter.brake(reference, dt_s, findings, requested)
        elif self._mode == "monitor":
            approved = self._limiter.monitor(requested, reference, dt_s, findings)
        else:
            approved = self._limiter.limit(requested, reference, dt_s, findings)
        report = approved.report
        if report.findings:
            self.latch_stops(report.findings)
        self.interventions.count(intervened=report.intervened)
        return approved

    def limit(self, target: FloatArray, reference: CommandState, dt_s: float) -> ApprovedCommand:
        """Limit and filter a command without interlocks, as in a relay.

        `target` has positions, or velocities of joints commanded by velocity, shape (n_joints,), units and units/s.
        """
        values: list[float] = np.asarray(target, dtype=np.float64).tolist()
        if self._latched is not None:
            return self.brake(reference, dt_s, latched_finding(self._latched))
        if not are_representable(values):
            finding = Finding(gate="form", severity=Severity.HOLD, code="form.nan", detail=f"{values}")
            return self.brake(reference, dt_s, finding)
        if not dt_s > 0.0:
            return self.brake(reference, dt_s, _no_time(dt_s))
        action = self._limiter.as_action(values, reference)
        approved = self._limiter.limit(action, reference, dt_s, [], target=values)
        self.latch_stops(approved.report.findings)
        return approved

    def brake(self, reference: CommandState, dt_s: float, finding: Finding) -> ApprovedCommand:
        """Return one tick of braking within the limits, for the reason given by `finding`."""
        return self._limiter.brake(reference, dt_s, [finding], [math.nan] * self.layout.size)

    def brake_instead(
        self, command: ApprovedCommand, reference: CommandState, dt_s: float, finding: Finding
    ) -> ApprovedCommand:
        """Return one tick of braking in place of `command`, for its own reasons and `finding`."""
        findings = [found for found in command.report.findings if found.severity > Severity.PASS]
        return self._limiter.brake(reference, dt_s, [*findings, finding], command.report.requested.tolist())

    def extend(
        self, command: ApprovedCommand, reference: CommandState, actions: Iterable[list[float]], due_ns: int
    ) -> ApprovedCommand:
        """Return `command` with the motion of `actions` after it and braking to rest.

        Each point is limited and filtered from the one before, one control period after it. The (parsed) actions end
        with the first that is held, and a command that brakes has none. `due_ns` is the time on the steady clock at
        which `reference` is due.
        """
        return self._limiter.extend(command, reference, actions, due_ns)

    def hold_action(self, reference: CommandState) -> FloatArray:
        """Return the flat action, shape (n_joints,), that holds the reference position at rest."""
        held = np.where(self.layout.is_velocity, 0.0, reference.positions)
        return np.array(self._limiter.as_action(held.tolist(), reference))

    def smooth_action(self, target: FloatArray, reference: CommandState, dt_s: float) -> FloatArray:
        """Return the flat action, shape (n_joints,), nearest to `target` within the jerk limits."""
        smooth = self._limiter.limit_jerk(target, reference, dt_s)
        return np.array(self._limiter.as_action(smooth.tolist(), reference))

    def _refuse_malformed(self, error: MalformedActionError, others: list[Finding]) -> list[Finding]:
        """Return the findings of a malformed action or none, with `others` of the interlocks.

        Each is a HOLD, and a STOP after `stop_after` malformed actions without a well-formed one in between.
        """
        is_malformed = error.finding_code != NO_ACTION
        self._malformed_in_a_row += is_malformed
        findings = [Finding(gate="form", severity=Severity.HOLD, code=error.finding_code, detail=str(error)), *others]
        if self._latched is not None:
            findings.append(latched_finding(self._latched))
        elif is_malformed and self._malformed_in_a_row >= self._stop_after:
            detail = f"{self._malformed_in_a_row} malformed actions in a row"
            findings.append(Finding(gate="form", severity=Severity.STOP, code="form.repeated", detail=detail))
        return findings


class InterventionRate:
    """The share of recent steps in which the gate changed the action.

    Attributes:
        window: whether the gate changed each action, oldest first.
        share: in [0, 1]; 0 before the first step.
        findings: the report of a share above `warn_share`, a STOP above `stop_share`; none before the window is full.
    """

    def __init__(self, spec: Intervention) -> None:
        self._spec = spec
        self.window: deque[bool] = deque(maxlen=spec.window_steps)
        self.reset()

    def reset(self) -> None:
        """Clear the window."""
        self.restore(())

    def restore(self, window: Iterable[bool]) -> None:
        """Replace the window with these steps."""
        self.window.clear()
        self._changed, self.share, self.findings = 0, 0.0, list[Finding]()
        for intervened in window:
            self.count(intervened=intervened)

    def count(self, *, intervened: bool) -> None:
        """Add a step to the window."""
        window, spec = self.window, self._spec
        is_full = len(window) == window.maxlen
        self._changed += intervened - (window[0] if is_full else 0)
        window.append(intervened)
        self.share = share = self._changed / len(window)
        self.findings = []
        if len(window) < spec.window_steps:
            return
        stops = spec.stop_share is not None and share > spec.stop_share
        if stops or share > spec.warn_share:
            self.findings = [rate_finding(share, len(window), Severity.STOP if stops else Severity.PASS)]


def _no_time(dt_s: float) -> Finding:
    return Finding(
        gate="joint_limits", severity=Severity.HOLD, code="clock.dt", detail=f"dt is {dt_s} s (expected above 0)"
    )
