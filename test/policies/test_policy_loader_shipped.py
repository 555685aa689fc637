"""The learned policies that ship with the package."""

import json

import pytest
from evidence import assert_sound

import embodied_env
from embodied_env.contract.contract_loader import shipped_files
from embodied_env.errors import UsageError
from embodied_env.policies.policy_file import SUFFIX, read_policy_file

pytest.importorskip("onnxruntime")
NAMES = sorted(shipped_files("policies", ".onnx"))


@pytest.mark.parametrize("name", NAMES)
def test_shipped_policy_is_small_and_of_the_present_contract(name):
    file = shipped_files("policies", ".onnx")[name]
    assert file.stat().st_size < 200_000
    policy_file = read_policy_file(file.with_name(f"{name}{SUFFIX}"))
    assert policy_file.contract is not None
    contract = embodied_env.load_contract(policy_file.contract.name)
    assert policy_file.difference(contract) == ""


@pytest.mark.needs("evaluation")
def test_learned_policy_of_the_arm_solves_its_task(tmp_path):
    contract = embodied_env.load_contract("arm_reach")
    (done,) = embodied_env.evaluate(contract, "onnx:arm_reach", episodes=5, record=tmp_path).results
    assert done.summary["success_rate"] == 1.0
    assert_sound(done.path)
    manifest = json.loads((done.path / "manifest.json").read_text())
    assert manifest["policy"]["name"] == "onnx:arm_reach"


def test_unknown_name_lists_the_shipped_policies():
    expected = r"unknown ONNX policy: 'arm_reech' \(expected a file, or one of: .*arm_reach.*did you mean 'arm_reach'"
    with pytest.raises(UsageError, match=expected):
        embodied_env.load_policy("onnx:arm_reech", embodied_env.load_contract("arm_reach"))
