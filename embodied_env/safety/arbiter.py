"""The arbiter owns the last published command. Steps, the watchdog and stopping all publish through it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from embodied_env.clock import NS_PER_S, Clock
from embodied_env.contract import FloatArray
from embodied_env.errors import BackendLostError, ClosedError
from embodied_env.safety.gate import Reference, SafetyGate
from embodied_env.transition import Approved, Finding, Sent, Severity

_STALL_PERIODS = 3  # a position servo left alone for this long has arrived: its reference velocity is zero; a
# commanded velocity still acts
_PATIENCE_PERIODS = 20  # of braking that does not slow down: only a gate in another process can do that


class _Turn:
    """The right to publish while it is held; a generator with `contextmanager` would take five times as long."""

    __slots__ = ("_lock", "_now")

    def __init__(self, lock: threading.RLock, now: Callable[[], tuple[Reference, float]]) -> None:
        self._lock = lock
        self._now = now

    def __enter__(self) -> tuple[Reference, float]:
        self._lock.acquire()
        try:
            return self._now()
        except BaseException:
            self._lock.release()
            raise

    def __exit__(self, *error: object) -> None:
        self._lock.release()


class Arbiter:
    """Serialises publishers and keeps the reference that limits are measured from.

    In a lockstep world time moves one control period per step, whatever the wall clock says. In a free-running world dt
    is the time since the last publication, at most one control period: a pause never enlarges the allowed jump.
    """

    def __init__(
        self,
        send: Callable[[Approved], Sent],
        gate: SafetyGate,
        *,
        clock: Clock,
        control_period_s: float,
        free_running: bool,
    ) -> None:
        """Publish through `send`, judged by `gate`."""
        self._send = send
        self._gate = gate
        self._clock = clock
        self._period_s = control_period_s
        self._free_running = free_running
        self._lock = threading.RLock()
        size = gate.layout.size
        self._reference = Reference(positions=np.zeros(size), velocities=np.zeros(size), seq=0, epoch=-1)
        self._published_ns = 0
        self._closed = False

    @property
    def reference(self) -> Reference:
        """The last published command."""
        return self._reference

    def close(self) -> None:
        """Refuse every later command but braking: a step in another thread must not undo it."""
        with self._lock:
            self._closed = True

    def resync(self, positions: FloatArray, epoch: int) -> None:
        """Begin an epoch at the measured positions, at rest. Shape (n_joints,), in contract order."""
        with self._lock:
            self._reference = Reference(
                positions=positions.copy(),
                velocities=np.zeros_like(positions),
                seq=self._reference.seq,
                epoch=epoch,
            )
            self._published_ns = self._clock.now_ns()

    def measure(self, positions: FloatArray, ages_s: FloatArray) -> None:
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

    def stand_at(self, positions: FloatArray) -> None:
        """Go on from the measured positions, since what was sent has reached nobody. Shape (n_joints,).

        The velocities stay those that were approved, or every action would be limited as the first one from rest.
        """
        with self._lock:
            self._reference = replace(self._reference, positions=positions.copy(), slack=None)

    def turn(self) -> _Turn:
        """Hold the right to publish: gives the reference and dt in seconds, for one judge and one send."""
        return _Turn(self._lock, self._now)

    def _now(self) -> tuple[Reference, float]:
        """Return the reference, and the time since it was published as far as it counts."""
        if not self._free_running:
            return self._reference, self._period_s
        reference = self._reference
        elapsed_s = (self._clock.now_ns() - self._published_ns) / NS_PER_S
        if elapsed_s > _STALL_PERIODS * self._period_s:
            acting = np.where(self._gate.layout.is_velocity, reference.velocities, 0.0)
            reference = self._reference = replace(reference, velocities=acting, accelerations=None)
        return reference, min(elapsed_s, self._period_s)

    def send(self, command: Approved) -> Sent:
        """Publish `command`; it becomes the reference. Called within `turn`.

        Raises:
            ClosedError: after `close`, for anything but braking; nothing was published.
        """
        with self._lock:
            if self._closed and command.report.disposition < Severity.HOLD:
                raise ClosedError("command after close(): the environment is closed; make a new one")
            try:
                sent = self._send(command)
            except BaseException:
                self._reference = replace(self._reference, seq=command.seq)  # it may have left: its number is spent
                raise
            report = command.report if sent.report is None else sent.report
            before = self._reference
            no_time = not report.dt_s > 0.0
            self._reference = Reference(
                positions=self._positions(before, sent.values),
                velocities=report.velocity_si,
                seq=command.seq,
                epoch=command.epoch,
                slack=before.slack,
                accelerations=None if no_time else (report.velocity_si - before.velocities) / report.dt_s,
            )
            self._published_ns = self._clock.now_ns()
            return sent

    def _positions(self, before: Reference, sent: FloatArray) -> FloatArray:
        """Return the positions after a command: what is commanded by velocity keeps its measured ones."""
        if not self._gate.has_velocity:
            return np.array(sent, dtype=np.float64)
        return np.where(self._gate.layout.is_velocity, before.positions, sent)

    def brake(self, finding: Finding) -> Approved:
        """Publish one tick of braking, for the reason given by `finding`."""
        with self.turn() as (reference, dt_s):
            command = self._gate.brake(reference, dt_s, finding)
            self.send(command)
            return command

    def stop(self, finding: Finding) -> None:
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
