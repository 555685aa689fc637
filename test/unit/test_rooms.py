"""The house: who may import whom, who may approve a command, and what importing the package costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import embodied_env

PACKAGE = Path(embodied_env.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

WORDS = {
    "_version",
    "errors",
    "clock",
    "transition",
    "ledger",
    "observation",
    "lockstep",
    "processes",
    "shared_memory",
    "ros_environment",
    "contract",
}
MAY_IMPORT = {
    **{word: WORDS for word in WORDS},
    "info": WORDS | {"safety"},
    "safety": WORDS | {"safety"},
    "tasks": WORDS | {"tasks"},
    "sim": WORDS | {"sim"},
    "backends.mujoco": WORDS | {"backends", "sim"},
    "backends": WORDS | {"backends"},
    "stepper": WORDS | {"info", "safety", "backends", "tasks"},
    "env": WORDS | {"stepper", "backends", "tasks", "record"},
    "latency": WORDS | {"latency"},
    "record": WORDS | {"record", "latency", "info"},
    "testing": WORDS | {"safety", "backends"},
    "cli": {"*"},
    "": {"*"},
}
MESSAGE_PACKAGES = {"rclpy", "std_msgs", "std_srvs", "sensor_msgs", "geometry_msgs", "rosgraph_msgs", "rcl_interfaces"}
HEAVY = ["rclpy", "mujoco", "pydantic", "yaml", "mcap", "rich", "plotly", "matplotlib", "torch", "pettingzoo"]


def name_of(file):
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imports_of(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module


def allowed_to(name):
    parts = name.split(".")
    for length in range(len(parts), -1, -1):
        rule = MAY_IMPORT.get(".".join(parts[:length]))
        if rule is not None and (length or name == ""):
            return rule
    raise AssertionError(f"{name} belongs to no room")


@pytest.mark.parametrize("file", MODULES, ids=name_of)
def test_a_module_imports_only_the_rooms_that_it_may(file):
    allowed = allowed_to(name_of(file))
    used = {i.split(".")[1] for i in imports_of(file) if i.startswith("embodied_env.")}
    assert "*" in allowed or used <= allowed


@pytest.mark.parametrize("file", MODULES, ids=name_of)
def test_ros_is_imported_at_its_edge_only(file):
    name = name_of(file)
    at_the_edge = name.startswith("backends.ros") or name in ("sim.node", "sim.messages")
    used = {imported.split(".")[0] for imported in imports_of(file)} & MESSAGE_PACKAGES
    assert at_the_edge or not used


def calls_of(name):
    for file in MODULES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and name == (getattr(node.func, "id", "") or getattr(node.func, "attr", "")):
                yield name_of(file)


def test_only_the_gate_approves_a_command():
    assert set(calls_of("Approved")) == {"safety.gate"}


def test_the_wall_clock_is_read_only_by_the_clock_and_at_the_edge_of_ros():
    readers = {reader for name in ("monotonic", "time_ns", "monotonic_ns", "sleep") for reader in calls_of(name)}
    assert readers <= {"clock", "backends.ros.node", "backends.ros.mujoco_ros"}


def test_importing_the_package_imports_nothing_heavy():
    script = f"import sys, embodied_env; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_fake_episode_runs_where_nothing_optional_can_be_imported():
    script = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('rclpy', 'mujoco', 'mcap', 'rich', 'plotly', 'pettingzoo'):\n"
        "            raise ImportError(f'{name} is not here')\n"
        "sys.meta_path.insert(0, Absent())\n"
        "import embodied_env\n"
        "env = embodied_env.make('arm_reach', backend='fake')\n"
        "env.reset(seed=1)\n"
        "done = False\n"
        "while not done:\n"
        "    *_, terminated, truncated, info = env.step(env.action_space.sample())\n"
        "    done = terminated or truncated\n"
        "env.close()\n"
        "print(info['step_index'])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "200"


@pytest.mark.parametrize(
    ("missing", "backend", "remedy"),
    [("rclpy", "mujoco_ros", "embodied_env[ros]"), ("mujoco", "mujoco", "embodied_env[sim]")],
)
def test_a_missing_package_is_named_with_its_remedy(missing, backend, remedy):
    script = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.split('.')[0] == {missing!r}:\n"
        "            raise ImportError(f'{name} is not here')\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from embodied_env.errors import MissingDependencyError\n"
        "import embodied_env\n"
        "try:\n"
        f"    env = embodied_env.make('arm_reach', backend={backend!r})\n"
        "    env.reset()\n"
        "except MissingDependencyError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert missing in done.stdout
    assert remedy in done.stdout
