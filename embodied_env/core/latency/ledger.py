"""The latency ledger of one stepper: integer stamps on the steady clock, and the durations between them.

The stamps of step k, in order::

    observed(k-1)  the snapshot that the action is based on was frozen
    returned(k-1)  step() or reset() returned to the agent
    marked         the agent called mark("policy"), optional
    entered        step() was entered
    gated          the gate returned
    published      the command was sent

handoff + inference + gate + publish = obs_to_command, exactly, in nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from embodied_env.core.clock import NS_PER_S, Clock
from embodied_env.core.codes import Quality
from embodied_env.errors import UsageError


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


_STAMPS = tuple(event.name.lower() for event in StepEvent if event is not StepEvent.RETURNED)
STAGES = ("handoff_s", "inference_s", "policy_s", "gate_s", "publish_s", "obs_to_command_s", "world_s", "period_s")
_ALL_OK: dict[str, object] = dict.fromkeys(STAGES, int(Quality.OK))


def event_of_mark(name: str) -> StepEvent:
    """Return the stamp that `Ledger.mark` sets; raises UsageError for another name."""
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
    """The stamps of the current step."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ns = [0] * len(StepEvent)
        self._marked = False
        self._first = True

    def save(self) -> LedgerState:
        """Return the stamps between two steps."""
        return LedgerState(stamps_ns=tuple(self._ns), is_first=self._first, is_marked=self._marked)

    def load(self, state: LedgerState) -> None:
        """Set the stamps between two steps."""
        self._ns, self._first, self._marked = list(state.stamps_ns), state.is_first, state.is_marked

    @property
    def state(self) -> tuple[list[int], bool, bool]:
        """The stamps by `StepEvent`, whether the step is the first one, and whether the agent has marked it."""
        return self._ns.copy(), self._first, self._marked

    def restore(self, stamps_ns: list[int], *, is_first: bool, is_marked: bool) -> None:
        """Set the `state`."""
        self._ns, self._first, self._marked = stamps_ns, is_first, is_marked

    def begin_episode(self) -> None:
        """Stamp the snapshot of the reset as frozen now."""
        self.stamp(StepEvent.OBSERVED)
        self._first = True

    def stamp(self, slot: StepEvent, at_ns: int | None = None) -> int:
        """Stamp `slot` with `at_ns` (None: now) and return the stamp."""
        stamp_ns = self._ns[slot] = self._clock.now_ns() if at_ns is None else at_ns
        return stamp_ns

    def at_ns(self, slot: StepEvent) -> int:
        """Return the stamp of `slot`."""
        return self._ns[slot]

    def enter_step(self) -> None:
        """Turn the stamps of the last step into previous ones, and stamp the entry of this one."""
        *_, entered, _, _, observed, returned = self._ns
        self._ns[:3] = returned if self._first else entered, observed, returned
        self.stamp(StepEvent.ENTERED)

    def leave_step(self) -> int:
        """Stamp the return to the agent, clear its mark, and return the stamp."""
        self._marked = False
        return self.stamp(StepEvent.RETURNED)

    def step_is_accounted(self) -> None:
        """Record that the durations of this step have been read: the next is not the first."""
        self._first = False

    def mark(self, name: str) -> None:
        """Stamp the end of work outside the step.

        ``policy``: the agent's inference is done. ``returned``: an outer wrapper (the recorder) returns to the agent
        only now, so that its work counts as handoff, not as inference.
        """
        event = event_of_mark(name)
        self.stamp(event)
        self._marked = event is StepEvent.MARKED

    @property
    def obs_to_command_ns(self) -> int:
        """Nanoseconds from the frozen observation to the published command."""
        return self._ns[StepEvent.PUBLISHED] - self._ns[StepEvent.PREVIOUS_OBSERVED]

    @property
    def period_ns(self) -> int:
        """Nanoseconds from the entry of the last step to the entry of this one."""
        return self._ns[StepEvent.ENTERED] - self._ns[StepEvent.PREVIOUS_ENTERED]

    def durations_s(self) -> dict[str, object]:
        """Return the stages of this step in seconds, keyed ``<stage>_s``, in a new dict."""
        previous_entered, before, returned, marked, entered, gated, published, observed, _ = self._ns
        return {
            "handoff_s": (returned - before) / NS_PER_S,
            "inference_s": (entered - returned) / NS_PER_S,
            "policy_s": ((marked if self._marked else entered) - returned) / NS_PER_S,
            "gate_s": (gated - entered) / NS_PER_S,
            "publish_s": (published - gated) / NS_PER_S,
            "obs_to_command_s": (published - before) / NS_PER_S,
            "world_s": (observed - published) / NS_PER_S,
            "period_s": (entered - previous_entered) / NS_PER_S,
        }

    def qualities(self) -> dict[str, object]:
        """Return the quality code of each stage, keyed like `durations_s`, in a new dict."""
        codes = _ALL_OK.copy()
        if not self._marked:
            codes["policy_s"] = int(Quality.UNMARKED)
        if self._first:
            codes["period_s"] = int(Quality.FIRST)
        return codes

    def stamps_ns(self) -> dict[str, int]:
        """Return the stamps of this step by name, without ``marked`` if the agent did not mark."""
        stamps = dict(zip(_STAMPS, self._ns, strict=False))
        if not self._marked:
            del stamps["marked"]
        return stamps
