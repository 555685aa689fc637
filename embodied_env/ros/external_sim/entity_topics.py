"""Topics of a simulator that are not sensors of the contract: poses of entities, and events."""

from __future__ import annotations

from collections.abc import Mapping

from embodied_env.contract import Contract, FieldSpec, SensorSpec
from embodied_env.contract.message_types import message_class
from embodied_env.ros.external_sim.control.base import EntityState
from embodied_env.ros.external_sim.profile import SimulatorProfile
from embodied_env.ros.qos import sensor_qos
from embodied_env.ros.receiver import ReceivedMessage, Receiver
from embodied_env.ros.step_arrivals import StepArrivals

_STATE = "/state/"  # before the name of an entity: not a sensor's
_EVENT = "/event/"  # before the name of the sensor that it is the source of
_FAR = 1e9  # no pose is beyond it


class EntityTopics:
    """The newest pose of each entity that has a topic, and the events since the last call of `events`.

    Attributes:
        topics: what is subscribed to: key -> topic and type.
    """

    topics: Mapping[str, SensorSpec]

    def __init__(self, contract: Contract, profile: SimulatorProfile) -> None:
        """Prepare to read the topics of `profile`."""
        states = {_STATE + name: _pose_sensor(state.topic, state.type) for name, state in profile.states.items()}
        self._event_topics = {
            _EVENT + name: SensorSpec(topic=source.event, type=contract.sensors[name].type, fields={}, max_age_s=1.0)
            for name, source in profile.sources.items()
            if source.event is not None
        }
        self.topics = {**states, **self._event_topics}
        self._poses = StepArrivals(states)
        self._events: set[str] = set()

    def subscribe(self, receiver: Receiver) -> None:
        """Subscribe to the topics; their messages are to be given to `add`."""
        self._poses.subscribe(receiver)
        for key, topic in self._event_topics.items():
            receiver.subscribe(key, message_class(topic.type), topic.topic, sensor_qos(topic))

    def add(self, arrival: ReceivedMessage) -> bool:
        """Store a message; return whether it is of one of these topics."""
        if arrival.key in self._event_topics:
            self._events.add(arrival.key.removeprefix(_EVENT))
            return True
        return self._poses.add(arrival)

    def clear(self) -> None:
        """Begin an epoch: forget everything."""
        self._events.clear()
        self._poses.clear()

    def missing(self, target_ns: int, now_ns: int) -> list[str]:
        """Return the topics of poses that have not arrived for the end of a step; poses after `now_ns` are dropped."""
        self._poses.drop_after(now_ns)
        return [self.topics[key].topic for key in self._poses.missing(self._poses.expected(target_ns, now_ns))]

    def states(self) -> dict[str, EntityState]:
        """Return the newest poses that are finite numbers and have a rotation, by entity."""
        return {
            key.removeprefix(_STATE): EntityState(
                position=sample.values["position"], orientation=sample.values["orientation"], stamp_ns=sample.stamp_ns
            )
            for key, sample in self._poses.samples().items()
            if sample.values
        }

    def events(self) -> set[str]:
        """Return the sensors whose event arrived since the last call, and forget them."""
        arrived, self._events = self._events, set()
        return arrived


def _pose_sensor(topic: str, type_name: str) -> SensorSpec:
    pose = {
        "position": FieldSpec(unit="m", low=-_FAR, high=_FAR),
        "orientation": FieldSpec(unit="1", low=-_FAR, high=_FAR),
    }
    return SensorSpec(topic=topic, type=type_name, fields=pose, max_age_s=1.0)
