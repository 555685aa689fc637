import json
from dataclasses import replace

import numpy as np
import pytest
from run_files import change_manifest, record

from embodied_env.cli.main import main
from embodied_env.contract.contract_loader import dump_contract, load_contract
from embodied_env.record import read_run

ARM = load_contract("arm_reach")


@pytest.fixture
def path(tmp_path):
    return record(tmp_path, [[np.zeros(6), np.full(6, np.nan), np.ones(6)]])


@pytest.fixture
def slower(tmp_path):
    """Return a contract in which one joint has a lower acceleration limit."""
    arm = ARM.actuators["arm"]
    joints = {**arm.joints, "j2": replace(arm.joints["j2"], acceleration=1.0)}
    file = tmp_path / "slower.yaml"
    file.write_text(dump_contract(replace(ARM, actuators={"arm": replace(arm, joints=joints)})))
    return file


def test_identical_replay_exits_0(path, capsys):
    assert main(["replay", str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "1 unrecordable actions were reconstructed from the gate report",
        f"{path}: 3 transitions, all equal",
    ]


def test_first_difference_is_reported_and_exits_1(path, slower, capsys):
    assert main(["replay", str(path), "--contract", str(slower)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "the contract differs from that of the recorded run" in lines
    assert f"{path}: 2 transitions equal, then row 3 differs" in lines
    assert any(line.startswith("  episode 1, step 3: inner.findings[0].") for line in lines)


def test_unclean_run_exits_1(path, capsys):
    change_manifest(path, clean=False)
    assert main(["replay", str(path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "the run is not clean: manifest.json: the run was never closed" in lines
    assert lines[-1] == f"{path}: 3 transitions, all equal"


def test_policy_replay_as_json(path, capsys):
    assert main(["replay", str(path), "--policy", "random", "--seed", "4", "--tolerance", "10", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["first"] == {"episode": 1, "step": 2}
    (episode,) = found["episodes"]
    assert (episode["steps"], episode["diverged"], episode["unreadable"]) == (3, 1, 1)
    assert found["joints"] == ["j1", "j2", "j3", "j4", "j5", "j6"]


@pytest.mark.parametrize(
    "arguments", [["nowhere"], ["RUN", "--seed", "-1"], ["RUN", "--policy", "magic"], ["RUN", "--contract", "magic"]]
)
def test_usage_error_exits_2(path, capsys, arguments):
    assert main(["replay", *(str(path) if word == "RUN" else word for word in arguments)]) == 2
    assert capsys.readouterr().err.startswith("embodied-env: error: ")


def test_replay_does_not_modify_the_run(path):
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    main(["replay", str(path)])
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before
    assert read_run(path).clean
