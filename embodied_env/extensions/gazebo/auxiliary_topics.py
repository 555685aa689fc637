"""Receive poses, contact forces and command echoes of a simulator that no sensor reads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from embodied_env.contract import Contract, FieldSpec, SensorSpec
from embodied_env.contract.qos_schema import QosSpec
from embodied_env.extensions.gazebo.control.simulator_api import EntityState
from embodied_env.extensions.gazebo.external_sim_profile import FORCE_TYPE, SimulatorProfile
from embodied_env.messages.message_types import message_class
from embodied_env.ros.transport.qos import ANY, sensor_qos
from embodied_env.ros.transport.receiver import ReceivedMessage, Receiver
from embodied_env.ros.wire.step_arrivals import StepArrivals

# Prefixes of message keys, before the name of an entity, sensor or actuator: no sensor's name begins with a slash.
_STATE, _FORCE, _ECHO = "/state/", "/force/", "/echo/"
_UNBOUNDED = 1e9
_NEWEST = QosSpec(depth=2)  # so that one that arrives out of order does not hide the newest
_EVERY_FORCE = QosSpec(depth=1000, reliability="best_effort")  # those of a whole step are taken at its end


class EntityTopics:
    """The newest pose of each entity with a topic, and the contacts since the last call."""

    topics: Mapping[str, SensorSpec]

    def __init__(self, profile: SimulatorProfile) -> None:
        parts = {"position": "m", "orientation": "1"}
        pose = {name: FieldSpec(unit=unit, low=-_UNBOUNDED, high=_UNBOUNDED) for name, unit in parts.items()}
        states = {
            _STATE + name: SensorSpec(topic=state.topic, type=state.type, fields=pose, max_age_s=1.0, qos=_NEWEST)
            for name, state in profile.states.items()
        }
        sources = {name: source for name, source in profile.sources.items() if source.force is not None}
        force = {"force": FieldSpec(unit="N", low=-_UNBOUNDED, high=_UNBOUNDED)}
        forces = {
            _FORCE + name: SensorSpec(
                topic=source.force or "", type=FORCE_TYPE, fields=force, max_age_s=1.0, qos=_EVERY_FORCE
            )
            for name, source in sources.items()
        }
        self.topics = {**states, **forces}
        self._arrivals = StepArrivals(self.topics)
        self._above_n = {_FORCE + name: source.above_n for name, source in sources.items()}
        self._contacts: set[str] = set()

    def subscribe(self, receiver: Receiver) -> None:
        """Subscribe to the topics, whose messages are to be given to `add`."""
        self._arrivals.subscribe(receiver, sensor_qos)

    def add(self, arrival: ReceivedMessage) -> bool:
        """Store a message, and return whether it is of one of these topics."""
        if (above_n := self._above_n.get(arrival.key)) is not None:
            force = arrival.message.wrench.force
            if not math.hypot(force.x, force.y, force.z) <= above_n:  # NaN counts as a contact
                self._contacts.add(arrival.key.removeprefix(_FORCE))
        return self._arrivals.add(arrival)

    def clear(self) -> None:
        """Drop all poses and contacts."""
        self._contacts.clear()
        self._arrivals.clear()

    def missing(self, target_ns: int, now_ns: int) -> list[str]:
        """Drop messages after `now_ns`, and return the topics without one from the end of a step."""
        self._arrivals.drop_after(now_ns)
        missing = self._arrivals.missing(self._arrivals.expected(target_ns, now_ns))
        return [self.topics[key].topic for key in missing]

    def states(self) -> dict[str, EntityState]:
        """Return the newest poses that are finite numbers and have a rotation, by entity."""
        return {
            key.removeprefix(_STATE): EntityState(position=pose["position"], orientation=pose["orientation"])
            for key, sample in self._arrivals.samples().items()
            if (pose := sample.values) and key.startswith(_STATE)
        }

    def contacts(self) -> set[str]:
        """Return the sensors whose force exceeded its threshold since the last call, and clear them."""
        found, self._contacts = self._contacts, set()
        return found


class CommandEchoes:
    """Commands that their receiver repeats on a topic, as a proof of their arrival."""

    def __init__(self, contract: Contract, topics: Mapping[str, str]) -> None:
        """Prepare for the topics of the echoes by actuator, which have the types of its commands."""
        self._contract, self._topics = contract, topics
        self._pending: dict[str, Any] = {}  # actuator -> its command

    def subscribe(self, receiver: Receiver) -> None:
        """Subscribe to the echoes, which are to be given to `add`."""
        for name, topic in self._topics.items():
            kind = message_class(self._contract.actuators[name].as_topic().type)
            receiver.subscribe(_ECHO + name, kind, topic, ANY)

    def clear(self) -> None:
        """Expect no echo."""
        self._pending.clear()

    def expect(self, name: str, command: Any) -> None:  # noqa: ANN401 - a generated type
        """Expect the echo of a command to the actuator `name`, if it has an echo topic."""
        if name in self._topics:
            self._pending[name] = command

    def add(self, arrival: ReceivedMessage) -> bool:
        """Compare a message but its header with the pending command, and return whether it is an echo."""
        if not arrival.key.startswith(_ECHO):
            return False
        name, echo = arrival.key.removeprefix(_ECHO), arrival.message
        command = self._pending.get(name)
        if command is not None and type(echo) is type(command):
            fields = [field for field in command.get_fields_and_field_types() if field != "header"]
            if all(getattr(echo, field) == getattr(command, field) for field in fields):
                del self._pending[name]
        return True

    def missing(self) -> list[str]:
        """Return the topics without the expected echo."""
        return [self._topics[name] for name in self._pending]
