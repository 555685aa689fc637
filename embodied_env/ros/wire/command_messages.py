"""Convert approved commands to messages, and messages back to commands for the embedded simulator."""

from __future__ import annotations

import array
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from embodied_env.contract import ActuatorSpec, FloatArray
from embodied_env.messages.message_types import TWIST_AXES, message_class
from embodied_env.ros.transport.message_template import ArrayEncoder
from embodied_env.ros.wire.message_fields import set_stamp

Message = Any  # a generated type


def to_command(actuator: ActuatorSpec, values: FloatArray, *, stamp_ns: int, period_s: float) -> Message:
    """Return the message that commands `values`.

    Args:
        actuator: the commanded actuator.
        values: positions or velocities (`ActuatorSpec.is_velocity`) in SI units, in the order of joints; (n,).
        stamp_ns: of the header, where the message has one. A trajectory starts at its stamp; 0: at once.
        period_s: when a trajectory reaches its point, after its start.
    """
    message = message_class(actuator.type)()
    if hasattr(message, "header"):
        set_stamp(message.header.stamp, stamp_ns)
        message.header.frame_id = actuator.frame or ""
    match actuator.type:
        case "std_msgs/msg/Float64MultiArray":
            message.data = array.array("d", values.tobytes())
        case "std_msgs/msg/Float64":
            (message.data,) = values.tolist()
        case "sensor_msgs/msg/JointState":
            message.name = list(actuator.joints)
            setattr(message, "velocity" if actuator.is_velocity else "position", array.array("d", values.tobytes()))
        case "trajectory_msgs/msg/JointTrajectory":
            message.joint_names = list(actuator.joints)
            message.points = [_point(values, round(period_s * 1e9))]
        case _:  # a Twist or TwistStamped; other axes stay 0
            twist = getattr(message, "twist", message)
            for name, value in zip(actuator.joints, values.tolist(), strict=True):
                part, axis = name.split(".")
                setattr(getattr(twist, part), axis, value)
    return message


def to_trajectory(actuator: ActuatorSpec, points: Sequence[tuple[int, FloatArray]], *, stamp_ns: int) -> Message:
    """Return the JointTrajectory through points, each with its time from the start, ns, and its positions."""
    message = to_command(actuator, points[0][1], stamp_ns=stamp_ns, period_s=0.0)
    message.points = [_point(values, after_ns) for after_ns, values in points]
    return message


def from_trajectory(actuator: ActuatorSpec, message: Message) -> list[tuple[int, FloatArray]] | None:
    """Return the points of a JointTrajectory as in `to_trajectory`; None for an invalid one (`from_command`)."""
    times = [point.time_from_start.sec * 10**9 + point.time_from_start.nanosec for point in message.points]
    found = [_by_joint(message.joint_names, point.positions, actuator) for point in message.points]
    points = [values for values in found if values is not None and np.isfinite(values).all()]
    is_valid = len(points) == len(times) and all(first < then for first, then in pairwise(times))
    return list(zip(times, points, strict=True)) if is_valid else None


def from_command(actuator: ActuatorSpec, message: Message) -> FloatArray | None:
    """Return the positions or velocities that `message` commands, SI units, in the order of joints; shape (n,).

    None for a message that is not a complete command of this actuator: a joint is missing, unknown or duplicate, the
    length is wrong, a value is not finite, another axis of a twist is not 0, or the frame differs.
    """
    if actuator.frame is not None and message.header.frame_id != actuator.frame:
        return None
    values: FloatArray | None
    match actuator.type:
        case "std_msgs/msg/Float64MultiArray":
            values = np.array(message.data, dtype=np.float64)
        case "std_msgs/msg/Float64":
            values = np.array((message.data,), dtype=np.float64)
        case "sensor_msgs/msg/JointState":
            values = _by_joint(message.name, message.velocity if actuator.is_velocity else message.position, actuator)
        case "trajectory_msgs/msg/JointTrajectory":
            if len(message.points) != 1:  # not a command of one control period
                return None
            values = _by_joint(message.joint_names, message.points[0].positions, actuator)
        case _:
            values = _from_twist(getattr(message, "twist", message), actuator)
    if values is None or values.shape != (len(actuator.joints),) or not all(map(math.isfinite, values.tolist())):
        return None
    return values


def _point(positions: FloatArray, after_ns: int) -> Message:
    point = message_class("trajectory_msgs/msg/JointTrajectoryPoint")()
    point.positions = array.array("d", positions.tobytes())
    set_stamp(point.time_from_start, after_ns)
    return point


def _by_joint(names: Sequence[str], values: Sequence[float], actuator: ActuatorSpec) -> FloatArray | None:
    if len(names) != len(values) or sorted(names) != sorted(actuator.joints):
        return None
    by_name = dict(zip(names, values, strict=True))
    return np.array([by_name[joint] for joint in actuator.joints], dtype=np.float64)


def _from_twist(twist: Message, actuator: ActuatorSpec) -> FloatArray | None:
    by_axis = {name: getattr(getattr(twist, part), axis) for name in TWIST_AXES for part, axis in [name.split(".")]}
    if any(value != 0 for name, value in by_axis.items() if name not in actuator.joints):
        return None
    return np.array([by_axis[name] for name in actuator.joints], dtype=np.float64)


def command_encoder(actuator: ActuatorSpec, *, period_s: float) -> ArrayEncoder:
    """Return the encoder of an actuator's commands (`to_command`)."""
    return ArrayEncoder(
        lambda values, stamp_ns: to_command(actuator, values, stamp_ns=stamp_ns, period_s=period_s),
        len(actuator.joints),
        np.float64,
    )
