"""Child processes never outlive their parent, and their output is kept."""

import os
import subprocess
import sys

import psutil
import pytest
from waiting import wait_for

from embodied_env.processes.child_process import Child, ProcessSpec

pytestmark = pytest.mark.realtime

WAITS = (
    "import threading\n"
    "from embodied_env.processes.child_process import watch_parent\n"
    "done = threading.Event()\n"
    "watch_parent(done.set)\n"
    "done.wait()\n"
)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Return a function that writes a module for a child to run."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)

    def make(source):
        (tmp_path / "child_program.py").write_text(source)
        return ProcessSpec(role="test", module="child_program", arguments=(), grace_s=30.0)

    return make


def test_a_child_ends_when_it_is_stopped_once_or_twice(module):
    child = Child(module(WAITS))
    assert child.exit_code is None
    for _ in range(2):
        child.stop()
        assert child.exit_code == 0


def test_output_of_a_dead_child_is_kept(module):
    child = Child(module("raise SystemExit('no more steam')"))
    wait_for(lambda: child.exit_code is not None)
    assert child.exit_code == 1
    assert "no more steam" in child.stderr_tail()
    child.stop()


def test_first_line_is_passed_to_the_child(module):
    child = Child(module("print(input(), flush=True)\n"), first_line="hello")
    wait_for(lambda: child.exit_code is not None)
    assert child.stderr_tail() == "hello"
    child.stop()


def test_kill_ends_a_child_that_ignores_signals(module):
    child = Child(module("import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)\n"))
    child.kill()
    assert child.exit_code == -9
    child.stop()


def test_a_child_ends_when_its_parent_is_killed(module):
    spec = module(WAITS)
    script = (
        "import time\n"
        "from embodied_env.processes.child_process import Child, ProcessSpec\n"
        f"child = Child(ProcessSpec(role='test', module={spec.module!r}, arguments=()))\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    wait_for(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
