"""The tests for a real Gazebo server, run on a stand-in with the physics of MuJoCo: the suite itself is tested."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="needs rclpy")
pytestmark = [pytest.mark.long, pytest.mark.kills]

ROOT = Path(__file__).parents[2]
STAND_IN = ROOT / "test" / "support" / "mujoco_as_gazebo.py"
PROGRAMS = {
    "bin/gz": f'[ "$2" = --versions ] && {{ echo 8.14.0; exit; }}\nexec {sys.executable} {STAND_IN}',
    "lib/ros_gz_bridge/parameter_bridge": "exec sleep 1000",
    "lib/robot_state_publisher/robot_state_publisher": "exec sleep 1000",
    "lib/controller_manager/spawner": "exit 0",
}


def test_the_gazebo_suite_passes_on_a_stand_in(tmp_path, message_package):
    message_package("ros_gz_interfaces")
    generated = Path(importlib.import_module("ros_gz_interfaces").__file__).parents[1]
    for name, lines in PROGRAMS.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/bash\n{lines}\n")
        file.chmod(0o755)
    paths = {"PATH": tmp_path / "bin", "PYTHONPATH": generated, "AMENT_PREFIX_PATH": tmp_path}
    environment = {
        name: os.pathsep.join(filter(None, [str(path), os.environ.get(name)])) for name, path in paths.items()
    }
    command = [sys.executable, "-m", "pytest", "-m", "gazebo", "-n", "0", "-q", "-k", "arm_reach", "test/gazebo"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
