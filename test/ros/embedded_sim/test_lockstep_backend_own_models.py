"""User models are bit-identical in process and over ROS 2, images included."""

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

from own_models import own_contract

import embodied_env

pytestmark = pytest.mark.ros

LONG = [pytest.param(kind, marks=pytest.mark.long) for kind in ("arm", "motors", "base")]


@pytest.mark.parametrize("kind", ["hand_eye", *LONG])
def test_a_user_model_is_bit_identical_in_process_and_over_ros(kind, tmp_path, domain_id):
    contract = own_contract(kind, tmp_path)
    accounts = []
    for backend in ("mujoco", "mujoco_ros"):
        env = embodied_env.make(contract, backend=backend, render_mode="rgb_array")
        found = []
        try:
            for seed in (3, 4):
                observation, _ = env.reset(seed=seed)
                for action in np.random.default_rng(seed).uniform(-1.0, 1.0, (10, *env.action_space.shape)):
                    found.append({key: value.tobytes() for key, value in observation.items()})
                    observation, *_ = env.step(action)
            accounts.append([*found, env.render().tobytes()])
        finally:
            env.close()
    assert accounts[0] == accounts[1]
