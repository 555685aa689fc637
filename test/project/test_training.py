import json
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

import gymnasium
import numpy as np
import pytest
from learnable_tasks import follow

import embodied_env
from embodied_env.contract.contract_loader import dump_contract
from embodied_env.policies.policy_file import write_policy_file

if TYPE_CHECKING:  # a fixture imports them
    import policy_mapping
    import torch
    import train_ppo
    import train_sac
    import training

NEEDED = ("torch", "stable_baselines3", "onnx", "onnxruntime")
pytestmark = [
    pytest.mark.needs("evaluation", "vector"),  # as the examples
    pytest.mark.skipif(not all(map(find_spec, NEEDED)), reason=f"needs {', '.join(NEEDED)}: extra train"),
]
IDS = [f"embodied_env:embodied_env/{name}-v0" for name in ("ArmReach", "CartGoal", "DoorOpen")]


@pytest.fixture(scope="module", autouse=True)
def imported_modules():
    """Import what only the worker that runs this file needs, and not each one that collects it."""
    for name in ("policy_mapping", "torch", "train_ppo", "train_sac", "training"):
        globals()[name] = import_module(name)


@pytest.fixture
def contract_file(tmp_path):
    path = tmp_path / "follow.yaml"
    path.write_text(dump_contract(follow()))
    return path


@pytest.fixture
def begin(contract_file, tmp_path):
    """Return a function that starts a short training in the fake world."""

    def started(algorithm, *more, contract=contract_file):
        parser = training.parser(None, steps=64, num_envs=2, gamma=0.97)
        parser.set_defaults(minibatches=train_ppo.MINIBATCHES, entropy=train_sac.ENTROPY)
        fixed = ["--backend", "fake", "--quiet", "--out", str(tmp_path / "runs"), "--feature-steps", "50"]
        args = parser.parse_args([str(contract), *fixed, "--evaluate", "fake", "--episodes", "2", *more])
        return training.started(algorithm, args)

    return started


def rollout(**changes):
    """Three steps of one environment with rewards 1, values 0, and a value of 10 after each."""
    shape = (3, 1)
    values = {"rewards": torch.ones(shape), "values": torch.zeros(shape), "next_values": torch.full(shape, 10.0)}
    endings = {"terminated": torch.zeros(shape), "ended": torch.zeros(shape)}
    nothing = dict.fromkeys(("features", "actions", "log_probabilities"), torch.zeros(shape))
    return train_ppo.Rollout(**{**nothing, **values, **endings, **changes})


def at(step):
    found = torch.zeros(3, 1)
    found[step] = 1.0
    return found


def test_only_a_truncated_episode_bootstraps_from_its_last_state():
    terminated, truncated = (train_ppo.advantages(rollout(ended=at(1), **each)) for each in ({"terminated": at(1)}, {}))
    assert terminated[1].item() == pytest.approx(1.0)
    assert truncated[1].item() == pytest.approx(1.0 + 10.0 * train_ppo.GAMMA)


def test_returns_do_not_leak_across_episodes():
    truncated = train_ppo.advantages(rollout(ended=at(1)))
    later = train_ppo.advantages(rollout(ended=at(1), rewards=torch.tensor([[1.0], [1.0], [500.0]])))
    assert torch.equal(truncated[:2], later[:2])


def test_end_of_episode_is_valued_by_final_observation(begin, close_later):
    """After 30 steps the time limit truncates, and the vector environment shows the next episode's first observation."""
    with begin("ppo") as run:
        worlds = close_later(run.make_worlds(2))
        agent = train_ppo.Agent(worlds.single_observation_space.shape[0], 1)
        with torch.no_grad():
            agent.mean[-1].weight.zero_()
            agent.log_std.fill_(-20.0)  # joint and target stay where they are until the next episode
        collector = train_ppo.Collector(worlds, 6)
        found = collector.collect(agent, 30)
    assert found.ended[-1].all()
    assert not found.terminated.any()
    assert torch.allclose(found.next_values[-1], found.values[-1], atol=1e-4)
    next_episode = agent.value(torch.from_numpy(collector._features)).squeeze(-1)
    assert not torch.allclose(found.next_values[-1], next_episode, atol=1e-2)


def loaded(run, folder, format_name):
    address = f"{format_name}:{folder / 'policy'}.{'zip' if format_name == 'sb3' else 'onnx'}"
    return embodied_env.load_policy(address, run.contract, trust=True)


def test_saved_policies_act_like_trained_model(begin, close_later):
    with begin("sac", "--num-envs", "1") as run:
        env = close_later(run.make_env())
        model = train_sac.make(run, env)
        folder = train_sac.save(run, model, name="final")
    onnx_policy, sb3_policy = (loaded(run, folder, name) for name in ("onnx", "sb3"))
    space = run.contract.observation_space
    space.seed(1)
    for observation in (space.sample() for _ in range(50)):
        output, _ = model.predict(env.features(observation), deterministic=True)
        expected = env.action_of(output)
        assert sb3_policy(observation) == pytest.approx(expected, abs=1e-6)
        assert onnx_policy(observation) == pytest.approx(expected, abs=1e-6)


def test_saved_perceptron_acts_like_trained_one(begin, close_later):
    with begin("ppo") as run:
        agent = train_ppo.Agent(4, 1)
        with torch.no_grad():
            agent.mean[-1].bias.fill_(0.9)
            agent.mean[-1].weight.mul_(100.0)
        folder = train_ppo.save(run, agent, torch.optim.Adam(agent.parameters()), "final")
    policy, env = loaded(run, folder, "onnx"), close_later(run.make_env())
    space = run.contract.observation_space
    space.seed(2)
    actions = []
    for observation in (space.sample() for _ in range(50)):
        mean = agent.mean(torch.from_numpy(env.features(observation))).detach()
        actions.append(policy(observation).item())
        assert actions[-1] == pytest.approx(mean.clamp(-1.0, 1.0).item(), abs=1e-6)
    assert max(actions) == 1.0 > min(actions)


@pytest.mark.parametrize("scale", ["normalized", "physical"])
def test_outputs_span_the_action_space(begin, close_later, contract_file, scale):
    contract_file.write_text(dump_contract(follow(**{"scale: normalized": f"scale: {scale}"})))
    with begin("ppo") as run:
        env, space = close_later(run.make_env()), run.contract.action_space
        env.reset(seed=0)
        found = [env.action_of(np.array([output])).item() for output in (-1.0, 0.5, 1.0)]
    assert found == pytest.approx(np.interp((-1.0, 0.5, 1.0), (-1.0, 1.0), (space.low.item(), space.high.item())))


def test_features_are_clipped(begin, close_later):
    with begin("ppo") as run:
        env = close_later(run.make_env())
        far = {key: np.full(box.shape, 1e12) for key, box in run.contract.observation_space.items()}
        assert env.features(far).max() == policy_mapping.BOUND


def test_only_perceptrons_are_exported(tmp_path):
    import onnx_export

    with pytest.raises(TypeError, match=r"unsupported layer: Sigmoid.*torch.onnx.export"):
        onnx_export.save_onnx(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sigmoid()), tmp_path / "policy.onnx")


def test_training_is_deterministic_per_seed(begin):
    networks = []
    for seed in ("1", "1", "2"):
        with begin("ppo", "--seed", seed) as run:
            networks.append((train_ppo.train(run) / "policy.onnx").read_bytes())
    assert networks[0] == networks[1] != networks[2]


def test_joint_learns_to_follow(begin):
    """Holding still succeeds in one of ten episodes, where the target is drawn at the joint."""
    with begin("ppo", "--steps", "2048", "--num-envs", "4", "--episodes", "20") as run:
        training.evaluate(run, train_ppo.train(run))
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["evaluations"]["fake"]["success_rate"] >= 0.9
    assert summary["evaluations"]["fake"]["problem"] == ""


def test_stable_baselines3_trains_saves_resumes_and_evaluates(begin):
    with begin("sac", "--checkpoint-every", "40") as run:
        train_sac.run(run)
    summary = json.loads((run.path / "summary.json").read_text())
    final = run.path / "checkpoints" / "final"
    assert summary["evaluations"]["fake"]["episodes"] == 2
    assert summary["policy"] == f"onnx:{final / 'policy.onnx'}"
    assert len(list((run.path / "checkpoints").iterdir())) >= 2
    with begin("sac", "--resume", str(final)) as resumed:
        train_sac.run(resumed)
    finals = [path / "checkpoints" / "final" for path in (run.path, resumed.path)]
    from stable_baselines3 import SAC

    before, after = (SAC.load(folder / "policy.zip").num_timesteps for folder in finals)
    assert after >= before + 64
    first, then = ((folder / "policy.policy.yaml").read_bytes() for folder in finals)
    assert first == then


def test_policy_of_another_contract_is_not_resumed(begin, tmp_path, capsys):
    with begin("ppo") as run:
        final = train_ppo.train(run)
    (tmp_path / "wider.yaml").write_text(dump_contract(follow(**{"radius_rad: 0.1": "radius_rad: 0.2"})))
    with pytest.raises(SystemExit, match="2"), begin("ppo", "--resume", str(final), contract=tmp_path / "wider.yaml"):
        pass
    assert "task.parameters.radius_rad: 0.2 (trained under 0.1)" in capsys.readouterr().err


@pytest.mark.filterwarnings(
    "ignore:It seems that your observation:UserWarning"
)  # a depth image is not an image for a CNN
@pytest.mark.parametrize("env_id", IDS)
def test_stable_baselines3_env_checker_passes(close_later, env_id):
    from stable_baselines3.common.env_checker import check_env

    check_env(close_later(gymnasium.make(env_id, backend="fake", clock="virtual")))


def test_policy_file_has_the_statistics_of_vec_normalize(tmp_path):
    import sb3_export
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    contract = embodied_env.load_contract("arm_reach")
    vectors = [key for key, box in contract.observation_space.items() if box.dtype.kind == "f"]
    worlds = DummyVecEnv([lambda: embodied_env.make(contract, backend="fake", clock="virtual")])
    worlds = VecNormalize(worlds, norm_obs_keys=vectors)
    model = PPO("MultiInputPolicy", worlds, n_steps=32, batch_size=32, n_epochs=1, seed=0, device="cpu").learn(64)
    seen = worlds.get_original_obs()
    expected, _ = model.predict(worlds.normalize_obs(seen), deterministic=True)
    worlds.close()
    model.save(tmp_path / "policy.zip")
    write_policy_file(tmp_path / "policy.policy.yaml", sb3_export.policy_file_of(model, contract, statistics=worlds))
    policy = embodied_env.load_policy(f"sb3:{tmp_path / 'policy.zip'}", contract, trust=True)
    assert policy({key: values[0] for key, values in seen.items()}) == pytest.approx(expected[0], abs=1e-5)


def test_slots_step_like_environments_of_stable_baselines3(close_later):
    import sb3_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv

    options: dict = {"backend": "fake", "clock": "virtual"}
    ours = close_later(sb3_vec_env.SlotsVecEnv(follow(), 2, **options))
    theirs = close_later(DummyVecEnv([lambda: embodied_env.make(follow(), **options)] * 2))
    rng, ends = np.random.default_rng(0), 0
    for worlds in (ours, theirs):
        worlds.seed(5)
    resets = [worlds.reset() for worlds in (ours, theirs)]
    for key in resets[0]:
        np.testing.assert_array_equal(*(seen[key] for seen in resets))
    for _ in range(70):
        actions = rng.uniform(-1, 1, (2, 1)).astype(np.float32)
        (seen, rewards, done, infos), expected = (worlds.step(actions) for worlds in (ours, theirs))
        for key, values in seen.items():
            np.testing.assert_array_equal(values, expected[0][key])
        np.testing.assert_array_equal(rewards, expected[1])
        np.testing.assert_array_equal(done, expected[2])
        for slot in np.flatnonzero(done):
            ends += 1
            mine, other = infos[slot], expected[3][slot]
            for key in ("end_reason", "is_success", "TimeLimit.truncated"):
                assert mine[key] == other[key]
            for key, values in mine["terminal_observation"].items():
                np.testing.assert_array_equal(values, other["terminal_observation"][key])
    assert ends >= 4


@pytest.mark.parametrize("name", ["arm_reach", "cart_goal", "door_open"])
def test_slots_are_mapped_like_single_environments(close_later, name):
    contract = policy_mapping.without_images(embodied_env.load_contract(name))
    options: dict = {"backend": "fake", "clock": "virtual"}
    direction = {"cart_goal": "goal_position"}.get(name)
    file = policy_mapping.measure_policy_file(contract, "fake", name=name, seed=0, steps=2, direction=direction)
    worlds = close_later(training.make_worlds(contract, file, 2, max_episode_steps=3, **options))
    made = [close_later(embodied_env.make(contract, max_episode_steps=3, **options)) for _ in range(2)]
    singles = [policy_mapping.MappedEnv(env, contract, file) for env in made]
    seen, _ = worlds.reset(seed=0)
    np.testing.assert_array_equal(seen, [env.reset(seed=slot)[0] for slot, env in enumerate(singles)])
    rng, ends = np.random.default_rng(0), 0
    for _ in range(4):
        actions = rng.uniform(-1, 1, worlds.action_space.shape).astype(np.float32)
        seen, _, terminated, truncated, infos = worlds.step(actions)
        for slot, env in enumerate(singles):
            expected, *_ = env.step(actions[slot])
            if terminated[slot] or truncated[slot]:
                np.testing.assert_array_equal(infos["final_obs"][slot], expected)
                expected, ends = env.reset()[0], ends + 1
            np.testing.assert_array_equal(seen[slot], expected)
    assert ends >= 2


def test_curve_counts_one_episode_of_each_slot(begin):
    with begin("ppo", "--curve", "64", "--episodes", "8") as run:
        train_ppo.train(run)
        run.curve.close()
    first, row = (run.path / "curve.csv").read_text().split()
    steps, took_s, cpu_s, rate = map(float, row.split(","))
    assert first == "steps,training_s,cpu_s,success_rate"
    assert (steps, rate * 8 % 1) == (64, 0)
    assert min(took_s, cpu_s) > 0
