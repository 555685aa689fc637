"""The embedded simulator, and a policy on it: ``ros2 launch embodied_env sim.launch.py contract:=arm_reach``."""

from typing import Any

from embodied_env.cli.launch.ros_launch import describe_launch
from embodied_env.cli.launch.targets import TARGETS


def generate_launch_description() -> Any:  # noqa: ANN401 - launch has no type stubs
    """Start the same processes as ``embodied-env launch sim``."""
    return describe_launch(TARGETS["sim"])
