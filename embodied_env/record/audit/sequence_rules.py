"""The rules across rows: functions of two rows of one episode, the second right after the first.

Both are sound in their structure and have an account. The first may be the row of the reset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from embodied_env.contract import Contract
from embodied_env.contract.schema import is_latched
from embodied_env.contract.spaces import ActionLayout, field_layouts
from embodied_env.core.codes import Severity, end_kind
from embodied_env.record.audit.sensor_rules import GOOD, moves_by_itself, ns_of
from embodied_env.record.audit.violation import Violation, make_violation
from embodied_env.record.rows import RESET, Row

Contracted = Contract | None
Pair = Callable[[Row, Row, Contracted], Iterator[Violation]]

_LEEWAY = 2  # control periods, for a world whose clock is not the one that the reset was timed by
_SLACK = 1e-6  # for the rounding of a difference that is divided
_EXPLAINED = 0.9


def is_reset(row: Row) -> bool:
    """Say whether it is the row of a reset."""
    return row.get("schema") == RESET


# ----------------------------------------------------------------------------------------------------------- the clocks


def _chain(before: Row, row: Row, _: Contracted) -> Iterator[Violation]:
    """What a step calls the stamps of the step before are the stamps of the step before."""
    if "inner" not in row or is_reset(before) or "inner" not in before:
        return
    earlier, now = before["inner"]["stamps_ns"], row["inner"]["stamps_ns"]
    for name in ("observed", "entered"):
        where = f"inner.stamps_ns.previous_{name}"
        if now[f"previous_{name}"] != earlier[name]:
            text = f"{where} is {now[f'previous_{name}']}, but the step before it has {name} at {earlier[name]}"
            yield make_violation("stamps.chain", where, now[f"previous_{name}"], text)
            return


def _origin(before: Row, row: Row, _: Contracted) -> Iterator[Violation]:
    """All stamps of an episode count from the same instant: that of its reset."""
    if "inner" not in row or is_reset(before) or "inner" not in before:
        return
    for name, told in row["info"]["sensors"].items():
        if name in before["info"]["sensors"] and all(name in each["inner"]["sensors"] for each in (before, row)):
            origins = [
                each["inner"]["sensors"][name]["stamp_ns"] - each["info"]["sensors"][name]["stamp_ns"]
                for each in (before, row)
            ]
            if origins[0] != origins[1]:
                where = f"info.sensors.{name}.stamp_ns"
                text = f"{where} counts from {origins[1]} ns, but that of the step before from {origins[0]} ns"
                yield make_violation("clock.origin", where, told["stamp_ns"], text)
            return


def _world_time(before: Row, row: Row, contract: Contracted) -> Iterator[Violation]:
    """A world that waits moves by one control period at each step; one that does not never goes back."""
    earlier_ns, now_ns = _now_ns(before), _now_ns(row)
    if earlier_ns is None or now_ns is None or _is_lost(row):
        return
    passed_ns = now_ns - earlier_ns
    where = "the time of the world"
    if moves_by_itself(row["info"]):
        if passed_ns < 0 and not _clock_was_set(before, row):
            text = f"{where} is {now_ns} ns since the reset, {-passed_ns} ns before the step before it"
            yield make_violation("clock.world", "info.sensors", now_ns, text)
    elif contract is not None and passed_ns != contract.control_period_ns:
        text = f"{where} went on by {passed_ns} ns; allowed: one control period, {contract.control_period_ns} ns"
        yield make_violation("period.lockstep", "info.sensors", passed_ns, text)


def _now_ns(row: Row) -> int | None:
    """Return the world's time of a row since the reset; None: it tells of no sensor."""
    sensor = next(iter(row["info"]["sensors"].values()), None)
    return None if sensor is None else sensor["stamp_ns"] + ns_of(sensor["age_s"])


def _is_lost(row: Row) -> bool:
    """Say whether the world was lost: what is told of it is of the step before."""
    reasons = row["inner"]["end_reasons"] if "inner" in row else [row["info"]["end_reason"]]
    return any(end_kind(reason) == "backend_lost" for reason in reasons)


def _clock_was_set(before: Row, row: Row) -> bool:
    """Say whether a clock was set between the two rows."""
    clock = row["info"]["latency"].get("clock", {})
    earlier = before["info"].get("latency", {}).get("clock", {})
    was_noticed = "inner" in row and bool((row["inner"]["clock"] or {}).get("jump"))
    return was_noticed or clock.get("jumps", 0) != earlier.get("jumps", 0)


# --------------------------------------------------------------------------------------------------------- the readings


def _frames(before: Row, row: Row, _: Contracted) -> Iterator[Violation]:
    """Of each sensor, stamps and numbers only grow, and a new number is a new stamp."""
    if _clock_was_set(before, row):
        return
    for name, now in row["info"]["sensors"].items():
        earlier = before["info"]["sensors"].get(name)
        if earlier is None or now["quality"] not in GOOD or earlier["quality"] not in GOOD:
            continue
        where = f"info.sensors.{name}"
        if now["stamp_ns"] < earlier["stamp_ns"]:
            text = f"{where}.stamp_ns is {now['stamp_ns']}, before that of the row before, {earlier['stamp_ns']}"
            yield make_violation("frame.back", f"{where}.stamp_ns", now["stamp_ns"], text)
        elif now["seq"] < earlier["seq"]:
            text = f"{where}.seq is {now['seq']}, but that of the row before is {earlier['seq']}"
            yield make_violation("frame.seq", f"{where}.seq", now["seq"], text)
        elif now["seq"] > earlier["seq"] and now["stamp_ns"] == earlier["stamp_ns"]:
            text = f"{where}.stamp_ns is {now['stamp_ns']} again, but seq went from {earlier['seq']} to {now['seq']}"
            yield make_violation("frame.repeated", f"{where}.stamp_ns", now["stamp_ns"], text)


def _held(before: Row, row: Row, contract: Contracted) -> Iterator[Violation]:
    """What is not a good reading is the last one that was, bit for bit: nothing is made up."""
    if contract is None or is_reset(before):
        return
    (where, now), (_, earlier) = _seen(row), _seen(before)
    if not isinstance(now, dict) or not isinstance(earlier, dict):
        return
    for name, sensor in row["info"]["sensors"].items():
        if sensor["quality"] in GOOD or name not in contract.sensors:
            continue
        for layout in field_layouts(name, contract.sensors[name]):
            if layout.key in now and layout.key in earlier and now[layout.key] != earlier[layout.key]:
                text = f"{where}.{layout.key} has changed, though {name} had no good reading: it must be held"
                yield make_violation("frame.held", f"{where}.{layout.key}", now[layout.key], text)


def _seen(row: Row) -> tuple[str, Any]:
    return ("inner.observation", row["inner"]["observation"]) if "inner" in row else ("observation", row["observation"])


# ------------------------------------------------------------------------------------------------------------ the reset


def _leaked(before: Row, row: Row, contract: Contracted) -> Iterator[Violation]:
    """What a reset returned was read after it began."""
    if not is_reset(before) or contract is None:
        return
    is_free = moves_by_itself(row["info"])
    lasted_ns = ns_of(before["info"]["reset"]["duration_s"]) + _LEEWAY * contract.control_period_ns
    for name, sensor in before["info"]["sensors"].items():
        spec = contract.sensors.get(name)
        is_known = sensor["quality"] in GOOD and not sensor.get("stamp_quality", 0)
        if spec is None or not is_known or is_latched(spec.qos):
            continue
        if (is_free and ns_of(sensor["age_s"]) > lasted_ns) or (not is_free and sensor["stamp_ns"] < 0):
            where = f"info.sensors.{name}.stamp_ns"
            text = (
                f"{where} of the reset is {sensor['stamp_ns']}, {sensor['age_s']} s old: "
                f"it was read before the reset, which took {before['info']['reset']['duration_s']} s"
            )
            yield make_violation("reset.leak", where, sensor["stamp_ns"], text)


def _latched(before: Row, row: Row, _: Contracted) -> Iterator[Violation]:
    """A STOP that was latched in the episode before is none at the first step of this one."""
    if not is_reset(before) or "inner" not in row or row["info"]["safety"]["watchdog"]["trips"]:
        return
    if any(finding["code"] == "latch.stop" for finding in row["inner"]["findings"]):
        text = "inner.findings has latch.stop at the first step: what was latched before the reset was kept"
        yield make_violation("reset.latched", "inner.findings", "latch.stop", text)


PAIRS: tuple[Pair, ...] = (_chain, _origin, _world_time, _frames, _held, _leaked, _latched)


class Limits:
    """What was applied lies inside the contract's limits, and one step leads to the next within its speed.

    Only where the gates say that they guaranteed it, and only while nobody else moved the robot in between. In a dry
    run no step leads to the next: each is held against the reference that it was judged from.
    """

    def __init__(self, contract: Contract) -> None:
        """Look the limits up once."""
        layout = ActionLayout(contract)
        bounds = (layout.limits.position_low, layout.limits.position_high, layout.limits.velocity)
        values = zip(*(bound.tolist() for bound in bounds), layout.is_velocity.tolist(), strict=True)
        self._limits = dict(zip(layout.joints, values, strict=True))

    def check(self, before: Row | None, row: Row, *, is_dry: bool = False) -> Iterator[Violation]:
        """Compare `row` with the limits, and with the transition right before it."""
        guaranteed, applied = row["info"]["safety"]["guaranteed"], row["info"]["action"]["applied_si"]
        reached = self._moved_from_reference(row) if is_dry else self._moved_from(before, row)
        for joint, value in applied.items():
            if joint not in self._limits or value is None:
                continue
            low, high, most, is_velocity = self._limits[joint]
            where = f"info.action.applied_si.{joint}"
            if guaranteed["position"] and not is_velocity and not low - _SLACK <= value <= high + _SLACK:
                yield make_violation("limits.position", where, value, f"{where} is {value}; allowed: {low} to {high}")
            speed = value if is_velocity else reached.get(joint)
            if guaranteed["velocity"] and speed is not None and abs(speed) > most * (1 + _SLACK) + _SLACK:
                text = f"{where} is {value}, which makes a velocity of {speed}; allowed: {most} either way"
                yield make_violation("limits.velocity", where, value, text)

    def _moved_from_reference(self, row: Row) -> dict[str, float]:
        """Return the velocities that a command makes from the reference in its own row."""
        reference, dt_s = row["inner"]["circumstances"]["reference"], row["info"]["safety"]["dt_s"]
        if reference is None or not dt_s > 0:
            return {}
        now, start = row["info"]["action"]["applied_si"], zip(self._limits, reference["positions"], strict=True)
        return {joint: (now[joint] - a) / dt_s for joint, a in start if now[joint] is not None and a is not None}

    @staticmethod
    def _moved_from(before: Row | None, row: Row) -> dict[str, float]:
        """Return the velocities that two commands make; none where another hand may have moved the robot."""
        if before is None:
            return {}
        earlier, now = before["info"]["action"]["applied_si"], row["info"]["action"]["applied_si"]
        trips = [each["info"]["safety"]["watchdog"]["trips"] for each in (before, row)]
        dt_s = row["info"]["safety"]["dt_s"]
        if trips[0] != trips[1] or not dt_s > 0 or _is_braked(row) or _has_gap(before, row):
            return {}
        pairs = {joint: (earlier.get(joint), value) for joint, value in now.items()}
        return {joint: (b - a) / dt_s for joint, (a, b) in pairs.items() if a is not None and b is not None}


def _has_gap(before: Row, row: Row) -> bool:
    """Say whether more time lies between two commands than the later was limited for: another hand may have moved."""
    if not moves_by_itself(row["info"]):
        return False
    if "inner" not in row or "inner" not in before:
        return True
    earlier_ns, now_ns = (each["inner"]["stamps_ns"]["published"] for each in (before, row))
    limited_s: float = row["info"]["safety"]["dt_s"]
    return ns_of(limited_s) < _EXPLAINED * float(now_ns - earlier_ns)


def _is_braked(row: Row) -> bool:
    """Say whether the watchdog, or a relay that heard nothing, may have moved the robot before this command."""
    findings = row["inner"]["findings"] if "inner" in row else ()
    is_stopped = row["info"]["safety"]["disposition"] >= Severity.STOP
    return is_stopped or any(finding["code"].startswith(("wd.", "relay.")) for finding in findings)
