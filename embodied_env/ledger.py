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
        ns[Slot.PREVIOUS_ENTERED] = ns[Slot.RETURNED] if self._first else ns[Slot.ENTERED]
        ns[Slot.PREVIOUS_OBSERVED] = ns[Slot.OBSERVED]
        ns[Slot.PREVIOUS_RETURNED] = ns[Slot.RETURNED]
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
        return self._ns[Slot.PUBLISHED] - self._ns[Slot.PREVIOUS_OBSERVED]

    def durations_ns(self) -> dict[str, int]:
        """Return the stages of this step in nanoseconds, by name."""
        ns = self._ns
        end_of_policy = ns[Slot.MARKED] if self._marked else ns[Slot.ENTERED]
        return {
            "handoff": ns[Slot.PREVIOUS_RETURNED] - ns[Slot.PREVIOUS_OBSERVED],
            "inference": ns[Slot.ENTERED] - ns[Slot.PREVIOUS_RETURNED],
            "policy": end_of_policy - ns[Slot.PREVIOUS_RETURNED],
            "gate": ns[Slot.GATED] - ns[Slot.ENTERED],
            "publish": ns[Slot.PUBLISHED] - ns[Slot.GATED],
            "obs_to_command": self.obs_to_command_ns,
            "world": ns[Slot.OBSERVED] - ns[Slot.PUBLISHED],
            "period": ns[Slot.ENTERED] - ns[Slot.PREVIOUS_ENTERED],
        }

    def durations_s(self) -> dict[str, float]:
        """Return the stages of this step in seconds, keyed ``<stage>_s``."""
        return {key: ns / NS_PER_S for key, ns in zip(_KEYS, self.durations_ns().values(), strict=True)}

    def qualities(self) -> dict[str, int]:
        """Return the quality code of each stage, keyed like `durations_s`."""
        codes = dict.fromkeys(_KEYS, 0)  # Quality.OK
        if not self._marked:
            codes["policy_s"] = int(Quality.UNMARKED)
        if self._first:
            codes["period_s"] = int(Quality.FIRST)
        return codes

    def stamps_ns(self) -> dict[str, int]:
        """Return the raw stamps of this step by name, for the record; ``marked`` only where the agent marked."""
        return {name: ns for name, ns in zip(_NAMES, self._ns, strict=False) if self._marked or name != "marked"}


_STAGES = ("handoff", "inference", "policy", "gate", "publish", "obs_to_command", "world", "period")
_KEYS = tuple(f"{stage}_s" for stage in _STAGES)  # of `durations_ns`, in its order
_NAMES = tuple(slot.name.lower() for slot in Slot if slot is not Slot.RETURNED)
