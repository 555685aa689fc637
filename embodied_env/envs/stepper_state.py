"""Hold the state of an episode, of a step under way, and what is saved between two steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from embodied_env.contract import FloatArray
from embodied_env.core.types import ApprovedCommand, CommandState, ExternalInputs, Snapshot
from embodied_env.envs.observation_builder import begin_history
from embodied_env.errors import BackendLostError
from embodied_env.timing.ledger import LedgerState


@dataclass(kw_only=True)
class EpisodeState:
    """The state of one episode, with `frozen_ns` and `returned_ns` on the steady clock."""

    index: int  # since the last seeded reset
    snapshot: Snapshot  # the newest, after the gap policy
    frozen_ns: int  # when it was frozen
    applied: deque[FloatArray]  # the applied actions of an observation, oldest first
    start: Sequence[float] = ()  # measured position of each joint at the reset, NaN without a sensor
    is_played: bool = False  # its actions are recorded ones, which action stages have replaced or translated before
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

    def copy(self) -> EpisodeState:
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

    action: Any  # action of the agent, or of the last action stage, copied
    target_ns: int  # end of its period, on the world's clock
    deadline_ns: int  # deadline of the wait for the world, on the steady clock
    approved: ApprovedCommand = field(init=False)
    external_inputs: ExternalInputs = field(init=False)
    lost: BackendLostError | None = None  # why the backend was lost in this step


@dataclass(frozen=True, kw_only=True)
class SavedStepper:
    """The state between two steps, apart from that of gate, task and world."""

    episode: EpisodeState
    command: CommandState  # the last published one
    stamps: LedgerState
