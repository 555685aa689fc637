import json
import math
import re
from pathlib import Path

import numpy as np
import onnx_models
import pytest
import yaml
from shipped_contracts import changed_contract

from embodied_env.cli import policy_cli as policy
from embodied_env.cli.main import main
from embodied_env.contract import load_contract
from embodied_env.contract.contract_loader import dump_contract
from embodied_env.core.policy import NoAction
from embodied_env.policies.policy_file import read_policy_file

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "policy_file.md"
(EXAMPLE,) = re.findall(r"```yaml\n# reach\.policy\.yaml\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
JOINTS = [f"j{index}" for index in range(1, 7)]


@pytest.fixture
def write(tmp_path):
    """Return a function that writes the example of the reference page with other keys, and returns its path."""

    def write(**keys):
        path = tmp_path / "reach.policy.yaml"
        path.write_text(yaml.safe_dump({**yaml.safe_load(EXAMPLE), **keys}))
        return str(path)

    return write


def output_of(capsys, *arguments, status=0):
    assert main(["policy", *arguments]) == status
    return capsys.readouterr()


def shown(capsys, *arguments):
    return json.loads(output_of(capsys, "show", *arguments, "--json").out)


def test_show_has_each_component_before_and_after(capsys, write):
    found = shown(capsys, write(), "--contract", "arm_reach")
    first, *_ = rows = found["inputs"]
    assert [row["from"] for row in rows[:6]] == [f"joints_position[{joint}]" for joint in JOINTS]
    assert (first["unit"], first["transformation"], rows[6]["unit"]) == ("rad to deg", "method mean_std", "m")
    for row in rows[:6]:
        assert row["becomes"] == pytest.approx(math.degrees(row["value"]) / 57.3, abs=1e-12)
    assert [row["to"] for row in found["outputs"]] == [f"arm[{joint}]" for joint in JOINTS]
    assert {row["action of 0"] for row in found["outputs"]} == {0.0}
    assert found["sha256"] == read_policy_file(write()).sha256
    assert found["timing"] == [
        {"control_period_s": 0.05, "of the contract": 0.05, "resample": None}
        | {"actions of an inference": 1, "executed": 1, "steps of the contract": 1}
    ]


def test_show_takes_the_name_of_a_shipped_policy(capsys):
    found = shown(capsys, "arm_reach", "--contract", "arm_reach", "--backend", "fake")
    assert (found["policy"], len(found["inputs"]), len(found["outputs"])) == ("arm_reach_sac", 19, 6)


def test_show_names_order_sign_offset_and_threshold(capsys, write):
    part = {"field": "joints_position", "joints": ["j3", "j1"], "unit": "rad", "sign": [1, -1], "offset": 0.5}
    close = {
        "actuator": "arm",
        "joints": ["j6"],
        "unit": "action",
        "threshold": {"at": 0.5, "below": 0.0, "above": 0.25},
    }
    outputs = {"action": {"parts": [{"actuator": "arm", "joints": JOINTS[4::-1], "unit": "action"}, close]}}
    found = shown(capsys, write(inputs={"obs": {"parts": [part]}}, outputs=outputs), "--contract", "arm_reach")
    third, first = found["inputs"]
    assert (first["from"], first["transformation"]) == ("joints_position[j1]", "offset 0.5, sign -1")
    assert first["becomes"] == pytest.approx(0.5 - first["value"])
    assert third["becomes"] == pytest.approx(third["value"] - 0.5)
    last = found["outputs"][-1]
    assert (last["to"], last["transformation"]) == ("arm[j6]", "0 or 0.25")
    assert (last["action of 0"], last["action of 1"]) == (0.0, 0.25)


def test_show_summarises_images_and_texts(capsys, write, tmp_path):
    contract = changed_contract(load_contract("door_open"), {"task.instruction": "open the door"})
    (tmp_path / "door.yaml").write_text(dump_contract(contract))
    image = {"field": "camera_image", "size": [96, 96], "layout": "chw", "range": [0.0, 1.0]}
    outputs = {"action": {"parts": [{"actuator": "arm", "joints": JOINTS, "unit": "rad"}]}}
    file = write(inputs={"image": {"image": image}, "task": {"text": "instruction"}}, outputs=outputs)
    door = str(tmp_path / "door.yaml")
    seen, text = shown(capsys, file, "--contract", door, "--backend", "fake")["inputs"]
    assert seen["from"] == "camera_image"
    assert seen["value"].startswith("96x96x3 uint8, ")
    assert seen["becomes"].startswith("3x96x96 float32, ")
    assert (text["from"], text["becomes"]) == ("task.instruction", "open the door")


@pytest.fixture
def model(tmp_path):
    """Return a function that writes the ONNX model ``action = obs @ weights``, and returns its address."""
    pytest.importorskip("onnxruntime")

    def write(weights, name="obs"):
        (tmp_path / "model.onnx").write_bytes(onnx_models.linear(weights, name=name))
        return f"onnx:{tmp_path / 'model.onnx'}"

    return write


def test_check_makes_an_inference_from_one_observation(capsys, write, model):
    weights = np.zeros((12, 6))
    weights[6:, :] = np.eye(6)  # the positions, normalised
    arguments = (write(), "--contract", "arm_reach", "--policy", model(weights), "--json")
    found = json.loads(output_of(capsys, "check", *arguments).out)
    assert [*found["action"]] == JOINTS
    rows = shown(capsys, write(), "--contract", "arm_reach")
    per_degree = rows["outputs"][0]["action of 1"]
    expected = [row["becomes"] * per_degree for row in rows["inputs"][6:]]
    np.testing.assert_allclose([*found["action"].values()], expected, rtol=1e-5)


def test_check_of_a_model_without_an_action_exits_1(capsys, write, model, monkeypatch):
    class Silent:
        def reset(self, **_):
            pass

        def __call__(self, _):
            return NoAction("no model loaded")

        def close(self):
            pass

    monkeypatch.setattr(policy, "load_policy", lambda *_, **__: Silent())
    arguments = ("check", write(), "--contract", "arm_reach", "--backend", "fake", "--policy", "onnx:any")
    assert "no model loaded" in output_of(capsys, *arguments, status=1).err
    assert json.loads(output_of(capsys, *arguments, "--json", status=1).out)["no_action"] == "no model loaded"


def test_check_of_radians_that_are_written_as_degrees_exits_1(capsys, write, model):
    weights = np.zeros((12, 6))
    weights[6, 1] = 1e3
    found = output_of(capsys, "check", write(), "--contract", "arm_reach", "--policy", model(weights), status=1)
    assert "implausible: action of j2 is" in found.err
    assert "fits" not in found.out


def test_check_of_inputs_far_from_their_statistics_exits_1(capsys, write, model):
    inputs = yaml.safe_load(EXAMPLE)["inputs"]
    inputs["obs"]["normalize"]["mean"] = 400.0
    arguments = ("check", write(inputs=inputs), "--contract", "arm_reach", "--policy", model(np.zeros((12, 6))))
    (line, *_) = json.loads(output_of(capsys, *arguments, "--json", status=1).out)["implausible"]
    assert line.startswith("input joints_position[j1] is ")


WRONG: dict = {
    "another robot": (
        {},
        ("--contract", "so101_reach"),
        "policy has 6 joints; no counterpart in the contract for 'j1'",
    ),
    "an unknown key": ({"chunks": 3}, (), "unknown key 'chunks'"),
    "another rate": ({"control_period_s": 0.02}, (), "control_period_s"),
    "a backend without a profile": ({}, ("--backend", "nope"), "unknown backend 'nope'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_usage_exits_2(capsys, write, case):
    keys, arguments, message = WRONG[case]
    given = arguments if "--contract" in arguments else ("--contract", "arm_reach", *arguments)
    assert message in output_of(capsys, "show", write(**keys), *given, status=2).err


def test_model_of_other_inputs_exits_2(capsys, write, model):
    address = model(np.zeros((11, 6)))
    arguments = ("check", write(), "--contract", "arm_reach", "--policy", address)
    assert "inputs.obs" in output_of(capsys, *arguments, status=2).err


def test_draft_of_a_lerobot_policy_is_refused_until_it_is_filled_in(capsys, tmp_path):
    features = [
        {name: {"type": kind, "shape": [6]}} for name, kind in (("observation.state", "STATE"), ("action", "ACTION"))
    ]
    config = {
        "type": "act",
        "chunk_size": 8,
        "n_action_steps": 4,
        "input_features": features[0],
        "output_features": features[1],
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "meta").mkdir()
    columns = {name: {"names": JOINTS} for name in ("observation.state", "action")}
    (tmp_path / "meta" / "info.json").write_text(json.dumps({"fps": 20, "features": columns}))
    (tmp_path / "meta" / "stats.json").write_text("{}")
    out = tmp_path / "act.policy.yaml"
    source = ("--from-lerobot", str(tmp_path), "--dataset", str(tmp_path), "--contract", "door_open")
    assert "unit of outputs.action" in output_of(capsys, "init", *source, "-o", str(out), status=1).out
    assert "exists" in output_of(capsys, "init", *source, "-o", str(out), status=2).err
    below = str(out / "act.policy.yaml")
    assert "cannot write the policy file" in output_of(capsys, "init", *source, "-o", below, status=2).err
    assert "unit" in output_of(capsys, "check", str(out), "--contract", "door_open", status=2).err
    out.write_text(re.sub(r"(field|actuator): ", r"unit: deg\n      \1: ", out.read_text()))
    assert "fits door_open" in output_of(capsys, "check", str(out), "--contract", "door_open").out
    found = json.loads(output_of(capsys, "init", *source, "--json", status=1).out)
    assert found["path"] is None
    assert yaml.safe_load(found["text"])["chunk"] == {"length": 8, "execute": 4}
    assert all({*gap} == {"unknown", "remedy"} for gap in found["gaps"])
