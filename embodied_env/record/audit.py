"""Audit of one transition: does its row keep its word?"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from embodied_env.contract import Contract
from embodied_env.record.rows import FIELDS, Row, plain
from embodied_env.record.rules import RULES, RULES_OF_CONTRACT, RULES_OF_INFO
from embodied_env.record.schema import step_info_schema, transition_schema
from embodied_env.record.violations import shortened, violations

_OURS = "embodied_env/"


def audit_transition(row: Mapping[str, Any], contract: Contract | None = None) -> list[str]:
    """Return what is wrong with `row`, a sentence each; nothing when it is sound.

    Any row, whoever made it, is held to the plain rules. A row whose schema is ours, or any row when a contract is
    given, is also held to its account.

    Args:
        row: a transition, as it was recorded, or with arrays as `step` returned them.
        contract: the contract that it must be of.
    """
    problems = list(_plain_problems(row))
    if problems:
        return problems
    if row["terminated"] and row["truncated"]:
        problems.append("terminated and truncated are both true; allowed: one of them, or none")
    ours = str(row.get("schema", "")).startswith(_OURS)
    if contract is None and not ours:
        return problems
    account = {field: plain(value) for field, value in row.items() if isinstance(field, str)}
    if broken := _structural_problems(account, ours=ours):
        return problems + broken
    for rule in RULES if "inner" in account else RULES_OF_INFO:
        problems += rule(account)
    if contract is not None:
        for contract_rule in RULES_OF_CONTRACT:
            problems += contract_rule(account, contract)
    return problems


def _plain_problems(row: Mapping[str, Any]) -> Iterator[str]:
    """Check what any transition must have: the required fields, and their types."""
    for field in FIELDS:
        if field not in row:
            yield f"{field} is missing; a transition has {', '.join(FIELDS)}"
    if "reward" in row and not _is_finite(row["reward"]):
        yield f"reward is {shortened(row['reward'])}; allowed: a finite number"
    for flag in ("terminated", "truncated"):
        if flag in row and not isinstance(row[flag], (bool, np.bool_)):
            yield f"{flag} is {shortened(row[flag])}; allowed: true or false"
    info = row.get("info", None)
    if isinstance(info, Mapping):
        yield from _plain_problems_of_info(info)
    elif "info" in row:
        yield f"info is {shortened(info)}; allowed: a mapping"


def _plain_problems_of_info(info: Mapping[str, Any]) -> Iterator[str]:
    rules: dict[str, tuple[Callable[[Any], bool], str]] = {
        "latency_ms": (lambda value: _is_finite(value) and value >= 0, "a finite number >= 0"),
        "action_clipped": (lambda value: isinstance(value, (bool, np.bool_)), "true or false"),
        "wrapper_version": (lambda value: isinstance(value, str) and value != "", "text that is not empty"),
    }
    for key, (holds, allowed) in rules.items():
        if key not in info:
            yield f"info.{key} is missing; the info of a transition has {', '.join(rules)}"
        elif not holds(info[key]):
            yield f"info.{key} is {shortened(info[key])}; allowed: {allowed}"


def _is_finite(value: object) -> bool:
    if not isinstance(value, numbers.Real) or isinstance(value, (bool, np.bool_)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return True


def _structural_problems(row: Row, *, ours: bool) -> list[str]:
    """Check fields, types and codes, so that the rules need not."""
    if not ours and "inner" not in row:
        return violations(row["info"], step_info_schema(), path="info")
    if row.get("inner", row) is None:
        return ["inner is null: an outer wrapper returned a step that the environment did not make"]
    return violations(row, transition_schema())
