"""The relay of a contract: ``ros2 launch embodied_env relay.launch.py contract:=arm_reach``."""

import sys

from launch.actions import DeclareLaunchArgument
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from embodied_env.processes import relay
from launch import LaunchDescription

ARGUMENTS = {
    "contract": ("arm_reach", "a contract's name or file"),
    "namespace": ("/", "absolute ROS 2 namespace of the robot"),
    "python": (sys.executable, "the interpreter that has this package"),
}


def generate_launch_description() -> LaunchDescription:
    """Start the same process as ``embodied-env relay``, from the same table."""
    value = {name: LaunchConfiguration(name) for name in ARGUMENTS}
    process = relay(value["contract"], namespace=value["namespace"])
    return LaunchDescription(
        [
            *(
                DeclareLaunchArgument(name, default_value=default, description=description)
                for name, (default, description) in ARGUMENTS.items()
            ),
            Node(
                name=process.role,
                executable=value["python"],
                arguments=["-m", process.module, *process.arguments],
                output="screen",
            ),
        ]
    )
