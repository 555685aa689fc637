"""Where the agent's sensors measure the velocities of what is commanded by velocity."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract
from embodied_env.contract.message_types import JOINT_SENSOR
from embodied_env.contract.schema import ActuatorSpec, FloatArray, SensorSpec

_ODOMETRY = "nav_msgs/msg/Odometry"

Reading = tuple[Mapping[str, NDArray[Any]], float]
"""The fields of one message, and its age in s."""


class MeasuredVelocities:
    """Finds the measured velocity of each joint that is commanded by velocity.

    A joint is measured where a sensor of joint states reports its velocity, the axis of a twist where an odometry in
    the same frame does.

    Attributes:
        sensors: the sensors that are needed, by name.
    """

    def __init__(self, contract: Contract) -> None:
        """Find the joints of `contract` in the agent's sensors."""
        seen = {name: sensor for name, sensor in contract.sensors.items() if sensor.visibility == "agent"}
        self._places = [
            next((place for name, sensor in seen.items() if (place := _place(name, sensor, actuator, joint))), None)
            for actuator in contract.actuators.values()
            for joint in actuator.joints
        ]
        self.sensors = tuple(dict.fromkeys(place[0] for place in self._places if place is not None))
        self._oldest_s = {name: contract.sensors[name].max_age_s for name in self.sensors}
        self._tolerance_s = contract.safety.observation.future_tolerance_s

    def read(self, newest: Callable[[str], Reading | None]) -> tuple[FloatArray, FloatArray]:
        """Return the velocity of each joint in its unit/s and its age in s, both of shape (n_joints,).

        NaN and infinity where a joint is not measured, or its reading is missing, not finite, outside the range that
        the contract declares, older than its `max_age_s`, or of the future.

        Args:
            newest: returns the newest reading of a sensor; None: there is no valid one.
        """
        velocities, ages_s = np.full(len(self._places), np.nan), np.full(len(self._places), np.inf)
        readings = {name: newest(name) for name in self.sensors}
        for joint, place in enumerate(self._places):
            if place is None or (reading := readings[place[0]]) is None:
                continue
            name, field, index, low, high = place
            values, age_s = reading
            if -self._tolerance_s <= age_s <= self._oldest_s[name] and low <= values[field][index] <= high:
                velocities[joint], ages_s[joint] = values[field][index], max(0.0, age_s)
        return velocities, ages_s


def _place(
    name: str, sensor: SensorSpec, actuator: ActuatorSpec, joint: str
) -> tuple[str, str, int, float, float] | None:
    """Return sensor, field, index in it, and its declared range, where `sensor` measures the velocity of `joint`."""
    if not actuator.is_velocity:
        return None
    field, _, axis = joint.partition(".") if actuator.command == "twist" else ("velocity", "", joint)
    spec = sensor.fields.get(field)
    if spec is None or spec.path is not None:
        return None
    if actuator.command == "twist":
        if sensor.type != _ODOMETRY or sensor.child_frame != actuator.frame:
            return None
        index = "xyz".index(axis)
    elif sensor.type == JOINT_SENSOR and joint in (spec.joints or ()):
        index = (spec.joints or ()).index(joint)
    else:
        return None
    low, high = (bound[index] if isinstance(bound, tuple) else bound for bound in (spec.low, spec.high))
    return name, field, index, low, high
