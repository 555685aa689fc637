"""The arbiter owns the last published command; steps, setpoints, the watchdog and `close` publish through it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from embodied_env.contract import FloatArray
from embodied_env.core.codes import Severity
from embodied_env.core.measured_joints import nearest_turn
from embodied_env.core.types import ApprovedCommand, CommandState, Finding, SentCommand, Trajectory, WriteDelay
from embodied_env.errors import BackendError, BackendLostError, ClosedError
from embodied_env.processes.signals import deferred_signals
from embodied_env.safety.approved_commands import state_after, without_acceleration
from embodied_env.safety.gate import SafetyGate
from embodied_env.safety.joint_limits import joint_bounds, lowered_velocity
from embodied_env.safety.setpoints import Segment, SetpointPlanner
from embodied_env.timing.clock import NS_PER_S, Clock

_STALL_PERIODS = 3  # without a command, after which position servos have arrived
_MAX_FUTILE_PERIODS = 20  # of braking without effect
_STEP_LEAD_DIVISOR, _WRITE_LEAD_DIVISOR = 4, 8  # of the period: time until a point is due
_MAX_LATE = 4  # brakings of one command; the last is written, late or not
_NO_COMMAND = Finding(gate="watchdog", severity=Severity.HOLD, code="wd.hold", detail="no command after the last one")


class _PublishingLock:
    """Context manager that holds the right to publish.

    A signal handler may raise wherever Python code begins or calls. If it did so between taking the lock and the body,
    or before the release, the watchdog would wait for the lock without end.
    """

    __slots__ = ("__exit__", "_arbiter", "_lock")
    __exit__: Callable[..., None]

    def __init__(self, arbiter: Arbiter, lock: threading.RLock) -> None:
        self._arbiter, self._lock = arbiter, lock
        self.__exit__ = lock.__exit__  # no signal handler can run before it releases the lock

    def __enter__(self) -> tuple[CommandState, float]:
        arbiter = self._arbiter
        if not arbiter.free_running:  # no watchdog
            self._lock.acquire()
            return arbiter.reference, arbiter.period_s
        is_taken = False
        try:
            with deferred_signals():
                is_taken = self._lock.acquire()
            return arbiter.reference_of_step()
        except BaseException:
            if is_taken:
                self._lock.release()
            raise


class Arbiter:
    """Serialises publishers and owns the reference of every limit: the last published command.

    In lockstep each step takes one control period of simulated time. On a free-running backend dt is the
    time since the last publication, at most one control period, so a pause never enlarges the allowed jump. After a
    pause the reference velocities are lowered towards the measured motion, never raised (`safety.joint_limits`).

    A free-running robot moves, or comes to rest, while a command waits in a suspended process. Therefore the clock is
    read again immediately before each write, and braking replaces a command whose dt was computed too long ago
    (`_brake_instead`). The proof is in `safety.joint_limits`.

    With setpoints between steps (`safety.setpoints`) an approved command is the goal of a segment. `send` publishes
    the first setpoint towards it, `send_setpoint` the others; each is approved by the gate from the one before. A step
    starts at the goal of the step before, while the published motion follows that one.

    Attributes:
        reference: the last published command.
        exclusive: holds the right to publish; the context value is (reference, dt in s) for one judge and one send.
        delay: that of the last published command, or None.
        trajectory: the last published, or None.
    """

    def __init__(  # noqa: PLR0913 - its options
        self,
        send: Callable[[ApprovedCommand], SentCommand],
        gate: SafetyGate,
        *,
        clock: Clock,
        control_period_s: float,
        free_running: bool,
        downstream_timeout_s: float | None = None,
        measured_velocities: Callable[[], tuple[FloatArray, FloatArray]] | None = None,
        setpoints_per_step: int = 1,
        has_trajectories: bool = False,
        is_replay: bool = False,
    ) -> None:
        """Create an arbiter without an epoch; `reset` begins one.

        After `downstream_timeout_s` the controller stops a velocity command that is not repeated (None: no known
        timeout). `measured_velocities` returns velocities and their ages in s; it is called after a gap in the
        commands. `clock` is the steady clock. With `setpoints_per_step` above 1 the caller calls `send_setpoint` at
        each `setpoint_due_ns`. `has_trajectories`: `send` executes trajectories. With `is_replay` delays of writes are
        those passed to `send`, not measured ones.
        """
        self._send = send
        self._gate = gate
        self._clock = clock
        self.period_s = control_period_s
        self.free_running = free_running
        self._period_ns = round(control_period_s * NS_PER_S)
        self._stall_ns = _STALL_PERIODS * self._period_ns
        timeout_ns = math.inf if downstream_timeout_s is None else round(downstream_timeout_s * NS_PER_S)
        self._rest_after_ns = self._stall_ns, timeout_ns  # of a position servo, of a velocity command
        self._is_timed = free_running and not is_replay
        self._measured_velocities = measured_velocities
        self._gap_since_ns: int | None = None  # last publication before a gap, until a settled reading ends it
        self._lock = threading.RLock()
        self.exclusive = _PublishingLock(self, self._lock)
        size = gate.layout.size
        self.reference = CommandState(positions=np.zeros(size), velocities=np.zeros(size), seq=0, epoch=-1)
        self._writing_ns = self._published_ns = 0  # before and after the last write
        self._judged_ns = 0  # when dt was computed
        self.delay: WriteDelay | None = None
        self._closed = False
        self._planner: SetpointPlanner | None = None
        self._tick_s = control_period_s  # between two commands that brake to rest
        if setpoints_per_step > 1:
            self._planner = SetpointPlanner(control_period_ns=self._period_ns, per_step=setpoints_per_step)
            self._tick_s = self._planner.period_ns / NS_PER_S
        self._has_trajectories = has_trajectories
        self.trajectory: Trajectory | None = None
        self._segment: Segment | None = None  # the motion in progress
        self._due_ns = 0  # of the next setpoint; of the reference, with trajectories
        self._start = self.reference  # of the step that is judged
        self._gaps_ns: list[int] = []  # before each setpoint since the last account; 0: at rest
        self._is_unsure = False  # a setpoint since the last step has no guaranteed acceleration
        self.setpoint_pending = threading.Event()

    def close(self) -> None:
        """Refuse every further command except braking, so that a step in another thread cannot undo it."""
        with self._lock:
            self._closed, self._segment = True, None

    def reopen(self) -> None:
        """Accept commands again after `close`, before the next reset."""
        with self._lock:
            self._closed = False

    def reset(self, positions: FloatArray, epoch: int, *, continues: bool = False) -> None:
        """Begin an epoch at rest at the measured positions, shape (n_joints,), in contract order.

        If the robot `continues` from the last command, a joint that turns without limits is at the equivalent of its
        position nearest to that command: drivers may report angles modulo a turn, and controllers count turns.
        """
        with self._lock:
            if continues and self.reference.seq > 0:
                positions = nearest_turn(positions, self.reference.positions, self._gate.layout.turns)
            self._gap_since_ns = self._segment = self.trajectory = None
            self._gaps_ns.clear()
            self.reference = CommandState(
                positions=positions.copy(), velocities=np.zeros_like(positions), seq=self.reference.seq, epoch=epoch
            )
            self._writing_ns = self._published_ns = self._clock.now_ns()
            self._is_unsure = False

    def end_motion(self) -> None:
        """Treat the robot as at rest where commands no longer reach it, so that no setpoint is due before `reset`."""
        self.reset(self.reference.positions, self.reference.epoch)

    def update_measured(self, positions: FloatArray, ages_s: FloatArray) -> None:
        """Update the positions of joints commanded by velocity; the others keep their published ones.

        Shape (n_joints,), contract order. During its age a joint may have moved at its larger velocity limit (`slack`).
        """
        with self._lock:
            is_velocity = self._gate.layout.is_velocity
            chosen = np.where(is_velocity, positions, self.reference.positions)
            fastest = np.where(is_velocity, self._gate.layout.limits.fastest, 0.0)  # that of a goal is infinite
            slack = fastest * np.where(is_velocity, ages_s, 0.0)
            self.reference = replace(self.reference, positions=chosen, slack=slack if slack.any() else None)

    def set_position_reference(self, positions: FloatArray) -> None:
        """Continue from these positions, shape (n_joints,): the measured when commands are not delivered (a dry run).

        The velocities stay the approved ones, or every action would be limited like the first one from rest.
        """
        with self._lock:
            self.reference = replace(self.reference, positions=positions.copy(), slack=None)

    def reference_of_step(self) -> tuple[CommandState, float]:
        """Return the reference of a step of a free-running robot and dt in s. Called within `exclusive`."""
        now_ns = self._clock.now_ns()
        published, dt_s = self._last_published(self.period_s, now_ns)
        if (planner := self._planner) is None:
            return published, dt_s
        segment, limits = self._segment, self._gate.limits
        if segment is None or planner.is_over(segment, now_ns) or not planner.follows(segment, published, limits):
            self._start = planner.resting_reference(published, limits)
            return self._start, self.period_s
        self._start = replace(segment.goal, seq=published.seq)
        return self._start, min((now_ns - segment.approved_ns) / NS_PER_S, self.period_s)

    def _point_ahead(self, now_ns: int) -> tuple[CommandState, int]:
        """Return the published point from which the motion can still change, and when it is due.

        That is the first one at least a quarter period ahead: the message has to arrive before the controller is there.
        A robot at rest may stay there for half a period, so that the steps that follow, early or late, find the
        controller halfway to their reference.
        """
        period_ns = self._period_ns
        if (trajectory := self.trajectory) is None:
            return self.reference, now_ns + period_ns // 2
        passed = max(0, -((trajectory.first_ns - now_ns - period_ns // _STEP_LEAD_DIVISOR) // period_ns))
        point = trajectory.points[min(passed, len(trajectory.points) - 1)]
        due_ns = trajectory.first_ns + passed * period_ns
        is_at_rest = not point.velocities.any() and due_ns - period_ns <= now_ns
        return point, now_ns + period_ns // 2 if is_at_rest else due_ns

    def _last_published(self, longest_s: float, now_ns: int) -> tuple[CommandState, float]:
        """Return the last published command and the time since then in s, at most `longest_s`.

        The robot may have received that command at any time during its write. So a gap counts from before the write,
        and dt from after it.
        """
        self._judged_ns = now_ns
        if self._has_trajectories:
            point, self._due_ns = self._point_ahead(now_ns)
            self.reference = replace(point, seq=self.reference.seq)
            return self.reference, self.period_s
        if any(self._have_stopped(now_ns)):
            self._gap_since_ns = self._writing_ns
        if self._gap_since_ns is not None:
            self._lower_velocities(now_ns)
        return self.reference, min((now_ns - self._published_ns) / NS_PER_S, longest_s)

    def _have_stopped(self, now_ns: int) -> tuple[bool, bool]:
        """Return whether position servos have arrived by `now_ns`, and whether velocity commands have timed out."""
        gap_ns = now_ns - self._writing_ns
        has_arrived, has_timed_out = (gap_ns > limit_ns for limit_ns in self._rest_after_ns)
        return has_arrived, has_timed_out

    def _lower_velocities(self, now_ns: int) -> None:
        """Lower the reference velocities after a gap: 0 for joints that have stopped, else towards the measured."""
        reference, is_velocity = self.reference, self._gate.layout.is_velocity
        has_arrived, has_timed_out = self._have_stopped(now_ns)
        rests = ~is_velocity if has_arrived else np.zeros_like(is_velocity)
        if has_timed_out:
            rests, self._gap_since_ns = rests | is_velocity, None
        acting = np.where(rests, 0.0, reference.velocities)
        if self._gap_since_ns is not None:
            acting = self._towards_measured(acting, now_ns - self._gap_since_ns)
        published = reference.velocities if reference.before_gap is None else reference.before_gap
        is_lowered = is_velocity & (acting != published)
        self.reference = replace(
            reference,
            velocities=acting,
            accelerations=None if rests.any() or is_lowered.any() else reference.accelerations,
            before_gap=np.where(is_lowered, published, acting) if is_lowered.any() else None,
        )

    def _towards_measured(self, acting: FloatArray, gap_ns: int) -> FloatArray:
        """Return `acting` lowered towards the measured velocities; a settled reading ends the gap."""
        is_velocity = self._gate.layout.is_velocity
        if self._measured_velocities is None or not is_velocity.any():
            self._gap_since_ns = None
            return acting
        measured, ages_s = self._measured_velocities()
        settled_s = (gap_ns - self._stall_ns) / NS_PER_S
        if (ages_s[is_velocity] <= settled_s).all():
            self._gap_since_ns = None
        rows = zip(acting.tolist(), measured.tolist(), ages_s.tolist(), joint_bounds(self._gate.limits), strict=True)
        lowered = [
            lowered_velocity(v, m, age_s, bounds, settled=age_s <= settled_s, period_s=self.period_s)
            for v, m, age_s, bounds in rows
        ]
        return np.where(is_velocity, lowered, acting)

    def send(
        self, command: ApprovedCommand, actions: Iterable[list[float]] = (), delay: WriteDelay | None = None
    ) -> SentCommand:
        """Publish `command`, or when it is due the first setpoint towards it. Called within `exclusive`.

        A trajectory continues with `actions`, those of the next steps (`SafetyGate.extend`). In a replay `delay` is the
        recorded one, otherwise None.

        Raises:
            ClosedError: after `close`, for every command but braking; with setpoints for every command, since `brake`
                starts from the last setpoint. Nothing was published.
        """
        if (planner := self._planner) is None:
            return self._publish(command, actions, delay)
        with self._lock, deferred_signals():
            if self._closed:
                raise _closed_error()
            judged_ns, approved_ns, due_ns = self._judged_ns, self._clock.now_ns(), self.setpoint_due_ns
            if due_ns is not None:
                self._clock.sleep_until_ns(due_ns)
                judged_ns += max(0, due_ns - approved_ns)
            now_ns = self._clock.now_ns()
            if 2 * (now_ns - judged_ns) > self._period_ns:
                self._end_segment()
                self._judged_ns = judged_ns
                return self._publish(command)
            segment = planner.begin_segment(
                state_after(self._start, command, self._gate.layout.is_velocity),
                self.reference,
                self._gate.limits,
                approved_ns=approved_ns,
                published_ns=self._published_ns,
                now_ns=now_ns,
            )
            sent = self._publish_setpoint(planner, segment, now_ns, is_moving=due_ns is not None)
            self._segment = segment
            self.setpoint_pending.set()
            self.delay = WriteDelay(is_guaranteed=False) if self._is_unsure else None
            self._is_unsure = False
            return replace(sent, values=command.values, command=self._accounted(command))

    @property
    def setpoint_due_ns(self) -> int | None:
        """When `send_setpoint` is due, on the steady clock; None: the robot is commanded to be at rest."""
        with self._lock:
            planner, segment = self._planner, self._segment
            if planner is None or (segment is None and not self._speed()):
                return None
            return self._due_ns

    def send_setpoint(self) -> None:
        """Publish the next setpoint of the motion in progress if it is due; without one, brake to rest."""
        with self._lock, deferred_signals():
            planner, due_ns, now_ns = self._planner, self.setpoint_due_ns, self._clock.now_ns()
            if planner is None or due_ns is None or now_ns < due_ns:
                return
            segment = self._segment
            if segment is not None and not planner.is_over(segment, now_ns):
                self._publish_setpoint(planner, segment, now_ns, is_moving=True)
            elif self._speed():
                self.brake(_NO_COMMAND)
            else:
                self._segment = None

    def take_setpoint_account(self) -> dict[str, float] | None:
        """Return the account of the setpoints since the last call; None without setpoints between steps."""
        if (planner := self._planner) is None:
            return None
        with self._lock:
            gaps_ns, self._gaps_ns = self._gaps_ns, []
            worst_s = max(gaps_ns, default=0) / NS_PER_S
            return {"rate_hz": planner.per_step / self.period_s, "sent": len(gaps_ns), "worst_gap_s": worst_s}

    def _publish_setpoint(
        self, planner: SetpointPlanner, segment: Segment, now_ns: int, *, is_moving: bool
    ) -> SentCommand:
        """Approve and publish the setpoint of `now_ns`. In motion, a late one catches up at most one that was missed.

        If the braking of one interval takes its place, the motion goes on with the next one.
        """
        before_ns = self._published_ns
        reference, dt_s = self._last_published((1 + is_moving) * planner.period_ns / NS_PER_S, now_ns)
        target = planner.target(segment, reference, now_ns=now_ns, dt_s=dt_s)
        sent = self._publish(self._gate.limit(target, reference, dt_s), interval_ns=planner.period_ns)
        if self.delay is None or self.delay.reference is None:
            self._gaps_ns.append(self._published_ns - before_ns if is_moving else 0)
        self._due_ns = planner.next_due_ns(self._due_ns if is_moving else now_ns - planner.period_ns // 2, now_ns)
        return sent

    def _publish(
        self,
        command: ApprovedCommand,
        actions: Iterable[list[float]] = (),
        delay: WriteDelay | None = None,
        *,
        interval_ns: int | None = None,
    ) -> SentCommand:
        """Publish `command`, or if it is late braking in its place, and make that the reference.

        `interval_ns`: that of the command; None: the control period. Message and reference change together: signal
        handlers wait until both are done, except in lockstep, where the world waits too.

        Raises:
            ClosedError: after `close`, for anything but braking; nothing was published.
        """
        if self._closed and command.report.disposition < Severity.HOLD:
            raise _closed_error()
        if not self.free_running:
            return self._write(command)
        with self._lock, deferred_signals():
            is_unsure, self.delay = self._is_slow(), delay
            command, interval_ns = self._extended(command, actions), interval_ns or self._period_ns
            now_ns = self._clock.now_ns()
            if delay is not None and delay.reference is not None:
                command = self._gate.brake_instead(command, delay.reference, delay.dt_s, _late_finding(delay.passed_s))
            elif self._is_timed and self._is_late(now_ns, interval_ns):
                command, now_ns = self._brake_instead(command, now_ns, interval_ns)
            before = self._writing_ns, self._published_ns, self.trajectory
            self._writing_ns, self._published_ns, self.trajectory = now_ns, now_ns, command.trajectory
            try:
                sent = self._write(command)
            except BackendError:
                self._writing_ns, self._published_ns, self.trajectory = before
                raise
            self._published_ns = self._clock.now_ns()
            if is_unsure or self._is_slow() or self._has_stopped_between(now_ns, self._published_ns, before[0]):
                self.delay = replace(self.delay or WriteDelay(), is_guaranteed=False)
            self._is_unsure |= self.delay is not None and not self.delay.is_guaranteed
            return sent if self.delay is None else replace(sent, command=self._accounted(command))

    def _write(self, command: ApprovedCommand) -> SentCommand:
        """Send `command` and make it the reference.

        The reference changes before the message can leave, since a recorded message that is lost delays the motion,
        while an unrecorded one would be followed by a jump back. Only a `BackendError` means that nothing was
        published; it restores the reference but not `seq`.
        """
        before, is_velocity = self.reference, self._gate.layout.is_velocity
        self.reference = state_after(before, command, is_velocity)
        try:
            sent = self._send(command)
        except BackendError:
            self.reference = replace(before, seq=command.seq)
            raise
        if sent.report is not None or sent.values is not command.values:
            self.reference = state_after(before, command, is_velocity, sent)
        return sent

    def _extended(self, command: ApprovedCommand, actions: Iterable[list[float]] = ()) -> ApprovedCommand:
        """Return `command` with its trajectory, if commands have one."""
        if not self._has_trajectories:
            return command
        return self._gate.extend(command, self.reference, actions, self._due_ns)

    def _is_slow(self) -> bool:
        """Return whether the last write took so long that the time of its arrival is unknown.

        The bound is a control period, or the time until its trajectory begins.
        """
        if not self._is_timed:
            return False
        if self.trajectory is not None:
            return self._published_ns > self.trajectory.first_ns
        return self._published_ns - self._writing_ns > self._period_ns

    def _is_late(self, now_ns: int, interval_ns: int) -> bool:
        """Return whether a command judged at `_judged_ns` must not be written at `now_ns`."""
        if 2 * (now_ns - self._judged_ns) > interval_ns:
            return True
        if self._has_trajectories:
            return self._due_ns - now_ns < self._period_ns // _WRITE_LEAD_DIVISOR
        return self._has_stopped_between(self._judged_ns, now_ns, self._writing_ns)

    def _has_stopped_between(self, begin_ns: int, end_ns: int, writing_ns: int) -> bool:
        """Return whether a joint may have come to rest between two times after the write at `writing_ns`."""
        if not self._is_timed or self._has_trajectories:
            return False
        return any(begin_ns - writing_ns <= limit_ns < end_ns - writing_ns for limit_ns in self._rest_after_ns)

    def _brake_instead(self, command: ApprovedCommand, now_ns: int, interval_ns: int) -> tuple[ApprovedCommand, int]:
        """Return braking to write in place of the late `command`, and when it was last compared with the clock.

        Braking may be late too. The last of `_MAX_LATE` is written in any case: on a machine that is always too slow
        for its period each write is slower than the one before, by at most D dt, until the robot is at rest. The
        acceleration of that last one is not guaranteed.
        """
        passed_s, is_late, brakings = (now_ns - self._judged_ns) / NS_PER_S, True, 0
        while is_late and brakings < _MAX_LATE:
            reference, dt_s = self._last_published(self.period_s, now_ns)
            braking = self._extended(self._gate.brake_instead(command, reference, dt_s, _late_finding(passed_s)))
            now_ns, brakings = self._clock.now_ns(), brakings + 1
            is_late = self._is_late(now_ns, interval_ns)
        self.delay = WriteDelay(passed_s=passed_s, reference=reference, dt_s=dt_s, is_guaranteed=not is_late)
        return braking, now_ns

    def _accounted(self, command: ApprovedCommand) -> ApprovedCommand:
        """Return `command` as written: without a guarantee that its delay leaves open."""
        return command if self.delay is None or self.delay.is_guaranteed else without_acceleration(command)

    def brake(self, finding: Finding) -> ApprovedCommand:
        """Publish one tick of braking, for the reason given by `finding`; it ends the motion towards a goal."""
        with self.exclusive as state:
            reference, dt_s = state
            if self._planner is not None:
                reference, dt_s = self._last_published(self.period_s, self._clock.now_ns())
                self._end_segment()
            command = self._gate.brake(reference, dt_s, finding)
            return self._publish(command).command or command

    def _end_segment(self) -> None:
        """End the motion towards a goal, if setpoints lead there."""
        if self._planner is not None:
            self._segment = None
            self._due_ns = self._planner.next_due_ns(self._due_ns, self._clock.now_ns())
            self.setpoint_pending.set()

    def brake_to_rest(self, finding: Finding) -> None:
        """Brake until the reference is at rest. In lockstep one command is enough, since the simulator then waits.

        Raises:
            BackendLostError: when braking does not reduce the speed, as a relay may publish something else.
        """
        if self.reference.epoch < 0:
            return
        self.brake(finding)
        slowest, futile = self._speed(), 0
        while self.free_running and slowest > 0.0:
            if futile > _MAX_FUTILE_PERIODS:
                raise BackendLostError("no_rest", f"{futile} braking commands in a row did not slow the robot down")
            self._clock.sleep_until_ns(self._published_ns + round(self._tick_s * NS_PER_S))
            self.brake(finding)
            speed = self._speed()
            slowest, futile = min(slowest, speed), futile + 1 if speed >= slowest else 0

    def _speed(self) -> float:
        """Return the sum of the commanded speeds."""
        return float(np.abs(self.reference.velocities).sum())


def _late_finding(passed_s: float) -> Finding:
    detail = f"not written: its time step was computed {passed_s:.3f} s before; braking from what was published"
    return Finding(gate="action_age", severity=Severity.HOLD, code="act.late", detail=detail)


def _closed_error() -> ClosedError:
    return ClosedError("command after close(): the environment is closed; create a new one")
