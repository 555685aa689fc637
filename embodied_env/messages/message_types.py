"""Import message classes by their ROS names without needing ROS itself."""

from __future__ import annotations

import functools
import importlib.util
import re
from typing import Any

from embodied_env.errors import ContractError, MissingDependencyError, install_command

# Patterns of the field types of a message class that are lists.
SEQUENCE = re.compile(r"sequence<(?P<of>.+?)(?:, (?P<most>\d+))?>$")
ARRAY = re.compile(r"(?P<of>.+)\[(?P<size>\d+)\]$")
_TYPE_NAME = re.compile(r"[A-Za-z]\w*/(msg|srv|action)/[A-Za-z]\w*", re.ASCII)

JOINT_SENSOR, TRAJECTORY = "sensor_msgs/msg/JointState", "trajectory_msgs/msg/JointTrajectory"

PATH_DTYPES = ("float64", "float32", "int64", "int32", "uint32", "int16", "uint16", "int8", "uint8")
"""Types of fields with a `path`, equal to those in the message; a boolean is an int8, 0 or 1."""


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
            if package == "embodied_env_interfaces":
                remedy = "build the folder interfaces of the repository with colcon, and source the workspace"
            else:
                apt = f"apt install ros-$ROS_DISTRO-{package.replace('_', '-')}"
                remedy = f"{extra}source a ROS 2 installation that has it ({apt})"
            raise MissingDependencyError(
                f"{package} ({error})",
                needed_for=f"the {'action' if kind == 'action' else 'message'} {name}",
                remedy=remedy,
            ) from None
    if found is None:
        raise ContractError(name, f"no {kind} {type_name!r} in the installed package {package}")
    return found
