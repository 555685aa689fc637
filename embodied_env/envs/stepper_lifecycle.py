"""Keep the state of a stepper, and open, brake and close what it steps.

Any thread may close: the user's, an exit handler, and the watchdog's after the main thread has ended.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from enum import Enum
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from embodied_env.backends.backend import Backend
from embodied_env.core.code_table import CODE_TABLE
from embodied_env.core.code_types import AFTER_ESTOP, Severity
from embodied_env.envs.motion_guard import MotionGuard
from embodied_env.errors import ClosedError, ResetNeededError
from embodied_env.processes.signals import deferred_signals
from embodied_env.safety.gate import SafetyGate

P = ParamSpec("P")
T = TypeVar("T")


class State(Enum):
    """The state of a stepper, as in the diagram in docs/concepts/step.md."""

    NEW = "not opened"
    RUNNING = "in an episode"
    ENDED = "between episodes"
    LOST = "between episodes, and no command reaches the backend"
    CLOSED = "closed"


class Lifecycle:
    """Holds the state of one stepper, and opens and closes its backend.

    Attributes:
        state: the current state.
        resetting: held during a reset.
    """

    def __init__(self, backend: Backend, guard: MotionGuard) -> None:
        """Start nothing."""
        self.resetting = threading.Lock()
        self.state = State.NEW
        self._backend, self._guard = backend, guard
        self._free_running = backend.capabilities.free_running
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
        """Close in the watchdog thread, or return False if another thread opens or closes and may wait for it."""
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


def one_at_a_time(reset: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Refuse a reset of a stepper during another one, which may be driving the robot home."""

    @wraps(reset)
    def only_reset(stepper: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:  # noqa: ANN401 - a stepper
        resetting = stepper.lifecycle.resetting
        if not resetting.acquire(blocking=False):
            raise ResetNeededError("reset() during a reset: wait for its end, or call close()")
        try:
            return reset(stepper, *args, **kwargs)
        finally:
            resetting.release()

    return only_reset


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
