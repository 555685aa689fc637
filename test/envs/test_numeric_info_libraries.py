"""Libraries that stack infos or copy environments are tested where they are installed, with lines of their users."""

import re

import gymnasium
import numpy as np
import pytest
from pages import section_of, text_of

import embodied_env
from embodied_env import NumericInfo

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def torchrl_envs():
    pytest.importorskip("torchrl")
    from torchrl import envs

    return envs


@pytest.mark.parametrize(
    "name", ["arm_reach", "cart_goal", "door_open", "so101_reach", "turtlebot4_goal", "ur5e_reach"]
)
def test_torchrl_checks_the_specs_of_every_shipped_contract(name, torchrl_envs):
    env = torchrl_envs.GymWrapper(embodied_env.make(name))
    torchrl_envs.check_env_specs(env)
    env.close()


def test_torchrl_makes_the_environment_by_its_id(close_later, torchrl_envs):
    env = close_later(torchrl_envs.GymEnv("embodied_env/ArmReach-v0"))
    torchrl_envs.check_env_specs(env)
    assert env.rollout(5)["next", "joints_position"].shape == (5, 6)


def test_torchrl_reads_numeric_infos(torchrl_envs):
    env = torchrl_envs.GymWrapper(NumericInfo(embodied_env.make("arm_reach", backend="fake")))
    env = env.auto_register_info_dict()  # includes its check of the specs
    codes = env.rollout(5)["next", "safety.code"].numpy()
    assert (codes.shape, codes.dtype) == ((5, 19), np.int16)
    env.close()


@pytest.mark.parametrize("data_format", ["arrow", "hdf5"])
def test_minari_collects_infos(tmp_path, monkeypatch, data_format):
    for module in ("minari", "jax", *(["h5py"] if data_format == "hdf5" else [])):
        pytest.importorskip(module)
    import minari

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    inner = NumericInfo(embodied_env.make("arm_reach", backend="fake"))
    env = minari.DataCollector(inner, record_infos=True, data_format=data_format)
    _, info = env.reset(seed=1)
    steps = [env.step(env.action_space.sample())[4] for _ in range(4)]
    dataset = env.create_dataset("arm/test-v0")
    env.close()
    infos = dataset[0].infos
    assert infos.keys() == info.keys()
    np.testing.assert_array_equal(infos["latency_ms"], [each["latency_ms"] for each in (info, *steps)])
    np.testing.assert_array_equal(infos["safety.code"], [each["safety.code"] for each in (info, *steps)])
    with dataset.recover_environment() as recovered:
        assert isinstance(recovered, NumericInfo)


def test_tianshou_stacks_infos(close_later):
    pytest.importorskip("tianshou")
    from tianshou.data import Batch, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv

    env = close_later(DummyVectorEnv([lambda: NumericInfo(embodied_env.make("arm_reach", backend="fake"))] * 2))
    observation, infos = env.reset()
    actions = np.stack([space.sample() for space in env.action_space])
    following, reward, terminated, truncated, infos = env.step(actions)
    assert Batch(list(infos))["safety.code"].shape == (2, 19)
    step = {"obs": list(observation), "act": actions, "rew": reward, "obs_next": list(following), "info": list(infos)}
    buffer = VectorReplayBuffer(10, 2)
    buffer.add(Batch(**step, terminated=terminated, truncated=truncated))
    assert buffer.sample(1)[0].info["safety.code"].dtype == np.int16


@pytest.mark.needs("teams")
@pytest.mark.parametrize("is_open", [False, True])
def test_supersuit_trains_a_team_with_stable_baselines3(is_open):
    for module in ("pettingzoo", "supersuit", "stable_baselines3", "mujoco"):
        pytest.importorskip(module)
    section = section_of(text_of("howto/several_robots"), "Stable-Baselines3, by SuperSuit")
    (code,) = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    code = code.replace("import supersuit", "import embodied_env, supersuit")
    if is_open:
        code = code.replace('parallel_env("two_carts")\n', 'parallel_env("two_carts")\nenv.reset(seed=1)\n')
    names: dict = {}
    exec(code, names)  # noqa: S102 - our own page
    env = names["env"]
    assert isinstance(env.action_space, gymnasium.spaces.Box)
    env.close()
