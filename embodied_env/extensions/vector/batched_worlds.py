"""Step the MuJoCo worlds of slots in one `World` with the state of any, or all as arrays."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embodied_env.backends.mujoco_backend import MujocoBackend
from embodied_env.contract import Contract
from embodied_env.core.code_types import Quality
from embodied_env.core.types import FloatArray, Sample, Snapshot
from embodied_env.errors import BackendLostError
from embodied_env.extensions.vector.batched_physics import BatchedPhysics
from embodied_env.extensions.vector.batched_types import (
    ApprovedCommandBatch,
    BoolArray,
    IntArray,
    SampleBatch,
    SnapshotBatch,
    merge_rows,
)
from embodied_env.messages.declaration import MessageField
from embodied_env.sim.world import World, WorldState

Slots = Sequence[int]

_MOST_NORM_ERROR = 0.05  # of a squared norm, above which a single reading is checked
_NOTHING: FloatArray = np.empty(0)


class _Instant(NamedTuple):
    """The states of all slots at one instant, in `saved` or in the arrays if they are ahead."""

    latest: SnapshotBatch
    saved: list[WorldState | None]
    are_ahead: BoolArray
    physics: FloatArray  # an ``mjSTATE_INTEGRATION`` per row
    targets: FloatArray


class SlotBackend(MujocoBackend):
    """The backend of a slot, whose world is that of all slots if its states can be saved."""

    def __init__(self, contract: Contract, *, worlds: WorldBatch, slot: int, **options: Any) -> None:  # noqa: ANN401
        super().__init__(contract, **options)
        self._worlds, self._slot = worlds, slot

    def _build_world(self) -> World:
        return self._worlds.open(self._slot, super()._build_world, is_delayed=self.delays is not None)

    def close(self) -> None:
        """Free the world with the last of its slots."""
        if self._worlds.leave(self._slot, self._world):
            self._world = None
        super().close()


class WorldBatch:
    """Steps the worlds of several slots, and reads their sensors as arrays.

    Each `SlotBackend` has the same `World`. It has the state of the slot of the last `select`; those of the
    others are saved. `slots` are ascending indices. No array that was returned is written later.

    Attributes:
        alone: slots with a world of their own, which cannot be saved.
        latest: the newest snapshot of each slot; rows of slots that were never loaded are undefined.
        render_ns: the time that the last step spent on the images of all its slots.
    """

    def __init__(self, size: int, *, threads: int | None = None) -> None:
        """Share no world yet.

        `threads` is the number of threads of the physics (default: one per CPU).
        """
        self._threads = max(1, (os.cpu_count() or 1) if threads is None else threads)
        self._world: World | None = None
        self._physics: BatchedPhysics | None = None  # if nothing else happens during a step
        self._is_ideal = False  # whether all sensors are read as arrays
        self.alone: set[int] = set()
        self._users: set[int] = set()  # slots that have opened the common world
        self._selected: int | None = None
        self._saved: list[WorldState | None] = [None] * size
        self._now_ns = [0] * size  # of worlds without a saved state
        self._is_ahead = np.zeros(size, dtype=np.bool_)  # of its saved state, by steps as arrays
        self._commands: FloatArray = np.empty((size, 0))
        self.latest = SnapshotBatch(now_ns=np.zeros(size, dtype=np.int64), samples={})
        self._before = self._now  # the last step
        self.render_ns = 0

    # -------------------------------------------------------------------------------------------- single slots

    def select(self, slot: int) -> None:
        """Load the state of a slot into the world, for the slot's own environment."""
        if slot == self._selected or slot in self.alone:
            return
        self._put_away()
        if (world := self._world) is not None:
            world.now_ns, world.is_reset = self._now_ns[slot], False
            if (state := self._state(slot, self._now)) is not None:
                world.load(state)
        self._selected = slot  # last, since an interrupt may come earlier

    def load(self, snapshots: Mapping[int, Snapshot]) -> None:
        """Take over the snapshots of slots that reset or stepped alone, as rows of `latest`."""
        if not snapshots:
            return
        self._put_away()
        for slot in snapshots if self._physics is not None else ():
            self._load_physics(slot)
        self.latest = self.latest.with_rows(snapshots, len(self._saved))

    def hand_over(self, slot: int) -> None:
        """Undo the last step of a slot, which its own environment takes again."""
        self._put_away()
        self._saved[slot], self._is_ahead[slot] = self._state(slot, self._before), False

    def open(self, slot: int, build: Callable[[], World], *, is_delayed: bool) -> World:
        """Return a slot's world, the common one that the first slot builds, or its own."""
        world = self._world
        if world is None or is_delayed:
            world = build()
            if not world.can_be_saved:
                self.alone.add(slot)
                return world
            self._world = world
            if world.reads_at_end:
                self._physics = BatchedPhysics(world, size=len(self._saved), threads=self._threads)
                self._is_ideal = world.is_ideal
        self._users.add(slot)
        return world

    def leave(self, slot: int, world: World | None) -> bool:
        """Return whether other slots use the world that a slot leaves."""
        self._users.discard(slot)
        if world is self._world and not self._users:
            self._world = self._physics = self._selected = None
        return world is not None and world is self._world

    def _put_away(self) -> None:
        slot, world = self._selected, self._world
        if slot is None or world is None:
            return
        before, state = self._saved[slot], world.save() if world.is_reset else None
        is_drawn = state is not None and (before is None or before.drawn is not state.drawn)
        if is_drawn and self._physics is not None:
            self._physics.copy_drawn(slot, world)
        self._saved[slot], self._now_ns[slot], self._is_ahead[slot] = state, world.now_ns, False
        self._selected = None

    def _state(self, slot: int, at: _Instant) -> WorldState | None:
        """Return the state of a slot that the world did not have at an instant."""
        state = at.saved[slot]
        if state is None or not at.are_ahead[slot]:
            return state
        snapshot = at.latest.slot(slot)
        channels = {}
        for name, sample in snapshot.samples.items():
            channels[name] = replace(state.channels[name], newest=sample, available_ns=sample.stamp_ns)
        physics, target = at.physics[slot].copy(), at.targets[slot].copy()
        return replace(state, now_ns=snapshot.now_ns, physics=physics, target=target, channels=channels)

    @property
    def _now(self) -> _Instant:
        physics, saved = self._physics, list(self._saved)
        states, targets = (_NOTHING, _NOTHING) if physics is None else (physics.states, physics.targets)
        return _Instant(self.latest, saved, self._is_ahead.copy(), states.copy(), targets)

    def _load_physics(self, slot: int) -> None:
        state = self._saved[slot]
        if self._physics is not None and state is not None:
            self._physics.load(slot, state)

    # ------------------------------------------------------------------------------------------------- arrays

    def send(self, commands: ApprovedCommandBatch, slots: Slots) -> None:
        """Set the commands of the next period, or raise TypeError for one that is not approved."""
        if not isinstance(commands, ApprovedCommandBatch) or not commands.is_decided[list(slots)].all():
            raise TypeError(f"invalid commands: {type(commands).__name__} (expected approved commands of these slots)")
        self._commands = commands.values

    def step(self, slots: Slots) -> dict[int, BackendLostError]:
        """Step these worlds by one control period, and return the error of each that is unstable."""
        self._put_away()
        self._before, world = self._now, self._world
        begun_ns = 0 if world is None else world.render_ns
        errors: dict[int, BackendLostError] = {}
        alone = list(slots)
        if self._physics is not None and alone:
            are_stepped = self._physics.step(alone, self._commands[alone], self.latest.now_ns[alone])
            self._is_ahead[alone] = self._is_ideal
            if not self._is_ideal:
                for row in np.flatnonzero(are_stepped).tolist():
                    self._read_alone(alone[row], self._physics, self._physics.sensed[row])
            alone = [slot for slot, is_stepped in zip(alone, are_stepped.tolist(), strict=True) if not is_stepped]
        for slot in alone:
            try:
                self._step_alone(slot)
            except BackendLostError as error:
                errors[slot] = error
        if self._physics is not None and self._is_ideal and len(errors) < len(slots):
            self._physics.forward([slot for slot in slots if slot not in errors])
        self.render_ns = 0 if world is None else world.render_ns - begun_ns
        return errors

    def _read_alone(self, slot: int, physics: BatchedPhysics, sensed: FloatArray) -> None:
        world, state = self._world, self._saved[slot]
        if world is None or state is None:
            return
        world.load(replace(state, physics=physics.states[slot], target=physics.targets[slot]))
        world.finish_step(sensed)
        self._saved[slot] = world.save()

    def _step_alone(self, slot: int) -> None:
        world, state = self._world, self._state(slot, self._before)
        if world is None or state is None:
            return
        world.load(state)
        world.command(self._commands[slot])
        world.step()
        self._saved[slot], self._is_ahead[slot] = world.save(), False
        self._load_physics(slot)

    def read(self, slots: Slots, arrival_ns: IntArray) -> SnapshotBatch:
        """Return the newest samples, which arrived at `arrival_ns`, shape (n_slots,).

        Other slots keep their rows. A reading that may be invalid has the quality INVALID; the slot's own environment
        determines it, after `hand_over`.
        """
        slots = list(slots)
        period_ns = 0 if self._world is None else self._world.tick_ns
        now_ns = merge_rows(self.latest.now_ns, slots, self.latest.now_ns + period_ns)
        if self._physics is None or not self._is_ideal:
            samples = self._read_each(slots, arrival_ns)
        else:
            samples = {
                name: self._read_together(self._physics, before, slots, now_ns, arrival_ns)
                for name, before in self.latest.samples.items()
            }
        self.latest = SnapshotBatch(now_ns=now_ns, samples=samples)
        return self.latest

    def _read_together(
        self, physics: BatchedPhysics, before: SampleBatch, slots: list[int], now_ns: IntArray, arrival_ns: IntArray
    ) -> SampleBatch:
        """Read a sensor that has delivered exactly one reading in the step."""
        receiver = None if self._world is None else self._world.channels[before.sensor].receiver
        checked = {} if receiver is None else receiver.fields
        values, quality = {}, np.zeros(len(now_ns), dtype=np.int8)
        for field, rows in physics.read(before.sensor).items():
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

    def _read_each(self, slots: list[int], arrival_ns: IntArray) -> dict[str, SampleBatch]:
        changed: dict[str, dict[int, Sample]] = {name: {} for name in self.latest.samples}
        before = self._before.saved
        for slot in slots:
            new, old = self._saved[slot], before[slot]
            for name, channel in new.channels.items() if new is not None else ():
                newest = channel.newest
                if newest is not None and (old is None or newest is not old.channels[name].newest):
                    changed[name][slot] = newest
        samples = {}
        for name, sample in self.latest.samples.items():
            arrived = merge_rows(sample.arrival_ns, slots, arrival_ns)
            samples[name] = replace(sample.with_rows(changed[name]), arrival_ns=arrived)
        return samples


def _is_certain(known: MessageField, rows: NDArray[np.float64]) -> BoolArray:
    """Return which rows are surely valid for a reader of the message."""
    if known.rotation:
        x, y, z, w = rows.T
        return np.asarray(np.abs(x * x + y * y + z * z + w * w - 1.0) <= _MOST_NORM_ERROR)
    return np.asarray(((rows >= 0.0) & (rows < np.inf)).all(axis=-1))
