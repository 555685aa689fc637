"""Read the state of slots into arrays, and write it back to the slots' own environments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gymnasium import Env
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray

from embodied_env.core.types import CommandState, FloatArray, Snapshot, TaskResult
from embodied_env.envs.stepper import Stepper
from embodied_env.envs.stepper_state import PendingStep, SavedStepper
from embodied_env.errors import ClosedError, ResetNeededError, TaskError
from embodied_env.extensions.vector.batched_types import BoolArray, CommandStateBatch, IntArray, SnapshotBatch
from embodied_env.timing.clock import VirtualClock
from embodied_env.timing.ledger import LedgerState, StepEvent


@dataclass(kw_only=True)
class SlotStates:
    """The state of each slot between two steps, in rows by slot and in new arrays at each step.

    `history` and `applied`, of shape (n_slots, count, n_joints), are what observations need, oldest first.
    """

    history: tuple[SnapshotBatch, ...]
    reference: CommandStateBatch
    seq: IntArray  # number of the last command
    step_index: IntArray
    stamps_ns: IntArray  # by `StepEvent`, (n_events, n_slots)
    is_first: BoolArray
    is_marked: BoolArray
    applied: FloatArray

    @property
    def snapshot(self) -> SnapshotBatch:
        """The newest snapshot of each slot, after the gap policy."""
        return self.history[-1]


class SlotStepper(Stepper):
    """The stepper of a slot, which repeats steps that its world has taken.

    Attributes:
        judged: result and error of the task in the step that is repeated, which it does not judge again.
    """

    judged: tuple[TaskResult, TaskError | None] | None = None

    def _judge(self, step: PendingStep, snapshot: Snapshot) -> tuple[TaskResult, TaskError | None]:
        judged, self.judged = self.judged, None
        return super()._judge(step, snapshot) if judged is None or step.lost is not None else judged


class UpToDateStepper:
    """The stepper of a slot, of which `sync` repeats missing steps before each access."""

    def __init__(self, stepper: SlotStepper, sync: Callable[[], None]) -> None:
        self._stepper, self._sync = stepper, sync

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - an attribute of the stepper
        self._sync()
        return getattr(self._stepper, name)


class BatchedSlots:
    """Holds the state of each slot from `load` until `write` or `forget`.

    Attributes:
        steppers: the steppers of the slots.
        state: the current state.
        before: the state before the last step.
        is_loaded: whether the arrays hold the state of a slot.
        lag: the number of steps that a slot has taken since `load`, which its own environment has not seen.
        episode_index, origin_ns, sampled: the number and start of the episode, and its observed reset options.
        instruction: the prompt of the episode.
    """

    def __init__(self, envs: Sequence[Env[Any, Any]], steppers: Sequence[SlotStepper]) -> None:
        """Load nothing from `envs`, each of which may be in a `TimeLimit`."""
        self.steppers = steppers
        self._limits = {slot: env for slot, env in enumerate(envs) if isinstance(env, TimeLimit)}
        contract, n_slots = steppers[0].contract, len(envs)
        joints = np.zeros((n_slots, self.steppers[0].gate.layout.size))
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
        self.instruction: NDArray[Any] = np.full(n_slots, "", dtype=object)

    def load(self, slots: Sequence[int]) -> dict[int, Snapshot]:
        """Read the state of slots whose next step may be ordinary, and return their snapshots."""
        ready = {slot: saved for slot in slots if (saved := self._ordinary(slot)) is not None}
        if not ready:
            return {}
        state, n_slots = self.state, len(self.steppers)
        state.history = tuple(
            batch.with_rows({slot: own.episode.history[place] for slot, own in ready.items()}, n_slots)
            for place, batch in enumerate(state.history)
        )
        old = state.reference  # its arrays may be those of a report
        state.reference = reference = CommandStateBatch(
            positions=old.positions.copy(), velocities=old.velocities.copy(), accelerations=old.accelerations.copy()
        )
        for slot, own in ready.items():
            episode, command, stamps = own.episode, own.command, own.stamps
            reference.positions[slot], reference.velocities[slot] = command.positions, command.velocities
            reference.accelerations[slot] = 0.0 if command.accelerations is None else command.accelerations
            state.seq[slot], state.step_index[slot] = command.seq, episode.step_index
            state.stamps_ns[:, slot] = stamps.stamps_ns
            state.is_first[slot], state.is_marked[slot] = stamps.is_first, stamps.is_marked
            if episode.applied:
                state.applied[slot] = episode.applied
            self.episode_index[slot], self.origin_ns[slot] = episode.index, episode.origin_ns
            self.instruction[slot] = self.steppers[slot].inputs_for("step").instruction
            for name in self.steppers[slot].transition_builder.observations.observed_options:
                value = np.asarray(episode.sampled[name], dtype=np.float64).reshape(-1)
                self.sampled.setdefault(name, np.zeros((n_slots, value.size)))[slot] = value
        self.lag[list(ready)], self.is_loaded[list(ready)] = 0, True
        return {slot: own.episode.snapshot for slot, own in ready.items()}

    def _ordinary(self, slot: int) -> SavedStepper | None:
        """Return the state of a slot, if its next step follows from that and the action alone."""
        stepper = self.steppers[slot]
        try:
            saved, inputs = stepper.save(), stepper.inputs_for("step")
        except (ResetNeededError, ClosedError):
            return None
        return saved if stepper.gate.is_ordinary and inputs.is_empty and not saved.episode.missed else None

    def write(self, slot: int) -> None:
        """Write the state before the last step back to the slot's own environment."""
        state, stepper, reference = self.before, self.steppers[slot], self.before.reference
        self.is_loaded[slot] = False
        self._write_clock(slot, state)
        saved = stepper.save()
        episode, command = saved.episode, saved.command
        if self.lag[slot]:
            episode.history.extend(batch.slot(slot) for batch in state.history)
            episode.applied.extend(state.applied[slot].copy())
            episode.snapshot, episode.step_index = episode.history[-1], int(state.step_index[slot])
            command = CommandState(
                positions=reference.positions[slot].copy(),
                velocities=reference.velocities[slot].copy(),
                accelerations=reference.accelerations[slot].copy(),
                seq=int(state.seq[slot]),
                epoch=stepper.epoch,
            )
        episode.frozen_ns = int(state.stamps_ns[StepEvent.OBSERVED, slot])
        episode.returned_ns = int(state.stamps_ns[StepEvent.RETURNED, slot])
        stepper.load(replace(saved, episode=episode, command=command, stamps=_stamps(state, slot)))

    def write_stamps(self, slot: int) -> None:
        """Write the current stamps back, in an episode that goes on."""
        stepper = self.steppers[slot]
        with suppress(ResetNeededError):
            stepper.load(replace(stepper.save(), stamps=_stamps(self.state, slot)))

    def count(self, rows: BoolArray) -> BoolArray:
        """Count a step of `rows` in their `TimeLimit`, if any, and return the truncated slots."""
        are_truncated = np.zeros(len(rows), dtype=np.bool_)
        for slot, limit in self._limits.items():
            if rows[slot]:
                elapsed = limit.get_wrapper_attr("_elapsed_steps") + 1
                limit.set_wrapper_attr("_elapsed_steps", elapsed)
                are_truncated[slot] = elapsed >= limit.get_wrapper_attr("_max_episode_steps")
        return are_truncated

    def forget(self, slot: int) -> None:
        """Drop the state, except for the clock, of a slot that must be reset next."""
        stepper = self.steppers[slot]
        stepper.judged = None
        if self.is_loaded[slot]:
            self.is_loaded[slot], stepper.last_transition = False, None
            stepper.abort_step()  # its own state is older than its world
            self._write_clock(slot, self.state)

    def _write_clock(self, slot: int, state: SlotStates) -> None:
        clock = self.steppers[slot].clock
        if isinstance(clock, VirtualClock):
            clock.advance_ns(int(state.stamps_ns[StepEvent.OBSERVED, slot]) - clock.now_ns())


def _stamps(state: SlotStates, slot: int) -> LedgerState:
    return LedgerState(
        stamps_ns=tuple(state.stamps_ns[:, slot].tolist()),
        is_first=bool(state.is_first[slot]),
        is_marked=bool(state.is_marked[slot]),
    )
