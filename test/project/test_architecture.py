"""Only the gate leads to the robot, and packages import in the order of `docs/concepts/architecture.md`."""

import ast
import functools
import graphlib
import importlib
import pkgutil
import re
import runpy
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import launch_stand_in
import pytest
from extension_marks import TABLES, was_removed

import embodied_env
from embodied_env.cli.main import VERBS
from embodied_env.extensions import REQUIRES

pytestmark = pytest.mark.usefixtures("parsing")
ROOT = Path(__file__).parents[2]
PACKAGE = Path(embodied_env.__file__).parent
PUBLIC: Any = embodied_env  # a type checker does not see its `__all__`
MODULES = sorted(PACKAGE.rglob("*.py"))
RANKS = (  # a package imports those above it and itself; the table of docs/concepts/architecture.md
    {"_version", "errors"},
    {"messages", "plugins"},
    {"contract"},
    {"processes", "timing"},
    {"core"},
    {"safety", "sim", "tasks"},
    {"policies"},
    {"record"},
    {"backends"},
    {"ros"},
    {"envs"},
    {"cli"},
    {"extensions"},
    {"testing"},
    {"__init__"},  # the public names
)
LEVELS = {  # inside a package a module imports those of its own level and of the levels above it
    "ros": ("__init__ transport/", "wire/", "robot/", "embedded_sim/", "relay/"),
    "record": (
        "arrays json_values row_schema row_types rows step_values",
        "mcap_file mcap_writer message_log row_log",
        "manifest recorder run_writer summary writer_thread",
        "__init__ episode_pairing run run_repair",
    ),
}
ROS_EDGE = (
    "ros/",
    "extensions/gazebo/",
    "extensions/runner/",
    "extensions/contract_init/graph_introspection.py",
    "testing/fault_injection/",
)
ROS_PACKAGES = ("rclpy", "rosgraph", "rcl_interfaces", "rosidl", "ament_index", "builtin_interfaces", "tf2_ros")
ROS_KINDS = ("_msgs", "_srvs", "_interfaces")
IMPORTS_BY_NAME = {
    "__init__.py": "the public names, when they are used",
    "extensions/gazebo/control/__init__.py": "the table of simulator APIs",
    "tasks/loading.py": "the task's class, where it is trusted",
    "core/plugin_loading.py": "optional packages, when they are there",
    "messages/message_types.py": "message classes, when ROS is there",
    "policies/policy_loader.py": "the policy that the user names, and the loader of its format",
    "record/mcap_file.py": "mcap, when it is there",
    "sim/world_model.py": "mujoco, when it is there",
    "extensions/vector/batched_physics.py": "mujoco's module of batches, when a world is shared",
    "extensions/identification/rollouts.py": "mujoco's module of batches, when runs are fitted",
    "sim/rendering.py": "mujoco's module of an OpenGL library, and what it imports",
}


def is_command_line(place: str) -> bool:
    return place.startswith("cli/") or place.endswith(("_cli.py", "evaluation_display.py", "live_table.py"))


def place_of(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


@functools.cache
def all_nodes_of(file: Path) -> tuple[ast.AST, ...]:
    """Return calls, imports and the other statements, since all nodes would be a million objects."""
    return tuple(node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, (ast.Call, ast.stmt)))


def package_of(file: Path) -> str:
    """Return the name of the package, or of the top-level module."""
    return place_of(file).split("/")[0].removesuffix(".py")


def nodes_of(file: Path, *kinds: type[ast.AST]):
    return [node for node in all_nodes_of(file) if isinstance(node, kinds)]


def name_called(call: ast.Call) -> str:
    """Return the dotted name of a call, as far as it is spelled out."""
    parts, node = [], call.func
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join(reversed([*parts, getattr(node, "id", "")]))


@functools.cache
def calls(file: Path) -> list[tuple[str, ast.Call]]:
    return [(name_called(node), node) for node in nodes_of(file, ast.Call)]


def test_approved_command_is_created_in_one_place():
    places = {
        "ApprovedCommand": "safety/approved_commands.py",
        "ApprovedCommandBatch": "extensions/vector/batched_gate.py",
    }
    for kind, place in places.items():
        made = {place_of(file) for file in MODULES for name, _ in calls(file) if name.split(".")[-1] == kind}
        assert made == (set() if was_removed(place) else {place})


def test_only_command_limiter_approves_commands():
    called = {place_of(file) for file in MODULES for name, _ in calls(file) if name.split(".")[-1] == "approve_command"}
    assert called == {"safety/approved_commands.py", "safety/command_limiter.py"}


def test_approved_command_is_not_aliased_or_copied():
    """`replace`, `changed`, `copy` and `__new__` create one too, and an alias would hide the call from the test above."""
    aliases = [
        f"{place_of(file)}: {alias.asname}"
        for file in MODULES
        for node in nodes_of(file, ast.ImportFrom, ast.Import)
        for alias in node.names
        if alias.name == "ApprovedCommand" and alias.asname
    ]
    copied = [
        f"{place_of(file)}: {ast.unparse(call)}"
        for file in MODULES
        for name, call in calls(file)
        if name.split(".")[-1] in ("replace", "changed", "copy", "deepcopy", "__new__")
        and call.args
        and ast.unparse(call.args[0]) in ("command", "approved", "ApprovedCommand", "self._command")
    ]
    assert aliases == []
    assert copied == []


def test_read_only_arrays_stay_read_only():
    texts = {place_of(file): file.read_text().replace(" ", "") for file in MODULES}
    assert [place for place, text in texts.items() if "writeable=True" in text or "setflags(write=True" in text] == []


def test_imports_are_absolute_and_name_the_module():
    """``from embodied_env import record`` or ``from . import record`` would hide which package is imported."""
    for place, node in [(place_of(file), node) for file in MODULES for node in nodes_of(file, ast.ImportFrom)]:
        assert node.level == 0, place
        if node.module == "embodied_env":
            inside = {alias.name for alias in node.names} - set(PUBLIC.__all__)
            assert inside == set(), place


def packages_imported_by(file: Path) -> set[str]:
    names = [node.module or "" for node in nodes_of(file, ast.ImportFrom)]
    names += [alias.name for node in nodes_of(file, ast.Import) for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith("embodied_env.")} - {package_of(file)}


def test_package_imports_only_lower_layers():
    """Lazy imports count too, since the order concerns the direction of data and not the time of the import."""
    rank = {package: number for number, packages in enumerate(RANKS) for package in packages}
    upwards = {
        place_of(file): found
        for file in MODULES
        if place_of(file) != "__init__.py"
        and (found := {package for package in packages_imported_by(file) if rank[package] >= rank[package_of(file)]})
    }
    assert upwards == {}


def test_only_schema_and_codes_read_what_a_higher_package_declares():
    """An import by name would show in no other test here."""
    readers = {
        place_of(file)
        for file in MODULES
        for name, call in calls(file)
        if name == "built_in_classes" or (name == "resolve_name" and package_of(file) in ("contract", "plugins"))
    }
    assert readers == {
        *("plugins/plugin_table.py", "contract/safety_schema.py", "contract/contract_validation.py"),
        *("contract/required_sensors.py", "contract/robot_files.py"),
        *("core/code_table.py", "safety/interlocks/plugin_interlock.py"),
    }


def name_of(file: Path) -> str:
    return ".".join(("embodied_env", *file.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


def modules_imported_by(file: Path, known: set[str]) -> set[str]:
    names = {node.module for node in nodes_of(file, ast.ImportFrom)}
    names |= {f"{node.module}.{alias.name}" for node in nodes_of(file, ast.ImportFrom) for alias in node.names}
    names |= {alias.name for node in nodes_of(file, ast.Import) for alias in node.names}
    return names & known


def test_no_import_cycles():
    """Including lazy imports and those for type checking."""
    known = {name_of(file) for file in MODULES}
    imports = {name_of(file): modules_imported_by(file, known) - {name_of(file)} for file in MODULES}
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(reversed(error.args[1])))


def is_listed(place: str, listed: str) -> bool:
    module = place.removesuffix(".py")
    return any(module.startswith(each) if each.endswith("/") else module == each for each in listed.split())


@pytest.mark.parametrize("package", LEVELS)
def test_modules_of_a_package_import_only_lower_levels(package):
    inside = [file for file in MODULES if package_of(file) == package]
    level = {
        name_of(file): number
        for number, listed in enumerate(LEVELS[package])
        for file in inside
        if is_listed(place_of(file).removeprefix(f"{package}/"), listed)
    }
    assert [place_of(file) for file in inside if name_of(file) not in level] == []
    assert [
        f"{place_of(file)} -> {other}"
        for file in inside
        for other in modules_imported_by(file, set(level))
        if level[other] > level[name_of(file)]
    ] == []


def test_names_of_modules_classes_and_public_functions_are_unique():
    """The modules of verbs and programs share the names of their entry points."""
    names = Counter(file.name for file in MODULES)
    for file in MODULES:
        found = {node.name for node in nodes_of(file, ast.ClassDef, ast.FunctionDef) if node.col_offset == 0}
        names.update(name for name in found if not re.match("_[a-z]", name))
    shared = {"__init__.py", "add_arguments", "main", "run"}
    assert {name for name, count in names.items() if count > 1} - shared == set()


PAGE = (ROOT / "docs" / "concepts" / "architecture.md").read_text()


def rows_of(heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading of the page, without its head."""
    table = re.search(r"^\|.*\n\|---.*\n((?:\|.*\n)+)", PAGE.partition(f"\n## {heading}\n")[2], flags=re.MULTILINE)
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table[1].splitlines()]


def names_in(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_packages_match_table_in_docs():
    assert {package_of(file) for file in MODULES} == set().union(*RANKS)
    rows = [(re.split(r"\W", row[0].strip("`"))[0], int(row[2])) for row in rows_of("Packages")]
    assert [rank for _, rank in rows] == sorted(rank for _, rank in rows)
    ranks = {package: rank for rank, packages in enumerate(RANKS) for package in packages}
    assert dict(rows) == {package: ranks[package] for package in ranks if package not in ("_version", "__init__")}


@pytest.mark.parametrize("package", LEVELS)
def test_levels_match_table_in_docs(package):
    (row,) = re.findall(rf"^\| `{package}` \| (.*) \|$", PAGE.partition("## Extensions")[0], flags=re.MULTILINE)
    documented = [names_in(level) for level in row.split(" < ")]
    assert documented == [[name for name in level.split() if name != "__init__"] for level in LEVELS[package]]


def keys_of_extension(name: str, modules: Mapping[str, str]) -> list[str]:
    """Return the keys of a table of the core whose modules belong to an extension."""
    return sorted(key for key, module in modules.items() if f"{module}.".startswith(f"extensions.{name}."))


def test_extensions_match_table_in_docs():
    """The tables of the core name every extension, also one that was removed."""
    texts = [(PACKAGE / place).read_text() for place in TABLES]
    named = {*REQUIRES, *re.findall(r'"(?:embodied_env\.)?extensions\.(\w+)', "".join(texts))}
    rows = {names_in(row[0])[0]: [sorted(names_in(cell)) for cell in row[2:]] for row in rows_of("Extensions")}
    assert {file.parent.name for file in (PACKAGE / "extensions").glob("*/__init__.py")} <= set(rows)
    verbs = {verb: entry.module for verb, entry in VERBS.items()}
    exports = embodied_env._LAZY_EXPORTS
    assert rows == {
        name: [keys_of_extension(name, verbs), keys_of_extension(name, exports), sorted(REQUIRES.get(name, ()))]
        for name in named
    }


def ros_packages_of(file: Path) -> set[str]:
    names = [alias.name for node in nodes_of(file, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes_of(file, ast.ImportFrom)]
    roots = {name.split(".")[0] for name in names}
    return {root for root in roots if root.startswith(ROS_PACKAGES) or root.endswith(ROS_KINDS)}


def test_ros_packages_are_imported_only_at_the_edge():
    inside = {place_of(file): found for file in MODULES if (found := ros_packages_of(file))}
    assert [place for place in inside if not place.startswith(ROS_EDGE)] == []


def test_cli_prints_only_through_terminal_module():
    """launch forwards the coloured output of its processes."""
    printing = {
        place_of(file)
        for file in MODULES
        for name, _ in calls(file)
        if name in ("print", "Console") and is_command_line(place_of(file))
    }
    assert printing == {"cli/launch/__init__.py"}


def test_first_lines_of_docstrings_are_shorter_than_90_characters():
    first_lines = {f"{place_of(file)}:1": file.read_text().partition("\n")[0].strip('"') for file in MODULES}
    for file in MODULES:
        for node in nodes_of(file, ast.ClassDef, ast.FunctionDef):
            text = ast.get_docstring(node) or ""
            first_lines[f"{place_of(file)}:{node.lineno}"] = text.partition("\n")[0]
    assert not [f"{place}: {line}" for place, line in first_lines.items() if len(line) >= 90]


def test_library_modules_do_not_print():
    """They return results and raise errors, which the command line prints."""
    printing = {
        place_of(file)
        for file in MODULES
        for name, _ in calls(file)
        if name in ("print", "say", "traceback.print_exc") or name.endswith(("make_console", "stdout.write"))
    }
    assert {place for place in printing if not is_command_line(place)} == {"core/terminal.py"}


def test_importlib_is_used_only_where_intended():
    dynamic = {
        place_of(file) for file in MODULES for name, _ in calls(file) if name.endswith(("import_module", "__import__"))
    }
    assert dynamic <= set(IMPORTS_BY_NAME)


def test_system_clock_is_used_only_by_clock_modules():
    """And by waits at the boundary to ROS and to a policy server, where time cannot be injected."""
    used = {
        place_of(file)
        for file in MODULES
        for name, _ in calls(file)
        if name in ("time.time", "time.sleep", "time.time_ns", "datetime.now", "datetime.datetime.now")
    }
    allowed = {
        "timing/clock.py",
        "ros/transport/node.py",
        "ros/transport/receiver.py",
        "extensions/remote/openpi_model.py",
    }
    for_people = ("record/", "cli/", "extensions/evaluation/", "extensions/viewers/")
    dated = {place for place in used if place.startswith(for_people)}
    assert used - dated <= allowed


def test_fake_backend_runs_without_ros_or_simulator():
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
heavy = {"rclpy", "mujoco", "mcap", "matplotlib", "torch"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_importing_package_imports_no_subpackages():
    script = """
import sys
import embodied_env
print(sorted(name for name in sys.modules if name.startswith("embodied_env.")))
print({"pydantic_core", "yaml", "rich", "PIL"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["['embodied_env._version']", "set()"]


def test_every_public_name_exists():
    removed = {name for name, module in embodied_env._LAZY_EXPORTS.items() if was_removed(module)}
    assert all(getattr(embodied_env, name) is not None for name in {*PUBLIC.__all__} - removed)
    assert set(PUBLIC.__all__) <= set(dir(embodied_env))


def test_error_tree_lists_every_error():
    bases = {
        node.name: {base.id for base in node.bases if isinstance(base, ast.Name)}
        for module in MODULES
        for node in nodes_of(module, ast.ClassDef)
    }
    known = {"EmbodiedEnvError"}
    while found := {name for name, of in bases.items() if of & known} - known:
        known |= found
    tree = embodied_env.errors.__doc__
    public = {name for name in known if not name.startswith("_")}
    assert {name for name in public if f" {name} " not in tree.replace("\n", " ")} == set()


@pytest.mark.parametrize("folder", ["benchmarks", "examples", "tools", "launch"])
def test_names_imported_by_scripts_exist(folder, monkeypatch):
    pytest.importorskip("rclpy")
    launch_stand_in.install(monkeypatch)  # for our launch files
    missing = []
    for path in sorted((ROOT / folder).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "embodied_env":
                if was_removed(node.module):
                    continue
                module = importlib.import_module(node.module)
                known = {
                    *dir(module),
                    *(found.name for found in pkgutil.iter_modules(getattr(module, "__path__", []))),
                }
                missing += [(path.name, node.module, each.name) for each in node.names if each.name not in known]
    assert missing == []


def test_every_mutant_matches_the_source():
    mutants = runpy.run_path(str(ROOT / "tools" / "mutants.py"))["MUTANTS"]
    left = [each for each in mutants if not was_removed(each.file)]
    assert [each.tests for each in left if not was_removed(each.tests) and not (ROOT / each.tests).exists()] == []
    assert [each.name for each in left if (PACKAGE / each.file).read_text().count(each.old) != 1] == []
