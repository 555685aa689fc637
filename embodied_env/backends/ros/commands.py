"""Approved commands to messages. What the embedded simulator does with them is in `embodied_env.sim.commands`."""

from __future__ import annotations

import array
import struct
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.cdr import from_cdr, to_cdr
from embodied_env.contract import ActuatorSpec, FloatArray
from embodied_env.contract.messages import message_class

Message = Any  # a generated type

_STAMP, _STAMP_AT = struct.Struct("<iI"), 4  # of a header, with which a message begins
_MARK = 0x123456789ABC0000  # no number that a message has of itself


class Prepared:
    """A message whose bytes are there already, all but its numbers and its stamp: a third of the time to publish it.

    Where they stand is learned from a message with numbers like no others, and tried with a second one.
    """

    def __init__(self, make: Callable[[NDArray[Any], int], Message], count: int, dtype: type[np.generic]) -> None:
        """Learn what `make` makes of `count` numbers of 8 bytes, and a stamp in ns."""
        self._make = make
        self._dtype = np.dtype(dtype)
        marks = np.arange(_MARK, _MARK + count).view(self._dtype)
        message = make(marks, 0)
        self._has_stamp = hasattr(message, "header")
        data = to_cdr(message)
        self._template = bytearray(data)
        self._runs: list[tuple[int, int, int, int]] = []  # of bytes: from, to in the message, from, to in the numbers
        self._fits = data[:2] == b"\x00\x01" and self._learn(data, marks) and self._is_right(type(message), marks)

    def _learn(self, data: bytes, marks: NDArray[Any]) -> bool:
        for number, mark in enumerate(marks):
            at, source = data.find(mark.tobytes()), 8 * number
            if at < 0:
                return False
            if self._runs and self._runs[-1][1] == at:
                begin, _, first, _ = self._runs.pop()
                self._runs.append((begin, at + 8, first, source + 8))
            else:
                self._runs.append((at, at + 8, source, source + 8))
        return True

    def _is_right(self, kind: Any, marks: NDArray[Any]) -> bool:  # noqa: ANN401 - a generated type
        others, stamp_ns = marks[::-1].copy(), 1_234_567_890_123_456_789
        return bool(from_cdr(self._patched(others, stamp_ns), kind) == self._make(others, stamp_ns))

    def message(self, values: NDArray[Any], stamp_ns: int = 0) -> Message:
        """Return what says `values`, to be published: bytes, or a message where its bytes are not known."""
        if not self._fits:
            return self._make(values, stamp_ns)
        return self._patched(values, stamp_ns)

    def _patched(self, values: NDArray[Any], stamp_ns: int) -> bytes:
        numbers = np.ascontiguousarray(values, dtype=self._dtype).tobytes()
        data = self._template
        for begin, end, first, last in self._runs:
            data[begin:end] = numbers[first:last]
        if self._has_stamp:
            _STAMP.pack_into(data, _STAMP_AT, *divmod(stamp_ns, 1_000_000_000))
        return bytes(data)


def prepared_command(actuator: ActuatorSpec, *, period_s: float) -> Prepared:
    """Return the message that commands an actuator (`to_command`), but for the values and the stamp."""
    make = partial(_command_at, actuator, period_s)
    return Prepared(make, len(actuator.joints), np.float64)


def _command_at(actuator: ActuatorSpec, period_s: float, values: FloatArray, stamp_ns: int) -> Message:
    return to_command(actuator, values, stamp_ns=stamp_ns, period_s=period_s)


def prepared_integers(count: int) -> Prepared:
    """Return an Int64MultiArray of so many integers."""
    kind = message_class("std_msgs/msg/Int64MultiArray")
    return Prepared(lambda values, _: kind(data=array.array("q", values.tobytes())), count, np.int64)


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
