"""What a simulator tells on topics that are no sensors of the contract: where entities are, and that something was."""

from __future__ import annotations

from collections.abc import Mapping

from embodied_env.contract import Contract, FieldSpec, SensorSpec
from embodied_env.contract.message_types import message_class
from embodied_env.ros.external_sim.control.base import EntityState
from embodied_env.ros.external_sim.profile import SimulatorProfile
from embodied_env.ros.qos import sensor_qos
from embodied_env.ros.receiver import ReceivedMessage, Receiver
from embodied_env.ros.sensor_buffer import SensorBuffer

_STATE = "/state/"  # before the name of an entity: not a sensor's
_EVENT = "/event/"  # before the name of the sensor that it is the source of
_FAR = 1e9  # no pose is beyond it


class EntityTopics:
    """The newest pose of each entity that has a topic, and which events came since they were last asked for.

    Attributes:
        topics: what is to be subscribed to: key -> topic and type.
    """

    topics: Mapping[str, SensorSpec]

    def __init__(self, contract: Contract, profile: SimulatorProfile) -> None:
        """Prepare to read the topics of `profile`."""
        states = {_STATE + name: _pose_sensor(state.topic, state.type) for name, state in profile.states.items()}
        events = {
            _EVENT + name: SensorSpec(topic=source.event, type=contract.sensors[name].type, fields={}, max_age_s=1.0)
            for name, source in profile.sources.items()
            if source.event is not None
        }
        self.topics = {**states, **events}
        self._buffers = {key: SensorBuffer(key, spec) for key, spec in states.items()}
        self._events: set[str] = set()

    def listen(self, receiver: Receiver) -> None:
        """Subscribe to the topics; whoever takes their messages hands them to `put`."""
        for key, told in self.topics.items():
            receiver.subscribe(key, message_class(told.type), told.topic, sensor_qos(told))

    def put(self, arrival: ReceivedMessage) -> bool:
        """Take a message; return whether it is one of these topics."""
        if arrival.key not in self.topics:
            return False
        if arrival.key in self._buffers:
            self._buffers[arrival.key].add(arrival)
        else:
            self._events.add(arrival.key.removeprefix(_EVENT))
        return True

    def clear(self) -> None:
        """Begin an epoch: forget everything."""
        self._events.clear()
        for buffer in self._buffers.values():
            buffer.clear()

    def missing(self, target_ns: int, now_ns: int) -> list[str]:
        """Return the topics of entities whose pose at the end of a step is not here; one of a later time is dropped."""
        for buffer in self._buffers.values():
            if buffer.stamp_ns > now_ns:
                buffer.clear_readings()
        return [self.topics[key].topic for key, buffer in self._buffers.items() if buffer.stamp_ns < target_ns]

    def states(self) -> dict[str, EntityState]:
        """Return where the entities are that have told it in numbers."""
        samples = {key.removeprefix(_STATE): buffer.sample() for key, buffer in self._buffers.items()}
        return {
            name: EntityState(
                position=sample.values["position"], orientation=sample.values["orientation"], stamp_ns=sample.stamp_ns
            )
            for name, sample in samples.items()
            if sample is not None and sample.values
        }

    def events(self) -> set[str]:
        """Return the sensors whose event came since the last time, and forget them."""
        came, self._events = self._events, set()
        return came


def _pose_sensor(topic: str, type_name: str) -> SensorSpec:
    pose = {
        "position": FieldSpec(unit="m", low=-_FAR, high=_FAR),
        "orientation": FieldSpec(unit="1", low=-_FAR, high=_FAR),
    }
    return SensorSpec(topic=topic, type=type_name, fields=pose, max_age_s=1.0)
