"""Audit of one row: does it keep its word?"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from embodied_env.contract import Contract
from embodied_env.record.audit.account_rules import RULES, RULES_OF_INFO, verdict_of_reset
from embodied_env.record.audit.contract_rules import RULES_OF_CONTRACT, RULES_OF_RESET
from embodied_env.record.audit.violation import Violation, make_violation, short_repr
from embodied_env.record.json_values import to_json_types
from embodied_env.record.rows import FIELDS, Row
from embodied_env.record.schema import reset_schema, schema_violations, step_info_schema, transition_schema

_OURS = "embodied_env/"


def audit_transition(row: Mapping[str, Any], contract: Contract | None = None) -> list[str]:
    """Return what is wrong with `row`, a sentence each; nothing when it is sound.

    Any row, whoever made it, is held to the plain rules. A row whose schema is ours, or any row when a contract is
    given, is also held to its account. Images may be arrays, lists or references; of a reference dtype and shape are
    held to the contract, and two of them are equal when their hashes are.

    Args:
        row: a transition, as it was recorded, or with arrays as `step` returned them.
        contract: the contract that it must be of.
    """
    return [violation.text for violation in inspect_transition(row, contract).violations]


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What is wrong with one row.

    Attributes:
        violations: of the row alone.
        account: the row in types of JSON, when it has an account and is sound in its structure; else None.
    """

    violations: tuple[Violation, ...]
    account: Row | None = None


def inspect_transition(row: Mapping[str, Any], contract: Contract | None = None) -> Inspection:
    """Return what `audit_transition` says in sentences, with rule, field and value."""
    problems = list(_plain_problems(row))
    if problems:
        return Inspection(violations=tuple(problems))
    if row["terminated"] and row["truncated"]:
        text = "terminated and truncated are both true; allowed: one of them, or none"
        problems.append(make_violation("ending.both", "truncated", True, text))
    ours = str(row.get("schema", "")).startswith(_OURS)
    if contract is None and not ours:
        return Inspection(violations=tuple(problems))
    account = {field: to_json_types(value) for field, value in row.items() if isinstance(field, str)}
    if broken := _structural_problems(account, ours=ours):
        return Inspection(violations=(*problems, *broken))
    for rule in RULES if "inner" in account else RULES_OF_INFO:
        problems += rule(account)
    if contract is not None:
        for contract_rule in RULES_OF_CONTRACT:
            problems += contract_rule(account, contract)
    return Inspection(violations=tuple(problems), account=account)


def inspect_reset(row: Row, contract: Contract | None) -> Inspection:
    """Return what is wrong with the row of a reset, in types of JSON."""
    if row.get("inner", row) is None:
        text = "inner is null: an outer wrapper answered a reset that the environment did not make"
        return Inspection(violations=(make_violation("row.made_up", "inner", None, text),))
    if broken := schema_violations(row, reset_schema()):
        return Inspection(violations=tuple(broken))
    of_contract = [] if contract is None else [broken for rule in RULES_OF_RESET for broken in rule(row, contract)]
    return Inspection(violations=(*verdict_of_reset(row), *of_contract), account=row)


def _plain_problems(row: Mapping[str, Any]) -> Iterator[Violation]:
    """Check what any transition must have: the required fields, and their types."""
    for field in FIELDS:
        if field not in row:
            text = f"{field} is missing; a transition has {', '.join(FIELDS)}"
            yield make_violation("field.missing", field, None, text)
    if "reward" in row and not _is_finite(row["reward"]):
        yield _mistyped("reward", row["reward"], "a finite number")
    for flag in ("terminated", "truncated"):
        if flag in row and not isinstance(row[flag], (bool, np.bool_)):
            yield _mistyped(flag, row[flag], "true or false")
    info = row.get("info", None)
    if isinstance(info, Mapping):
        yield from _plain_problems_of_info(info)
    elif "info" in row:
        yield _mistyped("info", info, "a mapping")


def _plain_problems_of_info(info: Mapping[str, Any]) -> Iterator[Violation]:
    rules: dict[str, tuple[Callable[[Any], bool], str]] = {
        "latency_ms": (lambda value: _is_finite(value) and value >= 0, "a finite number >= 0"),
        "action_clipped": (lambda value: isinstance(value, (bool, np.bool_)), "true or false"),
        "wrapper_version": (lambda value: isinstance(value, str) and value != "", "text that is not empty"),
    }
    for key, (holds, allowed) in rules.items():
        if key not in info:
            text = f"info.{key} is missing; the info of a transition has {', '.join(rules)}"
            yield make_violation("field.missing", f"info.{key}", None, text)
        elif not holds(info[key]):
            yield _mistyped(f"info.{key}", info[key], allowed)


def _mistyped(field: str, value: object, allowed: str) -> Violation:
    return make_violation("field.type", field, value, f"{field} is {short_repr(value)}; allowed: {allowed}")


def _is_finite(value: object) -> bool:
    if not isinstance(value, numbers.Real) or isinstance(value, (bool, np.bool_)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return True


def _structural_problems(row: Row, *, ours: bool) -> list[Violation]:
    """Check fields, types and codes, so that the rules need not."""
    if not ours and "inner" not in row:
        return schema_violations(row["info"], step_info_schema(), path="info")
    if row.get("inner", row) is None:
        text = "inner is null: an outer wrapper returned a step that the environment did not make"
        return [make_violation("row.made_up", "inner", None, text)]
    return schema_violations(row, transition_schema())
