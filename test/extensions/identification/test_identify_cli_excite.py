"""The verb identify records the excitation of a robot, and refuses what it cannot do."""

import pytest
import two_links

from embodied_env.cli.main import main
from embodied_env.record import read_run


@pytest.fixture
def arm(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    two_links.contract_in(tmp_path)
    return "arm.yaml"


def test_excitation_prints_its_run_and_the_next_command(arm, capsys):
    arguments = ["--joints", "elbow", "--repeats", "1", "--record", "moves", "--backend", "mujoco"]
    assert main(["identify", "--excite", arm, *arguments]) == 0
    shown = capsys.readouterr().out
    path = shown.partition(": next: ")[0]
    assert path.startswith("moves/")
    assert shown.endswith(f"next: embodied-env identify {path} --contract arm.yaml\n")
    assert not read_run(path).problem


def test_a_horizon_without_room_for_a_move_is_refused(arm, tmp_path, capsys):
    text = (tmp_path / arm).read_text().replace("horizon_steps: 500", "horizon_steps: 20")
    (tmp_path / arm).write_text(text)
    assert main(["identify", "--excite", arm, "--backend", "mujoco"]) == 2
    assert "horizon of 20 steps is too short for a move" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "missing RUN or --contract"),
        (["--contract", "arm.yaml"], "missing RUN or --contract"),
        (["--excite", "arm.yaml", "--contract", "arm.yaml"], "--excite with runs or --contract"),
        (["--excite", "arm.yaml", "--amplitude", "0.6"], "invalid amplitude: 0.6"),
        (["--excite", "arm.yaml", "--joints", "wrist"], "unknown joint: 'wrist'"),
        (["--excite", "arm.yaml", "--repeats", "0"], "an integer >= 1"),
    ],
)
def test_usage_errors_record_nothing(arm, tmp_path, capsys, arguments, problem):
    assert main(["identify", *arguments]) == 2
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
