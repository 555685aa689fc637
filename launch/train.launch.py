"""A training script: ``ros2 launch embodied_env train.launch.py script:=train_sac.py``."""

from typing import Any

from embodied_env.cli.launch.ros_launch import describe_launch
from embodied_env.cli.launch.targets import TARGETS


def generate_launch_description() -> Any:  # noqa: ANN401 - launch has no type stubs
    """Start the same processes as ``embodied-env launch train``."""
    return describe_launch(TARGETS["train"])
