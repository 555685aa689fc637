"""Launch a policy on any backend.

An example is ``ros2 launch embodied_env evaluate.launch.py backend:=mujoco``.
"""

from embodied_env.cli.launch.ros_launch import RosTarget
from launch import LaunchDescription


def generate_launch_description() -> LaunchDescription:
    """Start the same processes as ``embodied-env launch evaluate``."""
    target = RosTarget("evaluate")
    return LaunchDescription(
        [
            *target.arguments(),
            target.node("evaluation"),
        ]
    )
