"""Nothing in the core imports an extension, and without it everything else works."""

import ast
import functools
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import evidence
import pytest
from extension_marks import TABLES

import embodied_env
from embodied_env.core.plugin_loading import find_extension
from embodied_env.extensions import REQUIRES

pytestmark = pytest.mark.usefixtures("parsing")
PACKAGE = Path(embodied_env.__file__).parent
EXTENSIONS = sorted(folder.parent.name for folder in PACKAGE.glob("extensions/*/__init__.py"))
WITHOUT = """
import contextlib, importlib.abc, importlib.metadata, io, os, pathlib, sys, sysconfig, tempfile

import numpy as np
import mcap.reader, mcap.writer, orjson, pydantic_core, yaml, zstandard  # once, and not in each child
import embodied_env.backends.fake_backend, embodied_env.envs.embodied_env, embodied_env.record  # imports no extension

import embodied_env
import embodied_env.errors
from embodied_env.cli.main import VERBS, main

class Refused(importlib.abc.MetaPathFinder):
    def __init__(self, names):
        self.roots = [f"embodied_env.extensions.{name}" for name in names]

    def find_spec(self, name, path=None, target=None):
        if any(name == root or name.startswith(root + ".") for root in self.roots):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

def check(name, refused):
    sys.meta_path.insert(0, Refused(refused))
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(["--help"]) == 0
    with tempfile.TemporaryDirectory() as folder:
        env = embodied_env.make("arm_reach", backend="fake", record=folder + "/run", clock="virtual")
        env.reset(seed=1)
        env.step(np.zeros(env.action_space.shape))
        env.close()
        assert len([*pathlib.Path(folder).glob("run/*/manifest.json")]) == 1
    for verb, entry in VERBS.items():
        if entry.module.startswith(f"extensions.{name}."):
            with contextlib.redirect_stderr(io.StringIO()) as err:
                status = main([verb])
            lines = err.getvalue().splitlines()
            assert status != 0 and len(lines) == 1 and f"embodied_env.extensions.{name}" in lines[0], lines

    if name == "contract_init":
        with contextlib.redirect_stderr(io.StringIO()) as err:
            assert main(["contract", "init"]) != 0
        assert "embodied_env.extensions.contract_init" in err.getvalue(), err.getvalue()

    for public, module in embodied_env._LAZY_EXPORTS.items():
        if module.startswith(f"extensions.{name}"):
            try:
                getattr(embodied_env, public)
            except embodied_env.errors.MissingDependencyError as error:
                assert f"embodied_env.{public} needs embodied_env.extensions.{name}" in str(error), error
            else:
                raise AssertionError(public)
    names = {}
    exec("from embodied_env import *", names)
    assert "make" in names

from embodied_env.extensions import removed_with

assert not [name for name in sys.modules if name.startswith("embodied_env.extensions.")]
failed = []
for name in sys.argv[1:]:
    child = os.fork()
    if not child:
        try:
            check(name, removed_with(name))
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        failed.append(name)
sys.exit(f"does not work without: {failed}" if failed else 0)
"""


def nodes_if_named(file: Path, text: str) -> list[ast.AST]:
    """Return the nodes of `file` if it contains `text`, since parsing every file takes seconds."""
    source = file.read_text()
    return list(ast.walk(ast.parse(source))) if text in source else []


@functools.cache
def imports_of(file: Path) -> frozenset[str]:
    """Return the modules that `file` imports at any depth, or none if it does not name an extension."""
    nodes = nodes_if_named(file, "embodied_env.extensions.")
    names = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return frozenset(names | {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names})


def extensions_imported_by(file: Path) -> set[str]:
    return {name.split(".")[2] for name in imports_of(file) if name.startswith("embodied_env.extensions.")}


def extension_of(file: Path) -> str | None:
    parts = file.relative_to(PACKAGE).parts
    return parts[1] if parts[0] == "extensions" and len(parts) > 2 else None


def test_the_core_imports_no_extension():
    """The public names are imported for type checkers, and when they are used."""
    core = {file for file in PACKAGE.rglob("*.py") if extension_of(file) is None} - {PACKAGE / "__init__.py"}
    assert {str(file.relative_to(PACKAGE)): found for file in core if (found := extensions_imported_by(file))} == {}


def test_the_core_names_an_extension_only_in_its_tables():
    naming = {
        file.relative_to(PACKAGE).as_posix()
        for file in PACKAGE.rglob("*.py")
        if extension_of(file) is None
        for node in nodes_if_named(file, "extensions.")
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.match(r"(embodied_env\.)?extensions\.\w", node.value)
    }
    assert naming == set(TABLES)


def modules_of_the_tables() -> set[str]:
    """Return the modules of extensions that the tables of the core name, from ``extensions.`` on."""
    return {
        module
        for place in TABLES
        for module in re.findall(r'"(?:embodied_env\.)?(extensions\.[\w.]+)', (PACKAGE / place).read_text())
    }


def test_the_modules_that_the_tables_name_exist():
    for module in modules_of_the_tables():
        if module.split(".")[1] in EXTENSIONS:
            assert importlib.util.find_spec(f"embodied_env.{module}") is not None, module


def test_marks_of_tests_name_extensions_of_the_tables():
    known = {module.split(".")[1] for module in modules_of_the_tables()} | {*REQUIRES}
    named = {
        argument.value
        for file in Path(__file__).parents[1].rglob("*.py")
        for node in nodes_if_named(file, "mark.needs")
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("mark.needs")
        for argument in node.args
        if isinstance(argument, ast.Constant)
    }
    assert named > {"audit", "vector"}
    assert {*EXTENSIONS} | named <= known


def test_tests_find_the_audit_and_the_replay():
    for name in (evidence.AUDIT_RUN, evidence.AUDIT_TRANSITION, evidence.REPLAY_RUN):
        assert (find_extension(name) is not None) == (name.split(".")[2] in EXTENSIONS)


def test_extensions_import_only_the_extensions_that_they_declare():
    imported = {name: set() for name in EXTENSIONS}
    for file in (PACKAGE / "extensions").glob("*/**/*.py"):
        name = file.relative_to(PACKAGE).parts[1]
        imported[name] |= extensions_imported_by(file) - {name}
    assert {name: found for name, found in imported.items() if found} == {
        name: set(needs) for name, needs in REQUIRES.items() if name in EXTENSIONS
    }


@pytest.mark.ros  # the recorder lists the versions of ROS packages
def test_everything_else_works_without_an_extension():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *EXTENSIONS], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
