"""Qualities, severities, gate declarations, and end reasons by precedence."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple


class Quality(IntEnum):
    """The quality of a sensor reading or of a measured duration."""

    OK = 0
    STALE = 1  # older than max_age_s; the last valid value is held
    INVALID = 2  # malformed or not finite; the last valid value is held
    LOST = 3  # the world stopped responding; the last valid value is held
    OUT_OF_RANGE = 4  # outside the declared range; passed on unclipped
    FUTURE = 5  # stamped later than now; never treated as fresh
    ZERO_STAMP = 6  # no stamp in the message
    NEGATIVE = 7  # a negative duration: its two clocks disagree
    FIRST = 8  # first step of an episode: measured since the reset returned
    UNMARKED = 9  # the agent did not mark the end of its inference: an upper bound
    UNKNOWN = 10  # a stamp of this stage is missing
    UNSYNCED = 11  # the clocks are not known to agree, or their error exceeds the value
    FALLBACK_SOURCE = 12  # no stamp in the message: its publication stamp is used
    FALLBACK_RECEIVED = 13  # no publication stamp either: its arrival is used
    JUMP = 14  # a clock was set between the two stamps
    DECLARED = 15  # declared or from a calibration, not measured now
    MISSING = 16  # no message; the last valid value is held


class Severity(IntEnum):
    """The effect of a gate on a step, whose disposition is the maximum over its gates."""

    PASS = 0
    LIMIT = 1  # modified; the agent is still in control
    HOLD = 2  # action discarded; brake within the limits for this tick
    STOP = 3  # brake, end the episode, latched until reset()
    ESTOP = 4  # latched until cleared out of band


class Code(NamedTuple):
    """A reason that a gate reports."""

    number: int  # in recorded runs and numeric infos: never changed or reused
    severity: Severity  # the highest of its findings
    meaning: str  # in words
    remedy: str = ""  # what an operator does after a stop

    @property
    def next_step(self) -> str:
        """The steps of an operator from a stop to the next episode, or "" without a remedy."""
        call = AFTER_ESTOP if self.severity is Severity.ESTOP else "then call reset()"
        return f"{self.remedy}, {call}" if self.remedy else ""


class Gate(NamedTuple):
    """A place in the chain, with its texts for ``docs/concepts/safety_gate.md``."""

    name: str
    condition: str
    result: str
    codes: Mapping[str, Code]


AFTER_ESTOP = "then call clear_estop() and reset(), which runs the whole reset again, homing included"
"""The remedy once an operator has resolved the cause of an ESTOP."""

TERMINATED_REASONS = ("success", "failure", "horizon")
TRUNCATED_REASONS = (
    "safety_stop",
    "backend_lost",
    "task_error",
    "sensor_gap",
    "policy_lost",
    "out_of_bounds",
    "time_limit",
)
END_REASONS = (*TERMINATED_REASONS, *TRUNCATED_REASONS)
"""Kinds of end reasons by precedence; a reason is a kind, or a kind with ``:<why>``."""


def end_kind(reason: str) -> str:
    """Return the kind of an end reason, which is the part before its colon."""
    return reason.partition(":")[0]


def order_end_reasons(reasons: list[str]) -> tuple[str, ...]:
    """Sort simultaneous reasons by precedence, so that the first is ``info["end_reason"]``."""
    return tuple(sorted(reasons, key=lambda reason: END_REASONS.index(end_kind(reason))))
