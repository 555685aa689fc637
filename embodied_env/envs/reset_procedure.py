"""The reset of one robot: reset the world, drive home, ask for confirmation, verify, and let the task judge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import gymnasium

from embodied_env.backends.base import Backend, Resettable
from embodied_env.contract import Contract, FloatArray
from embodied_env.core.clock import NS_PER_S, Clock, Domain, Stamp
from embodied_env.core.measured_joints import MeasuredJoints
from embodied_env.core.reset_spec import ResetRoutine, confirmation_prompt, with_operator_confirmation
from embodied_env.core.types import ResetReport, ResetRequest, SafetyContext, Snapshot, Verdict
from embodied_env.envs.motion_guard import MotionGuard
from embodied_env.envs.observation import ObservationBuilder
from embodied_env.envs.step_inputs import LiveInputs
from embodied_env.safety import SafetyGate
from embodied_env.safety.homing import HomingContext, HomingMotion
from embodied_env.tasks import ResettableTask, Task


class ResetProcedure:
    """Runs the resets of one stepper, with the parts that its steps use too."""

    def __init__(  # noqa: PLR0913 - the parts of the stepper
        self,
        contract: Contract,
        backend: Backend,
        task: Task,
        *,
        gate: SafetyGate,
        guard: MotionGuard,
        joints: MeasuredJoints,
        observations: ObservationBuilder,
        inputs: LiveInputs,
        clock: Clock,
    ) -> None:
        """Resolve what the backend and the task can do."""
        self._contract, self._backend, self._clock = contract, backend, clock
        self._task = task
        self._resettable_task = task if isinstance(task, ResettableTask) else None
        self._resettable_backend = backend if isinstance(backend, Resettable) else None
        self._gate, self._arbiter, self._joints = gate, guard.arbiter, joints
        self._observations, self._inputs, self._guard = observations, inputs, guard

    def run(self, request: ResetRequest) -> Snapshot:
        """Reset the world and return the snapshot that the episode begins with.

        Raises:
            BackendError: when the world does not come up, the robot does not come home, a person does not agree, or a
                sensor has no reading newer than all of this.
        """
        deadline = Stamp(self._clock.now_ns() + round(self._backend.reset_timeout_s * NS_PER_S), Domain.STEADY)
        snapshot = self._verify(self._backend.reset(request, deadline), request.epoch)
        backend = self._resettable_backend
        if backend is not None and (routine := backend.routine) is not None and (routine.home or routine.confirm):
            snapshot = self._follow(routine, backend, request, snapshot, deadline)
        return self._judge(snapshot, request.options)

    def _follow(
        self, routine: ResetRoutine, backend: Resettable, request: ResetRequest, snapshot: Snapshot, deadline: Stamp
    ) -> Snapshot:
        """Drive home, have it confirmed, and read again: earlier readings are older than the routine."""
        report, joints = _report_of(snapshot), self._gate.layout.joints
        homing = None
        if routine.home:
            homing = HomingMotion(self._contract, routine, self._gate, self._arbiter, self._clock)
            snapshot, account = self._drive_home(homing, snapshot, deadline)
            names = "+".join(filter(None, (report.routine, "home")))
            report = replace(report, routine=names, details={**report.details, "home": account})
        if routine.confirm:
            positions, _ = self._joints.measured(snapshot)
            backend.confirm(confirmation_prompt(request.options, joints, positions), deadline)
            report = with_operator_confirmation(report, routine.confirm, request)
        verified = self._verify(backend.verify(deadline), request.epoch)
        if homing is not None:
            homing.check_arrived(verified)
        return replace(verified, reset=report)

    def _drive_home(self, homing: HomingMotion, snapshot: Snapshot, deadline: Stamp) -> tuple[Snapshot, str]:
        """Drive home under the watchdog; brake if that fails. Return the last snapshot and the account in words."""
        world = _HomingWorld(self._contract, self._backend, self._observations, self._inputs, self._clock, snapshot)
        context = HomingContext(turn=world.advance, situation=world.safety_context, feed=self._guard.feed)
        try:
            account = homing.drive(context, deadline.ns)
        except BaseException as error:
            self._guard.brake(f"the way home has ended: {type(error).__name__}")
            raise
        finally:
            self._guard.disarm()
        return world.snapshot, account

    def _verify(self, raw: Snapshot, epoch: int) -> Snapshot:
        """Check the readings of a reset, and forget what was latched or published before it."""
        snapshot = self._observations.begin(raw)
        self._gate.reset()
        self._arbiter.reset(self._joints.measured(snapshot)[0], epoch)
        return snapshot

    def _judge(self, snapshot: Snapshot, options: Mapping[str, FloatArray]) -> Snapshot:
        """Let the task begin its episode, and add its verdict on the snapshot to the report."""
        report = self._inputs.complete_report(_report_of(snapshot), options)
        if self._resettable_task is not None:
            verdict: Any = self._resettable_task.reset(replace(snapshot, reset=report), report.options)
            if not isinstance(verdict, Verdict | None):
                raise TypeError(f"{type(self._task).__name__}.reset returned {verdict!r} (expected a Verdict or None)")
            report = replace(report, verdict=verdict)
        is_solved = report.verdict is not None and report.verdict.success
        if is_solved and report.level == "none" and self._inputs.is_live:
            gymnasium.logger.warn("the task is solved before the first step, and the reset moved nothing (level none)")
        return replace(snapshot, reset=report)


class _HomingWorld:
    """The world on the way home, one control period after the other."""

    def __init__(
        self,
        contract: Contract,
        backend: Backend,
        observations: ObservationBuilder,
        inputs: LiveInputs,
        clock: Clock,
        snapshot: Snapshot,
    ) -> None:
        self.snapshot = snapshot
        self._period_ns = contract.control_period_ns
        self._domain = Domain.ROS if backend.capabilities.free_running else Domain.SIM
        self._backend, self._observations, self._inputs, self._clock = backend, observations, inputs, clock
        self._frozen_ns = 0

    def advance(self) -> tuple[Snapshot, list[str]]:
        """Let a control period pass, and read; return the settled snapshot and the gaps that end an episode."""
        target = Stamp(self.snapshot.now_ns + self._period_ns, self._domain)
        deadline = Stamp(self._clock.now_ns() + round(self._backend.step_timeout_s * NS_PER_S), Domain.STEADY)
        self._backend.advance(target, deadline)
        self.snapshot, gaps = self._observations.apply_gap_policy(self._backend.read(target, deadline))
        self._frozen_ns = self._clock.now_ns()
        return self.snapshot, gaps

    def safety_context(self) -> SafetyContext:
        """Return the context of a command that is based on the last snapshot."""
        return self._inputs.safety_context(self.snapshot, (self._frozen_ns, self._frozen_ns))


def _report_of(snapshot: Snapshot) -> ResetReport:
    if snapshot.reset is None:
        raise TypeError("a backend's reset must return a snapshot with a ResetReport")
    return snapshot.reset
