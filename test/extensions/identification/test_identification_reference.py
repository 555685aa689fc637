"""The fit and that of `mujoco.sysid`, on the same run of an arm with known parameters."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
import sysid_reference
from fitted_arm import Truth, fitted_arm, record_motion
from virtual_environments import make_environment

from embodied_env.extensions.identification.identification import identify
from embodied_env.extensions.identification.rollouts import Parameter
from embodied_env.record.run import read_run

SIMPLE: Truth = {("gain", "j1"): 45.0, ("damping", "j1"): 6.0, ("mass", "lower"): 0.8}


@pytest.mark.long
def test_mujoco_sysid_finds_the_same_values(tmp_path: Path) -> None:
    python = make_environment(tmp_path / "venv", "mujoco[sysid]")
    contract = fitted_arm(tmp_path / "model")
    run = record_motion(fitted_arm(tmp_path / "truth", SIMPLE, noise=0.001), tmp_path / "runs", seconds=14.0)
    rows = list(read_run(run).transitions())
    commands = np.array([[*row["info"]["action"]["applied_si"].values()] for row in rows])
    readings = np.array([row["inner"]["observation"]["joints_position"] for row in rows])
    lines = zip(np.vstack([np.zeros(2), commands[:-1]]), commands, strict=True)
    controls = np.concatenate(
        [before + np.arange(1, 11)[:, np.newaxis] / 10.0 * (after - before) for before, after in lines]
    )
    # the sensors of `mj_step` are those before the step
    times: dict = {
        "control_s": 0.005 * np.arange(len(controls)),
        "read_s": 0.005 + 0.05 * np.arange(1, 1 + len(readings)),
    }
    np.savez(tmp_path / "run.npz", controls=controls, readings=readings, **times)
    model = tmp_path / "named.xml"
    text = (tmp_path / "model" / "fitted.xml").read_text(encoding="utf-8")
    model.write_text(text.replace('size="0.02" mass', 'name="lower" size="0.02" mass'), encoding="utf-8")
    command = [str(python), sysid_reference.__file__, str(tmp_path / "run.npz"), str(model)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    reference = json.loads(done.stdout.splitlines()[-1])
    fitted = identify([run], contract, [Parameter(kind=kind, of=(name,)) for kind, name in SIMPLE]).model.parameters
    for own, theirs, truth in zip(fitted, reference["values"], SIMPLE.values(), strict=True):
        assert own.value == pytest.approx(theirs, rel=0.01)
        assert own.low <= truth <= own.high
