"""The main job, as a new user runs it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import embodied_env

pytestmark = pytest.mark.ros


def run_demo(tmp_path, *arguments):
    command = [sys.executable, "-m", "embodied_env.cli", "demo", "--episodes", "2", "--out", str(tmp_path / "runs")]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=300, check=False)


def test_the_demo_prints_its_table_and_ends_with_zero(tmp_path):
    done = run_demo(tmp_path)
    assert done.returncode == 0, done.stderr
    for text in (
        "truncation counted as failure",
        "truncation apart",
        "return",
        "clipped",
        "transport[joints]",
        embodied_env.load_contract("arm_reach").fingerprint,
        str(tmp_path / "runs"),
    ):
        assert text in done.stdout


def test_the_demo_shows_progress(tmp_path):
    assert "2/2" in run_demo(tmp_path).stderr


def test_the_runs_of_the_demo_are_sound(tmp_path):
    done = run_demo(tmp_path, "--json")
    runs = json.loads(done.stdout)["runs"]
    assert [run["summary"]["success_rate"] for run in runs] == [1.0, 0.0]
    for run in runs:
        recorded = embodied_env.read_run(run["path"])
        assert recorded.clean
        assert {p["role"] for p in recorded.manifest["processes"]} == {"environment", "simulator"}
        assert [p for row in recorded.transitions() for p in embodied_env.audit_transition(row)] == []
