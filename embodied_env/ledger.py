"""The latency ledger of one stepper: raw integer stamps of the steady domain, and the durations between them.

The stamps of step k, in order::

    observed(k-1)  the snapshot that the action is based on was frozen
    returned(k-1)  step() or reset() returned to the agent
    marked         the agent called mark("policy"), if it did
    entered        step() was entered
    gated          the gate had judged
    published      the command had left

handoff + inference + gate + publish = obs_to_command, exactly, in nanoseconds.
"""

from __future__ import annotations

from enum import IntEnum

from embodied_env.clock import NS_PER_S, Clock
from embodied_env.errors import UsageError
from embodied_env.transition import Quality


class Slot(IntEnum):
    """The stamps of a step; all in the steady domain."""

    PREVIOUS_ENTERED = 0
    PREVIOUS_OBSERVED = 1
    PREVIOUS_RETURNED = 2
    MARKED = 3
    ENTERED = 4
    GATED = 5
    PUBLISHED = 6
    OBSERVED = 7
    RETURNED = 8


_PUBLISHED, _PREVIOUS_OBSERVED = int(Slot.PUBLISHED), int(Slot.PREVIOUS_OBSERVED)


class Ledger:
    """One row of stamps, reused from step to step."""

    def __init__(self, clock: Clock) -> None:
        """Read stamps from `clock`."""
        self._clock = clock
        self._ns = [0] * len(Slot)
        self._marked = False
        self._first = True

    def begin_episode(self) -> None:
        """The first snapshot of an episode was frozen now."""
        self.stamp(Slot.OBSERVED)
        self._first = True

    def stamp(self, slot: Slot, at_ns: int | None = None) -> int:
        """Stamp `slot` and return its stamp; `at_ns`: when it was, None: now."""
        stamp_ns = self._ns[slot] = self._clock.now_ns() if at_ns is None else at_ns
        return stamp_ns

    def at_ns(self, slot: Slot) -> int:
        """Return the stamp of `slot`."""
        return self._ns[slot]

    def enter_step(self) -> None:
        """Shift the last step into the past and stamp the entry of this one."""
        ns = self._ns
        *_, entered, _, _, observed, returned = ns
        ns[:3] = returned if self._first else entered, observed, returned  # the three that are of the past
        self.stamp(Slot.ENTERED)

    def leave_step(self) -> int:
        """Stamp the return to the agent and return it; the agent's next mark counts from here."""
        self._marked = False
        return self.stamp(Slot.RETURNED)

    def step_is_accounted(self) -> None:
        """The durations of this step have been read: the next is not the first."""
        self._first = False

    def mark(self, name: str) -> None:
        """Stamp the end of something outside of the step.

        Args:
            name: ``policy``: the agent's inference is done. ``returned``: an outer wrapper that did work of its own
                (the recorder) hands over to the agent only now; its work counts as handoff, not as inference.

        Raises:
            UsageError: for another name.
        """
        if name == "policy":
            self.stamp(Slot.MARKED)
            self._marked = True
        elif name == "returned":
            self.leave_step()
        else:
            raise UsageError(f"mark({name!r}) is not known; allowed: 'policy', 'returned'")

    @property
    def obs_to_command_ns(self) -> int:
        """Nanoseconds from the frozen observation to the published command."""
        return self._ns[_PUBLISHED] - self._ns[_PREVIOUS_OBSERVED]

    def durations_ns(self) -> dict[str, int]:
        """Return the stages of this step in nanoseconds, by name."""
        previous_entered, before, returned, marked, entered, gated, published, observed, _ = self._ns  # as in `Slot`
        return {
            "handoff": returned - before,
            "inference": entered - returned,
            "policy": (marked if self._marked else entered) - returned,
            "gate": gated - entered,
            "publish": published - gated,
            "obs_to_command": published - before,
            "world": observed - published,
            "period": entered - previous_entered,
        }

    def durations_s(self) -> dict[str, object]:
        """Return the stages of this step in seconds, keyed ``<stage>_s``: floats, in a fresh dict."""
        return {key: ns / NS_PER_S for key, ns in zip(_KEYS, self.durations_ns().values(), strict=True)}

    def qualities(self) -> dict[str, object]:
        """Return the quality code of each stage, keyed like `durations_s`: integers, in a fresh dict."""
        codes: dict[str, object] = dict.fromkeys(_KEYS, 0)  # Quality.OK
        if not self._marked:
            codes["policy_s"] = int(Quality.UNMARKED)
        if self._first:
            codes["period_s"] = int(Quality.FIRST)
        return codes

    @property
    def quality_of_period(self) -> Quality:
        """FIRST in the first step of an episode, else OK."""
        return Quality.FIRST if self._first else Quality.OK

    def stamps_ns(self) -> dict[str, int]:
        """Return the raw stamps of this step by name, for the record; ``marked`` only where the agent marked."""
        stamps = dict(zip(_NAMES, self._ns, strict=False))
        if not self._marked:
            del stamps["marked"]
        return stamps


_STAGES = ("handoff", "inference", "policy", "gate", "publish", "obs_to_command", "world", "period")
_KEYS = tuple(f"{stage}_s" for stage in _STAGES)  # of `durations_ns`, in its order
_NAMES = tuple(slot.name.lower() for slot in Slot if slot is not Slot.RETURNED)
