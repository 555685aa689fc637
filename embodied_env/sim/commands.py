"""Command messages to arrays, for the embedded simulator. They are made in `embodied_env.backends.ros.commands`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from embodied_env.contract import ActuatorSpec, FloatArray
from embodied_env.contract.messages import TWIST_AXES

Message = Any  # a generated type


def from_command(actuator: ActuatorSpec, message: Message) -> FloatArray | None:
    """Return what `message` commands: positions or velocities in SI units, in the order of the joints; shape (n,).

    None for a message that is not a whole command of this actuator: a joint is missing, unknown or named twice, the
    length is wrong, a value is not finite, an axis that the actuator does not have is not 0, the frame is another.
    """
    if actuator.frame is not None and message.header.frame_id != actuator.frame:
        return None
    values = _READERS[actuator.type](message, actuator)
    if values is None or values.shape != (len(actuator.joints),) or not all(map(math.isfinite, values.tolist())):
        return None
    return values


def _read_sequence(message: Message, actuator: ActuatorSpec) -> FloatArray | None:  # noqa: ARG001
    return np.array(message.data, dtype=np.float64)


def _read_scalar(message: Message, actuator: ActuatorSpec) -> FloatArray | None:  # noqa: ARG001
    return np.array((message.data,), dtype=np.float64)


def _read_joint_state(message: Message, actuator: ActuatorSpec) -> FloatArray | None:
    return _by_name(message.name, message.velocity if actuator.is_velocity else message.position, actuator)


def _read_trajectory(message: Message, actuator: ActuatorSpec) -> FloatArray | None:
    """Read a trajectory of one point; others are not commands of one control period."""
    if len(message.points) != 1:
        return None
    return _by_name(message.joint_names, message.points[0].positions, actuator)


def _by_name(names: Sequence[str], values: Sequence[float], actuator: ActuatorSpec) -> FloatArray | None:
    if len(names) != len(values) or sorted(names) != sorted(actuator.joints):
        return None
    by_name = dict(zip(names, values, strict=True))
    return np.array([by_name[joint] for joint in actuator.joints], dtype=np.float64)


def _read_twist(message: Message, actuator: ActuatorSpec) -> FloatArray | None:
    by_axis = {name: getattr(getattr(message, part), axis) for name in TWIST_AXES for part, axis in [name.split(".")]}
    if any(value != 0 for name, value in by_axis.items() if name not in actuator.joints):
        return None
    return np.array([by_axis[name] for name in actuator.joints], dtype=np.float64)


def _read_twist_stamped(message: Message, actuator: ActuatorSpec) -> FloatArray | None:
    return _read_twist(message.twist, actuator)


_READERS: Mapping[str, Callable[[Message, ActuatorSpec], FloatArray | None]] = {
    "std_msgs/msg/Float64MultiArray": _read_sequence,
    "std_msgs/msg/Float64": _read_scalar,
    "sensor_msgs/msg/JointState": _read_joint_state,
    "trajectory_msgs/msg/JointTrajectory": _read_trajectory,
    "geometry_msgs/msg/Twist": _read_twist,
    "geometry_msgs/msg/TwistStamped": _read_twist_stamped,
}
