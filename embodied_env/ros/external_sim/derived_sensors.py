"""Sensors that a simulator does not publish: computed from others of the same instant, or from poses of entities."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract
from embodied_env.contract.spaces import field_layouts
from embodied_env.core.clock import Clock
from embodied_env.core.types import Sample
from embodied_env.ros.external_sim.control.base import EntityState
from embodied_env.ros.external_sim.profile import SimulatorSource
from embodied_env.ros.step_arrivals import DueReading


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
