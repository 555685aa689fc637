"""Rules across rows: each takes two consecutive rows of one episode and yields contradictions between them.

Both rows fit their schema. The first may be that of the reset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from embodied_env.contract import Contract
from embodied_env.contract.contract_schema import AGES, is_latched
from embodied_env.contract.spaces import ActionLayout, FieldLayout, field_layouts
from embodied_env.core.codes import Severity, end_kind
from embodied_env.extensions.audit.contract_rules import inside, reference_of
from embodied_env.extensions.audit.latency_rules import USABLE, is_free_running, to_ns
from embodied_env.record.rows import RESET, Row
from embodied_env.record.violation import Violation, make_violation, wrong_value
from embodied_env.timing.clock import NS_PER_S

MaybeContract = Contract | None

_RESET_MARGIN = 2  # control periods, for a world whose clock is not the one that timed the reset
_OLDEST_S = 1e9  # of readings
_TOLERANCE = 1e-6  # for the rounding of a difference that is divided
_EXPLAINED_SHARE = 0.9  # of the time between two commands


def is_reset(row: Row) -> bool:
    """Return whether `row` is the row of a reset."""
    return row.get("schema") == RESET


def _check_stamp_chain(before: Row, row: Row, _: MaybeContract) -> Iterator[Violation]:
    if "inner" not in row or is_reset(before) or "inner" not in before:
        return
    earlier, now = before["inner"]["stamps_ns"], row["inner"]["stamps_ns"]
    for name in ("observed", "entered"):
        if (stamp := now[f"previous_{name}"]) != earlier[name]:
            expected = f"{earlier[name]}, {name} of the previous step"
            yield wrong_value("stamps.chain", f"inner.stamps_ns.previous_{name}", stamp, expected)
            return


def _check_origin(before: Row, row: Row, _: MaybeContract) -> Iterator[Violation]:
    """Check that all stamps of an episode count from the same instant."""
    if "inner" not in row or is_reset(before) or "inner" not in before:
        return
    for name, sensor in row["info"]["sensors"].items():
        if name in before["info"]["sensors"] and all(name in each["inner"]["sensors"] for each in (before, row)):
            origins = [
                each["inner"]["sensors"][name]["stamp_ns"] - each["info"]["sensors"][name]["stamp_ns"]
                for each in (before, row)
            ]
            if origins[0] != origins[1]:
                where = f"info.sensors.{name}.stamp_ns"
                text = f"{where} counts from {origins[1]} ns (expected {origins[0]} ns, as in the previous step)"
                yield make_violation("clock.origin", where, sensor["stamp_ns"], text)
            return


def _check_world_time(before: Row, row: Row, contract: MaybeContract) -> Iterator[Violation]:
    """Check that a lockstep world moves by one control period per step, and a free-running one never goes back."""
    earlier_ns, now_ns = _now_ns(before), _now_ns(row)
    reasons = row["inner"]["end_reasons"] if "inner" in row else [row["info"]["end_reason"]]
    is_lost = any(end_kind(reason) == "backend_lost" for reason in reasons)  # then the row repeats the step before
    if earlier_ns is None or now_ns is None or is_lost:
        return
    passed_ns = now_ns - earlier_ns
    if is_free_running(row["info"]):
        if passed_ns < 0 and not _clock_was_set(before, row):
            text = f"world time went back by {-passed_ns} ns, to {now_ns} ns since the reset"
            yield make_violation("clock.world", "info.sensors", now_ns, text)
    elif contract is not None and passed_ns != contract.control_period_ns:
        text = f"world time advanced by {passed_ns} ns (expected one control period, {contract.control_period_ns} ns)"
        yield make_violation("period.lockstep", "info.sensors", passed_ns, text)


def _now_ns(row: Row) -> int | None:
    """Return the world time since the reset, or None for a row without sensors."""
    sensor = next(iter(row["info"]["sensors"].values()), None)
    return None if sensor is None else sensor["stamp_ns"] + to_ns(sensor["age_s"])


def _clock_was_set(before: Row, row: Row) -> bool:
    """Return whether the record has a clock that was set between the two rows."""
    clock = row["info"]["latency"].get("clock", {})
    earlier = before["info"].get("latency", {}).get("clock", {})
    has_jumped = "inner" in row and bool((row["inner"]["clock"] or {}).get("jump"))
    return has_jumped or clock.get("jumps", 0) != earlier.get("jumps", 0)


def _check_reading_order(before: Row, row: Row, _: MaybeContract) -> Iterator[Violation]:
    """Check that stamps and sequence numbers of a sensor increase, and together."""
    if _clock_was_set(before, row):
        return
    for name, now in row["info"]["sensors"].items():
        earlier = before["info"]["sensors"].get(name)
        if earlier is None or now["quality"] not in USABLE or earlier["quality"] not in USABLE:
            continue
        where, stamp_ns, seq = f"info.sensors.{name}", now["stamp_ns"], now["seq"]
        if stamp_ns < earlier["stamp_ns"]:
            expected = f">= {earlier['stamp_ns']}, as in the previous row"
            yield wrong_value("frame.back", f"{where}.stamp_ns", stamp_ns, expected)
        elif seq < earlier["seq"]:
            yield wrong_value("frame.seq", f"{where}.seq", seq, f">= {earlier['seq']}, as in the previous row")
        elif seq > earlier["seq"] and stamp_ns == earlier["stamp_ns"]:
            expected = f"a new stamp, because seq went from {earlier['seq']} to {seq}"
            yield wrong_value("frame.repeated", f"{where}.stamp_ns", stamp_ns, expected)


def _check_held(before: Row, row: Row, contract: MaybeContract) -> Iterator[Violation]:
    """Check that without a usable reading the last one is held, bit for bit."""
    (where, now), (_, earlier) = inside(row, "observation"), inside(before, "observation")
    if contract is None or is_reset(before) or not isinstance(now, dict) or not isinstance(earlier, dict):
        return
    for name, sensor in row["info"]["sensors"].items():
        if sensor["quality"] in USABLE or name not in contract.sensors:
            continue
        for layout in field_layouts(name, contract.sensors[name]):
            newest = [_newest(each.get(layout.key), layout) for each in (now, earlier)]
            if layout.key in now and layout.key in earlier and newest[0] != newest[1]:
                text = f"{where}.{layout.key} has changed, though {name} had no good reading: it must be held"
                yield make_violation("frame.held", f"{where}.{layout.key}", now[layout.key], text)


def _newest(value: Any, layout: FieldLayout) -> Any:  # noqa: ANN401 - JSON types
    """Return the newest reading of a field in an observation; None for a history that is a reference."""
    if layout.history is None:
        return value
    return value[-1] if isinstance(value, list) and value else None


def _check_history(before: Row, row: Row, contract: MaybeContract) -> Iterator[Violation]:
    """Check that a history moves by one reading in each step, that it ages, and that it ends with the newest."""
    (where, now), (_, earlier) = inside(row, "observation"), inside(before, "observation")
    sensors, now_ns, earlier_ns = row["info"]["sensors"], _now_ns(row), _now_ns(before)
    if contract is None or not isinstance(now, dict) or not isinstance(earlier, dict):
        return
    specs = [(name, contract.sensors[name]) for name in sensors if name in contract.sensors]
    for layout in (each for name, spec in specs for each in field_layouts(name, spec) if each.history is not None):
        values, ages_s = now.get(layout.key), now.get(f"{layout.key}{AGES}")
        known, known_ages_s = earlier.get(layout.key), earlier.get(f"{layout.key}{AGES}")
        if is_reset(before) and "inner" in before:  # its account has the reading alone
            known = [known] * (layout.history or 1)
            known_ages_s = [before["info"]["sensors"][layout.sensor]["age_s"]] * (layout.history or 1)
        if isinstance(values, list) and isinstance(known, list) and values[:-1] != known[1:]:
            text = f"{where}.{layout.key} does not continue the history of the previous row"
            yield make_violation("frame.history", f"{where}.{layout.key}", values, text)
        stamps, known_stamps = _stamps(ages_s, now_ns), _stamps(known_ages_s, earlier_ns)
        expected = [*known_stamps[1:], sensors[layout.sensor]["stamp_ns"]]
        if stamps and known_stamps and stamps != expected:
            key, old_s = f"{where}.{layout.key}{AGES}", [((now_ns or 0) - stamp) / NS_PER_S for stamp in expected]
            yield wrong_value("frame.history", key, ages_s, f"{old_s}, by the stamps of the readings")


def _stamps(ages_s: Any, now_ns: int | None) -> list[int]:  # noqa: ANN401 - JSON types
    """Return the stamps of readings of these ages; none if they are not known."""
    are_known = isinstance(ages_s, list) and all(isinstance(x, (int, float)) and abs(x) < _OLDEST_S for x in ages_s)
    return [now_ns - to_ns(age_s) for age_s in ages_s] if are_known and now_ns is not None else []


def _check_observed_options(before: Row, row: Row, contract: MaybeContract) -> Iterator[Violation]:
    """Check that the observed reset options are those of the reset, in every step."""
    if contract is None or "inner" not in row:
        return
    where, now = inside(row, "observation")
    earlier = before["info"]["reset"]["sampled"] if is_reset(before) else inside(before, "observation")[1]
    if not isinstance(now, dict) or not isinstance(earlier, dict):
        return
    for name, option in contract.reset_options.items():
        if option.observed and name in now and name in earlier:
            expected = earlier[name] if isinstance(earlier[name], list) else [earlier[name]]
            if now[name] != expected:
                yield wrong_value("option.observed", f"{where}.{name}", now[name], f"{expected}, as drawn at the reset")


def _check_reset_readings(before: Row, row: Row, contract: MaybeContract) -> Iterator[Violation]:
    """Check that the readings of a reset are newer than its start."""
    if not is_reset(before) or contract is None:
        return
    is_free, lasted_s = is_free_running(row["info"]), before["info"]["reset"]["duration_s"]
    max_age_ns = to_ns(lasted_s) + _RESET_MARGIN * contract.control_period_ns
    for name, sensor in before["info"]["sensors"].items():
        spec = contract.sensors.get(name)
        is_known = sensor["quality"] in USABLE and not sensor.get("stamp_quality", 0)
        if spec is None or not is_known or is_latched(spec.qos):
            continue
        if (is_free and to_ns(sensor["age_s"]) > max_age_ns) or (not is_free and sensor["stamp_ns"] < 0):
            where = f"info.sensors.{name}.stamp_ns"
            text = f"{where} of the reset is {sensor['age_s']} s old (expected a reading within its {lasted_s} s)"
            yield make_violation("reset.leak", where, sensor["stamp_ns"], text)


def _check_latch(before: Row, row: Row, _: MaybeContract) -> Iterator[Violation]:
    """Check that a STOP latched before the reset is gone at the first step after it."""
    if not is_reset(before) or "inner" not in row or row["info"]["safety"]["watchdog"]["trips"]:
        return
    if any(finding["code"] == "latch.stop" for finding in row["inner"]["findings"]):
        text = "inner.findings has latch.stop at the first step (expected the reset to clear the latch)"
        yield make_violation("reset.latched", "inner.findings", "latch.stop", text)


PAIR_RULES: tuple[Callable[[Row, Row, MaybeContract], Iterator[Violation]], ...] = (
    _check_stamp_chain,
    _check_origin,
    _check_world_time,
    _check_reading_order,
    _check_held,
    _check_history,
    _check_observed_options,
    _check_reset_readings,
    _check_latch,
)


class LimitRule:
    """Applied actions are within the limits of the contract, and consecutive ones within its velocity limits.

    Checked only where the gates guaranteed it and no other source of motion was possible in between. In a dry run the
    commands do not follow each other: each is checked against the reference in its own row.
    """

    def __init__(self, contract: Contract) -> None:
        layout = ActionLayout(contract)
        keys = ("position_low", "position_high", "velocity_low", "velocity_high")
        bounds = (getattr(layout.limits, key).tolist() for key in keys)
        values = zip(*bounds, layout.is_velocity.tolist(), strict=True)
        self._limits = dict(zip(layout.joints, values, strict=True))

    def check(self, before: Row | None, row: Row, *, is_dry: bool = False) -> Iterator[Violation]:
        """Check `row` alone and after the transition before it."""
        guaranteed, applied = row["info"]["safety"]["guaranteed"], row["info"]["action"]["applied_si"]
        velocities = self._velocities(before, row, is_dry=is_dry)
        reference = reference_of(row) if is_dry else None
        if reference is not None and len(positions := reference["positions"]) != len(self._limits):
            where, expected = "inner.external_inputs.reference.positions", f"one for each of {', '.join(self._limits)}"
            yield wrong_value("row.shape", where, positions, expected)
        for joint, value in applied.items():
            if joint not in self._limits or value is None:
                continue
            low, high, slowest, fastest, is_velocity = self._limits[joint]
            where = f"info.action.applied_si.{joint}"
            if guaranteed["position"] and not is_velocity and not low - _TOLERANCE <= value <= high + _TOLERANCE:
                yield wrong_value("limits.position", where, value, f"{low} to {high}")
            velocity = value if is_velocity else velocities.get(joint)
            if not guaranteed["velocity"] or velocity is None:
                continue
            share = 1 + _TOLERANCE
            if not slowest * share - _TOLERANCE <= velocity <= fastest * share + _TOLERANCE:
                text = f"{where} is {value}, at a velocity of {velocity} (expected {slowest} to {fastest})"
                yield make_violation("limits.velocity", where, value, text)

    def _velocities(self, before: Row | None, row: Row, *, is_dry: bool) -> dict[str, float]:
        """Return the velocity that each command makes from the one before, or from the reference in a dry run."""
        info = row["info"]
        dt_s, now = info["safety"]["dt_s"], info["action"]["applied_si"]
        if not dt_s > 0:
            return {}
        if is_dry:
            reference = reference_of(row)
            start = {} if reference is None else dict(zip(self._limits, reference["positions"], strict=False))
        elif before is None or _has_moved_otherwise(before, row):
            start = {}
        else:
            start = before["info"]["action"]["applied_si"]
        ends = {joint: (start.get(joint), value) for joint, value in now.items()}
        return {joint: (b - a) / dt_s for joint, (a, b) in ends.items() if a is not None and b is not None}


def _has_moved_otherwise(before: Row, row: Row) -> bool:
    """Return whether a stop, a watchdog or a relay may have moved the robot between the two commands."""
    trips = [each["info"]["safety"]["watchdog"]["trips"] for each in (before, row)]
    codes, earlier = (
        [finding["code"] for finding in each.get("inner", {}).get("findings", ())] for each in (row, before)
    )
    is_braked = row["info"]["safety"]["disposition"] >= Severity.STOP
    is_braked |= any(code.startswith(("wd.", "relay.")) for code in codes)
    if trips[0] != trips[1] or is_braked or "relay.silent" in earlier:  # the relay may have published another command
        return True
    if not is_free_running(row["info"]):
        return False
    if "inner" not in row or "inner" not in before:
        return True
    if row["info"].get("annotations", {}).keys() & {"setpoints", "trajectory"}:
        report, before_si = row["inner"]["report"], before["info"]["action"]["applied_si"].values()
        steps = zip(report["applied_si"], report["velocity_si"], before_si, strict=False)
        if any(None in step or abs(step[0] - step[1] * report["dt_s"] - step[2]) > _TOLERANCE for step in steps):
            return True  # the motion between the steps did not follow the command before
    earlier_ns, now_ns = (each["inner"]["stamps_ns"]["published"] for each in (before, row))
    limited_s: float = row["info"]["safety"]["dt_s"]
    return to_ns(limited_s) < _EXPLAINED_SHARE * float(now_ns - earlier_ns)
