"""Audit of one transition, and of a whole run: does the record keep its word?"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embodied_env.contract import Contract, parse_contract
from embodied_env.errors import ContractError, RecordError
from embodied_env.record.arrays import references
from embodied_env.record.leaks import LeakWatch
from embodied_env.record.reading import Run, read_run
from embodied_env.record.rows import FIELDS, RESET, TRANSITION, Row, plain
from embodied_env.record.rules import RULES, RULES_OF_CONTRACT, RULES_OF_INFO
from embodied_env.record.schema import reset_schema, step_info_schema, transition_schema
from embodied_env.record.violations import shortened, violations

_OURS = "embodied_env/"
_LISTED = 100  # problems of a run that are listed; the others are counted


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """What `audit_run` found.

    Attributes:
        path: the run directory.
        transitions: how many rows of transitions were audited.
        problems: a sentence each; after 100 of them, the last says how many more there are.
    """

    path: Path
    transitions: int
    problems: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """There is no problem."""
        return not self.problems


def audit_run(path: str | Path) -> AuditReport:
    """Audit the run directory at `path`; its rows are read one by one.

    Problems are: a run that was not closed or whose log is damaged; a contract that does not have the fingerprint that
    the manifest names; leaks of the evaluator's readings into what the agent saw; whatever `audit_transition` says of a
    row under the contract of the run; rows out of order, resets that are not whole, and arrays that are not in the log.

    A leak is a component of the observation, as the outermost wrapper returned it, that equals a component of an
    evaluator sensor over at least 20 steps in which it varies (`embodied_env.record.leaks`). ``info`` is not searched:
    the evaluator's readings stand there only when the user asked for them with ``evaluator_info=True``.

    Raises:
        RecordError: when `path` is not a run directory, or its manifest cannot be read.
        MissingDependencyError: when mcap is not installed.
    """
    run = read_run(path)
    contract, doubt = _contract_of(run)
    of_rows: list[str] = []
    count = transitions = 0
    leaks = LeakWatch()
    for number, row in enumerate(run.rows()):
        found = list(_row_problems(row, number, run, contract))
        count += len(found)
        of_rows += [f"row {number}: {problem}" for problem in found[: _LISTED - len(of_rows)]]
        if isinstance(row, dict):
            transitions += row.get("schema") == TRANSITION
            leaks.add(row)
    empty = "" if transitions else "the run has no transition: there is no evidence in it"
    of_run = [problem for problem in (run.problem, doubt, empty) if problem] + leaks.problems()
    listed = (of_run + of_rows)[:_LISTED]
    if more := len(of_run) + count - len(listed):
        listed.append(f"and {more} more problems")
    return AuditReport(path=run.path, transitions=transitions, problems=tuple(listed))


def _contract_of(run: Run) -> tuple[Contract | None, str]:
    """Return the contract of a run, and why it is in doubt, or ""."""
    said = run.manifest.get("contract")
    text, fingerprint = (said.get("text"), said.get("fingerprint")) if isinstance(said, dict) else (None, None)
    if not isinstance(text, str):
        return None, f"manifest.json: contract.text is {shortened(text)}; allowed: the text of a contract"
    try:
        contract = parse_contract(text)
        found = contract.fingerprint
    except ContractError as error:
        return None, f"manifest.json: contract.text cannot be read: {error}"
    if found != fingerprint:
        return None, (
            f"manifest.json: contract.fingerprint is {shortened(fingerprint)}, but contract.text makes it {found}: "
            "one of them was changed, or the source of the task"
        )
    return contract, ""


def _row_problems(row: Any, number: int, run: Run, contract: Contract | None) -> Iterator[str]:  # noqa: ANN401 - JSON types
    if not isinstance(row, dict):
        yield f"it is {shortened(row)}; allowed: an object"
        return
    if row.get("row") != number:
        yield f"row is {shortened(row.get('row'))}; allowed: {number}, its place in the log"
    schema = row.get("schema")
    if schema == RESET:
        yield from _problems_of_reset(row)
    elif schema == TRANSITION:
        yield from audit_transition(row, contract)
    else:
        yield f"schema is {shortened(schema)}; allowed: {RESET}, {TRANSITION}"
    for where, reference in references(row):
        try:
            run.array(reference)
        except RecordError as error:
            yield f"{where}: {error}"


def _problems_of_reset(row: Row) -> list[str]:
    if row.get("inner", row) is None:
        return ["inner is null: an outer wrapper answered a reset that the environment did not make"]
    return violations(row, reset_schema())


def audit_transition(row: Mapping[str, Any], contract: Contract | None = None) -> list[str]:
    """Return what is wrong with `row`, a sentence each; nothing when it is sound.

    Any row, whoever made it, is held to the plain rules. A row whose schema is ours, or any row when a contract is
    given, is also held to its account. Images may be arrays, lists or references; of a reference dtype and shape are
    held to the contract, and two of them are equal when their hashes are.

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
