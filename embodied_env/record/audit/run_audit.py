"""Audit of a run, or of a file of transitions: do the rows keep their word, each alone and one after the other?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from embodied_env.contract import Contract
from embodied_env.core.bounded_json import parse_json
from embodied_env.core.outcome_counts import SOLVED_AT_FIRST_STEP, SOLVED_AT_RESET
from embodied_env.errors import RecordError
from embodied_env.record.arrays import references
from embodied_env.record.audit.account_rules import solved_in_place
from embodied_env.record.audit.evaluator_leaks import LeakWatch
from embodied_env.record.audit.order_rules import EpisodeOrderRule, FrozenCameraRule, PeriodDriftRule, SequenceRule
from embodied_env.record.audit.run_rules import (
    ManifestRules,
    SummaryTally,
    contract_of,
    first_of,
    of_manifest,
    summary_of,
    wrappers_between,
)
from embodied_env.record.audit.transition_audit import Inspection, audit_transition, inspect_reset, inspect_transition
from embodied_env.record.audit.violation import Violation, make_violation, short_repr
from embodied_env.record.mcap_log import DEEPEST, LARGEST_ROW
from embodied_env.record.rows import RESET, TRANSITION
from embodied_env.record.run import Run, inspect_run

__all__ = ["AuditReport", "audit_lines", "audit_run", "audit_transition"]

_LISTED = 100  # violations that are listed; the others are counted
_CONSTANT = "fake"  # the backend whose cameras always show the same

Watcher = Callable[[], None]
"""Is called after each row."""


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """What an audit found.

    Attributes:
        path: the run directory, or the file of rows.
        transitions: how many rows of transitions were audited.
        violations: what is wrong, those of the whole run first; at most 100.
        counts: how often each rule was broken, those that are not listed included.
        warnings: what is odd but fails nothing; at most 100.
        dry_run: the manifest says that nothing of what was sent reached a robot.
        solved_at_reset: episodes that were solved before their first step, and are in no success rate; None: there is
            no reset, or a row is damaged, so episodes cannot be counted.
        solved_at_first_step: the same of successes at the first step where the task did not judge the reset.
    """

    path: Path
    transitions: int
    violations: tuple[Violation, ...]
    counts: Mapping[str, int]
    warnings: tuple[Violation, ...] = ()
    dry_run: bool = False
    solved_at_reset: int | None = None
    solved_at_first_step: int | None = None

    @property
    def sound(self) -> bool:
        """There is no violation."""
        return not self.counts

    @property
    def problems(self) -> tuple[str, ...]:
        """A sentence for each violation; after 100 of them, the last says how many more there are."""
        sentences = [str(violation) for violation in self.violations]
        more = sum(self.counts.values()) - len(sentences)
        return (*sentences, *([f"and {more} more problems"] if more else []))


class _Auditor:
    """Takes rows one by one, whatever they come from, and keeps what is wrong with them."""

    def __init__(self, contract: Contract | None, *, resets: bool, pictures: bool = True) -> None:
        self.transitions = 0
        self.counts: Counter[str] = Counter()
        self.rows: list[Violation] = []
        self.warnings: list[Violation] = []
        self.tally: SummaryTally | None = SummaryTally()
        self._contract, self._resets = contract, resets
        self._leaks = LeakWatch()
        self._order = EpisodeOrderRule(resets=resets)
        self._sequence = SequenceRule(contract)
        self._drift = None if contract is None else PeriodDriftRule(contract.control_period_ns)
        self._still = None if contract is None or not pictures else FrozenCameraRule(contract)

    def keep(self, violations: Iterable[Violation], number: int, row: object, line: int | None = None) -> None:
        """Count what is wrong with a row, and list it while there is room."""
        for violation in violations:
            self.counts[violation.rule] += 1
            if len(self.rows) < _LISTED:
                self.rows.append(violation.at(number, row, line=line))

    def add(self, row: Any, number: int, line: int | None = None) -> None:  # noqa: ANN401 - JSON types
        """Take in one row."""
        if not isinstance(row, dict):
            self.keep(
                [make_violation("row.object", "", row, f"it is {short_repr(row)}; allowed: an object")],
                number,
                row,
                line,
            )
            self.forget()
            return
        if self._resets and (schema := row.get("schema")) not in (RESET, TRANSITION):
            text = f"schema is {short_repr(schema)}; allowed: {RESET}, {TRANSITION}"
            self.keep([make_violation("row.schema", "schema", schema, text)], number, row, line)
            self.forget()
            return
        is_reset = row.get("schema") == RESET
        inspection = inspect_reset(row, self._contract) if is_reset else inspect_transition(row, self._contract)
        self.keep(inspection.violations, number, row, line)
        self.transitions += not is_reset
        odd = [] if self._still is None or inspection.account is None else self._still.add(inspection.account)
        in_place = solved_in_place(row) if is_reset and inspection.account is not None else ()
        for warning in (*odd, *in_place, *self._order.warnings(row)):
            if len(self.warnings) < _LISTED:
                self.warnings.append(warning.at(number, row, line=line))
        self.keep(self._order.add(row), number, row, line)
        self.keep(self._across(inspection), number, row, line)
        self._leaks.add(row)

    def _across(self, inspection: Inspection) -> Iterator[Violation]:
        if inspection.account is None:
            self._forget_pairs()
            return
        yield from self._sequence.add(inspection.account)
        if self._drift is not None:
            yield from self._drift.add(inspection.account)
        if self.tally is not None and "schema" in inspection.account:
            self.tally.add(inspection.account)

    def forget(self) -> None:
        """The next row is not right after the last: what follows from that is not told of again."""
        self._order.forget()
        self._forget_pairs()

    def _forget_pairs(self) -> None:
        self.tally = None  # what is not whole cannot be counted
        self._sequence.forget()
        for watch in (self._drift, self._still):
            if watch is not None:
                watch.forget()

    def report(self, path: Path, of_run: Iterable[Violation]) -> AuditReport:
        """Return what was found, what is wrong with the whole first."""
        first = [*of_run, *self._leaks.violations()]
        if not self.transitions:
            text = "the run has no transition: there is no evidence in it"
            first.append(make_violation("run.empty", "", 0, text))
        for violation in first:
            self.counts[violation.rule] += 1
        counted = {} if self.tally is None or not self.tally.resets else self.tally.apart()
        return AuditReport(
            path=path,
            transitions=self.transitions,
            violations=tuple((first + self.rows)[:_LISTED]),
            counts=dict(self.counts),
            warnings=tuple(self.warnings),
            solved_at_reset=counted.get(SOLVED_AT_RESET),
            solved_at_first_step=counted.get(SOLVED_AT_FIRST_STEP),
        )


def audit_run(path: str | Path, *, watcher: Watcher | None = None) -> AuditReport:
    """Audit the run directory at `path`; its rows are read one by one.

    What is checked stands in ``docs/audit.md``, rule by rule: each row under the contract of the run, each row after
    the one before it, arrays, leaks of the evaluator's readings into what the agent saw, and the manifest and the
    summary against the rows.

    A leak is a component of the observation, as the outermost wrapper returned it, that equals a component of an
    evaluator sensor over at least 20 steps in which it varies (`record.audit.evaluator_leaks`). ``info`` is not
    searched:
    the evaluator's readings stand there only when the user asked for them with ``evaluator_info=True``.

    Args:
        path: the run directory.
        watcher: is called after each row, to show how far it is.

    Raises:
        RecordError: when `path` is not a run directory, or its manifest cannot be read.
        MissingDependencyError: when mcap is not installed.
    """
    run, broken = inspect_run(path)
    contract, doubts = contract_of(run.manifest)
    doubts += of_manifest(broken, is_contract_told=bool(doubts))
    auditor = _Auditor(contract, resets=True, pictures=run.manifest.get("backend") != _CONSTANT)
    manifest = ManifestRules(run.manifest)
    outside = wrappers_between(run.manifest)
    first: Any = None
    for number, row in enumerate(run.unchecked_rows()):
        if misplaced := list(_misplaced(row, number)):
            auditor.forget()
        auditor.keep((*misplaced, *_missing_arrays(row, run)), number, row)
        auditor.add(row, number)
        if isinstance(row, dict):
            first = row if first is None and row.get("schema") == TRANSITION else first
            auditor.keep(manifest.add(row), number, row)
        if watcher is not None:
            watcher()
    of_run = [make_violation("run.unclean", "", run.problem, run.problem)] if run.problem else []
    of_run += [*doubts, *manifest.of_run()]
    if auditor.tally is not None and not run.problem:
        of_run += summary_of(run.path, auditor.tally, run.manifest)
    if run.manifest.get("clean") is True:
        of_run += first_of(run.path, first)
    report = auditor.report(run.path, of_run)
    return replace(
        report,
        violations=tuple(_with_wrappers(violation, outside) for violation in report.violations),
        dry_run=(run.manifest.get("capabilities") or {}).get("actuates") is False,
    )


def _with_wrappers(violation: Violation, outside: str) -> Violation:
    """Say which wrappers there were, of what one of them did."""
    if not outside or not violation.rule.startswith("outside."):
        return violation
    return replace(violation, text=f"{violation.text}, one of {outside}")


def _misplaced(row: Any, number: int) -> Iterator[Violation]:  # noqa: ANN401 - JSON types
    """The number of a row is its place in the log."""
    if isinstance(row, dict) and (said := row.get("row")) != number:
        text = f"row is {short_repr(said)}; allowed: {number}, its place in the log"
        yield make_violation("row.number", "row", said, text)


def _missing_arrays(row: Any, run: Run) -> Iterator[Violation]:  # noqa: ANN401 - JSON types
    """A row refers to nothing that is not there."""
    for where, reference in references(row):
        try:
            run.array(reference)
        except RecordError as error:
            yield make_violation("array.missing", where, reference, f"{where}: {error}")


def audit_lines(
    lines: Iterable[bytes], *, path: str | Path, contract: Contract | None = None, watcher: Watcher | None = None
) -> AuditReport:
    """Audit rows of anybody: a transition in each line, as JSON.

    Every row is held to the plain rules. Rows that name our schema, or any when there is a `contract`, are held to all
    that can be known of them, one after the other too. Blank lines are passed over.

    Args:
        lines: of an open binary file, for one; they are taken one by one.
        path: what they are called in the report.
        contract: the contract that they must be of; None: none is known.
        watcher: is called after each row.
    """
    auditor = _Auditor(contract, resets=False)
    version: str | None = None
    number = 0
    for line, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            row = parse_json(text, max_bytes=LARGEST_ROW, max_depth=DEEPEST)
        except ValueError as error:
            problem = f"it is no JSON: {error}; it begins with {short_repr(text[:40].decode(errors='replace'))}"
            auditor.keep(
                [make_violation("line.broken", "", text[:40].decode(errors="replace"), problem)], number, None, line
            )
        else:
            auditor.add(row, number, line)
            said = _version(row)
            if version is not None and said not in (None, version):
                problem = f"info.wrapper_version is {short_repr(said)}, but {short_repr(version)} in the rows before it"
                change = make_violation("version.changed", "info.wrapper_version", said, problem)
                auditor.keep([change], number, row, line)
            version = said or version
        number += 1
        if watcher is not None:
            watcher()
    return auditor.report(Path(path), [])


def _version(row: Any) -> str | None:  # noqa: ANN401 - JSON types
    info = row.get("info") if isinstance(row, dict) else None
    said = info.get("wrapper_version") if isinstance(info, dict) else None
    return said if isinstance(said, str) else None
