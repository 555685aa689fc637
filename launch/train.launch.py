"""Launch a training script.

An example is ``ros2 launch embodied_env train.launch.py script:=train_sac.py``.
"""

from embodied_env.cli.launch.ros_launch import RosTarget
from launch import LaunchDescription


def generate_launch_description() -> LaunchDescription:
    """Start the same processes as ``embodied-env launch train``."""
    target = RosTarget("train")
    return LaunchDescription(
        [
            *target.arguments(),
            target.program("training"),
        ]
    )
