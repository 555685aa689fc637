"""One call for many physics steps leaves the state that a loop of single steps leaves."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest

from embodied_env.contract import FloatArray, load_contract
from embodied_env.sim.physics import Physics
from embodied_env.sim.world_model import WorldModel
from embodied_env.sim.world_profile import load_profile

STEPS = 20
INERTIA = 0  # the warning of a matrix that is nearly singular


def physics(name: str = "door_open", *, single: bool = False) -> Physics:
    """Return the physics of a contract that is not reset, so that everything moves."""
    contract = load_contract(name)
    model = WorldModel(contract, load_profile(contract, "mujoco"), "backends.mujoco")
    made = Physics(model, model.new_data(), slice(0, model.mj.nu))
    if single:
        made.step = partial(_step_one_by_one, made.step)
    return made


def _step_one_by_one(
    step: Callable[[FloatArray, Mapping[int, FloatArray]], None], controls: FloatArray, moved: Mapping[int, FloatArray]
) -> None:
    for i in range(len(controls)):
        step(controls[i : i + 1], {body: positions[i : i + 1] for body, positions in moved.items()})


def run(made: Physics, periods: int) -> list[bytes]:
    states, data = [], made._data
    directions = np.linspace(-1.0, 1.0, len(data.ctrl))
    for period in range(periods):
        along = np.linspace(0.1 * period, 0.1 * (period + 1), STEPS)[:, np.newaxis]
        made.step(along * directions, {0: along * [0.1, -0.1, 0.0]})
        made.forward()
        parts = (data.qpos, data.qvel, data.act, data.qacc_warmstart, data.ctrl, data.mocap_pos, data.qfrc_constraint)
        states.append(b"".join(part.tobytes() for part in (*parts, np.array(data.time))))
    return states


@pytest.mark.parametrize("name", ["door_open", "cart_goal"])
def test_one_call_equals_single_steps(name: str) -> None:
    together, single = physics(name), physics(name, single=True)
    assert run(together, 12) == run(single, 12)


def test_a_warning_ends_a_rollout_but_not_the_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    together, single = physics(), physics(single=True)
    rollout = together._rollout.rollout

    def warned_after_seven_steps(*given: Any, nstep: int, state: FloatArray, **options: Any) -> None:
        *others, inputs = given
        rollout(*others, inputs[:, :7], nstep=min(nstep, 7), state=state[:, :7], **options)
        together.warned[INERTIA] = 1

    monkeypatch.setattr(together._rollout, "rollout", warned_after_seven_steps)
    assert run(together, 4) == run(single, 4)


def test_a_state_is_saved_again_only_after_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    made, alone = physics(), physics(single=True)
    assert run(made, 2) == run(alone, 2)
    with monkeypatch.context() as patch:
        patch.setattr(made, "_save", lambda: 1 / 0)
        assert run(made, 2) == run(alone, 2)
    for each in (made, alone):
        each.edit()
        each._data.qvel[0] += 0.1
    assert run(made, 2) == run(alone, 2)
