"""The fixture `message_package` of message packages that are on no registry and are generated once per machine."""

import fcntl
import hashlib
import importlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

_SUPPORT = Path(__file__).parent
_ROOT = Path(__file__).parents[2]
_GENERATED = _ROOT / "build" / "interfaces"
_PLACES = (_ROOT / "interfaces", _SUPPORT / "interfaces")  # ours, and those of others
_BUILD_FILES = shutil.ignore_patterns("package.xml", "CMakeLists.txt")
_GENERATOR = _SUPPORT / "generate_interfaces.py"
_ONLY_LONG = {"simulation_interfaces": "action", "control_msgs": "Parallel*"}  # they take as long as all others


@pytest.fixture(scope="session")
def message_package(request):
    """Return a function that makes a package of `interfaces/` importable once, installed or generated."""

    def provide(name):
        if importlib.util.find_spec(name) is not None:
            return
        for tool in ("gcc", "g++"):
            if shutil.which(tool) is None:
                pytest.skip(f"needs {name}, or {tool} to generate it")
        if importlib.util.find_spec("rosidl_generator_py") is None:
            pytest.skip(f"needs {name}, or the generators of rosidl to generate it")
        runs_long = any(item.get_closest_marker("long") for item in request.session.items)
        sys.path.append(str(_generated(name, with_actions=runs_long)))
        importlib.invalidate_caches()

    return provide


def _generated(name, *, with_actions):
    """Return the folder of a package, which is generated unless one from the same definitions exists."""
    source = next(place / name for place in _PLACES if (place / name).is_dir())
    files = [_GENERATOR, *sorted(source.rglob("*.*"))]
    key = hashlib.sha256(repr((with_actions, sys.version, _installed())).encode())
    for file in files:
        key.update(file.name.encode() + file.read_bytes())
    target = _GENERATED / f"{name}-{key.hexdigest()[:16]}"
    target.parent.mkdir(parents=True, exist_ok=True)
    with (_GENERATED / "lock").open("w") as lock, tempfile.TemporaryDirectory(dir=_GENERATED) as temporary:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the workers of a run generate it only once
        if target.exists():
            return target
        folder = Path(temporary)
        definitions = folder / "definitions" / name
        is_whole = with_actions or name not in _ONLY_LONG
        ignored = _BUILD_FILES if is_whole else shutil.ignore_patterns(_ONLY_LONG[name])
        shutil.copytree(source, definitions, ignore=ignored)
        command = [sys.executable, _GENERATOR, definitions, folder / "out"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        shutil.rmtree(folder / "out" / f"build_{name}")
        (folder / "out").rename(target)
    return target


def _installed():
    """Return the installed packages needed to build a generated one, and their newest modification time."""
    modules = [importlib.import_module(name).__file__ or "" for name in ("numpy", "rclpy", "rosidl_generator_py")]
    return [(file, Path(file).stat().st_mtime_ns) for file in modules]
