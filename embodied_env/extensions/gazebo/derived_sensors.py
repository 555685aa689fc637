"""Readings that a simulator does not publish as the contract has them.

Sensors without a topic are computed from other sensors of the same instant, or from entity poses. Joints may have their
zeros elsewhere than those of the contract.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.spaces import ActionLayout, field_layouts
from embodied_env.core.types import Sample
from embodied_env.extensions.gazebo.control.simulator_api import EntityState
from embodied_env.extensions.gazebo.external_sim_profile import SimulatorSource
from embodied_env.messages.message_types import JOINT_SENSOR
from embodied_env.ros.wire.step_arrivals import DueReading
from embodied_env.ros.wire.transforms import matrix, product
from embodied_env.timing.clock import Clock


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
        """Add the derived readings at `now_ns`, simulated time, by the poses of `entities` and the new contacts."""
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
    """Converts joint positions, where one of the contract is that of the simulator plus the zero of the joint."""

    def __init__(self, contract: Contract, layout: ActionLayout, zeros: Mapping[str, float]) -> None:
        """Prepare for `zeros`, by joint its position in the contract where the simulator has 0, rad or m."""
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
