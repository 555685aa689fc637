"""Fixed codes: qualities, severities, gate codes, and end reasons in their order of precedence."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum


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
    """The effect of a gate on a step; the disposition of the step is the maximum over its gates."""

    PASS = 0
    LIMIT = 1  # modified; the agent is still in control
    HOLD = 2  # action discarded; brake within the limits for this tick
    STOP = 3  # brake, end the episode, latched until reset()
    ESTOP = 4  # latched until cleared out of band


CODES: Mapping[str, int] = {
    "": 0,
    "latch.stop": 1,
    "latch.estop": 2,
    "form.nan": 10,
    "form.shape": 11,
    "form.type": 12,
    "form.repeated": 13,
    "form.none": 14,
    "box.clip": 20,
    "pos.limit": 30,
    "vel.limit": 31,
    "acc.limit": 32,
    "limits.infeasible": 33,
    "vel.gap": 34,
    "limits.tightened": 35,
    "clock.dt": 40,
    "clock.jump": 41,
    "clock.suspended": 42,
    "wd.hold": 50,
    "wd.stop": 51,
    "fault.internal": 60,
    "estop.active": 70,
    "estop.expired": 71,
    "estop.unknown": 72,
    "robot.protective_stop": 73,
    "robot.inactive": 74,
    "robot.contention": 75,
    "gripper.silent": 76,
    "robot.restarted": 77,
    "obs.stale": 80,
    "obs.future": 81,
    "obs.invalid": 82,
    "act.late": 90,
    "act.dup": 91,
    "act.epoch": 92,
    "act.jump": 93,
    "track.error": 100,
    "force.limit": 110,
    "jerk.limit": 120,
    "ws.keepout": 130,
    "gate.plugin": 140,
    "lat.budget": 150,
    "rate.intervention": 160,
    "relay.silent": 170,
}
"""Gate code, as in reports and ``end_reason`` -> its number in ``info["safety"]["code"]``."""


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

END_CODES: Mapping[str, int] = {
    **{reason: number for number, reason in enumerate(("", *END_REASONS))},
    **{f"safety_stop:{code}": 1000 + number for code, number in CODES.items() if code},
}
"""End reason -> its number in numeric infos; another reason has the number of its kind."""


def end_kind(reason: str) -> str:
    """Return the kind of an end reason: ``"failure:fell"`` -> ``"failure"``."""
    return reason.partition(":")[0]


def order_end_reasons(reasons: list[str]) -> tuple[str, ...]:
    """Sort simultaneous reasons by precedence; the first is ``info["end_reason"]``."""
    return tuple(sorted(reasons, key=lambda reason: END_REASONS.index(end_kind(reason))))
