"""A simulated gripper is in the arm's message, on its own topic, or behind an action server."""

import numpy as np
import pytest
from evidence import assert_replays, assert_sound
from grippers import ACTION, TOPIC, gripper_contract, gripper_text

from embodied_env.envs.registration import make

JOINT = "j1: {position: [-1.5, 1.5], velocity: 1.0, acceleration: 4.0}"
IN_ONE_MESSAGE = f"{JOINT}, j2: {{position: [-0.02, 0.82], velocity: 2.0, acceleration: 20.0}}"
STEPS = 24


@pytest.mark.parametrize("kind", ["message", TOPIC, ACTION])
def test_the_gripper_opens_and_the_record_passes_the_audit(kind, tmp_path):
    gripper = "" if kind == "message" else gripper_text(kind)
    contract = gripper_contract(tmp_path, gripper, joints=IN_ONE_MESSAGE if kind == "message" else JOINT)
    env = make(contract, backend="mujoco", record=tmp_path / "runs")
    env.reset(seed=1)
    action = np.array([0.3, 0.8]) if kind == "message" else {"arm": np.array([0.3]), "gripper": np.array([1.0])}
    positions = [env.step(action)[0]["joints_position"].copy() for _ in range(STEPS)]
    env.close()
    assert positions[-1] == pytest.approx([0.3, 0.8], abs=0.05)
    assert np.abs(np.diff(np.array(positions)[:, 1])).max() < 2.0 * 0.05 * 1.5  # the speed of the gripper
    (run,) = (tmp_path / "runs").iterdir()
    assert_sound(run)
    assert_replays(run, contract=contract)
