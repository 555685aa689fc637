"""Values of joints in joint states and trajectories, found by name."""

from __future__ import annotations

import array
import math
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.messages.declaration import (
    Column,
    Content,
    Field,
    InvalidReadingError,
    Message,
    MessageField,
    Read,
    SensorMessage,
    Shape,
)
from embodied_env.messages.message_types import JOINT_SENSOR, TRAJECTORY, message_class


@dataclass(frozen=True, kw_only=True)
class _JointValues(MessageField):
    """One value per joint of a JointState, in the contract's order."""

    shape: Shape | None = None
    column: Column = "joints"

    def reader(self, field: Field) -> Read:
        pick, get = _picker(field), attrgetter(field.name)
        return lambda message: pick(message.name, get(message))


@dataclass(frozen=True, kw_only=True)
class _PointValues(_JointValues):
    def reader(self, field: Field) -> Read:
        pick, get = _picker(field), attrgetter(self.place)

        def read(message: Message) -> NDArray[Any]:
            if not message.points:
                raise InvalidReadingError("the trajectory has no points")
            return pick(message.joint_names, get(message.points[-1]))

        return read


def _picker(field: Field) -> Callable[[list[str], Any], NDArray[Any]]:
    """Return the function that selects joints by name, in the contract's order."""
    joints = list(field.joints)

    def pick(names: list[str], data: Any) -> NDArray[Any]:  # noqa: ANN401 - an array.array, or one of numpy
        if len(data) != len(names):
            raise InvalidReadingError(f"{field.name} has {len(data)} values for {len(names)} names")
        values = np.array(data, dtype=np.float64)
        if names == joints:
            return values
        places = {name: place for place, name in enumerate(names)}
        if len(places) != len(names):
            raise InvalidReadingError(f"duplicate joint in {names}")
        missing = [joint for joint in joints if joint not in places]
        if missing:
            raise InvalidReadingError(f"no {field.name} of {', '.join(missing)}; the message has {names}")
        return values[[places[joint] for joint in joints]]

    return pick


class _JointState(SensorMessage):
    def write(self, message: Message, content: Content) -> None:
        message.name, columns = _columns(content)
        for field, column in columns.items():
            setattr(message, field, column)


class _JointTrajectory(SensorMessage):
    def write(self, message: Message, content: Content) -> None:
        message.joint_names, columns = _columns(content)
        point = message_class("trajectory_msgs/msg/JointTrajectoryPoint")()
        for field, column in columns.items():
            setattr(point, self.fields[field].place, column)
        message.points = [point]


def _columns(content: Content) -> tuple[list[str], dict[str, array.array[float]]]:
    """Return the joints of all fields, and the values of each with NaN for missing joints."""
    joints = {field: content.fields[field].joints for field in content.values}
    names = list(dict.fromkeys(joint for listed in joints.values() for joint in listed))
    columns = {}
    for field, listed in joints.items():
        by_name = dict(zip(listed, content.values[field].tolist(), strict=True))
        columns[field] = array.array("d", [by_name.get(name, math.nan) for name in names])
    return names, columns


_POSITION, _VELOCITY, _EFFORT = ("rad", "m"), ("rad/s", "m/s"), ("N*m", "N")
_MALFORMED = "a declared joint is missing; a joint is named twice; the array does not have one value per name"

MESSAGES = (
    _JointState(
        type=JOINT_SENSOR,
        fields={
            "position": _JointValues(units=_POSITION),
            "velocity": _JointValues(units=_VELOCITY),
            "effort": _JointValues(units=_EFFORT),
        },
        of_robot=True,
        invalid=_MALFORMED,
    ),
    _JointTrajectory(
        type=TRAJECTORY,
        fields={
            "position": _PointValues(units=_POSITION, place="positions"),
            "velocity": _PointValues(units=_VELOCITY, place="velocities"),
        },
        of_robot=True,
        invalid=f"it has no point (the last one is read); {_MALFORMED}",
    ),
)
