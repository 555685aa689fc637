"""A robot whose messages are stamped in UTC or simulated time, with clocks that the test advances."""

from embodied_env.contract.safety_schema import ObservationAge
from embodied_env.ros.wire.stamp_translation import StampTranslator
from embodied_env.ros.wire.world_clock import ClockSpec, SimTimeTracker, SystemClockMonitor
from embodied_env.timing.clock import NS_PER_S, ManualClock

MS = 1_000_000


class UtcClock(ManualClock):
    """A steady clock and UTC ahead of it, with `reading_ns` between two readings."""

    virtual = False

    def __init__(self, *, reading_ns=0):
        self.steady_ns, self.ahead_ns, self._reading_ns = 7 * NS_PER_S, 1_700_000_000 * NS_PER_S, reading_ns

    def now_ns(self):
        self.steady_ns += self._reading_ns
        return self.steady_ns

    boot_ns = now_ns

    def system_ns(self):
        return self.now_ns() + self.ahead_ns


class StampedRobot:
    """One sensor of a robot, by default on our host, whose stamps are translated to our world clock."""

    def __init__(self, *, host=True, simulated=False, require_stamp=True, **spec):
        self.clock = UtcClock()
        self.watch = SystemClockMonitor(self.clock)
        self.simulated = SimTimeTracker(self.watch, period_ns=50 * MS) if simulated else None
        age = ObservationAge(require_stamp=require_stamp)
        timeline = self.simulated or self.watch
        self.stamping = StampTranslator("tcp", ClockSpec(**spec), age, timeline=timeline, utc=self.watch)
        self.stamping.set_publisher_locality(host)
