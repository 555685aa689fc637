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
        self._mujoco, self._mj, self._data, self.places = mujoco, model.mj, data, places
        self._models, self._datas = [model.mj], [data]
        self._timestep_s = float(model.mj.opt.timestep)
        kinds = mujoco.mjtState
        set_by_worlds = (kinds.mjSTATE_CTRL, kinds.mjSTATE_EQ_ACTIVE, kinds.mjSTATE_MOCAP_POS, kinds.mjSTATE_MOCAP_QUAT)
        self._inputs, self._full = sum(map(int, set_by_worlds)), int(kinds.mjSTATE_FULLPHYSICS)
        self._mocap = mujoco.mj_stateSize(model.mj, self._inputs & (int(kinds.mjSTATE_MOCAP_POS) - 1))
        self.state = np.empty((1, mujoco.mj_stateSize(model.mj, self._full)))
        self.inputs = np.empty((1, most_steps, mujoco.mj_stateSize(model.mj, self._inputs)))  # the controls first
        self.trace: FloatArray | None = None  # the state after each physics step
        self._warm_start = data.qacc_warmstart[np.newaxis]
        self.warned: NDArray[np.int32] = data.warning.number  # counts by warning; a view: the attribute is slow to read
        self._unstable = [int(getattr(mujoco.mjtWarning, name)) for name in _UNSTABLE]
        self._problem = ""  # by which the simulation was lost
        rollout = getattr(mujoco.rollout, "Rollout", None)  # since MuJoCo 3.3
        self._rollout: Any = None if rollout is None else rollout(nthread=0)

    @property
    def buffers(self) -> tuple[FloatArray, FloatArray]:
        """The arrays that `run` takes states and inputs from."""
        return self.state, self.inputs

    def use(self, state: FloatArray, inputs: FloatArray, trace: FloatArray) -> None:
        """Use these parts of larger arrays as buffers of `run`; `trace` receives the state after each physics step."""
        self.state, self.inputs, self.trace = state, inputs, trace

    @property
    def is_lost(self) -> bool:
        """Whether the simulation was unstable at any time since `begin`."""
        return bool(self._problem)

    @property
    def can_run(self) -> bool:
        """Whether `run` is possible."""
        return self._rollout is not None

    def begin(self) -> None:
        """Begin an episode in a state that was reset."""
        self._problem = ""

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
        if len(controls) == 1 or after_each is not None or not self.can_run:
            self._loop(controls, moved, after_each)
            return
        self.load()
        self.inputs[0, : len(controls), self.places] = controls
        for body, positions in moved.items():
            self.inputs[0, : len(controls), self._mocap + 3 * body : self._mocap + 3 * body + 3] = positions
        self.run(len(controls))
        if any(self.warned.tolist()):
            self.complete(controls, moved)

    def load(self) -> None:
        """Begin the next `run` at the current state, with the current inputs at each step."""
        self._mujoco.mj_getState(self._mj, self._data, self.state[0], self._full)
        self._mujoco.mj_getState(self._mj, self._data, self.inputs[0, 0], self._inputs)
        self.inputs[0, 1:] = self.inputs[0, 0]

    def run(self, steps: int) -> None:
        """Take physics steps from `state` with `inputs` until the first warning, without the GIL."""
        self._rollout.rollout(
            self._models,
            self._datas,
            self.state,
            self.inputs[:, :steps],
            control_spec=self._inputs,
            skip_checks=True,
            nstep=steps,
            initial_warmstart=self._warm_start,
            state=None if self.trace is None else self.trace[:, :steps],
        )

    def complete(self, controls: FloatArray, moved: Mapping[int, FloatArray]) -> None:
        """Take the physics steps after a warning, which is no reason to stop, unless the simulation is unstable."""
        self.check_stable()
        done = round((self._data.time - self.state[0, 0]) / self._timestep_s)
        self._loop(controls[done:], {body: positions[done:] for body, positions in moved.items()}, None)

    def _loop(
        self, controls: FloatArray, moved: Mapping[int, FloatArray], after_each: Callable[[], None] | None
    ) -> None:
        mj_step, mj, data, ctrl, places = self._mujoco.mj_step, self._mj, self._data, self._data.ctrl, self.places
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
        """Raise BackendLostError if the state was unstable at any time since `begin`, or a position is not finite."""
        numbers = self.warned.tolist()
        counts = [numbers[warning] for warning in self._unstable]
        if not self._problem and (any(counts) or not math.isfinite(sum(self._data.qpos.tolist()))):
            bad = ", ".join(name for name, count in zip(_UNSTABLE, counts, strict=True) if count)
            self._problem = bad or "a position is not finite"
        if self._problem:
            raise BackendLostError("sim_unstable", f"simulation unstable: {self._problem}")
