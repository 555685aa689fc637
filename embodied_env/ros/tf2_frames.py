"""Transforms between frames from tf2."""

from __future__ import annotations

import numpy as np
from rclpy.clock import ClockType
from rclpy.node import Node
from rclpy.time import Time

from embodied_env.errors import MissingDependencyError
from embodied_env.ros.setup_checks import apt_package
from embodied_env.ros.transforms import NoTransformError, Transform


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
