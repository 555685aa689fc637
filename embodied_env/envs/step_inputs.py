"""The external inputs of a step: time, e-stops, and what other threads latched. Measured live, or taken from a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import gymnasium

from embodied_env.backends.base import Backend, Delayed, Recorded, ReplaySource
from embodied_env.contract import Contract, FloatArray
from embodied_env.core.clock import NS_PER_S, Clock
from embodied_env.core.latency.ledger import Ledger
from embodied_env.core.measured_joints import MeasuredJoints
from embodied_env.core.types import ExternalInputs, Finding, ResetReport, SafetyContext, Snapshot
from embodied_env.envs.motion_guard import MotionGuard
from embodied_env.envs.step_account import Episode
from embodied_env.safety import CommandState, SafetyGate
from embodied_env.safety.interlocks import SafetyContextBuilder


class LiveInputs:
    """Everything in a step that does not follow from actions and readings, measured now.

    Attributes:
        is_live: they are measured; False: taken from a run.
        ledger: the time stamps of the step.
    """

    is_live = True

    def __init__(
        self,
        contract: Contract,
        backend: Backend,
        gate: SafetyGate,
        guard: MotionGuard,
        joints: MeasuredJoints,
        *,
        clock: Clock,
    ) -> None:
        """Read `backend`, `gate` and `clock`."""
        capabilities = backend.capabilities
        self.ledger = Ledger(clock)
        self._backend_name = backend.name
        delays_commands = bool(capabilities.injected) and not capabilities.free_running
        self._delays = _delayed(backend) if delays_commands and self.is_live else None
        self._free_running = capabilities.free_running
        self._contexts = SafetyContextBuilder(contract, joints)
        self._gate, self._estops, self._clock = gate, guard.estops, clock

    def begin_step(self, episode: Episode, reference: CommandState, dt_s: float) -> tuple[ExternalInputs, CommandState]:
        """Return the inputs of a step, and the command that its limits refer to.

        Args:
            episode: its newest snapshot is what the action is based on.
            reference: the last published command, as the arbiter has it.
            dt_s: the time since then.
        """
        situation = self.safety_context(episode.snapshot, (episode.frozen_ns, episode.returned_ns))
        return self._inputs(situation, reference, dt_s), reference

    def safety_context(self, snapshot: Snapshot, since_ns: tuple[int, int]) -> SafetyContext:
        """Return the context in which a command that is based on `snapshot` is judged.

        In a lockstep world no time has passed, except the injected delay.
        """
        elapsed_ns = (0, 0)
        if self._free_running:
            now_ns = self._clock.now_ns()
            elapsed_ns = (now_ns - since_ns[0], now_ns - since_ns[1])
        elif self._delays is not None:
            elapsed_ns = (self._delays.inference_ns,) * 2
        return self._context(snapshot, elapsed_ns)

    def end_step(self) -> None:
        """Bring the latch up to date, once the end reasons of the step are collected. It is, in a live world."""

    def complete_report(self, report: ResetReport, options: Mapping[str, FloatArray]) -> ResetReport:
        """Return the report of a reset with the options it was asked for; warn about those the backend ignores."""
        if report.ignored:
            gymnasium.logger.warn(f"{self._backend_name} ignores these reset options: {', '.join(report.ignored)}")
        return replace(report, options=options)

    def _context(self, snapshot: Snapshot, elapsed_ns: tuple[int, int]) -> SafetyContext:
        return self._contexts.build(
            snapshot, since_frozen_ns=elapsed_ns[0], since_returned_ns=elapsed_ns[1], estops=self._estops()
        )

    def _inputs(self, situation: SafetyContext, reference: CommandState, dt_s: float) -> ExternalInputs:
        return ExternalInputs(
            situation=situation,
            latched=self._gate.latched,
            dt_s=dt_s,
            reference=reference if self._free_running else None,
            limits=self._gate.changed,
        )


class RecordedInputs(LiveInputs):
    """Inputs as they were in a recorded run. Where the record ends they are live: the backend then ends the episode."""

    is_live = False

    def __init__(
        self,
        contract: Contract,
        backend: Backend,
        gate: SafetyGate,
        guard: MotionGuard,
        joints: MeasuredJoints,
        *,
        clock: Clock,
        source: ReplaySource,
    ) -> None:
        """Read `source`; what its watchdog did is set in `gate` and `guard`, which is disabled."""
        super().__init__(contract, backend, gate, guard, joints, clock=clock)
        guard.disable()
        self.ledger = source.ledger
        self._source, self._watchdog = source, guard.watchdog

    def begin_step(self, episode: Episode, reference: CommandState, dt_s: float) -> tuple[ExternalInputs, CommandState]:
        """Return the recorded inputs, and put limits and latch into their recorded state."""
        recorded = self._source.circumstances
        if recorded is None:
            return super().begin_step(episode, reference, dt_s)
        self._gate.replay_limits(recorded.limits, is_first=episode.step_index == 0)
        if self._free_running:
            reference, dt_s = recorded.reference or reference, recorded.dt_s
            self._watchdog.trips = recorded.watchdog_trips
            self._latch(recorded.latched)
        situation = recorded.situation
        elapsed_ns = round(situation.latency_s * NS_PER_S), round(situation.action_age_s * NS_PER_S)
        return self._inputs(self._context(episode.snapshot, elapsed_ns), reference, dt_s), reference

    def end_step(self) -> None:
        """Latch what was latched when the recorded step was over."""
        if self._free_running and self._source.circumstances is not None:
            self._latch(self._source.circumstances.latched_after)

    def complete_report(self, report: ResetReport, options: Mapping[str, FloatArray]) -> ResetReport:  # noqa: ARG002 - LiveInputs'
        """Return the report as it is: its options are those of the record."""
        return report

    def _latch(self, latched: Finding | None) -> None:
        if latched is not None:
            self._gate.latch(latched)


def make_step_inputs(
    contract: Contract,
    backend: Backend,
    gate: SafetyGate,
    guard: MotionGuard,
    joints: MeasuredJoints,
    *,
    clock: Clock,
) -> LiveInputs:
    """Return the inputs of the steps in `backend`: recorded ones if it plays a run back."""
    if isinstance(backend, Recorded) and (source := backend.playback) is not None:
        return RecordedInputs(contract, backend, gate, guard, joints, clock=clock, source=source)
    return LiveInputs(contract, backend, gate, guard, joints, clock=clock)


def _delayed(backend: Backend) -> Delayed:
    if not isinstance(backend, Delayed):
        raise TypeError(f"the backend {backend.name} declares injected delays, and has no attribute inference_ns")
    return backend
