"""Control periods of several MuJoCo worlds in one call, and their readings as arrays."""

from __future__ import annotations

import ctypes
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import FloatArray
from embodied_env.contract.spaces import FieldLayout
from embodied_env.extensions.vector.batched_types import BoolArray, IntArray
from embodied_env.sim.actuators import Actuation
from embodied_env.sim.identified_parameters import CONSTANT_FIELDS
from embodied_env.sim.randomization import drawn_fields
from embodied_env.sim.rendering import Renderer
from embodied_env.sim.sensor_reader import ArrayReader, SimulatedSensorReader
from embodied_env.sim.world import World, WorldState
from embodied_env.sim.world_model import MjData

_READ = ("qpos", "qvel", "qfrc_actuator", "site_xpos", "site_xmat", "sensordata")  # fields of MuJoCo


class BatchedPhysics:
    """Physics of worlds with nothing else in a step (`World.reads_at_end`), in rows by slot.

    Attributes:
        states: what determines the next steps of each slot, an ``mjSTATE_INTEGRATION`` per row.
        targets: the active command of each slot, shape (n_slots, n_joints); a step makes a new array.
        sensed: the ``sensordata`` in each physics step of the last step, a row for each of its slots, if contacts are
            counted.
    """

    def __init__(self, world: World, *, size: int, threads: int) -> None:
        """Step `size` worlds like this one with `threads`, including the caller's."""
        self._model, self._actuation, self._driven = world.model, Actuation(world.model), world.driven
        self._movers, self._substeps_ns = list(world.movers.values()), world.substeps_ns
        model, self._substeps = world.model, world.substeps
        self._phases, self._origin_ns = np.zeros((size, len(self._movers))), np.zeros(size, dtype=np.int64)
        self.sensed: FloatArray = np.empty((size, self._substeps, model.mj.nsensordata if model.contact_counts else 0))
        kinds = model.mujoco.mjtState
        self._input_kinds = int(kinds.mjSTATE_CTRL) | int(kinds.mjSTATE_MOCAP_POS)
        self._drawn = drawn_fields(model)
        self._data = model.new_data()
        sensors = SimulatedSensorReader(model, self._data, Renderer(model.mujoco, model.mj), whole_messages=False)
        self._fields = {name: sensors.array_readers(name) for name in model.contract.sensors}
        self.targets: FloatArray = np.zeros((size, len(self._actuation.joints)))
        self._make_batch(size, min(threads, size))

    def _make_batch(self, size: int, threads: int) -> None:
        compiled = self._model.original or self._model
        module = importlib.import_module("mujoco.batch")
        self._pid, self._batch = os.getpid(), module.Batch(compiled.mj, size, threads)
        self._error: type[Exception] = module.SimulationError
        self.states: FloatArray = self._batch.state
        self._controls, self._mocap = self._batch.bind("ctrl"), self._batch.bind("mocap_pos")
        self._warnings = self._batch.warning[..., -1]
        self._models = {name: self._batch.expand(name) for name in self._drawn}
        self._readers = {
            name: {layout.field: _rows_reader(layout, reader, self._batch, self._data) for layout, reader in fields}
            for name, fields in self._fields.items()
        }

    def _replace_after_fork(self) -> None:
        """Continue without threads in a forked process, where those of the batch do not run."""
        old, models = self._batch, self._models
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(old))  # it would wait for its threads when it is freed
        self._make_batch(old.nsim, 1)
        self.states[:] = old.state
        for name, rows in models.items():
            self._models[name][:] = rows
        if models:
            self._batch.set_const()
        self._batch.forward()

    def load(self, slot: int, state: WorldState) -> None:
        """Set the state of a slot and its active command."""
        self.states[slot], self._origin_ns[slot] = state.physics, state.origin_ns
        self.targets = self.targets.copy()
        self.targets[slot] = state.target

    def copy_drawn(self, slot: int, world: World) -> None:
        """Set what a reset of the slot has drawn in the model and the phases of `world`."""
        self._phases[slot] = [body.phase for body in self._movers]
        for name, rows in self._models.items():
            rows[slot] = getattr(world.model.mj, name)
        if not CONSTANT_FIELDS.isdisjoint(self._models):
            self._batch.set_const([slot])

    def step(self, slots: Sequence[int], commands: FloatArray, now_ns: IntArray) -> BoolArray:
        """Step slots to `commands` from `now_ns`, and return which are finite and had no warning.

        Rows are those of these slots. The others keep their states.
        """
        if os.getpid() != self._pid:
            self._replace_after_fork()
        places = np.array(slots, dtype=np.int32)
        before, sent = self.states[places], self.targets[places]
        targets = self._actuation.limited(self._driven(commands), sent)
        fixed = self._controls[places], self._mocap[places].reshape(len(places), -1)
        inputs = np.concatenate(fixed, axis=1)[:, np.newaxis].repeat(self._substeps, axis=1)
        inputs[..., self._actuation.places] = self._actuation.between(sent, targets, self._substeps)
        times_s = ((now_ns - self._origin_ns[places])[:, np.newaxis] + self._substeps_ns) / 1e9
        for body, phases in zip(self._movers, self._phases[places].T, strict=True):
            start = self._controls.shape[1] + 3 * body.mocap
            inputs[..., start : start + 3] = body.positions(times_s, phases[:, np.newaxis])
        warnings, out = self._warnings[places], {}
        if self._model.contact_counts:
            self.sensed = out["sensordata"] = np.empty((len(places), *self.sensed.shape[1:]))
        with suppress(self._error):  # it keeps the states of those that failed
            self._batch.rollout(self._substeps, inputs, self._input_kinds, record=tuple(out), ids=places, out=out)
        are_stepped = (self._warnings[places] == warnings).all(axis=1) & np.isfinite(self.states[places]).all(axis=1)
        are_stepped &= self._batch.status[places] == 0
        if not are_stepped.all():
            self.states[places[~are_stepped]] = before[~are_stepped]
        self.targets = self.targets.copy()
        self.targets[places[are_stepped]] = targets[are_stepped]
        return np.asarray(are_stepped)

    def forward(self, slots: Sequence[int]) -> None:
        """Compute what the readings of these slots need."""
        self._batch.forward(np.array(slots, dtype=np.int32))

    def read(self, sensor: str) -> Mapping[str, NDArray[Any]]:
        """Return a sensor's fields in the contract's precision, new arrays, by the last `forward`."""
        return {field: read() for field, read in self._readers[sensor].items()}


def _rows_reader(layout: FieldLayout, like: ArrayReader, batch: Any, data: MjData) -> Callable[[], NDArray[Any]]:  # noqa: ANN401
    """Return a function that reads a field in rows by slot, by the formula of one world."""
    parts, shape = [_bound(batch, data, part) for part in like.parts], (batch.nsim, *layout.raw_shape)

    def read() -> NDArray[Any]:
        with np.errstate(all="ignore"):  # as for one world
            return like.formula(*parts).astype(layout.dtype, copy=False).reshape(shape)

    return read


def _bound(batch: Any, data: MjData, part: NDArray[Any]) -> NDArray[Any]:  # noqa: ANN401 - mujoco has no type stubs
    """Return the rows of the batch for a part of a field of `data`."""
    for name in _READ:
        field = getattr(data, name)
        start = (part.ctypes.data - field.ctypes.data) // field.itemsize
        if 0 <= start < field.size:
            rows: NDArray[Any] = batch.bind(name).reshape(batch.nsim, -1)
            return rows[:, start : start + part.size]
    raise ValueError(f"no field of a batch: {part} (expected a part of {', '.join(_READ)})")
