"""Audit the fields, the schema, the consistency and the contract of one row.

A consistency rule takes a row that fits its schema. The environment's account (``inner``) is checked against itself,
and the values of the outermost wrapper against the account, so each difference breaks one rule. Of two contradicting
values the derived one is reported: findings, raw stamps and end reasons are taken as given.
"""

from __future__ import annotations

import itertools
import math
import numbers
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from embodied_env.contract import Contract
from embodied_env.contract.fingerprint import differences
from embodied_env.core.code_table import CODES, GATES
from embodied_env.core.code_types import TERMINATED_REASONS, TRUNCATED_REASONS, Severity, end_kind, order_end_reasons
from embodied_env.core.excluded_episodes import solved_at_reset
from embodied_env.extensions.audit.contract_rules import CONTRACT_RULES, RESET_CONTRACT_RULES, end_reasons
from embodied_env.extensions.audit.latency_rules import ACCOUNT_LATENCY_RULES, INFO_LATENCY_RULES, has_host_timing
from embodied_env.record.json_values import to_json_types
from embodied_env.record.row_schema import (
    Validated,
    Violation,
    check_equal,
    make_violation,
    short_repr,
    validate_as,
    validate_returned,
    wrong_value,
)
from embodied_env.record.row_types import ResetRow, ReturnedRow, StepRow, TransitionRow
from embodied_env.record.rows import FIELDS, given_action

_REPORTING = ("latency", "intervention", "joint_limits")  # gates that may report a code without changing the action


def audit_transition(row: Mapping[str, Any], contract: Contract | None = None) -> list[str]:
    """Return a message for each violation in `row`.

    The basic rules apply to any row. A row with one of our schemas, or any row if a contract is given, is also checked
    against its account. Images may be arrays, lists or references; of a reference the contract checks dtype and shape,
    and two references are equal if their hashes are.

    Args:
        row: a transition, as recorded, or with arrays as `step` returned them.
        contract: the contract that the row must follow.
    """
    return [violation.text for violation in inspect_transition(row, contract)[0]]


def inspect_transition(
    row: Mapping[str, Any], contract: Contract | None = None
) -> tuple[list[Violation], StepRow | None]:
    """Return the violations of `audit_transition`, and the row if it fits its schema."""
    problems = list(_field_problems(row))
    if problems:
        return problems, None
    if row["terminated"] and row["truncated"]:
        text = "terminated and truncated are both true (expected at most one of them)"
        problems.append(make_violation("ending.both", "truncated", True, text))
    is_ours = str(row.get("schema", "")).startswith("embodied_env/")
    if contract is None and not is_ours:
        return problems, None
    step, misfits = _validate(row, is_ours=is_ours)
    if step is None:
        return problems + misfits, None
    found = [rule(step) for rule in INFO_RULES] if step["inner"] is None else [rule(step) for rule in ACCOUNT_RULES]
    found += [] if contract is None else [rule(step, contract) for rule in CONTRACT_RULES]
    return [*problems, *itertools.chain.from_iterable(found)], step


def _validate(row: Mapping[str, Any], *, is_ours: bool) -> Validated[StepRow]:
    plain = {field: to_json_types(value) for field, value in row.items() if isinstance(field, str)}
    if not is_ours and "inner" not in plain:
        return validate_returned(plain, host_timing=has_host_timing(plain["info"]))
    if plain.get("inner", plain) is None:
        text = "inner is null: an outer wrapper returned a step without calling the environment"
        return None, [make_violation("row.made_up", "inner", None, text)]
    return validate_as(TransitionRow, plain)


def inspect_reset(row: Mapping[str, Any], contract: Contract | None) -> tuple[list[Violation], ResetRow | None]:
    """Audit the row of a reset in JSON types, as `inspect_transition` does for a step."""
    if row.get("inner", row) is None:
        text = "inner is null: an outer wrapper returned a reset without calling the environment"
        return [make_violation("row.made_up", "inner", None, text)], None
    reset, misfits = validate_as(ResetRow, row)
    if reset is None:
        return misfits, None
    problems = list(_check_reset_verdict(reset))
    if contract is not None:
        for rule in RESET_CONTRACT_RULES:
            problems += rule(reset, contract)
    return problems, reset


_Checks = Mapping[str, tuple[Callable[[Any], bool], str]]  # validity of a value, and what is expected, by field


def _field_problems(row: Mapping[str, Any]) -> Iterator[Violation]:
    """Check the required fields of any transition, and their types."""
    yield from _check_fields(row, FIELDS, _FIELD_CHECKS, owner="a transition")
    if isinstance(info := row.get("info"), Mapping):
        yield from _check_fields(info, _REQUIRED_INFO, _INFO_CHECKS, owner="the info of a transition", prefix="info.")


def _check_fields(
    values: Mapping[str, Any], required: Collection[str], checks: _Checks, *, owner: str, prefix: str = ""
) -> Iterator[Violation]:
    for key in required:
        if key not in values:
            text = f"{prefix}{key} is missing (expected in {owner}: {', '.join(required)})"
            yield make_violation("field.missing", f"{prefix}{key}", None, text)
    for key, (is_valid, expected) in checks.items():
        if key in values and not is_valid(values[key]):
            yield wrong_value("field.type", f"{prefix}{key}", values[key], expected)


def _is_finite(value: object) -> bool:
    if not isinstance(value, numbers.Real) or isinstance(value, (bool, np.bool_)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer larger than any float
        return True


def _is_boolean(value: object) -> bool:
    return isinstance(value, (bool, np.bool_))


_FIELD_CHECKS: _Checks = {
    "reward": (_is_finite, "a finite number"),
    "terminated": (_is_boolean, "true or false"),
    "truncated": (_is_boolean, "true or false"),
    "info": (lambda value: isinstance(value, Mapping), "a mapping"),
}
_INFO_CHECKS: _Checks = {
    "latency_ms": (lambda value: _is_finite(value) and value >= 0, "a finite number >= 0"),
    "action_clipped": (_is_boolean, "true or false"),
    "wrapper_version": (lambda value: isinstance(value, str) and value != "", "a non-empty string"),
}


_REQUIRED_INFO = ("action_clipped", "wrapper_version")


def _check_outside(row: TransitionRow) -> Iterator[Violation]:
    """Check that the outermost wrapper received and returned the environment's values."""
    returned: Mapping[str, Any] = row
    received: Mapping[str, Any] = {**row["inner"], "action": given_action(row["inner"])}
    for field in FIELDS[:-1]:
        if changes := differences(returned[field], received[field], field):
            where, outer, inner = changes[0]
            others = f", and {len(changes) - 1} more differences" if len(changes) > 1 else ""
            expected = f"{short_repr(inner)}, as the environment {'received' if field == 'action' else 'returned'}"
            text = f"{where} is {short_repr(outer)} (expected {expected}{others}); changed by an outer wrapper"
            yield make_violation(f"outside.{field}", where, outer, text)


def _check_ending(row: StepRow) -> Iterator[Violation]:
    """Check the flags, end_reason and is_success against the end reasons."""
    info, where = row["info"], "" if row["inner"] is None else "inner."
    flags: Mapping[str, Any] = row["inner"] or row
    reason = next(iter(end_reasons(row)), "")
    for flag, kinds in (("terminated", TERMINATED_REASONS), ("truncated", TRUNCATED_REASONS)):
        is_end = end_kind(reason) in kinds
        yield from check_equal("ending.flags", f"{where}{flag}", flags[flag], is_end, f" for the end reason {reason!r}")
    why = ", the first of inner.end_reasons"
    yield from check_equal("ending.reason", "info.end_reason", info["end_reason"], reason, why)
    why = f" for the end reason {reason!r}"
    yield from check_equal("ending.success", "info.is_success", info["is_success"], reason == "success", why)


def _check_end_reasons(row: TransitionRow) -> Iterator[Violation]:
    reasons = row["inner"]["end_reasons"]
    if (ordered := list(order_end_reasons(reasons))) != reasons:
        yield wrong_value("ending.order", "inner.end_reasons", reasons, f"the order {ordered}")


def _check_reset_verdict(row: ResetRow) -> Iterator[Violation]:
    solved = solved_at_reset(row["inner"])
    reset = row["info"]["reset"]
    for key, reported, wanted in (
        ("judged", reset["judged"], solved is not None),
        ("solved", reset["solved"], solved is True),
    ):
        yield from check_equal("reset.solved", f"info.reset.{key}", reported, wanted, ", as in inner.verdict")


def warn_solved_in_place(row: ResetRow) -> Iterator[Violation]:
    """Warn of a reset that moved nothing and left the task solved, likely from before."""
    if row["inner"]["level"] == "none" and solved_at_reset(row["inner"]):
        text = "info.reset.solved is true at reset level none: the task was solved before the episode"
        yield make_violation("reset.solved_in_place", "info.reset.solved", True, text)


def _check_gates(row: TransitionRow) -> Iterator[Violation]:
    severity, code = [0] * len(GATES), [0] * len(GATES)
    for finding in row["inner"]["findings"]:
        gate, level = GATES.index(finding["gate"]), Severity[finding["severity"]]
        if level >= severity[gate]:
            severity[gate], code[gate] = int(level), CODES[finding["code"]]
    safety, disposition = row["info"]["safety"], row["inner"]["report"]["disposition"]
    expected = {
        "info.safety.severity": (safety["severity"], severity),
        "info.safety.code": (safety["code"], code),
        "info.safety.disposition": (safety["disposition"], max(severity)),
        "inner.report.disposition": (disposition, Severity(max(severity)).name),
    }
    for where, (reported, found) in expected.items():
        yield from check_equal("gates.account", where, reported, found, " from inner.findings")


def _check_gates_of_info(row: StepRow) -> Iterator[Violation]:
    """Check that the disposition is the gates' most severe, and that fired gates have codes."""
    safety = row["info"]["safety"]
    why = ", the most severe of info.safety.severity"
    where = "info.safety.disposition"
    yield from check_equal("gates.account", where, safety["disposition"], max(safety["severity"]), why)
    for gate, level, code in zip(GATES, safety["severity"], safety["code"], strict=True):
        if (code == 0 and level > 0) or (code > 0 and level == 0 and gate not in _REPORTING):
            text = f"info.safety.code of {gate} is {code} at severity {level} (expected both 0, or neither)"
            yield make_violation("gates.code", "info.safety.code", code, text)


def _check_clipping(row: StepRow) -> Iterator[Violation]:
    """Check action_clipped, intervened and the values against the disposition."""
    info = row["info"]
    if row["inner"] is None:
        disposition, guaranteed = Severity(info["safety"]["disposition"]), info["safety"]["guaranteed"]
        has_changed = True  # possibly by less than action units show
    else:
        findings, guaranteed = row["inner"]["findings"], row["inner"]["report"]["guaranteed"]
        disposition = max((Severity[finding["severity"]] for finding in findings), default=Severity.PASS)
        has_changed = any(any(finding["margin"] or ()) for finding in findings)
    action: Mapping[str, Any] = info["action"] if row["inner"] is None else row["inner"]["report"]
    requested, applied = action["requested"], action["applied"]
    least = Severity.LIMIT if any(guaranteed.values()) else Severity.HOLD  # a gate that only monitors
    flags = {"info.action_clipped": info["action_clipped"], "info.safety.intervened": info["safety"]["intervened"]}
    for where, flag in flags.items():
        if flag != (disposition >= least):
            expected = f"{not flag} for the disposition {disposition.name}; true from {least.name} on"
            yield wrong_value("clipping.flags", where, flag, expected)
    if disposition is Severity.PASS and applied != requested:
        expected = f"{short_repr(requested)}, as requested, because no gate fired"
        yield wrong_value("clipping.hidden", "info.action.applied", applied, expected)
    if disposition is least is Severity.LIMIT and applied == requested and not has_changed:
        expected = "a change of the requested action, because the disposition is LIMIT"
        yield wrong_value("clipping.idle", "info.action.applied", applied, expected)


def _check_report(row: TransitionRow) -> Iterator[Violation]:
    info: Mapping[str, Any] = row["info"]
    report: Mapping[str, Any] = row["inner"]["report"]
    for part, keys in (("action", ("requested", "applied", "applied_si")), ("safety", ("dt_s", "guaranteed"))):
        for key in keys:
            value = _flat(info[part][key]) if part == "action" else info[part][key]
            yield from check_equal("action.account", f"info.{part}.{key}", value, report[key], ", as in inner.report")
    noted, shown = row["inner"]["external_inputs"].get("annotations", {}), info.get("annotations", {})
    yield from check_equal("annotations.account", "info.annotations", shown, noted, ", as in inner.external_inputs")


def _flat(action: Any) -> list[Any]:  # noqa: ANN401 - one vector, or a dict of vectors or of numbers
    if isinstance(action, dict):
        return [x for part in action.values() for x in (part if isinstance(part, list) else [part])]
    return list(action)


ACCOUNT_RULES: tuple[Callable[[TransitionRow], Iterable[Violation]], ...] = (  # with an account
    _check_outside,
    _check_ending,
    _check_end_reasons,
    _check_gates,
    _check_clipping,
    _check_report,
    *ACCOUNT_LATENCY_RULES,
)

INFO_RULES: tuple[Callable[[ReturnedRow], Iterable[Violation]], ...] = (  # of `step` alone
    _check_ending,
    _check_gates_of_info,
    _check_clipping,
    *INFO_LATENCY_RULES,
)
