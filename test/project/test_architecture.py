"""What keeps the gate the only way to the robot, and the house as `docs/architecture.md` draws it."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from pathlib import Path

import embodied_env

PACKAGE = Path(embodied_env.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
ROS_EDGE = (
    "backends/ros/",
    "ros/relay_node.py",
    "testing/fault_injection/node.py",
    "ros/embedded_sim/lockstep_node.py",
    "ros/embedded_sim/base_node.py",
    "ros/embedded_sim/realtime_node.py",
    "ros/embedded_sim/sensor_messages.py",
    "ros/embedded_sim/spin.py",
    "cdr.py",
)
WORDS = {
    "errors",
    "arguments",
    "clock",
    "frozen",
    "bounded_json",
    "json_messages",
    "printable",
    "transition",
    "wire",
    "cdr",
    "layouts",
    "prepared",
    "ledger",
    "observation",
    "situation",
    "timeline",
    "copies",
    "counting",
    "lockstep",
    "pacing",
    "routine",
    "scheduling",
    "processes",
    "shared_memory",
    "large_messages",
    "interrupts",
    "shutdown",
    "ros_environment",
    "contract",
    "_version",
}
MAY_IMPORT = {  # beside the words: the table of docs/architecture.md
    "stages": set(),
    "info": {"stages", "safety"},
    "safety": set(),
    "homing": {"safety"},
    "guards": {"safety", "sim"},
    "tasks": set(),
    "analysis": set(),
    "latency": {"analysis"},
    "sim": {"latency"},
    "relay": {"safety", "backends"},
    "chaos": {"backends"},
    "backends": {"sim", "latency", "record", "relay"},
    "stepper": {"info", "stages", "safety", "homing", "backends", "tasks"},
    "team": set(),
    "shared_world": {"safety", "backends", "team"},
    "multi_agent": {"stepper", "info", "guards", "backends", "tasks", "shared_world", "team", "record"},
    "env": {"stepper", "info", "guards", "backends", "tasks", "latency", "record"},
    "vector": {"env", "backends"},
    "adapters": {"env", "backends"},
    "wrappers": set(),
    "record": {"latency", "safety"},
    "replaying": {"env", "record", "backends", "safety", "tasks"},
    "checkpoints": {"record"},
    "calibration": {"env", "latency", "backends", "analysis"},
    "report": {"record", "latency", "analysis"},
    "keeper": set(),
    "uses": {"relay"},
    "launching": {"uses"},
    "testing": {"safety", "backends", "chaos"},
    "cli": {"everything"},
    "": {"everything"},  # the public names
}
ROS_PACKAGES = ("rclpy", "rosgraph", "rcl_interfaces", "rosidl", "ament_index", "builtin_interfaces", "tf2_ros")
ROS_KINDS = ("_msgs", "_srvs", "_interfaces")
IMPORTS_BY_NAME = {
    "__init__.py": "the public names, when they are used",
    "backends/registry.py": "the table of backends",
    "ros/external_sim/control/__init__.py": "the table of dialects",
    "tasks/base.py": "the task's class, where it is trusted",
    "contract/message_types.py": "message classes, when ROS is there",
    "cli/__init__.py": "one verb per file",
    "policies/loader.py": "the policy that the user names",
    "record/mcap_log.py": "mcap, when it is there",
    "record/export/fields.py": "pyarrow, minari and pillow, when they are there",
    "sim/model.py": "mujoco, when it is there",
}


def place_of(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


@functools.cache
def all_nodes_of(file: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(file.read_text())))


def room_of(file: Path) -> str:
    """Return the name of the first module or folder below the package; "" for the package itself."""
    return place_of(file).removesuffix("__init__.py").split("/")[0].removesuffix(".py")


def nodes_of(file: Path, *kinds: type[ast.AST]):
    return [node for node in all_nodes_of(file) if isinstance(node, kinds)]


def name_called(call: ast.Call) -> str:
    """Return the dotted name that is called, as far as it is written out."""
    parts, node = [], call.func
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join(reversed([*parts, getattr(node, "id", "")]))


@functools.cache
def calls(file: Path) -> list[tuple[str, ast.Call]]:
    return [(name_called(node), node) for node in nodes_of(file, ast.Call)]


def test_an_approved_command_is_made_in_one_place():
    made = {place_of(file) for file in MODULES for name, _ in calls(file) if name.split(".")[-1] == "Approved"}
    assert made == {"safety/command_limiter.py"}


def test_no_approved_command_is_made_by_another_name_or_from_another():
    """`replace`, `changed`, `copy` and `__new__` make one too; and an alias would hide the call from the test above."""
    aliases = [
        f"{place_of(file)}: {alias.asname}"
        for file in MODULES
        for node in nodes_of(file, ast.ImportFrom, ast.Import)
        for alias in node.names
        if alias.name == "Approved" and alias.asname
    ]
    copied = [
        f"{place_of(file)}: {ast.unparse(call)}"
        for file in MODULES
        for name, call in calls(file)
        if name.split(".")[-1] in ("replace", "changed", "copy", "deepcopy", "__new__")
        and call.args
        and ast.unparse(call.args[0]) in ("command", "approved", "Approved", "self._command")
    ]
    assert aliases == []
    assert copied == []


def test_nobody_makes_a_read_only_array_writable_again():
    texts = {place_of(file): file.read_text().replace(" ", "") for file in MODULES}
    assert [place for place, text in texts.items() if "writeable=True" in text or "setflags(write=True" in text] == []


def test_imports_are_absolute_and_name_their_room():
    """``from embodied_env import record`` or ``from . import record`` would not show in the table of rooms."""
    for place, node in [(place_of(file), node) for file in MODULES for node in nodes_of(file, ast.ImportFrom)]:
        assert node.level == 0, place
        if node.module == "embodied_env":
            inside = {alias.name for alias in node.names} - set(embodied_env.__all__)
            assert inside <= {"record"} and (not inside or place == "__init__.py")  # noqa: PT018


def rooms_used_by(file: Path) -> set[str]:
    names = [node.module or "" for node in nodes_of(file, ast.ImportFrom)]
    names += [alias.name for node in nodes_of(file, ast.Import) for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith("embodied_env.")} - {room_of(file)}


def test_a_module_imports_only_the_rooms_that_its_own_may():
    """Also where it imports when asked: who may is a question of which way data flows, not of when."""
    beyond = {
        place_of(file): rooms
        for file in MODULES
        if "everything" not in (allowed := MAY_IMPORT.get(room_of(file), set()))
        and (rooms := rooms_used_by(file) - WORDS - allowed)
    }
    assert beyond == {}


def test_every_room_of_the_table_is_there_and_drawn_in_the_docs():
    rooms = {room_of(file) for file in MODULES} - {"_version"}
    assert rooms == (WORDS | set(MAY_IMPORT)) - {"_version"}
    drawn = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
    assert [room for room in sorted(rooms - {""}) if f"`{room}`" not in drawn and f"`{room}/`" not in drawn] == []


def ros_packages_of(file: Path) -> set[str]:
    names = [alias.name for node in nodes_of(file, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes_of(file, ast.ImportFrom)]
    roots = {name.split(".")[0] for name in names}
    return {root for root in roots if root.startswith(ROS_PACKAGES) or root.endswith(ROS_KINDS)}


def test_ros_packages_are_imported_at_the_edge_only():
    inside = {place_of(file): found for file in MODULES if (found := ros_packages_of(file))}
    assert [place for place in inside if not place.startswith(ROS_EDGE)] == []


def test_verbs_print_through_the_terminal_module_alone():
    """launch passes on the lines of the processes that it started, with their colours."""
    printing = {
        place_of(file)
        for file in MODULES
        for name, _ in calls(file)
        if name in ("print", "Console") and place_of(file).startswith("cli/")
    }
    assert printing == {"core/terminal.py", "cli/launch/__init__.py"}


def test_modules_are_imported_by_name_only_where_that_is_the_point():
    dynamic = {
        place_of(file) for file in MODULES for name, _ in calls(file) if name.endswith(("import_module", "__import__"))
    }
    assert dynamic <= set(IMPORTS_BY_NAME)


def test_the_system_clock_is_read_and_slept_on_only_by_the_clocks():
    """And by the waits at the edge of ROS, which middleware time cannot be injected into."""
    used = {
        place_of(file)
        for file in MODULES
        for name, _ in calls(file)
        if name in ("time.time", "time.sleep", "time.time_ns", "datetime.now", "datetime.datetime.now")
    }
    allowed = {"clock.py", "ros/node.py", "ros/receiver.py"}
    record = {place for place in used if place.startswith(("record/", "cli/"))}  # when a run began, for people
    assert used - record <= allowed


def test_an_episode_of_the_fake_world_runs_where_importing_ros_or_a_simulator_raises():
    script = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("rclpy", "mujoco", "mcap"):
            raise ImportError(name)

sys.meta_path.insert(0, Absent())
import embodied_env
env = embodied_env.make("arm_reach", backend="fake")
observation, info = env.reset(seed=1)
for _ in range(3):
    observation, *_ = env.step(env.action_space.sample())
assert env.observation_space.contains(observation)
env.close()
heavy = {"rclpy", "mujoco", "mcap", "matplotlib", "plotly", "torch"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_importing_the_package_imports_none_of_its_rooms():
    script = """
import sys
import embodied_env
print(sorted(name for name in sys.modules if name.startswith("embodied_env.")))
print({"pydantic", "yaml", "rich", "PIL"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["['embodied_env._version']", "set()"]


def test_every_public_name_is_there():
    assert all(getattr(embodied_env, name) is not None for name in embodied_env.__all__)
    assert set(embodied_env.__all__) <= set(dir(embodied_env))


def test_the_tree_of_errors_names_every_error_of_the_package():
    bases = {
        node.name: {base.id for base in node.bases if isinstance(base, ast.Name)}
        for module in MODULES
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.ClassDef)
    }
    known = {"EmbodiedEnvError"}
    while found := {name for name, of in bases.items() if of & known} - known:
        known |= found
    tree = embodied_env.errors.__doc__
    public = {name for name in known if not name.startswith("_")}
    assert {name for name in public if f" {name} " not in tree.replace("\n", " ")} == set()
