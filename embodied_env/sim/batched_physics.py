"""Control periods of several MuJoCo worlds of one structure, each computed by the next free thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from embodied_env.contract import FloatArray
from embodied_env.sim.sensor_reader import RowsReader
from embodied_env.sim.world import World


class BatchedPhysics:
    """Takes the physics steps of a control period of several worlds, and reads their ideal sensors.

    The saved states of the worlds are rows of its arrays. Threads do no more than they must, since only the calls of
    MuJoCo run without the GIL.
    """

    def __init__(self, world: World, readers: Sequence[RowsReader], *, size: int, threads: int) -> None:
        """Step at most `size` worlds like this one, which `is_batchable`; `readers` are those of its ideal sensors."""
        self._places = world.physics.places
        self._saved = [np.zeros((size, *array.shape)) for array in world.physics.saved]
        self._models: list[Any] = [None] * size
        self._steps, self._targets = np.zeros(size, dtype=np.int64), np.zeros((size, len(world.joints)))
        rows = [part for reader in readers for part in reader.parts]
        self._lanes = [_Lane(world, rows) for _ in range(threads)]

    def add(self, slot: int, world: World) -> None:
        """Let a world save its state in the row `slot`, and count the steps that are taken here."""
        world.physics.save_in(*(rows[slot] for rows in self._saved))
        world.follow(partial(self._count_steps, slot))
        self._models[slot] = world.physics.mj

    def step(
        self,
        slots: Sequence[int],
        targets: FloatArray,
        controls: FloatArray,
        call_in_threads: Callable[[Callable[[int], None]], None],
    ) -> list[int]:
        """Step saved states, read the sensors of those that stay stable, and return their slots.

        The others keep their states, for `World.step_planned`, which raises the error.

        Args:
            slots: where the states are.
            targets: with `controls`, the rows of `World.plan` for these slots.
            controls: shape (len(slots), n_substeps, n_controls).
            call_in_threads: calls a function in several threads, with the number of each, and waits for them.
        """
        states, warm_starts, inputs = after = [rows[slots] for rows in self._saved]
        periods = inputs.repeat(controls.shape[1], axis=1)
        periods[:, :, self._places] = controls
        remaining, stepped = iter(range(len(slots))), list[int]()

        def step_remaining(thread: int) -> None:
            lane = self._lanes[thread]
            try:
                for row in remaining:  # of all threads together
                    slot = slots[row]
                    if lane.step(self._models[slot], states[row], warm_starts[row], periods[row], slot):
                        stepped.append(row)
            finally:
                list(remaining)  # after an interrupt no further world is stepped

        call_in_threads(step_remaining)
        inputs[:, 0] = periods[:, -1]
        are_finite = np.isfinite(states.sum(axis=(1, 2)))
        stepped = [row for row in sorted(stepped) if are_finite[row]]
        done = [slots[row] for row in stepped]
        for rows, new in zip(self._saved, after, strict=True):
            rows[done] = new[stepped]
        self._targets[done] = targets[stepped]
        self._steps[done] += 1
        return done

    def _count_steps(self, slot: int) -> tuple[int, FloatArray]:
        steps, self._steps[slot] = int(self._steps[slot]), 0
        return steps, self._targets[slot].copy()


class _Lane:
    """The ``MjData`` of a thread, and what is read there."""

    def __init__(self, world: World, rows: Sequence[FloatArray]) -> None:
        """Read the parts of ideal sensors into `rows`."""
        physics = world.physics
        self._mujoco, self._kinds = physics.mujoco, physics.input_kinds
        self._rollout = self._mujoco.rollout.Rollout(nthread=0).rollout
        self._data, parts = world.copy_data()
        self._datas, self._reads = [self._data], list(zip(rows, parts, strict=True))
        self._states = np.empty((1, world.substeps, physics.saved[0].size))
        # views, as attributes of the data are slow to read
        self._last, self._warm_start, self._warned = (
            self._states[0, -1],
            self._data.qacc_warmstart,
            self._data.warning.number,
        )

    def step(self, mj: Any, state: FloatArray, warm_start: FloatArray, inputs: FloatArray, slot: int) -> bool:  # noqa: ANN401 - mujoco has no type stubs
        """Step a state and its warm start, both in place, and read the row `slot`; return False after a warning.

        Shapes: (1, n_state), (1, n_velocities) and (n_substeps, n_inputs).
        """
        self._rollout(
            [mj],
            self._datas,
            state,
            inputs[np.newaxis],
            control_spec=self._kinds,
            skip_checks=True,
            nstep=len(inputs),
            initial_warmstart=warm_start,
            state=self._states,
        )
        if any(self._warned.tolist()):
            return False
        state[0], warm_start[0] = self._last, self._warm_start
        self._mujoco.mj_forward(mj, self._data)
        for rows, part in self._reads:
            rows[slot] = part
        return True
