"""Convert approved commands to messages, and messages back to commands.

Commands are in SI units, the values in messages in the units of the driver (`ActuatorSpec.to_driver`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from embodied_env.contract import ActuatorSpec, FloatArray
from embodied_env.messages.commands import COMMAND_MESSAGES, JOINT_TRAJECTORY, Target
from embodied_env.messages.declaration import set_stamp
from embodied_env.messages.message_types import message_class
from embodied_env.ros.transport.message_template import ArrayEncoder

Message = Any  # a generated type


def to_command(actuator: ActuatorSpec, values: FloatArray, *, stamp_ns: int, period_s: float) -> Message:
    """Return the message that commands `values`.

    Args:
        actuator: the commanded actuator.
        values: positions or velocities (`ActuatorSpec.is_velocity`) in SI units, in the order of joints; (n,).
        stamp_ns: of the header, where the message has one. A trajectory starts at its stamp; 0: at once.
        period_s: when a trajectory reaches its point, after its start.
    """
    return _message(actuator, actuator.to_driver(values), stamp_ns=stamp_ns, period_s=period_s)


def _message(actuator: ActuatorSpec, values: FloatArray, *, stamp_ns: int, period_s: float) -> Message:
    message = _stamped(actuator, stamp_ns)
    COMMAND_MESSAGES[actuator.type].write(message, values, _target(actuator, after_ns=round(period_s * 1e9)))
    return message


def _stamped(actuator: ActuatorSpec, stamp_ns: int) -> Message:
    message = message_class(actuator.type)()
    if COMMAND_MESSAGES[actuator.type].header:
        set_stamp(message.header.stamp, stamp_ns)
        message.header.frame_id = actuator.frame or ""
    return message


def _target(actuator: ActuatorSpec, *, after_ns: int = 0) -> Target:
    return Target(actuator.published_joints, "velocity" if actuator.is_velocity else "position", after_ns)


def to_trajectory(actuator: ActuatorSpec, points: Sequence[tuple[int, FloatArray]], *, stamp_ns: int) -> Message:
    """Return the JointTrajectory through points, each with its time from the start (ns)."""
    message, converted = _stamped(actuator, stamp_ns), [(ns, actuator.to_driver(values)) for ns, values in points]
    JOINT_TRAJECTORY.write_points(message, converted, _target(actuator))
    return message


def from_trajectory(actuator: ActuatorSpec, message: Message) -> list[tuple[int, FloatArray]] | None:
    """Return the points of a JointTrajectory, or None if invalid (`from_command`)."""
    read = [(ns, _whole(actuator, found)) for ns, found in JOINT_TRAJECTORY.read_points(message, _target(actuator))]
    points = [(ns, values) for ns, values in read if values is not None]
    is_valid = len(points) == len(read) and all(first < then for (first, _), (then, _) in pairwise(points))
    return points if is_valid else None


def from_command(actuator: ActuatorSpec, message: Message) -> FloatArray | None:
    """Return the positions or velocities in `message`, SI units, in joint order, shape (n,).

    A message that is not a complete command of this actuator gives None. A joint is missing, unknown or duplicate, the
    length is wrong, a value is not finite, another axis of a twist is not 0, the fingers of a gripper do not agree, or
    the frame differs.
    """
    if actuator.frame is not None and message.header.frame_id != actuator.frame:
        return None
    return _whole(actuator, COMMAND_MESSAGES[actuator.type].read(message, _target(actuator)))


def _whole(actuator: ActuatorSpec, values: FloatArray | None) -> FloatArray | None:
    is_whole = values is not None and values.shape == (len(actuator.published_joints),)
    if values is None or not is_whole or not all(map(math.isfinite, values.tolist())):
        return None
    return actuator.from_driver(values)


def command_encoder(actuator: ActuatorSpec, *, period_s: float) -> ArrayEncoder:
    """Return the encoder of an actuator's commands in driver units (`ActuatorSpec.to_driver`)."""
    return ArrayEncoder(
        lambda values, stamp_ns: _message(actuator, values, stamp_ns=stamp_ns, period_s=period_s),
        len(actuator.published_joints),
        np.float64,
    )
