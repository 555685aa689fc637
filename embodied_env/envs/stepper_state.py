"""State of a stepper, an episode and a step, and how a stepper opens, brakes and closes.

Any thread may close: the user's, an exit handler, and the watchdog's after the main thread has ended.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from embodied_env.contract import FloatArray
from embodied_env.core.code_table import CODE_TABLE
from embodied_env.core.code_types import AFTER_ESTOP, Severity
from embodied_env.core.types import ApprovedCommand, CommandState, ExternalInputs, Snapshot
from embodied_env.envs.motion_guard import MotionGuard
from embodied_env.envs.observation_builder import begin_history
from embodied_env.errors import BackendLostError, ClosedError, ResetNeededError
from embodied_env.processes.signals import deferred_signals
from embodied_env.safety.gate import SafetyGate
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


class State(Enum):
    """The state of a stepper, as in the diagram in docs/concepts/step.md."""

    NEW = "not opened"
    RUNNING = "in an episode"
    ENDED = "between episodes"
    LOST = "between episodes, and no command reaches the backend"
    CLOSED = "closed"


class Lifecycle:
    """Holds the state of one stepper, and opens and closes its backend."""

    def __init__(self, guard: MotionGuard) -> None:
        self._resetting = threading.Lock()
        self.state = State.NEW
        self._backend, self._guard = guard.backend, guard
        self._free_running = guard.backend.capabilities.free_running
        self._changing = threading.Lock()  # held during a change of the state
        self._closing = threading.RLock()  # held during the opening of the backend, and during `close`
        self._pid = 0  # process that opened the backend

    def check_open(self, call: str) -> None:
        """Raise ClosedError for `call` after `close`, or in a fork, which would mix commands."""
        check_open(self.state is State.CLOSED, call)
        if self.is_inherited:
            raise ClosedError(
                f"{call}() in a fork of the process that opened the environment; make a new environment in this process"
            )

    @property
    def is_inherited(self) -> bool:
        """Whether this is a fork of the process that opened a free-running world."""
        return self._free_running and self._pid not in (0, os.getpid())

    @contextmanager
    def only_reset(self) -> Iterator[None]:
        """Refuse a reset during another one, which may be driving the robot home."""
        if not self._resetting.acquire(blocking=False):
            raise ResetNeededError("reset() during a reset: wait for its end, or call close()")
        try:
            yield
        finally:
            self._resetting.release()

    def move_to(self, state: State) -> None:
        """Change the state, unless another thread has closed."""
        with self._changing:
            if self.state is not State.CLOSED:
                self.state = state

    def open(self) -> None:
        """Open the backend and start the threads once, or again after `close` in lockstep."""
        if self.state is State.CLOSED:
            self.state = State.NEW
            self._guard.arbiter.reopen()
        if self.state is State.NEW:
            with self._closing:
                self.check_open("reset")
                self._pid = os.getpid()
                self._guard.start(self._close_unless_busy)  # first, so that an opened backend is always closed
                self._backend.open()
                self.move_to(State.ENDED)
        elif self.state is State.LOST:
            self.move_to(State.ENDED)  # the reset may move the robot, which `close` must then brake

    def end_episode(self) -> None:
        """End the episode if one is under way, but leave a lost backend lost."""
        if self.state is State.RUNNING:
            self.move_to(State.ENDED)
        self._guard.watchdog.disarm()

    def give_up(self) -> None:
        """End the episode after an error in a step, when the world may be ahead of the record."""
        with deferred_signals():
            self.end_episode()
            try:
                if self._free_running:
                    self.brake("error during a step")
            finally:
                self._backend.halt("error during a step")

    def brake(self, why: str) -> None:
        """Brake to rest, unless the backend is lost."""
        if self.state is not State.LOST:
            self._guard.brake(why)

    def request_close(self) -> None:
        """Let the watchdog thread close, as a finalizer in any thread may request."""
        self._guard.request_close()

    def close(self) -> None:
        """Brake, then free everything.

        It is idempotent, and safe when nothing was started. Any thread may call it, and a second one waits for the
        first. In a fork of the process that opened a free-running world it does nothing, since the world belongs to
        the parent.
        """
        if self.is_inherited:
            return
        with self._closing:
            self._close()

    def _close_unless_busy(self) -> bool:
        """Close in the watchdog thread, or return False while another thread opens or closes."""
        if not self._closing.acquire(blocking=False):
            return False
        try:
            self._close()
        finally:
            self._closing.release()
        return True

    @deferred_signals()
    def _close(self) -> None:
        with self._changing:
            before, self.state = self.state, State.CLOSED
        if before is State.CLOSED:
            return
        moves = self._free_running or before is State.RUNNING
        try:
            self._guard.arbiter.close()
            self._guard.watchdog.disarm()
            self._guard.stop()
            if moves and before is not State.LOST:
                self._guard.brake("close()")
        finally:
            self._backend.close()


def check_open(is_closed: bool, call: str) -> None:  # noqa: FBT001 - the condition
    """Raise ClosedError for `call` if the environment is closed."""
    if is_closed:
        raise ClosedError(f"{call}() called after close(); make a new environment")


def latched_estop(gate: SafetyGate) -> str:
    """Return the latched ESTOP and what an operator does, or ""."""
    latched = gate.latched
    if latched is None or latched.severity < Severity.ESTOP:
        return ""
    remedy = CODE_TABLE[latched.code].remedy or "resolve its cause"
    return f"an ESTOP is latched ({latched.code}: {latched.detail}); {remedy}, {AFTER_ESTOP}"
