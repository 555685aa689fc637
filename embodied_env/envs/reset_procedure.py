"""Reset a robot's world, drive home, ask for confirmation, verify, and let the task judge."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import gymnasium
import numpy as np

from embodied_env.backends.backend import Backend, Resettable
from embodied_env.core.measured_joints import MeasuredJoints, nearest_turn
from embodied_env.core.reset_draws import (
    ResetRoutine,
    confirmation_prompt,
    routine_to_start,
    with_observed_options,
    with_operator_confirmation,
)
from embodied_env.core.types import EpisodeStart, ResetRequest, Routine, SafetyContext, Snapshot
from embodied_env.envs.external_inputs import ExternalInputsSource
from embodied_env.envs.motion_guard import MotionGuard
from embodied_env.envs.observation_builder import GapPolicy
from embodied_env.envs.stepper_state import Lifecycle, State
from embodied_env.envs.transition_builder import reset_report
from embodied_env.errors import BackendLostError, BackendNotReadyError
from embodied_env.processes.signals import deferred_signals
from embodied_env.safety.findings import safety_input_findings
from embodied_env.safety.homing import HomingContext, HomingMotion
from embodied_env.tasks import ResettableTask, Task
from embodied_env.tasks.judging import judge_reset
from embodied_env.timing.clock import NS_PER_S


def require_operator(backend: Backend, motion: str) -> None:
    """Raise BackendNotReadyError for a robot without a channel to an operator who confirms."""
    routine = backend.routine if isinstance(backend, Resettable) else None
    if backend.capabilities.world == "robot" and not (routine and routine.confirm):
        problem = f"{motion} on a robot not confirmed: no channel to an operator; nothing was sent"
        remedy = "declare backends.real.reset.confirm: prompt, topic or service"
        raise BackendNotReadyError(f"{problem}; {remedy}; with an emulator, use emulator=True or --emulator")


@dataclass(frozen=True, kw_only=True)
class ResetProcedure:
    """Runs the resets of one stepper."""

    guard: MotionGuard
    task: Task
    joints: MeasuredJoints
    gap_policy: GapPolicy
    inputs: ExternalInputsSource
    lifecycle: Lifecycle

    def run(self, request: ResetRequest, instruction: str, start: EpisodeStart | None = None) -> Snapshot:
        """Reset the world and return the first snapshot, or raise as `EmbodiedEnv.reset`.

        The episode begins at `start`, or for None where the backend's own reset ends.
        """
        try:
            snapshot = self._run(request, instruction, start)
            self.lifecycle.check_open("reset")  # another thread may have called `close`
        except BaseException as error:
            with deferred_signals():
                self.guard.backend.halt("reset failed")  # otherwise `close` would brake from an outdated position
                if self.lifecycle.state is State.CLOSED:
                    self.guard.backend.close()  # the reset may have opened it again
                self.lifecycle.check_open("reset")
            if isinstance(error, BackendLostError):
                raise BackendNotReadyError(f"reset: {error}") from error
            raise
        return snapshot

    def _run(self, request: ResetRequest, instruction: str, start: EpisodeStart | None) -> Snapshot:
        backend = self.guard.backend
        routine = backend.routine if isinstance(backend, Resettable) else None
        if start is not None:
            require_operator(backend, "playback")
        deadline_ns = self.guard.clock.now_ns() + round(backend.reset_timeout_s * NS_PER_S)
        raw = backend.reset(request, deadline_ns)
        report = with_observed_options(reset_report(raw), self.guard.contract.reset_options, request)
        is_moved = self.guard.backend.capabilities.simulated or report.level == "world"
        snapshot = self._verify(replace(raw, reset=report), request.epoch, continues=not is_moved)
        if start is not None and backend.capabilities.actuates:
            measured = self.joints.positions_or_nan(snapshot)
            routine, distance = routine_to_start(self.guard.contract, start, measured, routine or ResetRoutine())
            if routine.confirm:  # before it moves
                question = f"{start.question}\nlargest distance: {distance}\n"
                snapshot = self._confirm(routine, question, request, snapshot, deadline_ns)
                snapshot = self._read_again(snapshot, request, deadline_ns)
                now = self.joints.positions_or_nan(snapshot)
                again, distance = routine_to_start(self.guard.contract, start, now, routine)
                moved = np.abs(nearest_turn(now, measured, self.guard.gate.layout.turns) - measured)
                if again.home and (not routine.home or (moved > routine.tolerance).any()):
                    problem = f"{start.label} cannot begin: the robot moved since the question: {distance}"
                    raise BackendNotReadyError(f"{problem}; play it again")
                routine = replace(again, confirm="")
        if routine is not None and (routine.home or routine.confirm):
            snapshot = self._follow(routine, request, snapshot, deadline_ns)
        return self._judge(snapshot, request, instruction)

    def _follow(self, routine: ResetRoutine, request: ResetRequest, snapshot: Snapshot, deadline_ns: int) -> Snapshot:
        """Drive home, ask the operator, and return readings newer than the routine."""
        report, homing = reset_report(snapshot), None
        if routine.home:
            homing = HomingMotion(self.guard.contract, routine, self.guard.gate, self.guard.arbiter, self.guard.clock)
            snapshot, summary = self._drive_home(homing, snapshot, deadline_ns)
            names: Routine = "service+home" if report.routine == "service" else "home"
            report = replace(report, routine=names, details={**report.details, "home": summary})
        snapshot = replace(snapshot, reset=report)
        if routine.confirm:
            snapshot = self._confirm(routine, "", request, snapshot, deadline_ns)
            report = reset_report(snapshot)
        verified = self._read_again(snapshot, request, deadline_ns)
        if homing is not None:
            offset = f"{homing.check_arrived(verified):.2g}"
            report = replace(report, details={**report.details, "home_offset": offset})
        return replace(verified, reset=report)

    def _confirm(
        self, routine: ResetRoutine, what: str, request: ResetRequest, snapshot: Snapshot, deadline_ns: int
    ) -> Snapshot:
        """Ask the operator, and return the snapshot with the confirmation in its report."""
        positions, _ = self.joints.measured(snapshot)
        question = confirmation_prompt(request.options, self.guard.contract, positions)
        stops = [f"not ready: {found.detail}\n" for found in safety_input_findings(self.guard.estops())]
        cast("Resettable", self.guard.backend).confirm("".join([*stops, what, question]), deadline_ns)
        report = with_operator_confirmation(reset_report(snapshot), routine.confirm, request)
        return replace(snapshot, reset=report)

    def _read_again(self, snapshot: Snapshot, request: ResetRequest, deadline_ns: int) -> Snapshot:
        """Return the snapshot verified, with newer readings after a routine and the same report."""
        raw, backend = snapshot, self.guard.backend
        if isinstance(backend, Resettable) and backend.routine is not None:
            raw = backend.verify(deadline_ns)
        return replace(self._verify(raw, request.epoch, continues=True), reset=snapshot.reset)

    def _drive_home(self, homing: HomingMotion, snapshot: Snapshot, deadline_ns: int) -> tuple[Snapshot, str]:
        """Drive home under the watchdog, brake on failure, and return last snapshot and summary."""
        backend, clock, frozen_ns = self.guard.backend, self.guard.clock, 0
        if not (backend.capabilities.free_running or isinstance(backend, Resettable)):
            self.guard.brake("before homing")  # the embedded world over ROS does not move before a command

        def advance() -> tuple[Snapshot, list[str]]:
            nonlocal snapshot, frozen_ns
            target_ns = snapshot.now_ns + self.guard.contract.control_period_ns
            step_deadline_ns = clock.now_ns() + round(backend.step_timeout_s * NS_PER_S)
            backend.advance(target_ns, step_deadline_ns)
            snapshot, gaps = self.gap_policy.apply(backend.read(target_ns, step_deadline_ns))
            frozen_ns = clock.now_ns()
            return snapshot, gaps

        def safety_context() -> SafetyContext:
            return self.inputs.safety_context(snapshot, (frozen_ns, frozen_ns))

        def now_ns() -> int:
            return clock.now_ns() if backend.capabilities.free_running else snapshot.now_ns

        world = HomingContext(turn=advance, safety_context=safety_context, feed=self.guard.feed, now_ns=now_ns)
        try:
            summary = homing.drive(world, deadline_ns)
        except BaseException as error:
            self.guard.brake(f"homing failed: {type(error).__name__}")
            raise
        finally:
            self.guard.watchdog.disarm()
        return snapshot, summary

    def _verify(self, raw: Snapshot, epoch: int, *, continues: bool) -> Snapshot:
        """Check the readings of a reset, and clear earlier latches and commands."""
        snapshot = self.gap_policy.begin(raw)
        self.guard.gate.reset()
        self.guard.arbiter.reset(self.joints.measured(snapshot)[0], epoch, continues=continues)
        return snapshot

    def _judge(self, snapshot: Snapshot, request: ResetRequest, instruction: str) -> Snapshot:
        """Let the task judge the snapshot, and add verdict, prompt and options to the report."""
        report = reset_report(snapshot)
        if self.inputs.is_live:  # the report of a recorded run has its own options
            if report.ignored:
                ignored = ", ".join(report.ignored)
                gymnasium.logger.warn(f"reset options ignored by {self.guard.backend.name}: {ignored}")
            report = replace(report, options=request.options, instruction=instruction)
        if isinstance(self.task, ResettableTask):
            verdict = judge_reset(self.task, self.guard.contract, replace(snapshot, reset=report), report.options)
            report = replace(report, verdict=verdict)
        is_solved = report.verdict is not None and report.verdict.success
        if is_solved and report.level == "none" and self.inputs.is_live:
            gymnasium.logger.warn("task solved before the first step: the reset moved nothing (reset level 'none')")
        return replace(snapshot, reset=report)
