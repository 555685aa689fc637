"""ROS 2 message types that a contract may use: fields, shapes, units and precision. No ROS needed."""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from embodied_env.errors import ContractError, MissingDependencyError, install_command

Shape = tuple[int | None, ...]

SEQUENCE = re.compile(r"sequence<(?P<of>.+?)(?:, (?P<most>\d+))?>$")
ARRAY = re.compile(r"(?P<of>.+)\[(?P<size>\d+)\]$")
"""Patterns of the field types of a message class that are lists."""

_TYPE_NAME = re.compile(r"[A-Za-z]\w*/(msg|srv|action)/[A-Za-z]\w*", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class MessageField:
    """One readable field of a message type."""

    shape: Shape | None  # None: one value per joint, found by name; a None within it: declared by the contract
    units: tuple[str, ...] | None  # None: any
    dtype: str = "float64"  # the precision of the message, the same in every backend
    ranging: bool = False  # distances, for whose infinities and NaN (REP-117) a contract may declare values
    rotation: bool = False  # a unit quaternion
    saturates: bool = False  # the sensor itself cannot report more than its range, so a simulated one does not either


@dataclass(frozen=True, kw_only=True)
class SensorMessage:
    """A message type of sensors."""

    fields: Mapping[str, MessageField]
    header: bool = True  # without one, the only acquisition time is that of reception
    covariance: bool = False  # has the covariance of a pose, from which a confidence is computed
    encodings: tuple[str, ...] = ()  # the contract declares one of them


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """The pixel layout of an image; `metres_per_unit` is set for depth images."""

    channels: int
    dtype: str
    metres_per_unit: float | None = None


ENCODINGS: Mapping[str, Encoding] = {
    "rgb8": Encoding(channels=3, dtype="uint8"),
    "bgr8": Encoding(channels=3, dtype="uint8"),
    "rgba8": Encoding(channels=4, dtype="uint8"),
    "bgra8": Encoding(channels=4, dtype="uint8"),
    "mono8": Encoding(channels=1, dtype="uint8"),
    "32FC1": Encoding(channels=1, dtype="float32", metres_per_unit=1.0),
    "16UC1": Encoding(channels=1, dtype="uint16", metres_per_unit=0.001),
}
"""Of sensor_msgs/Image; the depth encodings are those of REP-118."""

JOINT_POSITIONS = MessageField(shape=None, units=("rad", "m"))
JOINT_VELOCITIES = MessageField(shape=None, units=("rad/s", "m/s"))
POSITION = MessageField(shape=(3,), units=("m",))
ORIENTATION = MessageField(shape=(4,), units=("1",), rotation=True)  # quaternion x, y, z, w
LINEAR = MessageField(shape=(3,), units=("m/s",))
ANGULAR = MessageField(shape=(3,), units=("rad/s",))
FORCE = MessageField(shape=(3,), units=("N",), saturates=True)
PIXELS = MessageField(shape=(None, None, None), units=("1",), dtype="uint8")  # height, width, channels
DISTANCES = MessageField(shape=(None,), units=("m",), dtype="float32", ranging=True)


def _scalar(*units: str, dtype: str = "float32") -> MessageField:
    return MessageField(shape=(1,), units=units, dtype=dtype)


SENSOR_MESSAGES: Mapping[str, SensorMessage] = {
    "sensor_msgs/msg/JointState": SensorMessage(
        fields={
            "position": JOINT_POSITIONS,
            "velocity": JOINT_VELOCITIES,
            "effort": MessageField(shape=None, units=("N*m", "N")),
        }
    ),
    "trajectory_msgs/msg/JointTrajectory": SensorMessage(  # of its last point
        fields={"position": JOINT_POSITIONS, "velocity": JOINT_VELOCITIES}
    ),
    "std_msgs/msg/Float64MultiArray": SensorMessage(
        fields={"data": MessageField(shape=(None,), units=None)}, header=False
    ),
    "std_msgs/msg/Float64": SensorMessage(fields={"data": MessageField(shape=(1,), units=None)}, header=False),
    "std_msgs/msg/Bool": SensorMessage(fields={"data": _scalar("1", dtype="int8")}, header=False),
    "geometry_msgs/msg/PoseStamped": SensorMessage(fields={"position": POSITION, "orientation": ORIENTATION}),
    "geometry_msgs/msg/PoseWithCovarianceStamped": SensorMessage(
        fields={
            "position": POSITION,
            "orientation": ORIENTATION,
            "covariance": MessageField(shape=(36,), units=("1",)),  # of x, y, z (m), roll, pitch, yaw (rad), by rows
        },
        covariance=True,
    ),
    "geometry_msgs/msg/PointStamped": SensorMessage(fields={"position": POSITION}),
    "geometry_msgs/msg/Twist": SensorMessage(fields={"linear": LINEAR, "angular": ANGULAR}, header=False),
    "geometry_msgs/msg/TwistStamped": SensorMessage(fields={"linear": LINEAR, "angular": ANGULAR}),
    "geometry_msgs/msg/WrenchStamped": SensorMessage(fields={"force": FORCE, "torque": replace(FORCE, units=("N*m",))}),
    "nav_msgs/msg/Odometry": SensorMessage(
        fields={"position": POSITION, "orientation": ORIENTATION, "linear": LINEAR, "angular": ANGULAR}, covariance=True
    ),
    "sensor_msgs/msg/Imu": SensorMessage(
        fields={
            "orientation": ORIENTATION,
            "angular_velocity": replace(ANGULAR, saturates=True),
            "linear_acceleration": MessageField(shape=(3,), units=("m/s^2",), saturates=True),
        }
    ),
    "sensor_msgs/msg/Range": SensorMessage(fields={"range": replace(DISTANCES, shape=(1,))}),
    "sensor_msgs/msg/LaserScan": SensorMessage(
        fields={"ranges": DISTANCES, "intensities": MessageField(shape=(None,), units=None, dtype="float32")}
    ),
    "sensor_msgs/msg/Image": SensorMessage(fields={"image": PIXELS}, encodings=tuple(ENCODINGS)),
    "sensor_msgs/msg/CompressedImage": SensorMessage(fields={"image": PIXELS}, encodings=("rgb8", "mono8")),
    "sensor_msgs/msg/PointCloud2": SensorMessage(fields={"points": replace(DISTANCES, shape=(None, 3))}),
    "sensor_msgs/msg/BatteryState": SensorMessage(
        fields={
            "percentage": _scalar("1"),
            "voltage": _scalar("V"),
            "current": _scalar("A"),
            "charge": _scalar("A*h"),
            "temperature": _scalar("degC"),
        }
    ),
}
"""By type. Any other type is read by fields with a declared `path`."""

JOINT_SENSOR = "sensor_msgs/msg/JointState"

PATH_DTYPES = ("float64", "float32", "int64", "int32", "uint32", "int16", "uint16", "int8", "uint8")
"""Types of fields with a `path`, equal to those in the message; a boolean is an int8, 0 or 1."""


@dataclass(frozen=True, kw_only=True)
class ActuatorMessage:
    """A message type of actuators. `joints` is the number of joints, None for any."""

    commands: tuple[str, ...]
    joints: int | None = None
    header: bool = False


_BY_JOINT = ("position", "position_delta", "velocity")

ACTUATOR_MESSAGES: Mapping[str, ActuatorMessage] = {
    "std_msgs/msg/Float64MultiArray": ActuatorMessage(commands=_BY_JOINT),
    "std_msgs/msg/Float64": ActuatorMessage(commands=_BY_JOINT, joints=1),
    "sensor_msgs/msg/JointState": ActuatorMessage(commands=_BY_JOINT, header=True),
    "trajectory_msgs/msg/JointTrajectory": ActuatorMessage(commands=("position", "position_delta"), header=True),
    "geometry_msgs/msg/Twist": ActuatorMessage(commands=("twist",)),
    "geometry_msgs/msg/TwistStamped": ActuatorMessage(commands=("twist",), header=True),
    "control_msgs/action/GripperCommand": ActuatorMessage(commands=("position",), joints=1),
    "control_msgs/action/ParallelGripperCommand": ActuatorMessage(commands=("position",), joints=1),
}

TRAJECTORY = "trajectory_msgs/msg/JointTrajectory"
TWIST_AXES = ("linear.x", "linear.y", "linear.z", "angular.x", "angular.y", "angular.z")


@functools.cache
def message_class(name: str) -> Any:  # noqa: ANN401 - a generated type
    """Import a message or service class by its ROS name, ``sensor_msgs/msg/JointState``.

    Raises MissingDependencyError for a package that is not installed, and ContractError for an unknown type or an
    invalid name, which imports nothing.
    """
    if _TYPE_NAME.fullmatch(name) is None:
        raise ContractError(name, f"invalid message type {name!r} (expected <package>/msg/<Type>)")
    package, kind, type_name = name.split("/")
    try:
        found = getattr(importlib.import_module(f"{package}.{kind}"), type_name, None)
    except ImportError as error:
        found = None
        if error.name != f"{package}.{kind}":
            extra = "" if importlib.util.find_spec("std_msgs") else f"{install_command('rclpy')}, or "
            raise MissingDependencyError(
                f"{package} ({error})",
                needed_for=f"the {'action' if kind == 'action' else 'message'} {name}",
                remedy=f"{extra}source a ROS 2 installation that has it "
                f"(apt install ros-$ROS_DISTRO-{package.replace('_', '-')})",
            ) from None
    if found is None:
        raise ContractError(name, f"no {kind} {type_name!r} in the installed package {package}")
    return found
