"""Reading of runs, complete or truncated. All content is validated here before it is used."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from embodied_env.contract.argument_checks import checked_path
from embodied_env.contract.bounded_json import parse_json
from embodied_env.errors import RecordError
from embodied_env.record.mcap_file import McapRecords, regular_size
from embodied_env.record.message_log import StoredMessage, problem_of_messages, read_messages
from embodied_env.record.row_log import DEEPEST, LogReader
from embodied_env.record.row_schema import RUN, manifest_schema, reset_schema, schema_violations, transition_schema
from embodied_env.record.rows import RESET, TRANSITION, Row
from embodied_env.record.run_writer import LOG, MANIFEST, MESSAGES
from embodied_env.record.violation import Violation, short_repr, wrong_value

LARGEST_FILE = 2**26
"""Size of the largest JSON file that is read from a run, in bytes."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run directory. Rows are read from disk at each iteration, as plain dicts.

    Attributes:
        path: the run directory.
        manifest: the content of ``manifest.json``.
    """

    path: Path
    manifest: Mapping[str, Any]

    @property
    def clean(self) -> bool:
        """Whether the run was closed and its log is complete."""
        return not self.problem

    @functools.cached_property
    def problem(self) -> str:
        """Why the run is not clean, or ""; reads the whole log."""
        messages = self.path / MESSAGES if self.manifest.get("messages") else None
        of_files = self.manifest.get("problem") or self._log.problem or (messages and problem_of_messages(messages))
        if of_files:
            return str(of_files)
        if marks := self.manifest.get("repaired"):
            return f"{marks[0]['problem']}; repaired on {marks[0]['utc']}"
        if self.manifest.get("clean") is not True:
            return f"{MANIFEST}: the run was never closed"
        if self.manifest.get("rows_sha256") != self._log.rows_sha256:
            return f"{LOG}: the rows changed after recording: their SHA-256 is not rows_sha256 of {MANIFEST}"
        return ""

    def rows(self) -> Iterator[Row]:
        """Yield the rows of resets and transitions in order, up to the first incomplete one.

        Raises:
            RecordError: if a row violates its schema.
        """
        for number, row in enumerate(self._log):
            if violations := row_violations(row):
                message = f"{self.path / LOG}: row {number} is invalid: {violations[0].text}"
                raise RecordError(f"{message}; run the audit for all violations")
            yield row

    def unchecked_rows(self) -> Iterator[Any]:
        """Yield the rows as bounded JSON of any type, for code that validates them itself."""
        yield from self._log

    def array(self, reference: Mapping[str, Any]) -> NDArray[Any]:
        """Return the array that a row refers to: ``run.array(row["observation"]["front_image"])``.

        It is read-only and in C order. In a run that is still being written, only the arrays are found that were in the
        log at the first call.

        Raises:
            RecordError: if it is missing or damaged.
        """
        return self._log.array(reference)

    def messages(self) -> Iterator[StoredMessage]:
        """Yield the raw ROS 2 messages, if they were recorded, up to the first incomplete one."""
        if self.manifest.get("messages"):
            yield from read_messages(McapRecords(self.path / MESSAGES))

    @functools.cached_property
    def _log(self) -> LogReader:
        return LogReader(self.path / LOG)

    def transitions(self) -> Iterator[Row]:
        """Yield the rows of transitions."""
        return (row for row in self.rows() if row.get("schema") == TRANSITION)

    def resets(self) -> Iterator[Row]:
        """Yield the rows of resets."""
        return (row for row in self.rows() if row.get("schema") == RESET)


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
    """Open a run like `read_run`, but return the schema violations of its manifest.

    Keys with violations are left out of the manifest, except for "contract".
    """
    file = checked_path("path", path) / MANIFEST
    try:
        manifest = read_json(file)
    except ValueError as error:
        raise RecordError(f"not a run directory: {path} ({error})") from None
    named = manifest.get("schema") if isinstance(manifest, dict) else None
    if named != RUN:
        raise RecordError(f"{file}: unknown schema {short_repr(named)} (expected {RUN!r})")
    violations = schema_violations(manifest, manifest_schema())
    keys = {violation.field.partition(".")[0].partition("[")[0] for violation in violations}
    valid = {key: value for key, value in manifest.items() if key not in keys or key == "contract"}
    return Run(path=file.parent, manifest=valid), violations


def read_json(file: Path) -> Any:  # noqa: ANN401 - JSON types
    """Return the content of a JSON file of a run; raises ValueError unless it is a regular file of bounded JSON."""
    try:
        regular_size(file)
        with file.open("rb") as opened:
            return parse_json(opened.read(LARGEST_FILE + 1), max_bytes=LARGEST_FILE, max_depth=DEEPEST)
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {file}: {error}") from None


def row_violations(row: Any) -> list[Violation]:  # noqa: ANN401 - JSON types
    """Return the schema violations of a row; if an outer wrapper made it (``inner`` is null), its info is free."""
    schemas = {RESET: reset_schema, TRANSITION: transition_schema}
    named = row.get("schema") if isinstance(row, dict) else None
    if not isinstance(named, str) or named not in schemas:
        return [wrong_value("row.schema", "schema", named, " or ".join(schemas))]
    schema = schemas[named]()
    if row.get("inner", row) is None:
        properties = {**schema["properties"], "inner": {"type": "null"}, "info": {"type": "object"}}
        schema = {**schema, "properties": properties}
    return schema_violations(row, schema)
