"""The state of the slots of a vector environment as arrays, read from and written back to their own environments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
from gymnasium import Env
from gymnasium.wrappers import TimeLimit

from embodied_env.backends.base import Backend
from embodied_env.core.batches import BoolArray, CommandStateBatch, IntArray, SnapshotBatch
from embodied_env.core.clock import Clock, VirtualClock
from embodied_env.core.latency.ledger import StepEvent
from embodied_env.core.measured_joints import MeasuredJoints
from embodied_env.core.types import CommandState, FloatArray, Snapshot
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.envs.transition_builder import TransitionBuilder
from embodied_env.safety import SafetyGate
from embodied_env.tasks import Task


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


class SlotParts(NamedTuple):
    """The parts of the stepper of one slot."""

    backend: Backend
    task: Task
    clock: Clock
    gate: SafetyGate
    joints: MeasuredJoints
    transitions: TransitionBuilder


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
        self.parts = [
            SlotParts(each._backend, each._task, each._clock, each._gate, each._joints, each._transitions)
            for each in self.steppers
        ]
        self._limits = {slot: cast("Any", env) for slot, env in enumerate(envs) if isinstance(env, TimeLimit)}
        contract, n_slots = self.bases[0].contract, len(envs)
        joints = np.zeros((n_slots, self.steppers[0]._gate.layout.size))
        ints, no = np.zeros(n_slots, dtype=np.int64), np.zeros(n_slots, dtype=np.bool_)
        self.state = self.before = SlotStates(
            history=(SnapshotBatch(now_ns=ints, samples={}),) * self.steppers[0]._history_length,
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
        ready = [slot for slot in slots if self._is_ordinary(slot)]
        if not ready:
            return {}
        state, n_slots = self.state, len(self.bases)
        histories = {slot: self.steppers[slot]._episode.history for slot in ready}
        state.history = tuple(
            batch.with_rows({slot: history[place] for slot, history in histories.items()}, n_slots)
            for place, batch in enumerate(state.history)
        )
        old = state.reference  # its arrays may be those of a report
        state.reference = reference = CommandStateBatch(
            positions=old.positions.copy(), velocities=old.velocities.copy(), accelerations=old.accelerations.copy()
        )
        for slot in ready:
            stepper = self.steppers[slot]
            episode, ledger, command = stepper._episode, stepper._ledger, stepper._arbiter.reference
            reference.positions[slot], reference.velocities[slot] = command.positions, command.velocities
            reference.accelerations[slot] = 0.0 if command.accelerations is None else command.accelerations
            state.seq[slot], state.step_index[slot] = command.seq, episode.step_index
            state.stamps_ns[:, slot] = ledger._ns
            state.is_first[slot], state.is_marked[slot] = ledger._first, ledger._marked
            if episode.applied:
                state.applied[slot] = episode.applied
            self.episode_index[slot], self.origin_ns[slot] = episode.index, episode.origin_ns
            for name in stepper._transitions.observations.observed_options:
                value = np.asarray(episode.sampled[name], dtype=np.float64).reshape(-1)
                self.sampled.setdefault(name, np.zeros((n_slots, value.size)))[slot] = value
        self.lag[ready], self.is_loaded[ready] = 0, True
        return {slot: histories[slot][-1] for slot in ready}

    def _is_ordinary(self, slot: int) -> bool:
        """Return whether the next step follows from its action and the state alone, and only its result is used."""
        stepper = self.steppers[slot]
        inputs, gate, is_idle = stepper._inputs, stepper._gate, stepper._running and stepper._pending is None
        is_plain = not (inputs._annotations or inputs._preview or stepper._episode.missed)
        is_limited = gate.latched is None and gate.changed is None
        return is_idle and is_plain and is_limited

    def write(self, slot: int) -> None:
        """Write the state before the last step back to the slot's own environment."""
        state, stepper = self.before, self.steppers[slot]
        self.is_loaded[slot] = False
        self._write_clock(slot, state)
        self._write_ledger(slot, state)
        if not self.lag[slot]:
            return
        episode, reference = stepper._episode, state.reference
        episode.history.extend(batch.slot(slot) for batch in state.history)
        episode.snapshot = episode.history[-1]
        episode.step_index = int(state.step_index[slot])
        episode.applied.extend(state.applied[slot].copy())
        stepper._gap_policy._held = dict(episode.snapshot.samples)
        stepper._arbiter._reference = CommandState(
            positions=reference.positions[slot].copy(),
            velocities=reference.velocities[slot].copy(),
            accelerations=reference.accelerations[slot].copy(),
            seq=int(state.seq[slot]),
            epoch=stepper.epoch,
        )

    def write_stamps(self, slot: int) -> None:
        """Write the stamps after the last step back."""
        self._write_ledger(slot, self.state)

    def count(self, rows: BoolArray) -> BoolArray:
        """Count a step of `rows` in their `TimeLimit`, if any; return the slots that it truncates."""
        are_truncated = np.zeros(len(rows), dtype=np.bool_)
        for slot, limit in self._limits.items():
            if rows[slot]:
                limit._elapsed_steps += 1
                are_truncated[slot] = limit._elapsed_steps >= limit._max_episode_steps
        return are_truncated

    def own_snapshot(self, slot: int) -> Snapshot | None:
        """Return the snapshot before the step, with the report of a reset, if the slot's own environment has it."""
        return None if self.lag[slot] else self.steppers[slot]._episode.snapshot

    def _write_ledger(self, slot: int, state: SlotStates) -> None:
        """Write the stamps of `state` back to the slot's own environment."""
        ledger, episode = self.steppers[slot]._ledger, self.steppers[slot]._episode
        ledger._ns = state.stamps_ns[:, slot].tolist()
        ledger._first, ledger._marked = bool(state.is_first[slot]), bool(state.is_marked[slot])
        episode.frozen_ns, episode.returned_ns = ledger._ns[StepEvent.OBSERVED], ledger._ns[StepEvent.RETURNED]

    def forget(self, slot: int) -> None:
        """Drop the state of a slot, which must be reset next; only its clock goes on."""
        if self.is_loaded[slot]:
            self.is_loaded[slot], self.steppers[slot].last_transition = False, None
            self.steppers[slot].abort_step()  # its own state is older than its world
            self._write_clock(slot, self.state)

    def _write_clock(self, slot: int, state: SlotStates) -> None:
        clock = self.steppers[slot]._clock
        if isinstance(clock, VirtualClock):
            clock.advance_ns(int(state.stamps_ns[StepEvent.OBSERVED, slot]) - clock.now_ns())
