"""The emulator as a driver with other units."""

import os

import numpy as np
import pytest
from unit_contracts import driver_units_contract

pytest.importorskip("rclpy", reason="needs rclpy")

import embodied_env
from embodied_env.contract.contract_loader import dump_contract
from embodied_env.processes.child_process import Child, simulator

pytestmark = pytest.mark.ros


@pytest.mark.long
@pytest.mark.realtime
def test_the_emulator_takes_and_reports_the_units_of_the_driver(domain_id):
    contract, namespace = driver_units_contract(), f"/units_{os.getpid()}"
    emulator = Child(
        simulator("-", namespace=namespace, source=contract.source, free_running=True),
        first_line=dump_contract(contract),
    )
    try:
        env = embodied_env.make(contract, backend="real", namespace=namespace)
        try:
            env.reset(seed=0)
            for _ in range(10):
                observation, *_, info = env.step({"arm": np.array([0.6, -0.6]), "hand": np.array([1.0])})
                assert not info["end_reason"], info
        finally:
            env.close()
    finally:
        emulator.stop()
    j1, j2, left, right = observation["joints_position"]
    assert 0.1 < j1 < 0.5 > -j2 > 0.1
    assert 0.02 < left == pytest.approx(-right, abs=5e-3)
