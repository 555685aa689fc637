"""The embedded simulator as a driver with other units is bit-identical in process, over ROS 2, and as an emulator."""

import os

import numpy as np
import pytest
from unit_contracts import driver_units_contract

pytest.importorskip("rclpy", reason="needs rclpy")

import embodied_env
from embodied_env.contract.contract_loader import dump_contract
from embodied_env.processes.child_process import Child, simulator

pytestmark = pytest.mark.ros


def run(env, steps):
    """Return the observations, and the readings and commands in SI and driver units."""
    rng, accounts = np.random.default_rng(1), []
    for _ in range(steps):
        observation, *_, info = env.step({"arm": rng.uniform(-1, 1, 2), "hand": rng.uniform(-1, 1, 1)})
        samples = env.unwrapped.last_transition.snapshot.samples
        driver = {(name, field): v.tobytes() for name, s in samples.items() for field, v in s.driver.items()}
        accounts.append(({key: value.tobytes() for key, value in observation.items()}, info["action"]["applied_si"]))
        accounts.append((driver, info["action"]["applied_driver"]))
    return accounts


def test_readings_and_commands_are_bit_identical_over_ros(domain_id):
    accounts = []
    for options in ({"backend": "mujoco"}, {"backend": "mujoco_ros", "domain_id": domain_id}):
        env = embodied_env.make(driver_units_contract(), **options)
        env.reset(seed=5)
        accounts.append(run(env, 20))
        env.close()
    assert accounts[0] == accounts[1]


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
