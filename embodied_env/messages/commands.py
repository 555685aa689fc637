"""Declare types of command messages and action goals, in the units of the driver."""

from __future__ import annotations

import array
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embodied_env.messages.declaration import Message, set_stamp
from embodied_env.messages.message_types import JOINT_SENSOR, TRAJECTORY, message_class

Setpoints = NDArray[np.float64]
Command = Literal["position", "position_delta", "velocity", "twist"]

TWIST_AXES: Mapping[str, Literal["rad", "m"]] = {  # the axes of a twist, each with the unit of a position along it
    **dict.fromkeys(("linear.x", "linear.y", "linear.z"), "m"),
    **dict.fromkeys(("angular.x", "angular.y", "angular.z"), "rad"),
}


class Target(NamedTuple):
    """The joints or axes that the setpoints of a message command."""

    joints: Sequence[str]  # one for each setpoint
    quantity: Literal["position", "velocity"]
    after_ns: int = 0  # when they are to be reached, after the stamp


@dataclass(frozen=True, kw_only=True)
class CommandType:
    """A type of commands."""

    type: str
    content: str  # what is published, as a clause
    commands: tuple[Command, ...] = ("position", "position_delta", "velocity")  # a contract declares one of them
    joints: int | None = None  # their number; None: any
    axes: Mapping[str, str] | None = None  # instead of joints, with their units
    header: bool = False


@dataclass(frozen=True, kw_only=True)
class CommandMessage(CommandType):
    """A message type of topics, of which each subclass writes and reads one form of setpoints."""

    has_names: bool = False  # it names the joint or axis of each setpoint; otherwise their order matters
    starts_at_stamp: bool = False  # the stamp of its header is when it starts; 0: at once

    def write(self, message: Message, setpoints: Setpoints, target: Target) -> None:
        """Write one setpoint per joint into a new message."""
        raise NotImplementedError

    def read(self, message: Message, target: Target) -> Setpoints | None:
        """Return the setpoints in the order of the joints, not checked, or None for other joints."""
        raise NotImplementedError


class _DataCommand(CommandMessage):
    def write(self, message: Message, setpoints: Setpoints, target: Target) -> None:  # noqa: ARG002 - by order
        message.data = setpoints.item() if self.joints == 1 else _doubles(setpoints)

    def read(self, message: Message, target: Target) -> Setpoints | None:  # noqa: ARG002 - by order
        return np.array(message.data, dtype=np.float64, ndmin=1)


class _JointStateCommand(CommandMessage):
    def write(self, message: Message, setpoints: Setpoints, target: Target) -> None:
        message.name = list(target.joints)
        setattr(message, target.quantity, _doubles(setpoints))

    def read(self, message: Message, target: Target) -> Setpoints | None:
        return _by_name(message.name, getattr(message, target.quantity), target.joints)


class TrajectoryCommand(CommandMessage):
    """A trajectory of one point for one command, or of several points."""

    def write(self, message: Message, setpoints: Setpoints, target: Target) -> None:
        """Write a trajectory of one point."""
        self.write_points(message, [(target.after_ns, setpoints)], target)

    def read(self, message: Message, target: Target) -> Setpoints | None:
        """Return the setpoints of the only point, or None for several points."""
        if len(message.points) != 1:
            return None
        return _by_name(message.joint_names, message.points[0].positions, target.joints)

    def write_points(self, message: Message, points: Sequence[tuple[int, Setpoints]], target: Target) -> None:
        """Write points, each with its time from the start, ns, and its positions."""
        message.joint_names = list(target.joints)
        message.points = [_point(setpoints, after_ns) for after_ns, setpoints in points]

    def read_points(self, message: Message, target: Target) -> list[tuple[int, Setpoints | None]]:
        """Return the points as in `write_points`, None for positions of other joints."""
        times = [point.time_from_start for point in message.points]
        found = [_by_name(message.joint_names, point.positions, target.joints) for point in message.points]
        return [(time.sec * 10**9 + time.nanosec, each) for time, each in zip(times, found, strict=True)]


@dataclass(frozen=True, kw_only=True)
class _TwistCommand(CommandMessage):
    content: str = "the declared axes; the others 0"
    commands: tuple[Command, ...] = ("twist",)
    has_names: bool = True

    def write(self, message: Message, setpoints: Setpoints, target: Target) -> None:
        twist = getattr(message, "twist", message)
        for name, value in zip(target.joints, setpoints.tolist(), strict=True):
            part, axis = name.split(".")
            setattr(getattr(twist, part), axis, value)

    def read(self, message: Message, target: Target) -> Setpoints | None:
        twist = getattr(message, "twist", message)
        by_axis = {name: getattr(getattr(twist, part), axis) for name in TWIST_AXES for part, axis in [name.split(".")]}
        if any(value != 0 for name, value in by_axis.items() if name not in target.joints):
            return None
        return np.array([by_axis[name] for name in target.joints], dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class CommandGoal(CommandType):
    """An action type whose goal is a gripper position and whose result is how it ended."""

    commands: tuple[Command, ...] = ("position",)
    joints: int | None = 1

    def write(self, goal: Message, joint: str, position: float, max_effort: float | None) -> None:
        """Write a new goal, with the effort limited by the server if `max_effort` is None."""
        raise NotImplementedError

    def read(self, goal: Message) -> float:
        """Return the position, NaN without one."""
        raise NotImplementedError


class _GripperGoal(CommandGoal):
    def write(self, goal: Message, joint: str, position: float, max_effort: float | None) -> None:  # noqa: ARG002
        goal.command.position, goal.command.max_effort = position, max_effort or 0.0

    def read(self, goal: Message) -> float:
        return float(goal.command.position)


class _ParallelGripperGoal(CommandGoal):
    def write(self, goal: Message, joint: str, position: float, max_effort: float | None) -> None:
        goal.command.name, goal.command.position = [joint], [position]
        goal.command.effort = [] if max_effort is None else [max_effort]

    def read(self, goal: Message) -> float:
        return float([*goal.command.position, math.nan][0])


def _doubles(values: Setpoints) -> array.array[float]:
    return array.array("d", values.tobytes())


def _by_name(names: Sequence[str], values: Sequence[float], joints: Sequence[str]) -> Setpoints | None:
    if len(names) != len(values) or sorted(names) != sorted(joints):
        return None
    by_name = dict(zip(names, values, strict=True))
    return np.array([by_name[joint] for joint in joints], dtype=np.float64)


def _point(positions: Setpoints, after_ns: int) -> Message:
    point = message_class("trajectory_msgs/msg/JointTrajectoryPoint")()
    point.positions = _doubles(positions)
    set_stamp(point.time_from_start, after_ns)
    return point


JOINT_TRAJECTORY = TrajectoryCommand(
    type=TRAJECTORY,
    commands=("position", "position_delta"),
    header=True,
    has_names=True,
    starts_at_stamp=True,
    content="`joint_names`, and one point: `positions`, `time_from_start` of one control period; or several points",
)

COMMAND_MESSAGES: Mapping[str, CommandMessage] = {  # of topics; `contract init` prefers the earlier
    each.type: each
    for each in (
        _DataCommand(type="std_msgs/msg/Float64MultiArray", content="`data`, in the order of the joints"),
        JOINT_TRAJECTORY,
        _DataCommand(type="std_msgs/msg/Float64", joints=1, content="`data`"),
        _JointStateCommand(
            type=JOINT_SENSOR, header=True, has_names=True, content="`name`, and `position` or `velocity`"
        ),
        _TwistCommand(type="geometry_msgs/msg/Twist", axes=TWIST_AXES),
        _TwistCommand(type="geometry_msgs/msg/TwistStamped", axes=TWIST_AXES, header=True),
    )
}
COMMAND_GOALS: Mapping[str, CommandGoal] = {  # types of action servers
    each.type: each
    for each in (
        _GripperGoal(
            type="control_msgs/action/GripperCommand",
            content="a goal on change: `position`, and `max_effort`, 0 if the contract has none",
        ),
        _ParallelGripperGoal(
            type="control_msgs/action/ParallelGripperCommand",
            content="a goal on change: `name`, `position`, and `effort` if the contract has one",
        ),
    )
}
COMMAND_TYPES: Mapping[str, CommandType] = {**COMMAND_MESSAGES, **COMMAND_GOALS}
