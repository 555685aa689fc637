"""The arbiter owns the last published command. Steps, the watchdog and stopping all publish through it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import numpy as np

from embodied_env.contract import FloatArray
from embodied_env.core.clock import NS_PER_S, Clock
from embodied_env.core.codes import Severity
from embodied_env.core.process.signals import deferred_signals
from embodied_env.core.types import ApprovedCommand, Finding, GateReport, SentCommand
from embodied_env.errors import BackendError, BackendLostError, ClosedError
from embodied_env.safety.gate import CommandState, SafetyGate
from embodied_env.safety.joint_limits import joint_bounds, lowered_velocity

_STALL_PERIODS = 3  # a position servo left alone for this long has arrived: its reference velocity is zero
_PATIENCE_PERIODS = 20  # of braking that does not slow down: only a gate in another process can do that


class _Turn:
    """The right to publish while it is held; a generator with `contextmanager` would take five times as long.

    A signal handler may raise wherever Python code begins or calls. It must not do so between taking the lock and the
    body, nor before the lock is given back: the watchdog would wait for it without end.
    """

    __slots__ = ("_is_interruptible", "_lock", "_now")

    def __init__(
        self, lock: threading.RLock, now: Callable[[], tuple[CommandState, float]], *, interruptible: bool
    ) -> None:
        self._lock = lock
        self._now = now
        self._is_interruptible = interruptible

    def __enter__(self) -> tuple[CommandState, float]:
        is_taken = False
        try:
            with nullcontext() if self._is_interruptible else deferred_signals():
                is_taken = self._lock.acquire()
            return self._now()
        except BaseException:
            if is_taken:
                self._lock.release()
            raise

    @property
    def __exit__(self) -> Callable[..., None]:  # noqa: PLE0302, PYI036 - looked up before the body, not called
        """Give the lock back by its own method, which no signal handler can precede."""
        return self._lock.__exit__


class Arbiter:
    """Serialises publishers and keeps the reference that limits are measured from.

    In a lockstep world time moves one control period per step, whatever the wall clock says. In a free-running world dt
    is the time since the last publication, at most one control period: a pause never enlarges the allowed jump. After
    a pause the reference is lowered to what the robot can still be doing, never raised (`safety.joint_limits`).
    """

    def __init__(
        self,
        send: Callable[[ApprovedCommand], SentCommand],
        gate: SafetyGate,
        *,
        clock: Clock,
        control_period_s: float,
        free_running: bool,
        downstream_timeout_s: float | None = None,
        measured_velocities: Callable[[], tuple[FloatArray, FloatArray]] | None = None,
    ) -> None:
        """Publish through `send`, judged by `gate`.

        Args:
            send: publishes one command.
            gate: judges, and brakes.
            clock: the steady clock.
            control_period_s: of the contract.
            free_running: the world moves by itself.
            downstream_timeout_s: after which the controller ends a velocity that is not commanded again; None: it has
                no timeout, or none that is known.
            measured_velocities: returns velocities and ages in s (`MeasuredVelocities.read`); asked after a gap only.
        """
        self._send = send
        self._gate = gate
        self._clock = clock
        self._period_s = control_period_s
        self._free_running = free_running
        self._timeout_s = math.inf if downstream_timeout_s is None else downstream_timeout_s
        self._measured_velocities = measured_velocities
        self._gap_since_ns: int | None = None  # the publication before a gap that no settled reading has followed yet
        self._lock = threading.RLock()
        size = gate.layout.size
        self._reference = CommandState(positions=np.zeros(size), velocities=np.zeros(size), seq=0, epoch=-1)
        self._published_ns = 0
        self._closed = False

    @property
    def reference(self) -> CommandState:
        """The last published command."""
        return self._reference

    def close(self) -> None:
        """Refuse every later command but braking: a step in another thread must not undo it."""
        with self._lock:
            self._closed = True

    def reset(self, positions: FloatArray, epoch: int) -> None:
        """Begin an epoch at the measured positions, at rest. Shape (n_joints,), in contract order."""
        with self._lock:
            self._gap_since_ns = None
            self._reference = CommandState(
                positions=positions.copy(),
                velocities=np.zeros_like(positions),
                seq=self._reference.seq,
                epoch=epoch,
            )
            self._published_ns = self._clock.now_ns()

    def update_measured(self, positions: FloatArray, ages_s: FloatArray) -> None:
        """Take the measured positions of what is commanded by velocity; the others keep their published ones.

        Args:
            positions: shape (n_joints,), in contract order.
            ages_s: how old each is: since then a joint may have moved as fast as its limit allows.
        """
        with self._lock:
            is_velocity = self._gate.layout.is_velocity
            chosen = np.where(is_velocity, positions, self._reference.positions)
            slack = np.where(is_velocity, self._gate.layout.limits.velocity * ages_s, 0.0)
            self._reference = replace(self._reference, positions=chosen, slack=slack if slack.any() else None)

    def set_position_reference(self, positions: FloatArray) -> None:
        """Go on from the measured positions, since what was sent has reached nobody. Shape (n_joints,).

        The velocities stay those that were approved, or every action would be limited as the first one from rest.
        """
        with self._lock:
            self._reference = replace(self._reference, positions=positions.copy(), slack=None)

    def exclusive(self) -> _Turn:
        """Hold the right to publish: gives the reference and dt in seconds, for one judge and one send."""
        return _Turn(self._lock, self._now, interruptible=not self._free_running)

    def _now(self) -> tuple[CommandState, float]:
        """Return the reference, and the time since it was published as far as it counts."""
        if not self._free_running:
            return self._reference, self._period_s
        elapsed_s = (self._clock.now_ns() - self._published_ns) / NS_PER_S
        if elapsed_s > min(_STALL_PERIODS * self._period_s, self._timeout_s):
            self._gap_since_ns = self._published_ns
        if self._gap_since_ns is not None:
            self._lower(elapsed_s)
        return self._reference, min(elapsed_s, self._period_s)

    def _lower(self, elapsed_s: float) -> None:
        """Lower the reference after a gap: positions have arrived, velocities are what they can still be."""
        reference, is_velocity = self._reference, self._gate.layout.is_velocity
        rests = ~is_velocity if elapsed_s > _STALL_PERIODS * self._period_s else np.zeros_like(is_velocity)
        if elapsed_s > self._timeout_s:
            rests, self._gap_since_ns = rests | is_velocity, None
        acting = np.where(rests, 0.0, reference.velocities)
        if self._gap_since_ns is not None:
            acting = self._measured(acting, self._gap_since_ns)
        published = reference.velocities if reference.before_gap is None else reference.before_gap
        is_lowered = is_velocity & (acting != published)
        self._reference = replace(
            reference,
            velocities=acting,
            accelerations=None if rests.any() or is_lowered.any() else reference.accelerations,
            before_gap=np.where(is_lowered, published, acting) if is_lowered.any() else None,
        )

    def _measured(self, acting: FloatArray, since_ns: int) -> FloatArray:
        """Lower the velocities of a gap since `since_ns` by what is measured; a settled reading ends the gap."""
        is_velocity = self._gate.layout.is_velocity
        if self._measured_velocities is None or not is_velocity.any():
            self._gap_since_ns = None
            return acting
        measured, ages_s = self._measured_velocities()
        settled_s = (self._clock.now_ns() - since_ns) / NS_PER_S - _STALL_PERIODS * self._period_s
        if (ages_s[is_velocity] <= settled_s).all():
            self._gap_since_ns = None
        rows = zip(acting.tolist(), measured.tolist(), ages_s.tolist(), joint_bounds(self._gate.limits), strict=True)
        lowered = [
            lowered_velocity(v, m, age_s, bounds, settled=age_s <= settled_s, period_s=self._period_s)
            for v, m, age_s, bounds in rows
        ]
        return np.where(is_velocity, lowered, acting)

    def send(self, command: ApprovedCommand) -> SentCommand:
        """Publish `command`; it becomes the reference. Called within `turn`.

        Publication and reference change as one unit. Signal handlers wait until both are done. For any other exception
        the reference is already that of `command` before the message can leave: a message that is recorded but lost
        delays the motion, one that left unrecorded would be followed by a jump back. Only a `BackendError` says that
        nothing has left; then the reference is as before, and the number is spent.

        Raises:
            ClosedError: after `close`, for anything but braking; nothing was published.
        """
        with self._lock, deferred_signals() if self._free_running else nullcontext():
            if self._closed and command.report.disposition < Severity.HOLD:
                raise ClosedError("command after close(): the environment is closed; make a new one")
            before, published_ns = self._reference, self._published_ns
            assumed = self._after(before, command, command.report, command.values)
            self._reference, self._published_ns = assumed, self._clock.now_ns()
            try:
                sent = self._send(command)
            except BackendError:
                self._reference, self._published_ns = replace(before, seq=command.seq), published_ns
                raise
            if sent.report is not None or sent.values is not command.values:
                self._reference = self._after(before, command, sent.report or command.report, sent.values)
            self._published_ns = self._clock.now_ns()
            return sent

    def _after(
        self, before: CommandState, command: ApprovedCommand, report: GateReport, sent: FloatArray
    ) -> CommandState:
        """Return the reference that follows `before` when the values `sent` of `command` were published."""
        no_time = not report.dt_s > 0.0
        return CommandState(
            positions=self._positions(before, sent),
            velocities=report.velocity_si,
            seq=command.seq,
            epoch=command.epoch,
            slack=before.slack,
            accelerations=None if no_time else (report.velocity_si - before.velocities) / report.dt_s,
        )

    def _positions(self, before: CommandState, sent: FloatArray) -> FloatArray:
        """Return the positions after a command: what is commanded by velocity keeps its measured ones."""
        if not self._gate.has_velocity:
            return np.array(sent, dtype=np.float64)
        return np.where(self._gate.layout.is_velocity, before.positions, sent)

    def brake(self, finding: Finding) -> ApprovedCommand:
        """Publish one tick of braking, for the reason given by `finding`."""
        with self.exclusive() as (reference, dt_s):
            command = self._gate.brake(reference, dt_s, finding)
            self.send(command)
            return command

    def brake_to_rest(self, finding: Finding) -> None:
        """Brake until the reference is at rest. In lockstep the world stands still: one braking command is enough.

        Raises:
            BackendLostError: when nothing gets slower by it: whoever has the last word on commands does not brake.
        """
        if self._reference.epoch < 0:
            return
        self.brake(finding)
        slowest, vain = self._speed(), 0
        while self._free_running and slowest > 0.0:
            if vain > _PATIENCE_PERIODS:
                raise BackendLostError("no_rest", f"{vain} braking commands in a row did not slow the robot down")
            self._clock.sleep_until_ns(self._published_ns + round(self._period_s * NS_PER_S))
            self.brake(finding)
            speed = self._speed()
            slowest, vain = min(slowest, speed), vain + 1 if speed >= slowest else 0

    def _speed(self) -> float:
        """Return the sum of the commanded speeds."""
        return float(np.abs(self._reference.velocities).sum())
