"""Reading of runs, complete or truncated, whose content is validated before its use."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from numpy.typing import NDArray

from embodied_env.contract.argument_checks import checked_path
from embodied_env.contract.bounded_json import parse_json
from embodied_env.errors import RecordError
from embodied_env.record.mcap_file import McapRecords, regular_size
from embodied_env.record.message_log import StoredMessage, problem_of_messages, read_messages
from embodied_env.record.row_log import DEEPEST, LogReader, RowChain, start_of_chain
from embodied_env.record.row_schema import Violation, manifest_violations, short_repr, validate_row
from embodied_env.record.row_types import (
    RESET,
    RUN,
    TRANSITION,
    Manifest,
    RecordedReset,
    RecordedRow,
    RecordedTransition,
)
from embodied_env.record.run_writer import LOG, MANIFEST, MESSAGES

LARGEST_FILE = 2**26  # size of the largest JSON file that is read from a run, in bytes


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run directory, whose rows are read from disk at each iteration, as plain dicts.

    Attributes:
        path: the run directory.
        manifest: the content of ``manifest.json``; `inspect_run` leaves out keys with violations.
    """

    path: Path
    manifest: Manifest = field(repr=False)

    @property
    def clean(self) -> bool:
        """Whether the run was closed and its log is complete."""
        return not self.problem

    @functools.cached_property
    def problem(self) -> str:
        """Why the run is not clean, or "", after reading the whole log."""
        if (known := self.manifest.get("problem")) or self.log.problem:
            return str(known or self.log.problem + self._missing_rows())
        if self.manifest.get("messages") and (problem := problem_of_messages(self.path / MESSAGES)):
            return problem
        if marks := self.manifest.get("repaired"):
            return f"{marks[0]['problem']}; repaired on {marks[0]['utc']}"
        if self.manifest.get("clean") is not True:
            return f"{MANIFEST}: the run was never closed"
        return self._problem_of_chain()

    def _problem_of_chain(self) -> str:
        """Return why the rows are not those of the manifest, or ""."""
        content, stated = self.log.content, self.manifest.get("chain")
        chain = content.chain
        if stated is None and not chain.start and not chain.problem:  # recorded before rows had a chain
            is_same = self.manifest.get("rows_sha256") == content.rows_sha256
            found = f"{LOG}: the rows changed after recording: their SHA-256 is not rows_sha256 of {MANIFEST}"
            return "" if is_same else found
        start = start_of_chain(self.manifest)
        made = chain.as_json() if chain.rows else RowChain(start).as_json()
        if chain.problem:
            return f"{LOG}: the rows changed after recording: {chain.problem}"
        if chain.rows and chain.start != start:
            return f"{MANIFEST}: it is not that of the rows: row 0 has the hash of another run, contract or backend"
        if stated != made:
            return f"{LOG}: the rows changed after recording: {json.dumps(made)} (expected chain of {MANIFEST})"
        return ""

    def _missing_rows(self) -> str:
        """Return which rows a log of a stopped writer lacks."""
        period_s = self.manifest.get("flush_period_s")
        if not self.log.content.is_cut or not isinstance(period_s, (int, float)):
            return ""
        return f"; rows of the last {period_s:g} s before that may be missing"

    def rows(self) -> Iterator[RecordedRow]:
        """Yield the rows up to the first incomplete one, or raise RecordError for an invalid one."""
        for number, value in enumerate(self.log):
            row, violations = validate_row(value)
            if row is None:
                message = f"{self.path / LOG}: row {number} is invalid: {violations[0].text}"
                raise RecordError(f"{message}; run the audit for all violations")
            yield row

    @property
    def chain(self) -> RowChain:
        """The hash chain of the rows up to the first incomplete one, after reading the whole log."""
        return self.log.content.chain

    def array(self, reference: Mapping[str, Any]) -> NDArray[Any]:
        """Return the array of a reference, as in ``run.array(row["observation"]["image"])``.

        It is read-only and in C order. In a run that is still being written, only the arrays are found that were in the
        log at the first call.

        Raises:
            RecordError: if it is missing or damaged.
        """
        return self.log.array(reference)

    def messages(self) -> Iterator[StoredMessage]:
        """Yield the raw ROS 2 messages, if they were recorded, up to the first incomplete one."""
        if self.manifest.get("messages"):
            yield from read_messages(McapRecords(self.path / MESSAGES))

    @functools.cached_property
    def log(self) -> LogReader:
        """The reader of its rows as bounded JSON of any type, for code that validates them itself."""
        return LogReader(self.path / LOG)

    def transitions(self) -> Iterator[RecordedTransition]:
        """Yield the rows of transitions."""
        for row in self.rows():
            if row["schema"] == TRANSITION:
                yield row

    def resets(self) -> Iterator[RecordedReset]:
        """Yield the rows of resets."""
        for row in self.rows():
            if row["schema"] == RESET:
                yield row


def read_run(path: str | Path) -> Run:
    """Open the run directory at `path`.

    Raises:
        UsageError: if `path` is not a path.
        RecordError: if it is not a run directory, or its manifest cannot be read or violates its schema.
        MissingDependencyError: at the first row, if mcap is not installed.
    """
    run, violations = inspect_run(path)
    if violations:
        raise RecordError(f"invalid manifest {run.path / MANIFEST}: {violations[0].text}")
    return run


def inspect_run(path: str | Path) -> tuple[Run, list[Violation]]:
    """Open a run without keys of the manifest that have violations, and return these."""
    file = checked_path("path", path) / MANIFEST
    try:
        manifest = read_json(file)
    except ValueError as error:
        raise RecordError(f"not a run directory: {path}: {error} (expected a folder such as runs/<id>)") from None
    named = manifest.get("schema") if isinstance(manifest, dict) else None
    if named != RUN:
        raise RecordError(f"{file}: unknown schema {short_repr(named)} (expected {RUN!r})")
    violations = manifest_violations(manifest)
    keys = {violation.field.partition(".")[0].partition("[")[0] for violation in violations}
    valid = {key: value for key, value in manifest.items() if key not in keys or key == "contract"}
    return Run(path=file.parent, manifest=cast("Manifest", valid)), violations


def read_json(file: Path) -> Any:  # noqa: ANN401 - JSON types
    """Return the bounded JSON of a regular file of a run, or raise ValueError."""
    try:
        regular_size(file)
        with file.open("rb") as opened:
            return parse_json(opened.read(LARGEST_FILE + 1), max_bytes=LARGEST_FILE, max_depth=DEEPEST)
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {file}: {error}") from None
