"""Run the control steps of one robot through gate, arbiter, backend and task.

`Stepper.begin` and `Stepper.finish` define the order of a step, and no other module does (docs/concepts/step.md).
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from embodied_env.backends.backend import Backend, Polled, Recorded, Renderable
from embodied_env.contract import Contract, FloatArray, JointLimits
from embodied_env.contract.runtime_values import checked_instruction, checked_options
from embodied_env.core.code_types import Severity
from embodied_env.core.measured_joints import MeasuredJoints
from embodied_env.core.policy import NoAction
from embodied_env.core.types import Observer, ResetRequest, SentCommand, Snapshot, TaskResult, Transition, Verdict
from embodied_env.envs.external_inputs import ExternalInputsSource
from embodied_env.envs.motion_guard import MotionGuard
from embodied_env.envs.observation_builder import GapPolicy, Observation, begin_history
from embodied_env.envs.reset_procedure import ResetProcedure
from embodied_env.envs.stepper_state import EpisodeState, Lifecycle, PendingStep, SavedStepper, State, latched_estop
from embodied_env.envs.transition_builder import EndReasons, Info, TransitionBuilder, copy_action
from embodied_env.errors import (
    BackendError,
    BackendLostError,
    BackendNotReadyError,
    ResetNeededError,
    TaskError,
    UsageError,
)
from embodied_env.safety.action_parsing import warn_of_malformed_action
from embodied_env.safety.approved_commands import merge_relay_report
from embodied_env.safety.command_filters import CommandFilter
from embodied_env.safety.gate import SafetyGate
from embodied_env.tasks import Task
from embodied_env.tasks.judging import judge_step
from embodied_env.timing.clock import NS_PER_S, Clock
from embodied_env.timing.ledger import Ledger

if TYPE_CHECKING:
    from embodied_env.core.types import EpisodeStart
    from embodied_env.envs.action_stages import ActionStages


class Stepper:
    """Steps one robot in one world with one task in two halves, `begin` and `finish`.

    Attributes:
        epoch: the number of resets minus one; -1 before the first. It never repeats.
        history_length: the number of snapshots that an observation needs.
        lifecycle: the state, and what opens and closes the backend. The watchdog thread keeps it while the robot may
            move, so it can close after the stepper is freed.
    """

    def __init__(  # noqa: PLR0913 - the options of an environment
        self,
        contract: Contract,
        backend: Backend,
        task: Task,
        *,
        clock: Clock,
        evaluator_info: bool = False,
        host_timing: bool = True,
        observers: Sequence[Observer] = (),
        filters: Mapping[str, CommandFilter] | None = None,
        stages: ActionStages | None = None,
        advances_clock: bool = True,
    ) -> None:
        """Connect the parts without starting anything before the first `reset`.

        `filters` are by name. With `advances_clock` each step advances a virtual clock (robots may share one).
        """
        self.contract, self.backend, self.task, self.clock = contract, backend, task, clock
        self.capabilities = capabilities = backend.capabilities
        self.last_transition: Transition | None = None
        self.last_reset: Snapshot | None = None
        fields = (spec for sensor in contract.sensors.values() for spec in sensor.fields.values())
        self.history_length = max((spec.history or 1 for spec in fields), default=1)
        self.stages = stages
        self.observers, self._advances_clock = tuple(observers), advances_clock and clock.virtual
        self._free_running = capabilities.free_running
        self._period_ns, self._timeout_ns = contract.control_period_ns, round(backend.step_timeout_s * NS_PER_S)
        tolerance_s = contract.safety.observation.future_tolerance_s if self._free_running else 0.0
        self._gap_policy = GapPolicy(contract, future_tolerance_ns=round(tolerance_s * NS_PER_S))
        self.gate = SafetyGate(
            contract,
            filters=filters,
            fixed_rate=not self._free_running,
            limits_elsewhere=capabilities.acknowledges_commands,
        )
        self._joints = MeasuredJoints(contract, self.gate.layout.joints)
        self._guard = MotionGuard(contract, backend, self.gate, clock=clock)
        self._arbiter = self._guard.arbiter
        self.lifecycle = Lifecycle(self._guard)
        self.ledger = Ledger(clock)
        self._inputs = ExternalInputsSource(self._guard, self._joints)
        self._replay = backend.playback if isinstance(backend, Recorded) else None
        self.transition_builder = TransitionBuilder(
            self._guard, self.ledger, evaluator_info=evaluator_info, host_timing=host_timing
        )
        self.end_reasons = EndReasons(contract, self.gate)
        self._resets = ResetProcedure(
            guard=self._guard,
            task=task,
            joints=self._joints,
            gap_policy=self._gap_policy,
            inputs=self._inputs,
            lifecycle=self.lifecycle,
        )
        self._follows_measured = self.gate.has_velocity or not capabilities.actuates
        self._has_previews = contract.trajectory_steps is not None
        self._polled = backend if isinstance(backend, Polled) else None
        self.epoch = -1
        self._episode_index = -1
        self._episode = EpisodeState(index=-1, snapshot=Snapshot(now_ns=0, samples={}), frozen_ns=0, applied=deque())
        self._step: PendingStep | None = None  # the step under way
        self._claim = threading.Lock()  # held while a step is taken by one thread
        self._has_warned = False  # about a malformed action

    # ----------------------------------------------------------------------------------------------- step

    def begin(self, action: Any) -> None:  # noqa: ANN401 - as an agent
        """Judge `action`, publish the command and start motion, or raise like `EmbodiedEnv.step`."""
        with self._claim:  # of two threads one gets the step
            is_inherited = self._free_running and self.lifecycle.is_inherited
            if self.lifecycle.state is not State.RUNNING or self._step is not None or is_inherited:
                self.lifecycle.check_open("step")
                raise ResetNeededError(f"{self._problem_of_step()}; nothing was published")
            step = self._step = PendingStep(action=action, target_ns=0, deadline_ns=0)
        ledger, now_ns = self.ledger, self.clock.now_ns
        try:
            ledger.enter_step()
            target_ns = step.target_ns = self._episode.snapshot.now_ns + self._period_ns
            deadline_ns = step.deadline_ns = ledger.entered_ns + self._timeout_ns
            if self.stages is not None:
                action = self._inputs.apply_stages(self.stages, action, self._episode)
            step.action = action.copy() if type(action) is np.ndarray else copy_action(action)
            if self._free_running:
                self._guard.feed()
            if self._follows_measured:
                self._follow_measured()
            with self._arbiter.exclusive as (published, dt_s):  # the watchdog cannot send in between
                if self._step is not step or self.lifecycle.state is not State.RUNNING:
                    raise ResetNeededError("reset during a step; call reset() again")  # noqa: TRY301 - ends the new episode
                inputs = step.external_inputs = self._inputs.begin_step(self._episode, published, dt_s)
                reference = inputs.reference or published  # a replay has the recorded one
                step.approved = self.gate.judge(action, reference, inputs.dt_s, inputs.safety_context)
                ledger.gated_ns = now_ns()
                try:
                    preview = self._inputs.take_preview(action) if self._has_previews else ()
                    sent = self._arbiter.send(step.approved, preview, inputs.delay)
                finally:
                    ledger.published_ns = now_ns()
                if self._free_running or sent.report or sent.annotations or sent.published_ns is not None:
                    self._account_sent(step, sent)
            self.backend.advance(target_ns, deadline_ns)
            if self._advances_clock:
                self.clock.on_world_advanced(self._period_ns)
        except BackendError as error:
            self._lose(step, error)
        except BaseException:
            self.abort_step()
            raise

    def finish(self) -> Transition:
        """Wait for the world, judge, and return the transition of the step that `begin` began.

        If the world does not answer in time, the episode is truncated with the last valid observation. Raises TaskError
        for an error of the task, after its step, which ends the episode.
        """
        step, self._step = self._step, None
        if step is None:
            raise ResetNeededError("finish() called without begin()")
        episode, ledger = self._episode, self.ledger
        try:
            report = step.approved.report
            snapshot, gaps = self._read(step)
            ledger.observed_ns = self.clock.now_ns()
            if self._replay is not None:
                ledger.replay(self._replay.stamps_ns)
            result, failed = self._judge(step, snapshot)
            episode.advance(snapshot, ledger.observed_ns, report.applied)
            episode.missed = episode.missed + 1 if isinstance(step.action, NoAction) else 0
            reasons = self.end_reasons.find(
                result.verdict, episode.step_index, step=step, missed=episode.missed, failed=failed, gaps=gaps
            )
            if self._replay is not None:
                self._inputs.end_replayed_step()
            transition = self.last_transition = self.transition_builder.transition(episode, step, result, reasons)
            if reasons:
                self.lifecycle.end_episode()
                if self._free_running:  # a lockstep world moves only in steps
                    self.lifecycle.brake("episode ended")
            for observer in self.observers:
                observer.observe(transition)
            if report.disposition >= Severity.HOLD and not self._has_warned:
                self._has_warned = warn_of_malformed_action(report.findings)
            ledger.is_marked = False
            ledger.returned_ns = episode.returned_ns = self.clock.now_ns()
        except BaseException:
            self.lifecycle.give_up()
            raise
        if failed is not None:
            raise failed
        return transition

    def _read(self, step: PendingStep) -> tuple[Snapshot, list[str]]:
        """Read the world, or fall back to the last valid readings when it is lost."""
        if step.lost is None:
            try:
                return self._gap_policy.apply(self.backend.read(step.target_ns, step.deadline_ns))
            except BackendError as error:
                if self._free_running:  # commands may still arrive
                    self.lifecycle.brake(f"backend lost: {error}")
                self._lose(step, error)
        self.backend.halt(str(step.lost))
        return self._gap_policy.lost(self._episode.snapshot.now_ns, str(step.lost)), []

    def _judge(self, step: PendingStep, snapshot: Snapshot) -> tuple[TaskResult, TaskError | None]:
        """Return the task's result, or one of zero and NaN if the world is lost or it fails."""
        failed = None
        if step.lost is None:
            try:
                before, applied = self._episode.snapshot, step.approved.report.applied
                return judge_step(self.task, self.contract, before, snapshot, applied), None
            except TaskError as error:
                failed = error
        terms = dict.fromkeys(self.task.terms, math.nan)
        return TaskResult(reward=0.0, verdict=Verdict.running(), terms=terms), failed

    def _account_sent(self, step: PendingStep, sent: SentCommand) -> None:
        """Complete the step with what was sent, where that is not the approved command."""
        step.external_inputs = self._inputs.with_sent(step.external_inputs, sent)
        if sent.published_ns is not None:
            self.ledger.published_ns = sent.published_ns
        if sent.command is not None:
            step.approved = sent.command
        if sent.report is not None:
            step.approved = merge_relay_report(step.approved, sent.report)
            self.gate.latch_stops(step.approved.report.findings)  # as in the relay, whose decision is final

    def _lose(self, step: PendingStep, error: BackendError) -> None:
        step.lost = BackendLostError.of(error)
        self.lifecycle.move_to(State.LOST)

    def _follow_measured(self) -> None:
        """Pass the measured positions to the arbiter, whose reference depends on them."""
        if not self.capabilities.actuates:
            self._arbiter.set_position_reference(self._joints.measured(self._episode.snapshot)[0])
        if self.gate.has_velocity:
            self._arbiter.update_measured(*self._joints.measured(self._episode.snapshot))

    def abort_step(self) -> None:
        """Abandon a step that was begun, and end the episode without a transition."""
        self._step = None
        self.lifecycle.give_up()

    # ---------------------------------------------------------------------------------------------- reset

    def check_reset(self, options: Mapping[str, Any] | None) -> dict[str, FloatArray]:
        """Return the options as arrays without a reset, or raise like `EmbodiedEnv.reset`."""
        if not self.capabilities.reopens:
            self.lifecycle.check_open("reset")
        if latched := latched_estop(self.gate):
            raise BackendNotReadyError(f"reset refused: {latched}")
        checked_instruction(self.contract, options)
        return checked_options(self.contract, options)

    def reset(
        self, *, world_seed: int, options: Mapping[str, Any] | None, seeded: bool, start: EpisodeStart | None = None
    ) -> tuple[Observation, Info]:
        """Start an episode at `start`, as number 0 if `seeded`, or raise like `EmbodiedEnv.reset`."""
        with self.lifecycle.only_reset():
            request = ResetRequest(epoch=self.epoch + 1, seed=world_seed, options=self.check_reset(options))
            was_running = self.lifecycle.state is State.RUNNING
            self.lifecycle.end_episode()
            if was_running and self._free_running:
                self.lifecycle.brake("reset() during an episode")
            self._arbiter.end_motion()  # a lost backend did not receive the braking
            self._step = None
            self.epoch += 1
            self._episode_index = 0 if seeded else self._episode_index + 1
            entered_ns = self.clock.now_ns()
            self.lifecycle.open()
            snapshot = self._resets.run(request, checked_instruction(self.contract, options), start)
            self._start_episode(snapshot, is_played=start is not None)
            episode = self._episode
            observation, info = self.transition_builder.at_reset(episode, self.clock.now_ns() - entered_ns)
            self.ledger.is_marked = False
            self.ledger.returned_ns = episode.returned_ns = self.clock.now_ns()
            return observation, info

    def _start_episode(self, snapshot: Snapshot, *, is_played: bool) -> None:
        self.ledger.is_first, self.ledger.observed_ns = True, self.clock.now_ns()
        if self._replay is not None and self._replay.frozen_ns:
            self.ledger.observed_ns = self._replay.frozen_ns
        self._inputs.begin_episode("" if snapshot.reset is None else snapshot.reset.instruction)
        if self.stages is not None and not is_played:
            self.stages.reset()
        self.transition_builder.begin_episode()
        hold = self.gate.hold_action(self._arbiter.reference)
        self._episode = EpisodeState(
            index=self._episode_index,
            snapshot=snapshot,
            frozen_ns=self.ledger.observed_ns,
            applied=begin_history(hold, self.contract.applied_actions),
            start=self._joints.positions_or_nan(snapshot).tolist(),
            is_played=is_played,
            history_length=self.history_length,
        )
        self.lifecycle.move_to(State.RUNNING)
        self._guard.feed()
        self.last_reset = snapshot

    def set_next_episode(self, episode_index: int) -> None:
        """Number the episode of the next reset without a seed."""
        self._episode_index = episode_index - 1

    # ---------------------------------------------------------------------------------------------- state

    def save(self) -> SavedStepper:
        """Return an independent state between two steps, or raise ResetNeededError."""
        if self.lifecycle.state is not State.RUNNING or self._step is not None:
            raise ResetNeededError("save() outside an episode or during a step: call it between two steps")
        return SavedStepper(episode=self._episode.copy(), command=self._arbiter.reference, stamps=self.ledger.save())

    def load(self, saved: SavedStepper) -> None:
        """Continue from a saved state of a lockstep world, which the caller sets back too.

        Raises UsageError for a world that moves by itself, and ResetNeededError except between two steps.
        """
        if self._free_running:
            raise UsageError(f"load() not supported with {self.backend.name}: the world moves by itself")
        self.lifecycle.check_open("load")
        if self.lifecycle.state is State.NEW or self._step is not None:
            raise ResetNeededError("load() before the first reset or during a step: call it between two steps")
        self._episode = saved.episode.copy()
        self._arbiter.reference = saved.command
        self.ledger.load(saved.stamps)
        self._gap_policy.restore(self._episode.snapshot)
        self.lifecycle.move_to(State.RUNNING)

    @property
    def step_index(self) -> int:
        """The number of steps taken in this episode."""
        return self._episode.step_index

    @property
    def state(self) -> str:
        """The state in words, for `repr`."""
        if self.lifecycle.state is State.RUNNING:
            return f"step {self.step_index} of episode {self._episode.index}"
        return "between episodes" if self.lifecycle.state is State.LOST else self.lifecycle.state.value

    def _problem_of_step(self) -> str:
        if self._step is not None:
            return "begin() during a step: finish the step before, or call reset()"
        return f"step() outside an episode: {latched_estop(self.gate) or 'call reset() first'}"

    # ------------------------------------------------------------------------------------- between two steps

    def inputs_for(self, call: str) -> ExternalInputsSource:
        """Return the next inputs, or raise ResetNeededError or ClosedError for a refused `call`."""
        self.lifecycle.check_open(call)
        if self.lifecycle.state is not State.RUNNING:
            raise ResetNeededError(f"{call}() outside an episode: call reset() first")
        return self._inputs

    def change_limits(self, changes: Mapping[str, JointLimits]) -> bool:
        """Change limits of joints between commands, or raise UsageError if a relay enforces them."""
        if self.capabilities.acknowledges_commands:
            raise UsageError(
                f"change_limits() not supported with a relay ({self.backend.name}): the relay enforces the limits of "
                "its own contract; restart both with a tighter contract"
            )
        with self._arbiter.exclusive:
            return self.gate.change_limits(changes)

    # ----------------------------------------------------------------------------------------------- idle

    def begin_idle(self) -> None:
        """Brake for one tick after the episode, while other robots of the world continue."""
        target_ns = self._episode.snapshot.now_ns + self._period_ns
        deadline_ns = self.clock.now_ns() + self._timeout_ns
        if self._follows_measured:
            self._follow_measured()
        self.lifecycle.brake("episode ended")
        try:
            self.backend.advance(target_ns, deadline_ns)
        except BackendError:
            self.lifecycle.move_to(State.LOST)

    def finish_idle(self) -> None:
        """Read the world after `begin_idle`, which is not a step and has no transition."""
        if self.lifecycle.state is State.LOST:
            return
        try:
            after_ns = self._episode.snapshot.now_ns + self._period_ns
            snapshot = self.backend.read(after_ns, self.clock.now_ns() + self._timeout_ns)
        except BackendError:
            self.lifecycle.move_to(State.LOST)
            return
        self._episode.snapshot, _ = self._gap_policy.apply(snapshot)

    def renderer(self) -> Renderable:
        """Return the backend for an image of its world, or raise like `EmbodiedEnv.render`."""
        self.lifecycle.check_open("render")
        if self.last_reset is None:
            raise ResetNeededError("render() called before the first reset(); call reset() first")
        return cast("Renderable", self.backend)

    def has_arrived(self, timeout_s: float) -> bool:
        """Return whether `finish` would return within `timeout_s`, or True if it is not polled."""
        return self._polled is None or self.lifecycle.state is State.LOST or self._polled.has_arrived(timeout_s)

    def close(self) -> None:
        """Brake, then free everything with `Lifecycle.close`."""
        self.lifecycle.close()
