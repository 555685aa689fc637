"""Randomised episodes in process and over ROS 2: equal to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from randomised_arm import OPTIONS, randomised_arm

pytest.importorskip("rclpy", reason="needs rclpy")

import embodied_env

pytestmark = pytest.mark.ros

STEPS = 15


def account(transition):
    info = transition.info
    return (
        {key: value.tobytes() for key, value in transition.observation.items()},
        transition.reward,
        transition.end_reasons,
        transition.report.applied_si.tobytes(),
        {name: (sensor["stamp_ns"], sensor["age_s"], sensor["quality"]) for name, sensor in info["sensors"].items()},
    )


@pytest.mark.parametrize("seeds", [2, pytest.param(20, marks=pytest.mark.long)])
def test_randomised_episodes_are_bit_identical(seeds, domain_id):
    accounts = []
    for backend in ("mujoco", "mujoco_ros"):
        env = embodied_env.make(randomised_arm(), backend=backend)
        found = []
        try:
            for seed in range(seeds):
                moves = np.random.default_rng(seed).uniform(-0.05, 0.05, (STEPS, 6))
                info = env.reset(seed=seed)[1]
                found.append({name: value.tobytes() for name, value in info["reset"]["sampled"].items()})
                for move in moves:
                    env.step(move)
                    found.append(account(env.unwrapped.last_transition))
        finally:
            env.close()
        accounts.append(found)
    assert accounts[0][0].keys() == {*OPTIONS, "target"}
    assert accounts[0] == accounts[1]
