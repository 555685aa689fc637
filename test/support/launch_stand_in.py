"""Stand-ins for the parts of launch and launch_ros that our launch files use."""

import contextlib
import importlib
import importlib.util
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "launch"
OURS = "embodied_env.cli.launch.ros_launch"


class LaunchDescription:
    def __init__(self, entities):
        self.entities = entities


class Substitution:
    def perform(self, context):
        raise NotImplementedError


class LaunchConfiguration(Substitution):
    def __init__(self, name):
        self.name = name

    def perform(self, context):
        return context.launch_configurations[self.name]


class DeclareLaunchArgument:
    def __init__(self, name, *, default_value, description):
        self.name, self.default_value, self.description = name, default_value, description

    def execute(self, context):
        context.launch_configurations.setdefault(self.name, self.default_value)


class ExecuteProcess:
    role: str

    def __init__(self, *, cmd, name=None, **options):
        self.cmd, self.name, self.options = list(map(words, cmd)), name, options
        self.process_details = {}

    def execute(self, context):
        self.command = ["".join(text(part, context) for part in word) for word in self.cmd]
        self.settings = {name: text(value, context) for name, value in self.options.items()}
        context.started[self.role] = self

    def exits(self, status, context):
        event = types.SimpleNamespace(returncode=status)
        return self.options["on_exit"](event, context)


class Node(ExecuteProcess):
    def __init__(self, *, executable, arguments, exec_name, **options):
        super().__init__(cmd=[executable, *arguments, "--ros-args"], name=exec_name, **options)


class IncludeLaunchDescription:
    def __init__(self, description, launch_arguments=()):
        self.description, self.launch_arguments = description, dict(launch_arguments)

    def get_sub_entities(self):
        return [self.description]

    def execute(self, context):
        context.launch_configurations |= self.launch_arguments
        for entity in self.description.entities:
            entity.execute(context)


class Shutdown:
    def __init__(self, reason):
        self.reason = reason


class EmitEvent:
    def __init__(self, event):
        self.event = event


class ShutdownProcess:
    def __init__(self, process_matcher):
        self.process_matcher = process_matcher


class Context:
    """A launch that runs the description `root`."""

    def __init__(self, root):
        self.launch_configurations, self.started, self.is_shutdown = {}, {}, False
        self._event = types.SimpleNamespace(launch_description=root)
        for entity in root.entities:
            entity.execute(self)

    def get_locals_as_dict(self):
        return {"event": self._event}

    def exits(self, role, status):
        """Return what our handler of the end of a process returns."""
        return self.started[role].exits(status, self)


def words(value):
    return value if isinstance(value, list) else [value]


def text(value, context):
    return value.perform(context) if isinstance(value, Substitution) else value


def description_of(name):
    spec: Any = importlib.util.spec_from_file_location(f"{name}_launch", FOLDER / f"{name}.launch.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.generate_launch_description()


def launched(name, **given):
    """Return a launch of our file `name`, as ``ros2 launch`` starts it."""
    return Context(LaunchDescription([IncludeLaunchDescription(description_of(name), given)]))


def included(name, **given):
    ours = IncludeLaunchDescription(description_of(name), given)
    return Context(LaunchDescription([IncludeLaunchDescription(LaunchDescription([ours]))]))


@contextlib.contextmanager
def running(action):
    """Give an action a process that sleeps."""
    with subprocess.Popen(["sleep", "60"]) as process:
        action.process_details = {"pid": process.pid}
        yield process
        process.kill()


def install(monkeypatch):
    """Put the stand-ins, and our module that imports them, in the place of the packages."""
    names = {
        "launch": (LaunchDescription, Substitution),
        "launch.actions": (DeclareLaunchArgument, EmitEvent, ExecuteProcess, IncludeLaunchDescription, Shutdown),
        "launch.events": (),
        "launch.events.process": (ShutdownProcess,),
        "launch.substitutions": (LaunchConfiguration,),
        "launch.utilities": (),
        "launch_ros": (),
        "launch_ros.actions": (Node,),
    }
    for module_name, classes in names.items():
        module = types.ModuleType(module_name)
        vars(module).update({each.__name__: each for each in classes})
        monkeypatch.setitem(sys.modules, module_name, module)
    vars(sys.modules["launch.utilities"])["normalize_to_list_of_substitutions"] = words
    monkeypatch.delitem(sys.modules, OURS, raising=False)
    ours = importlib.import_module(OURS)
    monkeypatch.setitem(sys.modules, OURS, ours)  # so that it is removed with its stand-ins
    return ours
