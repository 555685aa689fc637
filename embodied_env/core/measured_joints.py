"""Measured joint positions and velocities, found by joint name in the agent's sensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.core.types import FloatArray
from embodied_env.messages.message_types import JOINT_SENSOR
from embodied_env.timing.clock import NS_PER_S

if TYPE_CHECKING:
    from embodied_env.contract import Contract
    from embodied_env.contract.actuator_schema import ActuatorSpec
    from embodied_env.contract.sensor_schema import SensorSpec

Reading = tuple[Mapping[str, NDArray[Any]], float]  # the fields of one message, and its age in s
TURN = 2.0 * math.pi

_ODOMETRY = "nav_msgs/msg/Odometry"


def nearest_turn(positions: FloatArray, reference: FloatArray, turns: NDArray[np.bool_]) -> FloatArray:
    """Return `positions`, shifted by whole turns to `reference` where `turns` is True."""
    if not turns.any():
        return positions
    turned = turns & np.isfinite(positions)
    finite = np.where(turned, positions, reference)
    return np.where(turned, finite + TURN * np.round((reference - finite) / TURN), positions)


def find_positions(contract: Contract) -> dict[str, tuple[str, int]]:
    """Return joint -> the agent's sensor that reports its position, and its index there."""
    return {
        joint: (name, index)
        for name, sensor in contract.sensors.items()
        if sensor.type == JOINT_SENSOR and sensor.visibility == "agent" and "position" in sensor.fields
        for index, joint in enumerate(sensor.fields["position"].joints or ())
    }


class MeasuredJoints:
    """Reads joint positions from the agent's sensors, of a `Snapshot` or slots in rows.

    Attributes:
        known: whether a sensor reports the position of each joint, shape (n_joints,).
        by_sensor: sensor -> indices of the positions in its reading, and of their joints.
    """

    def __init__(self, contract: Contract, joints: tuple[str, ...]) -> None:
        found = find_positions(contract)
        self._size = len(joints)
        self.known = np.array([joint in found for joint in joints])
        places = [(*found[name], joint) for joint, name in enumerate(joints) if name in found]
        self.by_sensor = {
            sensor: tuple(np.array([place[1:] for place in places if place[0] == sensor]).T)
            for sensor in dict.fromkeys(place[0] for place in places)
        }
        sensors = list(self.by_sensor)
        is_whole = len(sensors) == 1 and contract.sensors[sensors[0]].fields["position"].joints == joints
        self._whole = sensors[0] if is_whole else ""  # the sensor that reports these joints, in this order

    def measured(self, snapshot: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # noqa: ANN401 - see the class
        """Return the position of each joint and its age in s, both of shape (n_joints,).

        A joint without a sensor is at 0 with age 0: contracts allow that only where its position has no effect.
        """
        positions, ages_s = np.zeros((2, *np.shape(snapshot.now_ns), self._size))
        for sensor, (_, joints) in self.by_sensor.items():
            age_ns = np.asarray(snapshot.now_ns - snapshot.samples[sensor].stamp_ns)
            ages_s[..., joints] = age_ns[..., np.newaxis] / NS_PER_S
        return self._positions(snapshot, positions), ages_s

    def positions_or_nan(self, snapshot: Any) -> NDArray[np.float64]:  # noqa: ANN401 - see the class
        """Return the position of each joint, shape (n_joints,), or NaN without a sensor."""
        if self._whole:
            whole: NDArray[Any] = snapshot.samples[self._whole].values["position"]
            return whole.astype(np.float64, copy=False)
        return self._positions(snapshot, np.full((*np.shape(snapshot.now_ns), self._size), np.nan))

    def _positions(self, snapshot: Any, positions: NDArray[np.float64]) -> NDArray[np.float64]:  # noqa: ANN401
        for sensor, (indices, joints) in self.by_sensor.items():
            positions[..., joints] = snapshot.samples[sensor].values["position"][..., indices]
        return positions


class MeasuredPositions:
    """Newest measured position of each joint, and its acquisition time on the steady clock."""

    def __init__(self, contract: Contract, joints: tuple[str, ...]) -> None:
        self._joints = joints
        self._by_sensor = MeasuredJoints(contract, joints).by_sensor
        self.sensors = tuple(self._by_sensor)
        self._max_age_s = {sensor: contract.sensors[sensor].max_age_s for sensor in self.sensors}
        self._future_ns = round(contract.safety.observation.future_tolerance_s * NS_PER_S)
        self.positions = np.zeros(len(joints))  # 0 where no sensor reports it: that position has no limits
        self._acquired_ns: dict[str, int] = {}

    def put(self, sensor: str, positions: FloatArray, acquired_ns: int, now_ns: int) -> bool:
        """Store a reading in the sensor's order, or return False for a future or infinite one."""
        if not np.isfinite(positions).all() or acquired_ns > now_ns + self._future_ns:
            return False
        if acquired_ns >= self._acquired_ns.get(sensor, acquired_ns):  # never replaced by an older one
            self._acquired_ns[sensor] = acquired_ns
            indices, places = self._by_sensor[sensor]
            self.positions[places] = positions[indices]
        return True

    def ages_s(self, now_ns: int) -> FloatArray:
        """Return the age of each position, (n_joints,), inf before the first, 0 without a sensor."""
        ages = np.zeros(len(self.positions))
        for sensor, (_, places) in self._by_sensor.items():
            acquired_ns = self._acquired_ns.get(sensor)
            ages[places] = np.inf if acquired_ns is None else max(0, now_ns - acquired_ns) / NS_PER_S
        return ages

    def problem(self, now_ns: int) -> str:
        """Return the first joint whose position is too old to arm, or ""."""
        ages = self.ages_s(now_ns)
        for sensor, (_, places) in self._by_sensor.items():
            joint, age_s, max_age_s = self._joints[places[0]], ages[places[0]], self._max_age_s[sensor]
            if not age_s <= max_age_s:
                return f"position of {joint} ({sensor}) is {age_s:.3f} s old (maximum {max_age_s} s)"
        return ""


class MeasuredVelocities:
    """Reads the velocity of each joint that is commanded by velocity.

    A joint is measured by a joint state sensor that reports its velocity, the axis of a twist by odometry in the same
    frame. `sensors` are the names of the required sensors.
    """

    def __init__(self, contract: Contract) -> None:
        seen = {name: sensor for name, sensor in contract.sensors.items() if sensor.visibility == "agent"}
        self._places = [
            next((place for name, sensor in seen.items() if (place := _place(name, sensor, actuator, joint))), None)
            for actuator in contract.actuators.values()
            for joint in actuator.joints
        ]
        self.sensors = tuple(dict.fromkeys(place[0] for place in self._places if place is not None))
        self._max_age_s = {name: contract.sensors[name].max_age_s for name in self.sensors}
        self._tolerance_s = contract.safety.observation.future_tolerance_s

    def read(self, newest: Callable[[str], Reading | None]) -> tuple[FloatArray, FloatArray]:
        """Return the velocity of each joint in its unit/s and its age in s, (n_joints,) each.

        NaN and infinity where a joint is not measured, or its `newest` valid reading is missing, not finite, outside
        its declared range, older than `max_age_s`, or from the future.
        """
        velocities, ages_s = np.full(len(self._places), np.nan), np.full(len(self._places), np.inf)
        readings = {name: newest(name) for name in self.sensors}
        for joint, place in enumerate(self._places):
            if place is None or (reading := readings[place[0]]) is None:
                continue
            name, field, index, low, high = place
            value, age_s = reading[0][field][index], reading[1]
            is_valid = low <= value <= high and math.isfinite(value)  # the range may be infinite
            if -self._tolerance_s <= age_s <= self._max_age_s[name] and is_valid:
                velocities[joint], ages_s[joint] = value, max(0.0, age_s)
        return velocities, ages_s


def _place(
    name: str, sensor: SensorSpec, actuator: ActuatorSpec, joint: str
) -> tuple[str, str, int, float, float] | None:
    """Return sensor, field, index and range if `sensor` measures the velocity of `joint`."""
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
