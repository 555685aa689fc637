"""However a program ends, a world that moves by itself is brought to rest first."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

PROGRAM = """
import atexit, os, signal, sys, threading, time
import numpy as np
import embodied_env
from embodied_env.backends.fake import FakeBackend

class Told(FakeBackend):
    def send(self, command):
        print(f"sent {abs(command.report.velocity_si).max():.6f}", flush=True)
        return super().send(command)
    def close(self):
        print("closed", flush=True)
        super().close()

import embodied_env.env as module
module.make_backend = lambda name, contract, *, clock, pacing, **options: Told(contract, clock=clock, **options)
env = embodied_env.make("arm_reach", backend="fake", free_running=True)
env.reset(seed=1)
for _ in range(4):
    env.step(np.ones(6))
print("moving", flush=True)
"""


def run(ending, *signals):
    """Run a program that moves a robot and then does `ending`; return its exit status and what it sent after that."""
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM + ending], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while child.stdout.readline() not in ("moving\n", ""):
        pass
    for number in signals:
        child.send_signal(number)
        time.sleep(0.02)
    output, errors = child.communicate(timeout=60)
    return child.returncode, output.splitlines(), errors


def at_rest_then_closed(lines):
    speeds = [float(line.split()[1]) for line in lines if line.startswith("sent")]
    return speeds[-1:] == [0.0] and speeds == sorted(speeds, reverse=True) and lines[-1] == "closed"


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("env.close()", 0),
        ("env.__exit__(None, None, None)", 0),
        ("", 0),
        ("sys.exit(3)", 3),
        ("raise ValueError('a bug of the user')", 1),
    ],
    ids=["close", "with", "end of the program", "exit", "error"],
)
def test_the_robot_comes_to_rest_and_is_closed(ending, status):
    returned, lines, _ = run(ending)
    assert returned == status
    assert at_rest_then_closed(lines)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143)])
def test_a_signal_in_the_policy_brakes(number, status):
    returned, lines, _ = run("time.sleep(30)", number)
    assert returned == status
    assert at_rest_then_closed(lines)


def test_a_signal_in_the_middle_of_a_step_brakes():
    returned, lines, _ = run("while True: env.step(np.ones(6))", signal.SIGINT)
    assert returned == -signal.SIGINT
    speeds = [float(line.split()[1]) for line in lines if line.startswith("sent")]
    assert speeds[-1] == 0.0
    assert lines[-1] == "closed"


def test_whoever_cannot_wait_waits_until_it_is_at_rest():
    """A second and a third Ctrl-C come while it brakes."""
    returned, lines, _ = run("env.close()\ntime.sleep(30)", signal.SIGINT, signal.SIGINT, signal.SIGINT)
    assert returned != 0
    assert at_rest_then_closed(lines)


def test_a_handler_of_the_program_is_left_alone():
    returned, lines, _ = run(
        "signal.signal(signal.SIGTERM, lambda *_: os._exit(7))\nenv.reset(seed=2)\nprint('again', flush=True)\n"
        "os.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(30)"
    )
    assert returned == 7
    assert lines[-1] != "closed"
