"""Each launch file describes the same process as the table, checked with recording stand-ins for launch."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path

import pytest

from embodied_env.errors import MissingDependencyError
from embodied_env.launching import describe
from embodied_env.processes import relay, simulator

LAUNCH = Path(__file__).parents[2] / "launch"
PROCESSES = {"sim": simulator, "relay": relay}


class Recorded:
    """Anything of launch: keeps what it was made with."""

    def __init__(self, *arguments, **keywords):
        self.arguments, self.keywords = arguments, keywords


class LaunchConfiguration(Recorded):
    def __eq__(self, other):
        return isinstance(other, LaunchConfiguration) and self.arguments == other.arguments

    def __hash__(self):
        return hash(self.arguments)


class Node(Recorded):
    pass


class DeclareLaunchArgument(Recorded):
    pass


@pytest.fixture(params=PROCESSES)
def name(request):
    return request.param


@pytest.fixture
def description(name, monkeypatch):
    names = {
        "launch": {"LaunchDescription": Recorded},
        "launch.actions": {"DeclareLaunchArgument": DeclareLaunchArgument},
        "launch.substitutions": {"LaunchConfiguration": LaunchConfiguration},
        "launch_ros": {},
        "launch_ros.actions": {"Node": Node},
    }
    for module_name, attributes in names.items():
        module = types.ModuleType(module_name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, module_name, module)
    spec = importlib.util.spec_from_file_location(f"{name}_launch", LAUNCH / f"{name}.launch.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.generate_launch_description().arguments[0]


def test_it_starts_the_process_of_the_table(name, description):
    (node,) = [entity for entity in description if isinstance(entity, Node)]
    contract, namespace = LaunchConfiguration("contract"), LaunchConfiguration("namespace")
    process = PROCESSES[name](contract, namespace=namespace)
    assert node.keywords["arguments"] == ["-m", process.module, *process.arguments]
    assert node.keywords["executable"] == LaunchConfiguration("python")


def test_every_argument_has_a_default_and_a_description(description):
    declared = {e.arguments[0]: e.keywords for e in description if isinstance(e, DeclareLaunchArgument)}
    assert set(declared) == {"contract", "namespace", "python"}
    assert all(keywords["default_value"] and keywords["description"] for keywords in declared.values())


def test_there_is_no_other_launch_file():
    assert {file.name for file in LAUNCH.glob("*.py")} == {f"{name}.launch.py" for name in PROCESSES}


def test_without_launch_the_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "launch", None)
    with pytest.raises(MissingDependencyError, match=r"apt install ros-.*-launch-ros"):
        describe(simulator)
