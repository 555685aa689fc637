"""Injectable clocks, and the absolute deadlines of a real-time loop without drift.

Time is integer nanoseconds, and a duration is the difference of two times of one clock.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from embodied_env.errors import UsageError, did_you_mean

NS_PER_S = 1_000_000_000
_SPIN_NS = 100_000  # more than the 50 us by which a sleep on Linux ends late by default
_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


@runtime_checkable
class Clock(Protocol):
    """The clock of the ledger, the deadlines and the watchdog.

    `virtual`: its durations are simulated, and unrelated to middleware stamps.
    """

    virtual: bool

    def now_ns(self) -> int:
        """Return the time of the steady clock, which never decreases."""

    def system_ns(self) -> int:
        """Return UTC, the clock of middleware stamps."""

    def boot_ns(self) -> int:
        """Return a steady time that includes suspends of the host."""

    def sleep_until_ns(self, deadline_ns: int) -> None:
        """Sleep until `now_ns()` has reached the deadline."""

    def on_world_advanced(self, period_ns: int) -> None:
        """Advance a virtual clock after the world has moved by one period."""


class SteadyClock:
    """The host's monotonic clock."""

    virtual = False
    now_ns = staticmethod(time.monotonic_ns)
    system_ns = staticmethod(time.time_ns)

    def boot_ns(self) -> int:
        """Read CLOCK_BOOTTIME, or the steady clock on systems without it."""
        return time.monotonic_ns() if _BOOTTIME is None else time.clock_gettime_ns(_BOOTTIME)

    def sleep_until_ns(self, deadline_ns: int) -> None:
        """Sleep to an absolute deadline, or return at once when it has passed.

        It spins for the last `_SPIN_NS`, since the system wakes a sleeper late. Other Python threads still run.
        """
        while (left_ns := deadline_ns - time.monotonic_ns()) > 0:
            if left_ns > _SPIN_NS:
                time.sleep((left_ns - _SPIN_NS) / NS_PER_S)
            else:
                select.select((), (), (), 0.0)  # releases the GIL; time.sleep(0) takes 50 us on Linux

    def on_world_advanced(self, period_ns: int) -> None:
        """Do nothing, since real time advances by itself."""


def deadline_to_monotonic_s(deadline_ns: int, clock: Clock) -> float:
    """Convert a deadline to seconds of `time.monotonic`, at least now, for middleware waits."""
    return time.monotonic() + max(0.0, (deadline_ns - clock.now_ns()) / NS_PER_S)


class ManualClock:
    """Clock that tests advance by hand, on which sleeping jumps to the deadline."""

    virtual = True

    def __init__(self, start_ns: int = 0) -> None:
        self._ns = start_ns

    def now_ns(self) -> int:
        """Return the set time."""
        return self._ns

    system_ns = boot_ns = now_ns  # the host is never suspended

    def advance_ns(self, ns: int) -> None:
        """Advance by `ns` >= 0."""
        if ns < 0:
            raise UsageError(f"invalid advance_ns({ns}) (expected >= 0: a clock never goes back)")
        self._ns += ns

    def sleep_until_ns(self, deadline_ns: int) -> None:
        """Jump to the deadline."""
        self._ns = max(self._ns, deadline_ns)

    def on_world_advanced(self, period_ns: int) -> None:
        """Do nothing, since only `advance_ns` and sleeping move a manual clock."""


class VirtualClock(ManualClock):
    """Deterministic time of a lockstep world, which moves exactly when the world does.

    Inference takes no time, so that two runs of one seed have identical infos, latencies included.
    """

    def on_world_advanced(self, period_ns: int) -> None:
        """Advance by the period."""
        self.advance_ns(period_ns)


CLOCKS: Mapping[str, Callable[[], Clock]] = {"steady": SteadyClock, "virtual": VirtualClock}


def make_clock(clock: str | Clock | None) -> Clock:
    """Return `clock`, or the one named ``"steady"`` (default) or ``"virtual"``."""
    if clock is None:
        return SteadyClock()
    if isinstance(clock, Clock) and not isinstance(clock, type):
        return clock
    if not isinstance(clock, str) or clock not in CLOCKS:
        expected = f"expected one of: {', '.join(CLOCKS)}, or a Clock object"
        raise UsageError(f"unknown clock={clock!r} ({expected}){did_you_mean(clock, CLOCKS)}")
    return CLOCKS[clock]()


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
        """Start a grid of `period_ns` now, or raise UsageError for a period of zero or less."""
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
