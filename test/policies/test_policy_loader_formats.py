"""Policies in ONNX and of Stable-Baselines3 are checked before anything moves, and equal those of their library."""

import hashlib
import json
from typing import Any

import numpy as np
import onnx_models
import pytest
from evidence import assert_sound
from gymnasium import spaces
from shipped_contracts import changed_contract

import embodied_env
from embodied_env.core.policy import BatchPolicy, Policy
from embodied_env.errors import UsageError
from embodied_env.policies.onnx_model import check_graph

ARM = changed_contract(embodied_env.load_contract("arm_reach"), {"episode.horizon_steps": 5})
SIZE = spaces.flatdim(ARM.observation_space)
WEIGHTS = np.random.default_rng(0).normal(size=(SIZE, 6)) * 0.1


@pytest.fixture
def write(tmp_path):
    pytest.importorskip("onnxruntime")

    def write(data, name="policy.onnx"):
        (tmp_path / name).write_bytes(data)
        return f"onnx:{tmp_path / name}"

    return write


def observation(seed=0):
    space = ARM.observation_space
    space.seed(seed)
    return space.sample()


def test_onnx_policy_of_the_flat_observation(write):
    address = write(data := onnx_models.linear(WEIGHTS))
    policy = embodied_env.load_policy(address, ARM)
    assert isinstance(policy, Policy)
    assert isinstance(policy, BatchPolicy)
    assert (policy.identity.name, policy.identity.sha256) == (address, hashlib.sha256(data).hexdigest())
    assert policy.identity.library.startswith("onnxruntime ")
    seen = observation()
    expected = spaces.flatten(ARM.observation_space, seen).astype(np.float32) @ WEIGHTS.astype(np.float32)
    np.testing.assert_allclose(policy(seen), expected, rtol=1e-5)


@pytest.mark.parametrize("batch", ["n", 1])
def test_batch_of_an_onnx_policy_equals_single_inferences(write, batch):
    policy: Any = embodied_env.load_policy(write(onnx_models.linear(WEIGHTS, batch=batch)), ARM)
    rows = [observation(seed) for seed in range(3)]
    stacked = {key: np.stack([row[key] for row in rows]) for key in rows[0]}
    first, second, third = policy.act_batch(stacked, np.array([True, False, True]))
    assert second is None
    for found, row in ((first, rows[0]), (third, rows[2])):
        np.testing.assert_allclose(found, policy(row), rtol=1e-6)


@pytest.mark.needs("evaluation")
def test_onnx_policy_with_an_input_by_name_returns_chunks_and_runs(write, tmp_path):
    from embodied_env.extensions.evaluation.evaluation import evaluate

    address = write(onnx_models.chunked(name="joints_position", size=6, length=3))
    policy = embodied_env.load_policy(address, ARM)
    seen = observation()
    expected = [seen["joints_position"] * (step + 1) for step in range(3)]
    np.testing.assert_allclose(policy(seen), expected, rtol=1e-6)
    options = {"backend": "fake", "episodes": 1, "record": tmp_path / "runs", "clock": "virtual"}
    (done,) = evaluate(ARM, address, **options).results
    assert_sound(done.path)
    manifest = json.loads((done.path / "manifest.json").read_text())
    assert (manifest["policy"]["format"], manifest["policy"]["name"]) == ("onnx", address)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (onnx_models.linear(WEIGHTS[:-1]), rf"has the shape \({SIZE - 1},\) \(expected \({SIZE},\): "),
        (onnx_models.linear(WEIGHTS[:, :4]), r"action of the shape \(4,\) \(expected \(6,\): "),
        (onnx_models.linear(WEIGHTS[:3], name="joints_position"), r"has the shape \(3,\) \(expected \(6,\)"),
        (
            onnx_models.model(
                [onnx_models.node("Identity", ["joints_position"], ["action"])],
                [("joints_position", ("n", 6))],
                [("action", ("n", 6))],
                element=onnx_models.INT64,
            ),
            "TypeError: Cannot cast",
        ),
        (onnx_models.linear(WEIGHTS * np.nan), "values that are not finite numbers"),
        (onnx_models.linear(WEIGHTS, external="../weights"), "data in other files.*external_data=False"),
        (onnx_models.linear(WEIGHTS, domain="my.operators"), "custom operators: .*my.operators"),
        (onnx_models.linear(WEIGHTS)[:-9], "not readable"),
        (b"PK\x03\x04 a zip file", "not readable|cannot load"),
        (b"", "cannot load"),
    ],
)
def test_onnx_model_that_does_not_fit_is_refused(write, data, problem):
    with pytest.raises(UsageError, match=problem):
        embodied_env.load_policy(write(data), ARM)


def test_a_flattened_observation_is_refused(write):
    policy: Any = embodied_env.load_policy(write(onnx_models.linear(WEIGHTS)), ARM)
    with pytest.raises(
        UsageError, match=r"observation of type ndarray \(expected the dict of the environment, without"
    ):
        policy(np.zeros(SIZE))


def test_missing_file_and_wrong_options_are_refused(write):
    address = write(onnx_models.linear(WEIGHTS))
    for wrong, options, problem in (
        (f"{address}.none", {}, "cannot read ONNX policy"),
        (address, {"providers": ["CpuExecutionProvider"]}, "unknown provider .*did you mean 'CPUExecutionProvider'"),
        (f"{address}?providers=CPUExecutionProvider", {}, r"invalid providers='CPU.*' \(expected a list"),
        (f"{address}?providers=[]", {}, r"invalid providers=\[\]"),
        (f"{address}?providers=3", {}, "invalid providers=3"),
        (address, {"threads": 0}, "invalid threads"),
        (address, {"threads": 10**20}, "expected at most 1024"),
        (address, {"device": "cpu"}, "unknown option of the policy"),
    ):
        with pytest.raises(UsageError, match=problem):
            embodied_env.load_policy(wrong, ARM, **options)


def test_graph_is_bounded(monkeypatch):
    deep = onnx_models.part(5, onnx_models.part(8, "x"))
    for _ in range(20):
        deep = onnx_models.part(1, onnx_models.part(5, onnx_models.part(6, deep)))
    with pytest.raises(UsageError, match="nested too deeply"):
        check_graph("deep", onnx_models.part(7, deep))
    monkeypatch.setattr("embodied_env.policies.onnx_model.MOST_FIELDS", 10)
    nodes = [onnx_models.node("Identity", ["a"], ["b"])] * 3
    with pytest.raises(UsageError, match="too large"):
        check_graph("wide", onnx_models.model(nodes, [], []))


def test_a_field_is_not_hidden_from_the_check():
    number = onnx_models.varint((7 << 3 | 2) + 2**32)  # protobuf reads 7, the graph
    with pytest.raises(UsageError, match="a field of a number above"):
        check_graph("hidden", number + onnx_models.varint(0))


def test_a_file_in_another_format_of_onnxruntime_is_not_loaded(write):
    """The check reads this file as protobuf, but by its marker onnxruntime would read it as a flatbuffer."""
    with pytest.raises(UsageError, match="No graph was found in the protobuf"):
        embodied_env.load_policy(write(onnx_models.part(3, b"\0\0ORTM" + bytes(10))), ARM)


def test_an_endless_loop_is_refused(write, monkeypatch):
    monkeypatch.setattr("embodied_env.policies.onnx_model._LONGEST_S", 0.05)
    with pytest.raises(UsageError, match=r"inference of a plausible observation failed: .*terminate flag"):
        embodied_env.load_policy(write(onnx_models.endless(WEIGHTS)), ARM)


@pytest.fixture(scope="module")
def sb3(tmp_path_factory):
    """Return the folder of untrained models with a flat and a dict observation."""
    stable_baselines3 = pytest.importorskip("stable_baselines3")
    import gymnasium

    folder = tmp_path_factory.mktemp("sb3")
    env = embodied_env.make(ARM, backend="fake", clock="virtual")
    small = {"policy_kwargs": {"net_arch": [8]}, "device": "cpu", "seed": 0}
    models = {
        "ppo_dict": stable_baselines3.PPO("MultiInputPolicy", env, n_steps=8, batch_size=8, **small),
        "sac_flat": stable_baselines3.SAC("MlpPolicy", gymnasium.wrappers.FlattenObservation(env), **small),
    }
    for name, model in models.items():
        model.save(folder / name)
    env.close()
    return folder, models


def test_sb3_policy_needs_trust(sb3):
    with pytest.raises(UsageError, match=r"policy not trusted.*--trust-policy"):
        embodied_env.load_policy(f"sb3:{sb3[0] / 'ppo_dict.zip'}", ARM)


def test_sb3_policy_draws_from_its_own_seed(sb3):
    import torch

    address = f"sb3:{sb3[0] / 'ppo_dict.zip'}"
    policies = [embodied_env.load_policy(address, ARM, trust=True, deterministic=False) for _ in range(2)]
    before = torch.get_rng_state()
    for policy in policies:
        policy.reset(seed=3, episode_index=0)
    drawn = [[policy(observation()).tolist() for policy in policies] for _ in range(2)]
    assert drawn[0][0] == drawn[0][1] != drawn[1][0] == drawn[1][1]
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", ["ppo_dict", "sac_flat"])
def test_sb3_policy_equals_its_library(sb3, name):
    folder, models = sb3
    policy = embodied_env.load_policy(f"sb3:{folder / name}.zip", ARM, trust=True)
    seen = observation()
    given = seen if name == "ppo_dict" else spaces.flatten(ARM.observation_space, seen)
    expected, _ = models[name].predict(given, deterministic=True)
    np.testing.assert_allclose(policy(seen), expected, atol=1e-6)
    assert policy.identity.library.startswith("stable-baselines3 ")


def test_sb3_policy_takes_images_as_the_contract_has_them(tmp_path):
    """Stable-Baselines3 saves a model whose images have the channels first."""
    stable_baselines3 = pytest.importorskip("stable_baselines3")

    contract = embodied_env.load_contract("door_open")
    env = embodied_env.make(contract, backend="fake", clock="virtual")
    model = stable_baselines3.PPO("MultiInputPolicy", env, n_steps=8, batch_size=8, seed=0, device="cpu")
    model.save(tmp_path / "model")
    policy = embodied_env.load_policy(f"sb3:{tmp_path / 'model.zip'}", contract, trust=True)
    seen, _ = env.reset(seed=0)
    env.close()
    expected, _ = model.predict(seen, deterministic=True)
    np.testing.assert_allclose(policy(seen), expected, atol=1e-6)


def test_sb3_policy_of_another_contract_is_refused(sb3):
    address = f"sb3:{sb3[0] / 'ppo_dict.zip'}"
    with pytest.raises(UsageError, match="expected keys of the observation"):
        embodied_env.load_policy(address, embodied_env.load_contract("cart_goal"), trust=True)
    physical = changed_contract(ARM, {"actuators.arm.scale": "physical"})
    with pytest.raises(UsageError, match="action space"):
        embodied_env.load_policy(address, physical, trust=True)


@pytest.mark.needs("evaluation")
def test_sb3_policy_is_evaluated_from_the_command_line(sb3, tmp_path, capsys):
    from embodied_env.cli.main import main

    address = f"sb3:{sb3[0] / 'ppo_dict.zip'}"
    arguments = ["evaluate", "arm_reach", "--backend", "fake", "--episodes", "1", "--policy", address]
    assert main([*arguments, "--out", str(tmp_path / "runs")]) == 2
    assert "--trust-policy" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
    assert main([*arguments, "--trust-policy", "--out", str(tmp_path / "runs")]) == 0
