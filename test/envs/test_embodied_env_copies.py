"""Copies of single, recorded, vector and parallel environments repeat the constructor and are not open."""

import copy
import pickle
import threading

import cloudpickle
import gymnasium
import numpy as np
import pytest
from evidence import assert_sound

import embodied_env
from embodied_env.envs.embodied_env import EmbodiedEnv

COPIES: dict = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda env: pickle.loads(pickle.dumps(env)),  # noqa: S301 - our own bytes
    "cloudpickle": lambda env: cloudpickle.loads(cloudpickle.dumps(env)),  # as SuperSuit and Gymnasium copy
}


def duplicate(env):
    """Copy an environment in one of the ways, which all use its ``__reduce__``."""
    return copy.deepcopy(env)


def rollout(env, steps=5):
    observation, _ = env.reset(seed=3)
    env.action_space.seed(3)
    rows = [observation, *(env.step(env.action_space.sample())[0] for _ in range(steps))]
    env.close()
    return rows


@pytest.mark.parametrize("way", COPIES)
def test_a_copy_behaves_like_the_original_and_outlives_it(way):
    env = embodied_env.make("arm_reach", backend="fake", clock="virtual", evaluator_info=True)
    twin = COPIES[way](env)
    assert twin.spec == env.spec
    np.testing.assert_equal(rollout(twin), rollout(env))
    np.testing.assert_equal(rollout(twin), rollout(COPIES[way](env)))


def test_a_copy_of_an_open_simulation_made_during_a_step_is_not_opened(close_later):
    env = close_later(EmbodiedEnv("arm_reach", backend="fake"))
    env.reset(seed=1)
    env.stepper.begin(env.action_space.sample())
    twin = duplicate(env)
    assert "not opened" in repr(twin)
    with pytest.raises(gymnasium.error.ResetNeeded):
        twin.step(env.action_space.sample())
    env.stepper.finish()


def test_a_copy_of_an_open_free_running_environment_is_not_opened():
    env = embodied_env.make("arm_reach", backend="fake", pacing="realtime")
    env.reset(seed=1)
    threads = set(threading.enumerate())
    twin = duplicate(env)
    assert ("not opened" in repr(twin), set(threading.enumerate())) == (True, threads)
    env.close()
    assert rollout(twin)


@pytest.mark.parametrize("options", [{"backend": "real", "domain_id": 77}, {"backend": "mujoco_ros"}])
def test_a_copy_over_ros_opens_nothing(options):
    env = embodied_env.make("arm_reach", **options)
    twin = duplicate(env)
    assert (twin.spec, twin.processes()) == (env.spec, [])
    assert "not opened" in repr(twin)


def test_copied_recorder_records_into_a_new_directory(tmp_path):
    env = embodied_env.make("arm_reach", backend="fake", record=tmp_path, max_episode_steps=9)
    env.policy = {"name": "noise"}
    twin = duplicate(env)
    assert (twin.path.parent, twin.policy) == (tmp_path, env.policy)
    for each in (env, twin):
        rollout(each, steps=3)
    assert env.path != twin.path
    for each in (env, twin):
        assert_sound(each.path)


@pytest.mark.needs("vector")
def test_a_copied_vector_steps_like_the_original():
    options: dict = {"num_envs": 2, "backend": "mujoco", "clock": "virtual", "autoreset_mode": "SameStep"}
    env = embodied_env.make_vec("arm_reach", threads=2, **options)
    env.reset(seed=4)
    twin = duplicate(env)
    assert (twin.autoreset_mode, twin.spec) == (env.autoreset_mode, env.spec)
    with pytest.raises(gymnasium.error.ResetNeeded):
        twin.step(env.action_space.sample())
    np.testing.assert_equal(rollout(twin), rollout(env))


@pytest.mark.needs("teams")
def test_a_copied_team_steps_like_the_original(close_later):
    pytest.importorskip("pettingzoo")
    env = close_later(embodied_env.parallel_env("two_carts", backend="mujoco", clock="virtual"))
    env.reset(seed=4)
    twin = close_later(duplicate(env))
    assert twin.agents == []
    np.testing.assert_equal(twin.reset(seed=5)[0], env.reset(seed=5)[0])
