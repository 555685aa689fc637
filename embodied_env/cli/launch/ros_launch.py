"""ROS launch descriptions of the launch targets, for ``launch/*.launch.py``."""

from __future__ import annotations

from typing import Any

from embodied_env.cli.launch.targets import LaunchTarget
from embodied_env.errors import MissingDependencyError
from embodied_env.processes.child_process import ProcessSpec


def describe_launch(target: LaunchTarget) -> Any:  # noqa: ANN401 - launch has no type stubs
    """Return the launch description of `target`; its processes are resolved when it starts.

    Each process runs under a supervisor (`processes.supervisor`), since ``ros2 launch`` does not stop its processes
    when it gets SIGTERM or is killed. All end when one does; the launch fails if the work fails or is interrupted.

    Raises:
        MissingDependencyError: when launch or launch_ros is not installed.
    """
    try:
        from launch.actions import DeclareLaunchArgument, OpaqueFunction
        from launch.substitutions import LaunchConfiguration
        from launch_ros.actions import Node  # noqa: F401 - a missing package is reported here

        from launch import LaunchDescription
    except ImportError as error:
        raise MissingDependencyError(
            f"launch ({error})", needed_for="a launch file", remedy="apt install ros-$ROS_DISTRO-launch-ros"
        ) from None

    def start(context: Any) -> list[Any]:  # noqa: ANN401
        given = {argument.name: LaunchConfiguration(argument.name).perform(context) for argument in target.arguments}
        specs = target.processes(given)
        has_work = any(spec.is_work for spec in specs)
        return [_action(spec, given["python"], has_work=has_work) for spec in specs]

    declared = [
        DeclareLaunchArgument(
            argument.name,
            default_value=argument.default,
            description=argument.description,
            choices=list(argument.allowed) or None,
        )
        for argument in target.arguments
    ]
    return LaunchDescription([*declared, OpaqueFunction(function=start)])


def _action(spec: ProcessSpec, python: str, *, has_work: bool) -> Any:  # noqa: ANN401
    """Return the action that starts `spec`: a node if it is ours, so that it gets remappings and parameters."""
    from launch.actions import ExecuteProcess, Shutdown
    from launch_ros.actions import Node

    def ended(event: Any, context: Any) -> Any:  # noqa: ANN401
        """Shut down; a failure, interrupted work, or work left running is an error."""
        if spec.may_end and event.returncode == 0:
            return None
        is_failure = event.returncode != 0 or (has_work and not spec.is_work)
        if is_failure and (spec.is_work or not context.is_shutdown):
            raise ProcessFailedError(f"{spec.role} exited with status {event.returncode}")
        return Shutdown(reason=f"{spec.role} exited")

    command = spec.supervised_command(python)
    options: dict[str, Any] = {
        "output": "screen",
        "cwd": spec.folder or None,
        "sigkill_timeout": str(spec.longest_end_s),  # time for the supervisor to kill its child
        "on_exit": ended,
    }
    if spec.module:
        return Node(executable=command[0], arguments=command[1:], **options)
    return ExecuteProcess(cmd=command, **options)


class ProcessFailedError(RuntimeError):
    """A process failed; launch then stops everything with exit status 1."""
