"""Physics steps of one MuJoCo world, as many as possible in one call that releases the GIL."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import FloatArray
from embodied_env.errors import BackendLostError
from embodied_env.sim.world_model import MjData, WorldModel

_UNSTABLE = ("mjWARN_BADQPOS", "mjWARN_BADQVEL", "mjWARN_BADQACC", "mjWARN_BADCTRL")


class Physics:
    """Stepper of one state of a model.

    `mujoco.rollout` and a loop of ``mj_step`` leave the same state, bit for bit.

    Attributes:
        mujoco, mj: the module, and the ``MjModel``.
        places: the indices of the controls in the model.
        forward: computes derived quantities of the current state, without effect on the simulation.
        warned: the number of warnings by kind.
        sensed: the ``sensordata`` in each physics step of the last `step`, by rows, if contacts are counted.
    """

    def __init__(self, model: WorldModel, data: MjData, places: slice | NDArray[np.intp]) -> None:
        mujoco = model.mujoco
        self.mujoco, self.mj, self._data, self.places = mujoco, model.mj, data, places
        self.forward: Callable[[], None] = partial(mujoco.mj_forward, model.mj, data)
        self._models, self._datas = [model.mj], [data]
        self._timestep_s = float(model.mj.opt.timestep)
        kinds = mujoco.mjtState
        set_by_worlds = (kinds.mjSTATE_CTRL, kinds.mjSTATE_EQ_ACTIVE, kinds.mjSTATE_MOCAP_POS, kinds.mjSTATE_MOCAP_QUAT)
        self._input_kinds, self._state_kinds = sum(map(int, set_by_worlds)), int(kinds.mjSTATE_FULLPHYSICS)
        self._mocap_start = mujoco.mj_stateSize(model.mj, self._input_kinds & (int(kinds.mjSTATE_MOCAP_POS) - 1))
        self._warm_start = data.qacc_warmstart
        # the saved state and warm start, and the inputs that stay during a step
        self._state = np.empty((1, mujoco.mj_stateSize(model.mj, self._state_kinds)))
        self._inputs = np.empty((1, mujoco.mj_stateSize(model.mj, self._input_kinds)))
        self._saved_warm_start = np.empty((1, model.mj.nv))
        self._is_saved = False
        self._positions: FloatArray = data.qpos  # a view, as the attribute is slow to read
        self.warned: NDArray[np.int32] = data.warning.number  # counts by warning, also a view
        self._problem = ""  # why the simulation is unstable
        self._rollout = mujoco.rollout.Rollout(nthread=0)
        # the inputs of the physics steps of one call, and the states after them
        self._rows, self._states = np.empty((1, 0, self._inputs.size)), np.empty((1, 0, self._state.size))
        self._sensordata, self._is_sensed = data.sensordata, bool(model.contact_counts)
        self.sensed: FloatArray = np.empty((0, data.sensordata.size))

    def begin(self) -> None:
        """Begin an episode in a state that was reset."""
        self._problem = ""

    def get_state(self) -> FloatArray:
        """Return all that determines the next steps (``mjSTATE_INTEGRATION``), new, shape (n,)."""
        kinds = int(self.mujoco.mjtState.mjSTATE_INTEGRATION)
        state = np.empty(self.mujoco.mj_stateSize(self.mj, kinds))
        self.mujoco.mj_getState(self.mj, self._data, state, kinds)
        return state

    def set_state(self, state: FloatArray) -> None:
        """Set a state of `get_state`, with derived quantities at the next step or `forward`."""
        self.edit()
        self.mujoco.mj_setState(self.mj, self._data, state, int(self.mujoco.mjtState.mjSTATE_INTEGRATION))
        self.warned[:], self._problem = 0, ""

    def step(self, controls: FloatArray, moved: Mapping[int, FloatArray]) -> None:
        """Take a physics step with each row of controls, while the other inputs of the model stay.

        Args:
            controls: shape (n_steps, n_controls).
            moved: the positions of mocap bodies, shape (n_steps, 3), by mocap index: of the same bodies in each call.

        Raises:
            BackendLostError: when the state is unstable, as `check_stable`.
        """
        if self._is_sensed and len(controls) != len(self.sensed):
            self.sensed = np.empty((len(controls), self._sensordata.size))
        if len(controls) == 1:
            self._loop(0, controls, moved)
            return
        is_new = not self._is_saved
        if is_new:
            self._save()
        if len(controls) != self._rows.shape[1]:
            is_new = True
            self._rows = np.empty((1, len(controls), self._inputs.size))
            self._states = np.empty((1, len(controls), self._state.size))
        rows, start_s = self._rows[0], self._data.time
        if is_new:
            rows[:] = self._inputs
        rows[:, self.places] = controls
        for body, positions in moved.items():
            rows[:, self._mocap_start + 3 * body : self._mocap_start + 3 * body + 3] = positions
        self._is_saved = False
        self._rollout.rollout(  # without the GIL, until the first warning
            self._models,
            self._datas,
            self._state,
            self._rows,
            control_spec=self._input_kinds,
            skip_checks=True,
            nstep=len(controls),
            initial_warmstart=self._saved_warm_start,
            state=self._states,
            sensordata=self.sensed[np.newaxis] if self._is_sensed else None,
        )
        if any(self.warned.tolist()):
            self.check_stable()  # a warning alone is no reason to stop
            self._loop(round((self._data.time - start_s) / self._timestep_s), controls, moved)
            return
        self._state, self._saved_warm_start[0] = self._states[:, -1], self._warm_start
        self._is_saved = True
        if self._problem or not math.isfinite(sum(self._positions.tolist())):
            self.check_stable()

    def _save(self) -> None:
        self.warned[:] = 0
        self.mujoco.mj_getState(self.mj, self._data, self._state[0], self._state_kinds)
        self.mujoco.mj_getState(self.mj, self._data, self._inputs[0], self._input_kinds)
        self._saved_warm_start[0] = self._warm_start

    def edit(self) -> None:
        """Let the data be changed until the next step."""
        self._is_saved = False

    def _loop(self, done: int, controls: FloatArray, moved: Mapping[int, FloatArray]) -> None:
        self.edit()
        mj_step, mj, data, ctrl, places = self.mujoco.mj_step, self.mj, self._data, self._data.ctrl, self.places
        for step in range(done, len(controls)):
            ctrl[places] = controls[step]
            for body, positions in moved.items():
                data.mocap_pos[body] = positions[step]
            mj_step(mj, data)
            if self._is_sensed:
                self.sensed[step] = self._sensordata
        self.check_stable()

    def check_stable(self) -> None:
        """Raise BackendLostError if the state was unstable since `begin`, or is not finite."""
        if not self._problem and not self._is_saved and any(self.warned.tolist()):
            kinds = self.mujoco.mjtWarning
            self._problem = ", ".join(name for name in _UNSTABLE if self.warned[int(getattr(kinds, name))])
        if not self._problem and not math.isfinite(sum(self._positions.tolist())):
            self._problem = "a position is not finite"
        if self._problem:
            raise BackendLostError("sim_unstable", f"simulation unstable: {self._problem}")
