"""The results of several robots in one world over ROS 2 are bit-identical to those in process."""

import os
import signal

import numpy as np
import pytest

import embodied_env

pytestmark = pytest.mark.ros


@pytest.fixture
def pair(domain_id, close_later):
    kinds = {}, {"backend": "mujoco_ros", "domain_id": domain_id}
    return [close_later(embodied_env.parallel_env("two_carts", evaluator_info=True, **kind)) for kind in kinds]


def results_of(env, actions):
    """Return everything that must be equal, which is all but times of this machine's clocks."""
    observations, rewards, terminations, truncations, infos = env.step(actions)
    truth = {agent: (info["evaluator"], info["end_reason"], info["action"]) for agent, info in infos.items()}
    return observations, rewards, terminations, truncations, truth


def test_both_backends_are_bit_identical_after_an_agent_has_left(pair):
    rng = np.random.default_rng(5)
    np.testing.assert_equal(*[env.reset(seed=5)[0] for env in pair])
    for step in range(15):
        bad = step < 3  # so the first cart is stopped and leaves
        actions = {
            agent: None if bad and agent == "cart_1" else rng.uniform(-1.0, 1.0, 2) for agent in list(pair[0].agents)
        }
        np.testing.assert_equal(*[results_of(env, actions) for env in pair])
    assert pair[0].agents == pair[1].agents == ["cart_2"]


@pytest.mark.long
@pytest.mark.kills
def test_a_killed_simulator_truncates_all_agents_and_a_reset_starts_another(pair):
    env = pair[1]
    env.reset(seed=5)
    (process,) = env.processes()
    os.kill(process["pid"], signal.SIGKILL)
    _, _, _, truncations, infos = env.step(dict.fromkeys(env.agents, np.zeros(2)))
    assert truncations == {"cart_1": True, "cart_2": True}
    assert {info["end_reason"] for info in infos.values()} == {"backend_lost:simulator_died"}
    env.reset()
    assert env.agents == ["cart_1", "cart_2"]
    assert env.processes() != [process]
