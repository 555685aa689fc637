"""Launch descriptions from the table of uses: ``launch/*.launch.py`` are one line each."""

from __future__ import annotations

from typing import Any

from embodied_env.cli.launch.targets import LaunchTarget
from embodied_env.core.process.child import ProcessSpec
from embodied_env.errors import MissingDependencyError


def describe(use: LaunchTarget) -> Any:  # noqa: ANN401 - launch has no type stubs
    """Return the launch description of `use`: its arguments, and its processes, worked out when they are started.

    Each process runs under a keeper (`core.process.supervisor`): ``ros2 launch`` that gets SIGTERM, or is killed, ends
    without a word to what it has started. All end when one does; when the work has failed, so has the launch.

    Raises:
        MissingDependencyError: where launch or launch_ros is not installed.
    """
    try:
        from launch.actions import DeclareLaunchArgument, OpaqueFunction
        from launch.substitutions import LaunchConfiguration
        from launch_ros.actions import Node  # noqa: F401 - missed here rather than at the start

        from launch import LaunchDescription
    except ImportError as error:
        raise MissingDependencyError(
            f"launch ({error})", needed_for="a launch file", remedy="apt install ros-$ROS_DISTRO-launch-ros"
        ) from None

    def start(context: Any) -> list[Any]:  # noqa: ANN401
        said = {argument.name: LaunchConfiguration(argument.name).perform(context) for argument in use.arguments}
        specs = use.processes(said)
        has_work = any(spec.is_work for spec in specs)
        return [_action(spec, said["python"], has_work=has_work) for spec in specs]

    declared = [
        DeclareLaunchArgument(
            argument.name,
            default_value=argument.default,
            description=argument.description,
            choices=list(argument.allowed) or None,
        )
        for argument in use.arguments
    ]
    return LaunchDescription([*declared, OpaqueFunction(function=start)])


def _action(spec: ProcessSpec, python: str, *, has_work: bool) -> Any:  # noqa: ANN401
    """Return the action that starts `spec`: a node, so that remappings and parameters of the launch reach it."""
    from launch.actions import ExecuteProcess
    from launch_ros.actions import Node

    command = spec.supervised_command(python)
    rest: dict[str, Any] = {
        "output": "screen",
        "cwd": spec.folder or None,
        "sigkill_timeout": str(spec.longest_end_s),  # a keeper knows how to insist: it must live for that
        "on_exit": _on_exit(spec, has_work=has_work),
    }
    if spec.module:
        return Node(executable=command[0], arguments=command[1:], **rest)
    return ExecuteProcess(cmd=command, **rest)


def _on_exit(spec: ProcessSpec, *, has_work: bool) -> Any:  # noqa: ANN401
    """Return what happens when `spec` has ended: everything else ends; a failure, or work left alone, is an error."""
    from launch.actions import Shutdown

    def ended(event: Any, context: Any) -> Any:  # noqa: ANN401
        if spec.may_end and event.returncode == 0:
            return None
        is_failure = event.returncode != 0 or (has_work and not spec.is_work)
        if is_failure and not context.is_shutdown:
            raise ProcessFailedError(f"{spec.role} has ended with exit status {event.returncode}")
        return Shutdown(reason=f"{spec.role} has ended")

    return ended


class ProcessFailedError(RuntimeError):
    """A process of a launch has failed: launch ends everything for it, and has the exit status 1."""
