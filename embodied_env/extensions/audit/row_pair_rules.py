"""Rules of two consecutive rows of one episode, the first of which may be the reset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from embodied_env.contract import Contract
from embodied_env.contract.qos_schema import is_latched
from embodied_env.contract.sensor_schema import AGES
from embodied_env.contract.spaces import ActionLayout, FieldLayout, field_layouts
from embodied_env.core.code_types import Severity, end_kind
from embodied_env.extensions.audit.contract_rules import end_reasons, observed, reference_of
from embodied_env.extensions.audit.latency_rules import USABLE, is_free_running, to_ns
from embodied_env.record.row_schema import Violation, check_equal, make_violation, wrong_value
from embodied_env.record.row_types import RESET, ReferenceRecord, ResetRow, StepRow
from embodied_env.timing.clock import NS_PER_S

AnyRow = StepRow | ResetRow
MaybeContract = Contract | None
_RESET_MARGIN = 2  # control periods, for a world whose clock is not the one that timed the reset
_OLDEST_S = 1e9  # age of the oldest reading
_TOLERANCE = 1e-6  # for the rounding of a difference that is divided
_EXPLAINED_SHARE = 0.9  # share of the time between two commands


def _check_stamp_chain(before: AnyRow, row: StepRow, _: MaybeContract) -> Iterator[Violation]:
    if row["inner"] is None or before["schema"] == RESET or before["inner"] is None:
        return
    earlier: Mapping[str, Any] = before["inner"]["stamps_ns"]
    now: Mapping[str, Any] = row["inner"]["stamps_ns"]
    for name in ("observed", "entered"):
        stamp_ns, where = now[f"previous_{name}"], f"inner.stamps_ns.previous_{name}"
        yield from check_equal("stamps.chain", where, stamp_ns, earlier[name], f", {name} of the previous step")


def _check_origin(before: AnyRow, row: StepRow, _: MaybeContract) -> Iterator[Violation]:
    """Check that all stamps of an episode count from the same instant."""
    if row["inner"] is None or before["schema"] == RESET or before["inner"] is None:
        return
    samples, earlier, earlier_samples = row["inner"]["sensors"], before["info"]["sensors"], before["inner"]["sensors"]
    for name, sensor in row["info"]["sensors"].items():
        if name in samples and name in earlier and name in earlier_samples:
            origins = [
                earlier_samples[name]["stamp_ns"] - earlier[name]["stamp_ns"],
                samples[name]["stamp_ns"] - sensor["stamp_ns"],
            ]
            if origins[0] != origins[1]:
                where = f"info.sensors.{name}.stamp_ns"
                text = f"{where} counts from {origins[1]} ns (expected {origins[0]} ns, as in the previous step)"
                yield make_violation("clock.origin", where, sensor["stamp_ns"], text)
            return


def _check_world_time(before: AnyRow, row: StepRow, contract: MaybeContract) -> Iterator[Violation]:
    """Check that a lockstep world moves by one period, and a free-running one never back."""
    earlier_ns, now_ns = _now_ns(before), _now_ns(row)
    is_lost = "backend_lost" in map(end_kind, end_reasons(row))  # then the row repeats the step before
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


def _now_ns(row: AnyRow) -> int | None:
    """Return the world time since the reset, or None for a row without sensors."""
    sensor = next(iter(row["info"]["sensors"].values()), None)
    return None if sensor is None else sensor["stamp_ns"] + to_ns(sensor["age_s"])


def _clock_was_set(before: AnyRow, row: StepRow) -> bool:
    """Return whether the record has a clock that was set between the two rows."""
    clock = None if row["inner"] is None else row["inner"]["clock"]
    earlier = 0 if before["schema"] == RESET else _jumps(before)
    return (clock is not None and clock["jump"] != "") or _jumps(row) != earlier


def _jumps(row: StepRow) -> int:
    latency = row["info"]["latency"]
    return latency["clock"]["jumps"] if "clock" in latency else 0


def _check_reading_order(before: AnyRow, row: StepRow, _: MaybeContract) -> Iterator[Violation]:
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


def _check_held(before: AnyRow, row: StepRow, contract: MaybeContract) -> Iterator[Violation]:
    """Check that without a usable reading the last one is held, bit for bit."""
    (where, now), (_, earlier) = observed(row), observed(before)
    if contract is None or before["schema"] == RESET or not isinstance(now, dict) or not isinstance(earlier, dict):
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
    """Return a field's newest reading in an observation, or None for a referenced history."""
    if layout.history is None:
        return value
    return value[-1] if isinstance(value, list) and value else None


def _check_history(before: AnyRow, row: StepRow, contract: MaybeContract) -> Iterator[Violation]:
    """Check that a history moves by one reading per step, ages, and ends with the newest."""
    (where, now), (_, earlier) = observed(row), observed(before)
    sensors, now_ns, earlier_ns = row["info"]["sensors"], _now_ns(row), _now_ns(before)
    if contract is None or not isinstance(now, dict) or not isinstance(earlier, dict):
        return
    specs = [(name, contract.sensors[name]) for name in sensors if name in contract.sensors]
    for layout in (each for name, spec in specs for each in field_layouts(name, spec) if each.history is not None):
        values, ages_s = now.get(layout.key), now.get(f"{layout.key}{AGES}")
        known, known_ages_s = earlier.get(layout.key), earlier.get(f"{layout.key}{AGES}")
        if before["schema"] == RESET:  # its account has the reading alone
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
    """Return the stamps of readings of these ages, or none if they are not known."""
    are_known = isinstance(ages_s, list) and all(isinstance(x, (int, float)) and abs(x) < _OLDEST_S for x in ages_s)
    return [now_ns - to_ns(age_s) for age_s in ages_s] if are_known and now_ns is not None else []


def _check_observed_options(before: AnyRow, row: StepRow, contract: MaybeContract) -> Iterator[Violation]:
    """Check that the observed reset options are those of the reset, in every step."""
    if contract is None or row["inner"] is None:
        return
    where, now = observed(row)
    earlier = before["info"]["reset"]["sampled"] if before["schema"] == RESET else observed(before)[1]
    if not isinstance(now, dict) or not isinstance(earlier, dict):
        return
    for name, option in contract.reset_options.items():
        if option.observed and name in now and name in earlier:
            drawn = earlier[name] if isinstance(earlier[name], list) else [earlier[name]]
            yield from check_equal("option.observed", f"{where}.{name}", now[name], drawn, ", as drawn at the reset")


def _check_reset_readings(before: AnyRow, row: StepRow, contract: MaybeContract) -> Iterator[Violation]:
    """Check that the readings of a reset are newer than its start."""
    if before["schema"] != RESET or contract is None:
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


def _check_latch(before: AnyRow, row: StepRow, _: MaybeContract) -> Iterator[Violation]:
    """Check that a STOP latched before the reset is gone at the first step after it."""
    if before["schema"] != RESET or row["inner"] is None or row["info"]["safety"]["watchdog"]["trips"]:
        return
    if any(finding["code"] == "latch.stop" for finding in row["inner"]["findings"]):
        text = "inner.findings has latch.stop at the first step (expected the reset to clear the latch)"
        yield make_violation("reset.latched", "inner.findings", "latch.stop", text)


PAIR_RULES: tuple[Callable[[AnyRow, StepRow, MaybeContract], Iterator[Violation]], ...] = (
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
    """Applied actions are within the limits of the contract.

    Consecutive ones are within its velocity limits. They are checked only where the gates guaranteed it and no other
    source of motion was possible in between. In a dry run the commands do not follow each other: each is checked
    against the reference in its own row.
    """

    def __init__(self, contract: Contract) -> None:
        layout = ActionLayout(contract)
        keys = ("position_low", "position_high", "velocity_low", "velocity_high")
        bounds = (getattr(layout.limits, key).tolist() for key in keys)
        values = zip(*bounds, layout.is_velocity.tolist(), strict=True)
        self._limits = dict(zip(layout.joints, values, strict=True))

    def check(self, before: StepRow | None, row: StepRow, *, is_dry: bool = False) -> Iterator[Violation]:
        """Check `row` alone and after the transition before it."""
        guaranteed, applied = row["info"]["safety"]["guaranteed"], row["info"]["action"]["applied_si"]
        reference = reference_of(row) if is_dry and row["inner"] is not None else None
        if reference is not None and len(positions := reference["positions"]) != len(self._limits):
            where, expected = "inner.external_inputs.reference.positions", f"one for each of {', '.join(self._limits)}"
            yield wrong_value("row.shape", where, positions, expected)
        start = self._start(before, row, reference, is_dry=is_dry)
        velocities = _velocities(start, applied, row["info"]["safety"]["dt_s"])
        for joint, value in applied.items():
            if joint not in self._limits:
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

    def _start(
        self, before: StepRow | None, row: StepRow, reference: ReferenceRecord | None, *, is_dry: bool
    ) -> Mapping[str, float | None]:
        """Return the command before, or the reference in a dry run, from which that of `row` moves."""
        if is_dry:
            return {} if reference is None else dict(zip(self._limits, reference["positions"], strict=False))
        if before is None or _has_moved_otherwise(before, row, self._limits):
            return {}
        return before["info"]["action"]["applied_si"]


def _velocities(start: Mapping[str, float | None], end: Mapping[str, float], dt_s: float) -> dict[str, float]:
    begun = {joint: value for joint, value in start.items() if value is not None and joint in end}
    return {joint: (end[joint] - value) / dt_s for joint, value in begun.items()} if dt_s > 0 else {}


def _has_moved_otherwise(before: StepRow, row: StepRow, joints: Iterable[str]) -> bool:
    """Return whether a stop, watchdog or relay may have moved the robot between commands."""
    codes, earlier = ([] if x["inner"] is None else [f["code"] for f in x["inner"]["findings"]] for x in (row, before))
    safety = row["info"]["safety"]
    is_braked = safety["disposition"] >= Severity.STOP or any(code.startswith(("wd.", "relay.")) for code in codes)
    has_tripped = safety["watchdog"]["trips"] != before["info"]["safety"]["watchdog"]["trips"]
    if has_tripped or is_braked or "relay.silent" in earlier:  # the relay may have published another command
        return True
    if not is_free_running(row["info"]):
        return False
    if row["inner"] is None or before["inner"] is None:
        return True
    if row["info"].get("annotations", {}).keys() & {"setpoints", "trajectory"}:
        report, before_si = row["inner"]["report"], before["info"]["action"]["applied_si"]
        for joint, applied, velocity in zip(joints, report["applied_si"], report["velocity_si"], strict=False):
            start = before_si.get(joint)
            if applied is None or velocity is None or start is None:
                return True
            if abs(applied - velocity * report["dt_s"] - start) > _TOLERANCE:
                return True  # the motion between the steps did not follow the command before
    elapsed_ns = row["inner"]["stamps_ns"]["published"] - before["inner"]["stamps_ns"]["published"]
    return to_ns(safety["dt_s"]) < _EXPLAINED_SHARE * float(elapsed_ns)
