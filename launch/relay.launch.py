"""Launch the relay of a contract.

An example is ``ros2 launch embodied_env relay.launch.py contract:=arm_reach``.
"""

from embodied_env.cli.launch.ros_launch import RosTarget
from launch import LaunchDescription


def generate_launch_description() -> LaunchDescription:
    """Start the same processes as ``embodied-env launch relay``."""
    target = RosTarget("relay")
    return LaunchDescription(
        [
            *target.arguments(),
            target.node("relay"),
        ]
    )
