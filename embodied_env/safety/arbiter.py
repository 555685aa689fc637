"""Arbiter of the last published command, through which everything publishes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from embodied_env.contract import FloatArray
from embodied_env.core.code_types import Severity
from embodied_env.core.measured_joints import nearest_turn
from embodied_env.core.types import ApprovedCommand, CommandState, Finding, SentCommand, WriteDelay
from embodied_env.errors import BackendError, BackendLostError, ClosedError
from embodied_env.processes.signals import deferred_signals
from embodied_env.safety.approved_commands import state_after, without_acceleration
from embodied_env.safety.gate import SafetyGate
from embodied_env.safety.publishing import Publishing
from embodied_env.safety.publishing.setpoints import Setpoints
from embodied_env.safety.publishing.single import LastWrite
from embodied_env.timing.clock import NS_PER_S, Clock

_MAX_FUTILE_PERIODS = 20  # periods of braking without effect
_MAX_LATE = 4  # brakings of one command; the last is written, late or not


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
    """Owner of the last published command, which is the reference of every limit.

    It serialises publishers. In lockstep each step takes one control period of simulated time, and each command is one
    message. On a free-running backend `publishing` decides what is published when, and from what it is limited; only
    this class sends.

    A free-running robot moves, or comes to rest, while a command waits in a suspended process. Therefore the clock is
    read again immediately before each write, and braking replaces a command whose dt was computed too long ago
    (`_brake_instead`). The proof is in `safety.joint_limits`.

    Attributes:
        publishing: the way of publishing.
        reference: the last published command.
        last: the write of that command.
        exclusive: holds the right to publish; the context value is (reference, dt in s) for one judge and one send.
        delay: the delay of the last published command, or None.
        judged_ns: when dt was computed.
        setpoint_pending: is set when `setpoint_due_ns` may have changed.
    """

    def __init__(
        self,
        send: Callable[[ApprovedCommand], SentCommand],
        gate: SafetyGate,
        publishing: Publishing,
        *,
        clock: Clock,
        free_running: bool,
        is_replay: bool = False,
    ) -> None:
        """Create an arbiter without an epoch, which `reset` begins.

        `clock` is the steady clock. With `is_replay` delays of writes are those passed to `send`, not measured ones.
        """
        self._send = send
        self._gate = gate
        self.publishing = publishing
        self._setpoints = publishing if isinstance(publishing, Setpoints) else None
        self.clock = clock
        self.period_s = gate.contract.control_period_s
        self._period_ns = gate.contract.control_period_ns
        self.free_running = free_running
        self._is_timed = free_running and not is_replay
        self._lock = threading.RLock()
        self.exclusive = _PublishingLock(self, self._lock)
        size = gate.layout.size
        self.reference = CommandState(positions=np.zeros(size), velocities=np.zeros(size), seq=0, epoch=-1)
        self.last = LastWrite(before_ns=0, after_ns=0)
        self.judged_ns = 0
        self.delay: WriteDelay | None = None
        self._suspended_ns = clock.boot_ns() - clock.now_ns()  # total time of suspends of the host
        self._is_unsure = False  # a write since the last step has no guaranteed acceleration
        self._is_closed = False
        self.setpoint_pending = threading.Event()

    def close(self) -> None:
        """Refuse all further commands except braking, so that no step in another thread undoes it."""
        with self._lock:
            self._is_closed = True
            if self._setpoints is not None:
                self._setpoints.end_motion(self.clock.now_ns())

    def reopen(self) -> None:
        """Accept commands again after `close`, before the next reset."""
        with self._lock:
            self._is_closed = False

    def check_open(self) -> None:
        """Raise ClosedError after `close`."""
        if self._is_closed:
            raise ClosedError("command after close(): the environment is closed; create a new one")

    def reset(self, positions: FloatArray, epoch: int, *, continues: bool = False) -> None:
        """Begin an epoch at rest at the measured positions, shape (n_joints,), in contract order.

        If the robot `continues` from the last command, a joint that turns without limits is at the equivalent of its
        position nearest to that command: drivers may report angles modulo a turn, and controllers count turns.
        """
        with self._lock:
            if continues and self.reference.seq > 0:
                positions = nearest_turn(positions, self.reference.positions, self._gate.layout.turns)
            self.publishing.reset()
            self._count_suspend()
            self.reference = CommandState(
                positions=positions.copy(), velocities=np.zeros_like(positions), seq=self.reference.seq, epoch=epoch
            )
            now_ns = self.clock.now_ns()
            self.last = LastWrite(before_ns=now_ns, after_ns=now_ns)
            self._is_unsure = False

    def end_motion(self) -> None:
        """Treat a robot out of reach of commands as at rest, so no setpoint is due before `reset`."""
        self.reset(self.reference.positions, self.reference.epoch)

    def update_measured(self, positions: FloatArray, ages_s: FloatArray) -> None:
        """Update the positions of joints commanded by velocity, while the others keep theirs.

        Shape (n_joints,), contract order. During its age a joint may have moved at its larger velocity limit (`slack`).
        """
        with self._lock:
            is_velocity = self._gate.layout.is_velocity
            chosen = np.where(is_velocity, positions, self.reference.positions)
            fastest = np.where(is_velocity, self._gate.layout.limits.fastest, 0.0)  # that of a goal is infinite
            slack = fastest * np.where(is_velocity, ages_s, 0.0)
            self.reference = replace(self.reference, positions=chosen, slack=slack if slack.any() else None)

    def set_position_reference(self, positions: FloatArray) -> None:
        """Continue from these positions, shape (n_joints,).

        They are the measured ones when commands are not delivered (a dry run). The velocities stay the approved ones,
        or every action would be limited like the first one from rest.
        """
        with self._lock:
            self.reference = replace(self.reference, positions=positions.copy(), slack=None)

    def reference_of_step(self) -> tuple[CommandState, float]:
        """Return a free-running robot's reference and dt in s, in a call within `exclusive`."""
        now_ns = self.clock.now_ns()
        published, dt_s = self.last_published(now_ns)
        return (published, dt_s) if self._setpoints is None else self._setpoints.reference_of_step(published, now_ns)

    def last_published(self, now_ns: int) -> tuple[CommandState, float]:
        """Return the reference of a write judged at `now_ns`, and dt in s, at most one period."""
        self._count_suspend()
        self.judged_ns = now_ns
        self.reference, dt_s = self.publishing.reference_at(now_ns, self.reference, self.last)
        return self.reference, dt_s

    def send(
        self, command: ApprovedCommand, actions: Iterable[list[float]] = (), delay: WriteDelay | None = None
    ) -> SentCommand:
        """Publish `command`, or the first setpoint towards it, in a call within `exclusive`.

        A trajectory continues with `actions`, those of the next steps (`SafetyGate.extend`). In a replay `delay` is the
        recorded one, otherwise None.

        Raises:
            ClosedError: after `close`, for every command but braking; with setpoints for every command, since `brake`
                starts from the last setpoint. Nothing was published.
        """
        if self._setpoints is None:
            return self.write(command, actions, delay)
        with self._lock, deferred_signals():
            self.setpoint_pending.set()
            return self._setpoints.send(self, command)

    @property
    def setpoint_due_ns(self) -> int | None:
        """Steady time at which `send_setpoint` is due, or None while commanded to be at rest."""
        with self._lock:
            return None if self._setpoints is None else self._setpoints.due_ns(self.reference)

    def send_setpoint(self) -> None:
        """Publish the next setpoint of the motion if it is due, or brake to rest without one."""
        if self._setpoints is not None:
            with self._lock, deferred_signals():
                self._setpoints.send_setpoint(self)

    def take_setpoint_account(self) -> dict[str, float] | None:
        """Return the setpoints' account since the last call, or None without setpoints."""
        with self._lock:
            return None if self._setpoints is None else self._setpoints.take_account()

    def write(
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
        if self._is_closed and command.report.disposition < Severity.HOLD:
            self.check_open()
        if not self.free_running:
            return self._write(command)
        interval_ns = interval_ns or self._period_ns
        with self._lock, deferred_signals():
            self._count_suspend()
            before, self.delay = self.last, delay
            command = self.publishing.complete(command, self.reference, actions)
            now_ns = self.clock.now_ns()
            if delay is not None and delay.reference is not None:
                command = self._gate.brake_instead(command, delay.reference, delay.dt_s, _late_finding(delay.passed_s))
            elif self._is_timed and self._is_late(now_ns, interval_ns):
                command, now_ns = self._brake_instead(command, now_ns, interval_ns)
            self.last = LastWrite(before_ns=now_ns, after_ns=now_ns, trajectory=command.trajectory)
            try:
                sent = self._write(command)
            except BackendError:
                self.last = before
                raise
            after_ns = self.clock.now_ns()
            self.last = LastWrite(before_ns=now_ns, after_ns=after_ns, trajectory=command.trajectory)
            if self._is_timed and self.publishing.is_unsure(before, self.last):
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

    def _count_suspend(self) -> None:
        """Shift the last write and the judgement into the past by a suspend of the host since.

        The steady clock does not count it. It is read last, so that a wait between both readings is no suspend.
        """
        slept_ns = self.clock.boot_ns() - self.clock.now_ns() - self._suspended_ns
        if not self._is_timed or slept_ns <= self._period_ns:
            return
        self._suspended_ns += slept_ns
        self.judged_ns -= slept_ns
        last, trajectory = self.last, self.last.trajectory
        if trajectory is not None:
            trajectory = replace(trajectory, first_ns=trajectory.first_ns - slept_ns)
        before_ns, after_ns = last.before_ns - slept_ns, last.after_ns - slept_ns
        self.last = LastWrite(before_ns=before_ns, after_ns=after_ns, trajectory=trajectory)
        if self._setpoints is not None:
            self._setpoints.end_motion(self.clock.now_ns())

    def _is_late(self, now_ns: int, interval_ns: int) -> bool:
        """Return whether a command judged at `judged_ns` must not be written at `now_ns`."""
        if 2 * (now_ns - self.judged_ns) > interval_ns:
            return True
        return self.publishing.is_late(self.judged_ns, now_ns, self.last)

    def _brake_instead(self, command: ApprovedCommand, now_ns: int, interval_ns: int) -> tuple[ApprovedCommand, int]:
        """Return braking in place of the late `command`, and when the clock was read for it.

        Braking may be late too. The last of `_MAX_LATE` is written in any case: on a machine that is always too slow
        for its period each write is slower than the one before, by at most D dt, until the robot is at rest. The
        acceleration of that last one is not guaranteed.
        """
        passed_s, is_late, brakings = (now_ns - self.judged_ns) / NS_PER_S, True, 0
        while is_late and brakings < _MAX_LATE:
            reference, dt_s = self.last_published(now_ns)
            braking = self._gate.brake_instead(command, reference, dt_s, _late_finding(passed_s))
            braking = self.publishing.complete(braking, reference, ())
            now_ns, brakings = self.clock.now_ns(), brakings + 1
            is_late = self._is_late(now_ns, interval_ns)
        self.delay = WriteDelay(passed_s=passed_s, reference=reference, dt_s=dt_s, is_guaranteed=not is_late)
        return braking, now_ns

    def settle(self, command: ApprovedCommand) -> ApprovedCommand:
        """Return `command` as written, with the delays of all writes since the last step."""
        self.delay = WriteDelay(is_guaranteed=False) if self._is_unsure else None
        self._is_unsure = False
        return self._accounted(command)

    def _accounted(self, command: ApprovedCommand) -> ApprovedCommand:
        """Return `command` as written, without a guarantee that its delay leaves open."""
        return command if self.delay is None or self.delay.is_guaranteed else without_acceleration(command)

    def brake(self, finding: Finding) -> ApprovedCommand:
        """Publish one tick of braking for `finding`, which ends the motion towards a goal."""
        with self.exclusive as state:
            reference, dt_s = state
            if self._setpoints is not None:  # a step starts at a goal, braking at the last setpoint
                now_ns = self.clock.now_ns()
                reference, dt_s = self.last_published(now_ns)
                self._setpoints.end_motion(now_ns)
                self.setpoint_pending.set()
            command = self._gate.brake(reference, dt_s, finding)
            return self.write(command).command or command

    def brake_to_rest(self, finding: Finding) -> None:
        """Brake until the reference is at rest, which takes one command in lockstep.

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
            self.clock.sleep_until_ns(self.last.after_ns + round(self.publishing.tick_s * NS_PER_S))
            self.brake(finding)
            speed = self._speed()
            slowest, futile = min(slowest, speed), futile + 1 if speed >= slowest else 0

    def _speed(self) -> float:
        return float(np.abs(self.reference.velocities).sum())


def _late_finding(passed_s: float) -> Finding:
    detail = f"not written: its time step was computed {passed_s:.3f} s before; braking from what was published"
    return Finding(gate="action_age", severity=Severity.HOLD, code="act.late", detail=detail)
