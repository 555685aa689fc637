"""The account of a step: its info, its end reasons and its transition."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.backends.base import Backend, Paced
from embodied_env.contract import Contract, FloatArray
from embodied_env.core.clock import NS_PER_S, Stamp
from embodied_env.core.codes import TERMINATED_REASONS, Severity, end_kind, order_end_reasons
from embodied_env.core.latency.info import CommandsInFlight, LatencyInfoBuilder
from embodied_env.core.latency.ledger import Ledger
from embodied_env.core.types import ApprovedCommand, ExternalInputs, Finding, Snapshot, TaskResult, Transition, Verdict
from embodied_env.envs.info import Info, InfoBuilder, reset_info
from embodied_env.envs.observation import ObservationBuilder
from embodied_env.errors import BackendLostError
from embodied_env.safety import SafetyGate, Watchdog
from embodied_env.safety.context import required_sensors

Observation = dict[str, NDArray[Any]]


@dataclass(kw_only=True)
class Episode:
    """The state of one episode of one robot.

    Attributes:
        index: the number of the episode since the last seeded reset.
        snapshot: the newest settled snapshot.
        frozen_ns: when it was frozen, on the steady clock.
        applied: the applied actions that an observation contains, oldest first.
        before: the snapshot before the newest.
        origin_ns: when the episode began, on the world's clock.
        step_index: the steps taken.
        returned_ns: when the agent got the last observation, on the steady clock.
    """

    index: int
    snapshot: Snapshot
    frozen_ns: int
    applied: deque[FloatArray]
    before: Snapshot = field(init=False)
    origin_ns: int = field(init=False)
    step_index: int = 0
    returned_ns: int = 0

    def __post_init__(self) -> None:
        """Begin at the snapshot of the reset."""
        self.before = self.snapshot
        self.origin_ns = self.snapshot.now_ns

    def advance(self, snapshot: Snapshot, frozen_ns: int, applied: FloatArray) -> None:
        """Go on to the next snapshot."""
        self.step_index += 1
        self.before, self.snapshot, self.frozen_ns = self.snapshot, snapshot, frozen_ns
        self.applied.append(applied)


@dataclass(kw_only=True)
class PendingStep:
    """A step between `begin` and `finish`: what was asked and approved, and when the world has to arrive."""

    action: Any
    approved: ApprovedCommand
    inputs: ExternalInputs
    target: Stamp
    deadline: Stamp


class StepAccountant:
    """Builds the infos and transitions of one stepper.

    Attributes:
        commands: when the commands left.
    """

    def __init__(  # noqa: PLR0913 - the parts of the stepper
        self,
        contract: Contract,
        backend: Backend,
        *,
        gate: SafetyGate,
        watchdog: Watchdog,
        observations: ObservationBuilder,
        ledger: Ledger,
        is_virtual: bool,
        evaluator_info: bool,
    ) -> None:
        """Resolve what can be measured; `is_virtual`: the clock is, so that stamps of a middleware say nothing."""
        capabilities = backend.capabilities
        self.commands = CommandsInFlight()
        self._contract = contract
        self._gate, self._watchdog, self._observations, self._ledger = gate, watchdog, observations, ledger
        self._evaluator_info = evaluator_info
        options = contract.reset_options.items()
        self._hidden = [name for name, option in options if option.visibility == "evaluator" and not evaluator_info]
        self._infos = InfoBuilder(
            contract,
            gate.layout,
            backend=backend.name,
            wall_stamps=capabilities.transport and capabilities.free_running,
            evaluator_info=evaluator_info,
        )
        self._latencies = LatencyInfoBuilder(
            sensors=self._infos.sensors,
            primary=next(iter(required_sensors(contract)), None),
            period_ns=contract.control_period_ns,
            transport=capabilities.transport and not is_virtual,
            moves_by_itself=capabilities.free_running,
            pacer=backend.pacer if isinstance(backend, Paced) else None,
            actuation=capabilities.actuation,
            injected=capabilities.injected,
        )

    def observe(self, episode: Episode) -> Observation:
        """Return the observation of the newest snapshot."""
        return self._observations.observe(episode.snapshot, episode.step_index, episode.applied)

    def reset_info(self, episode: Episode, duration_ns: int) -> Info:
        """Return the info of the reset that `episode` begins with."""
        info = self._common_info(episode, end_reason="")
        info["reset"] = reset_info(episode.snapshot, duration_s=duration_ns / NS_PER_S, hidden=self._hidden)
        return info

    def end_reasons(
        self,
        episode: Episode,
        step: PendingStep,
        verdict: Verdict,
        *,
        lost: BackendLostError | None,
        gaps: list[str],
    ) -> tuple[str, ...]:
        """Return every reason to end the episode that holds, in the order of precedence."""
        reasons = []
        if verdict.success:
            reasons.append("success")
        if verdict.failure:
            reasons.append(f"failure:{verdict.failure}")
        if verdict.out_of_bounds:
            reasons.append(f"out_of_bounds:{verdict.out_of_bounds}")
        if episode.step_index >= self._contract.episode.horizon_steps:
            reasons.append("horizon" if self._contract.episode.kind == "finite_horizon" else "time_limit")
        if step.approved.report.disposition >= Severity.STOP:
            reasons.append(f"safety_stop:{self._code_of_stop(step.approved.report.findings)}")
        if lost is not None:
            reasons.append(f"backend_lost:{lost.why}")
        reasons += [f"sensor_gap:{name}" for name in gaps]
        return order_end_reasons(reasons) if reasons else ()

    def transition(
        self, episode: Episode, step: PendingStep, result: TaskResult, reasons: tuple[str, ...]
    ) -> Transition:
        """Return the transition of the step that led to the newest snapshot."""
        report, latched, trips = step.approved.report, self._gate.latched, self._watchdog.trips
        end_reason = reasons[0] if reasons else ""
        terminated = bool(reasons) and end_kind(end_reason) in TERMINATED_REASONS
        info = self._common_info(episode, end_reason=end_reason)
        info["latency_ms"] = self._ledger.obs_to_command_ns / 1e6
        info["action_clipped"] = report.intervened
        info["action"] = self._infos.action(report)
        info["safety"] = self._infos.safety(
            report,
            latched=latched is not None,
            watchdog_trips=trips,
            intervention_share=self._gate.intervention_share,
        )
        info["latency"] = self._latencies.build(self._ledger, episode.before, episode.snapshot, self.commands)
        info["task"] = dict(result.terms)
        stamps_ns = self._ledger.stamps_ns()
        self._ledger.step_is_accounted()
        inputs = step.inputs
        if latched is not None or trips:
            inputs = replace(inputs, latched_after=latched, watchdog_trips=trips)
        return Transition(
            observation=self.observe(episode),
            action=step.action,
            reward=float(result.reward),
            terminated=terminated,
            truncated=bool(reasons) and not terminated,
            info=info,
            end_reasons=reasons,
            report=report,
            stamps_ns=stamps_ns,
            snapshot=episode.snapshot,
            circumstances=inputs,
        )

    def _common_info(self, episode: Episode, *, end_reason: str) -> Info:
        info = self._infos.common(
            episode.snapshot,
            frozen_ns=episode.frozen_ns,
            origin_ns=episode.origin_ns,
            episode_index=episode.index,
            step_index=episode.step_index,
            end_reason=end_reason,
        )
        if self._evaluator_info:
            info["evaluator"] = self._observations.evaluator_readings(episode.snapshot)
        return info

    def _code_of_stop(self, findings: tuple[Finding, ...]) -> str:
        """Return the code of the most severe finding; of a latch that was set in this episode, of what set it."""
        worst = max(findings, key=lambda found: (found.severity, found.gate != "latch"))
        latched = self._gate.latched
        return latched.code if worst.code == "latch.stop" and latched is not None else worst.code


def copy_action(action: Any) -> Any:  # noqa: ANN401 - agents send anything
    """Return the action as it is now: arrays are copied, since their owner may write them later."""
    if isinstance(action, np.ndarray):
        return action.copy()
    if isinstance(action, Mapping):
        return {name: copy_action(part) for name, part in action.items()}
    return list(action) if isinstance(action, list) else action
