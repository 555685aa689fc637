"""What was learned knows its contract: it is saved, loaded, and refused under another one."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import embodied_env
from embodied_env.cli import main
from embodied_env.contract.loader import dump_contract
from embodied_env.errors import RecordError, UsageError
from embodied_env.policies.checkpoint import (
    Actor,
    Features,
    flat_action_space,
    load_checkpoint,
    save_checkpoint,
    vector_keys,
)
from embodied_env.policies.loader import make_policy

ARM = embodied_env.load_contract("arm_reach")
LARGER = replace(ARM, task=replace(ARM.task, parameters={**ARM.task.parameters, "success_radius_m": 0.05}))
ELSEWHERE = replace(
    ARM,
    name="another_arm",
    backends={"fake": {}},
    sensors={**ARM.sensors, "tcp": replace(ARM.sensors["tcp"], topic="somewhere/else")},
)


def actor_of(contract, *, activation="relu", output="tanh", seed=0):
    rng = np.random.default_rng(seed)
    keys = vector_keys(contract)
    size = sum(contract.observation_space[key].shape[0] for key in keys)
    space = flat_action_space(contract)
    sizes = (size, 8, space.shape[0])
    layers = tuple(
        (rng.normal(size=(b, a)).astype(np.float32), rng.normal(size=b).astype(np.float32)) for a, b in pairwise(sizes)
    )
    features = Features(keys=keys, mean=rng.normal(size=size), scale=rng.uniform(0.5, 2, size))
    return Actor(features=features, layers=layers, activation=activation, output=output, low=space.low, high=space.high)


def one_number(output, *, bias=0.0, low=-1.0, high=3.0):
    """An actor of one reading and one action element, that hands the feature through."""
    features = Features(keys=("x",), mean=np.array([1.0]), scale=np.array([0.5]))
    layer = (np.ones((1, 1), np.float32), np.array([bias], np.float32))
    return Actor(
        features=features,
        layers=(layer,),
        activation="relu",
        output=output,
        low=np.array([low]),
        high=np.array([high]),
    )


@pytest.fixture
def saved(tmp_path):
    return save_checkpoint(tmp_path / "learned", ARM, actor_of(ARM), {"algorithm": "none", "steps": 3})


@pytest.mark.parametrize(("activation", "output"), [("relu", "tanh"), ("tanh", "clip")])
def test_what_is_loaded_acts_as_what_was_saved(tmp_path, activation, output):
    actor = actor_of(ARM, activation=activation, output=output)
    path = save_checkpoint(tmp_path / "learned", ARM, actor, {"steps": 3})
    loaded = load_checkpoint(path, ARM)
    for seed in range(5):
        ARM.observation_space.seed(seed)
        observation = ARM.observation_space.sample()
        action = loaded.actor(observation)
        assert np.array_equal(action, actor(observation))
        assert ARM.action_space.contains(action)
    assert loaded.training == {"steps": 3}


def test_another_contract_is_refused_with_the_difference(saved):
    with pytest.raises(UsageError, match=r"success_radius_m: 0\.03, now 0\.05") as refused:
        load_checkpoint(saved, LARGER)
    assert "learned under arm_reach v1" in str(refused.value)


def test_a_contract_that_differs_in_much_is_refused_in_a_few_words(saved):
    with pytest.raises(UsageError, match=r"; and \d+ more$") as refused:
        load_checkpoint(saved, embodied_env.load_contract("cart_goal"))
    assert len(str(refused.value)) < 10_000


def test_the_same_contract_by_another_name_on_other_topics_and_backends_is_none_other(saved):
    assert load_checkpoint(saved, ELSEWHERE).contract["name"] == "arm_reach"


def test_weights_that_were_exchanged_are_refused(saved, tmp_path):
    other = save_checkpoint(tmp_path / "other", ARM, actor_of(ARM, seed=1), {})
    (other / "actor.npz").replace(saved / "actor.npz")
    with pytest.raises(RecordError, match="SHA-256"):
        load_checkpoint(saved, ARM)


def test_weights_that_are_gone_are_named(saved):
    (saved / "actor.npz").unlink()
    with pytest.raises(RecordError, match=r"actor\.npz"):
        load_checkpoint(saved, ARM)


def test_a_folder_without_a_checkpoint_is_named(tmp_path):
    with pytest.raises(RecordError, match="no checkpoint can be read"):
        load_checkpoint(tmp_path, ARM)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"schema": "embodied_env/checkpoint/9"}, "allowed: 'embodied_env/checkpoint/1'"),
        ({"training": None}, "training is missing"),
    ],
)
def test_a_text_that_is_wrong_is_named(saved, change, problem):
    text = json.loads((saved / "checkpoint.json").read_text()) | change
    (saved / "checkpoint.json").write_text(json.dumps({k: v for k, v in text.items() if v is not None}))
    with pytest.raises(RecordError, match=problem):
        load_checkpoint(saved, ARM)


@pytest.mark.parametrize(("key", "allowed"), [("activation", "relu, tanh"), ("output", "tanh, clip")])
def test_a_form_of_network_that_is_not_known_is_named(saved, key, allowed):
    text = json.loads((saved / "checkpoint.json").read_text())
    text["actor"][key] = "swish"
    (saved / "checkpoint.json").write_text(json.dumps(text))
    with pytest.raises(RecordError, match=f"actor.{key} 'swish'; allowed: {allowed}"):
        load_checkpoint(saved, ARM)


def test_a_checkpoint_is_never_written_over(saved):
    with pytest.raises(UsageError, match="there is a checkpoint already"):
        save_checkpoint(saved, ARM, actor_of(ARM), {})


@pytest.mark.parametrize(
    ("output", "bias", "action"),
    [
        ("tanh", 0.0, 1.0 + 2.0 * np.tanh(2.0)),
        ("tanh", 100.0, 3.0),
        ("clip", -1.5, 2.0),
        ("clip", 100.0, 3.0),
        ("clip", -100.0, -1.0),
    ],
)
def test_an_action_is_brought_into_the_action_space(output, bias, action):
    """The feature of 2 is (2 - 1) / 0.5; the middle of the space is 1, and half its width 2."""
    found = one_number(output, bias=bias)({"x": np.array([2.0])})
    assert found == pytest.approx([action], rel=1e-6)


def test_a_reading_out_of_the_ordinary_saturates():
    features = one_number("clip").features
    assert features({"x": np.array([1e9])}).tolist() == [10.0]
    assert features({"x": np.array([-1e9])}).tolist() == [-10.0]


def test_images_are_left_out_of_what_a_perceptron_sees():
    door = embodied_env.load_contract("door_open")
    keys = vector_keys(door)
    assert "joints_position" in keys
    assert {key for key, box in door.observation_space.items() if len(box.shape) > 1}.isdisjoint(keys)


def test_a_learned_policy_is_evaluated_by_its_folder(saved, tmp_path, capsys):
    asked = ["evaluate", "arm_reach", "--backend", "fake", "--episodes", "1", "--out", str(tmp_path / "runs"), "--json"]
    status = main([*asked, "--policy", f"checkpoint:{saved}"])
    assert status == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["summary"]["steps"] == 200


def test_a_policy_learned_under_another_contract_is_refused_by_evaluate(saved, tmp_path, capsys):
    (tmp_path / "larger.yaml").write_text(dump_contract(LARGER))
    asked = ["evaluate", str(tmp_path / "larger.yaml"), "--backend", "fake", "--out", str(tmp_path / "runs")]
    status = main([*asked, "--policy", f"checkpoint:{saved}"])
    assert status == 2
    assert "success_radius_m: 0.03, now 0.05" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_what_policies_there_are_is_said(capsys):
    with pytest.raises(UsageError, match="checkpoint:FOLDER"):
        make_policy("checkpoint", ARM, backend="fake", seed=0)
