"""Launch descriptions from the table of processes: ``launch/*.launch.py`` are one line each."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from embodied_env.errors import MissingDependencyError
from embodied_env.processes import ProcessSpec

ARGUMENTS = {
    "contract": ("arm_reach", "a contract's name or file"),
    "namespace": ("/", "absolute ROS 2 namespace of the robot"),
    "python": (sys.executable, "the interpreter that has this package, and what it needs"),
}


def describe(process: Callable[..., ProcessSpec]) -> Any:  # noqa: ANN401 - launch has no type stubs
    """Return the launch description that starts `process` of `embodied_env.processes`, with `ARGUMENTS`.

    Raises:
        MissingDependencyError: where launch or launch_ros is not installed.
    """
    try:
        from launch.actions import DeclareLaunchArgument  # noqa: PLC0415
        from launch.substitutions import LaunchConfiguration  # noqa: PLC0415
        from launch_ros.actions import Node  # noqa: PLC0415

        from launch import LaunchDescription  # noqa: PLC0415 - only ROS 2 installations have it
    except ImportError as error:
        raise MissingDependencyError(
            f"launch ({error})", needed_for="a launch file", remedy="apt install ros-$ROS_DISTRO-launch-ros"
        ) from None
    value = {name: LaunchConfiguration(name) for name in ARGUMENTS}
    spec = process(value["contract"], namespace=value["namespace"])
    declared = [
        DeclareLaunchArgument(name, default_value=default, description=description)
        for name, (default, description) in ARGUMENTS.items()
    ]
    node = Node(
        name=spec.role,
        executable=value["python"],
        arguments=["-m", spec.module, *spec.arguments],
        output="screen",
    )
    return LaunchDescription([*declared, node])
