"""Readings and commands of a simulated world pass through the driver's units."""

import numpy as np
import pytest
from evidence import assert_replays, assert_sound
from unit_contracts import driver_units_contract

from embodied_env.envs.registration import make

ACTIONS = [{"arm": np.array([0.6, -0.5]), "hand": np.array([1.0 if step < 8 else -1.0])} for step in range(16)]


def observations_of(contract, **options):
    env = make(contract, backend="mujoco", **options)
    env.reset(seed=3)
    rows = [env.step(action) for action in ACTIONS]
    env.close()
    return [row[0] for row in rows], [row[4] for row in rows]


def test_a_run_in_the_units_of_a_driver_passes_audit_and_replay(tmp_path):
    contract = driver_units_contract()
    observed, infos = observations_of(contract, record=tmp_path)
    plain, _ = observations_of(driver_units_contract(plain=True))
    for found, exact in zip(observed, plain, strict=True):
        for key, values in exact.items():
            assert found[key] == pytest.approx(values, abs=1e-9), key
    action = infos[-1]["action"]
    j1, left = action["applied_si"]["j1"], action["applied_si"]["left"]
    assert action["applied_driver"] == pytest.approx({"j1": np.degrees(0.3 - j1), "left": 100 * (1 - left / 0.04)})
    (run,) = tmp_path.iterdir()
    assert_sound(run)
    assert_replays(run, contract=contract)


def test_the_second_finger_mimics_the_first():
    observed, _ = observations_of(driver_units_contract())
    *_, left, right = observed[7]["joints_position"]
    assert (left, right) == pytest.approx((0.04, -0.04), abs=2e-3)
