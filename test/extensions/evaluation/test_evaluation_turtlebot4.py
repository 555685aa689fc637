"""The demonstration contract of the TurtleBot 4 in the simulator."""

from __future__ import annotations

import pytest
from evidence import assert_sound
from gymnasium.utils.env_checker import check_env

import embodied_env
from embodied_env import evaluate

NAME = "turtlebot4_goal"


@pytest.mark.parametrize("episodes", [1, pytest.param(20, marks=pytest.mark.long)])
def test_the_scripted_policy_solves_9_of_10_episodes(episodes, tmp_path):
    contract = embodied_env.load_contract(NAME)
    (result,) = evaluate(
        contract, "scripted", backend="mujoco", episodes=episodes, seed=0, record=tmp_path, clock="virtual"
    ).results
    assert result.summary["end_reasons"]["success"] >= 0.9 * episodes
    assert result.summary["solved_at_reset"] == 0
    assert_sound(result.path)


@pytest.mark.filterwarnings(r"ignore:.*A Box observation space m\w+ value is -?infinity\.:UserWarning")
def test_check_env_finds_nothing_but_infinite_bounds():
    with embodied_env.make(NAME, clock="virtual") as env:
        check_env(env)
