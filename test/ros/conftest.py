"""Fixtures of the tests over ROS 2: message packages that no registry has, made when a test first asks for them."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_SUPPORT = Path(__file__).parents[1] / "support"
_ONLY_LONG = "action"  # folder of definitions that only long tests need: they take as long as all others together


@pytest.fixture(scope="session")
def message_package(request, tmp_path_factory):
    """Return a function that makes a package of `interfaces/` importable, once: the installed one, or a generated one."""

    def provide(name):
        if importlib.util.find_spec(name) is not None:
            return
        for tool in ("gcc", "g++"):
            if shutil.which(tool) is None:
                pytest.skip(f"needs {name}, or {tool} to generate it")
        if importlib.util.find_spec("rosidl_generator_py") is None:
            pytest.skip(f"needs {name}, or the generators of rosidl to generate it")
        folder = tmp_path_factory.mktemp(name)
        runs_long = any(item.get_closest_marker("long") for item in request.session.items)
        definitions = folder / "definitions" / name
        skipped = None if runs_long else shutil.ignore_patterns(_ONLY_LONG)
        shutil.copytree(_SUPPORT / "interfaces" / name, definitions, ignore=skipped)
        command = [sys.executable, _SUPPORT / "generate_interfaces.py", definitions, folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        sys.path.append(str(folder))
        importlib.invalidate_caches()

    return provide
