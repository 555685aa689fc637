"""Stamps that know their clock, and clocks that can be injected.

Time is integer nanoseconds. A duration is the difference of two stamps of one `Domain`; mixing domains raises, so a
latency that was never measurable cannot be computed by accident.
"""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from embodied_env.errors import ClockDomainError, UsageError

NS_PER_S = 1_000_000_000
_AWAKE_NS = 100_000  # a sleep of Linux ends 50 us late by default, and a little more
_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class Domain(StrEnum):
    """The clock that a stamp was read from."""

    STEADY = "steady"  # monotonic clock of this host: every duration that we own
    SYSTEM = "system"  # UTC of this host: middleware stamps
    ROS = "ros"  # the ROS clock when it is not simulated
    SIM = "sim"  # simulated time
    SOURCE = "source"  # the clock of a device or of another host


@dataclass(frozen=True, slots=True)
class Stamp:
    """One instant: `ns` nanoseconds on the clock `domain`."""

    ns: int
    domain: Domain

    def __sub__(self, other: Stamp) -> int:
        """Return self - other in nanoseconds; raises ClockDomainError across domains."""
        self._same_domain(other)
        return self.ns - other.ns

    def __add__(self, ns: int) -> Stamp:
        """Return the stamp `ns` nanoseconds later."""
        return Stamp(self.ns + ns, self.domain)

    def __lt__(self, other: Stamp) -> bool:
        """Order within one domain; raises ClockDomainError across domains."""
        self._same_domain(other)
        return self.ns < other.ns

    def __le__(self, other: Stamp) -> bool:
        """Order within one domain; raises ClockDomainError across domains."""
        self._same_domain(other)
        return self.ns <= other.ns

    def _same_domain(self, other: Stamp) -> None:
        if self.domain is not other.domain:
            raise ClockDomainError(
                f"cannot relate a {self.domain.value} stamp ({self.ns} ns) to a "
                f"{other.domain.value} stamp ({other.ns} ns): they come from different clocks"
            )


@runtime_checkable
class Clock(Protocol):
    """The clock under the ledger, the deadlines and the watchdog.

    `virtual` says that durations read from it are simulated: wall stamps of a middleware cannot be related to it.
    """

    virtual: bool

    def now_ns(self) -> int:
        """Nanoseconds on the steady domain; never goes back."""
        ...

    def system_ns(self) -> int:
        """Nanoseconds of the system (UTC) domain at the same instant."""
        ...

    def boot_ns(self) -> int:
        """Nanoseconds of a clock like the steady one that also counts while the host sleeps."""
        ...

    def sleep_until_ns(self, deadline_ns: int) -> None:
        """Return when `now_ns()` has reached the deadline."""
        ...

    def on_world_advanced(self, period_ns: int) -> None:
        """The world has moved by one period. Only a virtual clock listens."""
        ...


class SteadyClock:
    """The host's monotonic clock."""

    virtual = False

    def now_ns(self) -> int:
        """Read CLOCK_MONOTONIC."""
        return time.monotonic_ns()

    def system_ns(self) -> int:
        """Read the UTC clock."""
        return time.time_ns()

    def boot_ns(self) -> int:
        """Read CLOCK_BOOTTIME; where a system has none, the steady clock, by which no host ever sleeps."""
        return time.monotonic_ns() if _BOOTTIME is None else time.clock_gettime_ns(_BOOTTIME)

    def sleep_until_ns(self, deadline_ns: int) -> None:
        """Sleep to an absolute deadline; a deadline in the past returns at once.

        The last `_AWAKE_NS` are waited for awake, so that it does not matter how soon the system wakes a sleeper up;
        other threads of Python run meanwhile.
        """
        while (left_ns := deadline_ns - time.monotonic_ns()) > 0:
            if left_ns > _AWAKE_NS:
                time.sleep((left_ns - _AWAKE_NS) / NS_PER_S)
            else:
                _yield_gil()

    def on_world_advanced(self, period_ns: int) -> None:
        """Real time moves by itself."""


def _yield_gil() -> None:
    """Let go of the interpreter for an instant."""
    if sys.platform == "win32":
        time.sleep(0)
    else:
        select.select((), (), (), 0.0)  # time.sleep(0) takes 50 us on Linux


def deadline_to_monotonic_s(deadline: Stamp, clock: Clock) -> float:
    """Return when a deadline of `clock` is by `time.monotonic`, s, as waits for middleware need it; at least now."""
    return time.monotonic() + max(0.0, (deadline.ns - clock.now_ns()) / NS_PER_S)


class ManualClock:
    """A clock that a test moves by hand. Sleeping jumps, so a timeout of seconds takes no time."""

    virtual = True

    def __init__(self, start_ns: int = 0) -> None:
        """Start at `start_ns`."""
        self._ns = start_ns

    def now_ns(self) -> int:
        """Return the set time."""
        return self._ns

    def system_ns(self) -> int:
        """Return the same reading: the manual clock knows one time."""
        return self._ns

    def boot_ns(self) -> int:
        """Return the same reading: the manual clock never sleeps."""
        return self._ns

    def advance_ns(self, ns: int) -> None:
        """Move forward by `ns` >= 0."""
        if ns < 0:
            raise UsageError(f"a clock never goes back: advance_ns({ns}); allowed: >= 0")
        self._ns += ns

    def sleep_until_ns(self, deadline_ns: int) -> None:
        """Jump to the deadline."""
        self._ns = max(self._ns, deadline_ns)

    def on_world_advanced(self, period_ns: int) -> None:
        """Stay: only `advance_ns` and sleeping move a manual clock."""


class VirtualClock(ManualClock):
    """Deterministic time under a lockstep world: it moves exactly when the world does.

    With it two runs of one seed have identical infos, latencies included: thinking takes no virtual time.
    """

    def on_world_advanced(self, period_ns: int) -> None:
        """Move with the world."""
        self.advance_ns(period_ns)


CLOCKS: Mapping[str, Callable[[], Clock]] = {"steady": SteadyClock, "virtual": VirtualClock}


def make_clock(clock: str | Clock | None) -> Clock:
    """Return the clock named by `clock` (``"steady"``, the default, or ``"virtual"``), or `clock` itself.

    Raises:
        UsageError: for anything else.
    """
    if clock is None:
        return SteadyClock()
    if isinstance(clock, Clock) and not isinstance(clock, type):
        return clock
    if not isinstance(clock, str) or clock not in CLOCKS:
        raise UsageError(f"clock={clock!r} is unknown; allowed: {', '.join(CLOCKS)}, or a Clock object")
    return CLOCKS[clock]()
