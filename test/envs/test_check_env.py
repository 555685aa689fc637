"""Gymnasium's environment checker, with every warning an error (pyproject), on the registered id."""

from __future__ import annotations

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import RecordEpisodeStatistics

import embodied_env

ID = "embodied_env:embodied_env/ArmReach-v0"
IDS = [f"embodied_env:embodied_env/{name}-v0" for name in ("ArmReach", "CartGoal", "DoorOpen")]
OURS_NEVER = {"episode", "final_obs", "final_info", "terminal_observation", "TimeLimit.truncated"}


OVER_ROS = [pytest.param(env_id, "mujoco_ros", marks=[pytest.mark.ros, pytest.mark.long]) for env_id in IDS]
"""The same worlds as in process, to the last bit (test_parity.py)."""


@pytest.mark.parametrize(
    ("env_id", "backend"),
    [
        *((env_id, "fake") for env_id in IDS),
        *((env_id, "mujoco") for env_id in IDS[:2]),
        pytest.param(IDS[2], "mujoco", marks=pytest.mark.long),  # renders its camera at each step
        *OVER_ROS,
    ],
)
def test_check_env_finds_nothing(env_id, backend):
    env = gymnasium.make(env_id, backend=backend)
    try:
        assert env.spec is not None
        assert env.spec.nondeterministic is False
        check_env(env.unwrapped)
    finally:
        env.close()


@pytest.mark.parametrize("name", ["so101_reach", pytest.param("ur5e_reach", marks=pytest.mark.long)])
def test_check_env_finds_nothing_with_a_shipped_robot(name):
    with embodied_env.make(name) as env:
        check_env(env)


def test_keys_of_gymnasium_and_sb3_are_not_used():
    env = gymnasium.make(ID, backend="fake", clock="virtual")
    _, reset_info = env.reset(seed=1)
    info = env.step(env.action_space.sample())[-1]
    env.close()
    assert not OURS_NEVER & (set(info) | set(reset_info))


def test_record_episode_statistics_writes_its_own_key():
    env = RecordEpisodeStatistics(gymnasium.make(ID, backend="fake", clock="virtual"))
    env.reset(seed=1)
    info, done = {}, False
    while not done:
        *_, terminated, truncated, info = env.step(env.action_space.sample())
        done = terminated or truncated
    env.close()
    assert info["episode"]["l"] == info["step_index"]


def test_an_outer_time_limit_truncates_and_shows_in_the_spec():
    env = gymnasium.make(ID, backend="fake", max_episode_steps=3)
    env.reset(seed=1)
    for _ in range(3):
        *_, terminated, truncated, info = env.step(env.action_space.sample())
    env.close()
    assert (terminated, truncated) == (False, True)
    assert info["end_reason"] == ""
    assert env.spec is not None
    assert env.spec.max_episode_steps == 3
