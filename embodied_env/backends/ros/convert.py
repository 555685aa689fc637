"""Messages to arrays, by the contract: joints by name, one copy per field, and a reason for what cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import SensorSpec
from embodied_env.contract.spaces import FieldLayout, field_layouts

Values = dict[str, NDArray[Any]]


class MalformedMessageError(Exception):
    """A message that does not have what the contract declares; the text says what."""


def stamp_ns(message: Any) -> int:  # noqa: ANN401 - a generated type
    """Return the acquisition stamp of a message's header, in nanoseconds of its clock."""
    stamp = message.header.stamp
    return int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec)


class SensorReader:
    """Reads the messages of one sensor into fresh arrays of the contract's shapes and precision."""

    def __init__(self, name: str, sensor: SensorSpec) -> None:
        """Resolve the fields of `sensor`."""
        self._layouts = field_layouts(name, sensor)
        self._joints = {field: spec.joints or () for field, spec in sensor.fields.items()}
        self._read_field = _READERS[sensor.type]

    def read(self, message: Any) -> Values:  # noqa: ANN401 - a generated type
        """Return field -> array; raises MalformedMessageError."""
        return {layout.field: self._read_field(message, layout, self._joints[layout.field]) for layout in self._layouts}


def _read_joints(message: Any, layout: FieldLayout, joints: tuple[str, ...]) -> NDArray[Any]:  # noqa: ANN401
    """Pick joints by name, in the contract's order."""
    names: list[str] = message.name
    values = np.frombuffer(getattr(message, layout.field), dtype=np.float64)
    if len(values) != len(names):
        raise MalformedMessageError(f"{layout.field} has {len(values)} values for {len(names)} names")
    if names == list(joints):
        return values.copy()
    places = {name: place for place, name in enumerate(names)}
    if len(places) != len(names):
        raise MalformedMessageError(f"a joint is named twice in {names}")
    missing = [joint for joint in joints if joint not in places]
    if missing:
        raise MalformedMessageError(f"{layout.field} of {', '.join(missing)} is missing; the message has {names}")
    return values[[places[joint] for joint in joints]]


def _read_pose(message: Any, layout: FieldLayout, joints: tuple[str, ...]) -> NDArray[Any]:  # noqa: ANN401, ARG001
    part = getattr(message.pose, layout.field)
    if layout.field == "position":
        return np.array([part.x, part.y, part.z])
    return np.array([part.x, part.y, part.z, part.w])


def _read_point(message: Any, layout: FieldLayout, joints: tuple[str, ...]) -> NDArray[Any]:  # noqa: ANN401, ARG001
    return np.array([message.point.x, message.point.y, message.point.z])


def _read_range(message: Any, layout: FieldLayout, joints: tuple[str, ...]) -> NDArray[Any]:  # noqa: ANN401, ARG001
    return np.array([message.range], dtype=layout.dtype)


_READERS: Mapping[str, Callable[[Any, FieldLayout, tuple[str, ...]], NDArray[Any]]] = {
    "sensor_msgs/msg/JointState": _read_joints,
    "geometry_msgs/msg/PoseStamped": _read_pose,
    "geometry_msgs/msg/PointStamped": _read_point,
    "sensor_msgs/msg/Range": _read_range,
}
