"""Fixtures of the whole suite: a ROS 2 domain per test, and a watch on what a test leaves behind."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib.util
import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
import ros_domains
from hypothesis import HealthCheck, settings

from embodied_env.core.process.shared_memory import remove_orphaned_segments, segments_of

_LASTING_SURROUNDINGS = {"ROS_DOMAIN_ID": str(ros_domains.FOR_MODULES), "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"}
_SETTLED_S = 5.0
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Fast DDS puts its segments


# Every change is tested with the same examples; .ci/long draws new ones. How long an example takes is not tested.
settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("suite", settings.get_profile("random"), derandomize=True, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))

os.environ.setdefault("FASTRTPS_DEFAULT_PROFILES_FILE", str(Path(__file__).parent / "discovery.xml"))
for _library in ("OMP", "OPENBLAS"):  # several test processes share the cores, and each has small matrices
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give each worker whole files, and one worker all files with the marker `realtime`."""
    from xdist.scheduler import LoadFileScheduling

    realtime = {
        file.relative_to(config.rootpath).as_posix()
        for file in Path(__file__).parent.glob("*/test_*.py")
        if "pytest.mark.realtime" in file.read_text(encoding="utf-8")
    }

    class FileScheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return "realtime" if file in realtime else file

    return FileScheduling(config, log)


def pytest_collection_modifyitems(items):
    if importlib.util.find_spec("rclpy") is None:
        skip = pytest.mark.skip(reason="needs rclpy: install the extra ros, or source a ROS 2 installation")
        for item in items:
            if item.get_closest_marker("ros"):
                item.add_marker(skip)


def pytest_collection_finish():
    """Keep what collection made out of later garbage collections, which then take milliseconds."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def interruptible():
    """Let SIGINT interrupt the test and its child processes.

    A shell without job control ignores SIGINT in background jobs, execnet in its workers; child processes inherit that.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def domain_id(monkeypatch, tmp_path):
    """Give the test a ROS 2 domain of its own on this host only, and its logs a folder of its own."""
    number = next(ros_domains.FOR_TESTS)
    monkeypatch.setenv("ROS_DOMAIN_ID", str(number))
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    monkeypatch.setenv("ROS_LOG_DIR", str(tmp_path / "ros_log"))
    monkeypatch.delenv("RMW_IMPLEMENTATION", raising=False)
    return number


@pytest.fixture(scope="module")
def lasting_domain(tmp_path_factory):
    """Return a context in which what lives for all tests of a module is started; it gives the ROS 2 domain."""
    folder = str(tmp_path_factory.mktemp("lasting") / "ros_log")

    @contextlib.contextmanager
    def surroundings():
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {**_LASTING_SURROUNDINGS, "ROS_LOG_DIR": folder}.items():
                patch.setenv(name, value)
            patch.delenv("RMW_IMPLEMENTATION", raising=False)
            yield ros_domains.FOR_MODULES

    return surroundings


@pytest.fixture(scope="module")
def lasting(lasting_domain):
    """Return a function that makes and resets an environment for all tests of a module: each begins with a reset."""
    made = []

    def start(make, **options):
        with lasting_domain() as domain_id:
            made.append(make(domain_id=domain_id, **options))
            made[-1].reset(seed=0)
        return made[-1]

    yield start
    for env in made:
        env.close()


@pytest.fixture(autouse=True)
def nothing_is_left_behind(request):
    """Fail a test that leaves a thread, a child process or a Fast DDS shared-memory segment.

    What a killed process leaves in shared memory is removed: it could not do so itself.
    """
    kills = request.node.get_closest_marker("kills") is not None
    uses_ros = request.node.get_closest_marker("ros") is not None
    if uses_ros:
        request.getfixturevalue("domain_id")
    threads = set(threading.enumerate())
    children = _children()
    names = _names_of_segments()
    segments = _segments() if uses_ros else names
    yield
    end = time.monotonic() + 5.0
    while time.monotonic() < end:
        left = {
            "threads": {thread.name for thread in set(threading.enumerate()) - threads},
            "processes": _children() - children,
            "shared memory": _left_by_the_dead() if kills else _nobodys(_new_segments(segments, names)),
        }
        if not any(left.values()):
            return
        time.sleep(0.05)
    pytest.fail(f"left behind: { {kind: names for kind, names in left.items() if names} }")


def _children():
    if not _has_children():
        return set()  # as of most tests: to look at every process of the machine takes longer than they do
    return {(p.pid, p.name()) for p in psutil.Process().children(recursive=True) if p.is_running()}


def _has_children():
    """Whether this process has a child, as far as Linux says; True where it does not say."""
    try:
        lists = [task.joinpath("children").read_text() for task in Path("/proc/self/task").iterdir()]
    except OSError:
        return True
    return any(lists)


def _names_of_segments():
    """Names of all Fast DDS segments of this machine."""
    if not _SHARED_MEMORY.is_dir():
        return set()
    return {_base(file.name) for file in _SHARED_MEMORY.iterdir() if "fastrtps" in file.name}


def _new_segments(segments, names):
    """Segments that were not there before; a test without ROS that adds no name needs no look at who uses them."""
    return set() if segments is names and names >= _names_of_segments() else _segments() - segments


def _segments():
    """Fast DDS segments that this process uses, or, where it runs alone, that no process uses."""
    found = _names_of_segments()
    ours = segments_of(os.getpid()) if found else set()
    if ros_domains.WORKERS > 1:
        return found & ours
    return {name for name in found if name in ours or not _is_in_use(name)}


def _is_in_use(name):
    """Whether a living process holds the lock of a segment."""
    try:
        with (_SHARED_MEMORY / f"{name}_el").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _nobodys(names):
    """Those of the segments that no other living process uses: another suite may run on this machine."""
    found = set(names)
    for process in psutil.process_iter() if found else ():
        if process.pid != os.getpid():
            found -= segments_of(process.pid)
    return found


def _left_by_the_dead():
    """Remove the segments that no living process uses; return those that are still there."""
    names = _names_of_segments() - segments_of(os.getpid())
    unused = _nobodys({name for name in names if not _is_in_use(name) and not _is_new(name)})
    return unused.difference(remove_orphaned_segments(unused))


def _is_new(name):
    """Whether another worker may have made this segment a moment ago, and be about to use it."""
    try:
        age_s = time.time() - (_SHARED_MEMORY / name).stat().st_ctime
    except OSError:
        return ros_domains.WORKERS > 1
    return ros_domains.WORKERS > 1 and age_s < _SETTLED_S


def _base(name):
    return name.removeprefix("sem.").removesuffix("_mutex").removesuffix("_el")
