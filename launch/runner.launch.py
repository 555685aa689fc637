"""Launch a relay and a policy that runs on request.

An example is ``ros2 launch embodied_env runner.launch.py policy:=hold``.
"""

from embodied_env.cli.launch.ros_launch import RosTarget
from launch import LaunchDescription


def generate_launch_description() -> LaunchDescription:
    """Start the same processes as ``embodied-env launch runner``."""
    target = RosTarget("runner")
    return LaunchDescription(
        [
            *target.arguments(),
            target.node("relay"),  # unless relay:=false
            target.node("runner"),
        ]
    )
