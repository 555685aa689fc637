"""The protocol between the arbiter and a way of publishing.

A way of publishing decides what is published when, and from which reference the next command is limited. It sends
nothing itself: only `Writer.write` does, and every rule about late commands is enforced there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from embodied_env.core.types import ApprovedCommand, CommandState, Finding, SentCommand, Trajectory, WriteDelay
from embodied_env.timing.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class LastWrite:
    """Last write, whose message the robot received from `before_ns` to `after_ns` on the steady clock."""

    before_ns: int
    after_ns: int
    trajectory: Trajectory | None = None


class Writer(Protocol):
    """Part of the arbiter that setpoints use, with its lock held during each call.

    Attributes:
        clock: the steady clock.
        reference: the last published command.
        last: the write of that command.
        delay: the delay of the last write, or None.
        judged_ns: when the time step of the command to be written was computed.
    """

    clock: Clock
    reference: CommandState
    last: LastWrite
    delay: WriteDelay | None
    judged_ns: int

    def check_open(self) -> None:
        """Raise ClosedError after `close`."""
        ...

    def last_published(self, now_ns: int) -> tuple[CommandState, float]:
        """Return the reference of a command judged at `now_ns`, and dt in s, at most one control period."""
        ...

    def write(self, command: ApprovedCommand, *, interval_ns: int | None = None) -> SentCommand:
        """Publish `command`, or braking in its place if it is late for its interval.

        An interval of None is the control period.
        """
        ...

    def brake(self, finding: Finding) -> ApprovedCommand:
        """Publish one tick of braking, for the reason given by `finding`."""
        ...

    def settle(self, command: ApprovedCommand) -> ApprovedCommand:
        """Return the `command` of a step as written, with the delays of all writes since the last step."""
        ...


class Publishing(Protocol):
    """A way of publishing.

    Attributes:
        tick_s: time between two commands that brake to rest.
    """

    tick_s: float

    def reset(self) -> None:
        """Treat the robot as at rest."""
        ...

    def reference_at(self, now_ns: int, reference: CommandState, last: LastWrite, /) -> tuple[CommandState, float]:
        """Return the reference of a command judged at `now_ns`, and dt in s, at most one control period."""
        ...

    def complete(
        self, command: ApprovedCommand, reference: CommandState, actions: Iterable[list[float]], /
    ) -> ApprovedCommand:
        """Return `command` with all that its message contains, given the `actions` of the next steps."""
        ...

    def is_late(self, judged_ns: int, now_ns: int, last: LastWrite, /) -> bool:
        """Return whether a command judged at `judged_ns` must not be written at `now_ns`, whatever its interval."""
        ...

    def is_unsure(self, before: LastWrite, written: LastWrite, /) -> bool:
        """Return whether the acceleration of a command is not guaranteed, because of its write or the one before."""
        ...
