"""Physics steps of one MuJoCo world, as many as possible in one call that releases the GIL."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import FloatArray
from embodied_env.errors import BackendLostError
from embodied_env.sim.model import MjData, Model

_UNSTABLE = ("mjWARN_BADQPOS", "mjWARN_BADQVEL", "mjWARN_BADQACC", "mjWARN_BADCTRL")


class Physics:
    """Steps one state of a model. `mujoco.rollout` and a loop of ``mj_step`` leave the same state, bit for bit."""

    def __init__(self, model: Model, data: MjData, places: slice | NDArray[np.intp], most_steps: int) -> None:
        """Step `data` with controls at `places`, at most `most_steps` steps at once."""
        mujoco = model.mujoco
        self._mujoco, self._mj, self._data, self._places = mujoco, model.mj, data, places
        self._models, self._datas = [model.mj], [data]
        self._timestep_s = float(model.mj.opt.timestep)
        kinds = mujoco.mjtState
        self._full, self._user = int(kinds.mjSTATE_FULLPHYSICS), int(kinds.mjSTATE_USER)
        self._state = np.empty((1, mujoco.mj_stateSize(model.mj, self._full)))
        self._inputs = np.empty(mujoco.mj_stateSize(model.mj, self._user))  # starts with the controls
        self._mocap = mujoco.mj_stateSize(model.mj, self._user & (int(kinds.mjSTATE_MOCAP_POS) - 1))
        self._rows = np.empty((1, most_steps, len(self._inputs)))
        self._warm_start = data.qacc_warmstart[np.newaxis]
        self._warned = data.warning.number  # counts by warning; a view, since the attribute is slow to read
        self._warnings = [int(getattr(mujoco.mjtWarning, name)) for name in _UNSTABLE]
        rollout = getattr(mujoco.rollout, "Rollout", None)  # since MuJoCo 3.3
        self._rollout: Any = None if rollout is None else rollout(nthread=0)

    def step(
        self, controls: FloatArray, moved: Mapping[int, FloatArray], after_each: Callable[[], None] | None = None
    ) -> None:
        """Take a physics step with each row of controls; the other inputs of the model stay.

        Args:
            controls: shape (n_steps, n_controls).
            moved: the positions of mocap bodies, shape (n_steps, 3), by mocap index.
            after_each: called after each physics step.

        Raises:
            BackendLostError: where it stops early; `check_stable` finds every unstable state.
        """
        if len(controls) == 1 or after_each is not None or self._rollout is None:
            self._loop(controls, moved, after_each)
            return
        mujoco, mj, data, rows = self._mujoco, self._mj, self._data, self._rows[:, : len(controls)]
        mujoco.mj_getState(mj, data, self._state[0], self._full)
        mujoco.mj_getState(mj, data, self._inputs, self._user)
        rows[:] = self._inputs
        rows[0, :, self._places] = controls
        for body, positions in moved.items():
            rows[0, :, self._mocap + 3 * body : self._mocap + 3 * body + 3] = positions
        self._rollout.rollout(
            self._models,
            self._datas,
            self._state,
            rows,
            control_spec=self._user,
            skip_checks=True,
            nstep=len(controls),
            initial_warmstart=self._warm_start,
        )
        if any(self._warned.tolist()):  # a rollout ends at the first warning, a simulation only if it is unstable
            self.check_stable()
            done = round((data.time - self._state[0, 0]) / self._timestep_s)
            self._loop(controls[done:], {body: positions[done:] for body, positions in moved.items()}, None)

    def _loop(
        self, controls: FloatArray, moved: Mapping[int, FloatArray], after_each: Callable[[], None] | None
    ) -> None:
        mj_step, mj, data, ctrl, places = self._mujoco.mj_step, self._mj, self._data, self._data.ctrl, self._places
        for step, row in enumerate(controls):
            ctrl[places] = row
            for body, positions in moved.items():
                data.mocap_pos[body] = positions[step]
            mj_step(mj, data)
            if after_each is not None:
                after_each()

    def forward(self) -> None:
        """Compute derived quantities of the current state, without effect on the simulation."""
        warm_start = self._warm_start.copy()  # older versions of MuJoCo change it
        self._mujoco.mj_forward(self._mj, self._data)
        self._warm_start[:] = warm_start

    def check_stable(self) -> None:
        """Raise BackendLostError if MuJoCo has reported an unstable state, or a position is not finite."""
        numbers = self._warned.tolist()
        counts = [numbers[warning] for warning in self._warnings]
        if any(counts) or not math.isfinite(sum(self._data.qpos.tolist())):
            bad = ", ".join(name for name, count in zip(_UNSTABLE, counts, strict=True) if count)
            raise BackendLostError("sim_unstable", f"simulation unstable: {bad or 'a position is not finite'}")
