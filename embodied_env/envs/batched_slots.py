"""The state of the slots of a vector environment as arrays, read from and written back to their own environments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from gymnasium import Env
from gymnasium.wrappers import TimeLimit

from embodied_env.core.batches import BoolArray, CommandStateBatch, IntArray, SnapshotBatch
from embodied_env.core.clock import VirtualClock
from embodied_env.core.latency.ledger import StepEvent
from embodied_env.core.types import CommandState, FloatArray, Snapshot
from embodied_env.envs.embodied_env import EmbodiedEnv


@dataclass(kw_only=True)
class SlotStates:
    """The state of each slot between two steps, in rows by slot. A step makes new arrays.

    `history` and `applied`, of shape (n_slots, count, n_joints), are what observations need, oldest first.
    """

    history: tuple[SnapshotBatch, ...]
    reference: CommandStateBatch
    seq: IntArray  # of the last command
    step_index: IntArray
    stamps_ns: IntArray  # by `StepEvent`, (n_events, n_slots)
    is_first: BoolArray
    is_marked: BoolArray
    applied: FloatArray

    @property
    def snapshot(self) -> SnapshotBatch:
        """The newest snapshot of each slot, after the gap policy."""
        return self.history[-1]


class BatchedSlots:
    """Holds the state of each slot from `load` until `write` or `forget`.

    Attributes:
        bases: the environments of the slots, without their wrappers.
        steppers, parts: their steppers, and parts of them.
        state: the current state.
        before: the state before the last step.
        is_loaded: whether the arrays hold the state of a slot.
        lag: the number of steps that a slot has taken since `load`, which its own environment has not seen.
        episode_index, origin_ns, sampled: the number and start of the episode, and its observed reset options.
    """

    def __init__(self, envs: Sequence[Env[Any, Any]]) -> None:
        """Load nothing. Each of `envs` is an `EmbodiedEnv`, which may be in a `TimeLimit`."""
        self.bases = [cast("EmbodiedEnv", env.unwrapped) for env in envs]
        self.steppers = [base.stepper for base in self.bases]
        self.parts = [each.parts for each in self.steppers]
        self._limits = {slot: env for slot, env in enumerate(envs) if isinstance(env, TimeLimit)}
        contract, n_slots = self.bases[0].contract, len(envs)
        joints = np.zeros((n_slots, self.parts[0].gate.layout.size))
        ints, no = np.zeros(n_slots, dtype=np.int64), np.zeros(n_slots, dtype=np.bool_)
        self.state = self.before = SlotStates(
            history=(SnapshotBatch(now_ns=ints, samples={}),) * self.steppers[0].history_length,
            reference=CommandStateBatch(positions=joints, velocities=joints, accelerations=joints),
            seq=ints.copy(),
            step_index=ints.copy(),
            stamps_ns=np.zeros((len(StepEvent), n_slots), dtype=np.int64),
            is_first=no.copy(),
            is_marked=no.copy(),
            applied=np.zeros((n_slots, contract.applied_actions, joints.shape[1])),
        )
        self.is_loaded, self.lag = no, ints.copy()
        self.episode_index, self.origin_ns = ints.copy(), ints.copy()
        self.sampled: dict[str, FloatArray] = {}

    def load(self, slots: Sequence[int]) -> dict[int, Snapshot]:
        """Read the state of those slots whose next step may be ordinary; return their newest snapshots."""
        ready = {slot: self.steppers[slot].between_steps for slot in slots if self.steppers[slot].is_ordinary}
        if not ready:
            return {}
        state, n_slots = self.state, len(self.bases)
        state.history = tuple(
            batch.with_rows({slot: own.history[place] for slot, own in ready.items()}, n_slots)
            for place, batch in enumerate(state.history)
        )
        old = state.reference  # its arrays may be those of a report
        state.reference = reference = CommandStateBatch(
            positions=old.positions.copy(), velocities=old.velocities.copy(), accelerations=old.accelerations.copy()
        )
        for slot, own in ready.items():
            command = own.command
            reference.positions[slot], reference.velocities[slot] = command.positions, command.velocities
            reference.accelerations[slot] = 0.0 if command.accelerations is None else command.accelerations
            state.seq[slot], state.step_index[slot] = command.seq, own.step_index
            state.stamps_ns[:, slot] = own.stamps_ns
            state.is_first[slot], state.is_marked[slot] = own.is_first, own.is_marked
            if own.applied:
                state.applied[slot] = own.applied
            self.episode_index[slot], self.origin_ns[slot] = own.episode_index, own.origin_ns
            for name in self.parts[slot].transitions.observations.observed_options:
                value = np.asarray(own.sampled[name], dtype=np.float64).reshape(-1)
                self.sampled.setdefault(name, np.zeros((n_slots, value.size)))[slot] = value
        self.lag[list(ready)], self.is_loaded[list(ready)] = 0, True
        return {slot: own.history[-1] for slot, own in ready.items()}

    def write(self, slot: int) -> None:
        """Write the state before the last step back to the slot's own environment."""
        state, stepper, reference = self.before, self.steppers[slot], self.before.reference
        self.is_loaded[slot] = False
        self._write_clock(slot, state)
        if self.lag[slot]:
            stepper.between_steps = replace(
                stepper.between_steps,
                history=[batch.slot(slot) for batch in state.history],
                applied=[*state.applied[slot].copy()],
                step_index=int(state.step_index[slot]),
                command=CommandState(
                    positions=reference.positions[slot].copy(),
                    velocities=reference.velocities[slot].copy(),
                    accelerations=reference.accelerations[slot].copy(),
                    seq=int(state.seq[slot]),
                    epoch=stepper.epoch,
                ),
            )
        self.write_stamps(slot, state)

    def write_stamps(self, slot: int, state: SlotStates) -> None:
        """Write the stamps of `state` back."""
        stepper = self.steppers[slot]
        stepper.between_steps = replace(
            stepper.between_steps,
            stamps_ns=state.stamps_ns[:, slot].tolist(),
            is_first=bool(state.is_first[slot]),
            is_marked=bool(state.is_marked[slot]),
        )

    def count(self, rows: BoolArray) -> BoolArray:
        """Count a step of `rows` in their `TimeLimit`, if any; return the slots that it truncates."""
        are_truncated = np.zeros(len(rows), dtype=np.bool_)
        for slot, limit in self._limits.items():
            if rows[slot]:
                elapsed = limit.get_wrapper_attr("_elapsed_steps") + 1
                limit.set_wrapper_attr("_elapsed_steps", elapsed)
                are_truncated[slot] = elapsed >= limit.get_wrapper_attr("_max_episode_steps")
        return are_truncated

    def own_snapshot(self, slot: int) -> Snapshot | None:
        """Return the snapshot before the step, with the report of a reset, if the slot's own environment has it."""
        return None if self.lag[slot] else self.steppers[slot].between_steps.history[-1]

    def forget(self, slot: int) -> None:
        """Drop the state of a slot, which must be reset next; only its clock goes on."""
        if self.is_loaded[slot]:
            self.is_loaded[slot], self.steppers[slot].last_transition = False, None
            self.steppers[slot].abort_step()  # its own state is older than its world
            self._write_clock(slot, self.state)

    def _write_clock(self, slot: int, state: SlotStates) -> None:
        clock = self.parts[slot].clock
        if isinstance(clock, VirtualClock):
            clock.advance_ns(int(state.stamps_ns[StepEvent.OBSERVED, slot]) - clock.now_ns())
