"""The launch files by launch itself, on a ROS machine: ``colcon test`` runs this where launch_testing is installed."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("launch_testing", reason="needs launch_testing: source a ROS 2 installation")
pytest.importorskip("launch_ros", reason="needs launch_ros: source a ROS 2 installation")

from launch.actions import IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch_testing.loader import LoadTestsFromPythonModule
from launch_testing.test_runner import LaunchTestRunner

from embodied_env.uses import USES
from launch import LaunchDescription, LaunchService

pytestmark = [  # the event loop of a launch that runs in this process is left open by launch itself
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

FOLDER = Path(__file__).parents[2] / "launch"
PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def surroundings(domain_id):
    """A ROS domain of its own for each test."""


def including(name, **said):
    source = PythonLaunchDescriptionSource(str(FOLDER / f"{name}.launch.py"))
    return LaunchDescription([IncludeLaunchDescription(source, launch_arguments=said.items())])


def launched(name, **said):
    """Run a launch file to its end, and return the exit status of the launch."""
    service = LaunchService(argv=[], noninteractive=True)
    service.include_launch_description(including(name, **said))
    return service.run()


@pytest.mark.parametrize("name", USES)
def test_a_launch_file_declares_the_arguments_of_its_use(name):
    spec = importlib.util.spec_from_file_location(f"{name}_launch", FOLDER / f"{name}.launch.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    declared = {argument.name: argument for argument in module.generate_launch_description().get_launch_arguments()}
    assert list(declared) == [argument.name for argument in USES[name].arguments]


def test_an_evaluation_that_is_done_is_a_launch_that_is_done(tmp_path):
    said = {"backend": "fake", "policy": "hold", "episodes": "1", "out": str(tmp_path)}
    assert launched("evaluate", **said) == 0
    assert len(list(tmp_path.glob("*/summary.json"))) == 1


def test_an_evaluation_that_fails_is_a_launch_that_fails(tmp_path):
    assert launched("evaluate", policy="no_such", out=str(tmp_path)) == 1


def test_a_value_that_is_not_allowed_is_refused():
    assert launched("real", armed="yes") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_launch_leaves_no_child_behind(tmp_path, number):
    """``ros2 launch`` ends without a word to its children on SIGTERM."""
    psutil = pytest.importorskip("psutil", reason="needs psutil")
    ready, sleep = tmp_path / "ready", tmp_path / "sleep.py"
    sleep.write_text(f"import pathlib, time\npathlib.Path({str(ready)!r}).touch()\ntime.sleep(60)\n")
    folder = str(Path(__file__).parent)
    script = f"import sys; sys.path.insert(0, {folder!r}); import test_launch_files as t; t.launched('train', script={str(sleep)!r})"
    process = subprocess.Popen([sys.executable, "-c", script], start_new_session=True, env=dict(os.environ))
    end = time.monotonic() + PATIENCE_S
    while not ready.exists() and time.monotonic() < end:
        time.sleep(0.02)
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 2
    process.send_signal(number)
    process.wait(PATIENCE_S)
    _, alive = psutil.wait_procs(children, timeout=PATIENCE_S)
    assert alive == []


def test_the_simulator_runs_and_ends_cleanly_under_launch_testing(tmp_path):
    """By the runner of launch_testing, with a test while it runs, and one after it was shut down."""
    module_file = tmp_path / "sim_launch_test.py"
    module_file.write_text(LAUNCH_TEST.format(folder=str(Path(__file__).parent)))
    spec = importlib.util.spec_from_file_location("sim_launch_test", module_file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    runs = LoadTestsFromPythonModule(module, name="sim_launch_test")
    results = LaunchTestRunner(runs).run()
    assert len(results) == len(runs) == 1
    assert all(result.wasSuccessful() for result in results.values())


LAUNCH_TEST = """
import sys, unittest
sys.path.insert(0, {folder!r})
import launch_testing.asserts
from launch_testing.actions import ReadyToTest
import test_launch_files

def generate_test_description():
    description = test_launch_files.including("sim", contract="arm_reach")
    description.add_action(ReadyToTest())
    return description

class WhileItRuns(unittest.TestCase):
    def test_it_says_what_it_simulates(self, proc_output):
        proc_output.assertWaitFor("simulating arm_reach in namespace /", timeout=60, stream="stdout")

@launch_testing.post_shutdown_test()
class Afterwards(unittest.TestCase):
    def test_it_has_ended_well(self, proc_info):
        launch_testing.asserts.assertExitCodes(proc_info)
"""
