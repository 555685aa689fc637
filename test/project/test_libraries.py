"""The lines of the documentation for other libraries, each with the version of docs/reference/libraries.md."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from extension_marks import was_removed
from pages import ROOT, commands_of, run_blocks, section_of, text_of
from virtual_environments import make_environment

PAGE = "reference/libraries"
VERSIONS = dict(re.findall(r"^\| `([\w@/-]+)` \| ([\d.]+) \|", text_of(PAGE), re.MULTILINE))
HELPERS = {"h5py", "jax", "pyarrow<20", "tensorboard", "tyro"}  # packages that the others need, of any version
LINES = {  # section with the lines: its page, and the packages of the virtual environment
    "polars and duckdb": (PAGE, ["polars", "duckdb"]),
    "rosbags": (PAGE, ["rosbags"]),
    "Minari": (PAGE, ["minari", "jax", "h5py"]),
    "TorchRL": (PAGE, ["torchrl"]),
    "Tianshou": (PAGE, ["tianshou"]),
    "NumPy 1.26": (PAGE, ["numpy", "pyarrow<20"]),
    "Cyclone DDS": (PAGE, ["cyclonedds"]),
    "colcon": (PAGE, ["colcon-common-extensions"]),
}
TESTS = {  # tests of this suite that need the packages
    ("ray",): ["test/project/test_training_rllib.py", "test/extensions/ray/test_ray_workers.py"],
    ("h5py", "jax", "minari", "supersuit", "tianshou", "torchrl"): ["test/envs/test_numeric_info_libraries.py"],
}


def environment_with(folder, *packages):
    """Return the Python of a virtual environment with the documented versions, which are printed."""
    names = {"ray": "ray[rllib]", "tianshou": "tianshou[eval]"}
    pins = [names.get(each, each) + ("" if each in HELPERS else f"=={VERSIONS[each]}") for each in packages]
    python = make_environment(folder / "environment", *pins)
    print(*pins)
    return python


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder that is removed after the test, since virtual environments are large."""
    monkeypatch.setenv("EMBODIED_ENV", str(ROOT))
    yield tmp_path
    shutil.rmtree(tmp_path)


@pytest.mark.long
@pytest.mark.ros
@pytest.mark.parametrize("title", LINES)
def test_documented_lines_run(title, folder, domain_id):
    page, packages = LINES[title]
    print(run_blocks(section_of(text_of(page), title), folder, python=environment_with(folder, *packages)))


@pytest.mark.long
@pytest.mark.ros
@pytest.mark.parametrize("packages", TESTS, ids="-".join)
def test_tests_of_optional_packages_pass(packages, folder, domain_id):
    python = environment_with(folder, *packages)
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", "-m", "long or not long", "-W", "default"]
    tests = [path for path in TESTS[packages] if not was_removed(path)]
    subprocess.run([python, "-m", "pytest", *options, *tests], cwd=ROOT, check=True)


@pytest.mark.long
def test_cleanrl_trains_unchanged_but_for_the_documented_lines(folder):
    """CleanRL is no package, so `EMBODIED_ENV_CLEANRL` is a checkout of its repository."""
    if not (checkout := os.environ.get("EMBODIED_ENV_CLEANRL")):
        pytest.skip("set EMBODIED_ENV_CLEANRL to a checkout of github.com/vwxyzjn/cleanrl")
    shutil.copytree(Path(checkout) / "cleanrl", folder / "cleanrl")
    printed = run_blocks(
        section_of(text_of(PAGE), "CleanRL"), folder, python=environment_with(folder, "tyro", "tensorboard")
    )
    assert "SPS:" in printed


def test_every_library_that_is_run_has_a_version_and_lines():
    used = [*(packages for _, packages in LINES.values()), *TESTS]
    assert {package for packages in used for package in packages} <= {*VERSIONS, *HELPERS}
    for title, (page, _) in LINES.items():
        assert commands_of(section_of(text_of(page), title))
