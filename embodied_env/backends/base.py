"""The `Backend` protocol: the one seam between the stepper and a world, and its written contract.

Who owns time is the only real difference between worlds. A lockstep world moves exactly one control period when it is
told to; a free-running world moves by itself.

1. `open` connects; it is called once, before the first `reset`. After a lost world `reset` may be called again, and
   starts the world anew if it can.
2. `reset` returns a snapshot in which every sensor is newer than the reset, or raises BackendNotReadyError.
3. `send` takes only `ApprovedCommand` (else TypeError), publishes exactly its values, and never moves a lockstep world.
4. `advance` sets the world moving towards `target`. It may return before the world is there: `read` waits.
5. `read` returns the newest sample of each sensor; in lockstep, all that the world has delivered by `after`: a sensor
   without a rate, which is due at every step, is stamped `after`, unless delays were asked for. It never returns arrays
   that it will write again. Past the deadline it raises BackendLostError.
6. `halt` cuts the transport. It never raises and is idempotent. After it, only `reset` and `close` work.
7. `close` frees everything, is idempotent, and safe on a backend that was never opened.

A backend whose resets go on after `reset` has an attribute `routine` (`ResettableBackend`; without it they do not). The
stepper orders the rest. With `routine.home` it drives the joints home by `send`, `advance` and `read`, through the
gate, so `reset` leaves the world ready for them; with `routine.confirm` it calls `confirm`; and then `verify`, since
what `reset` has read is older than all of this.

Every call returns by its deadline, on the steady domain of the injected clock, plus a small grace. Suites that check
all of it are in `embodied_env.testing`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from embodied_env.contract import Contract
from embodied_env.core.clock import Clock, Stamp
from embodied_env.core.latency.ledger import Ledger
from embodied_env.core.reset_spec import ResetRoutine
from embodied_env.core.types import ApprovedCommand, ExternalInputs, ResetRequest, SentCommand, Snapshot


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What a backend can do. `transport` says that sensors cross a middleware whose stamps can be read.

    With `estop_inputs` it has a method ``estops() -> Mapping[str, str]``, to be called from any thread: the robot's own
    safety inputs, by name, "ok" or what is wrong (`embodied_env.core.types.Situation`). With `acknowledges_commands`
    another process limits the commands, and ``send`` returns its account. `actuation`: snapshots may carry evidence
    that a command acts. `injected`: delays are put into the world (`Snapshot.injected`): "whole", or "sensors" where
    nobody knows when commands act; it then has an attribute `inference_ns`: how long the next command takes to leave.

    Without `actuates` nothing that is sent reaches a robot, a dry run: each step is judged from where the robot is
    measured, with the velocities that were approved last.

    A backend may have ``observers``: who is told of each transition, after those of the user. One that computes its
    world in process may have a method ``compute_in(executor) -> bool``: from then on `advance` may return at once, and
    the world is computed in the executor's threads until `read`; False: it never will.

    `render_modes` are Gymnasium's: with "rgb_array" it has a method ``render() -> uint8 (height, width, 3)``, with
    "human" a method ``show() -> None``.
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
    """A world behind the environment. See the module's docstring for what each call promises.

    One that moves by itself may have a `pacer` (`core.pacing.Pacer`): what is counted there is told. One that
    plays back what another did has a `playback`.

    One that moves by itself may have ``newest(sensors) -> Snapshot``: the newest readings of these sensors, which any
    thread may ask for at any time and which counts nothing, and `downstream_timeout_s`: how long its controller obeys
    a velocity that is not commanded again (None: without end, or unknown).
    """

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


class ResettableBackend(Backend, Protocol):
    """A backend whose resets go on after `reset`."""

    routine: ResetRoutine | None

    def confirm(self, question: str, deadline: Stamp) -> None:
        """Ask a person. Return when they agree; raise BackendNotReadyError when they do not, or say nothing in time."""
        ...

    def verify(self, deadline: Stamp) -> Snapshot:
        """Return a snapshot in which every sensor is newer than this call, or raise BackendNotReadyError."""
        ...


@runtime_checkable
class RecordedResults(Protocol):
    """A backend whose world is a run: its recorded task results stand in for a task that is not trusted.

    `task_file`: load the task from this file (``FILE.py`` or ``FILE.py:Class``); `trust_task`: load the task that the
    contract of the run names; `recorded_task` returns what the task returned then.
    """

    task_file: str | Path | None
    trust_task: bool
    recorded_task: Any


class ReplaySource(Protocol):
    """What time and others did to the steps of a run that is played back: nothing of it happens again by itself."""

    @property
    def ledger(self) -> Ledger:
        """Stamps as they were; that a step is entered moves it to the next one."""
        ...

    @property
    def circumstances(self) -> ExternalInputs | None:
        """Those of the step that is being played back; None: there is none."""
        ...


class BackendFactory(Protocol):
    """What the backend table loads: builds a backend, starts nothing.

    One that offers several pacings takes a keyword `pacing` too ("lockstep" or "realtime"; its default is what it is
    without), raises UsageError for what it cannot, and builds a backend whose `capabilities.free_running` says which.
    """

    def __call__(self, contract: Contract, *, clock: Clock, **options: Any) -> Backend:  # noqa: ANN401
        """Build a backend for `contract`; raises UsageError for an unknown option."""
        ...
