"""Rollouts of recorded commands are those of the world."""

from pathlib import Path

import numpy as np
import pytest
from fitted_arm import TRUTH, fitted_arm, record_motion

from embodied_env.extensions.identification.recorded_motion import read_motion
from embodied_env.extensions.identification.rollouts import Parameter, Rollouts
from embodied_env.record.run import read_run
from embodied_env.sim.world_profile import load_profile


@pytest.mark.parametrize("is_delayed", [False, True])
def test_rollouts_with_the_values_of_the_world_are_its_readings(tmp_path: Path, *, is_delayed: bool) -> None:
    truth = {key: value for key, value in TRUTH.items() if is_delayed or key[0] != "command_delay"}
    contract = fitted_arm(tmp_path / "model")
    run = read_run(record_motion(fitted_arm(tmp_path / "truth", truth), tmp_path / "runs", seconds=2.0))
    segments = read_motion(run, contract, segment_steps=30, warm_up_steps=10).segments
    parameters = [Parameter(kind=kind, of=(name,) if name else ()) for kind, name in truth]
    rollouts = Rollouts(contract, load_profile(contract, "mujoco"), "backends.mujoco", segments, parameters)
    assert len(rollouts.readings) == 60
    simulated = rollouts.simulate(np.array([*truth.values()]))
    np.testing.assert_allclose(simulated, rollouts.readings, atol=1e-9)
    assert abs(rollouts.simulate(rollouts.values) - rollouts.readings).max() > 0.01
