"""Readings in another frame: what can be transformed, how, and the seam to whoever knows the transforms (tf2)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from rclpy.clock import ClockType
from rclpy.node import Node
from rclpy.time import Time

from embodied_env.contract import FloatArray, SensorSpec
from embodied_env.errors import MissingDependencyError
from embodied_env.ros.message_fields import MalformedMessageError, Message
from embodied_env.ros.sensor_readers import SensorReader, Values, stamp_ns
from embodied_env.ros.setup_checks import apt_package


class NoTransformError(MalformedMessageError):
    """Nobody knows how one frame stood to another at a time; the text says why."""


@dataclass(frozen=True, kw_only=True)
class Transform:
    """Where a source frame stands in a target frame: `translation` m, shape (3,); `rotation` x, y, z, w, shape (4,)."""

    translation: FloatArray
    rotation: FloatArray


class Frames(Protocol):
    """Knows how frames stood to each other."""

    def lookup(self, target: str, source: str, stamp_ns: int) -> Transform:
        """Return where `source` stood in `target` at `stamp_ns` of the messages' clock; raises NoTransformError."""
        ...


def as_it_comes(sensor: SensorSpec) -> SensorSpec:
    """Return `sensor` as it is before it is transformed: it may be in any frame."""
    return replace(sensor, frame=None)


class TransformedReader(SensorReader):
    """Reads a sensor's messages in the frame `target`, each at the time of its stamp."""

    def __init__(self, name: str, sensor: SensorSpec, target: str, frames: Frames) -> None:
        """Read `sensor`, checked by `check_frame`; raises like `SensorReader`."""
        super().__init__(name, as_it_comes(sensor))
        self._target = target
        self._frames = frames

    def read(self, message: Message) -> Values:
        """Return field -> array; raises MalformedMessageError, also where nobody knows the transform."""
        values = super().read(message)
        if message.header.frame_id == self._target:
            return values
        try:
            return transformed(values, self._transform(message))
        except ValueError as error:
            raise NoTransformError(f"the transform to {self._target}: {error}") from None

    def is_ready(self, message: Message) -> bool:
        """Return whether there is nothing to wait for: the transform is there, or never will be."""
        if message.header.frame_id in ("", self._target) or stamp_ns(message) <= 0:
            return True
        try:
            self._transform(message)
        except NoTransformError:
            return False
        return True

    def _transform(self, message: Message) -> Transform:
        source, at_ns = message.header.frame_id, stamp_ns(message)
        if source == "" or at_ns <= 0:
            raise NoTransformError(f"the message has no {'frame' if source == '' else 'stamp'} to transform it by")
        transform = self._frames.lookup(self._target, source, at_ns)
        if not (np.isfinite(transform.translation).all() and np.isfinite(transform.rotation).all()):
            raise NoTransformError(f"the transform from {source} to {self._target} is not finite")
        return transform


class Tf2Frames:
    """Listens to ``/tf`` and ``/tf_static`` with the node, and is turned with it."""

    def __init__(self, node: Node) -> None:
        """Begin to listen; raises MissingDependencyError without tf2_ros."""
        try:
            import tf2_ros  # noqa: PLC0415 - an optional package, needed only where a profile has frames
        except ImportError as error:
            raise MissingDependencyError(
                f"tf2_ros ({error})",
                needed_for="backends.real.tf",
                remedy=f"apt install {apt_package('tf2_ros')}, and source its setup.bash",
            ) from None
        self._error = tf2_ros.TransformException
        self._buffer = tf2_ros.Buffer()
        self._listener = tf2_ros.TransformListener(self._buffer, node, spin_thread=False)

    def lookup(self, target: str, source: str, stamp_ns: int) -> Transform:
        """Return where `source` stood in `target` at `stamp_ns`; raises NoTransformError. It never waits."""
        time = Time(nanoseconds=stamp_ns, clock_type=ClockType.ROS_TIME)
        try:
            found = self._buffer.lookup_transform(target, source, time).transform
        except self._error as error:
            raise NoTransformError(f"no transform from {source} to {target} at its stamp: {error}") from None
        at, by = found.translation, found.rotation
        return Transform(translation=np.array([at.x, at.y, at.z]), rotation=np.array([by.x, by.y, by.z, by.w]))


# ------------------------------------------------------------------------------------------------------- the maths


def unit(rotation: FloatArray) -> FloatArray:
    """Return a quaternion of length 1; raises ValueError for one that is not finite, or has no length."""
    length = float(np.linalg.norm(rotation))
    if not 0.5 < length < 2.0:  # also NaN: such a thing is no rotation with a rounding error
        raise ValueError(f"{rotation.tolist()} is no rotation")
    return rotation / length


def rotated(rotation: FloatArray, vector: FloatArray) -> FloatArray:
    """Return `vector`, shape (3,), turned by a unit quaternion x, y, z, w."""
    return matrix(rotation) @ vector


def product(first: FloatArray, second: FloatArray) -> FloatArray:
    """Return the quaternion that turns by `second`, then by `first`; all are x, y, z, w (Hamilton)."""
    u, v = first[:3], second[:3]
    w = first[3] * second[3] - float(u @ v)
    return np.array([*(first[3] * v + second[3] * u + np.cross(u, v)), w], dtype=np.float64)


def matrix(rotation: FloatArray) -> FloatArray:
    """Return the rotation matrix, shape (3, 3), of a unit quaternion x, y, z, w."""
    x, y, z, w = rotation.tolist()
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )


def rotated_covariance(rotation: FloatArray, covariance: FloatArray) -> FloatArray:
    """Return the covariance of x, y, z, roll, pitch, yaw, shape (36,) by rows, about the axes of the target frame."""
    turn = np.zeros((6, 6))
    turn[:3, :3] = turn[3:, 3:] = matrix(rotation)
    turned: FloatArray = turn @ covariance.reshape(6, 6) @ turn.T
    return turned.reshape(36)


def transformed(values: Values, transform: Transform) -> Values:
    """Return a reading's fields in the target frame, in their precision; raises ValueError for what is no rotation."""
    rotation = unit(transform.rotation)
    moved: Values = {}
    for field, value in values.items():
        exact = np.asarray(value, dtype=np.float64)
        if field == "position":
            exact = rotated(rotation, exact) + transform.translation
        elif field == "orientation":
            exact = product(rotation, exact)
        else:
            exact = rotated_covariance(rotation, exact)
        moved[field] = exact.astype(value.dtype)
    return moved
