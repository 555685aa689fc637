"""Audit of one row: its fields, its schema, its consistency and its contract."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from embodied_env.contract import Contract
from embodied_env.record.audit.consistency_rules import ACCOUNT_RULES, INFO_RULES, check_reset_verdict
from embodied_env.record.audit.contract_rules import CONTRACT_RULES, RESET_CONTRACT_RULES
from embodied_env.record.audit.violation import Violation, make_violation, wrong_value
from embodied_env.record.json_values import to_json_types
from embodied_env.record.rows import FIELDS, Row
from embodied_env.record.schema import reset_schema, schema_violations, step_info_schema, transition_schema


def audit_transition(row: Mapping[str, Any], contract: Contract | None = None) -> list[str]:
    """Return a sentence for each violation in `row`; none if it is sound.

    The basic rules apply to any row. A row with a schema of ours, or any row if a contract is given, is also checked
    against its account. Images may be arrays, lists or references; of a reference the contract checks dtype and shape,
    and two references are equal if their hashes are.

    Args:
        row: a transition, as recorded, or with arrays as `step` returned them.
        contract: the contract that the row must follow.
    """
    return [violation.text for violation in inspect_transition(row, contract).violations]


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """Result of the audit of one row.

    Attributes:
        violations: those of the row alone.
        account: the row in JSON types if it has an account and fits its schema, else None.
    """

    violations: tuple[Violation, ...]
    account: Row | None = None


def inspect_transition(row: Mapping[str, Any], contract: Contract | None = None) -> Inspection:
    """Audit a transition like `audit_transition`."""
    problems = list(_field_problems(row))
    if problems:
        return Inspection(violations=tuple(problems))
    if row["terminated"] and row["truncated"]:
        text = "terminated and truncated are both true; allowed: one of them, or none"
        problems.append(make_violation("ending.both", "truncated", True, text))
    is_ours = str(row.get("schema", "")).startswith("embodied_env/")
    if contract is None and not is_ours:
        return Inspection(violations=tuple(problems))
    account = {field: to_json_types(value) for field, value in row.items() if isinstance(field, str)}
    if not is_ours and "inner" not in account:
        misfits = schema_violations(account["info"], step_info_schema(), path="info")
    elif account.get("inner", account) is None:
        text = "inner is null: an outer wrapper returned a step that the environment did not make"
        misfits = [make_violation("row.made_up", "inner", None, text)]
    else:
        misfits = schema_violations(account, transition_schema())
    if misfits:
        return Inspection(violations=(*problems, *misfits))
    for rule in ACCOUNT_RULES if "inner" in account else INFO_RULES:
        problems += rule(account)
    if contract is not None:
        for contract_rule in CONTRACT_RULES:
            problems += contract_rule(account, contract)
    return Inspection(violations=tuple(problems), account=account)


def inspect_reset(row: Row, contract: Contract | None) -> Inspection:
    """Audit the row of a reset, in JSON types."""
    if row.get("inner", row) is None:
        text = "inner is null: an outer wrapper answered a reset that the environment did not make"
        return Inspection(violations=(make_violation("row.made_up", "inner", None, text),))
    if misfits := schema_violations(row, reset_schema()):
        return Inspection(violations=tuple(misfits))
    problems = list(check_reset_verdict(row))
    if contract is not None:
        for rule in RESET_CONTRACT_RULES:
            problems += rule(row, contract)
    return Inspection(violations=tuple(problems), account=row)


_Checks = Mapping[str, tuple[Callable[[Any], bool], str]]
"""Name of a field -> whether a value is valid, and what is allowed."""


def _field_problems(row: Mapping[str, Any]) -> Iterator[Violation]:
    """Check the required fields of any transition, and their types."""
    for field in FIELDS:
        if field not in row:
            text = f"{field} is missing; a transition has {', '.join(FIELDS)}"
            yield make_violation("field.missing", field, None, text)
    yield from _type_problems(row, _FIELD_CHECKS)
    if not isinstance(info := row.get("info"), Mapping):
        return
    for key in _INFO_CHECKS:
        if key not in info:
            text = f"info.{key} is missing; the info of a transition has {', '.join(_INFO_CHECKS)}"
            yield make_violation("field.missing", f"info.{key}", None, text)
    yield from _type_problems(info, _INFO_CHECKS, prefix="info.")


def _type_problems(values: Mapping[str, Any], checks: _Checks, *, prefix: str = "") -> Iterator[Violation]:
    for key, (is_valid, allowed) in checks.items():
        if key in values and not is_valid(values[key]):
            yield wrong_value("field.type", f"{prefix}{key}", values[key], allowed=allowed, short=True)


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
    "wrapper_version": (lambda value: isinstance(value, str) and value != "", "text that is not empty"),
}
