"""Which reading of a simulator's sensor belongs to a step: by its stamp, never by when it came. No ROS needed."""

from __future__ import annotations

from dataclasses import dataclass

from embodied_env.clock import NS_PER_S
from embodied_env.contract import SensorSpec


@dataclass(frozen=True, kw_only=True)
class DueReading:
    """When a sensor must have delivered. A simulator's own rate has its own phase, known from the last reading alone.

    Attributes:
        period_ns: between two readings; 0: one at every step.
        slack_ns: how much later than its rate says a reading may be taken: a step of physics.
    """

    period_ns: int
    slack_ns: int

    @classmethod
    def of(cls, sensor: SensorSpec, slack_ns: int) -> DueReading:
        """Return when `sensor` is due."""
        return cls(period_ns=round(NS_PER_S / sensor.rate_hz) if sensor.rate_hz else 0, slack_ns=slack_ns)

    def is_there(self, stamp_ns: int, now_ns: int) -> bool:
        """Return whether with its newest reading at `stamp_ns` none is missing at `now_ns`, the end of a step."""
        if not self.period_ns:
            return stamp_ns >= now_ns
        return stamp_ns + self.period_ns + self.slack_ns > now_ns

    def must_have_come(self, since_ns: int, now_ns: int) -> bool:
        """Return whether there is a reading after `since_ns`, a reset, for sure."""
        return now_ns > since_ns + self.period_ns + self.slack_ns if self.period_ns else now_ns > since_ns
