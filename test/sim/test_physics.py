"""One call for many physics steps leaves the state that a loop of single steps leaves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from embodied_env.contract import parse_contract
from embodied_env.errors import BackendLostError
from embodied_env.sim.backend_profile import WorldProfile
from embodied_env.sim.model import Model
from embodied_env.sim.physics import Physics

CONTRACT = """
contract: embodied_env/1
name: heap
version: 1
control_period_s: 0.1
episode: {horizon_steps: 10}
sensors:
  joints: {topic: j, type: sensor_msgs/msg/JointState, fields: {position: {joints: [rail], unit: m, low: -9, high: 9}},
           max_age_s: 1.0}
actuators:
  pusher: {topic: c, type: std_msgs/msg/Float64MultiArray, command: position,
           joints: {rail: {position: [-1.0, 1.0], velocity: 1.0, acceleration: 1.0, unit: m}}}
task: {type: nowhere:Nothing}
backends: {mujoco: {model: heap.xml}}
"""
BALLS = "".join(f'<body pos="{0.05 * k} 0 {0.1 + 0.15 * k}"><freejoint/><geom size="0.1"/></body>' for k in range(5))
MODEL = f"""
<mujoco>
  <option timestep="0.005"/>
  <worldbody>
    <geom type="plane" size="5 5 0.1"/>
    <body name="slider" pos="0 0.5 0.1"><joint name="rail" type="slide" axis="0 -1 0"/><geom size="0.1"/></body>
    <body name="wall" mocap="true" pos="0 -0.5 0"><geom type="box" size="1 0.1 0.3"/></body>
    {BALLS}
  </worldbody>
  <equality><weld body1="slider" body2="wall" active="false"/></equality>
  <actuator><position name="rail" joint="rail" kp="100" kv="5" timeconst="0.03"/></actuator>
</mujoco>
"""
STEPS = 20
INERTIA = 0  # the warning of a matrix that is nearly singular


def physics(folder: Path, *, single: bool = False) -> Physics:
    (folder / "heap.xml").write_text(MODEL)
    contract = parse_contract(CONTRACT, source=str(folder / "heap.yaml"))
    model = Model(contract, WorldProfile(model="heap.xml"), "backends.mujoco")
    made = Physics(model, model.new_data(), slice(0, 1), STEPS)
    if single:
        made._rollout = None
    return made


def run(made: Physics, periods: int) -> list[bytes]:
    states = []
    for period in range(periods):
        controls = np.linspace(0.05 * period, 0.05 * (period + 1), STEPS)[:, np.newaxis]
        wall = np.linspace([0.0, -0.5 + 0.02 * period, 0.0], [0.0, -0.48 + 0.02 * period, 0.0], STEPS)
        made.step(controls, {0: wall})
        made.forward()
        data = made._data
        parts = (data.qpos, data.qvel, data.act, data.qacc_warmstart, data.ctrl, data.mocap_pos, data.qfrc_constraint)
        states.append(b"".join(part.tobytes() for part in (*parts, np.array(data.time))))
    return states


def test_one_call_equals_single_steps(tmp_path: Path) -> None:
    together, single = physics(tmp_path), physics(tmp_path, single=True)
    assert run(together, 12) == run(single, 12)
    assert together.can_run
    assert not single.can_run


def test_a_warning_ends_a_rollout_but_not_the_simulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together, single = physics(tmp_path), physics(tmp_path, single=True)
    rollout = together.run

    def warned_after_seven_steps(_steps: int) -> None:
        rollout(7)
        together.warned[INERTIA] = 1

    monkeypatch.setattr(together, "run", warned_after_seven_steps)
    assert run(together, 4) == run(single, 4)


def test_an_unstable_simulation_is_lost_until_the_next_episode(tmp_path: Path) -> None:
    lost = physics(tmp_path)
    with pytest.raises(BackendLostError, match="mjWARN_BADCTRL"):
        lost.step(np.full((STEPS, 1), np.nan), {})
    lost.step(np.zeros((STEPS, 1)), {})
    with pytest.raises(BackendLostError, match="mjWARN_BADCTRL"):
        lost.check_stable()
    lost.begin()
    lost.check_stable()
