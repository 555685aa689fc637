"""`SimControl`: a simulator that others wrote, moved in lockstep; and `SimulatorApi`: what it wants to be asked.

A reply says at most that a request was taken. That something has *happened* is read from the simulator's clock, by
one implementation for all of them; a dialect only builds requests, and reads what their replies claim. Rules:

1. One request is in flight, and none is interrupted: two in one iteration of Gazebo overwrite each other.
2. A step is over when the clock stands at ``before + n * step_ns`` and was seen there twice: Gazebo publishes a stamp
   as the iteration that bears it begins, and again when it stands still. Later than that: somebody else steps too.
3. A reset is over when it shows: the clock went back, or, where it does not, the reply says so and the clock stands.
4. Nothing is sent twice before the clock was compared: a reply that is lost does not mean that nothing was done.
5. Before the first request the clock must stand still: steps that a dead client asked for are waited out.

What goes wrong is a `BackendLostError`, in `connect` and `reset` a `SimulatorNotReadyError`; its `why` is one of
`FAULTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from embodied_env.core.types import FloatArray
from embodied_env.errors import BackendNotReadyError

FAULTS: Mapping[str, str] = {
    "clock_stopped": "the clock does not move, or stopped before the step was over",
    "clock_rewound": "the clock went back, and no reset was asked for: somebody else reset the world",
    "extra_steps": "the clock stands beyond the end of the step: another client steps the world, or it runs free",
    "future_reading": "a sensor has a reading that is stamped after the clock: another node publishes it",
    "step_unfinished": "the simulator said that the step was done, and the clock never came to its end",
    "reply_lost": "no reply came in its time; the detail says whether the clock shows that the request was carried out",
    "refused": "the simulator said no",
    "reset_not_seen": "the simulator took the reset, and it never showed",
    "sensor_late": "the step is over, and a sensor that was due has delivered nothing of its end",
    "command_unheard": "the echo of a command did not come",
    "settling": "the clock does not stand still before the first request",
    "timeout": "the clock moves, and what was asked for was not over in its time",
}
"""Why a simulator that is told to move is lost, and what each means."""


@dataclass(frozen=True, kw_only=True)
class ControlCapabilities:
    """What a simulator offers, after it was asked (`SimControl.connect`).

    `reset_levels` are of "world" (everything), "state" (poses; the time goes on), "time" and "soft" (entities are put
    back one by one). `rewinds_time`: a reset of the world sets the clock to its start.
    """

    pause: bool = False
    reset_levels: tuple[str, ...] = ()
    rewinds_time: bool = False
    seedable: bool = False
    state_query: bool = False
    set_state: bool = False


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """A step that is over: the clock before and after, ns; `steps` of physics."""

    before_ns: int
    after_ns: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class ResetResult:
    """A reset that was seen: its level, the clock after it, ns, and the seed that the simulator took (None: none)."""

    level: str
    after_ns: int
    seed_used: int | None = None


@dataclass(frozen=True, kw_only=True)
class EntityState:
    """Where an entity is, in the frame of the world.

    `position` m, shape (3,); `orientation` quaternion x, y, z, w, shape (4,); `linear` m/s and `angular` rad/s, shape
    (3,), None where the simulator does not say. `stamp_ns` is simulated time; None: it was not stamped.
    """

    position: FloatArray
    orientation: FloatArray
    linear: FloatArray | None = None
    angular: FloatArray | None = None
    stamp_ns: int | None = None


@dataclass(frozen=True, kw_only=True)
class Request:
    """A call of a service. `read` takes its reply, and raises `SimulatorRefusedError` when that says no.

    That of a reset returns the seed that the simulator took, or None.

    `is_done_at_reply`: the family promises that what was asked for is over when the reply comes. It is checked, not
    believed.
    """

    service: str
    type: Any
    message: Any
    read: Callable[[Any], Any]
    is_done_at_reply: bool = False


class SimulatorRefusedError(Exception):
    """A reply said no; the message quotes what it said."""


class SimulatorNotReadyError(BackendNotReadyError):
    """A simulator could not be connected or reset.

    Attributes:
        why: one of `FAULTS`.
    """

    def __init__(self, why: str, detail: str) -> None:
        """Give the short reason `why` and a sentence of `detail`."""
        self.why = why
        super().__init__(f"{why}: {detail}")


class SimulatorApi(Protocol):
    """What one family of simulators wants to be asked. It sends nothing; each method builds one `Request`.

    A method whose request the simulator does not offer raises UsageError that names the service that is missing.
    """

    name: str

    def probe(self, offered: Mapping[str, tuple[str, ...]]) -> tuple[Request, ...]:
        """Look at the services of the graph, name -> types; return what else must be asked (`learn` is told the reply).

        Raises:
            BackendNotReadyError: when one that is needed is not offered: it names it, and what would offer it.
        """
        ...

    def learn(self, reply: Any) -> None:  # noqa: ANN401 - what `Request.read` returned
        """Take what a request of `probe` was answered."""
        ...

    @property
    def capabilities(self) -> ControlCapabilities:
        """What is offered, as far as it is known by now."""
        ...

    def pause(self) -> Request:
        """Stand still."""
        ...

    def step(self, steps: int) -> Request:
        """Run so many steps of physics, from a standstill to a standstill."""
        ...

    def reset(self, level: str, seed: int | None) -> Request:
        """Reset, and stand still."""
        ...

    def state(self, entity: str) -> Request:
        """Say where an entity is; `Request.read` returns an `EntityState`."""
        ...

    def set_state(self, entity: str, position: FloatArray, orientation: FloatArray) -> Request:
        """Put an entity there, at rest where the family can; m, and quaternion x, y, z, w."""
        ...


class SimControl(Protocol):
    """A simulator over ROS 2 that is told to move. `end` is always the monotonic time, s, by which a call returns.

    Raises in every call: BackendLostError, its `why` one of `FAULTS`.
    """

    @property
    def capabilities(self) -> ControlCapabilities:
        """What it can do; known after `connect`."""
        ...

    def connect(self, end: float) -> None:
        """Find its services, wait until its clock stands still, and pause it.

        Raises:
            BackendNotReadyError: when a service is missing (`SimulatorApi.probe`), or as a SimulatorNotReadyError.
        """
        ...

    def now_ns(self) -> int:
        """Return the simulated time, as it was last heard."""
        ...

    def check(self) -> None:
        """Raise when the clock is not where the last call left it: somebody else moved the world since."""
        ...

    def pause(self, end: float) -> None:
        """Stand still. Idempotent."""
        ...

    def step(self, duration_ns: int, end: float) -> StepResult:
        """Move by so much simulated time; return when the world stands still again."""
        ...

    def reset(self, level: str, seed: int | None, end: float) -> ResetResult:
        """Reset; return when it has shown, and the world stands still."""
        ...

    def state(self, entity: str, end: float) -> EntityState:
        """Return where an entity is now."""
        ...

    def set_state(self, entity: str, position: FloatArray, orientation: FloatArray, end: float) -> None:
        """Put an entity somewhere. Sensors show it after the next step."""
        ...

    def close(self) -> None:
        """Forget everything. Idempotent."""
        ...


def write_pose(pose: Any, position: FloatArray, orientation: FloatArray) -> None:  # noqa: ANN401 - a geometry_msgs/Pose
    """Fill in a pose: `position` m, shape (3,); `orientation` quaternion x, y, z, w, shape (4,)."""
    for axis, value in zip("xyz", position, strict=True):
        setattr(pose.position, axis, float(value))
    for axis, value in zip("xyzw", orientation, strict=True):
        setattr(pose.orientation, axis, float(value))
