"""Audit of a run or of a file of transitions, by rows alone, in sequence, and as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from embodied_env.contract import Contract
from embodied_env.contract.bounded_json import parse_json
from embodied_env.core.excluded_episodes import SOLVED_AT_FIRST_STEP, SOLVED_AT_RESET
from embodied_env.errors import RecordError
from embodied_env.extensions.audit.annotation_rules import AccountRules
from embodied_env.extensions.audit.row_history_rules import (
    EpisodeOrderRule,
    FrozenCameraRule,
    LeakDetector,
    PeriodDriftRule,
    SequenceRule,
)
from embodied_env.extensions.audit.row_pair_rules import AnyRow
from embodied_env.extensions.audit.run_rules import (
    ManifestRules,
    RowTally,
    check_first_transition,
    check_robot,
    check_summary,
    describe_inner_wrappers,
    name_manifest,
    read_contract,
    read_time_limit,
    warn_held,
    warn_overridden,
)
from embodied_env.extensions.audit.transition_audit import inspect_reset, inspect_transition, warn_solved_in_place
from embodied_env.record.arrays import references
from embodied_env.record.manifest import world_of
from embodied_env.record.row_log import DEEPEST, LARGEST_ROW
from embodied_env.record.row_schema import Violation, check_equal, make_violation, short_repr, wrong_value
from embodied_env.record.row_types import RESET, TRANSITION
from embodied_env.record.run import inspect_run
from embodied_env.record.run_writer import LOG

_MAX_LISTED = 100  # violations, beyond which they are only counted
_OF_TIME_LIMIT = ("outside.truncated", "ending.both")  # what a TimeLimit changes in its last step
_CONSTANT = "fake"  # the backend whose cameras always show the same image


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """Result of an audit."""

    path: Path  # the run directory, or the file of rows
    transitions: int  # the number of transitions audited
    violations: tuple[Violation, ...]  # at most 100 violations, those of the whole run first
    counts: Mapping[str, int]  # the number of violations of each rule, including those not listed
    warnings: tuple[Violation, ...] = ()  # at most 100 findings that do not fail the audit
    head: str = ""  # hash of the last row, which covers all, "" without a chain as for JSON lines
    world: str = ""  # moved by the commands according to the manifest, or "dry run"
    solved_at_reset: int | None = None  # episodes outside the success rates, None without a reset or with a damaged row
    solved_at_first_step: int | None = None  # likewise, successes at the first step after an unjudged reset

    @property
    def sound(self) -> bool:
        """Whether there is no violation."""
        return not self.counts

    @property
    def problems(self) -> tuple[str, ...]:
        """A message for each listed violation, then one with the number of further ones."""
        messages = [str(violation) for violation in self.violations]
        more = sum(self.counts.values()) - len(messages)
        return (*messages, *([f"and {more} more problems"] if more else []))


class _Auditor:
    """Audits rows one by one, from a run or from a file, and collects their violations."""

    def __init__(
        self,
        contract: Contract | None,
        *,
        resets: bool,
        images: bool = True,
        limit_steps: int | None = None,
        array: Callable[[Mapping[str, Any]], NDArray[Any]] | None = None,
    ) -> None:
        self.transitions = 0
        self._limit_steps = limit_steps
        self.tally: RowTally | None = RowTally()  # None: a row cannot be counted
        self._counts: Counter[str] = Counter()
        self._violations: list[Violation] = []
        self._warnings: list[Violation] = []
        self._contract, self._resets = contract, resets
        self._leaks = LeakDetector()
        self._order = EpisodeOrderRule(resets=resets)
        self._accounts = AccountRules(contract, array)
        self._sequences: list[SequenceRule | AccountRules | PeriodDriftRule] = [SequenceRule(contract), self._accounts]
        self._sequences += [] if contract is None else [PeriodDriftRule(contract.control_period_ns)]
        self._cameras = FrozenCameraRule(contract) if contract is not None and images else None

    def keep(self, violations: Iterable[Violation], number: int, row: object, line: int | None = None) -> None:
        """Count the violations of a row, and list them while there is room."""
        for violation in violations:
            self._counts[violation.rule] += 1
            if len(self._violations) < _MAX_LISTED:
                self._violations.append(violation.at(number, row, line=line))

    def add(self, row: Any, number: int, line: int | None = None) -> None:  # noqa: ANN401 - JSON types
        malformed: Violation | None = None
        if not isinstance(row, dict):
            malformed = make_violation("row.object", "", row, f"not an object: {short_repr(row)}")
        elif self._resets and (schema := row.get("schema")) not in (RESET, TRANSITION):
            malformed = wrong_value("row.schema", "schema", schema, f"{RESET} or {TRANSITION}")
        if malformed is not None:
            self.keep([malformed], number, row, line)
            self.forget()
            return
        is_reset = row.get("schema") == RESET
        account: AnyRow | None
        violations, account = (inspect_reset if is_reset else inspect_transition)(row, self._contract)
        if self._limit_steps is not None and account is not None and account["schema"] == TRANSITION:
            is_limited = account["truncated"] and account["info"]["step_index"] >= self._limit_steps
            violations = [each for each in violations if not (is_limited and each.rule in _OF_TIME_LIMIT)]
        self.keep(violations, number, row, line)
        self.transitions += not is_reset
        warnings = [] if self._cameras is None or account is None else [*self._cameras.add(account)]
        warnings += warn_solved_in_place(account) if account is not None and account["schema"] == RESET else ()
        warnings += self._order.warnings(row)
        room = _MAX_LISTED - len(self._warnings)
        self._warnings += [warning.at(number, row, line=line) for warning in warnings[:room]]
        self.keep(self._order.add(row), number, row, line)
        if account is None:
            self._forget_pairs()
        else:
            for rule in self._sequences:
                self.keep(rule.add(account), number, row, line)
            if self.tally is not None and account["inner"] is not None:
                self.tally.add(account)
        self._leaks.add(row)

    def forget(self) -> None:
        """Discard the previous row, so that one problem is not reported again as missing rows."""
        self._order.forget()
        self._forget_pairs()

    def _forget_pairs(self) -> None:
        self.tally = None
        for rule in self._sequences:
            rule.forget()
        if self._cameras is not None:
            self._cameras.forget()

    def report(self, path: Path, of_run: Iterable[Violation]) -> AuditReport:
        """Return the report, with the violations `of_run` first."""
        first = [*of_run, *self._leaks.violations()]
        if not self.transitions:
            first.append(make_violation("run.empty", "", 0, "no transitions recorded (expected at least one)"))
        self._counts.update(violation.rule for violation in first)
        held = () if self.tally is None else warn_held(self.tally, self._contract)
        apart = {} if self.tally is None or not self.tally.resets else self.tally.apart()
        return AuditReport(
            path=path,
            transitions=self.transitions,
            violations=tuple((first + self._violations)[:_MAX_LISTED]),
            counts=dict(self._counts),
            warnings=(*self._accounts.warnings(), *held, *self._warnings),
            solved_at_reset=apart.get(SOLVED_AT_RESET),
            solved_at_first_step=apart.get(SOLVED_AT_FIRST_STEP),
        )


def audit_run(
    path: str | Path, *, expected_head: str | None = None, watcher: Callable[[], None] | None = None
) -> AuditReport:
    """Audit the run directory at `path`, reading its rows one by one.

    `watcher` is called after each row. `expected_head` is the head of the run as it was printed when it was recorded;
    another one is a violation.

    Checks each rule of ``docs/reference/audit.md``: each row under the contract of the run, each row after the one
    before it, arrays, leaks of the evaluator's readings to the agent, and manifest and summary against the rows.

    A leak is a component of the observation, as the outermost wrapper returned it, that equals a component of an
    evaluator sensor over at least 20 steps in which it varies (`LeakDetector`). ``info`` is not
    searched: it has the evaluator's readings only with ``evaluator_info=True``.

    Raises:
        RecordError: if `path` is not a run directory, or its manifest cannot be read.
        MissingDependencyError: if mcap is not installed.
    """
    run, misfits = inspect_run(path)
    contract, of_manifest = read_contract(run.manifest)
    of_manifest += [] if contract is None else check_robot(run.manifest, contract)
    of_manifest += name_manifest(misfits, is_contract_reported=bool(of_manifest))
    images = run.manifest.get("backend") != _CONSTANT
    limit_steps = read_time_limit(run.manifest)
    auditor = _Auditor(contract, resets=True, images=images, limit_steps=limit_steps, array=run.array)
    manifest = ManifestRules(run.manifest)
    first: Any = None
    for number, row in enumerate(run.log):
        if isinstance(row, dict) and (place := row.get("row")) != number:
            auditor.forget()
            auditor.keep([wrong_value("row.number", "row", place, f"{number}, its position in the log")], number, row)
        for where, reference in references(row):
            try:
                run.log.check_array(reference)
            except RecordError as error:
                missing = make_violation("array.missing", where, reference, f"{where}: {error}")
                auditor.keep([missing], number, row)
        auditor.add(row, number)
        if isinstance(row, dict):
            first = row if first is None and row.get("schema") == TRANSITION else first
            auditor.keep(manifest.add(row), number, row)
        if watcher is not None:
            watcher()
    of_run = [make_violation("run.unclean", "", run.problem, run.problem)] if run.problem else []
    wanted = run.chain.head if expected_head is None else expected_head
    of_run += check_equal("run.head", LOG, run.chain.head, wanted, ", as given, for the last row")
    of_run += [*of_manifest, *manifest.check_run()]
    if auditor.tally is not None and not run.problem:
        of_run += check_summary(run.path, auditor.tally, run.manifest)
    if run.manifest.get("clean") is True:
        of_run += check_first_transition(run.path, first)
    report = auditor.report(run.path, of_run)
    violations = report.violations
    if wrappers := describe_inner_wrappers(run.manifest):
        violations = tuple(
            replace(each, text=f"{each.text}: {wrappers}") if each.rule.startswith("outside.") else each
            for each in violations
        )
    warnings = (*warn_overridden(contract), *report.warnings)
    return replace(report, violations=violations, warnings=warnings, head=run.chain.head, world=world_of(run.manifest))


def audit_lines(
    lines: Iterable[bytes],
    *,
    path: str | Path,
    contract: Contract | None = None,
    watcher: Callable[[], None] | None = None,
) -> AuditReport:
    """Audit rows of any origin from lines with one transition each, as JSON.

    Blank lines are skipped. The basic rules apply to every row. Rows with one of our schemas, or all rows if there is a
    `contract`, are also checked against their account, alone and in sequence. `path` is the name of `lines` in the
    report. `watcher` is called after each row.
    """
    auditor = _Auditor(contract, resets=False)
    version: str | None = None
    texts = ((line, text) for line, text in enumerate(lines, start=1) if text.strip())
    for number, (line, text) in enumerate(texts):
        try:
            row = parse_json(text, max_bytes=LARGEST_ROW, max_depth=DEEPEST)
        except ValueError as error:
            start = text[:40].decode(errors="replace")
            problem = f"not JSON: {short_repr(start)}: {error}"
            auditor.keep([make_violation("line.broken", "", start, problem)], number, None, line)
        else:
            auditor.add(row, number, line)
            info = row.get("info") if isinstance(row, dict) else None
            named = info.get("wrapper_version") if isinstance(info, dict) else None
            if isinstance(named, str):
                if version is not None and named != version:
                    expected = f"{short_repr(version)}, as in the previous rows"
                    changed = wrong_value("version.changed", "info.wrapper_version", named, expected)
                    auditor.keep([changed], number, row, line)
                version = named or version
        if watcher is not None:
            watcher()
    return auditor.report(Path(path), [])
