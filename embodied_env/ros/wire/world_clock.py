"""World clocks of a robot, UTC or simulated time, which continue without jumps.

`SystemClockMonitor` pairs the steady clock with UTC and detects steps of UTC and suspends of the host. `SimTimeTracker`
follows a simulator's clock. Both map message stamps to a world clock that continues where it was when its source is
set, so that no age jumps. No ROS here.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

from embodied_env.contract.key_types import NotNegative, Positive
from embodied_env.core.types import ClockStatus
from embodied_env.timing.clock import NS_PER_S, Clock

GOOD_PAIR_NS = 50_000
"""Largest time between the two steady readings around one of UTC for which no further reading is tried."""

STEP_NS = 1_000_000  # change of UTC against the steady clock, beyond any slew, above which it counts as a step

SUSPEND_NS = NS_PER_S  # shortest suspend of the host that is reported as one, while a shorter one is a step of UTC

_TRIES = 5
_PAIR_PERIOD_NS = NS_PER_S
_SLEW = 500e-6  # largest slew rate of NTP
_RTF_WINDOW_NS = 2 * NS_PER_S
_SKIP_PERIODS = 10


@dataclass(frozen=True, kw_only=True)
class ClockSpec:
    """Clock that stamps a sensor's messages, ``backends.real.clocks.<sensor>``."""

    # relation of the sensor's clock to ours, see [clocks](../concepts/clocks.md)
    sync: Literal["auto", "same_host", "ptp", "chrony", "none"] = "auto"
    error_s: Positive | None = None  # bound of a `ptp` or `chrony` clock
    least_delay_s: NotNegative | None = None  # least transport delay, for `auto` and `none`


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockPair:
    """One instant on the steady clock and in UTC, known within `error_ns`."""

    steady_ns: int
    system_ns: int
    error_ns: int

    @property
    def offset_ns(self) -> int:
        """UTC minus the steady clock."""
        return self.system_ns - self.steady_ns


def read_clock_pair(clock: Clock) -> ClockPair:
    """Read UTC between two steady readings, as the first good pair or the best of a few."""
    pairs: list[ClockPair] = []
    for _ in range(_TRIES):
        before_ns, system_ns, after_ns = clock.now_ns(), clock.system_ns(), clock.now_ns()
        error_ns = (after_ns - before_ns + 1) // 2
        pairs.append(ClockPair(steady_ns=(before_ns + after_ns) // 2, system_ns=system_ns, error_ns=error_ns))
        if 2 * error_ns <= GOOD_PAIR_NS:
            break
    return min(pairs, key=lambda pair: pair.error_ns)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockStep:
    """A step of UTC by `size_ns`, between two instants of the steady clock."""

    after_ns: int
    found_ns: int
    size_ns: int


class SystemClockMonitor:
    """UTC at the time of connection, continued by the steady clock, under the callers' lock.

    It follows slewing, which Linux applies to both clocks alike. `epoch` counts steps of UTC and suspends of the host.
    `last_step` is the newest step, including those by a suspend.
    """

    def __init__(self, clock: Clock) -> None:
        self.epoch = 0
        self.last_step: ClockStep | None = None
        self._clock = clock
        self._pair = read_clock_pair(clock)
        self._origin_offset_ns = self._pair.offset_ns
        self._checked_ns = self._pair.steady_ns
        before_ns = clock.now_ns()
        self._suspended_ns = clock.boot_ns() - before_ns  # upper bound; `resync` measures a lower bound
        self._jump = ""
        self._jumps = 0

    @property
    def shift_ns(self) -> int:
        """Time by which UTC was stepped and slewed since the connection."""
        return self._pair.offset_ns - self._origin_offset_ns

    def now_ns(self) -> int:
        """Return the world time."""
        return self._clock.now_ns() + self._origin_offset_ns

    def at_ns(self, steady_ns: int) -> int:
        """Return the world time at a recent instant of the steady clock."""
        return steady_ns + self._origin_offset_ns

    def to_world_ns(self, stamp_ns: int) -> int:
        """Convert a stamp of the present UTC to world time."""
        return stamp_ns - self.shift_ns

    def check_pair(self, steady_ns: int, system_ns: int) -> None:
        """Resync if two clock pairs in a row contradict the last one, or if it is old."""
        is_off = abs(system_ns - steady_ns - self._pair.offset_ns) > STEP_NS
        if is_off or steady_ns - self._checked_ns > _PAIR_PERIOD_NS:
            self.resync()

    def resync(self) -> None:
        """Pair the clocks again, and detect steps and suspends since the last pair."""
        before, pair = self._pair, read_clock_pair(self._clock)
        last_ns, self._checked_ns = self._checked_ns, pair.steady_ns
        slew_ns = round(_SLEW * max(0, pair.steady_ns - before.steady_ns))
        size_ns = pair.offset_ns - before.offset_ns
        error_ns = pair.error_ns + before.error_ns
        suspended_ns = self._clock.boot_ns() - self._clock.now_ns()
        is_suspend = suspended_ns - self._suspended_ns > SUSPEND_NS
        self._suspended_ns = max(self._suspended_ns, suspended_ns)
        if is_step := abs(size_ns) > STEP_NS + slew_ns + error_ns:
            self.last_step = ClockStep(after_ns=last_ns, found_ns=pair.steady_ns, size_ns=size_ns)
        if is_suspend or is_step:
            self.epoch += 1
            self._jumps += 1
            self._jump = "suspended" if is_suspend or self._jump == "suspended" else "stepped"
        if is_step or abs(size_ns) > error_ns or pair.error_ns <= before.error_ns:
            self._pair = pair

    def begin(self) -> None:
        """Start an episode and count jumps from here, but keep a suspend that was not reported yet."""
        self._jumps = 0
        self._jump = self._jump if self._jump == "suspended" else ""

    def pop_jump(self) -> str:
        """Return what happened to the clocks since the last call."""
        jump, self._jump = self._jump, ""
        return jump

    def status(self) -> ClockStatus:
        """Return the state of clocks of a robot stamped in UTC, with jumps since the last call."""
        return ClockStatus(
            mode="wall",
            epoch=self.epoch,
            jumps=self._jumps,
            jump=self.pop_jump(),
            offset_ns=self._pair.offset_ns,
            offset_error_ns=self._pair.error_ns,
        )


class SimTimeTracker:
    """Simulated time from a clock topic, extrapolated between messages at its own rate.

    Callers hold one lock. When the simulator sets its time back, or far forward, the world clock continues where it
    was, and `epoch` is incremented. Late stamps of the old epoch are then in the future or behind newer readings, and
    are rejected. `advanced_ns` is when simulated time last advanced, on the steady clock, or None if it never did.
    """

    def __init__(self, watch: SystemClockMonitor, *, period_ns: int) -> None:
        """Wait for the first message, where the control period `period_ns` judges a jump."""
        self.epoch = 0
        self.advanced_ns: int | None = None
        self._watch = watch
        self._skip_ns = _SKIP_PERIODS * period_ns
        self._sim_ns = 0  # the newest message
        self._shift_ns = 0  # world time minus simulated time
        self._ahead_ns = 0  # the newest stamp slightly ahead of the clock, in world time
        self._tick_ns = 0  # simulated time between the last two messages
        self._received: deque[tuple[int, int]] = deque()  # steady, simulated: in this epoch and window
        self._jump = ""
        self._jumps = 0

    @property
    def rtf(self) -> float:
        """Real-time factor over the last seconds, or 1 before two messages."""
        (first_ns, first_sim_ns), (last_ns, last_sim_ns) = self._received[0], self._received[-1]
        return (last_sim_ns - first_sim_ns) / (last_ns - first_ns) if last_ns > first_ns else 1.0

    def on_clock(self, sim_ns: int, steady_ns: int) -> bool:
        """Process a clock message and return whether simulated time was set."""
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
            self._received.append((steady_ns, sim_ns))
            while self._received[1][0] < steady_ns - _RTF_WINDOW_NS:
                self._received.popleft()
        return bool(jump)

    def _start(self, sim_ns: int, steady_ns: int) -> None:
        self._sim_ns, self.advanced_ns, self._tick_ns = sim_ns, steady_ns, 0
        self._received = deque([(steady_ns, sim_ns)])

    def now_ns(self) -> int:
        """Return the world time, or 0 before the first message."""
        return self.at_ns(self._watch.now_ns() - self._watch.at_ns(0))

    def at_ns(self, steady_ns: int) -> int:
        """Return the world time at an instant of the steady clock since the last message."""
        if self.advanced_ns is None:
            return 0
        passed_ns = round(self.rtf * max(0, steady_ns - self.advanced_ns))
        return max(self._sim_ns + self._shift_ns + passed_ns, self._ahead_ns)

    def to_world_ns(self, stamp_ns: int) -> int:
        """Convert a stamp, which advances the world clock if at most two clock messages ahead."""
        world_ns = stamp_ns + self._shift_ns
        if 0 < stamp_ns - self._sim_ns <= 2 * self._tick_ns:
            self._ahead_ns = max(self._ahead_ns, world_ns)
        return world_ns

    def begin(self) -> None:
        """Start an episode."""
        self._watch.begin()
        self._jumps, self._jump = 0, ""

    def status(self) -> ClockStatus:
        """Return the state of a simulator's clock, as steps of UTC do not affect simulated time."""
        jump, self._jump = self._jump, ""
        if self._watch.pop_jump() == "suspended":
            jump, self._jumps = "suspended", self._jumps + 1
        return ClockStatus(
            mode="sim",
            epoch=self.epoch,
            jumps=self._jumps,
            jump=jump,
            offset_ns=self._sim_ns - (self.advanced_ns or 0),
            offset_error_ns=self._tick_ns,
            rtf=self.rtf if self._received else 1.0,
        )


WorldClock = SystemClockMonitor | SimTimeTracker
