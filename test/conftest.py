"""Fixtures of all tests, with a ROS 2 domain per test and checks for leaked threads, processes and segments."""

import ast
import contextlib
import fcntl
import functools
import gc
import importlib.util
import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import ros_domains
from extension_marks import is_installed
from message_packages import message_package  # noqa: F401 - a fixture

from embodied_env.processes.child_process import remove_orphaned_segments, segments_of

# Keep bytecode even with PYTHONDONTWRITEBYTECODE, or each worker and child process would compile it again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

_LASTING_SURROUNDINGS = {"ROS_DOMAIN_ID": str(ros_domains.FOR_MODULES), "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"}
_SETTLED_S = 5.0
_LEFT_S = 20.0  # in which a busy machine ends what a test has stopped
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Fast DDS puts its segments

os.environ.setdefault("FASTRTPS_DEFAULT_PROFILES_FILE", str(Path(__file__).parent / "discovery.xml"))
for _library in ("OMP", "OPENBLAS"):  # several test processes share the cores, and each uses small matrices
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give each worker whole files, and one worker all tests with the marker `realtime`."""
    from xdist.scheduler import LoadFileScheduling

    class FileScheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file, _, name = nodeid.partition("::")
            return "realtime" if _is_realtime(config.rootpath / file, name) else file

    return FileScheduling(config, log)


def _is_realtime(file, name):
    """Return whether the test `name` of a file, or the whole file, has the marker `realtime`."""
    marked = _realtime_tests(file)
    return "pytestmark" in marked or name.partition("[")[0] in marked


@functools.cache
def _realtime_tests(file):
    """Return the functions of a file that have the marker, and `pytestmark` if the file has it.

    The process that schedules the tests does not import them.
    """
    source = file.read_text(encoding="utf-8")
    if "pytest.mark.realtime" not in source:
        return frozenset()
    found = set()
    for node in ast.parse(source).body:
        marks = node.decorator_list if isinstance(node, ast.FunctionDef) else [node]
        if "pytest.mark.realtime" in "".join(map(ast.unparse, marks)):
            found.add(node.name if isinstance(node, ast.FunctionDef) else "pytestmark")
    return frozenset(found)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Start each worker in another third of each folder, so that one compiles a test file and the others read it."""
    report = yield
    if isinstance(collector, pytest.Directory):
        start = len(report.result) * ros_domains.WORKER // ros_domains.WORKERS
        report.result = report.result[start:] + report.result[:start]
    return report


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path)  # every worker has the same order
    if importlib.util.find_spec("rclpy") is None:
        skip = pytest.mark.skip(reason="needs rclpy: install the extra ros, or source a ROS 2 installation")
        for item in items:
            if item.get_closest_marker("ros"):
                item.add_marker(skip)
    for item in items:
        needed = {name for marker in item.iter_markers("needs") for name in marker.args}
        if absent := sorted(name for name in needed if not is_installed(name)):
            item.add_marker(pytest.mark.skip(reason=f"needs the extension {', '.join(absent)}, which was removed"))


def pytest_runtest_setup(item):
    """Lower the priority of the workers that have no test that measures wall time."""
    if "PYTEST_XDIST_WORKER" in os.environ and os.nice(0) == 0 and not _is_realtime(item.path, item.name):
        os.nice(5)


class _FailureLog:
    """Prints the name of each failed test at once, so that an interrupted or killed run shows which had failed."""

    def __init__(self, terminal):
        self._terminal = terminal

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self._terminal.write_line(f"\nFAILED {report.nodeid} ({report.when})", red=True)


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    if (terminal := config.pluginmanager.get_plugin("terminalreporter")) is not None:
        config.pluginmanager.register(_FailureLog(terminal))
    _load_hypothesis_profile()


def _load_hypothesis_profile():
    """Test every change with the same examples; .ci/long draws new ones, four times as many. Deadlines are off."""
    from hypothesis import HealthCheck, settings  # pytest compiles it itself, and now keeps the result

    settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    suite = settings.get_profile("random")
    settings.register_profile("suite", suite, max_examples=25, derandomize=True, print_blob=True)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))


def pytest_collection_finish():
    """Exclude the collected objects from later garbage collections, which then take milliseconds."""
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
    """Give the test its own ROS 2 domain, limited to this host, and its own log folder."""
    number = next(ros_domains.FOR_TESTS)
    monkeypatch.setenv("ROS_DOMAIN_ID", str(number))
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    monkeypatch.setenv("ROS_LOG_DIR", str(tmp_path / "ros_log"))
    monkeypatch.delenv("RMW_IMPLEMENTATION", raising=False)
    return number


@pytest.fixture(scope="module")
def lasting_domain(tmp_path_factory):
    """Return a context manager that starts objects for a whole module and yields the ROS 2 domain."""
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
    """Return a function that makes an environment shared by the tests of a module, each of which resets it."""
    made = []

    def start(make, **options):
        with lasting_domain() as domain_id:
            made.append(make(domain_id=domain_id, **options))
            made[-1].reset(seed=0)
        return made[-1]

    yield start
    for env in made:
        env.close()


@pytest.fixture
def close_later():
    """Return a function that returns its argument, which is closed after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda made: stack.enter_context(contextlib.closing(made))


def _threads():
    """Return the threads of Python, without those of libraries, which are named "Dummy-n" once they have logged."""
    return {thread for thread in threading.enumerate() if not thread.name.startswith("Dummy-")}


@pytest.fixture(autouse=True)
def no_leaks(request):
    """Fail a test that leaves a thread, a child process or a Fast DDS shared-memory segment.

    Segments of killed processes are removed, since these could not do so.
    """
    kills = request.node.get_closest_marker("kills") is not None
    uses_ros = request.node.get_closest_marker("ros") is not None
    if uses_ros:
        request.getfixturevalue("domain_id")
    threads = _threads()
    children = _children()
    names = _names_of_segments()
    segments = _segments() if uses_ros else names
    yield
    end = time.monotonic() + _LEFT_S
    while time.monotonic() < end:
        left = {
            "threads": {thread.name for thread in _threads() - threads},
            "processes": _children() - children,
            "shared memory": _remove_orphans() if kills else _unused_by_others(_new_segments(segments, names)),
        }
        if not any(left.values()):
            return
        time.sleep(0.05)
    pytest.fail(f"left behind: { {kind: names for kind, names in left.items() if names} }")


def _children():
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # no children: scanning all processes would take longer than most tests
        return set()
    return {(p.pid, p.name()) for p in psutil.Process().children(recursive=True) if p.is_running()}


def _names_of_segments():
    if not _SHARED_MEMORY.is_dir():
        return set()
    return {_base(file.name) for file in _SHARED_MEMORY.iterdir() if "fastrtps" in file.name}


def _new_segments(segments, names):
    """Return the new segments, without the slow scan for a test without ROS that adds no name."""
    return set() if segments is names and names >= _names_of_segments() else _segments() - segments


def _segments():
    """Return the Fast DDS segments of this process, and without other workers also those that no process uses."""
    found = _names_of_segments()
    ours = segments_of(os.getpid()) if found else set()
    if ros_domains.WORKERS > 1:
        return found & ours
    return {name for name in found if name in ours or not _is_in_use(name)}


def _is_in_use(name):
    """Return whether a live process holds the lock of a segment."""
    try:
        with (_SHARED_MEMORY / f"{name}_el").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _unused_by_others(names):
    """Return the segments that no other live process uses, since another suite may run on this machine."""
    found = set(names)
    for process in psutil.process_iter() if found else ():
        if process.pid != os.getpid():
            found -= segments_of(process.pid)
    return found


def _remove_orphans():
    """Remove the segments that no live process uses, and return those that remain."""
    names = _names_of_segments() - segments_of(os.getpid())
    unused = _unused_by_others({name for name in names if not _is_in_use(name) and not _is_new(name)})
    return unused.difference(remove_orphaned_segments(unused))


def _is_new(name):
    """Return whether another worker may just have created this segment."""
    try:
        age_s = time.time() - (_SHARED_MEMORY / name).stat().st_ctime
    except OSError:
        return ros_domains.WORKERS > 1
    return ros_domains.WORKERS > 1 and age_s < _SETTLED_S


def _base(name):
    return name.removeprefix("sem.").removesuffix("_mutex").removesuffix("_el")
