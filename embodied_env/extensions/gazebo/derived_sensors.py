"""Poses, contacts, command echoes, and readings that a simulator does not publish itself.

Sensors without a topic are computed from other sensors of the same instant, or from entity poses. Joints may have their
zeros elsewhere than those of the contract.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract, FieldSpec, FloatArray, SensorSpec
from embodied_env.contract.qos_schema import QosSpec
from embodied_env.contract.spaces import ActionLayout, field_layouts
from embodied_env.core.types import Sample
from embodied_env.extensions.gazebo.control.simulator_api import EntityState
from embodied_env.extensions.gazebo.external_sim_profile import FORCE_TYPE, SimulatorProfile, SimulatorSource
from embodied_env.messages.message_types import JOINT_SENSOR, message_class
from embodied_env.ros.transport.qos import ANY, sensor_qos
from embodied_env.ros.transport.receiver import ReceivedMessage, Receiver
from embodied_env.ros.wire.step_arrivals import DueReading, StepArrivals
from embodied_env.ros.wire.transforms import matrix, product
from embodied_env.timing.clock import Clock

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
        """Return and clear the sensors whose force exceeded its threshold since the last call."""
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
        """Return whether a message is an echo, and complete the pending command if they are equal."""
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


class DerivedSensors:
    """Computes the readings of a profile's sources, each when its sensor is due."""

    def __init__(self, contract: Contract, sources: Mapping[str, SimulatorSource], clock: Clock) -> None:
        """Resolve the sensors, with `clock` for the arrival stamps of readings."""
        # Contacts, then poses, then distances, which may use the poses.
        order = sorted(sources, key=lambda name: (sources[name].force is None, sources[name].distance is not None))
        self._sources = {name: sources[name] for name in order}
        self._clock, self._sensors = clock, frozenset(contract.sensors)
        self._layouts = {name: field_layouts(name, contract.sensors[name]) for name in sources}
        self._due = {name: DueReading.of(contract.sensors[name], 0) for name in sources}
        self._last: dict[str, Sample] = {}

    def clear(self) -> None:
        """Drop all readings, so that every sensor is due."""
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
        contacts: Collection[str] = (),
    ) -> dict[str, Sample]:
        """Add the derived readings at `now_ns`, simulated time, by entity poses and contacts."""
        found = dict(samples)
        for name, source in self._sources.items():
            if source.force is not None or self._is_due(name, now_ns):
                last = self._last.get(name)
                self._last[name] = Sample(
                    sensor=name,
                    values=self._values(name, found, states, contacts),
                    stamp_ns=now_ns,
                    arrival_ns=self._clock.now_ns(),
                    arrival_system_ns=self._clock.system_ns(),
                    seq=0 if last is None else last.seq + 1,
                )
            found[name] = self._last[name]
        return found

    def _is_due(self, name: str, now_ns: int) -> bool:
        last = self._last.get(name)
        return last is None or last.stamp_ns > now_ns or not self._due[name].satisfies(last.stamp_ns, now_ns)

    def _values(
        self, name: str, found: Mapping[str, Sample], states: Mapping[str, EntityState], contacts: Collection[str]
    ) -> dict[str, NDArray[Any]]:
        source, layouts = self._sources[name], self._layouts[name]
        if source.entity is not None:
            state = states[source.entity]
            if source.relative_to is not None:
                state = _relative(state, states[source.relative_to])
            pose = {"position": state.position, "orientation": state.orientation}
            return {
                layout.field: np.array(pose.get(layout.field, np.zeros(layout.shape)), dtype=layout.dtype)
                for layout in layouts
            }
        (layout,) = layouts
        if source.distance is None:
            return {layout.field: np.full(layout.shape, name in contacts, dtype=layout.dtype)}
        first, second = (
            found[end].values["position"] if end in self._sensors else states[end].position for end in source.distance
        )
        return {layout.field: np.array([np.linalg.norm(first - second)], dtype=layout.dtype)}


def _relative(state: EntityState, frame: EntityState) -> EntityState:
    """Return a pose in the frame of another, with quaternions x, y, z, w."""
    inverse = frame.orientation * (-1.0, -1.0, -1.0, 1.0)
    position = matrix(inverse) @ (state.position - frame.position)
    return EntityState(position=position, orientation=product(inverse, state.orientation))


class JointZeros:
    """Converts joint positions, the contract's being the simulator's plus the joint's zero."""

    def __init__(self, contract: Contract, layout: ActionLayout, zeros: Mapping[str, float]) -> None:
        """Prepare for `zeros`, the contract's position, rad or m, at the simulator's 0, by joint."""
        self._commanded = np.where(layout.is_velocity, 0.0, [zeros.get(joint, 0.0) for joint in layout.joints])
        fields = {
            name: sensor.fields["position"]
            for name, sensor in contract.sensors.items()
            if sensor.type == JOINT_SENSOR and "position" in sensor.fields
        }
        self._measured = {
            name: np.array([zeros.get(joint, 0.0) for joint in field.joints or ()])
            for name, field in fields.items()
            if not zeros.keys().isdisjoint(field.joints or ())
        }

    def to_simulator(self, command: FloatArray) -> FloatArray:
        """Return the values of a command for the simulator."""
        return np.asarray(command - self._commanded)

    def to_contract(self, sample: Sample) -> Sample:
        """Return a reading of the simulator with the positions of the contract."""
        zeros = self._measured.get(sample.sensor)
        if zeros is None or "position" not in sample.values:
            return sample
        positions = sample.values["position"]
        return replace(sample, values={**sample.values, "position": (positions + zeros).astype(positions.dtype)})
