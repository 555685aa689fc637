"""Extras and their error messages, and what pip and colcon install for ``ros2 run`` and ``ros2 launch``."""

import os
import re
import runpy
import subprocess
import sys
import types
import zipfile
from pathlib import Path

import pytest

from embodied_env.cli.installation_checks import _DEVELOPMENT
from embodied_env.cli.main import VERBS
from embodied_env.errors import EXTRAS, MissingDependencyError

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def setup_arguments(tmp_path_factory):
    """Return the arguments of ``setup`` in setup.py, which writes the executables into a folder of the test."""
    given: dict = {}
    setuptools = types.SimpleNamespace(
        find_packages=lambda **_: [],
        Distribution=type("Distribution", (), {"has_data_files": None}),
        setup=lambda **arguments: given.update(arguments),
    )
    command = types.SimpleNamespace(build_py=object)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "setuptools", setuptools)
        patch.setitem(sys.modules, "setuptools.command.build_py", command)
        patch.chdir(folder := tmp_path_factory.mktemp("setup"))
        runpy.run_path(str(ROOT / "setup.py"))
    executables = [folder / file for file in dict(given["data_files"])["lib/embodied_env"]]
    return {**given, "executables": {file.name: file for file in executables}}


def packages(requirements):
    return {re.match(r"[\w.-]+", requirement)[0].removeprefix("ros-jazzy-") for requirement in requirements}


@pytest.mark.parametrize("package", EXTRAS)
def test_error_of_a_missing_package_names_the_smallest_extra_with_it(package, setup_arguments):
    extras = {name: packages(requirements) for name, requirements in setup_arguments["extras_require"].items()}
    sizes = {name: len(contents) for name, contents in extras.items() if package in contents}
    assert sizes[EXTRAS[package]] == min(sizes.values())
    message = str(MissingDependencyError(f"{package} (no module)", needed_for="this"))
    assert message.endswith(f'; pip install "embodied_env[{EXTRAS[package]}]"')


def test_extras_in_messages_come_from_one_table():
    written = [file for file in (ROOT / "embodied_env").rglob("*.py") if "embodied_env[" in file.read_text("utf-8")]
    assert [file.name for file in written] == ["errors.py"]


def test_installation_page_lists_the_extras(setup_arguments):
    page = (ROOT / "docs" / "howto" / "install.md").read_text("utf-8")
    listed = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert sorted(listed) == sorted({*setup_arguments["extras_require"]} - {*_DEVELOPMENT})


def test_each_verb_has_an_executable_for_ros2_run(setup_arguments):
    assert list(setup_arguments["executables"]) == sorted(VERBS)
    assert all(os.access(file, os.X_OK) for file in setup_arguments["executables"].values())


@pytest.mark.parametrize("program", ["lib/embodied_env/embodied-env", "bin/embodied-env"], ids=["colcon", "pip"])
def test_executable_runs_its_verb_with_the_program_of_its_prefix(tmp_path, program, setup_arguments):
    verb, script = tmp_path / "lib" / "embodied_env" / "sim", setup_arguments["executables"]["sim"].read_text()
    for file, text in ((tmp_path / program, '#!/bin/sh\necho "$@"\n'), (verb, script)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)
    done = subprocess.run([verb, "my robot", "--rate", "2"], capture_output=True, text=True, check=True)
    assert done.stdout == "sim my robot --rate 2\n"


@pytest.fixture
def source(tmp_path):
    """Return a folder with links to the sources."""
    pytest.importorskip("setuptools", reason="needs setuptools")
    source = tmp_path / "source"
    source.mkdir()
    for each in ("README.md", "config", "embodied_env", "examples", "launch", "resource", "setup.cfg"):
        (source / each).symlink_to(ROOT / each)
    for each in ("package.xml", "pyproject.toml", "setup.py"):
        (source / each).symlink_to(ROOT / each)
    return source


def build(source, kind):
    command = [sys.executable, "-c", f"from setuptools.build_meta import {kind}; {kind}('.')"]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    return next(source.glob("*.whl"))


def test_modules_of_an_earlier_build_are_not_installed(source):
    stale = source / "build" / "lib" / "embodied_env" / "removed.py"
    stale.parent.mkdir(parents=True)
    stale.touch()
    with zipfile.ZipFile(build(source, "build_wheel")) as wheel:
        names = wheel.namelist()
    assert "embodied_env/errors.py" in names
    assert "embodied_env/removed.py" not in names


def test_editable_installation_is_found_by_the_ament_index(source, tmp_path, monkeypatch):
    index = pytest.importorskip("ament_index_python", reason="needs ament_index_python, of ROS 2")
    prefix = tmp_path / "prefix"
    with zipfile.ZipFile(build(source, "build_editable")) as wheel:
        for member in wheel.infolist():
            _, is_data, place = member.filename.partition(".data/data/")
            if is_data:  # as pip does
                file = prefix / place
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(wheel.read(member))
                file.chmod(0o755 if member.external_attr >> 16 & 0o100 else 0o644)
    monkeypatch.setenv("AMENT_PREFIX_PATH", str(prefix))
    share = Path(index.get_package_share_directory("embodied_env"))
    assert (share / "launch" / "sim.launch.py").is_file()
    executables = Path(index.get_package_prefix("embodied_env"), "lib", "embodied_env")
    assert {file.name for file in executables.iterdir() if os.access(file, os.X_OK)} == {*VERBS}


def test_the_maintainer_is_that_of_package_xml(setup_arguments):
    line = f'<maintainer email="{setup_arguments["maintainer_email"]}">{setup_arguments["maintainer"]}</maintainer>'
    for file in ("package.xml", "interfaces/embodied_env_interfaces/package.xml"):
        assert line in (ROOT / file).read_text("utf-8")
