"""The `Backend` protocol between stepper and robot or simulator, and optional abilities.

A lockstep world moves exactly one control period per `advance`; a free-running world moves by itself. `target_ns` and
`after_ns` are times of the world clock, that of `Snapshot.now_ns`; `deadline_ns` is a time of the steady clock, that of
`Clock.now_ns`.

1. `open` connects, once, before the first `reset`. After BackendLostError `reset` may be called again, and restarts the
   world if it can.
2. `reset` returns a snapshot in which every sensor is newer than the reset, or raises BackendNotReadyError.
3. `send` takes only `ApprovedCommand` (else TypeError), publishes exactly its values, and never moves a lockstep world.
4. `advance` starts the motion of the world to `target_ns`. It may return early: `read` waits for the arrival.
5. `read` returns the newest sample of each sensor; in lockstep, all that the world has delivered by `after_ns`: a
   sensor without a rate, which is due at every step, is stamped `after_ns`, unless delays are injected. It returns
   arrays that it never writes again. Past the deadline it raises BackendLostError.
6. `halt` cuts the transport. It never raises and is idempotent. After it, only `reset` and `close` work. In lockstep
   over a middleware it ends a `reset` that waits in another thread, with BackendNotReadyError.
7. `close` frees everything, is idempotent, and safe on a backend that was never opened.

Every call returns by its deadline, plus a small grace. The suites in `embodied_env.testing` check all of this.

Everything else is optional, with a protocol for each ability, which the environment tests with `isinstance`. A wrapper
may forward an ability that its backend lacks; the attribute is then None (`Resettable.routine`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract
from embodied_env.core.message_tap import MessageTap
from embodied_env.core.reset_draws import ResetRoutine
from embodied_env.core.safety_input_state import InputStates
from embodied_env.core.types import (
    ApprovedCommand,
    ExternalInputs,
    Observer,
    ResetRequest,
    SentCommand,
    Snapshot,
    World,
    name_world,
)
from embodied_env.timing.clock import Clock, DeadlineCounts


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """Flags of a backend, written to the manifest of a run.

    In a dry run (`actuates` is False) each step is judged from the measured position and the last approved velocities.
    """

    simulated: bool  # False: a robot, or its emulator
    exact_step: bool = False
    free_running: bool = False
    pausable: bool = False
    seedable: bool = False
    rewinds_time: bool = False
    reopens: bool = False  # `open` works again after `close`, so that an environment can be reset then
    state_query: bool = False
    acknowledges_commands: bool = False  # another process limits the commands, and `send` returns its report
    estop_inputs: bool = False  # the backend is an `EstopSource`
    actuation: bool = False  # snapshots may contain evidence that a command acts
    transport: bool = False  # sensor messages pass through a middleware that stamps them
    renders_images: bool = False  # those of sensors, during a step, whose snapshot has the time that it took
    trajectories: bool = False  # `send` publishes `ApprovedCommand.trajectory`
    actuates: bool = True  # commands reach the robot
    emulated: bool = False  # the robot emulator is in place of the robot
    chosen_confirmed: bool = False  # an option confirmed the chosen values of the robot file, for this run
    injected: str = ""  # injected delays: "whole", or "sensors" without actuation delays; the backend is `Delayed`
    reset_levels: tuple[str, ...] = ("task",)
    render_modes: tuple[str, ...] = ()  # those of Gymnasium; the backend is `Renderable`
    ignored_inputs: tuple[str, ...] = ()  # safety inputs that cannot be read, and that an option ignores, for this run
    variants: tuple[str, ...] = ()  # safety inputs read as the emulator's variant of their message type

    @property
    def world(self) -> World:
        """The moved world, "simulator", "emulator" or "robot", or "dry run" if none is moved."""
        return name_world(vars(self))


class Backend(Protocol):
    """Robot or simulator behind the environment, with the calls that the module defines."""

    name: str
    capabilities: Capabilities
    step_timeout_s: float
    reset_timeout_s: float

    def open(self) -> None:
        """Connect, or raise BackendNotReadyError or MissingDependencyError."""

    def reset(self, request: ResetRequest, deadline_ns: int) -> Snapshot:
        """Start an episode and return a verified snapshot with a ResetReport."""

    def send(self, command: ApprovedCommand) -> SentCommand:
        """Publish an approved command and return the command that was sent."""

    def advance(self, target_ns: int, deadline_ns: int) -> None:
        """Start the motion of the world to `target_ns`."""

    def read(self, after_ns: int, deadline_ns: int) -> Snapshot:
        """Return the newest samples, in lockstep all delivered by `after_ns`."""

    def halt(self, reason: str) -> None:
        """Cut the transport."""

    def close(self) -> None:
        """Free everything."""

    def processes(self) -> list[dict[str, Any]]:
        """Return role and pid of each process that the backend started."""


@runtime_checkable
class Resettable(Protocol):
    """A backend whose reset continues after `reset`, unless `routine` is None.

    With `routine.home` the stepper drives the joints home by `send`, `advance` and `read`, through the gate, for which
    `reset` leaves the world ready; with `routine.confirm` it calls `confirm`; then `verify`, since the readings of
    `reset` are older.
    """

    routine: ResetRoutine | None

    def confirm(self, question: str, deadline_ns: int) -> None:
        """Ask the operator, or raise BackendNotReadyError without a confirmation in time."""

    def verify(self, deadline_ns: int) -> Snapshot:
        """Return a snapshot with every sensor newer than this call, or raise BackendNotReadyError."""


@runtime_checkable
class EstopSource(Protocol):
    """A backend that reads the robot's own safety inputs."""

    def estops(self) -> InputStates:
        """Return the state of each safety input (thread-safe)."""


@runtime_checkable
class NewestSource(Protocol):
    """A free-running backend that can be read between steps."""

    def newest(self, sensors: Iterable[str]) -> Snapshot:
        """Return the newest readings of these sensors, without counting losses (thread-safe)."""


@runtime_checkable
class CommandTimeout(Protocol):
    """Backend whose controller stops after `downstream_timeout_s`, None if never or unknown."""

    downstream_timeout_s: float | None


@runtime_checkable
class Paced(Protocol):
    """A backend that waits for deadlines in real time, counted in `pacer` unless None."""

    pacer: DeadlineCounts | None


@runtime_checkable
class Delayed(Protocol):
    """Backend with injected delays, `inference_ns` from newest observation to its command."""

    inference_ns: int


@runtime_checkable
class Observed(Protocol):
    """A backend with `observers` of its own, called after those of the user."""

    observers: tuple[Observer, ...]


@runtime_checkable
class MessageSource(Protocol):
    """A backend that passes the ROS 2 messages of its nodes to `feed`, unless that is None."""

    feed: MessageTap | None


@runtime_checkable
class Renderable(Protocol):
    """A backend that renders images, and shows its world in a window in render mode "human"."""

    def render(self) -> NDArray[np.uint8]:
        """Return an image of the world, shape (height, width, 3)."""

    def show(self) -> None:
        """Show the world as it is now."""


@runtime_checkable
class Polled(Protocol):
    """A backend whose step can be polled."""

    def has_arrived(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s`, and return whether `read` would return at once."""


class ReplaySource(Protocol):
    """The stamps and external inputs of a recorded run, step by step."""

    frozen_ns: int  # when the snapshot of the last reset was frozen; 0: not recorded
    external_inputs: ExternalInputs | None  # external inputs of the current step, or None if they were not recorded

    @property
    def stamps_ns(self) -> Mapping[str, int]:
        """The stamps of the current step (`Ledger.stamps_ns`), empty after the last one."""

    def enter_step(self) -> None:
        """Move to the next step."""


@runtime_checkable
class Recorded(Protocol):
    """A backend that replays a run, whose results replace those of an untrusted task."""

    playback: ReplaySource  # recorded stamps and external inputs
    task_file: str | Path | None  # file to load the task from (``FILE.py`` or ``FILE.py:Class``)
    trust_task: bool  # load the task that the contract of the run names
    recorded_task: Any  # a task that returns the recorded results


class BackendFactory(Protocol):
    """Entry of the backend table that builds a backend and starts nothing.

    A factory with several pacings takes the keyword `pacing` ("lockstep" or "realtime"), raises UsageError for one that
    it does not have, and sets `capabilities.free_running`.
    """

    def __call__(self, contract: Contract, *, clock: Clock, **options: Any) -> Backend:  # noqa: ANN401
        """Build a backend for `contract`, or raise UsageError for an unknown option."""


@runtime_checkable
class ContractSource(Protocol):
    """A factory whose options name a contract, such as that of a recorded run."""

    def find_contract(self, options: Mapping[str, Any], /) -> Contract:
        """Return the contract to use if the environment is given none."""


def find_estop_source(backend: Backend) -> EstopSource | None:
    """Return `backend` if it declares safety inputs, else None.

    Raises TypeError if it cannot read declared inputs, since it must not pass for a robot without any.
    """
    if not backend.capabilities.estop_inputs:
        return None
    if not isinstance(backend, EstopSource):
        raise TypeError(f"backend {backend.name} declares estop_inputs but has no method estops()")
    return backend
