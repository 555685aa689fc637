"""Match sensor readings to the steps of a simulator in lockstep.

A reading belongs to a step when it is stamped at `ExpectedReading.earliest_ns` or later. A simulator that acknowledges
its steps reports which readings to expect; for any other they follow from the sensors' rates (`DueReading`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rclpy.qos import QoSProfile

from embodied_env.contract import SensorSpec
from embodied_env.core.types import Sample
from embodied_env.errors import BackendLostError
from embodied_env.messages.message_types import message_class
from embodied_env.ros.transport.qos import newest_qos
from embodied_env.ros.transport.receiver import ReceivedMessage, Receiver
from embodied_env.ros.wire.sensor_buffer import SensorBuffer
from embodied_env.timing.clock import NS_PER_S


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedReading:
    """The reading of one sensor that belongs to a step."""

    earliest_ns: int  # its earliest possible stamp
    number: int | None = None  # publication number of a message without a stamp
    stamp_ns: int = 0  # the stamp that this message gets


@dataclass(frozen=True, kw_only=True)
class DueReading:
    """Due time of a sensor's next reading, by its rate and last stamp, with unknown phase."""

    period_ns: int  # between two readings; 0: one at every step
    slack_ns: int  # how much later than its rate a reading may be acquired: a physics step

    @classmethod
    def of(cls, sensor: SensorSpec, slack_ns: int) -> DueReading:
        """Return when `sensor` is due."""
        return cls(period_ns=round(NS_PER_S / sensor.rate_hz) if sensor.rate_hz else 0, slack_ns=slack_ns)

    def earliest_ns(self, now_ns: int) -> int:
        """Return the least newest stamp with which no reading is missing at `now_ns`, a step's end."""
        return now_ns - self.period_ns - self.slack_ns + 1 if self.period_ns else now_ns

    def satisfies(self, stamp_ns: int, now_ns: int) -> bool:
        """Return whether no reading is missing at `now_ns` if the newest is of `stamp_ns`."""
        return stamp_ns >= self.earliest_ns(now_ns)

    def must_have_come(self, since_ns: int, now_ns: int) -> bool:
        """Return whether a reading after `since_ns`, a reset, must exist at `now_ns`."""
        return now_ns > since_ns + self.period_ns + self.slack_ns if self.period_ns else now_ns > since_ns


class StepArrivals:
    """Buffers of sensors that are read in lockstep."""

    def __init__(self, sensors: Mapping[str, SensorSpec], *, slack_ns: int = 0) -> None:
        """Prepare with `DueReading.slack_ns`, for a simulator that does not acknowledge readings."""
        self.sensors = sensors
        self._due = {key: DueReading.of(sensor, slack_ns) for key, sensor in sensors.items()}
        self._buffers: dict[str, SensorBuffer] = {}
        self._on_shared_topics: set[str] = set()
        self._unstamped: dict[str, int] = {}  # key -> publication number of the newest message since the step began

    def subscribe(
        self, receiver: Receiver, qos: Callable[[SensorSpec], QoSProfile] = newest_qos, *, raw: bool = False
    ) -> None:
        """Subscribe with empty buffers for `add`, with the QoS profile `qos` of each sensor."""
        self._buffers = {key: SensorBuffer(key, sensor) for key, sensor in self.sensors.items()}
        topics = [sensor.topic for sensor in self.sensors.values()]
        self._on_shared_topics = {key for key, sensor in self.sensors.items() if topics.count(sensor.topic) > 1}
        for key, sensor in self.sensors.items():
            receiver.subscribe(key, message_class(sensor.type), sensor.topic, qos(sensor), raw=raw)

    def add(self, arrival: ReceivedMessage) -> bool:
        """Store a message, and return whether it is of one of these sensors."""
        buffer = self._buffers.get(arrival.key)
        if buffer is None:
            return False
        if arrival.key in self._on_shared_topics and not buffer.concerns(arrival):
            return True
        buffer.add(arrival)
        number = arrival.info["publication_sequence_number"]
        if number is not None and self.sensors[arrival.key].timeline == "receive":
            self._unstamped[arrival.key] = number
        return True

    def clear(self) -> None:
        """Start an epoch and drop everything."""
        for buffer in self._buffers.values():
            buffer.clear()
        self._unstamped.clear()

    def begin_step(self) -> None:
        """Start a step, so that messages without a stamp that arrive from now on belong to its end."""
        self._unstamped.clear()

    def drop_after(self, now_ns: int) -> None:
        """Drop readings stamped after `now_ns`, from before the clock went back."""
        for buffer in self._buffers.values():
            if buffer.stamp_ns > now_ns:
                buffer.clear_readings()

    def expected(self, target_ns: int, now_ns: int, *, since_ns: int = 0) -> dict[str, ExpectedReading]:
        """Return the readings that are due at `target_ns`, the end of a step.

        Readings stamped before `since_ns`, a reset, do not count. Messages of the step without a stamp get `now_ns`.
        """
        return {
            key: ExpectedReading(
                earliest_ns=max(since_ns, due.earliest_ns(target_ns)), number=self._unstamped.get(key), stamp_ns=now_ns
            )
            for key, due in self._due.items()
        }

    def missing(self, expected: Mapping[str, ExpectedReading]) -> list[str]:
        """Return the keys of the sensors whose expected reading has not arrived."""
        missing = []
        for key, reading in expected.items():
            buffer = self._buffers[key]
            if reading.number is not None:
                buffer.assign_stamp(reading.stamp_ns, reading.number)
            if buffer.stamp_ns < reading.earliest_ns:
                missing.append(key)
        return missing

    def is_due_since(self, key: str, since_ns: int, now_ns: int) -> bool:
        """Return whether a reading after `since_ns`, a reset, must exist, or True for other keys."""
        return key not in self._due or self._due[key].must_have_come(since_ns, now_ns)

    def has_future(self, now_ns: int) -> bool:
        """Return whether a reading is stamped after `now_ns`."""
        return any(buffer.stamp_ns > now_ns for buffer in self._buffers.values())

    def raise_if_future(self, now_ns: int) -> None:
        """Raise BackendLostError for readings stamped after `now_ns`."""
        ahead = {key: buffer.stamp_ns for key, buffer in self._buffers.items() if buffer.stamp_ns > now_ns}
        if ahead:
            stamps = ", ".join(f"{key} at {stamp_ns} ns" for key, stamp_ns in ahead.items())
            detail = f"{stamps} (expected at most {now_ns} ns); stop the other publisher"
            raise BackendLostError("future_reading", detail)

    def from_past(self, now_ns: int) -> list[str]:
        """Return the keys of the sensors whose newest reading is stamped before `now_ns`."""
        return [key for key, buffer in self._buffers.items() if buffer.stamp_ns < now_ns]

    def samples(self) -> dict[str, Sample]:
        """Return the newest readings."""
        samples = {key: buffer.sample() for key, buffer in self._buffers.items()}
        return {key: sample for key, sample in samples.items() if sample is not None}
