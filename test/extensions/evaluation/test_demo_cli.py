"""The demo command as a new user runs it."""

from __future__ import annotations

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
    """Run the demo; return the finished process and its run folders."""
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


def test_exit_status_is_zero(demo):
    done, _ = demo
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "truncated counted as failure",
        "excluding truncated",
        "return",
        "steps",
        "clipped",
        "p50 / p95 / p99",
        "obs_to_command",
        "transport[joints]",
        "result: arm_reach on mujoco_ros (simulator), 2 episodes per policy",
        "next:   embodied-env audit ",
        embodied_env.load_contract("arm_reach").fingerprint,
    ],
)
def test_the_output_contains(demo, text):
    done, _ = demo
    assert text in done.stdout


def test_the_run_folders_are_printed(demo):
    done, runs = demo
    assert len(runs) == 2
    assert all(str(run) in done.stdout for run in runs)


def test_progress_is_shown(demo):
    done, _ = demo
    assert "4/4" in done.stderr


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
