"""The rules of an account: functions that take a row whose structure is sound and yield what contradicts in it.

Two principles. The environment's account is held against itself (and a contract), and what the outermost wrapper was
given and returned is held against the account: so a difference has one name. And of two values that contradict each
other the derived one is blamed: what the gates found, the raw stamps and the reasons to end are taken as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from embodied_env.contract.fingerprint import differences
from embodied_env.core.codes import CODES, TERMINATED_REASONS, TRUNCATED_REASONS, Severity, end_kind, order_end_reasons
from embodied_env.core.outcome_counts import solved_at_reset
from embodied_env.record.audit.latency_rules import known_stages, sensor_stages, stages, stamps, total, total_of_info
from embodied_env.record.audit.sensor_rules import accounts
from embodied_env.record.audit.violation import Violation, make_violation, short_repr
from embodied_env.record.rows import FIELDS, Row
from embodied_env.record.schema import gates

_OUTSIDE = {
    "observation": "outside.observation",
    "action": "outside.action",
    "reward": "outside.reward",
    "terminated": "outside.terminated",
    "truncated": "outside.truncated",
}
"""Field -> the rule that an outer wrapper breaks which changes it."""
_TELLING = ("latency", "intervention", "joint_limits")
"""Gates that may say something without doing anything."""

# ------------------------------------------------------------------------------------------- the outside and the inside


def _outside(row: Row) -> Iterator[Violation]:
    """The outermost wrapper was given and returned what the environment was given and returned."""
    for field in FIELDS[:-1]:
        if changes := differences(row[field], row["inner"][field], field):
            where, outer, inner = changes[0]
            others = f" (and {len(changes) - 1} more differences)" if len(changes) > 1 else ""
            did = "was given" if field == "action" else "returned"
            text = f"{where} is {short_repr(outer)}, but the environment {did} {short_repr(inner)}{others}: "
            yield make_violation(_OUTSIDE[field], where, outer, f"{text}an outer wrapper changed it")


# --------------------------------------------------------------------------------------------------------- the ending


def _ending(row: Row) -> Iterator[Violation]:
    """The flags, end_reason and is_success say what the reasons to end say."""
    info = row["info"]
    reason = _end_reason(row)
    where, flags = ("inner.", row["inner"]) if "inner" in row else ("", row)
    for flag, kinds in (("terminated", TERMINATED_REASONS), ("truncated", TRUNCATED_REASONS)):
        if flags[flag] != (end_kind(reason) in kinds):
            text = f"{where}{flag} is {flags[flag]}, but the end reason is {reason!r}; {flag}: {', '.join(kinds)}"
            yield make_violation("ending.flags", f"{where}{flag}", flags[flag], text)
    if info["end_reason"] != reason:
        text = f"info.end_reason is {info['end_reason']!r}, but the first of inner.end_reasons is {reason!r}"
        yield make_violation("ending.reason", "info.end_reason", info["end_reason"], text)
    if info["is_success"] != (reason == "success"):
        text = f"info.is_success is {info['is_success']}, but the end reason is {reason!r}"
        yield make_violation("ending.success", "info.is_success", info["is_success"], text)


def _end_reason(row: Row) -> str:
    reason: str = (row["inner"]["end_reasons"] or [""])[0] if "inner" in row else row["info"]["end_reason"]
    return reason


def verdict_of_reset(row: Row) -> Iterator[Violation]:
    """What info says of the reset's verdict is what the task said of it."""
    solved, told = solved_at_reset(row["inner"]), row["info"]["reset"]
    for key, expected in (("judged", solved is not None), ("solved", solved is True)):
        if told[key] != expected:
            text = f"info.reset.{key} is {told[key]}, but inner.verdict makes it {expected}"
            yield make_violation("reset.solved", f"info.reset.{key}", told[key], text)


def solved_in_place(row: Row) -> Iterator[Violation]:
    """The world was left as it was, and the task was solved already: likely by the episode before."""
    if row["inner"]["level"] == "none" and solved_at_reset(row["inner"]):
        text = "info.reset.solved is true, and the level of the reset is none: the task was solved before the episode"
        yield make_violation("reset.solved_in_place", "info.reset.solved", True, text)


def _reasons(row: Row) -> Iterator[Violation]:
    """The reasons to end stand in their order."""
    reasons = row["inner"]["end_reasons"]
    if (ordered := list(order_end_reasons(reasons))) != reasons:
        text = f"inner.end_reasons is {reasons}; allowed: in the order {ordered}"
        yield make_violation("ending.order", "inner.end_reasons", reasons, text)


# ---------------------------------------------------------------------------------------------------------- the gates


def _gates(row: Row) -> Iterator[Violation]:
    """The arrays and the disposition say what the gates found."""
    safety = row["info"]["safety"]
    severity, code = [0] * len(gates()), [0] * len(gates())
    for finding in row["inner"]["findings"]:
        gate, level = gates().index(finding["gate"]), Severity[finding["severity"]]
        if level >= severity[gate]:
            severity[gate], code[gate] = int(level), CODES[finding["code"]]
    for key, expected in (("severity", severity), ("code", code), ("disposition", max(severity))):
        if safety[key] != expected:
            text = f"info.safety.{key} is {safety[key]}, but inner.findings make it {expected}"
            yield make_violation("gates.account", f"info.safety.{key}", safety[key], text)
    disposition = row["inner"]["report"]["disposition"]
    if Severity[disposition] != max(severity):
        text = f"inner.report.disposition is {disposition}, but inner.findings make it {Severity(max(severity)).name}"
        yield make_violation("gates.account", "inner.report.disposition", disposition, text)


def _gates_of_info(row: Row) -> Iterator[Violation]:
    """The disposition is the gravest of the gates; a gate has a code when it fired."""
    safety = row["info"]["safety"]
    if safety["disposition"] != max(safety["severity"]):
        text = f"but the gravest of info.safety.severity is {max(safety['severity'])}"
        text = f"info.safety.disposition is {safety['disposition']}, {text}"
        yield make_violation("gates.account", "info.safety.disposition", safety["disposition"], text)
    for gate, level, code in zip(gates(), safety["severity"], safety["code"], strict=True):
        if (code == 0 and level > 0) or (code > 0 and level == 0 and gate not in _TELLING):
            text = f"info.safety.code of {gate} is {code}, but its severity is {level}; allowed: both 0, or none"
            yield make_violation("gates.code", "info.safety.code", code, text)


def _clipping(row: Row) -> Iterator[Violation]:
    """action_clipped says whether the gates stepped in, and so whether what was applied is what was requested."""
    info = row["info"]
    guaranteed = {"guaranteed": info["safety"]["guaranteed"]}
    report = row["inner"]["report"] if "inner" in row else {**info["action"], **guaranteed}
    disposition = _disposition(row)
    least = Severity.LIMIT if any(report["guaranteed"].values()) else Severity.HOLD  # a gate that only monitors
    saying = {"info.action_clipped": info["action_clipped"], "info.safety.intervened": info["safety"]["intervened"]}
    for name, said in saying.items():
        if said != (disposition >= least):
            text = f"{name} is {said}, but the disposition is {disposition.name}; clipped: from {least.name} on"
            yield make_violation("clipping.said", name, said, text)
    requested, applied = report["requested"], report["applied"]
    if disposition is Severity.PASS and applied != requested:
        text = f"what was applied is {short_repr(applied)}, but no gate fired and {short_repr(requested)} was requested"
        yield make_violation("clipping.hidden", "info.action.applied", applied, text)
    if disposition is least is Severity.LIMIT and applied == requested and not _has_changed_something(row):
        text = f"what was applied is {short_repr(applied)}, just as requested, but the disposition is LIMIT"
        yield make_violation("clipping.idle", "info.action.applied", applied, text)


def _has_changed_something(row: Row) -> bool:
    """Whether a finding moved a value; without findings it may have, by less than shows in action units."""
    return "inner" not in row or any(any(finding["margin"] or ()) for finding in row["inner"]["findings"])


def _disposition(row: Row) -> Severity:
    if "inner" not in row:
        return Severity(row["info"]["safety"]["disposition"])
    return max((Severity[finding["severity"]] for finding in row["inner"]["findings"]), default=Severity.PASS)


def _report(row: Row) -> Iterator[Violation]:
    """What info says of the action is what the gates' report says."""
    action, safety, report = row["info"]["action"], row["info"]["safety"], row["inner"]["report"]
    saying = {f"action.{key}": (_flat(action[key]), report[key]) for key in ("requested", "applied", "applied_si")}
    saying |= {f"safety.{key}": (safety[key], report[key]) for key in ("dt_s", "guaranteed")}
    for name, (said, reported) in saying.items():
        if said != reported:
            text = f"info.{name} is {short_repr(said)}, but inner.report makes it {short_repr(reported)}"
            yield make_violation("action.account", f"info.{name}", said, text)


def _flat(action: Any) -> list[Any]:  # noqa: ANN401 - one vector, or a dict of vectors or of numbers
    if isinstance(action, dict):
        return [x for part in action.values() for x in (part if isinstance(part, list) else [part])]
    return list(action)


RULES: tuple[Callable[[Row], Iterator[Violation]], ...] = (
    _outside,
    _ending,
    _reasons,
    _gates,
    _clipping,
    _report,
    stamps,
    stages,
    sensor_stages,
    known_stages,
    total,
    accounts,
)
"""For a row with the environment's account."""

RULES_OF_INFO: tuple[Callable[[Row], Iterator[Violation]], ...] = (
    _ending,
    _gates_of_info,
    _clipping,
    known_stages,
    total_of_info,
)
"""For a row that has no more than what `step` returned."""
