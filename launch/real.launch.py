"""A relay and a policy on a robot, a dry run by default: ``ros2 launch embodied_env real.launch.py policy:=hold``."""

from typing import Any

from embodied_env.cli.launch.ros_launch import describe_launch
from embodied_env.cli.launch.targets import TARGETS


def generate_launch_description() -> Any:  # noqa: ANN401 - launch has no type stubs
    """Start the same processes as ``embodied-env launch real``."""
    return describe_launch(TARGETS["real"])
