"""Shipped robots on the emulator pass the doctor, 20 scripted episodes, and homing without the emulator's reset."""

import os
from dataclasses import replace

import numpy as np
import pytest
from evidence import assert_sound

pytest.importorskip("rclpy", reason="needs rclpy")

import embodied_env
from embodied_env.cli.doctor_cli import examine
from embodied_env.contract.contract_loader import dump_contract
from embodied_env.processes.child_process import Child, simulator

pytestmark = [pytest.mark.ros, pytest.mark.realtime]

NAMESPACE = f"/robots_{os.getpid()}"
ROBOTS = ["so101_reach", "ur5e_reach", "turtlebot4_goal"]


@pytest.fixture
def contract(request, domain_id):
    """Return the contract of a robot with a running emulator, whose resets need no operator confirmation."""
    shipped = embodied_env.load_contract(request.param)
    real = dict(shipped.backends["real"])
    real["discovery_s"] = 0.0
    if "reset" in real:
        real["reset"] = {**real["reset"], "confirm": "none"}
    contract = replace(shipped, backends={**shipped.backends, "real": real})
    arm = Child(
        simulator("-", namespace=NAMESPACE, source=contract.source, free_running=True),
        first_line=dump_contract(contract),
    )
    yield contract
    arm.stop()


@pytest.mark.parametrize("contract", ["so101_reach", pytest.param("ur5e_reach", marks=pytest.mark.long)], indirect=True)
def test_a_reset_homes_the_arm(contract):
    home = contract.backends["real"]["reset"]["home"]
    options: dict = {"confirm_chosen": True, "connect_timeout_s": 60.0}
    env = embodied_env.make(contract, backend="real", namespace=NAMESPACE, **options)
    try:
        env.reset(seed=1)
        moved = (env.step(np.full(6, 0.3, dtype=np.float32))[0]["joints_position"] for _ in range(100))
        assert any(np.abs(positions - list(home.values())).max() > 0.05 for positions in moved)
        observation, _ = env.reset()
    finally:
        env.close()
    np.testing.assert_allclose(observation["joints_position"], list(home.values()), atol=0.02)


@pytest.mark.long
@pytest.mark.parametrize("contract", ROBOTS, indirect=True)
def test_doctor_passes(contract):
    sections = examine(contract, "real", namespace=NAMESPACE, timeout_s=20.0, emulator=True)
    assert [check for section in sections.values() for check in section if check.passed is False] == []
    names = {check.name for check in sections["robot"]}
    assert {f"state.{name}" for key in ("estop", "active") for name in contract.backends["real"].get(key, {})} <= names


@pytest.mark.needs("evaluation")
@pytest.mark.long
@pytest.mark.parametrize("contract", ROBOTS, indirect=True)
def test_the_scripted_policy_solves_18_of_20_episodes(contract, tmp_path):
    from embodied_env.extensions.evaluation.evaluation import evaluate

    (result,) = evaluate(
        contract, "scripted", backend="real", episodes=20, seed=0, record=tmp_path, emulator=True, namespace=NAMESPACE
    ).results
    assert result.summary["end_reasons"].get("success", 0) >= 18
    assert result.summary["solved_at_reset"] == 0
    assert_sound(result.path)
