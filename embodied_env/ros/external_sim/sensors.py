"""Sensors that a simulator does not publish: computed from others of the same instant, or asked of it."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract, SensorSpec
from embodied_env.contract.message_types import message_class
from embodied_env.contract.spaces import field_layouts
from embodied_env.core.clock import NS_PER_S, Clock
from embodied_env.core.types import Sample
from embodied_env.ros.external_sim.control.base import EntityState
from embodied_env.ros.external_sim.profile import SimulatorSource
from embodied_env.ros.qos import sensor_qos
from embodied_env.ros.receiver import ReceivedMessage, Receiver
from embodied_env.ros.sensor_buffer import SensorBuffer


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

    def satisfies(self, stamp_ns: int, now_ns: int) -> bool:
        """Return whether with its newest reading at `stamp_ns` none is missing at `now_ns`, the end of a step."""
        if not self.period_ns:
            return stamp_ns >= now_ns
        return stamp_ns + self.period_ns + self.slack_ns > now_ns

    def must_have_come(self, since_ns: int, now_ns: int) -> bool:
        """Return whether there is a reading after `since_ns`, a reset, for sure."""
        return now_ns > since_ns + self.period_ns + self.slack_ns if self.period_ns else now_ns > since_ns


class DerivedSensors:
    """Makes the readings of the sources of a profile, each when it is due."""

    def __init__(self, contract: Contract, sources: Mapping[str, SimulatorSource], clock: Clock) -> None:
        """Resolve the sensors; `clock` stamps when they were read."""
        self._sources, self._clock, self._sensors = sources, clock, frozenset(contract.sensors)
        self._layouts = {name: field_layouts(name, contract.sensors[name]) for name in sources}
        self._due = {name: DueReading.of(contract.sensors[name], 0) for name in sources}
        self._last: dict[str, Sample] = {}

    def begin(self) -> None:
        """Begin an epoch: everything is due."""
        self._last.clear()

    def entities(self, now_ns: int) -> set[str]:
        """Return the entities whose pose is needed at this time."""
        due = [source for name, source in self._sources.items() if self._is_due(name, now_ns)]
        ends = [end for source in due for end in source.distance or () if end not in self._sensors]
        wanted = {*ends, *(source.entity for source in due), *(source.relative_to for source in due)}
        return {entity for entity in wanted if entity is not None}

    def complete(
        self,
        samples: Mapping[str, Sample],
        states: Mapping[str, EntityState],
        now_ns: int,
        events: Collection[str] = (),
    ) -> dict[str, Sample]:
        """Return `samples` and those of the sources, by what was told or asked at `now_ns`, and the `events` since."""
        found = dict(samples)
        for name in (name for name, source in self._sources.items() if source.event is not None):
            self._last[name] = self._event(name, events, now_ns)
            found[name] = self._last[name]
        by_entity = [name for name, source in self._sources.items() if source.entity is not None]
        for name in by_entity:
            if self._is_due(name, now_ns):
                self._last[name] = self._pose(name, states, now_ns)
            found[name] = self._last[name]
        for name, source in self._sources.items():
            if source.distance is not None:
                if self._is_due(name, now_ns):
                    self._last[name] = self._distance(name, source.distance, found, states, now_ns)
                found[name] = self._last[name]
        return found

    def _is_due(self, name: str, now_ns: int) -> bool:
        last = self._last.get(name)
        return last is None or last.stamp_ns > now_ns or not self._due[name].satisfies(last.stamp_ns, now_ns)

    def _pose(self, name: str, states: Mapping[str, EntityState], now_ns: int) -> Sample:
        source = self._sources[name]
        state = states[source.entity or ""]
        if source.relative_to is not None:
            state = _relative(state, states[source.relative_to])
        told = {"position": state.position, "orientation": state.orientation}
        values = {
            layout.field: np.array(told.get(layout.field, np.zeros(layout.shape)), dtype=layout.dtype)
            for layout in self._layouts[name]
        }
        return self._sample(name, values, now_ns)

    def _distance(
        self,
        name: str,
        between: tuple[str, str],
        found: Mapping[str, Sample],
        states: Mapping[str, EntityState],
        now_ns: int,
    ) -> Sample:
        first, second = (
            found[end].values["position"] if end in self._sensors else states[end].position for end in between
        )
        (layout,) = self._layouts[name]
        length = np.array([np.linalg.norm(first - second)], dtype=layout.dtype)
        return self._sample(name, {layout.field: length}, now_ns)

    def _event(self, name: str, events: Collection[str], now_ns: int) -> Sample:
        (layout,) = self._layouts[name]
        return self._sample(name, {layout.field: np.full(layout.shape, name in events, dtype=layout.dtype)}, now_ns)

    def _sample(self, name: str, values: dict[str, NDArray[Any]], now_ns: int) -> Sample:
        before = self._last.get(name)
        return Sample(
            sensor=name,
            values=values,
            stamp_ns=now_ns,
            arrival_ns=self._clock.now_ns(),
            arrival_system_ns=self._clock.system_ns(),
            seq=0 if before is None else before.seq + 1,
        )


def _relative(state: EntityState, frame: EntityState) -> EntityState:
    """Return a pose in the frame of another; quaternions are x, y, z, w."""
    axis, real = -frame.orientation[:3], frame.orientation[3]  # the way back
    away, turned, turned_real = state.position - frame.position, state.orientation[:3], state.orientation[3]
    position = away + 2.0 * np.cross(axis, np.cross(axis, away) + real * away)
    vector = real * turned + turned_real * axis + np.cross(axis, turned)
    orientation = np.array([*vector, real * turned_real - axis @ turned])
    return EntityState(position=position, orientation=orientation, stamp_ns=state.stamp_ns)


class PublishedSensors:
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

    def put(self, arrival: ReceivedMessage) -> None:
        """Take a message."""
        self._buffers[arrival.key].add(arrival)
        number = arrival.info["publication_sequence_number"]
        if self.sensors[arrival.key].timeline == "receive" and number is not None:
            self._unstamped[arrival.key] = number

    def clear(self) -> None:
        """Begin an epoch: forget everything."""
        for buffer in self._buffers.values():
            buffer.clear()
        self._unstamped.clear()

    def start_step(self) -> None:
        """Begin a step: what carries no stamp, and comes from now on, is of its end."""
        self._unstamped.clear()

    def missing(self, target_ns: int, now_ns: int) -> list[str]:
        """Return whose reading of the end of the step, at `target_ns`, is not here yet."""
        missing = []
        for name, buffer in self._buffers.items():
            self._stamp_receipt(name, now_ns)
            if not self._due[name].satisfies(buffer.stamp_ns, target_ns):
                missing.append(name)
        return missing

    def not_yet_received(self, since_ns: int, now_ns: int) -> list[str]:
        """Return who has no reading since the reset; what is of the time before a clock went back is dropped."""
        missing = []
        for name, buffer in self._buffers.items():
            self._stamp_receipt(name, now_ns)
            if buffer.stamp_ns > now_ns:
                buffer.clear_readings()
            is_new = buffer.stamp_ns >= max(since_ns, 1) and self._due[name].satisfies(buffer.stamp_ns, now_ns)
            if not is_new:
                missing.append(name)
        return missing

    def is_due_since(self, name: str, since_ns: int, now_ns: int) -> bool:
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
            self._buffers[name].assign_stamp(now_ns, self._unstamped[name])
