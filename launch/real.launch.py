"""Launch a relay and a policy on a robot, as a dry run by default.

An example is ``ros2 launch embodied_env real.launch.py policy:=hold``.
"""

from embodied_env.cli.launch.ros_launch import RosTarget
from launch import LaunchDescription


def generate_launch_description() -> LaunchDescription:
    """Start the same processes as ``embodied-env launch real``."""
    target = RosTarget("real")
    return LaunchDescription(
        [
            *target.arguments(),
            target.node("relay"),  # unless relay:=false
            target.node("evaluation"),
        ]
    )
