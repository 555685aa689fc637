"""Measured positions of joints: found in the snapshot by name, with their ages."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract
from embodied_env.contract.message_types import JOINT_SENSOR
from embodied_env.core.clock import NS_PER_S
from embodied_env.core.types import Snapshot


class MeasuredJoints:
    """Where the positions of joints stand in a snapshot: in the agent's sensors, by name."""

    def __init__(self, contract: Contract, joints: tuple[str, ...]) -> None:
        """Find `joints` in the sensors of `contract`."""
        found = {
            joint: (name, index)
            for name, sensor in contract.sensors.items()
            if sensor.type == JOINT_SENSOR and sensor.visibility == "agent" and "position" in sensor.fields
            for index, joint in enumerate(sensor.fields["position"].joints or ())
        }
        self._places = [found.get(joint) for joint in joints]
        self.known = np.array([place is not None for place in self._places])  # which joints some sensor reports
        self._by_sensor: dict[str, list[tuple[int, int]]] = {}  # sensor -> joint, and its place in the reading
        for joint, place in enumerate(self._places):
            if place is not None:
                self._by_sensor.setdefault(place[0], []).append((joint, place[1]))
        # where one sensor reports them all, in this order, nothing needs to be put in its place
        in_order = [(name, index) for name in self._by_sensor for index in range(len(joints))]
        self._sensor_of_all = next(iter(self._by_sensor)) if joints and self._places == in_order else None

    def measured(self, snapshot: Snapshot) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the position of each joint and its age, s, both of shape (n_joints,).

        A joint that no sensor has is at 0, of age 0: the rules of a contract say that its position does not count.
        """
        positions, ages_s = [0.0] * len(self._places), [0.0] * len(self._places)
        for sensor, places in self._by_sensor.items():
            sample = snapshot.samples[sensor]
            read: list[float] = sample.values["position"].tolist()
            age_s = (snapshot.now_ns - sample.stamp_ns) / NS_PER_S
            for joint, place in places:
                positions[joint], ages_s[joint] = read[place], age_s
        return np.array(positions), np.array(ages_s)

    def positions_or_nan(self, snapshot: Snapshot) -> NDArray[np.float64]:
        """Return the position of each joint, shape (n_joints,); NaN where no sensor has it."""
        if self._sensor_of_all is not None:
            return snapshot.samples[self._sensor_of_all].values["position"][: len(self._places)].astype(np.float64)
        positions = [math.nan] * len(self._places)
        for sensor, places in self._by_sensor.items():
            read: list[float] = snapshot.samples[sensor].values["position"].tolist()
            for joint, place in places:
                positions[joint] = read[place]
        return np.array(positions)
