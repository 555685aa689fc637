"""Decide whether task, limits of the contract or an outside failure end an episode."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from embodied_env.contract import Contract
from embodied_env.core.code_types import Severity, order_end_reasons
from embodied_env.core.policy import NoAction
from embodied_env.core.types import Finding, Verdict
from embodied_env.envs.stepper_state import PendingStep
from embodied_env.errors import TaskError
from embodied_env.safety.gate import SafetyGate
from embodied_env.safety.interlocks.observation import ObservationGate
from embodied_env.safety.late_agent import LATE, is_explained, were_valid


class EndReasons:
    """Finds the reasons to end an episode after each step."""

    def __init__(self, contract: Contract, gate: SafetyGate) -> None:
        self._contract, self._gate = contract, gate
        self._observation_gate = next(each for each in gate.interlocks if isinstance(each, ObservationGate))

    def find(
        self,
        verdict: Verdict,
        step_index: int,
        *,
        step: PendingStep | None = None,
        missed: int = 0,
        failed: TaskError | None = None,
        gaps: Sequence[str] = (),
    ) -> tuple[str, ...]:
        """Return all reasons to end the episode, in order of precedence.

        Without `step` they are those of the task and of the contract's limit. `missed` is the number of steps in a row
        without an action of the policy, and `gaps` are sensors whose gap ends the episode.
        """
        reasons = []
        if verdict.success:
            reasons.append("success")
        if verdict.failure:
            reasons.append(f"failure:{verdict.failure}")
        if verdict.out_of_bounds:
            reasons.append(f"out_of_bounds:{verdict.out_of_bounds}")
        if step_index >= self._contract.episode.horizon_steps:
            reasons.append("horizon" if self._contract.episode.kind == "finite_horizon" else "time_limit")
        if step is not None:
            if step.approved.report.disposition >= Severity.STOP:
                reasons.append(self._stop_reason(step))
            if step.lost is not None:
                reasons.append(f"backend_lost:{step.lost.why}")
            if isinstance(step.action, NoAction) and missed >= self._contract.policy.max_missed:
                reasons.append(f"policy_lost:{step.action.reason}")
        if failed is not None:
            reasons.append(f"task_error:{failed.why}")
        reasons.extend(map("sensor_gap:{}".format, gaps))
        return order_end_reasons([*dict.fromkeys(reasons)]) if reasons else ()

    def _stop_reason(self, step: PendingStep) -> str:
        """Return the most severe finding as an end reason, `LATE` if the agent's time alone explains every stop."""
        findings, context = step.approved.report.findings, step.external_inputs.safety_context
        is_late = partial(
            is_explained,
            self._contract,
            late_in_a_row=self._observation_gate.late_in_a_row,
            are_valid=were_valid(each.quality for each in context.sensors.values()),
            action_age_s=context.action_age_s,
        )
        stops = [found for found in findings if found.severity >= Severity.STOP]
        others = [found for found in stops if not is_late(self._stop_code(found))]
        if stops and not others:
            return LATE
        worst = max(others or findings, key=lambda found: (found.severity, found.gate != "latch"))
        return f"safety_stop:{self._stop_code(worst)}"

    def _stop_code(self, found: Finding) -> str:
        """Return the code of a finding, or the code that set its latch in this episode."""
        latched = self._gate.latched
        return latched.code if found.code == "latch.stop" and latched is not None else found.code
