"""A small arm whose model is fitted, and recorded runs of the same arm with other parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from identified_arm import identified_model

import embodied_env
from embodied_env.contract import Contract, parse_contract
from embodied_env.sim.identified_parameters import IdentifiedParameter, Kind, write_identified

MODEL = """
<mujoco model="fitted">
  <option timestep="0.005" integrator="implicitfast"/>
  <worldbody>
    <body name="upper"><joint name="j1" axis="0 1 0" damping="4" armature="0.05" frictionloss="0.2"/>
      <geom type="capsule" fromto="0 0 0 0.4 0 0" size="0.03" mass="1"/>
      <body name="lower" pos="0.4 0 0"><joint name="j2" axis="0 1 0" damping="1" armature="0.02"/>
        <geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.02" mass="0.5"/>
      </body>
    </body>
  </worldbody>
  <actuator><position name="j1" joint="j1" kp="60"/><position name="j2" joint="j2" kp="40"/></actuator>
</mujoco>
"""
CONTRACT = """
contract: embodied_env/1
name: fitted
version: 1
control_period_s: 0.05
episode: {horizon_steps: 600, kind: time_limit}
task: {type: no_goal}
sensors:
  joints:
    topic: joint_states
    type: sensor_msgs/msg/JointState
    fields:
      position: {joints: [j1, j2], unit: rad, low: -3.0, high: 3.0}
      velocity: {joints: [j1, j2], unit: rad/s, low: -.inf, high: .inf}
    max_age_s: 0.5
actuators:
  arm:
    topic: commands
    type: std_msgs/msg/Float64MultiArray
    command: position_delta
    joints: {j1: &joint {position: [-1.5, 1.5], velocity: 3.0, acceleration: 40.0}, j2: *joint}
safety: {tracking: {tolerance: 0.2}}
backends:
  mujoco:
    model: fitted.xml
    sources: {joints: {noise: {position: NOISE}}}
"""
Truth = Mapping[tuple[Kind, str], float]
OWN: Mapping[Kind, float] = {"gain": 60.0, "damping": 4.0, "friction_loss": 0.2, "mass": 0.5, "command_delay": 0.0}
TRUTH: Truth = {
    ("gain", "j1"): 45.0,
    ("damping", "j1"): 6.0,
    ("friction_loss", "j1"): 0.4,
    ("mass", "lower"): 0.8,
    ("command_delay", ""): 0.03,
}


def fitted_arm(folder: Path, truth: Truth | None = None, *, noise: float = 0.0) -> Contract:
    """Return the arm, or with `truth` the one whose model has these values, by kind and name of joint or body."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "fitted.xml").write_text(MODEL, encoding="utf-8")
    text = CONTRACT.replace("NOISE", str(noise))
    if truth is not None:
        parameters = tuple(
            IdentifiedParameter(
                kind=kind, of=(name,) if name else (), value=value, low=value, high=value, model=OWN[kind]
            )
            for (kind, name), value in truth.items()
        )
        write_identified(identified_model(parameters), folder / "truth.identified.yaml")
        text += "    identified: {file: truth.identified.yaml}\n"
    return parse_contract(text, source=str(folder / "contract.yaml"))


def record_motion(
    contract: Contract,
    folder: Path,
    *,
    seconds: float,
    seed: int = 0,
    size: float = 0.3,
    joints: Sequence[int] = (0, 1),
) -> Path:
    """Record a run in which joints follow sums of sines, and return its directory."""
    env = embodied_env.make(contract, backend="mujoco", record=folder)
    env.reset(seed=seed)
    rng, period_s, before = np.random.default_rng(seed), contract.control_period_s, np.zeros(2)
    frequencies, phases = 2.0 * np.pi * rng.uniform(0.3, 2.0, (2, 3)), rng.uniform(0.0, 2.0 * np.pi, (2, 3))
    for step in range(1, 1 + round(seconds / period_s)):
        time_s = step * period_s
        wave = min(1.0, time_s) * size / 3.0 * np.sin(frequencies * time_s + phases).sum(axis=1)
        wave[[joint for joint in range(2) if joint not in joints]] = 0.0
        env.step(np.clip((wave - before) / (3.0 * period_s), -1.0, 1.0))
        before = wave
    env.close()
    return max(folder.iterdir())
