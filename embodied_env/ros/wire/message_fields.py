"""Fields of sensor messages: the declaration of one field, and paths into a message."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import FieldSpec, SensorSpec
from embodied_env.contract.field_paths import steps_of
from embodied_env.contract.reading_values import InvalidReadingError

Message = Any  # a generated type
ReadField = Callable[[Message], NDArray[Any]]
"""Returns a new array of the field's shape and dtype; raises MalformedMessageError."""

_POSE_IN_POSE = {"position": "pose.pose.position", "orientation": "pose.pose.orientation"}
VECTOR_PATHS: Mapping[str, Mapping[str, str]] = {
    "geometry_msgs/msg/PoseStamped": {"position": "pose.position", "orientation": "pose.orientation"},
    "geometry_msgs/msg/PoseWithCovarianceStamped": _POSE_IN_POSE,
    "geometry_msgs/msg/PointStamped": {"position": "point"},
    "geometry_msgs/msg/Twist": {"linear": "linear", "angular": "angular"},
    "geometry_msgs/msg/TwistStamped": {"linear": "twist.linear", "angular": "twist.angular"},
    "geometry_msgs/msg/WrenchStamped": {"force": "wrench.force", "torque": "wrench.torque"},
    "nav_msgs/msg/Odometry": {**_POSE_IN_POSE, "linear": "twist.twist.linear", "angular": "twist.twist.angular"},
    "sensor_msgs/msg/Imu": {field: field for field in ("orientation", "angular_velocity", "linear_acceleration")},
}
"""Message type -> field -> path of its point, vector or quaternion."""


class MalformedMessageError(InvalidReadingError):
    """A message that does not match the contract."""


@dataclass(frozen=True, kw_only=True)
class Field:
    """One field of one sensor, with the shape and dtype of its array."""

    name: str
    sensor_name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    spec: FieldSpec
    sensor: SensorSpec


def set_stamp(stamp: Message, ns: int) -> None:
    """Write nanoseconds into a builtin_interfaces/Time or Duration."""
    stamp.sec, stamp.nanosec = divmod(ns, 1_000_000_000)


def check_length(name: str, found: int, wanted: int) -> None:
    """Raise MalformedMessageError unless `name` has as many values as the contract declares."""
    if found != wanted:
        raise MalformedMessageError(f"{name} has {found} values (expected {wanted})")


def follow(message: Message, path: str) -> Any:  # noqa: ANN401 - part of a message
    """Return the value at `path` in `message`; raises AttributeError or IndexError for an invalid path."""
    value = message
    for name, index in steps_of(path):
        value = getattr(value, name)
        if index is not None:
            value = value[index]
    return value


def path_reader(field: Field) -> ReadField:
    """Return the reader of a field with a path: a number, or with a declared shape a sequence of numbers."""
    path = field.spec.path or ""

    def read(message: Message) -> NDArray[Any]:
        try:
            value = follow(message, path)
        except IndexError:
            raise MalformedMessageError(f"{path}: no such element in the message") from None
        if field.spec.shape is not None:
            check_length(path, len(value), math.prod(field.shape))
            return np.array(np.asarray(value).reshape(field.shape), dtype=field.dtype)
        octet = isinstance(value, bytes)
        return np.array([value[0] if octet else value], dtype=field.dtype)

    return read
