"""`SimulatorApi`: the requests of one family of simulators; and `FAULTS`: what can go wrong with them.

A reply proves at most that a request was accepted. `LockstepControl` reads from the simulator's clock whether it was
carried out, in the same way for every family. Its rules:

1. One request is in flight, and none is cancelled: two in one iteration of Gazebo overwrite each other.
2. A step is over when the clock has shown ``before + n * step_ns`` twice: Gazebo publishes a stamp when its iteration
   begins, and again once it is at rest. A later stamp means that another client steps the world.
3. A reset is over when the clock went back. Where a reset keeps the time, the reply and a clock at rest are enough.
4. No request is repeated: after a lost reply the clock may still show that it was carried out.
5. Before the first request the clock must be at rest: steps that a dead client requested have to finish.

A fault is a `BackendLostError`, in `connect` and `reset` a `SimulatorNotReadyError`; its `why` is a key of `FAULTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from embodied_env.core.types import FloatArray
from embodied_env.errors import BackendNotReadyError

FAULTS: Mapping[str, str] = {
    "clock_stopped": "the clock does not move, or stopped before the step was over",
    "clock_rewound": "the clock went back without a reset of ours: another client reset the world",
    "extra_steps": "the clock is beyond the end of the step: another client steps the world, or it runs free",
    "future_reading": "a reading is stamped after the clock: another node publishes the sensor",
    "step_unfinished": "the simulator replied that the step was done, and the clock never reached its end",
    "reply_lost": "no reply within the timeout; the detail says whether the clock shows that the request was executed",
    "refused": "the simulator refused a request",
    "reset_not_seen": "the simulator accepted the reset, and the clock never showed it",
    "sensor_late": "the step is over, and a sensor that was due has no reading of its end",
    "command_unheard": "no echo of a command was received",
    "settling": "the clock does not come to rest before the first request",
    "timeout": "the clock moves, and the request was not finished within the timeout",
}
"""Why a simulator in lockstep counts as lost, and what each reason means."""


@dataclass(frozen=True, kw_only=True)
class ControlCapabilities:
    """The abilities of a simulator, known after `LockstepControl.connect`.

    `reset`: of the whole world; with `rewinds_time` it also sets the clock to its start.
    """

    pause: bool = False
    reset: bool = False
    rewinds_time: bool = False
    state_query: bool = False
    set_state: bool = False


@dataclass(frozen=True, kw_only=True)
class EntityState:
    """The pose of an entity in the world frame.

    `position` m, shape (3,); `orientation` quaternion x, y, z, w, shape (4,); `stamp_ns` simulated time, None: unknown.
    """

    position: FloatArray
    orientation: FloatArray
    stamp_ns: int | None = None


@dataclass(frozen=True, kw_only=True)
class Request:
    """A service request. `read` returns the content of its reply, and raises `SimulatorRefusedError` for a refusal.

    `is_done_at_reply`: the family promises to reply after the request was carried out. The clock is checked anyway.
    """

    service: str
    type: Any
    message: Any
    read: Callable[[Any], Any]
    is_done_at_reply: bool = False


class SimulatorRefusedError(Exception):
    """A reply refused the request; the message quotes it."""


class SimulatorNotReadyError(BackendNotReadyError):
    """A simulator could not be connected or reset.

    Attributes:
        why: a key of `FAULTS`.
    """

    def __init__(self, why: str, detail: str) -> None:
        """Store the short reason `why` and a sentence of `detail`."""
        self.why = why
        super().__init__(f"{why}: {detail}")


class SimulatorApi(Protocol):
    """Builds the requests that one family of simulators understands, and sends nothing.

    `capabilities` must offer the request. UsageError means that the family never does.
    """

    name: str

    @property
    def capabilities(self) -> ControlCapabilities:
        """Return what the simulator offers, as far as it is known."""

    def probe(self, offered: Mapping[str, tuple[str, ...]]) -> tuple[Request, ...]:
        """Find the simulator among the services of the graph, name -> types; return requests that complete the search.

        Raises:
            BackendNotReadyError: when a service that is needed is not offered.
        """

    def pause(self) -> Request:
        """Return the request that pauses the simulation."""

    def step(self, steps: int) -> Request:
        """Return the request for `steps` physics steps, from rest to rest."""

    def reset(self) -> Request:
        """Return the request for a reset of the world that leaves it at rest."""

    def state(self, entity: str) -> Request:
        """Return the request for the pose of an entity; `Request.read` returns an `EntityState`."""

    def set_state(self, entity: str, position: FloatArray, orientation: FloatArray) -> Request:
        """Return the request that places an entity, at rest where the family can; m, and quaternion x, y, z, w."""


def write_pose(pose: Any, position: FloatArray, orientation: FloatArray) -> None:  # noqa: ANN401 - a geometry_msgs/Pose
    """Fill in a pose: `position` m, shape (3,); `orientation` quaternion x, y, z, w, shape (4,)."""
    for axis, value in zip("xyz", position, strict=True):
        setattr(pose.position, axis, float(value))
    for axis, value in zip("xyzw", orientation, strict=True):
        setattr(pose.orientation, axis, float(value))
