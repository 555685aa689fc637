"""Transform readings to another frame with tf2."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from rclpy.clock import ClockType
from rclpy.node import Node
from rclpy.time import Time

from embodied_env.contract import FloatArray, SensorSpec
from embodied_env.errors import MissingDependencyError
from embodied_env.messages.declaration import InvalidReadingError, Message, Values
from embodied_env.ros.transport.setup_checks import apt_package
from embodied_env.ros.wire.sensor_buffer import SensorReader, stamp_ns


class NoTransformError(InvalidReadingError):
    """No transform between two frames at the requested time."""


@dataclass(frozen=True, kw_only=True)
class Transform:
    """Pose of a source in a target frame, in m, shape (3,), and as quaternion xyzw, shape (4,)."""

    translation: FloatArray
    rotation: FloatArray


class Frames(Protocol):
    """Source of transforms between frames."""

    def lookup(self, target: str, source: str, stamp_ns: int) -> Transform:
        """Return the transform at `stamp_ns` of the messages' clock, or raise NoTransformError."""
        ...


def as_it_comes(sensor: SensorSpec) -> SensorSpec:
    """Return `sensor` without its frame, as its messages are before the transform."""
    return replace(sensor, frame=None)


class TransformedReader(SensorReader):
    """Reads a sensor's messages in the frame `target`, each at the time of its stamp."""

    def __init__(self, name: str, sensor: SensorSpec, target: str, frames: Frames) -> None:
        """Prepare to read `sensor`, which `robot_profile.check_frame` accepted."""
        super().__init__(name, as_it_comes(sensor))
        self._target = target
        self._frames = frames

    def read(self, message: Message) -> dict[str, NDArray[Any]]:
        """Return the arrays by field, or raise InvalidReadingError, also without a transform."""
        values = super().read(message)
        if message.header.frame_id == self._target:
            return values
        try:
            return transformed(values, self._transform(message))
        except ValueError as error:
            raise NoTransformError(f"invalid transform to {self._target}: {error}") from None

    def is_ready(self, message: Message) -> bool:
        """Return False while the message's transform is not available, but may become so."""
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
            raise NoTransformError(f"the message has no {'frame' if source == '' else 'stamp'}, so no transform")
        transform = self._frames.lookup(self._target, source, at_ns)
        if not (np.isfinite(transform.translation).all() and np.isfinite(transform.rotation).all()):
            raise NoTransformError(f"the transform from {source} to {self._target} is not finite")
        return transform


class Tf2Frames:
    """Transforms of ``/tf`` and ``/tf_static``, received by the node's executor."""

    def __init__(self, node: Node) -> None:
        """Subscribe, or raise MissingDependencyError without tf2_ros."""
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
        """Return the transform at `stamp_ns`, or raise NoTransformError without waiting."""
        time = Time(nanoseconds=stamp_ns, clock_type=ClockType.ROS_TIME)
        try:
            found = self._buffer.lookup_transform(target, source, time).transform
        except self._error as error:
            raise NoTransformError(f"no transform from {source} to {target} at the stamp: {error}") from None
        at, by = found.translation, found.rotation
        return Transform(translation=np.array([at.x, at.y, at.z]), rotation=np.array([by.x, by.y, by.z, by.w]))


def unit(rotation: FloatArray) -> FloatArray:
    """Return the normalised quaternion, or raise ValueError if its norm is not about 1."""
    length = float(np.linalg.norm(rotation))
    if not 0.5 < length < 2.0:  # not a rounding error; also NaN
        raise ValueError(f"{rotation.tolist()} is not a rotation")
    return rotation / length


def product(first: FloatArray, second: FloatArray) -> FloatArray:
    """Return the Hamilton product, x, y, z, w, which rotates by `second`, then by `first`."""
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
    """Return a pose covariance (x, y, z, roll, pitch, yaw), shape (36,), in the target frame."""
    both = np.zeros((6, 6))
    both[:3, :3] = both[3:, 3:] = matrix(rotation)
    rotated_rows: FloatArray = both @ covariance.reshape(6, 6) @ both.T
    return rotated_rows.reshape(36)


def transformed(values: Values, transform: Transform) -> dict[str, NDArray[Any]]:
    """Return fields in the target frame and their dtypes, or raise ValueError (bad rotation)."""
    rotation = unit(transform.rotation)
    moved: dict[str, NDArray[Any]] = {}
    for field, value in values.items():
        exact = np.asarray(value, dtype=np.float64)
        if field == "position":
            exact = matrix(rotation) @ exact + transform.translation
        elif field == "orientation":
            exact = product(rotation, exact)
        else:
            exact = rotated_covariance(rotation, exact)
        moved[field] = exact.astype(value.dtype)
    return moved
