"""The world's clock of a robot: UTC, or simulated time on a topic, made into a clock that never jumps.

`SystemClockMonitor` pairs the steady clock with UTC and finds steps of UTC and sleeps of the host. `SimTimeTracker`
follows a
simulator's clock. Both place the stamps of messages on a clock that goes on where it was when the clock behind it is
set, so that no age changes by a step. Nothing here knows ROS.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from embodied_env.core.clock import NS_PER_S, Clock
from embodied_env.core.types import ClockStatus

GOOD_PAIR_NS = 50_000
"""Two readings of the steady clock around one of UTC are a good pair when they lie no further apart."""

STEP_NS = 1_000_000
"""A change of UTC against the steady clock by more than this, beyond any slew, is a step."""

SUSPEND_NS = NS_PER_S
"""A sleep of the host that is longer than this is told as one; a shorter one is a step of UTC."""

_TRIES = 5
_PAIR_PERIOD_NS = NS_PER_S
_SLEW = 500e-6  # the fastest that NTP slews; where UTC and the steady clock are slewed together, none is seen
_RTF_WINDOW_NS = 2 * NS_PER_S
_SKIP_PERIODS = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockPair:
    """One instant on the steady clock and on UTC, known within `error_ns`."""

    steady_ns: int
    system_ns: int
    error_ns: int

    @property
    def offset_ns(self) -> int:
        """Return UTC less the steady clock."""
        return self.system_ns - self.steady_ns


def read_clock_pair(clock: Clock) -> ClockPair:
    """Read UTC between two readings of the steady clock: the best of a few tries, or the first that is good."""
    best: ClockPair | None = None
    for _ in range(_TRIES):
        before_ns, system_ns, after_ns = clock.now_ns(), clock.system_ns(), clock.now_ns()
        pair = ClockPair(
            steady_ns=(before_ns + after_ns) // 2, system_ns=system_ns, error_ns=(after_ns - before_ns + 1) // 2
        )
        if best is None or pair.error_ns < best.error_ns:
            best = pair
        if 2 * best.error_ns <= GOOD_PAIR_NS:
            break
    if best is None:
        raise AssertionError("there is at least one try")
    return best


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """UTC was set by `size_ns`, between two instants of the steady clock."""

    after_ns: int
    found_ns: int
    size_ns: int


class WorldClock(Protocol):
    """The world's clock, and the place of stamps on it."""

    epoch: int
    """How often the clock behind it was set."""

    def now_ns(self) -> int:
        """Return the world's time."""
        ...

    def at_ns(self, steady_ns: int) -> int:
        """Return the world's time at an instant of the steady clock of late."""
        ...

    def to_world_ns(self, stamp_ns: int) -> int:
        """Return the place on the world's clock of a stamp that the clock behind it gave and that arrives now."""
        ...

    def begin(self) -> None:
        """Begin an episode: jumps are counted from here. A sleep that nobody was told of is not forgotten."""
        ...

    def status(self) -> ClockStatus:
        """Return what is known of the clocks; `jump` is what was found since the last account."""
        ...


class SystemClockMonitor:
    """UTC as it was at the connection, carried on by the steady clock. It is used under one lock.

    A slew is followed: on Linux none shows, since it slews both clocks alike.

    Attributes:
        epoch: how often UTC was set, or the host slept.
        last_step: the newest step of UTC, sleeps of the host included.
    """

    def __init__(self, clock: Clock) -> None:
        """Pair the clocks for the first time: the connection."""
        self.epoch = 0
        self.last_step: Step | None = None
        self._clock = clock
        self._pair = read_clock_pair(clock)
        self._origin_offset_ns = self._pair.offset_ns
        self._looked_ns = self._pair.steady_ns
        before_ns = clock.now_ns()
        self._slept_ns = clock.boot_ns() - before_ns  # at most; `look` finds how long at least
        self._jump = ""
        self._jumps = 0

    @property
    def shift_ns(self) -> int:
        """Return how far UTC has been set and slewed since the connection."""
        return self._pair.offset_ns - self._origin_offset_ns

    def now_ns(self) -> int:
        """Return the world's time."""
        return self._clock.now_ns() + self._origin_offset_ns

    def at_ns(self, steady_ns: int) -> int:
        """Return the world's time at an instant of the steady clock."""
        return steady_ns + self._origin_offset_ns

    def to_world_ns(self, stamp_ns: int) -> int:
        """Return the place of a stamp of UTC as it is now."""
        return stamp_ns - self.shift_ns

    def check_pair(self, steady_ns: int, system_ns: int) -> None:
        """Two readings that were taken one after the other: when they do not fit the last pair, look at the clocks."""
        if abs(system_ns - steady_ns - self._pair.offset_ns) > STEP_NS or steady_ns - self._looked_ns > _PAIR_PERIOD_NS:
            self.resync()

    def resync(self) -> None:
        """Pair the clocks anew, and find what happened to them since."""
        before, pair = self._pair, read_clock_pair(self._clock)
        last_ns, self._looked_ns = self._looked_ns, pair.steady_ns
        slew_ns = round(_SLEW * max(0, pair.steady_ns - before.steady_ns))
        size_ns = pair.offset_ns - before.offset_ns
        doubt_ns = pair.error_ns + before.error_ns
        slept_ns = self._clock.boot_ns() - self._clock.now_ns()
        is_sleep = slept_ns - self._slept_ns > SUSPEND_NS
        self._slept_ns = max(self._slept_ns, slept_ns)
        if is_step := abs(size_ns) > STEP_NS + slew_ns + doubt_ns:
            self.last_step = Step(after_ns=last_ns, found_ns=pair.steady_ns, size_ns=size_ns)
        if is_sleep or is_step:
            self.epoch += 1
            self._jumps += 1
            self._jump = "suspended" if is_sleep or self._jump == "suspended" else "stepped"
        if is_step or abs(size_ns) > doubt_ns or pair.error_ns <= before.error_ns:
            self._pair = pair

    def begin(self) -> None:
        """Begin an episode."""
        self._jumps = 0
        self._jump = self._jump if self._jump == "suspended" else ""

    def pop_jump(self) -> str:
        """Return what was found since the last call."""
        jump, self._jump = self._jump, ""
        return jump

    def status(self) -> ClockStatus:
        """Return what is known of the clocks of a robot whose stamps are of UTC."""
        return ClockStatus(
            mode="wall",
            epoch=self.epoch,
            jumps=self._jumps,
            jump=self.pop_jump(),
            offset_ns=self._pair.offset_ns,
            offset_error_ns=self._pair.error_ns,
        )


class SimTimeTracker:
    """Simulated time as a topic tells it, carried on between two messages at its own speed. Used under one lock.

    When the simulator sets its time back, or far forward, the world's clock goes on where it was: a new epoch. Stamps
    of the old one that come late lie far in the future, or behind what is known, and are refused by that.

    Attributes:
        epoch: how often simulated time was set.
        advanced_ns: when it was last heard to move, on the steady clock; None: never.
    """

    def __init__(self, watch: SystemClockMonitor, *, period_ns: int) -> None:
        """Wait for the first message. `period_ns` is the control period: what a jump is measured by."""
        self.epoch = 0
        self.advanced_ns: int | None = None
        self._watch = watch
        self._skip_ns = _SKIP_PERIODS * period_ns
        self._sim_ns = 0  # the newest
        self._shift_ns = 0  # world less simulated time
        self._ahead_ns = 0  # the newest stamp that was a little ahead of the clock, on the world's clock
        self._tick_ns = 0  # between the last two messages, simulated
        self._heard: deque[tuple[int, int]] = deque()  # steady, simulated: of this epoch, within the window
        self._jump = ""
        self._jumps = 0

    @property
    def rtf(self) -> float:
        """Return how fast simulated time runs by the steady clock: over the last seconds; 1 before that is known."""
        (first_ns, first_sim_ns), (last_ns, last_sim_ns) = self._heard[0], self._heard[-1]
        return (last_sim_ns - first_sim_ns) / (last_ns - first_ns) if last_ns > first_ns else 1.0

    def on_clock(self, sim_ns: int, steady_ns: int) -> bool:
        """Take a message of the clock; return whether simulated time was set: what is buffered is of another epoch."""
        if self.advanced_ns is None:
            self._start(sim_ns, steady_ns)
            return False
        moved_ns, passed_ns = sim_ns - self._sim_ns, max(0, steady_ns - self.advanced_ns)
        jump = "rewound" if moved_ns < 0 else ""
        if moved_ns - 2.0 * max(1.0, self.rtf) * passed_ns > self._skip_ns:
            jump = "skipped"
        if jump:
            self._shift_ns = self.at_ns(steady_ns) - sim_ns
            self._jump, self._jumps, self.epoch = jump, self._jumps + 1, self.epoch + 1
            self._start(sim_ns, steady_ns)
        elif moved_ns > 0:
            self._sim_ns, self.advanced_ns, self._tick_ns = sim_ns, steady_ns, moved_ns
            self._heard.append((steady_ns, sim_ns))
            while self._heard[1][0] < steady_ns - _RTF_WINDOW_NS:
                self._heard.popleft()
        return bool(jump)

    def _start(self, sim_ns: int, steady_ns: int) -> None:
        self._sim_ns, self.advanced_ns, self._tick_ns = sim_ns, steady_ns, 0
        self._heard = deque([(steady_ns, sim_ns)])

    def now_ns(self) -> int:
        """Return the world's time; 0 before the first message."""
        return self.at_ns(self._watch.now_ns() - self._watch.at_ns(0))

    def at_ns(self, steady_ns: int) -> int:
        """Return the world's time at an instant of the steady clock since the last message."""
        if self.advanced_ns is None:
            return 0
        carried_ns = round(self.rtf * max(0, steady_ns - self.advanced_ns))
        return max(self._sim_ns + self._shift_ns + carried_ns, self._ahead_ns)

    def to_world_ns(self, stamp_ns: int) -> int:
        """Return the place of a stamp of simulated time as it is now.

        The simulator gave it, so its time has come there: a stamp that is two messages of the clock ahead, or less,
        moves the world's clock.
        """
        placed_ns = stamp_ns + self._shift_ns
        if 0 < placed_ns - (self._sim_ns + self._shift_ns) <= 2 * self._tick_ns:
            self._ahead_ns = max(self._ahead_ns, placed_ns)
        return placed_ns

    def begin(self) -> None:
        """Begin an episode."""
        self._watch.begin()
        self._jumps, self._jump = 0, ""

    def status(self) -> ClockStatus:
        """Return what is known of the clocks of a simulator; steps of UTC change nothing in simulated time."""
        jump, self._jump = self._jump, ""
        if self._watch.pop_jump() == "suspended":
            jump, self._jumps = "suspended", self._jumps + 1
        steady_ns = self.advanced_ns or 0
        return ClockStatus(
            mode="sim",
            epoch=self.epoch,
            jumps=self._jumps,
            jump=jump,
            offset_ns=self._sim_ns - steady_ns,
            offset_error_ns=self._tick_ns,
            rtf=self.rtf if self._heard else 1.0,
        )
