"""The fixed codes of an account: qualities, severities, gate codes, and end reasons in their order of precedence."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum


class Quality(IntEnum):
    """What is known about a value: a sensor's reading, or a measured duration."""

    OK = 0
    STALE = 1  # older than max_age_s; the last valid value is handed out
    INVALID = 2  # the message was malformed or not finite; the last valid value is handed out
    LOST = 3  # the world stopped answering; the last valid value is handed out
    OUT_OF_RANGE = 4  # a real reading outside the declared range; handed out as it is, never clipped
    FUTURE = 5  # stamped later than now; never treated as fresh
    ZERO_STAMP = 6  # the message carried no stamp
    NEGATIVE = 7  # a duration came out negative: its two clocks disagree
    FIRST = 8  # the first step of an episode: measured since the reset returned
    UNMARKED = 9  # the agent did not mark the end of its policy: an upper bound
    UNKNOWN = 10  # a stamp that this stage needs was not there
    UNSYNCED = 11  # the stamps are of clocks that are not known to agree, or agree less than the value is long
    FALLBACK_SOURCE = 12  # the message carried no stamp: that of its publication stands for it
    FALLBACK_RECEIVED = 13  # nor was its publication stamped: its arrival stands for it
    JUMP = 14  # a clock was set between the two stamps
    DECLARED = 15  # not measured now: somebody declared it, or a calibration found it


class Severity(IntEnum):
    """How far a gate went. The disposition of a step is the maximum over its gates."""

    PASS = 0
    LIMIT = 1  # modified; the agent is still in control
    HOLD = 2  # the action was discarded; brake within the limits for this tick
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
"""Why a gate fired: the code in reports and in ``end_reason``, and its number in ``info["safety"]["code"]``."""


TERMINATED_REASONS = ("success", "failure", "horizon")
TRUNCATED_REASONS = ("safety_stop", "backend_lost", "sensor_gap", "out_of_bounds", "time_limit")
END_REASONS = (*TERMINATED_REASONS, *TRUNCATED_REASONS)
"""Every way to end, in the order of precedence; a reason is one of them, or one of them with ``:<why>``."""


def end_kind(reason: str) -> str:
    """Return the kind of an end reason: ``"failure:fell"`` -> ``"failure"``."""
    return reason.partition(":")[0]


def order_end_reasons(reasons: list[str]) -> tuple[str, ...]:
    """Sort the reasons that hold at once by precedence; the first is ``info["end_reason"]``."""
    return tuple(sorted(reasons, key=lambda reason: END_REASONS.index(end_kind(reason))))
