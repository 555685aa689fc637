"""Copies of environments: by the constructor's arguments, never opened."""

from __future__ import annotations

import copy
import pickle

import gymnasium
import numpy as np
import pytest

import embodied_env
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.errors import UsageError

COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda env: pickle.loads(pickle.dumps(env))}  # noqa: S301 - our own bytes


@pytest.fixture(params=COPIES)
def duplicate(request):
    return COPIES[request.param]


def rollout(env, steps=5):
    observation, _ = env.reset(seed=3)
    env.action_space.seed(3)
    rows = [observation, *(env.step(env.action_space.sample())[0] for _ in range(steps))]
    env.close()
    return rows


def test_a_copy_behaves_like_the_original(duplicate):
    env = embodied_env.make("arm_reach", backend="fake", clock="virtual", evaluator_info=True)
    twin = duplicate(env)
    assert twin.spec == env.spec
    for one, other in zip(rollout(env), rollout(twin), strict=True):
        assert one.keys() == other.keys()
        for key, value in one.items():
            np.testing.assert_array_equal(other[key], value)


def test_a_copy_of_an_open_simulation_is_not_opened(duplicate):
    env = embodied_env.make("arm_reach", backend="fake")
    env.reset(seed=1)
    twin = duplicate(env)
    with pytest.raises(gymnasium.error.ResetNeeded):
        twin.step(env.action_space.sample())
    env.close()


def test_a_copy_outlives_its_original(duplicate):
    env = embodied_env.make("arm_reach", backend="fake")
    twin = duplicate(env)
    env.close()
    assert rollout(twin)


def test_wrappers_are_copied_with_the_environment(duplicate):
    twin = duplicate(embodied_env.make("arm_reach", backend="fake", max_episode_steps=2))
    twin.reset(seed=1)
    twin.step(twin.action_space.sample())
    assert twin.step(twin.action_space.sample())[3]
    twin.close()


def test_an_environment_is_not_copied_in_the_middle_of_a_step(duplicate):
    env = EmbodiedEnv("arm_reach", backend="fake")
    env.reset(seed=1)
    env._stepper.begin(env.action_space.sample())
    with pytest.raises(UsageError):
        duplicate(env)
    env._stepper.finish()
    env.close()


def test_an_open_free_running_environment_is_not_copied(duplicate):
    env = embodied_env.make("arm_reach", backend="fake", pacing="realtime")
    duplicate(env).close()
    env.reset(seed=1)
    with pytest.raises(UsageError):
        duplicate(env)
    env.close()


def test_a_contract_survives_pickling():
    contract = embodied_env.load_contract("door_open")
    assert pickle.loads(pickle.dumps(contract)) == contract  # noqa: S301 - our own bytes
