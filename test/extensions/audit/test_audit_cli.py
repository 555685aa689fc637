import io
import json

import numpy as np
import pytest
from run_files import change_manifest, record

from embodied_env.cli.main import main
from embodied_env.record import read_run


@pytest.fixture
def path(tmp_path):
    return record(tmp_path, [[np.zeros(6)] * 2])


@pytest.fixture
def unclosed(path):
    change_manifest(path, clean=False)
    return path


def test_valid_run_exits_0_with_one_line(path, capsys):
    assert main(["audit", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: sound, 2 transitions (simulator), head {read_run(path).chain.head}\n"


def test_invalid_run_exits_1_with_a_line_per_problem(unclosed, capsys):
    assert main(["audit", str(unclosed)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "manifest.json: the run was never closed [run.unclean]",
        f"{unclosed}: not sound, 2 transitions (simulator), head {read_run(unclosed).chain.head}",
    ]


def test_valid_run_as_json(path, capsys):
    assert main(["audit", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "path": str(path), "transitions": 2, "sound": True, "problems": [], "counts": {}, "violations": [], "warnings": [],
        "head": read_run(path).chain.head,
        "solved_at_reset": 0, "solved_at_first_step": 0, "world": "simulator",
    }  # fmt: skip


PLAIN = (
    '{"observation": [1], "action": 0, "reward": 1.0, "terminated": false, "truncated": false, '
    '"info": {"latency_ms": 1.0, "action_clipped": false, "wrapper_version": "theirs 1"}}\n'
)


def test_rows_are_read_from_stdin(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO((PLAIN * 3).encode())))
    assert main(["audit", "-"]) == 0
    assert capsys.readouterr().out == "-: sound, 3 transitions\n"


def test_broken_line_is_named(tmp_path, capsys):
    file = tmp_path / "rows.jsonl"
    file.write_text(PLAIN + PLAIN[:50] + "\n" + PLAIN)
    assert main(["audit", str(file)]) == 1
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("line 2: not JSON: ")
    assert first.endswith(" [line.broken]")
    assert last == f"{file}: not sound, 2 transitions"


def test_rows_are_checked_against_given_contract(tmp_path, capsys):
    file = tmp_path / "rows.jsonl"
    file.write_text(PLAIN)
    assert main(["audit", str(file), "--contract", "arm_reach"]) == 1
    assert "info.contract: missing key [row.shape]" in capsys.readouterr().out


def test_contract_option_is_rejected_for_a_run(path, capsys):
    assert main(["audit", str(path), "--contract", "arm_reach"]) == 2
    assert "--contract does not apply to run" in capsys.readouterr().err
