"""Parity with delays: one profile and one seed give bit-identical results in process and over ROS 2."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

import embodied_env
from embodied_env.core.latency.delay_model import DelayDistribution, DelayModel
from embodied_env.errors import UsageError

pytestmark = pytest.mark.ros

STEPS = 40


def delays(contract):
    seen = [name for name, sensor in contract.sensors.items() if sensor.visibility == "agent"]
    return DelayModel(
        sensors={
            name: DelayDistribution(kind="lognormal", values=(0.02 + 0.01 * i, 0.4)) for i, name in enumerate(seen)
        },
        inference=DelayDistribution(kind="empirical", values=(0.003, 0.011)),
        actuation=DelayDistribution(kind="lognormal", values=(0.06, 0.3)),
    )


def account(transition):
    info = transition.info
    return (
        {key: value.tobytes() for key, value in transition.observation.items()},
        transition.reward,
        transition.end_reasons,
        transition.report.applied_si.tobytes(),
        info["safety"]["code"].tobytes(),
        {name: (sensor["stamp_ns"], sensor["age_s"], sensor["quality"]) for name, sensor in info["sensors"].items()},
        info["latency"]["injected"],
        info["latency"]["quality"]["injected"],
    )


@pytest.mark.parametrize(
    "name", ["arm_reach", *(pytest.param(name, marks=pytest.mark.long) for name in ("cart_goal", "door_open"))]
)
def test_delays_are_bit_identical_in_process_and_over_ros(name, domain_id):
    contract = embodied_env.load_contract(name)
    accounts = []
    for backend in ("mujoco", "mujoco_ros"):
        env = embodied_env.make(contract, backend=backend, delay_profile=delays(contract))
        found = []
        try:
            for seed in (3, 4):
                actions = np.random.default_rng(seed).uniform(-0.5, 0.5, (STEPS, *env.action_space.shape))
                env.reset(seed=seed)
                for action in actions:
                    _, _, terminated, truncated, _ = env.step(action)
                    found.append(account(env.unwrapped.last_transition))
                    if terminated or truncated:
                        break
        finally:
            env.close()
        accounts.append(found)
    assert len(accounts[0]) > STEPS // 2
    assert accounts[0] == accounts[1]
    assert len({injected["age_s"]["joints" if name != "cart_goal" else "odom"] for *_, injected, _ in accounts[0]}) > 10


def test_delays_are_rejected_for_an_attached_simulator():
    contract = embodied_env.load_contract("arm_reach")
    with pytest.raises(UsageError, match="spawn=True"):
        embodied_env.make(contract, backend="mujoco_ros", spawn=False, delay_profile=delays(contract))
