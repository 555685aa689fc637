"""Absolute deadlines of a real-time loop, so that it does not drift."""

from __future__ import annotations

from dataclasses import dataclass

from embodied_env.errors import UsageError
from embodied_env.timing.clock import Clock


@dataclass(kw_only=True, eq=False)
class DeadlineCounts:
    """Deadline counts of a real-time backend, since `Pacer.begin`."""

    overruns: int = 0  # waits that began after their deadline
    missed: int = 0  # deadlines that passed without a wait
    overrun_ns: int = 0  # lateness of the last wait; 0 if it was in time


class Pacer(DeadlineCounts):
    """Deadlines at t0 + k * period on the steady clock.

    A wait after its deadline returns at once. Up to one period late the grid stays, and the next period is shorter.
    Later than that the grid restarts at that instant, so that missed periods are not caught up in a burst.
    """

    def __init__(self, clock: Clock, period_ns: int) -> None:
        """Start a grid of `period_ns` now; raises UsageError for a period of zero or less."""
        if period_ns <= 0:
            raise UsageError(f"invalid period_ns={period_ns} (expected > 0)")
        self._clock = clock
        self._period_ns = period_ns
        self.begin()

    def begin(self) -> None:
        """Restart the grid and the counts now."""
        self.overruns = self.missed = self.overrun_ns = 0
        self._origin_ns, self._count = self._clock.now_ns(), 0

    @property
    def deadline_ns(self) -> int:
        """The deadline of the next `wait`, on the steady clock."""
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
        self.missed += 1 + (late_ns - 1) // self._period_ns  # a deadline that is now is not missed
        if late_ns > self._period_ns:
            self._origin_ns, self._count = deadline_ns + late_ns, 0
