"""A pose as a message."""

from __future__ import annotations

from typing import Any

from embodied_env.transition import FloatArray


def write_pose(pose: Any, position: FloatArray, orientation: FloatArray) -> None:  # noqa: ANN401 - a geometry_msgs/Pose
    """Fill in a pose: `position` m, shape (3,); `orientation` quaternion x, y, z, w, shape (4,)."""
    for axis, value in zip("xyz", position, strict=True):
        setattr(pose.position, axis, float(value))
    for axis, value in zip("xyzw", orientation, strict=True):
        setattr(pose.orientation, axis, float(value))
