"""The tests for a real Gazebo server run on a stand-in with the physics of MuJoCo, which tests the suite itself."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="needs rclpy")
pytestmark = [pytest.mark.long, pytest.mark.kills]

ROOT = Path(__file__).parents[3]


@pytest.mark.usefixtures("gazebo_programs")
def test_the_gazebo_suite_passes_on_a_stand_in():
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-m",
        "gazebo",
        "-n",
        "0",
        "-q",
        "-k",
        "arm_reach",
        "test/extensions/gazebo",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
