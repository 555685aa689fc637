"""The `Backend` protocol, which connects the stepper to a robot or simulator, and the optional abilities of a backend.

Who owns time is the only real difference between worlds. A lockstep world moves exactly one control period when it is
told to; a free-running world moves by itself.

1. `open` connects; it is called once, before the first `reset`. After a lost world `reset` may be called again, and
   starts the world again if it can.
2. `reset` returns a snapshot in which every sensor is newer than the reset, or raises BackendNotReadyError.
3. `send` takes only `ApprovedCommand` (else TypeError), publishes exactly its values, and never moves a lockstep world.
4. `advance` sets the world moving towards `target`. It may return before the world has arrived: `read` waits.
5. `read` returns the newest sample of each sensor; in lockstep, all that the world has delivered by `after`: a sensor
   without a rate, which is due at every step, is stamped `after`, unless delays were asked for. It never returns arrays
   that it will write again. Past the deadline it raises BackendLostError.
6. `halt` cuts the transport. It never raises and is idempotent. After it, only `reset` and `close` work.
7. `close` frees everything, is idempotent, and safe on a backend that was never opened.

Every call returns by its deadline, on the steady domain of the injected clock, plus a small grace. Suites that check
all of it are in `embodied_env.testing`.

Everything else is optional, and a small protocol each: `Resettable`, `EstopSource`, `NewestSource`, `CommandTimeout`,
`Paced`, `Delayed`, `Observed`, `MessageSource`, `Renderable`, `Showable`, `Threaded`, `Recorded`, `RecordedResults`.
The environment tests for them once, with `isinstance`, when it is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract
from embodied_env.core.clock import Clock, Stamp
from embodied_env.core.latency.ledger import Ledger
from embodied_env.core.message_tap import MessageTap
from embodied_env.core.pacing import DeadlineCounts
from embodied_env.core.reset_spec import ResetRoutine
from embodied_env.core.types import ApprovedCommand, ExternalInputs, Observer, ResetRequest, SentCommand, Snapshot


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """Flags of a backend; they are written to the manifest of a run.

    `transport`: sensors cross a middleware whose stamps can be read. `estop_inputs`: the backend is an `EstopSource`.
    `acknowledges_commands`: another process limits the commands, and ``send`` returns its account. `actuation`:
    snapshots may carry evidence that a command acts. `injected`: delays are put into the world
    (`Snapshot.injected`), "whole", or "sensors" where it is unknown when commands act; the backend is then `Delayed`.

    Without `actuates` nothing that is sent reaches a robot, a dry run: each step is judged from where the robot is
    measured, with the velocities that were approved last.

    `render_modes` are Gymnasium's: with "rgb_array" the backend is `Renderable`, with "human" `Showable`.
    """

    exact_step: bool = False
    free_running: bool = False
    pausable: bool = False
    seedable: bool = False
    rewinds_time: bool = False
    state_query: bool = False
    acknowledges_commands: bool = False
    estop_inputs: bool = False
    actuation: bool = False
    transport: bool = False
    actuates: bool = True
    injected: str = ""
    reset_levels: tuple[str, ...] = ("task",)
    render_modes: tuple[str, ...] = ()


class Backend(Protocol):
    """A world behind the environment. See the module's docstring for what each call promises."""

    name: str
    capabilities: Capabilities
    step_timeout_s: float
    reset_timeout_s: float

    def open(self) -> None:
        """Connect. Raises BackendNotReadyError or MissingDependencyError."""
        ...

    def reset(self, request: ResetRequest, deadline: Stamp) -> Snapshot:
        """Start an episode; return a verified snapshot that carries a ResetReport."""
        ...

    def send(self, command: ApprovedCommand) -> SentCommand:
        """Publish an approved command; return what was really sent."""
        ...

    def advance(self, target: Stamp, deadline: Stamp) -> None:
        """Set the world moving towards `target`, a stamp of the world's clock."""
        ...

    def read(self, after: Stamp, deadline: Stamp) -> Snapshot:
        """Return the newest samples, in lockstep all that were delivered by `after`."""
        ...

    def halt(self, reason: str) -> None:
        """Cut the transport."""
        ...

    def close(self) -> None:
        """Free everything."""
        ...

    def processes(self) -> list[dict[str, Any]]:
        """Return role and pid of each process that this backend started."""
        ...


@runtime_checkable
class Resettable(Protocol):
    """A backend whose resets go on after `reset`; with `routine` None they do not.

    The stepper orders the rest. With `routine.home` it drives the joints home by `send`, `advance` and `read`, through
    the gate, so `reset` leaves the world ready for them; with `routine.confirm` it calls `confirm`; and then `verify`,
    since what `reset` has read is older than all of this.
    """

    routine: ResetRoutine | None

    def confirm(self, question: str, deadline: Stamp) -> None:
        """Ask a person; raise BackendNotReadyError when they refuse or do not answer in time."""
        ...

    def verify(self, deadline: Stamp) -> Snapshot:
        """Return a snapshot in which every sensor is newer than this call, or raise BackendNotReadyError."""
        ...


@runtime_checkable
class EstopSource(Protocol):
    """A backend that reads the robot's own safety inputs."""

    def estops(self) -> Mapping[str, str]:
        """Return each input by name: "ok" or what is wrong (`core.types.SafetyContext`). Any thread may call it."""
        ...


@runtime_checkable
class NewestSource(Protocol):
    """A free-running backend whose newest readings can be read between steps."""

    def newest(self, sensors: Iterable[str]) -> Snapshot:
        """Return the newest readings of these sensors, without counting losses. Any thread may call it."""
        ...


@runtime_checkable
class CommandTimeout(Protocol):
    """A backend whose controller obeys a velocity for `downstream_timeout_s`; None: without end, or unknown."""

    downstream_timeout_s: float | None


@runtime_checkable
class Paced(Protocol):
    """A backend that waits for deadlines in real time and counts the missed ones; with `pacer` None it does not."""

    @property
    def pacer(self) -> DeadlineCounts | None:
        """Return what is counted since the episode began."""
        ...


@runtime_checkable
class Delayed(Protocol):
    """A backend into whose world delays are put."""

    @property
    def inference_ns(self) -> int:
        """Return the time from the newest observation until the command that follows from it leaves."""
        ...


@runtime_checkable
class Observed(Protocol):
    """A backend with observers of its own: they get each transition after those of the user."""

    @property
    def observers(self) -> tuple[Observer, ...]:
        """Return the observers."""
        ...


@runtime_checkable
class MessageSource(Protocol):
    """A backend that hands the ROS 2 messages of its nodes to `feed`."""

    @property
    def feed(self) -> MessageTap | None:
        """Return the tap; None: it has no messages."""
        ...


@runtime_checkable
class Renderable(Protocol):
    """A backend that renders images."""

    def render(self) -> NDArray[np.uint8]:
        """Return an image of the world as it is now, shape (height, width, 3)."""
        ...


@runtime_checkable
class Showable(Protocol):
    """A backend that shows its world in a window."""

    def show(self) -> None:
        """Show the world as it is now."""
        ...


@runtime_checkable
class Threaded(Protocol):
    """A backend that can compute its world in the threads of an executor."""

    def compute_in(self, executor: Executor) -> bool:
        """Let `advance` return at once and `executor` compute until `read`; return False if that is not possible."""
        ...


class ReplaySource(Protocol):
    """The time stamps and external inputs of a recorded run, step by step."""

    @property
    def ledger(self) -> Ledger:
        """Return the ledger of recorded stamps; its `enter_step` moves to the next step."""
        ...

    @property
    def circumstances(self) -> ExternalInputs | None:
        """Return the external inputs of the current step; None: the record has no such step."""
        ...


@runtime_checkable
class Recorded(Protocol):
    """A backend that plays a recorded run back."""

    @property
    def playback(self) -> ReplaySource | None:
        """Return what was recorded besides actions and readings; None: nothing is played back."""
        ...


@runtime_checkable
class RecordedResults(Protocol):
    """A backend whose world is a run: its recorded task results replace a task that is not trusted.

    `task_file`: load the task from this file (``FILE.py`` or ``FILE.py:Class``); `trust_task`: load the task that the
    contract of the run names; `recorded_task` returns what the task returned then.
    """

    task_file: str | Path | None
    trust_task: bool
    recorded_task: Any


class BackendFactory(Protocol):
    """What the backend table loads: builds a backend, starts nothing.

    One that offers several pacings takes a keyword `pacing` too ("lockstep" or "realtime"; its default is what it is
    without), raises UsageError for what it cannot, and builds a backend whose `capabilities.free_running` says which.
    """

    def __call__(self, contract: Contract, *, clock: Clock, **options: Any) -> Backend:  # noqa: ANN401
        """Build a backend for `contract`; raises UsageError for an unknown option."""
        ...


def find_estop_source(backend: Backend) -> EstopSource | None:
    """Return `backend` as the source of its safety inputs; None: it declares none.

    Raises:
        TypeError: when it declares them and cannot be read. It must not pass for a robot without safety inputs.
    """
    if not backend.capabilities.estop_inputs:
        return None
    if not isinstance(backend, EstopSource):
        raise TypeError(f"the backend {backend.name} declares estop_inputs and has no method estops()")
    return backend
