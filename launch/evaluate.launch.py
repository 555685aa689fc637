"""A policy on any backend: ``ros2 launch embodied_env evaluate.launch.py backend:=mujoco``."""

from typing import Any

from embodied_env.cli.launch.ros_launch import describe_launch
from embodied_env.cli.launch.targets import TARGETS


def generate_launch_description() -> Any:  # noqa: ANN401 - launch has no type stubs
    """Start the same processes as ``embodied-env launch evaluate``."""
    return describe_launch(TARGETS["evaluate"])
