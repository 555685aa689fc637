"""Shipped contracts stay within their observation spaces, and what is unknown is absent from ``info``."""

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from shipped_contracts import changed_contract
from strategies import ABSENT, changed, parse

import embodied_env
from embodied_env.core.code_types import Quality

CAMERAS = ("camera", "depth")
BLIND = {
    **{f"sensors.{name}": ABSENT for name in CAMERAS},
    **{f"backends.mujoco.sources.{name}": ABSENT for name in CAMERAS},
    **{f"backends.{name}": ABSENT for name in ("mujoco_ros", "gazebo", "simulation_interfaces")},
}
"""Changes of door_open that remove its cameras, which take most of the time."""


def leave_space(contract, *, num_envs, steps):
    """Return the keys of observations that leave their space in random steps of several slots."""
    left = set()
    env: Any = embodied_env.make_vec(contract, num_envs=num_envs)
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(steps):
        observation = env.step(env.action_space.sample())[0]
        left |= {key for key, space in env.observation_space.items() if not space.contains(observation[key])}
    env.close()
    return left


@pytest.mark.needs("vector")
@pytest.mark.parametrize(
    "contract", ["arm_reach", "cart_goal", changed_contract("door_open", BLIND)], ids=["arm", "cart", "door"]
)
def test_random_steps_stay_within_the_space(contract):
    assert leave_space(contract, num_envs=10, steps=20) == set()


def test_a_force_sensor_saturates_at_its_range_with_noise():
    fields = "sensors.wrench.fields"
    tight = {f"{fields}.force.low": -2.0, f"{fields}.force.high": 2.0, f"{fields}.torque.high": 0.01}
    env = embodied_env.make(changed_contract("door_open", {**BLIND, **tight}))
    env.reset(seed=0)
    env.action_space.seed(0)
    forces = []
    for _ in range(20):
        observation, *_, info = env.step(env.action_space.sample())
        forces.append(observation["wrench_force"])
        assert env.observation_space.contains(observation)
        assert info["sensors"]["wrench"]["quality"] == Quality.OK
    env.close()
    assert np.abs(forces).max() == 2.0


def test_a_confidence_without_covariance_is_absent():
    with embodied_env.make("cart_goal") as env:
        odometry = env.reset(seed=1)[1]["sensors"]["odom"]  # its covariance is 0
        assert "confidence" not in odometry
        odometry = env.step(env.action_space.sample())[-1]["sensors"]["odom"]
        assert 0.0 < odometry["confidence"] <= 1.0


@pytest.mark.needs("vector")
def test_slots_without_covariance_have_no_confidence_in_batched_steps(monkeypatch):
    from batches import Pair

    monkeypatch.setattr("embodied_env.extensions.vector.vector_env.FEWEST_SLOTS", 1)
    pair = Pair.of("cart_goal", AutoresetMode.NEXT_STEP)
    pair.reset(seed=1)
    infos = pair.step(np.array([[0.0, 0.5], [1.0, 0.0], [0.0, 0.0]], dtype=np.float32))  # the first turns in place
    assert infos["sensors"]["odom"]["_confidence"].tolist() == [False, True, True]
    assert pair.ours.batched_share == 1.0
    pair.close()


def test_missing_points_of_a_cloud_are_counted_in_info(close_later):
    spec = {"count": 4, "pad": 5.0}
    sensor = {"topic": "cloud", "type": "sensor_msgs/msg/PointCloud2", "max_age_s": 1.0}
    sensor["fields"] = {"points": {"unit": "m", "low": -5.0, "high": 5.0, "points": spec}}
    env = close_later(embodied_env.make(parse(changed("sensors.cloud", sensor)), backend="fake", clock="virtual"))
    for observation, info in (env.reset(seed=0), env.step(env.action_space.sample() * 0)[::4]):
        missing = (observation["cloud_points"] == 5.0).all(axis=1).sum()
        assert (info["sensors"]["cloud"]["padded"], "padded" in info["sensors"]["tcp"]) == (missing, False)
