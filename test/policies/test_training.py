"""Training examples: ends of episodes, saved policies, seeds, and learning."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec

import gymnasium
import numpy as np
import pytest
from lazy_modules import LazyModule
from learnable_tasks import follow
from scaling import BOUND, LEARNED_POLICY, action_box

import embodied_env
from embodied_env.contract.loader import dump_contract
from embodied_env.errors import UsageError

torch, env_checker, monitor, sb3_policy, sb3_training, torch_policy, train_ppo, train_ppo_torch, train_sac, training = (
    map(
        LazyModule,
        (
            *(
                "torch",
                "stable_baselines3.common.env_checker",
                "stable_baselines3.common.monitor",
                "sb3_policy",
                "sb3_training",
                "torch_policy",
            ),
            *("train_ppo", "train_ppo_torch", "train_sac", "training"),
        ),
    )
)
pytestmark = pytest.mark.skipif(
    not (find_spec("torch") and find_spec("stable_baselines3")), reason="needs torch and Stable-Baselines3: extra train"
)
IDS = [f"embodied_env:embodied_env/{name}-v0" for name in ("ArmReach", "CartGoal", "DoorOpen")]


@pytest.fixture
def contract_file(tmp_path):
    path = tmp_path / "follow.yaml"
    path.write_text(dump_contract(follow()))
    return path


@pytest.fixture
def begin(contract_file, tmp_path):
    """Return a function that starts a short training in the fake world."""

    def started(algorithm, *more, contract=contract_file):
        parser = training.parser(None, steps=64, num_envs=2)
        fixed = ["--backend", "fake", "--quiet", "--out", str(tmp_path / "runs"), "--feature-steps", "200"]
        args = parser.parse_args([str(contract), *fixed, "--evaluate", "fake", "--episodes", "2", *more])
        return training.started(algorithm, args)

    return started


def rollout(**changes):
    """Three steps of one environment: rewards 1, values 0, and a value of 10 after each."""
    shape = (3, 1)
    values = {"rewards": torch.ones(shape), "values": torch.zeros(shape), "next_values": torch.full(shape, 10.0)}
    endings = {"terminated": torch.zeros(shape), "ended": torch.zeros(shape)}
    nothing = dict.fromkeys(("features", "actions", "log_probabilities"), torch.zeros(shape))
    return train_ppo_torch.Rollout(**{**nothing, **values, **endings, **changes})


def at(step):
    found = torch.zeros(3, 1)
    found[step] = 1.0
    return found


def test_terminated_episode_does_not_bootstrap():
    found = train_ppo_torch.advantages(rollout(terminated=at(1), ended=at(1)))
    assert found[1].item() == pytest.approx(1.0)


def test_truncated_episode_bootstraps_from_last_state():
    found = train_ppo_torch.advantages(rollout(ended=at(1)))
    assert found[1].item() == pytest.approx(1.0 + 10.0 * train_ppo_torch.GAMMA)


def test_returns_do_not_leak_across_episodes():
    truncated = train_ppo_torch.advantages(rollout(ended=at(1)))
    later = train_ppo_torch.advantages(rollout(ended=at(1), rewards=torch.tensor([[1.0], [1.0], [500.0]])))
    assert torch.equal(truncated[:2], later[:2])


def test_later_steps_contribute_within_an_episode():
    factor = train_ppo_torch.GAMMA * train_ppo_torch.LAMBDA
    error = 1.0 + 10.0 * train_ppo_torch.GAMMA
    found = train_ppo_torch.advantages(rollout())
    assert found[0].item() == pytest.approx(error * (1 + factor + factor**2), rel=1e-5)


def test_end_of_episode_is_valued_by_final_observation(begin):
    """After 30 steps the time limit truncates, and the vector environment shows the next episode's first observation."""
    with begin("ppo_torch") as run:
        worlds = gymnasium.vector.SyncVectorEnv(run.makers(), autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP)
        agent = train_ppo_torch.Agent(len(run.scaling.mean), 1)
        with torch.no_grad():
            agent.mean[-1].weight.zero_()
            agent.log_std.fill_(-20.0)  # joint and target stay where they are until the next episode
        collector = train_ppo_torch.Collector(worlds, 6)
        found = collector.collect(agent, 30)
        worlds.close()
    assert found.ended[-1].all()
    assert not found.terminated.any()
    assert torch.allclose(found.next_values[-1], found.values[-1], atol=1e-4)
    next_episode = agent.value(torch.from_numpy(collector._features)).squeeze(-1)
    assert not torch.allclose(found.next_values[-1], next_episode, atol=1e-2)


@pytest.mark.parametrize("example", [pytest.param(train_sac, marks=pytest.mark.long), train_ppo], ids=["sac", "ppo"])
def test_saved_model_acts_like_trained_model(begin, monkeypatch, example):
    with begin(example.__name__.removeprefix("train_"), "--num-envs", "1") as run:
        env = run.make_env()
        model = example.make(run, env)
        monkeypatch.setenv(LEARNED_POLICY, str(sb3_training.save(run, model, name="final")))
        observation, _ = env.env.reset(seed=3)
        for _ in range(5):
            output, _ = model.predict(run.scaling.features(observation), deterministic=True)
            action = sb3_policy.act(observation)
            assert action == pytest.approx(run.scaling.action(output), abs=1e-6)
            observation, *_ = env.env.step(action)
        env.close()


def test_saved_perceptron_acts_like_trained_one(begin, monkeypatch):
    with begin("ppo_torch") as run:
        folder = train_ppo_torch.train(run)
        monkeypatch.setenv(LEARNED_POLICY, str(folder))
        _, network = torch_policy.load(folder)
        observation = {key: np.ones(box.shape) for key, box in run.contract.observation_space.items()}
        output = network(torch.from_numpy(run.scaling.features(observation))).detach().clamp(-1.0, 1.0).numpy()
        assert np.array_equal(torch_policy.act(observation), run.scaling.action(output))


def test_output_is_scaled_and_clipped_to_action_space(begin):
    with begin("ppo_torch") as run:
        scaling = replace(run.scaling, low=np.array([-1.0]), high=np.array([3.0]))
    assert [scaling.action(np.array([value])).item() for value in (-9.0, -0.5, 0.0, 9.0)] == [-1.0, 0.0, 1.0, 3.0]


def test_features_are_clipped(begin):
    with begin("ppo_torch") as run:
        far = {key: np.full(box.shape, 1e12) for key, box in run.contract.observation_space.items()}
    assert run.scaling.features(far).max() == BOUND


def test_policy_requires_its_folder(monkeypatch):
    monkeypatch.delenv(LEARNED_POLICY, raising=False)
    with pytest.raises(UsageError, match="LEARNED_POLICY is not set"):
        torch_policy.act({})


def test_training_is_deterministic_per_seed(begin):
    weights = []
    for seed in ("1", "1", "2"):
        with begin("ppo_torch", "--seed", seed) as run:
            _, network = torch_policy.load(train_ppo_torch.train(run))
            weights.append(network[-1].weight)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_joint_learns_to_follow(begin):
    """Holding still succeeds when the target is drawn at the joint: in one of ten episodes."""
    with begin("ppo_torch", "--steps", "3072", "--num-envs", "4", "--episodes", "20") as run:
        training.evaluate(run, train_ppo_torch.POLICY, train_ppo_torch.train(run), 0.0)
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["evaluations"]["fake"]["success_rate"] >= 0.9
    assert summary["evaluations"]["fake"]["problem"] == ""


@pytest.mark.parametrize("example", [train_sac, train_ppo], ids=["sac", "ppo"])
def test_stable_baselines3_trains_saves_resumes_and_evaluates(begin, example):
    name = example.__name__.removeprefix("train_")
    steps = ("--checkpoint-every", "40")
    with begin(name, *steps) as run:
        example.run(run)
    summary = json.loads((run.path / "summary.json").read_text())
    final = run.path / "checkpoints" / "final"
    assert summary["evaluations"]["fake"]["episodes"] == 2
    assert summary["policy"] == {"address": "sb3_policy:act", "folder": str(final)}
    assert len(list((run.path / "checkpoints").iterdir())) >= 2
    with begin(name, "--resume", str(final)) as resumed:
        example.run(resumed)
    (first, before), (then, after) = (
        sb3_policy.load(path / "checkpoints" / "final") for path in (run.path, resumed.path)
    )
    assert after.num_timesteps >= before.num_timesteps + 64
    assert np.array_equal(then.mean, first.mean)


def test_policy_of_another_contract_is_not_resumed(begin, tmp_path, capsys):
    with begin("ppo_torch") as run:
        final = train_ppo_torch.train(run)
    (tmp_path / "wider.yaml").write_text(dump_contract(follow(**{"radius_rad: 0.1": "radius_rad: 0.2"})))
    with (
        pytest.raises(SystemExit, match="2"),
        begin("ppo_torch", "--resume", str(final), contract=tmp_path / "wider.yaml"),
    ):
        pass
    assert "trained under the fingerprint" in capsys.readouterr().err


def test_folder_without_policy_is_not_resumed(begin, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"), begin("ppo_torch", "--resume", str(tmp_path)):
        pass
    assert f"policy not readable in {tmp_path}" in capsys.readouterr().err


@pytest.mark.parametrize(("option", "value"), [("--steps", "0"), ("--num-envs", "0"), ("--seed", "-1")])
def test_invalid_number_is_named(begin, capsys, option, value):
    with pytest.raises(SystemExit, match="2"), begin("ppo_torch", option, value):
        pass
    assert f"{option}: {value}" in capsys.readouterr().err


@pytest.mark.filterwarnings(
    "ignore:It seems that your observation:UserWarning"
)  # a depth image is not an image for a CNN
@pytest.mark.parametrize("env_id", IDS)
def test_stable_baselines3_env_checker_passes(env_id):
    env = gymnasium.make(env_id, backend="fake", clock="virtual")
    try:
        env_checker.check_env(env)
    finally:
        env.close()


def test_wrapped_env_passes_checks_without_warnings(begin):
    with begin("checked") as run:
        env = run.make_env()
        env_checker.check_env(env)
        env.close()


def test_examples_learn_shipped_contracts():
    for name in ("arm_reach", "cart_goal", "door_open"):
        action_box(embodied_env.load_contract(name))


def test_sb3_monitor_writes_its_own_key():
    env = monitor.Monitor(gymnasium.make(IDS[0], backend="fake", clock="virtual"))
    env.reset(seed=1)
    info, done = {}, False
    while not done:
        *_, terminated, truncated, info = env.step(env.action_space.sample())
        done = terminated or truncated
    env.close()
    assert info["episode"]["l"] == info["step_index"]
