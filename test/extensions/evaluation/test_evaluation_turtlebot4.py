import pytest
from evidence import assert_sound

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
