"""The scripted policy solves the demonstration contracts of the shipped robots in the simulator, never at reset."""

import numpy as np
import pytest
from evidence import assert_sound

import embodied_env
from embodied_env import evaluate

ARMS = ("so101_reach", "ur5e_reach")


@pytest.mark.parametrize("is_long", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("name", "episodes", "share"), [*((name, 2, 1.0) for name in ARMS), ("turtlebot4_goal", 1, 0.9)]
)
def test_the_scripted_policy_solves_the_episodes(name, episodes, share, is_long, tmp_path):
    contract, episodes = embodied_env.load_contract(name), 20 if is_long else episodes
    (result,) = evaluate(
        contract, "scripted", backend="mujoco", episodes=episodes, seed=0, record=tmp_path, clock="virtual"
    ).results
    assert result.summary["end_reasons"]["success"] >= share * episodes
    assert result.summary["solved_at_reset"] == 0
    assert_sound(result.path)


@pytest.mark.parametrize("name", ARMS)
def test_no_target_can_be_drawn_within_reach_of_the_home_pose(name):
    with embodied_env.make(name, clock="virtual") as env:
        observation, _ = env.reset(seed=0)
        contract = env.unwrapped.contract
    option, tip = contract.reset_options["target"], observation["tcp_position"]
    nearest = np.clip(tip, option.low_array, option.high_array)
    assert np.linalg.norm(nearest - tip) > contract.task.parameters["success_radius_m"]
