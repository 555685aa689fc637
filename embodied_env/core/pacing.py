"""Absolute deadlines for whoever moves in real time: never a sleep for "what is left", so nothing drifts."""

from __future__ import annotations

from typing import Protocol

from embodied_env.core.clock import Clock
from embodied_env.errors import UsageError


class Pacer:
    """Deadlines at t0 + k * period on the steady clock.

    A wait that begins too late returns at once. Up to one period too late, the grid stays: the next period is shorter.
    Later than that, the grid begins anew at that instant: what was missed is not caught up by a burst.

    Attributes:
        overruns: waits that began after their deadline, since `begin`.
        missed: deadlines that passed before anybody waited for them, since `begin`; each is counted once.
        overrun_ns: how much too late the last wait began; 0 when it was in time.
    """

    def __init__(self, clock: Clock, period_ns: int) -> None:
        """Pace by `clock`, every `period_ns`; the grid begins now.

        Raises:
            UsageError: for a period that is not above zero.
        """
        if period_ns <= 0:
            raise UsageError(f"period_ns={period_ns} is not allowed; allowed: > 0")
        self._clock = clock
        self._period_ns = period_ns
        self.begin()

    def begin(self) -> None:
        """Begin the grid now, and count from zero."""
        self.overruns = self.missed = self.overrun_ns = 0
        self._anchor(self._clock.now_ns())

    @property
    def deadline_ns(self) -> int:
        """What the next `wait` waits for, on the steady clock."""
        return self._origin_ns + (self._count + 1) * self._period_ns

    def wait(self) -> None:
        """Sleep until the next deadline of the grid."""
        deadline_ns = self.deadline_ns
        late_ns = self._clock.now_ns() - deadline_ns
        self.overrun_ns = max(0, late_ns)
        self._count += 1
        if late_ns <= 0:
            self._clock.sleep_until_ns(deadline_ns)
            return
        self.overruns += 1
        self.missed += 1 + (late_ns - 1) // self._period_ns  # all that lie before now, not one that is now
        if late_ns > self._period_ns:
            self._anchor(deadline_ns + late_ns)

    def _anchor(self, now_ns: int) -> None:
        self._origin_ns, self._count = now_ns, 0


class DeadlineCounts(Protocol):
    """The missed deadlines of a backend in real time; see the attributes of `Pacer`."""

    overruns: int
    missed: int
    overrun_ns: int
