"""What the contract knows of ROS 2 message types: their fields, shapes, units and precision. No ROS needed."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from embodied_env.errors import MissingDependencyError


@dataclass(frozen=True, kw_only=True)
class MessageField:
    """One readable field of a message type.

    `shape` None: one value per joint. `dtype` is the precision of the message, the same in every backend.
    """

    shape: tuple[int, ...] | None
    units: tuple[str, ...]
    dtype: str = "float64"


@dataclass(frozen=True, kw_only=True)
class SensorMessage:
    """A message type that a sensor may have."""

    fields: Mapping[str, MessageField]


POSITION = MessageField(shape=(3,), units=("m",))
ORIENTATION = MessageField(shape=(4,), units=("1",))  # quaternion x, y, z, w

SENSOR_MESSAGES: Mapping[str, SensorMessage] = {
    "sensor_msgs/msg/JointState": SensorMessage(
        fields={
            "position": MessageField(shape=None, units=("rad", "m")),
            "velocity": MessageField(shape=None, units=("rad/s", "m/s")),
            "effort": MessageField(shape=None, units=("N*m", "N")),
        }
    ),
    "geometry_msgs/msg/PoseStamped": SensorMessage(fields={"position": POSITION, "orientation": ORIENTATION}),
    "geometry_msgs/msg/PointStamped": SensorMessage(fields={"position": POSITION}),
    "sensor_msgs/msg/Range": SensorMessage(fields={"range": MessageField(shape=(1,), units=("m",), dtype="float32")}),
}

JOINT_SENSOR = "sensor_msgs/msg/JointState"

ACTUATOR_MESSAGES: tuple[str, ...] = ("std_msgs/msg/Float64MultiArray",)


def message_class(name: str) -> Any:  # noqa: ANN401 - a generated type
    """Import a message or service class by its ROS name, ``sensor_msgs/msg/JointState``. This needs ROS."""
    package, kind, type_name = name.split("/")
    try:
        module = importlib.import_module(f"{package}.{kind}")
    except ImportError as error:
        raise MissingDependencyError(
            f"{package} ({error})",
            needed_for=f"the message {name}",
            remedy='pip install "embodied_env[ros]", or source a ROS 2 installation that has it',
        ) from None
    return getattr(module, type_name)
