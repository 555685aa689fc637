"""Convert approved commands to messages, and the messages that the embedded simulator receives back."""

from __future__ import annotations

import array
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import ActuatorSpec, FloatArray
from embodied_env.contract.message_types import TWIST_AXES, message_class
from embodied_env.ros.serialization.template import MessageTemplate

Message = Any  # a generated type

_VALUES = "values"


def to_command(actuator: ActuatorSpec, values: FloatArray, *, stamp_ns: int, period_s: float) -> Message:
    """Return the message that commands `values`.

    Args:
        actuator: whose command it is.
        values: positions or velocities (`ActuatorSpec.is_velocity`) in SI units, in the order of joints; (n,).
        stamp_ns: for the header, where the message has one. A trajectory begins at its stamp; 0: at once.
        period_s: when the point of a trajectory is to be reached, after its beginning.
    """
    message = message_class(actuator.type)()
    if hasattr(message, "header"):
        _set_time(message.header.stamp, stamp_ns)
        message.header.frame_id = actuator.frame or ""
    _WRITERS[actuator.type](message, values, actuator, round(period_s * 1e9))
    return message


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


class CommandEncoder:
    """Encodes numbers and a stamp into messages of one topic, by a template."""

    def __init__(self, make: Callable[[NDArray[Any], int], Message], count: int, dtype: type[np.generic]) -> None:
        """Prepare the template of the messages that `make` returns for `count` numbers and a stamp in ns."""
        self._dtype = np.dtype(dtype)
        example = {_VALUES: np.zeros(count, dtype)}
        self._template = MessageTemplate(lambda numbers, stamp_ns: make(numbers[_VALUES], stamp_ns), example)

    def encode(self, values: NDArray[Any], stamp_ns: int = 0) -> Message:
        """Return the message to publish: its bytes, or the message itself where the template does not fit."""
        return self._template.encode({_VALUES: np.ascontiguousarray(values, self._dtype)}, stamp_ns)


def command_encoder(actuator: ActuatorSpec, *, period_s: float) -> CommandEncoder:
    """Return the encoder of the messages that command an actuator (`to_command`)."""
    make = partial(_command_at, actuator, period_s)
    return CommandEncoder(make, len(actuator.joints), np.float64)


def integer_encoder(count: int) -> CommandEncoder:
    """Return the encoder of an Int64MultiArray of `count` integers."""
    kind = message_class("std_msgs/msg/Int64MultiArray")
    return CommandEncoder(lambda values, _: kind(data=array.array("q", values.tobytes())), count, np.int64)


def _command_at(actuator: ActuatorSpec, period_s: float, values: FloatArray, stamp_ns: int) -> Message:
    return to_command(actuator, values, stamp_ns=stamp_ns, period_s=period_s)


def _set_time(time: Message, ns: int) -> None:
    time.sec, time.nanosec = divmod(ns, 1_000_000_000)


def _write_sequence(message: Message, values: FloatArray, actuator: ActuatorSpec, period_ns: int) -> None:  # noqa: ARG001
    message.data = array.array("d", values.tobytes())


def _write_scalar(message: Message, values: FloatArray, actuator: ActuatorSpec, period_ns: int) -> None:  # noqa: ARG001
    (message.data,) = values.tolist()


def _write_joint_state(message: Message, values: FloatArray, actuator: ActuatorSpec, period_ns: int) -> None:  # noqa: ARG001
    message.name = list(actuator.joints)
    setattr(message, "velocity" if actuator.is_velocity else "position", array.array("d", values.tobytes()))


def _write_trajectory(message: Message, values: FloatArray, actuator: ActuatorSpec, period_ns: int) -> None:
    point = message_class("trajectory_msgs/msg/JointTrajectoryPoint")()
    point.positions = array.array("d", values.tobytes())
    _set_time(point.time_from_start, period_ns)
    message.joint_names = list(actuator.joints)
    message.points = [point]


def _write_twist(message: Message, values: FloatArray, actuator: ActuatorSpec, period_ns: int) -> None:  # noqa: ARG001
    """Axes that the actuator does not have stay 0: they are commanded to rest."""
    for name, value in zip(actuator.joints, values.tolist(), strict=True):
        part, axis = name.split(".")
        setattr(getattr(message, part), axis, value)


def _write_twist_stamped(message: Message, values: FloatArray, actuator: ActuatorSpec, period_ns: int) -> None:
    _write_twist(message.twist, values, actuator, period_ns)


_WRITERS: Mapping[str, Callable[[Message, FloatArray, ActuatorSpec, int], None]] = {
    "std_msgs/msg/Float64MultiArray": _write_sequence,
    "std_msgs/msg/Float64": _write_scalar,
    "sensor_msgs/msg/JointState": _write_joint_state,
    "trajectory_msgs/msg/JointTrajectory": _write_trajectory,
    "geometry_msgs/msg/Twist": _write_twist,
    "geometry_msgs/msg/TwistStamped": _write_twist_stamped,
}


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
