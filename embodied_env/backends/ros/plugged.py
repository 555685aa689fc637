"""Sensors that a simulator publishes: their newest readings, and which of them are of the end of a step."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace

from embodied_env.backends.ros.due_readings import DueReading
from embodied_env.backends.ros.qos import sensor_qos
from embodied_env.backends.ros.receiver import Arrival, Receiver
from embodied_env.backends.ros.sensors import SensorBuffer
from embodied_env.contract import Contract, SensorSpec
from embodied_env.contract.messages import message_class
from embodied_env.transition import Sample


class Plugged:
    """The buffers of the sensors with a topic of their own.

    Attributes:
        sensors: what the contract says of them, by name.
    """

    sensors: Mapping[str, SensorSpec]

    def __init__(self, contract: Contract, unplugged: Container[str], slack_ns: int) -> None:
        """Prepare; nothing is subscribed to.

        Args:
            contract: has the sensors.
            unplugged: those of them without a topic.
            slack_ns: how much later than its rate says a reading may be taken.
        """
        self.sensors = {name: sensor for name, sensor in contract.sensors.items() if name not in unplugged}
        self._due = {name: DueReading.of(sensor, slack_ns) for name, sensor in contract.sensors.items()}
        self._buffers: dict[str, SensorBuffer] = {}
        self._unstamped: dict[str, int] = {}  # sensor without stamps -> its newest message since the step was asked for

    def listen(self, receiver: Receiver) -> None:
        """Subscribe to the sensors; whoever takes their messages hands them to `put`."""
        self._buffers = {name: SensorBuffer(name, sensor) for name, sensor in self.sensors.items()}
        for name, sensor in self.sensors.items():
            receiver.subscribe(name, message_class(sensor.type), sensor.topic, sensor_qos(sensor))

    def put(self, arrival: Arrival) -> None:
        """Take a message."""
        self._buffers[arrival.key].put(arrival)
        number = arrival.info["publication_sequence_number"]
        if self.sensors[arrival.key].timeline == "receive" and number is not None:
            self._unstamped[arrival.key] = number

    def clear(self) -> None:
        """Begin an epoch: forget everything."""
        for buffer in self._buffers.values():
            buffer.clear()
        self._unstamped.clear()

    def expect_step(self) -> None:
        """Begin a step: what carries no stamp, and comes from now on, is of its end."""
        self._unstamped.clear()

    def missing(self, target_ns: int, now_ns: int) -> list[str]:
        """Return whose reading of the end of the step, at `target_ns`, is not here yet."""
        missing = []
        for name, buffer in self._buffers.items():
            self._stamp_receipt(name, now_ns)
            if not self._due[name].is_there(buffer.stamp_ns, target_ns):
                missing.append(name)
        return missing

    def without_first(self, since_ns: int, now_ns: int) -> list[str]:
        """Return who has no reading since the reset; what is of the time before a clock went back is dropped."""
        missing = []
        for name, buffer in self._buffers.items():
            self._stamp_receipt(name, now_ns)
            if buffer.stamp_ns > now_ns:
                buffer.flush()
            is_new = buffer.stamp_ns >= max(since_ns, 1) and self._due[name].is_there(buffer.stamp_ns, now_ns)
            if not is_new:
                missing.append(name)
        return missing

    def must_have_come(self, name: str, since_ns: int, now_ns: int) -> bool:
        """Return whether `name` must have a reading since the reset; who is no sensor must."""
        return name not in self._due or self._due[name].must_have_come(since_ns, now_ns)

    def ahead(self, now_ns: int) -> dict[str, int]:
        """Return the stamps, ns, of the newest readings that are of a later time, by sensor."""
        return {name: buffer.stamp_ns for name, buffer in self._buffers.items() if buffer.stamp_ns > now_ns}

    def samples(self) -> dict[str, Sample]:
        """Return the newest readings.

        What was not read while the agent thought is no loss: a paused simulator repeats itself.
        """
        heard = {name: buffer.sample() for name, buffer in self._buffers.items()}
        return {name: replace(sample, lost=0) for name, sample in heard.items() if sample is not None}

    def _stamp_receipt(self, name: str, now_ns: int) -> None:
        """What carries no stamp, and came since the step was asked for, is of its end."""
        if name in self._unstamped:
            self._buffers[name].accept(now_ns, self._unstamped[name])
