"""``embodied-env audit``: what is printed, and with which status."""

from __future__ import annotations

import json

import numpy as np
import pytest

from embodied_env.cli import main
from embodied_env.env import EmbodiedEnv
from embodied_env.record import RecordTransitions


@pytest.fixture
def path(tmp_path):
    env = RecordTransitions(EmbodiedEnv("arm_reach", backend="fake"), tmp_path)
    env.reset(seed=1)
    env.step(np.zeros(6))
    env.step(np.zeros(6))
    env.close()
    return env.path


@pytest.fixture
def unclosed(path):
    file = path / "manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "clean": False}))
    return path


def test_a_sound_run_has_status_0_and_one_line(path, capsys):
    assert main(["audit", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: sound, 2 transitions\n"


def test_a_run_that_is_not_sound_has_status_1_and_a_line_for_each_problem(unclosed, capsys):
    assert main(["audit", str(unclosed)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "manifest.json: the run was never closed",
        f"{unclosed}: not sound, 2 transitions",
    ]


def test_a_sound_run_as_json(path, capsys):
    assert main(["audit", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "path": str(path), "transitions": 2, "sound": True, "problems": [],
    }  # fmt: skip


def test_a_run_that_is_not_sound_as_json(unclosed, capsys):
    assert main(["audit", str(unclosed), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["sound"], found["problems"]) == (False, ["manifest.json: the run was never closed"])


def test_a_directory_that_is_not_there_is_wrong_usage(tmp_path, capsys):
    assert main(["audit", str(tmp_path / "nowhere")]) == 2
    assert capsys.readouterr().err == (
        f"embodied-env: error: {tmp_path / 'nowhere'} is not there; allowed: a run directory\n"
    )


def test_no_run_is_wrong_usage(capsys):
    assert main(["audit"]) == 2
    assert "RUN" in capsys.readouterr().err


def test_a_directory_that_is_no_run_is_no_sound_evidence(tmp_path, capsys):
    assert main(["audit", str(tmp_path)]) == 1
    assert "is not a run directory" in capsys.readouterr().err
