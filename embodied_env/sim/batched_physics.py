"""Control periods of several MuJoCo worlds of one structure, each computed by the next free thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import FloatArray
from embodied_env.sim.world import World


class BatchedPhysics:
    """Takes the physics steps of a control period of several worlds, and reads their ideal sensors.

    The saved states of the worlds are rows of its arrays. Threads do as little as possible apart from the calls of
    MuJoCo, which alone run without the GIL.
    """

    def __init__(self, world: World, parts: Sequence[FloatArray], *, size: int, threads: int) -> None:
        """Step at most `size` worlds like this one, which `is_batchable`; `parts` get theirs as rows."""
        self._places = world.physics.places
        self._saved = [np.zeros((size, *array.shape)) for array in world.physics.saved]
        self._models: list[Any] = [None] * size
        self._steps, self._targets = np.zeros(size, dtype=np.int64), np.zeros((size, len(world.joints)))
        self._steppers = [_Stepper(world, parts) for _ in range(threads)]

    def add(self, slot: int, world: World) -> None:
        """Let a world save its state in the row `slot`, and count the steps that are taken here."""
        world.physics.save_in(*(rows[slot] for rows in self._saved))
        world.count_steps_with(partial(self._count_steps, slot))
        self._models[slot] = world.physics.mj

    def step(
        self,
        slots: Sequence[int],
        targets: FloatArray,
        controls: FloatArray,
        call_in_threads: Callable[[Callable[[int], None]], None],
    ) -> NDArray[np.bool_]:
        """Step saved states, read their sensors, and return which of them had no warning and are finite.

        The others stay as they were, as do worlds that were not added: `World.step_planned` raises their errors.

        Args:
            slots: where the states are.
            targets: with `controls`, the rows of `World.plan` for these slots.
            controls: shape (len(slots), n_substeps, n_controls).
            call_in_threads: calls a function in several threads, with the number of each, and waits for them.
        """
        places = np.array(slots, dtype=np.intp)
        states, warm_starts, inputs = after = [rows[places] for rows in self._saved]
        periods = inputs[:, np.newaxis].repeat(controls.shape[1], axis=2)
        periods[..., self._places] = controls[:, np.newaxis]
        remaining, are_stepped = iter(range(len(slots))), np.zeros(len(slots), dtype=np.bool_)

        def step_remaining(thread: int) -> None:
            stepper = self._steppers[thread]
            try:
                for row in remaining:  # shared by all threads
                    slot = slots[row]
                    if (model := self._models[slot]) is not None:
                        are_stepped[row] = stepper.step(model, states[row], warm_starts[row], periods[row], slot)
            finally:
                list(remaining)  # after an interrupt no further world is stepped

        call_in_threads(step_remaining)
        inputs[:] = periods[:, :, -1]
        are_stepped &= np.isfinite(states).all(axis=(1, 2))
        places = places[are_stepped]
        for rows, new in zip((*self._saved, self._targets), (*after, targets), strict=True):
            rows[places] = new[are_stepped]
        self._steps[places] += 1
        return are_stepped

    def _count_steps(self, slot: int) -> tuple[int, FloatArray]:
        """Return the steps of a slot since the last call, and their last target."""
        steps, self._steps[slot] = int(self._steps[slot]), 0
        return steps, self._targets[slot].copy()


class _Stepper:
    """Steps states of a thread one by one, in an ``MjData`` of its own."""

    def __init__(self, world: World, rows: Sequence[FloatArray]) -> None:
        """Step worlds like this one, and copy the parts that are read to `rows`."""
        physics = world.physics
        self._mujoco, self._kinds = physics.mujoco, physics.input_kinds
        self._rollout = self._mujoco.rollout.Rollout(nthread=0).rollout
        self._data, parts = world.copy_data()
        self._datas, self._pairs = [self._data], list(zip(rows, parts, strict=True))
        self._states = np.empty((1, world.substeps, physics.saved[0].size))
        self._last = self._states[0, -1]
        self._warm_start, self._warned = self._data.qacc_warmstart, self._data.warning.number

    def step(self, mj: Any, state: FloatArray, warm_start: FloatArray, inputs: FloatArray, slot: int) -> bool:  # noqa: ANN401 - mujoco has no type stubs
        """Step a state and its warm start in place, and write the row `slot`; return False after a warning.

        The shapes are (1, n_state), (1, n_velocities) and (1, n_substeps, n_inputs).
        """
        self._rollout(
            [mj],
            self._datas,
            state,
            inputs,
            control_spec=self._kinds,
            skip_checks=True,
            nstep=inputs.shape[1],
            initial_warmstart=warm_start,
            state=self._states,
        )
        if any(self._warned.tolist()):
            self._warned[:] = 0
            return False
        state[0], warm_start[0] = self._last, self._warm_start
        self._mujoco.mj_forward(mj, self._data)
        for rows, part in self._pairs:
            rows[slot] = part
        return True
