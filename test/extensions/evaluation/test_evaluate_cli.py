import json
import sys
from pathlib import Path

import numpy as np
import pytest
from evidence import assert_sound
from mcap.records import Chunk
from mcap.stream_reader import StreamReader
from shipped_contracts import changed_contract, changed_text

import embodied_env
from embodied_env.cli.main import main
from embodied_env.errors import RecordError, UsageError
from embodied_env.policies.policy_loader import load_policy

CONTRACT = embodied_env.load_contract("arm_reach")


@pytest.fixture
def short(tmp_path):
    """Return the file of a contract with episodes of three steps."""
    file = tmp_path / "short.yaml"
    file.write_text(changed_text("arm_reach", {"episode.horizon_steps": 3}))
    return str(file)


def evaluate(tmp_path, capsys, *arguments):
    status = main(["evaluate", "arm_reach", "--out", str(tmp_path), "--json", *arguments])
    return status, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("policy", "success_rate"), [("scripted", 1.0), ("hold", 0.0)])
def test_built_in_policy_success_rate(tmp_path, capsys, policy, success_rate):
    status, result = evaluate(tmp_path, capsys, "--policy", policy, "--episodes", "1")
    assert status == 0
    assert result["runs"][0]["summary"]["success_rate"] == success_rate


@pytest.mark.parametrize(("pause", "status"), [(0, 1), (1, 0)])
def test_exit_status_is_1_if_the_policy_never_acted(tmp_path, capsys, monkeypatch, pause, status):
    (tmp_path / "absent_policy.py").write_text(
        "import numpy as np\nfrom embodied_env import NoAction\n"
        f"actions = [np.zeros(6)] * {pause}\n"
        "def act(observation):\n    return actions.pop() if actions else NoAction('no connection')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "absent_policy", raising=False)
    found = evaluate(tmp_path / "runs", capsys, "--policy", "absent_policy:act", "--episodes", "2", "--backend", "fake")
    assert found[0] == status


def test_hold_policy_keeps_measured_positions():
    contract = changed_contract(CONTRACT, {"actuators.arm.command": "position"})
    measured = np.linspace(-1.0, 1.0, 6)
    action = load_policy("hold", contract)({"joints_position": measured})
    layout = embodied_env.contract.spaces.ActionLayout(contract)
    np.testing.assert_allclose(layout.scale.to_si(action), measured, atol=1e-12)


def test_scripted_policy_requires_scripted_task():
    contract = changed_contract(CONTRACT, {"task": {"type": "scripted_tasks:Running"}})
    with pytest.raises(UsageError, match="scripted_tasks:Running"):
        load_policy("scripted", contract)


def test_raising_policy_is_named_and_run_is_closed(tmp_path, capsys, monkeypatch):
    source = "import numpy as np\nasked = []\ndef third(observation):\n    asked.append(1)\n    if len(asked) == 3:\n        raise RuntimeError('out of ideas')\n    return np.zeros(6)\n"
    (tmp_path / "tired_policies.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    status = main(["evaluate", "arm_reach", "--out", str(tmp_path), "--json", "--policy", "tired_policies:third"])
    output = capsys.readouterr()
    assert (status, output.out) == (1, "")
    assert "'tired_policies:third' failed in episode 1, step 3: RuntimeError: out of ideas" in output.err
    assert f"run (tired_policies:third)  {next(tmp_path.glob('*_arm_reach_*'))}" in output.err
    assert "in third\n" in output.err  # the traceback of the policy
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir() and path.name != "__pycache__")
    assert len(list(embodied_env.read_run(folder).transitions())) == 2
    assert_sound(folder)


def test_pacing_and_scheduling_are_recorded_in_manifest(tmp_path, capsys, short):
    arguments = ["--policy", "hold", "--episodes", "1", "--pacing", "realtime", "--switch-interval", "0.002", "--json"]
    assert main(["evaluate", short, "--out", str(tmp_path), *arguments]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    manifest = json.loads((Path(run["path"]) / "manifest.json").read_text())
    assert manifest["pacing"] == "realtime"
    assert manifest["scheduling"]["switch_interval_s"] == {"asked": 0.002, "in_force": pytest.approx(0.002)}


@pytest.mark.parametrize("compression", ["lz4", "none"])
def test_the_record_is_compressed_as_requested(tmp_path, short, compression):
    words = ["evaluate", short, "--backend", "fake", "--policy", "hold", "--episodes", "1", "--out", str(tmp_path)]
    status = main([*words, "--compression", compression])
    (log,) = tmp_path.glob("*/transitions.mcap")
    with log.open("rb") as file:
        chunks = [record for record in StreamReader(file, emit_chunks=True).records if isinstance(record, Chunk)]
    assert (status, {chunk.compression for chunk in chunks}) == (0, {"" if compression == "none" else compression})


def test_results_are_printed_although_the_record_is_incomplete(tmp_path, capsys, monkeypatch, short):
    def fail(*_, **__):
        raise RecordError("no space left")

    monkeypatch.setattr("embodied_env.record.run_writer.LogWriter.append", fail)
    monkeypatch.setattr("embodied_env.record.run_writer.write_json", fail)
    words = ["evaluate", short, "--backend", "fake", "--policy", "hold", "--episodes", "1", "--out", str(tmp_path)]
    status = main([*words, "--json"])
    output = capsys.readouterr()
    assert (status, json.loads(output.out)["runs"][0]["summary"]["steps"]) == (1, 3)
    assert "the record is incomplete: no space left" in output.err
