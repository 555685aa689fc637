"""`SimulatorApi`, the requests of a family of simulators, and `FAULTS`, reasons of a loss.

A reply proves at most that a request was accepted. `LockstepControl` reads from the simulator's clock whether it was
carried out, in the same way for every family. Its rules:

1. One request is in flight, and none is cancelled: two in one iteration of Gazebo overwrite each other.
2. A step is over when the clock has shown ``before + n * step_ns`` twice: Gazebo publishes a stamp when its iteration
   begins, and again once it is at rest. A later stamp means that another client steps the world.
3. A reset is over when the clock went back. Where a reset keeps the time, the reply and a clock at rest are enough.
4. No step and no reset is repeated: after a lost reply the clock may still show that it was carried out.
5. Before the first request the clock must be at rest: steps that a dead client requested have to finish. A pause keeps
   what remains of a step, so none is sent while a step may run, and connecting ends with a step that runs it down.

A fault is a `BackendLostError`, in the reset of a backend a `SimulatorNotReadyError`; its `why` is a key of `FAULTS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from embodied_env.core.types import FloatArray
from embodied_env.errors import BackendLostError, BackendNotReadyError, UsageError

FAULTS: Mapping[str, str] = {
    "clock_stopped": "the clock does not move, or stopped before the step was over",
    "clock_rewound": "the clock went back without a reset of ours: another client reset the world",
    "extra_steps": "the clock is past the end of the step: another client steps the world, or it runs freely",
    "future_reading": "a reading is stamped later than the clock: another node publishes the sensor",
    "step_unfinished": "the simulator replied that the step was done, but the clock did not reach its end",
    "reply_lost": "no reply within the timeout; the detail states if the clock shows that the request was executed",
    "refused": "the simulator refused a request",
    "reset_not_seen": "the simulator accepted the reset, but the clock did not show it",
    "sensor_late": "the step is over, but a sensor that was due has no reading from its end",
    "command_unheard": "no echo of a command was received",
    "settling": "the clock does not come to rest before the first request",
    "timeout": "the clock moves, but the request was not finished within the timeout",
    "out_of_step": "the clock is not where the step begins, or a robot of a shared world has sent no command",
    "halted": "the connection was halted after an earlier fault, closed, or never reset",
    "simulator_died": "the simulator that this environment started has ended",
}
"""Why a simulator in lockstep counts as lost, and what each reason means."""


@dataclass(frozen=True, kw_only=True)
class ControlCapabilities:
    """Abilities of a simulator, known after `LockstepControl.connect` (`reset` of the world)."""

    pause: bool = False
    reset: bool = False
    rewinds_time: bool = False
    state_query: bool = False
    set_state: bool = False


@dataclass(frozen=True, kw_only=True)
class EntityState:
    """The pose of an entity in the world frame."""

    position: FloatArray  # m, shape (3,)
    orientation: FloatArray  # quaternion x, y, z, w, shape (4,)


@dataclass(frozen=True, kw_only=True)
class Request:
    """A service request, whose `read` returns the reply or raises SimulatorRefusedError.

    `is_done_at_reply` means that the family replies after the request was executed. The clock is checked anyway.
    """

    service: str
    type: Any
    message: Any
    read: Callable[[Any], Any]
    is_done_at_reply: bool = False


class SimulatorRefusedError(Exception):
    """A reply refused the request, as quoted in the message."""


class SimulatorNotReadyError(BackendNotReadyError):
    """A simulator could not be connected or reset, for the reason `why` of `FAULTS`."""

    def __init__(self, fault: BackendLostError) -> None:
        self.why = fault.why
        super().__init__(f"reset: {fault}")


class SimulatorApi(ABC):
    """Builds the requests that one family of simulators understands, and sends nothing.

    A request may be built only if `capabilities` has it; UsageError means that the family never supports it.

    Attributes:
        repeats_clock: whether the simulator publishes its clock at rest.
        capabilities: the abilities of the simulator, as far as they are known.
    """

    name: ClassVar[str]
    repeats_clock: ClassVar[bool] = False
    capabilities: ControlCapabilities

    @abstractmethod
    def probe(self, offered: Mapping[str, tuple[str, ...]]) -> tuple[Request, ...]:
        """Find the services, return further requests, or raise BackendNotReadyError."""

    @abstractmethod
    def pause(self) -> Request:
        """Return the request that pauses the simulation."""

    @abstractmethod
    def step(self, steps: int) -> Request:
        """Return the request for `steps` physics steps, from rest to rest."""

    @abstractmethod
    def reset(self) -> Request:
        """Return the request for a reset of the world that leaves it at rest."""

    def state(self, entity: str) -> Request:
        """Return the request for the pose of an entity, read as an `EntityState`."""
        raise UsageError(f"{self.name} cannot query the pose of {entity!r}: it has no such service")

    @abstractmethod
    def set_state(self, entity: str, position: FloatArray, orientation: FloatArray) -> Request:
        """Return the request that places an entity (m, quaternion x, y, z, w), if possible at rest."""


def write_pose(pose: Any, position: FloatArray, orientation: FloatArray) -> None:  # noqa: ANN401 - a geometry_msgs/Pose
    """Fill in a pose with a position, m, shape (3,), and a quaternion x, y, z, w, shape (4,)."""
    for axis, value in zip("xyz", position, strict=True):
        setattr(pose.position, axis, float(value))
    for axis, value in zip("xyzw", orientation, strict=True):
        setattr(pose.orientation, axis, float(value))
