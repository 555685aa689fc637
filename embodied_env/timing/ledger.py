"""Stamp the events of a step on the steady clock, in integer nanoseconds.

The stamps of step k, in order::

    observed(k-1)  the snapshot that the action is based on was frozen
    returned(k-1)  step() or reset() returned to the agent
    marked         the agent called mark("policy") (optional)
    entered        step() was entered
    gated          the gate returned
    published      the command was sent
    observed(k)    the snapshot after it was frozen

handoff + inference + gate + publish = obs_to_command, exactly, in nanoseconds (`envs.latency_info`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from embodied_env.errors import UsageError
from embodied_env.timing.clock import Clock


class StepEvent(IntEnum):
    """The stamps of a step, all on the steady clock."""

    PREVIOUS_ENTERED = 0
    PREVIOUS_OBSERVED = 1
    PREVIOUS_RETURNED = 2
    MARKED = 3
    ENTERED = 4
    GATED = 5
    PUBLISHED = 6
    OBSERVED = 7
    RETURNED = 8


def event_of_mark(name: str) -> StepEvent:
    """Return the stamp that `Ledger.mark` sets for `name`, or raise UsageError if unknown."""
    if name not in ("policy", "returned"):
        raise UsageError(f"unknown mark {name!r} (expected 'policy' or 'returned')")
    return StepEvent.MARKED if name == "policy" else StepEvent.RETURNED


@dataclass(frozen=True, kw_only=True)
class LedgerState:
    """The stamps between two steps."""

    stamps_ns: tuple[int, ...]  # by `StepEvent`
    is_first: bool  # the next step is the first of its episode
    is_marked: bool  # the agent has called mark("policy") since the last one


class Ledger:
    """The stamps of the current step, which the stepper sets.

    Attributes:
        previous_entered_ns: entry of the last step; in the first step of an episode, the return of `reset`.
        previous_observed_ns, previous_returned_ns, marked_ns, entered_ns, gated_ns, published_ns, observed_ns: above.
        returned_ns: the last return to the agent.
        is_first: the step is the first of its episode.
        is_marked: the agent has called mark("policy") for it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.load(LedgerState(stamps_ns=(0,) * len(StepEvent), is_first=True, is_marked=False))

    def save(self) -> LedgerState:
        """Return the stamps between two steps."""
        stamps_ns = tuple(getattr(self, name) for name in _ATTRIBUTES)
        return LedgerState(stamps_ns=stamps_ns, is_first=self.is_first, is_marked=self.is_marked)

    def load(self, state: LedgerState) -> None:
        """Set the stamps between two steps."""
        (
            self.previous_entered_ns,
            self.previous_observed_ns,
            self.previous_returned_ns,
            self.marked_ns,
            self.entered_ns,
            self.gated_ns,
            self.published_ns,
            self.observed_ns,
            self.returned_ns,
        ) = state.stamps_ns
        self.is_first, self.is_marked = state.is_first, state.is_marked

    def enter_step(self) -> None:
        """Turn the stamps of the last step into previous ones, and stamp the entry of this one."""
        self.previous_entered_ns = self.returned_ns if self.is_first else self.entered_ns
        self.previous_observed_ns = self.observed_ns
        self.previous_returned_ns = self.returned_ns
        self.entered_ns = self._clock.now_ns()

    def mark(self, name: str) -> None:
        """Stamp the end of work outside the step.

        ``policy``: the agent's inference is done. ``returned``: an outer wrapper (the recorder) returns to the agent
        only now, so that its work counts as handoff, not as inference.
        """
        self.is_marked = event_of_mark(name) is StepEvent.MARKED
        if self.is_marked:
            self.marked_ns = self._clock.now_ns()
        else:
            self.returned_ns = self._clock.now_ns()

    def replay(self, stamps_ns: Mapping[str, int]) -> None:
        """Set only the stamps of a recorded step, named as by `Ledger.stamps_ns`."""
        for name, stamp_ns in stamps_ns.items():
            setattr(self, f"{name}_ns", stamp_ns)
        self.is_marked = "marked" in stamps_ns

    @property
    def obs_to_command_ns(self) -> int:
        """Nanoseconds from the frozen observation to the published command."""
        return self.published_ns - self.previous_observed_ns

    @property
    def period_ns(self) -> int:
        """Nanoseconds from the entry of the last step to the entry of this one."""
        return self.entered_ns - self.previous_entered_ns

    def stamps_ns(self) -> dict[str, int]:
        """Return the stamps of this step by name, without ``marked`` if the agent did not mark."""
        stamps = {
            "previous_entered": self.previous_entered_ns,
            "previous_observed": self.previous_observed_ns,
            "previous_returned": self.previous_returned_ns,
            "entered": self.entered_ns,
            "gated": self.gated_ns,
            "published": self.published_ns,
            "observed": self.observed_ns,
        }
        if self.is_marked:
            stamps["marked"] = self.marked_ns
        return stamps


_ATTRIBUTES = tuple(f"{event.name.lower()}_ns" for event in StepEvent)
