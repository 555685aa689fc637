"""The TurtleBot 4 on its emulator: 20 scripted episodes over DDS."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

import embodied_env
from embodied_env.contract.loader import dump_contract
from embodied_env.core.process.child import Child, simulator
from embodied_env.evaluation import evaluate

pytestmark = [pytest.mark.ros, pytest.mark.realtime, pytest.mark.long]

NAMESPACE = f"/turtlebot4_{os.getpid()}"


@pytest.fixture
def contract(domain_id):
    """The contract of the robot, whose emulator runs."""
    contract = embodied_env.load_contract("turtlebot4_goal")
    robot = Child(
        simulator("-", namespace=NAMESPACE, source=contract.source, free_running=True),
        first_line=dump_contract(contract),
    )
    yield contract
    robot.stop()


def test_the_scripted_policy_solves_18_of_20_episodes(contract, tmp_path):
    result = evaluate(
        contract,
        backend="real",
        policy="scripted",
        episodes=20,
        seed=0,
        out=tmp_path,
        emulator=True,
        namespace=NAMESPACE,
    )
    assert result.summary["end_reasons"].get("success", 0) >= 18
    assert result.summary["solved_at_reset"] == 0
    assert embodied_env.audit_run(result.path).problems == ()
