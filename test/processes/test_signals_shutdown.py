"""A free-running world is brought to rest however the program ends."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from forked_programs import forked_programs

from embodied_env.processes.signals import call_together

pytestmark = pytest.mark.realtime

IMPORTS = """
import atexit, os, signal, sys, threading, time
import numpy as np
import embodied_env
import embodied_env.envs.embodied_env as module
from embodied_env.backends.fake_backend import FakeBackend

class ReportingBackend(FakeBackend):
    def send(self, command):
        print(f"sent {abs(command.report.velocity_si).max():.6f}", flush=True)
        return super().send(command)
    def close(self):
        print("closed", flush=True)
        super().close()

module.make_backend = lambda name, contract, *, clock, pacing, **options: ReportingBackend(contract, clock=clock, **options)
embodied_env.make("arm_reach", backend="fake")  # loads what is loaded when it is needed
"""
PROGRAM = """
env = embodied_env.make("arm_reach", backend="fake", free_running=True)
env.reset(seed=1)
for _ in range(4):
    env.step(np.ones(6))
print("moving", flush=True)
"""


@pytest.fixture(scope="module")
def programs():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # of a shell that ignores it, before `interruptible`
    with forked_programs(IMPORTS) as started:
        yield started


@pytest.fixture
def run(programs):
    """Return a function that runs a program which moves a robot and then runs `ending`.

    It returns the exit status, and the commands sent after that.
    """

    def run(ending, *signals, ignored=None):
        before = "" if ignored is None else f"signal.signal({int(ignored)}, signal.SIG_IGN)\n"
        program = programs.start(before + PROGRAM + ending)
        while program.stdout.readline() not in ("moving\n", ""):
            pass
        for number in signals:
            with contextlib.suppress(ProcessLookupError):  # it has ended already
                os.kill(program.pid, number)
            time.sleep(0.02)
        output, errors = program.stdout.read().splitlines(), program.stderr.read()
        return program.wait(), output, errors

    return run


FUNCTION = """
def function():
    env = embodied_env.make("arm_reach", backend="fake", free_running=True)
    env.reset(seed=1)
    for _ in range(4):
        env.step(np.ones(6))
    print("moving", flush=True)
"""
ENDS_WHEN_FREED = """
while threading.active_count() > 1: time.sleep(0.005)
os._exit(7)
"""


def at_rest_then_closed(lines):
    speeds = [float(line.split()[1]) for line in lines if line.startswith("sent")]
    return speeds[-1:] == [0.0] and speeds == sorted(speeds, reverse=True) and lines[-1] == "closed"


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        pytest.param("env.close()", 0, marks=pytest.mark.long),
        pytest.param("env.__exit__(None, None, None)", 0, marks=pytest.mark.long),
        ("", 0),
        pytest.param("sys.exit(3)", 3, marks=pytest.mark.long),
        ("raise ValueError('a bug of the user')", 1),
    ],
    ids=["close", "with", "end of the program", "exit", "error"],
)
def test_robot_comes_to_rest_and_is_closed_at_exit(run, ending, status):
    returned, lines, _ = run(ending)
    assert returned == status
    assert at_rest_then_closed(lines)


@pytest.mark.parametrize(
    ("number", "status"),
    [
        pytest.param(signal.SIGINT, -signal.SIGINT, marks=pytest.mark.long),
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.long),
    ],
)
def test_a_signal_in_the_policy_brakes(run, number, status):
    returned, lines, _ = run("time.sleep(30)", number)
    assert returned == status
    assert at_rest_then_closed(lines)


def test_a_signal_during_a_step_brakes(run):
    returned, lines, _ = run("while True: env.step(np.ones(6))", signal.SIGINT)
    assert returned == -signal.SIGINT
    speeds = [float(line.split()[1]) for line in lines if line.startswith("sent")]
    assert speeds[-1] == 0.0
    assert lines[-1] == "closed"


def test_second_ctrl_c_does_not_interrupt_braking(run):
    """The second and the third Ctrl-C arrive while the robot brakes."""
    returned, lines, _ = run("env.close()\ntime.sleep(30)", signal.SIGINT, signal.SIGINT, signal.SIGINT)
    assert returned != 0
    assert at_rest_then_closed(lines)


def test_ctrl_c_does_not_interrupt_closing_the_backend(run):
    close = "FakeBackend.close = lambda _: (signal.raise_signal(signal.SIGINT), print('freed', flush=True))\n"
    returned, lines, _ = run(close + "env.close()")
    assert returned == -signal.SIGINT
    assert lines[-2:] == ["closed", "freed"]


def test_existing_handler_is_kept(run):
    returned, lines, _ = run(
        "signal.signal(signal.SIGTERM, lambda *_: os._exit(7))\nenv.reset(seed=2)\nprint('again', flush=True)\n"
        "os.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(30)"
    )
    assert returned == 7
    assert lines[-1] != "closed"


def test_ignored_sighup_stays_ignored(run):
    """As under nohup."""
    returned, lines, _ = run("time.sleep(0.3)\nprint('alive', flush=True)", signal.SIGHUP, ignored=signal.SIGHUP)
    assert returned == 0
    assert "alive" in lines


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        pytest.param("del env" + ENDS_WHEN_FREED, 7, marks=pytest.mark.long),
        ("env.itself = env\ndel env\nimport gc; gc.collect()" + ENDS_WHEN_FREED, 7),
        pytest.param("env.close()" + FUNCTION + "function()" + ENDS_WHEN_FREED, 7, marks=pytest.mark.long),
        (
            "env.close()" + FUNCTION + "threading.Thread(target=function).start()\n"
            "while threading.active_count() > 1: time.sleep(0.005)",
            0,
        ),
        (
            "env.close()" + FUNCTION + "import multiprocessing\n"
            "worker = multiprocessing.get_context('fork').Process(target=function)\n"
            "worker.start(); worker.join(); sys.exit(worker.exitcode)",
            0,
        ),
    ],
    ids=["del", "cycle", "function", "thread", "forked worker"],
)
def test_unreferenced_environment_brakes_and_closes(run, ending, status):
    returned, lines, errors = run(ending)
    assert returned == status, errors
    assert at_rest_then_closed(lines[lines.index("moving") :] if "moving" in lines else lines)


def test_stepping_after_the_main_thread_ended_raises_closed_error(run):
    returned, lines, errors = run(
        "def go_on():\n    while True: env.step(np.ones(6))\nthreading.Thread(target=go_on).start()\ntime.sleep(0.3)"
    )
    assert returned == 0
    assert "ClosedError" in errors
    braking = [line for line in lines if line.startswith("sent")][-3:]
    assert at_rest_then_closed([*braking, lines[-1]])


def test_sigterm_ends_a_program_with_a_policy_thread(run):
    returned, lines, _ = run(
        "def go_on():\n    while True: env.step(np.ones(6))\nthread = threading.Thread(target=go_on)\nthread.start()\n"
        "time.sleep(0.2)\nos.kill(os.getpid(), signal.SIGTERM)\nthread.join()"
    )
    assert returned == 143
    assert lines[-1] == "closed"


class ClosesTogether:
    """Closes only when another object closes at the same time."""

    def __init__(self, barrier):
        self._barrier = barrier

    def close(self):
        self._barrier.wait(20.0)


def test_calls_run_in_parallel_and_errors_are_collected():
    meets = ClosesTogether(threading.Barrier(3))

    def fail():
        meets.close()
        raise ValueError

    errors = call_together([meets.close, fail, fail])
    assert [type(error) for error in errors] == [ValueError, ValueError]


@pytest.mark.skipif(
    sys.version_info[:2] == (3, 12), reason="Python 3.12 starts no thread at exit: they are closed in turn"
)
def test_unresponsive_objects_are_closed_in_parallel_at_exit():
    program = (
        "import threading\nfrom embodied_env.processes.signals import close_at_exit\nbarrier = threading.Barrier(2)\n"
        "class Meets:\n    def close(self): barrier.wait(20.0); print('met')\n"
        "both = Meets(), Meets()\nfor each in both: close_at_exit(each, aside=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.count("met"), done.stderr) == (0, 2, "")
