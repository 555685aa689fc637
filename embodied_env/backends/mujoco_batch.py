"""The MuJoCo worlds of several slots, stepped together in threads and read as arrays."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.backends.mujoco import MujocoBackend
from embodied_env.contract.message_types import MessageField
from embodied_env.core.batches import ApprovedCommandBatch, BoolArray, IntArray, SampleBatch, SnapshotBatch, merge_rows
from embodied_env.core.codes import Quality
from embodied_env.core.types import FloatArray, Sample, Snapshot
from embodied_env.errors import BackendLostError
from embodied_env.sim.batched_physics import BatchedPhysics
from embodied_env.sim.physics import SharedData
from embodied_env.sim.sensor_channel import Reading
from embodied_env.sim.sensor_reader import RowsReader
from embodied_env.sim.world import World

Slots = Sequence[int]

_DATA_PER_THREAD = 8  # enough for threads of different speed to end at almost the same time
_MOST_NORM_ERROR = 0.05  # of a squared norm; a larger one is left to the check of a single reading


class WorldBatch:
    """Steps the worlds of several slots, and reads their sensors as arrays.

    A slot belongs to the batch from `load` until its own backend resets or steps it; that backend sees the true state
    of its world at any time. `slots` are ascending indices. No array that was returned is written later.

    Attributes:
        latest: the newest snapshot of each slot; rows of slots that were never loaded are undefined.
        has_cameras: whether only the caller's thread computes worlds.
    """

    def __init__(self, backends: Sequence[MujocoBackend], *, threads: int | None = None) -> None:
        """Batch the worlds of backends that need not be open yet, with a thread per CPU by default.

        `threads` includes the caller's, which alone computes worlds with cameras: their renderers belong to it.
        """
        self._backends, size = backends, len(backends)
        threads = (os.cpu_count() or 1) if threads is None else threads
        self.has_cameras = backends[0].has_cameras
        self._threads = 1 if self.has_cameras else max(1, min(threads, size))
        self._executor = ThreadPoolExecutor(self._threads - 1, "worlds") if self._threads > 1 else None
        self._pid = os.getpid()
        self._shared = [SharedData() for _ in range(min(size, _DATA_PER_THREAD * self._threads))]
        for slot, backend in enumerate(backends):
            backend.share(self._shared[slot % len(self._shared)])
        self._worlds: dict[int, World] = {}
        self._ideal: dict[str, list[RowsReader]] = {}  # of the fields of sensors that all worlds read together
        self._parts: list[FloatArray] = []  # what these readers read, with a row per slot
        self._together: set[int] = set()  # slots whose ideal sensors are read with those of others
        self._physics: BatchedPhysics | None = None  # of all worlds, if nothing happens during their steps
        self._seen: list[dict[str, Reading | None]] = [{} for _ in range(size)]  # readings in `latest`
        self._targets: FloatArray = np.empty((size, 0))  # the active command of each slot
        self._commands: FloatArray = np.empty((size, 0))
        self._period_ns = 0
        self._errors: dict[int, BackendLostError] = {}
        self.latest = SnapshotBatch(now_ns=np.zeros(size, dtype=np.int64), samples={})

    def load(self, snapshots: Mapping[int, Snapshot]) -> None:
        """Take over slots after resets or steps of their own; the snapshots become their rows of `latest`."""
        slots = list(snapshots)
        for slot in slots:
            world = self._backends[slot].world
            if self._worlds.get(slot) is not world:
                self._add(slot, world)
            self._seen[slot] = {}
        if not slots:
            return
        targets = [self._worlds[slot].target for slot in slots]
        if not self._targets.size:
            self._targets = np.zeros((len(self._backends), len(targets[0])))
        self._targets = merge_rows(self._targets, slots, targets)
        self.latest = self.latest.with_rows(snapshots, len(self._backends))

    def send(self, commands: ApprovedCommandBatch, slots: Slots) -> None:
        """Set the commands of the next period; raises TypeError for one that is not approved."""
        if not isinstance(commands, ApprovedCommandBatch) or not commands.is_decided[list(slots)].all():
            raise TypeError(f"invalid commands: {type(commands).__name__} (expected approved commands of these slots)")
        self._commands = commands.values

    def step(self, slots: Slots) -> dict[int, BackendLostError]:
        """Step these worlds by one control period; return the error of each that is unstable."""
        slots, self._errors = list(slots), {}
        commands = targets = controls = self._commands[slots]
        if (first := next((slot for slot in slots if slot in self._together), None)) is not None:
            targets, controls = self._worlds[first].plan(self._targets[slots], commands)
        self._targets = self._targets.copy()
        self._targets[slots] = targets
        are_stepped = np.zeros(len(slots), dtype=np.bool_)
        if self._physics is not None:
            for shared in self._shared:
                shared.release()
            are_stepped = self._physics.step(slots, targets, controls, self._call_in_threads)
        by_data: dict[int, list[int]] = {}
        for row in np.flatnonzero(~are_stepped).tolist():
            by_data.setdefault(slots[row] % len(self._shared), []).append(row)
        remaining = iter(by_data.values())

        def step_remaining(_: int) -> None:
            try:
                for rows in remaining:  # shared by all threads
                    for row in rows:
                        self._step_one(slots[row], commands[row], targets[row], controls[row])
            finally:
                list(remaining)  # after an interrupt no further world is stepped

        if by_data:
            self._call_in_threads(step_remaining)
        return self._errors

    def _call_in_threads(self, call: Callable[[int], None]) -> None:
        """Call a function in each thread, the first of which is the caller's, with the number of the thread."""
        under_way: list[Future[None]] = []
        try:
            if self._executor is not None and os.getpid() == self._pid:  # after a fork no thread is left
                under_way.extend(self._executor.submit(call, thread) for thread in range(1, self._threads))
            call(0)
        finally:
            under_way = [each for each in under_way if not each.cancel()]  # no thread was free for the others
            wait(under_way)
        for each in under_way:
            each.result()

    def _step_one(self, slot: int, command: FloatArray, target: FloatArray, controls: FloatArray) -> None:
        """Step a world and, since another one may use its data next, copy what is read together."""
        world = self._worlds[slot]
        try:
            if slot in self._together:
                world.step_planned(target, controls)
                for rows, part in zip(self._parts, world.parts, strict=True):
                    rows[slot] = part
            else:
                world.command(command)
                world.step()
        except BackendLostError as error:
            self._errors[slot] = error

    def read(self, slots: Slots, arrival_ns: IntArray) -> SnapshotBatch:
        """Return the newest samples, which arrived at `arrival_ns`, shape (n_slots,); other slots keep their rows.

        A reading that may be invalid has the quality INVALID; after `hand_over` the slot's backend reads which it is.
        """
        slots = list(slots)
        together = [slot for slot in slots if slot in self._together]
        alone = [slot for slot in slots if slot not in self._together]
        now_ns = merge_rows(self.latest.now_ns, slots, self.latest.now_ns + self._period_ns)
        samples = {}
        for name, before in self.latest.samples.items():
            sample, own = before, slots
            if together and name in self._ideal:
                sample, own = self._read_together(before, together, now_ns, arrival_ns), alone
            if own:
                sample = sample.with_rows(self._changed(name, own))
                sample = replace(sample, arrival_ns=merge_rows(sample.arrival_ns, own, arrival_ns))
            samples[name] = sample
        self.latest = SnapshotBatch(now_ns=now_ns, samples=samples)
        return self.latest

    def hand_over(self, slot: int) -> None:
        """Let the slot's backend finish the step taken: it accepts the same command, and moves nothing.

        Its `advance` raises the error of an unstable world.
        """
        self._backends[slot].accept_step(self._commands[slot], self._errors.get(slot))

    def close(self) -> None:
        """End the threads. Idempotent; the backends stay open."""
        if self._executor is not None:
            self._executor.shutdown()

    def _add(self, slot: int, world: World) -> None:
        """Resolve the readers of a new world, whose ideal sensors are read with those of the first one."""
        if not self._ideal:
            size, sensors = len(self._backends), world.ideal.items()
            ideal = {name: [RowsReader(layout, reader, size) for layout, reader in fields] for name, fields in sensors}
            self._parts = [part for readers in ideal.values() for reader in readers for part in reader.parts]
            self._ideal = ideal
        if world.is_batchable:
            if self._physics is None:
                self._physics = BatchedPhysics(world, self._parts, size=len(self._backends), threads=self._threads)
            self._physics.add(slot, world)
        self._together.discard(slot)
        if world.ideal and world.ideal.keys() == self._ideal.keys():
            self._together.add(slot)
        self._worlds[slot], self._period_ns = world, world.tick_ns  # last, since an interrupt may come earlier

    def _read_together(
        self, before: SampleBatch, slots: list[int], now_ns: IntArray, arrival_ns: IntArray
    ) -> SampleBatch:
        """Read an ideal sensor, which has delivered exactly one reading in the step."""
        checked = self._backends[slots[0]].checked_fields(before.sensor)
        values, quality = {}, np.zeros(len(now_ns), dtype=np.int8)
        for reader in self._ideal[before.sensor]:
            field, rows = reader.layout.field, reader()
            if field in checked:
                quality[~_is_certain(checked[field], rows)] = int(Quality.INVALID)
            values[field] = merge_rows(before.values[field], slots, rows)
        return SampleBatch(
            sensor=before.sensor,
            values=values,
            stamp_ns=merge_rows(before.stamp_ns, slots, now_ns),
            arrival_ns=merge_rows(before.arrival_ns, slots, arrival_ns),
            seq=merge_rows(before.seq, slots, before.seq + 1),
            quality=merge_rows(before.quality, slots, quality),
        )

    def _changed(self, name: str, slots: list[int]) -> dict[int, Sample]:
        """Return the newest samples of a sensor that are not in `latest` yet."""
        changed = {}
        for slot in slots:
            reading = self._worlds[slot].newest(name)
            if reading is not None and reading is not self._seen[slot].get(name):
                self._seen[slot][name] = reading
                changed[slot] = self._backends[slot].sample(name, reading, 0)
        return changed


def _is_certain(known: MessageField, rows: NDArray[Any]) -> BoolArray:
    """Return which rows are surely valid for a reader of the message."""
    if known.rotation:
        x, y, z, w = rows.T
        return np.asarray(np.abs(x * x + y * y + z * z + w * w - 1.0) <= _MOST_NORM_ERROR)
    return np.asarray(((rows >= 0.0) & (rows < np.inf)).all(axis=-1))
