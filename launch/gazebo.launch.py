"""Launch Gazebo, its bridge, and a policy or a training.

An example is ``ros2 launch embodied_env gazebo.launch.py headless:=true``.
"""

from embodied_env.cli.launch.ros_launch import RosTarget
from launch import LaunchDescription


def generate_launch_description() -> LaunchDescription:
    """Start the same processes as ``embodied-env launch gazebo``."""
    target = RosTarget("gazebo")
    return LaunchDescription(
        [
            *target.arguments(),
            target.program("gazebo"),
            target.program("bridge"),
            target.program("description"),  # if the world has a .urdf file
            target.program("controllers"),  # if it has a .controllers.yaml file
            target.program("training"),  # with script:=
            target.node("evaluation"),  # unless policy:=none
        ]
    )
