"""Launch the embedded simulator and a policy on it.

An example is ``ros2 launch embodied_env sim.launch.py contract:=arm_reach``.
"""

from embodied_env.cli.launch.ros_launch import RosTarget
from launch import LaunchDescription


def generate_launch_description() -> LaunchDescription:
    """Start the same processes as ``embodied-env launch sim``."""
    target = RosTarget("sim")
    return LaunchDescription(
        [
            *target.arguments(),
            target.node("simulator"),
            target.node("evaluation"),  # with policy:=
        ]
    )
