"""The demo command as a new user runs it."""

import json
import os
import subprocess
import sys

import pytest
import ros_domains
from evidence import assert_transitions_sound

import embodied_env

pytestmark = pytest.mark.ros


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Run the demo, and return the finished process and its run folders."""
    folder = tmp_path_factory.mktemp("demo")
    surroundings = {
        **os.environ,
        "ROS_DOMAIN_ID": str(ros_domains.FOR_DEMO),
        "ROS_LOG_DIR": str(folder / "log"),
        "COLUMNS": "200",
    }
    done = subprocess.run(
        [sys.executable, "-m", "embodied_env.cli", "demo", "--episodes", "2", "--out", str(folder / "runs")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=surroundings,
    )
    return done, sorted((folder / "runs").iterdir())


def test_the_demo_prints_its_results_its_progress_and_the_folders_of_its_runs(demo):
    done, runs = demo
    assert done.returncode == 0, done.stderr
    assert len(runs) == 2
    assert "4/4" in done.stderr
    for text in (
        *("truncated counted as failure", "excluding truncated", "return", "steps", "clipped", "p50 / p95 / p99"),
        *("obs_to_command", "transport[joints]", "next:   embodied-env audit "),
        "result: arm_reach on mujoco_ros (simulator), 2 episodes per policy",
        embodied_env.load_contract("arm_reach").fingerprint,
        *map(str, runs),
    ):
        assert text in done.stdout


def test_the_learned_and_the_scripted_policy_succeed(demo):
    _, runs = demo
    formats = {json.loads((run / "manifest.json").read_text())["policy"]["format"] for run in runs}
    rates = [json.loads((run / "summary.json").read_text())["success_rate"] for run in runs]
    assert formats == {"onnx", "built-in"}
    assert rates == [1.0, 1.0]


def test_the_recorded_runs_pass_the_audit(demo):
    _, paths = demo
    for path in paths:
        run = embodied_env.read_run(path)
        assert run.clean
        assert {process["role"] for process in run.manifest["processes"]} == {"environment", "simulator"}
        assert_transitions_sound(run.transitions())
