"""Launch files are run by launch itself in ``colcon test``, where launch_testing is installed."""

import importlib.util
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("launch_testing", reason="needs launch_testing: source a ROS 2 installation")
pytest.importorskip("launch_ros", reason="needs launch_ros: source a ROS 2 installation")

from embodied_env.cli.launch.targets import TARGETS

HERE = Path(__file__).parent
LAUNCH = HERE.parents[2] / "launch"
PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def surroundings(domain_id):
    """Give each test its own ROS domain."""


def start(*names, **given):
    command = [sys.executable, str(HERE / "launched.py"), *names, *(f"{key}:={value}" for key, value in given.items())]
    return subprocess.Popen(command, start_new_session=True)


@pytest.mark.parametrize("name", TARGETS)
def test_launch_file_declares_arguments_of_its_target(name):
    spec = importlib.util.spec_from_file_location(f"{name}_launch", LAUNCH / f"{name}.launch.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    declared = [argument.name for argument in module.generate_launch_description().get_launch_arguments()]
    assert declared == [*(argument.name for argument in TARGETS[name].arguments), "shutdown_on_exit", "respawn"]


def test_finished_evaluation_ends_the_launch(tmp_path):
    assert start("evaluate", backend="fake", policy="hold", episodes=1, out=tmp_path).wait(PATIENCE_S) == 0
    assert len(list(tmp_path.glob("*/summary.json"))) == 1


def test_failed_evaluation_fails_the_launch(tmp_path):
    assert start("evaluate", policy="no_such", out=tmp_path).wait(PATIENCE_S) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signal_to_launch_leaves_no_child_process(tmp_path, number):
    """``ros2 launch`` ends on SIGTERM without a signal to its children."""
    ready, sleep = tmp_path / "ready", tmp_path / "sleep.py"
    sleep.write_text(f"import pathlib, time\npathlib.Path({str(ready)!r}).touch()\ntime.sleep(60)\n")
    process = start("train", script=sleep)
    end = time.monotonic() + PATIENCE_S
    while not ready.exists() and time.monotonic() < end:
        time.sleep(0.02)
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 2  # the supervisor and its process
    process.send_signal(number)
    process.wait(PATIENCE_S)
    _, alive = psutil.wait_procs(children, timeout=PATIENCE_S)
    assert alive == []


def test_simulator_runs_and_exits_cleanly_under_launch_testing():
    file = HERE / "sim_under_launch_testing.py"
    command = [sys.executable, "-m", "launch_testing.launch_test", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
