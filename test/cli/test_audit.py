"""``embodied-env audit``: what is printed, and with which status."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest

from embodied_env.cli.main import main
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.record import RecordTransitions, read_run


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
        "manifest.json: the run was never closed [run.unclean]",
        f"{unclosed}: not sound, 2 transitions",
    ]


def test_a_sound_run_as_json(path, capsys):
    assert main(["audit", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "path": str(path), "transitions": 2, "sound": True, "problems": [], "counts": {}, "violations": [], "warnings": [],
        "solved_at_reset": 0, "solved_at_first_step": 0,
    }  # fmt: skip


def test_a_run_that_is_not_sound_as_json(unclosed, capsys):
    assert main(["audit", str(unclosed), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["sound"], found["problems"]) == (False, ["manifest.json: the run was never closed"])
    assert found["counts"] == {"run.unclean": 1}


def test_a_finding_names_transition_field_value_and_rule(path, tmp_path, capsys):
    rows = [json.dumps(row) for row in read_run(path).transitions()]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join([rows[0], json.dumps({**json.loads(rows[1]), "reward": 7.0})]))
    assert main(["audit", str(file), "--json"]) == 1
    (violation,) = json.loads(capsys.readouterr().out)["violations"]
    text = violation.pop("text")
    assert violation == {
        "rule": "outside.reward", "field": "reward", "value": 7.0, "row": 1, "line": 2, "episode": 0, "step": 2,
    }  # fmt: skip
    assert text.startswith("reward is 7.0 (expected ")


PLAIN = (
    '{"observation": [1], "action": 0, "reward": 1.0, "terminated": false, "truncated": false, '
    '"info": {"latency_ms": 1.0, "action_clipped": false, "wrapper_version": "theirs 1"}}\n'
)


def test_rows_of_anybody_are_read_from_stdin(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO((PLAIN * 3).encode())))
    assert main(["audit", "-"]) == 0
    assert capsys.readouterr().out == "-: sound, 3 transitions\n"


def test_a_line_that_is_broken_is_named(tmp_path, capsys):
    file = tmp_path / "rows.jsonl"
    file.write_text(PLAIN + PLAIN[:50] + "\n" + PLAIN)
    assert main(["audit", str(file)]) == 1
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("line 2: not JSON: ")
    assert first.endswith(" [line.broken]")
    assert last == f"{file}: not sound, 2 transitions"


def test_rows_of_a_file_are_held_to_a_contract_when_one_is_named(tmp_path, capsys):
    file = tmp_path / "rows.jsonl"
    file.write_text(PLAIN)
    assert main(["audit", str(file), "--contract", "arm_reach"]) == 1
    assert "info.contract is missing [row.shape]" in capsys.readouterr().out


def test_a_run_has_a_contract_of_its_own(path, capsys):
    assert main(["audit", str(path), "--contract", "arm_reach"]) == 2
    assert "--contract is of a file of rows" in capsys.readouterr().err


def test_a_directory_that_is_not_there_is_wrong_usage(tmp_path, capsys):
    assert main(["audit", str(tmp_path / "nowhere")]) == 2
    assert capsys.readouterr().err == (
        f"embodied-env: error: {tmp_path / 'nowhere'} is not there; allowed: a run directory, a file of JSON lines, or -\n"
    )


def test_no_run_is_wrong_usage(capsys):
    assert main(["audit"]) == 2
    assert "RUN" in capsys.readouterr().err


def test_a_directory_that_is_no_run_is_no_sound_evidence(tmp_path, capsys):
    assert main(["audit", str(tmp_path)]) == 1
    assert "not a run directory" in capsys.readouterr().err
