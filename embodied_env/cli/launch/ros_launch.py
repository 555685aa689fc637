"""ROS launch actions for the processes of the launch targets.

Each process runs under a supervisor (`processes.supervisor`), since ``ros2 launch`` does not stop its processes when it
gets SIGTERM or is killed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from embodied_env.cli.launch.launch_arguments import BOOL, Argument, complete_values
from embodied_env.cli.launch.targets import TARGETS
from embodied_env.errors import MissingDependencyError, UsageError
from embodied_env.processes.child_process import ProcessSpec
from embodied_env.processes.supervisor import STOP_AT_ONCE

try:
    from launch.actions import DeclareLaunchArgument, EmitEvent, ExecuteProcess, IncludeLaunchDescription, Shutdown
    from launch.events.process import ShutdownProcess
    from launch.substitutions import LaunchConfiguration
    from launch.utilities import normalize_to_list_of_substitutions
    from launch_ros.actions import Node

    from launch import Substitution
except ImportError as error:
    raise MissingDependencyError(
        f"launch ({error})", needed_for="a launch file", remedy="apt install ros-$ROS_DISTRO-launch-ros"
    ) from None

_RESPAWN_DELAY_S = 2.0
_AUTO = "auto"
_OF_LAUNCH = (
    Argument(
        "shutdown_on_exit",
        _AUTO,
        "end the whole launch with the first of these processes; auto: unless another launch file includes this one",
        (_AUTO, *BOOL),
    ),
    Argument("respawn", "false", "start a simulator or relay again when it has ended", BOOL),
)


class RosTarget:
    """The arguments and the actions of a launch target for one launch description.

    All of its processes end when one does, and so does the launch if ``shutdown_on_exit`` holds. It then fails if the
    work fails or is left running.
    """

    def __init__(self, name: str) -> None:
        """Prepare the target, whose processes follow from the arguments of the launch."""
        self._target = TARGETS[name]
        self._arguments = (*self._target.arguments, *_OF_LAUNCH)
        self._actions: dict[str, Any] = {}
        self._values: Mapping[str, str] = {}
        self._specs: Mapping[str, ProcessSpec] = {}
        self._running: list[Any] = []
        self._ends_launch = self._is_ending = False

    def arguments(self) -> list[Any]:
        """Return the declarations of the arguments."""
        return [
            DeclareLaunchArgument(
                argument.name,
                default_value=argument.default,
                description=f"{argument.description} ({', '.join(argument.allowed)})"
                if argument.allowed
                else argument.description,
            )
            for argument in self._arguments
        ]

    def node(self, role: str) -> Any:  # noqa: ANN401 - launch has no type stubs
        """Return the action of one of our nodes, with the launch's parameters and remappings."""
        self._actions[role] = action = SupervisedNode(self, role)
        return action

    def program(self, role: str) -> Any:  # noqa: ANN401
        """Return the action of another program."""
        self._actions[role] = action = SupervisedProcess(self, role)
        return action

    def start(self, action: Any, context: Any) -> bool:  # noqa: ANN401
        """Complete an action with its process, or return False if it needs none."""
        if not self._specs:
            self._resolve(action, context)
        if action.role not in self._specs:
            return False
        self._running.append(action)
        action.spec = self._specs[action.role]
        command = replace(action.spec, namespace="").supervised_command(self._values["python"])  # launch adds its own
        action.cmd[:2] = [normalize_to_list_of_substitutions(word) for word in command]
        return True

    def options(self, action: Any) -> dict[str, Any]:  # noqa: ANN401
        """Return the options of an action, those of its process as texts that are read later."""
        return {
            "output": "both",
            "cwd": _Later("folder", lambda: action.spec.folder or "."),
            "sigkill_timeout": _Later("time to end", lambda: str(action.spec.longest_end_s)),  # of the supervisor
            "respawn": _Later("respawn", lambda: str(self._respawns(action.spec)).lower()),
            "respawn_delay": _RESPAWN_DELAY_S,
            "on_exit": lambda event, context: self._end(action, event.returncode, context),
        }

    def _resolve(self, action: Any, context: Any) -> None:  # noqa: ANN401
        given = {argument.name: LaunchConfiguration(argument.name).perform(context) for argument in self._arguments}
        of_launch = {argument.name: given.pop(argument.name) for argument in _OF_LAUNCH}
        if shutil.which(given["python"]) is None:
            raise UsageError(f"no such program: python:={given['python']} (expected a Python interpreter)")
        is_top_level = _is_top_level(action, context)
        specs = self._target.processes(given, is_top_level=is_top_level)
        self._values = given | complete_values(self._target.name, _OF_LAUNCH, of_launch)
        self._ends_launch = is_top_level if (choice := self._values["shutdown_on_exit"]) == _AUTO else choice == "true"
        self._specs = {spec.role: spec for spec in specs}
        if missing := self._specs.keys() - self._actions.keys():
            raise UsageError(f"launch description without an action for: {', '.join(sorted(missing))}; add it")

    def _respawns(self, spec: ProcessSpec) -> bool:
        return self._values["respawn"] == "true" and bool(spec.module) and not spec.is_work

    def _end(self, action: Any, status: int, context: Any) -> Any:  # noqa: ANN401
        """Return the action after the end of a process, or raise ProcessFailedError."""
        spec, is_ending = self._specs[action.role], context.is_shutdown or self._is_ending
        if self._respawns(spec) and not is_ending:
            return None
        self._running.remove(action)
        if spec.may_end and status == 0:
            return None
        has_work = any(each.is_work for each in self._specs.values())
        is_failure = status != 0 or (has_work and not spec.is_work)
        if self._ends_launch and is_failure and (spec.is_work or not is_ending):
            raise ProcessFailedError(f"{spec.role} exited with status {status}")
        if is_ending:
            return None
        if self._ends_launch:
            return Shutdown(reason=f"{spec.role} exited")
        self._is_ending = True
        for other in self._running:
            with contextlib.suppress(KeyError, ProcessLookupError):  # not started yet, or just ended
                os.kill(other.process_details["pid"], STOP_AT_ONCE)
        return EmitEvent(event=ShutdownProcess(process_matcher=self._running.__contains__))


def _is_top_level(action: Any, context: Any) -> bool:  # noqa: ANN401
    """Return whether no other launch file includes the description with `action`."""
    event = context.get_locals_as_dict().get("event")  # that included the root
    entities: Any = getattr(getattr(event, "launch_description", None), "entities", ())
    if len(entities) != 1 or not isinstance(entities[0], IncludeLaunchDescription):
        return False
    return any(action in description.entities for description in entities[0].get_sub_entities())


class _Later(Substitution):  # type: ignore[misc] # launch has no type stubs
    """A text that is known once the process of an action is."""

    def __init__(self, meaning: str, read: Callable[[], str]) -> None:
        self._meaning, self._read = meaning, read

    def describe(self) -> str:
        """Return what the text means, for ``ros2 launch --print``."""
        return f"<{self._meaning}>"

    def perform(self, _context: Any) -> str:  # noqa: ANN401
        return self._read()


class SupervisedNode(Node):  # type: ignore[misc] # launch has no type stubs
    """A node of ours, whose command follows from the launch when it is executed."""

    def __init__(self, target: RosTarget, role: str) -> None:
        """Create the action of the process with a `role`."""
        self.role, self._target = role, target
        super().__init__(
            executable=LaunchConfiguration("python"),
            arguments=[_Later(f"arguments of {role}", str)],
            exec_name=role,
            namespace=_Later("namespace", lambda: self.spec.namespace),
            **target.options(self),
        )

    def execute(self, context: Any) -> Any:  # noqa: ANN401
        """Start the process, if the arguments need it."""
        return super().execute(context) if self._target.start(self, context) else None


class SupervisedProcess(ExecuteProcess):  # type: ignore[misc] # launch has no type stubs
    """Another program, as a `SupervisedNode`."""

    def __init__(self, target: RosTarget, role: str) -> None:
        """Create the action of the process with a `role`."""
        self.role, self._target = role, target
        command = [LaunchConfiguration("python"), _Later(f"arguments of {role}", str)]
        super().__init__(cmd=command, name=role, **target.options(self))

    def execute(self, context: Any) -> Any:  # noqa: ANN401
        """Start the process, if the arguments need it."""
        return super().execute(context) if self._target.start(self, context) else None


class ProcessFailedError(RuntimeError):
    """A process failed, which stops everything with exit status 1."""
