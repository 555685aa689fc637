"""The state of a stepper: that of the episode, of a step under way, and what batched steps load and write back."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from embodied_env.contract import FloatArray
from embodied_env.core.clock import Stamp
from embodied_env.core.history import begin_history
from embodied_env.core.latency.ledger import Ledger, LedgerState, StepEvent
from embodied_env.core.types import ApprovedCommand, CommandState, ExternalInputs, Snapshot, TaskResult
from embodied_env.envs.gap_policy import GapPolicy
from embodied_env.errors import BackendLostError, TaskError
from embodied_env.safety import Arbiter


@dataclass(kw_only=True)
class Episode:
    """The state of one episode of one robot; `frozen_ns` and `returned_ns` are on the steady clock."""

    index: int  # since the last seeded reset
    snapshot: Snapshot  # the newest, after the gap policy
    frozen_ns: int  # when it was frozen
    applied: deque[FloatArray]  # the applied actions of an observation, oldest first
    start: Sequence[float] = ()  # measured position of each joint at the reset, NaN without a sensor
    history_length: int = 1  # number of snapshots that an observation needs
    history: deque[Snapshot] = field(init=False)  # the last snapshots, oldest first
    before: Snapshot = field(init=False)  # the snapshot before the newest
    origin_ns: int = field(init=False)  # start of the episode on the clock of the world
    sampled: Mapping[str, FloatArray] = field(init=False)  # value of each reset option
    step_index: int = 0  # steps taken
    missed: int = 0  # last steps in a row without an action of the policy
    returned_ns: int = 0  # when the agent received the last observation

    def __post_init__(self) -> None:
        """Start at the snapshot of the reset."""
        self.before = self.snapshot
        self.history = begin_history(self.snapshot, self.history_length)
        self.origin_ns = self.snapshot.now_ns
        self.sampled = {} if self.snapshot.reset is None else self.snapshot.reset.sampled

    def copy(self) -> Episode:
        """Return a copy, whose histories grow on their own."""
        fresh = copy(self)
        fresh.history, fresh.applied = self.history.copy(), self.applied.copy()
        return fresh

    def advance(self, snapshot: Snapshot, frozen_ns: int, applied: FloatArray) -> None:
        """Move to the next snapshot."""
        self.step_index += 1
        self.before, self.snapshot, self.frozen_ns = self.snapshot, snapshot, frozen_ns
        self.history.append(snapshot)
        self.applied.append(applied)


@dataclass(slots=True, kw_only=True)
class PendingStep:
    """A step between `begin` and `finish`."""

    action: Any  # the agent's, copied
    target: Stamp  # end of its period, on the world's clock
    deadline: Stamp  # of the wait for the world
    judged: TaskResult | TaskError | None  # the result or error of the task, where it is known already
    approved: ApprovedCommand = field(init=False)
    inputs: ExternalInputs = field(init=False)
    lost: BackendLostError | None = None  # why the backend was lost in this step


@dataclass(frozen=True, kw_only=True)
class SavedStepper:
    """The state between two steps of an episode, apart from that of the gate, the task and the world."""

    episode: Episode
    command: CommandState  # the last published one
    stamps: LedgerState


@dataclass(frozen=True, kw_only=True)
class StepperState:
    """The state between two steps, apart from that of the gate and the world.

    `history` and `applied` are what observations need, oldest first. The last three fields do not change in an episode.
    """

    history: Sequence[Snapshot]
    applied: Sequence[FloatArray]
    step_index: int
    command: CommandState  # the last published one
    stamps_ns: list[int]  # by `StepEvent`
    is_first: bool
    is_marked: bool
    episode_index: int
    origin_ns: int
    sampled: Mapping[str, FloatArray]


def read_state(episode: Episode, arbiter: Arbiter, ledger: Ledger) -> StepperState:
    """Return the state between two steps."""
    stamps = ledger.save()
    return StepperState(
        history=tuple(episode.history),
        applied=tuple(episode.applied),
        step_index=episode.step_index,
        command=arbiter.reference,
        stamps_ns=list(stamps.stamps_ns),
        is_first=stamps.is_first,
        is_marked=stamps.is_marked,
        episode_index=episode.index,
        origin_ns=episode.origin_ns,
        sampled=episode.sampled,
    )


def write_state(state: StepperState, episode: Episode, arbiter: Arbiter, ledger: Ledger, gap_policy: GapPolicy) -> None:
    """Set the state after batched steps, in the same episode."""
    episode.history.extend(state.history)
    episode.applied.extend(state.applied)
    episode.snapshot, episode.step_index = state.history[-1], state.step_index
    episode.frozen_ns, episode.returned_ns = state.stamps_ns[StepEvent.OBSERVED], state.stamps_ns[StepEvent.RETURNED]
    arbiter.restore(state.command)
    stamps_ns = tuple(state.stamps_ns)
    ledger.load(LedgerState(stamps_ns=stamps_ns, is_first=state.is_first, is_marked=state.is_marked))
    gap_policy.restore(episode.snapshot)
