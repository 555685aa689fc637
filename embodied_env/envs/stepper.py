"""One step in two halves, `begin` and `finish`: the only place that orders gate, arbiter, backend, task and ledger.

The module is long because that order is told in one place.
"""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any, cast

import gymnasium
import numpy as np
from numpy.typing import NDArray

from embodied_env.backends.base import Backend, ReplaySource, ResettableBackend
from embodied_env.contract import Contract, FloatArray, JointLimits
from embodied_env.contract.reset_options import checked_options
from embodied_env.core.clock import NS_PER_S, Clock, Domain, Stamp
from embodied_env.core.joint_positions import MeasuredJoints
from embodied_env.core.latency.info import CommandsInFlight, LatencyInfoBuilder
from embodied_env.core.latency.ledger import Ledger, StepEvent
from embodied_env.core.measured_velocities import MeasuredVelocities, Reading
from embodied_env.core.process.signals import deferred_signals
from embodied_env.core.reset_spec import ResetRoutine, confirmation_prompt, with_operator_confirmation
from embodied_env.core.types import (
    TERMINATED_REASONS,
    ApprovedCommand,
    ExternalInputs,
    Finding,
    Observer,
    ResetRequest,
    SafetyContext,
    Severity,
    Snapshot,
    TaskResult,
    Transition,
    Verdict,
    end_kind,
    order_end_reasons,
)
from embodied_env.envs.info import Info, InfoBuilder, reset_info
from embodied_env.envs.observation import GOOD, ObservationBuilder
from embodied_env.errors import (
    BackendError,
    BackendLostError,
    BackendNotReadyError,
    ClosedError,
    ResetNeededError,
    UsageError,
)
from embodied_env.safety import (
    Arbiter,
    CommandFilter,
    CommandState,
    SafetyGate,
    Watchdog,
    WatchdogThread,
    merge_relay_report,
)
from embodied_env.safety.context import SafetyContextBuilder, required_sensors
from embodied_env.safety.homing import HomingContext, HomingMotion
from embodied_env.tasks import ResettableTask, Task

Observation = dict[str, NDArray[Any]]

_STOP = Severity.STOP  # a name of a module is found sooner than a member


class Stepper:
    """Steps one robot, in one world, at one task. The faces over it are `env.py`, and `vector.py` over many."""

    def __init__(
        self,
        contract: Contract,
        backend: Backend,
        task: Task,
        *,
        clock: Clock,
        evaluator_info: bool = False,
        observers: Sequence[Observer] = (),
        shapers: Mapping[str, CommandFilter] | None = None,
    ) -> None:
        """Wire the parts. Nothing is started before the first `reset`. `shapers`: gates that weaken, by name."""
        self.contract = contract
        self.last_transition: Transition | None = None
        self.last_reset: Snapshot | None = None
        self.meanwhile: Callable[[], None] | None = None  # called while the world moves; it must not raise
        self._backend = backend
        self._task = task
        self._resettable = task if isinstance(task, ResettableTask) else None
        self._clock = clock
        self._evaluator_info = evaluator_info
        self._observers = tuple(observers)
        self._playback: ReplaySource | None = getattr(backend, "playback", None)
        self._ledger = Ledger(clock) if self._playback is None else self._playback.ledger
        capabilities = self.capabilities = backend.capabilities
        tolerance_s = contract.safety.observation.future_tolerance_s if capabilities.free_running else 0.0
        self._observations = ObservationBuilder(contract, future_tolerance_ns=round(tolerance_s * NS_PER_S))
        self._gate = SafetyGate(
            contract,
            shapers=shapers,
            fixed_rate=not capabilities.free_running,
            limits_elsewhere=capabilities.acknowledges_commands,
        )
        self._joints = MeasuredJoints(contract, self._gate.layout.joints)
        self._velocities = MeasuredVelocities(contract)
        self._situations = SafetyContextBuilder(contract, self._joints)
        has_newest = hasattr(backend, "newest") and not capabilities.acknowledges_commands
        self._arbiter = Arbiter(
            backend.send,
            self._gate,
            clock=clock,
            control_period_s=contract.control_period_s,
            free_running=capabilities.free_running,
            downstream_timeout_s=getattr(backend, "downstream_timeout_s", None),
            measured_velocities=self._measured_velocities if self._velocities.sensors and has_newest else None,
        )
        self._watchdog = Watchdog(
            self._arbiter,
            self._gate,
            contract.safety.watchdog,
            clock=clock,
            control_period_s=contract.control_period_s,
            estops=self._estops,
        )
        self._watchdog_thread: WatchdogThread | None = None
        self._closing = threading.RLock()  # held while the backend is opened, and while everything is closed
        self._pid = 0  # of the process that opened the backend
        self._infos = InfoBuilder(
            contract,
            self._gate.layout,
            backend=backend.name,
            wall_stamps=capabilities.transport and capabilities.free_running,
            evaluator_info=evaluator_info,
        )
        self._stages = LatencyInfoBuilder(
            self._infos.sensors,
            primary=next(iter(required_sensors(contract)), None),
            period_ns=contract.control_period_ns,
            transport=capabilities.transport and not clock.virtual,
            moves_by_itself=capabilities.free_running,
            pacer=getattr(backend, "pacer", None),
            actuation=capabilities.actuation,
            injected=capabilities.injected,
        )
        self._commands = CommandsInFlight()
        self._domain = Domain.ROS if capabilities.free_running else Domain.SIM
        self._opened = self._closed = self._running = False
        self._frozen_ns = self._returned_ns = 0
        self._epoch = 0
        self._episode_index, self._step_index = -1, 0
        self._origin_ns = 0
        self._before = self._snapshot = Snapshot(now_ns=0, samples={})
        self._applied: deque[FloatArray] = deque(maxlen=contract.applied_actions)
        self._pending: tuple[Any, ApprovedCommand, Stamp, Stamp] | None = None
        self._circumstances: ExternalInputs
        self._lost: BackendLostError | None = None

    @property
    def epoch(self) -> int:
        """The number of the episode: resets so far, less one; -1 before the first. It never repeats."""
        return self._epoch - 1

    @property
    def step_index(self) -> int:
        """How many steps of this episode were taken."""
        return self._step_index

    def set_next_episode(self, episode_index: int) -> None:
        """Let the next reset that is not seeded begin the episode of this number."""
        self._episode_index = episode_index - 1

    # ---------------------------------------------------------------------------------------------- reset

    def reset(self, *, world_seed: int, options: Mapping[str, Any] | None, seeded: bool) -> tuple[Observation, Info]:
        """Start an episode.

        Args:
            world_seed: the seed of the world for this episode.
            options: values for the contract's reset options.
            seeded: the agent gave a seed: episodes are counted from here.

        Raises:
            UsageError: for an option that the contract does not have, or a value outside its bounds.
            BackendNotReadyError: when the world does not come up, the robot does not come home, a person does not
                agree, or a sensor has no reading newer than all of this.
            ClosedError: after `close`.
        """
        checked = self.check_reset(options)
        request = ResetRequest(epoch=self._epoch, seed=world_seed, options=checked)
        if self._running and self.capabilities.free_running:
            self._end_episode()
            self._brake("reset() in the middle of an episode")
        self._end_episode()
        self._pending = self._lost = None
        self._epoch += 1
        self._episode_index = 0 if seeded else self._episode_index + 1
        entered_ns = self._clock.now_ns()
        if not self._opened:
            self._open()
        try:
            snapshot = self._judge_reset(self._reset_world(request), checked)
            self._check_open("reset")  # another thread may have closed meanwhile
        except BaseException as error:
            with deferred_signals():
                self._backend.halt("the reset has failed")  # or `close` would brake from where the robot once was
                if self._closed:
                    self._backend.close()  # the reset may have opened it again
                self._check_open("reset")
            if isinstance(error, BackendLostError):
                raise BackendNotReadyError(f"reset: {error}") from error
            raise
        self._ledger.begin_episode()
        self._applied.extend([self._gate.hold_action(self._arbiter.reference)] * self.contract.applied_actions)
        self._start_episode(snapshot)
        self.last_reset = snapshot
        info = self._common_info(snapshot, end_reason="")
        info["reset"] = reset_info(
            snapshot, duration_s=(self._clock.now_ns() - entered_ns) / NS_PER_S, hidden=self._hidden_options()
        )
        observation = self._observations.observe(snapshot, 0, self._applied)
        self._returned_ns = self._ledger.leave_step()
        return observation, info

    def _open(self) -> None:
        """Open the backend, and start the watchdog's thread before: whatever happens, it closes what was opened."""
        with self._closing:
            self._check_open("reset")
            self._pid = os.getpid()
            if self.capabilities.free_running and self._playback is None and self._watchdog_thread is None:
                period_s = self.contract.control_period_s
                with deferred_signals():
                    thread = WatchdogThread(self._watchdog, self._close_unless_busy, control_period_s=period_s)
                    thread.start()
                    self._watchdog_thread = thread
            self._backend.open()
            self._opened = True

    def _reset_world(self, request: ResetRequest) -> Snapshot:
        """Reset the world, let the rest of its routine follow, and begin where the robot is in the end."""
        deadline = self._deadline(self._backend.reset_timeout_s)
        snapshot = self._verify_reset_snapshot(self._backend.reset(request, deadline), request.epoch)
        routine: ResetRoutine | None = getattr(self._backend, "routine", None)
        if routine is not None and (routine.home or routine.confirm):
            snapshot = self._run_reset_procedure(routine, request, snapshot, deadline)
        if self._playback is None and snapshot.reset is not None and (ignored := snapshot.reset.ignored):
            gymnasium.logger.warn(f"{self._backend.name} ignores these reset options: {', '.join(ignored)}")
        return snapshot

    def _judge_reset(self, snapshot: Snapshot, options: Mapping[str, FloatArray]) -> Snapshot:
        """Let the task begin its episode, and put into the report what it says of the snapshot."""
        report = snapshot.reset
        if report is None:
            raise TypeError("a backend's reset must return a snapshot with a ResetReport")
        if self._playback is None:  # else they are those of the record
            report = replace(report, options=options)
        if self._resettable is not None:
            verdict = self._resettable.reset(replace(snapshot, reset=report), report.options)
            if not isinstance(verdict, Verdict | None):
                raise TypeError(f"{type(self._task).__name__}.reset returned {verdict!r} (expected a Verdict or None)")
            report = replace(report, verdict=verdict)
        if self._playback is None and report.level == "none" and report.verdict is not None and report.verdict.success:
            gymnasium.logger.warn("the task is solved before the first step, and the reset moved nothing (level none)")
        return replace(snapshot, reset=report)

    def _run_reset_procedure(
        self, routine: ResetRoutine, request: ResetRequest, snapshot: Snapshot, deadline: Stamp
    ) -> Snapshot:
        """Drive home, have it confirmed, and read anew: what was read before is older than the routine."""
        backend, report = cast("ResettableBackend", self._backend), snapshot.reset
        if report is None:
            raise TypeError("a backend's reset must return a snapshot with a ResetReport")
        homing = HomingMotion(self.contract, routine, self._gate, self._arbiter, self._clock) if routine.home else None
        if homing is not None:
            account = self._home(homing, snapshot, deadline)
            report = replace(
                report,
                routine="+".join(filter(None, (report.routine, "home"))),
                details={**report.details, "home": account},
            )
        if routine.confirm:
            positions, _ = self._joints.measured(self._snapshot if homing is not None else snapshot)
            backend.confirm(confirmation_prompt(request.options, self._gate.layout.joints, positions), deadline)
            report = with_operator_confirmation(report, routine.confirm, request)
        snapshot = self._verify_reset_snapshot(backend.verify(deadline), request.epoch)
        if homing is not None:
            homing.check_arrived(snapshot)
        return replace(snapshot, reset=report)

    def _verify_reset_snapshot(self, raw: Snapshot, epoch: int) -> Snapshot:
        """Check what a reset has read; whatever was latched or published before counts no more."""
        snapshot = self._observations.begin(raw)
        self._gate.reset()
        self._arbiter.reset(self._joints.measured(snapshot)[0], epoch)
        return snapshot

    def _home(self, homing: HomingMotion, snapshot: Snapshot, deadline: Stamp) -> str:
        """Drive home, watched over like an episode; whatever ends it brakes. Return the account."""
        self._snapshot = snapshot
        try:
            world = HomingContext(
                turn=self._advance_one_period, situation=self._read_safety_context, feed=self._feed_watchdog
            )
            return homing.drive(world, deadline.ns)
        except BaseException as error:
            self._brake(f"the way home has ended: {type(error).__name__}")
            raise
        finally:
            self._watchdog.disarm()

    def _advance_one_period(self) -> tuple[Snapshot, list[str]]:
        """Let a control period pass, and read; return the settled snapshot and the gaps that end an episode."""
        target = Stamp(self._snapshot.now_ns + self.contract.control_period_ns, self._domain)
        deadline = self._deadline(self._backend.step_timeout_s)
        self._backend.advance(target, deadline)
        self._snapshot, gaps = self._observations.apply_gap_policy(self._backend.read(target, deadline))
        self._frozen_ns = self._returned_ns = self._clock.now_ns()
        return self._snapshot, gaps

    def _start_episode(self, snapshot: Snapshot) -> None:
        self._before = self._snapshot = snapshot
        self._commands.begin()
        self._origin_ns = snapshot.now_ns
        self._frozen_ns = self._ledger.at_ns(StepEvent.OBSERVED)
        self._step_index = 0
        self._running = True
        self._feed_watchdog()

    def check_reset(self, options: Mapping[str, Any] | None) -> dict[str, FloatArray]:
        """Return the options of a reset as arrays within the contract's bounds; nothing changes.

        Raises:
            UsageError: for an option that the contract does not have, or a value outside its bounds.
            ClosedError: after `close`.
        """
        self._check_open("reset")
        return checked_options(self.contract, options)

    def _hidden_options(self) -> list[str]:
        if self._evaluator_info:
            return []
        return [name for name, option in self.contract.reset_options.items() if option.visibility == "evaluator"]

    # ----------------------------------------------------------------------------------------------- step

    def begin(self, action: Any) -> None:  # noqa: ANN401 - agents send anything
        """Judge `action`, publish what was approved, and set the world moving.

        Raises:
            ClosedError: after `close`.
            ResetNeededError: before `reset`, after the end of the episode, or when a step is already under way.
            InternalFaultError: when the gate caught itself; nothing was published and the backend is halted.
        """
        self._check_open("step")
        if not self._running or self._pending is not None:
            raise ResetNeededError("step() outside an episode: call reset() first; nothing was published")
        self._ledger.enter_step()
        self._feed_watchdog()
        target = Stamp(self._snapshot.now_ns + self.contract.control_period_ns, self._domain)
        deadline = self._deadline(self._backend.step_timeout_s)
        published = False
        try:
            if not self.capabilities.actuates:
                self._arbiter.set_position_reference(self._joints.measured(self._snapshot)[0])
            if self._gate.has_velocity:
                self._arbiter.update_measured(*self._joints.measured(self._snapshot))
            with self._arbiter.exclusive() as (reference, dt_s):
                seen = self._circumstances = self._build_safety_context(reference, dt_s)
                approved = self._gate.judge(action, seen.reference or reference, seen.dt_s, seen.situation)
                self._ledger.stamp(StepEvent.GATED)
                self._pending = (_copy_action(action), approved, target, deadline)
                sent = self._arbiter.send(approved)
                if sent.report is not None:
                    self._circumstances = replace(seen, answer=sent.report)
                    answered = merge_relay_report(approved, sent.report)
                    self._latch(answered)
                    self._pending = (self._pending[0], answered, target, deadline)
            self._commands.record_sent(sent.seq, self._ledger.stamp(StepEvent.PUBLISHED, sent.published_ns))
            published = True
            self._backend.advance(target, deadline)
            if self.meanwhile is not None:
                self.meanwhile()
            self._clock.on_world_advanced(self.contract.control_period_ns)
        except BackendError as error:
            if not published:
                self._ledger.stamp(StepEvent.PUBLISHED)
            self._lost = _as_lost(error)
        except BaseException:
            self._give_up()
            raise

    def _latch(self, answered: ApprovedCommand) -> None:
        """What is latched where the command went is latched here."""
        for finding in answered.report.findings:
            if finding.severity >= Severity.STOP:
                self._gate.latch(finding)

    def _build_safety_context(self, reference: CommandState, dt_s: float) -> ExternalInputs:
        """Return what the action is judged under. Of a world that moved by itself and is played back, as it was."""
        moves_by_itself = self.capabilities.free_running
        played = None if self._playback is None else self._playback.circumstances
        seen = played if moves_by_itself else None
        if played is not None:
            self._gate.replay_limits(played.limits, is_first=self._step_index == 0)
        if seen is not None:
            reference, dt_s = seen.reference or reference, seen.dt_s
            self._watchdog.trips = seen.watchdog_trips
            self._latch_as(seen.latched)
        situation = self._read_safety_context(None if played is None else played.situation)
        return ExternalInputs(
            situation=situation,
            latched=self._gate.latched,
            dt_s=dt_s,
            reference=reference if moves_by_itself else None,
            limits=self._gate.changed,
        )

    def _latch_as(self, latched: Finding | None) -> None:
        """Latch what the watchdog had latched in a run that is played back."""
        if latched is not None:
            self._gate.latch(latched)

    def _read_safety_context(self, played_back: SafetyContext | None = None) -> SafetyContext:
        """Return what is known beside the action: in a world that waits no time has passed, but what is injected."""
        since_ns = (0, 0)
        if played_back is not None:
            since_ns = (round(played_back.latency_s * NS_PER_S), round(played_back.action_age_s * NS_PER_S))
        elif self.capabilities.free_running:
            now_ns = self._clock.now_ns()
            since_ns = (now_ns - self._frozen_ns, now_ns - self._returned_ns)
        elif self.capabilities.injected:
            since_ns = (self._backend.inference_ns,) * 2  # type: ignore[attr-defined] # its capabilities say so
        return self._situations.build(
            self._snapshot, since_frozen_ns=since_ns[0], since_returned_ns=since_ns[1], estops=self._estops()
        )

    def _measured_velocities(self) -> tuple[FloatArray, FloatArray]:
        """Return the newest measured velocities and their ages, s; NaN and infinity where the backend has none."""
        try:
            snapshot: Snapshot = self._backend.newest(self._velocities.sensors)  # type: ignore[attr-defined] # see `Backend`
        except BackendError:
            return self._velocities.read(lambda _: None)
        samples = snapshot.samples

        def newest(name: str) -> Reading | None:
            sample = samples.get(name)
            if sample is None or sample.quality not in GOOD:
                return None
            return sample.values, (snapshot.now_ns - sample.stamp_ns) / NS_PER_S

        return self._velocities.read(newest)

    def _estops(self) -> Mapping[str, str]:
        """Return the robot's safety inputs; those that cannot be read are unknown."""
        if not self.capabilities.estop_inputs:
            return {}
        try:
            estops: Mapping[str, str] = self._backend.estops()  # type: ignore[attr-defined] # its capabilities say so
        except BackendError:
            return {self._backend.name: "unknown"}
        return estops

    def clear_estop(self) -> None:
        """Clear an ESTOP, on behalf of a person: a STOP is left, so nothing moves before `reset`."""
        self._gate.clear_estop()

    def change_limits(self, changes: Mapping[str, JointLimits]) -> bool:
        """Change the limits of joints, between two commands; see `SafetyGate.change_limits`.

        Raises:
            UsageError: also where another process keeps the limits: it would not hear of it.
        """
        if self.capabilities.acknowledges_commands:
            raise UsageError(
                f"change_limits() is not available with a relay behind {self._backend.name}: it keeps the limits of "
                "the contract that it was started with; start both with a tighter contract"
            )
        with self._arbiter.exclusive():
            return self._gate.change_limits(changes)

    def finish(self) -> Transition:
        """Wait for the world, judge, and account for the step that `begin` began.

        A world that does not answer in time ends the episode as truncated, with the last valid observation.
        """
        if self._pending is None:
            raise ResetNeededError("finish() without begin(): no step is under way")
        (action, approved, target, deadline), self._pending = self._pending, None
        try:
            return self._finish(action, approved, target, deadline)
        except BaseException:
            self._give_up()
            raise

    def _finish(self, action: Any, approved: ApprovedCommand, target: Stamp, deadline: Stamp) -> Transition:  # noqa: ANN401
        settled, gaps = self._read(target, deadline)
        self._frozen_ns = self._ledger.stamp(StepEvent.OBSERVED)
        self._step_index += 1
        if self._lost is None:
            result = self._task.judge(self._snapshot, settled, approved.report.applied)
        else:
            terms = dict.fromkeys(self._task.terms, math.nan)
            result = TaskResult(reward=0.0, verdict=Verdict.running(), terms=terms)
        self._before, self._snapshot = self._snapshot, settled
        self._applied.append(approved.report.applied)
        reasons = self._end_reasons(approved, result.verdict, gaps)
        transition = self._account(action, approved, result, reasons)
        self.last_transition = transition
        if reasons:
            self._end_episode()
            if self.capabilities.free_running:  # a lockstep world stands still without steps
                self._brake("the episode has ended")
        for observer in self._observers:
            observer.observe(transition)
        self._returned_ns = self._ledger.leave_step()
        return transition

    def abort_step(self) -> None:
        """Give up a step that was begun and will not be finished: the episode is over, and it has no account."""
        self._pending = None
        self._give_up()

    def begin_idle(self) -> None:
        """Brake by one tick, and set the world moving: others go on in it after the episode of this robot has ended.

        Raises:
            UsageError: in the middle of an episode, or in a world that moves by itself.
        """
        if self._running or self.capabilities.free_running:
            raise UsageError("begin_idle() is for a robot whose episode has ended, in a world that waits")
        target = Stamp(self._snapshot.now_ns + self.contract.control_period_ns, self._domain)
        deadline = self._deadline(self._backend.step_timeout_s)
        if self._gate.has_velocity:
            self._arbiter.update_measured(*self._joints.measured(self._snapshot))
        self._brake("the episode has ended")
        try:
            self._backend.advance(target, deadline)
        except BackendError as error:
            self._lost = _as_lost(error)

    def finish_idle(self) -> None:
        """Read where `begin_idle` has led to. Nobody is told of it: a robot at rest takes no steps."""
        if self._lost is not None:
            return
        target = Stamp(self._snapshot.now_ns + self.contract.control_period_ns, self._domain)
        try:
            snapshot = self._backend.read(target, self._deadline(self._backend.step_timeout_s))
        except BackendError as error:
            self._lost = _as_lost(error)
            return
        self._snapshot, _ = self._observations.apply_gap_policy(snapshot)

    def mark(self, name: str) -> None:
        """Stamp the end of a part of the agent's time; see `Ledger.mark`."""
        self._ledger.mark(name)

    def _read(self, target: Stamp, deadline: Stamp) -> tuple[Snapshot, list[str]]:
        """Read the world, or fall back to the last valid readings when it is lost."""
        if self._lost is None:
            try:
                return self._observations.apply_gap_policy(self._backend.read(target, deadline))
            except BackendError as error:
                if self.capabilities.free_running:  # it may still hear what it does not answer
                    self._brake(f"lost: {error}")
                self._lost = _as_lost(error)
        self._backend.halt(str(self._lost))
        return self._observations.lost(self._snapshot.now_ns, str(self._lost)), []

    def _end_reasons(self, approved: ApprovedCommand, verdict: Verdict, gaps: list[str]) -> tuple[str, ...]:
        """Return every reason to end that holds, the first by precedence first."""
        episode = self.contract.episode
        reasons = []
        if verdict.success:
            reasons.append("success")
        if verdict.failure:
            reasons.append(f"failure:{verdict.failure}")
        if verdict.out_of_bounds:
            reasons.append(f"out_of_bounds:{verdict.out_of_bounds}")
        if self._step_index >= episode.horizon_steps:
            reasons.append("horizon" if episode.kind == "finite_horizon" else "time_limit")
        if approved.report.disposition >= _STOP:
            gravest = max(approved.report.findings, key=lambda found: (found.severity, found.gate != "latch"))
            reasons.append(f"safety_stop:{self._cause(gravest)}")
        if self._lost is not None:
            reasons.append(f"backend_lost:{self._lost.why}")
        reasons += [f"sensor_gap:{name}" for name in gaps]
        return order_end_reasons(reasons) if reasons else ()

    def _cause(self, gravest: Finding) -> str:
        """Return the code of what is wrong: of a STOP that was latched in this episode, of what latched it."""
        latched = self._gate.latched
        return latched.code if gravest.code == "latch.stop" and latched is not None else gravest.code

    def _account(
        self,
        action: Any,  # noqa: ANN401 - agents send anything
        approved: ApprovedCommand,
        result: TaskResult,
        reasons: tuple[str, ...],
    ) -> Transition:
        """Build the transition and its info."""
        report = approved.report
        settled = self._snapshot
        end_reason = reasons[0] if reasons else ""
        terminated = bool(reasons) and end_kind(end_reason) in TERMINATED_REASONS
        info = self._common_info(settled, end_reason=end_reason)
        if self.capabilities.free_running and self._playback is not None and self._playback.circumstances is not None:
            self._latch_as(self._playback.circumstances.latched_after)
        info["latency_ms"] = self._ledger.obs_to_command_ns / 1e6
        info["action_clipped"] = report.intervened
        info["action"] = self._infos.action(report)
        info["safety"] = self._infos.safety(
            report,
            latched=self._gate.latched is not None,
            watchdog_trips=self._watchdog.trips,
            intervention_share=self._gate.intervention_share,
        )
        info["latency"] = self._stages.build(self._ledger, self._before, settled, self._commands)
        info["task"] = dict(result.terms)
        stamps_ns = self._ledger.stamps_ns()
        self._ledger.step_is_accounted()
        return Transition(
            observation=self._observations.observe(settled, self._step_index, self._applied),
            action=action,
            reward=float(result.reward),
            terminated=terminated,
            truncated=bool(reasons) and not terminated,
            info=info,
            end_reasons=reasons,
            report=report,
            stamps_ns=stamps_ns,
            snapshot=settled,
            circumstances=self._circumstances_after(),
        )

    def _circumstances_after(self) -> ExternalInputs:
        """Return what the step was judged under, with what the latch and the watchdog say now."""
        seen, latched, trips = self._circumstances, self._gate.latched, self._watchdog.trips
        if latched is None and trips == 0:
            return seen  # which says so
        return replace(seen, latched_after=latched, watchdog_trips=trips)

    def _common_info(self, snapshot: Snapshot, *, end_reason: str) -> Info:
        info = self._infos.common(
            snapshot,
            frozen_ns=self._frozen_ns,
            origin_ns=self._origin_ns,
            episode_index=self._episode_index,
            step_index=self._step_index,
            end_reason=end_reason,
        )
        if self._evaluator_info:
            info["evaluator"] = self._observations.evaluator_readings(snapshot)
        return info

    # --------------------------------------------------------------------------------------------- picture

    def render(self) -> NDArray[np.uint8]:
        """Return a picture of the world as it is now, shape (height, width, 3).

        Raises:
            ResetNeededError: before the first reset.
            UsageError: where the backend has no pictures.
            ClosedError: after `close`.
        """
        self._check_can_show("rgb_array")
        picture: NDArray[np.uint8] = self._backend.render()  # type: ignore[attr-defined] # its capabilities say so
        return picture

    def show(self) -> None:
        """Show the world as it is now in a window; raises like `render`."""
        self._check_can_show("human")
        self._backend.show()  # type: ignore[attr-defined] # its capabilities say so

    def _check_can_show(self, mode: str) -> None:
        self._check_open("render")
        if mode not in self.capabilities.render_modes:
            raise UsageError(f"the backend {self._backend.name} cannot render {mode!r}")
        if self.last_reset is None:
            raise ResetNeededError("render() before the first reset(): there is nothing to see")

    # ------------------------------------------------------------------------------------------------ end

    def use_executor(self, executor: Executor) -> bool:
        """Let the world be computed in threads of `executor` between `begin` and `finish`; False: it cannot be."""
        compute_in = getattr(self._backend, "compute_in", None)
        return compute_in is not None and bool(compute_in(executor))

    def processes(self) -> list[dict[str, Any]]:
        """Return role and pid of each process that the backend started."""
        return self._backend.processes()

    def orphan(self) -> None:
        """Let the watchdog's thread close: nobody can call `close` any more. A finalizer may call it in any thread."""
        if self._watchdog_thread is not None:
            self._watchdog_thread.orphan()

    def close(self) -> None:
        """Brake, then free everything. Idempotent; safe when nothing was ever started.

        Any thread may close; a second one waits for the first. In a process that was forked since the world was
        opened it does nothing where the world moves by itself: that is the parent's.
        """
        if self.capabilities.free_running and self._pid not in (0, os.getpid()):
            return
        with self._closing:
            self._close()

    def _close_unless_busy(self) -> bool:
        """Close in the watchdog's thread; False: another thread opens or closes, and may wait for this one."""
        if not self._closing.acquire(blocking=False):
            return False
        try:
            self._close()
        finally:
            self._closing.release()
        return True

    def _close(self) -> None:
        if self._closed:
            return
        try:
            with deferred_signals():
                self._closed = True
                self._arbiter.close()
                running = self._running or self.capabilities.free_running
                self._end_episode()
                if self._watchdog_thread is not None:
                    self._watchdog_thread.stop()
                if running:
                    self._brake("close()")
        finally:
            if self._closed:  # an interrupt that came before it began leaves everything to the next call
                self._backend.close()

    def _brake(self, why: str) -> None:
        """Come to rest, whoever interrupts that: they are heard afterwards. What is played back does not move."""
        if self._lost is not None or self._playback is not None:
            return
        with deferred_signals():
            try:
                self._arbiter.brake_to_rest(
                    Finding(gate="latch", severity=Severity.HOLD, code="latch.stop", detail=why)
                )
            except BackendError as error:
                self._backend.halt(f"lost while braking: {error}")

    def _give_up(self) -> None:
        """An error or an interrupt in the middle of a step: the world may be a step further than the account."""
        with deferred_signals():
            self._end_episode()
            try:
                if self.capabilities.free_running:
                    self._brake("an error in the middle of a step")
            finally:
                self._backend.halt("an error in the middle of a step")

    def _end_episode(self) -> None:
        self._running = False
        self._watchdog.disarm()

    def _feed_watchdog(self) -> None:
        """Only a world that moves by itself is watched, and of one that is played back it is known what was done."""
        if not self.capabilities.free_running or self._playback is not None:
            return
        self._watchdog.feed()

    def _check_open(self, call: str) -> None:
        if self._closed:
            raise ClosedError(f"{call}() after close(): the environment is closed; make a new one")

    def _deadline(self, timeout_s: float) -> Stamp:
        return Stamp(self._clock.now_ns() + round(timeout_s * NS_PER_S), Domain.STEADY)


def _copy_action(action: Any) -> Any:  # noqa: ANN401 - agents send anything
    """Return the action as it is now: arrays are copied, since their owner may write them later."""
    if isinstance(action, np.ndarray):
        return action.copy()
    if isinstance(action, Mapping):
        return {name: _copy_action(part) for name, part in action.items()}
    return list(action) if isinstance(action, list) else action


def _as_lost(error: BackendError) -> BackendLostError:
    return error if isinstance(error, BackendLostError) else BackendLostError(type(error).__name__, str(error))
