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


class SharedData:
    """An ``MjData``, which takes 0.4 MB, of one world, or of several in turn with models of one structure.

    Attributes:
        mj: the ``MjData``; None before the first world.
        user: the physics whose state it has; None while it changes. All others have saved theirs.
    """

    def __init__(self) -> None:
        """Start without data."""
        self.mj: MjData = None
        self.user: Physics | None = None

    def begin(self, model: Model) -> MjData:
        """Return the ``MjData`` at the start of an episode of `model`."""
        if self.mj is None:
            self.mj = model.new_data()
        self.release()
        model.reset(self.mj)
        return self.mj

    def release(self) -> None:
        """Save the state of the user, if any."""
        if self.user is not None:
            self.user.save()
            self.user = None


class Physics:
    """Steps one state of a model. `mujoco.rollout` and a loop of ``mj_step`` leave the same state, bit for bit.

    Attributes:
        mujoco, mj: the module, and the ``MjModel``.
        places: the indices of the controls in the model.
        input_kinds: the inputs that worlds set, as flags of ``mjtState``.
        warned: the number of warnings by kind.
        has_rollout: whether this version of MuJoCo steps without the GIL.
    """

    def __init__(self, model: Model, shared: SharedData, places: slice | NDArray[np.intp]) -> None:
        """Step the state that `shared` has now, with controls at `places`."""
        mujoco, data = model.mujoco, shared.mj
        self.mujoco, self.mj, self._data, self.places = mujoco, model.mj, data, places
        self._shared, shared.user = shared, self
        self._models, self._datas = [model.mj], [data]
        self._timestep_s = float(model.mj.opt.timestep)
        kinds = mujoco.mjtState
        set_by_worlds = (kinds.mjSTATE_CTRL, kinds.mjSTATE_EQ_ACTIVE, kinds.mjSTATE_MOCAP_POS, kinds.mjSTATE_MOCAP_QUAT)
        self.input_kinds, self._state_kinds = sum(map(int, set_by_worlds)), int(kinds.mjSTATE_FULLPHYSICS)
        self._mocap_start = mujoco.mj_stateSize(model.mj, self.input_kinds & (int(kinds.mjSTATE_MOCAP_POS) - 1))
        self._warm_start = data.qacc_warmstart
        # the saved state, inputs and warm start
        self._state = np.empty((1, mujoco.mj_stateSize(model.mj, self._state_kinds)))
        self._inputs = np.empty((1, mujoco.mj_stateSize(model.mj, self.input_kinds)))
        self._saved_warm_start = np.empty((1, model.mj.nv))
        self._is_saved = False
        self._positions: FloatArray = data.qpos  # a view, as the attribute is slow to read
        self.warned: NDArray[np.int32] = data.warning.number  # counts by warning, also a view
        self._problem = ""  # why the simulation is unstable
        rollout = getattr(mujoco.rollout, "Rollout", None)  # since MuJoCo 3.3
        self._rollout: Any = None if rollout is None else rollout(nthread=0)
        self.has_rollout = rollout is not None

    @property
    def saved(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The saved state, warm start and inputs, arrays of shape (1, n)."""
        return self._state, self._saved_warm_start, self._inputs

    def save_in(self, state: FloatArray, warm_start: FloatArray, inputs: FloatArray) -> None:
        """Save in these arrays from now on."""
        for before, array in zip(self.saved, (state, warm_start, inputs), strict=True):
            array[:] = before
        self._state, self._saved_warm_start, self._inputs = state, warm_start, inputs

    def begin(self) -> None:
        """Begin an episode in a state that was reset."""
        self._problem = ""

    def get_state(self) -> FloatArray:
        """Return all that determines the next steps (``mjSTATE_INTEGRATION``), as a new array of shape (n,)."""
        kinds = int(self.mujoco.mjtState.mjSTATE_INTEGRATION)
        state = np.empty(self.mujoco.mj_stateSize(self.mj, kinds))
        self.mujoco.mj_getState(self.mj, self._data, state, kinds)
        return state

    def set_state(self, state: FloatArray) -> None:
        """Set what `get_state` returned; derived quantities follow with the next step or `forward`."""
        self.mujoco.mj_setState(self.mj, self._data, state, int(self.mujoco.mjtState.mjSTATE_INTEGRATION))
        self.warned[:], self._problem = 0, ""

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
            self.load()
            self._loop(controls, moved, after_each)
            return
        self._shared.release()
        self._claim()
        inputs, states = np.empty((len(controls), self._inputs.size)), np.empty((len(controls), self._state.size))
        inputs[:] = self._inputs
        inputs[:, self.places] = controls
        for body, positions in moved.items():
            inputs[:, self._mocap_start + 3 * body : self._mocap_start + 3 * body + 3] = positions
        self._run(inputs, states)
        if any(self.warned.tolist()):
            self._complete(controls, moved)
            return
        self._is_saved = True
        self._state[0], self._inputs[0], self._saved_warm_start[0] = states[-1], inputs[-1], self._warm_start

    def save(self) -> None:
        """Save the state that the data has, and its inputs, for another user of the data or for the next steps."""
        if self._is_saved:
            return
        self.mujoco.mj_getState(self.mj, self._data, self._state[0], self._state_kinds)
        self.mujoco.mj_getState(self.mj, self._data, self._inputs[0], self.input_kinds)
        self._saved_warm_start[0] = self._warm_start

    def load(self) -> None:
        """Load the state into the data, with its derived quantities, so that it may be changed there."""
        self._is_saved = False
        if self._shared.user is self:
            return
        self._shared.release()
        self.mujoco.mj_setState(self.mj, self._data, self._state[0], self._state_kinds)
        self.mujoco.mj_setState(self.mj, self._data, self._inputs[0], self.input_kinds)
        self._warm_start[:] = self._saved_warm_start[0]
        self.forward()
        self._claim()  # last, since the saved state counts if an interrupt comes earlier

    def _claim(self) -> None:
        """Become the user of the data."""
        self.warned[:] = 0  # of the last user
        self._is_saved, self._shared.user = False, self

    def _run(self, inputs: FloatArray, states: FloatArray) -> None:
        """Take physics steps from the saved state until the first warning, without the GIL; write `states`."""
        self._rollout.rollout(
            self._models,
            self._datas,
            self._state,
            inputs[np.newaxis],
            control_spec=self.input_kinds,
            skip_checks=True,
            nstep=len(inputs),
            initial_warmstart=self._saved_warm_start,
            state=states[np.newaxis],
        )

    def _complete(self, controls: FloatArray, moved: Mapping[int, FloatArray]) -> None:
        """Take the physics steps after a warning, which is no reason to stop, unless the simulation is unstable."""
        self.check_stable()
        done = round((self._data.time - self._state[0, 0]) / self._timestep_s)
        self._loop(controls[done:], {body: positions[done:] for body, positions in moved.items()}, None)

    def _loop(
        self, controls: FloatArray, moved: Mapping[int, FloatArray], after_each: Callable[[], None] | None
    ) -> None:
        mj_step, mj, data, ctrl, places = self.mujoco.mj_step, self.mj, self._data, self._data.ctrl, self.places
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
        self.mujoco.mj_forward(self.mj, self._data)
        self._warm_start[:] = warm_start

    def check_stable(self) -> None:
        """Raise BackendLostError if the state was unstable at any time since `begin`, or a position is not finite."""
        if not self._problem and any(self.warned.tolist()):
            kinds = self.mujoco.mjtWarning
            self._problem = ", ".join(name for name in _UNSTABLE if self.warned[int(getattr(kinds, name))])
        if not self._problem and not math.isfinite(sum(self._positions.tolist())):
            self._problem = "a position is not finite"
        if self._problem:
            raise BackendLostError("sim_unstable", f"simulation unstable: {self._problem}")
