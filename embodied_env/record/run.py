"""Reading a run back, whole or cut short; everything in it is validated here before anyone computes with it."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from embodied_env.core.arguments import checked_path
from embodied_env.core.bounded_json import parse_json
from embodied_env.errors import RecordError
from embodied_env.record.audit.violation import Violation, make_violation, short_repr
from embodied_env.record.mcap_file import regular_size
from embodied_env.record.mcap_log import DEEPEST, LogReader
from embodied_env.record.raw_messages import StoredMessage, problem_of_messages, read_messages
from embodied_env.record.rows import RESET, TRANSITION, Row
from embodied_env.record.run_writer import LOG, MANIFEST, MESSAGES
from embodied_env.record.schema import RUN, manifest_schema, reset_schema, schema_violations, transition_schema

LARGEST_FILE = 2**26
"""Bytes of a JSON file that is read from a run."""


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
        """The run was closed, and its log is whole."""
        return not self.problem

    @functools.cached_property
    def problem(self) -> str:
        """Why the run is not clean, in a sentence, or "". The whole log is read to know it."""
        if said := self.manifest.get("problem"):
            return str(said)
        if self._log.problem:
            return self._log.problem
        if self.manifest.get("messages") and (problem := problem_of_messages(self.path / MESSAGES)):
            return problem
        if self.manifest.get("clean") is not True:
            return f"{MANIFEST}: the run was never closed"
        if self.manifest.get("rows_sha256") != self._log.rows_sha256:
            return f"{LOG}: the rows are not those that were recorded: their hash is not rows_sha256 of {MANIFEST}"
        return ""

    def rows(self) -> Iterator[Row]:
        """Yield every row, of resets and of transitions, in the order of the run; up to the first that is not whole.

        Raises:
            RecordError: when a row does not fit its schema.
        """
        for number, row in enumerate(self._log):
            if broken := problems_of_row(row):
                raise RecordError(
                    f"{self.path / LOG}: row {number} is not valid: {broken[0].text}; the audit of the run lists it all"
                )
            yield row

    def unchecked_rows(self) -> Iterator[Any]:
        """Yield the rows as bounded JSON of any type: for those that tell what is wrong with them."""
        yield from self._log

    def array(self, reference: Mapping[str, Any]) -> NDArray[Any]:
        """Return the array beside a row, by the reference in it: ``run.array(row["observation"]["front_image"])``.

        It is read-only, in C order, with every bit that was recorded. Of a run that is still being written, the arrays
        are known that were there at the first call.

        Raises:
            RecordError: when the log does not have it, or not as it was written.
        """
        return self._log.array(reference)

    def messages(self) -> Iterator[StoredMessage]:
        """Yield the raw ROS 2 messages, where they were asked for; up to the first that is not whole."""
        if self.manifest.get("messages"):
            yield from read_messages(self.path / MESSAGES)

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
        UsageError: when `path` is no path.
        RecordError: when it is not a run directory, or its manifest cannot be read or does not fit its schema.
        MissingDependencyError: at the first row, when mcap is not installed.
    """
    run, broken = inspect_run(path)
    if broken:
        raise RecordError(f"{run.path / MANIFEST} is not valid: {broken[0].text}")
    return run


def inspect_run(path: str | Path) -> tuple[Run, list[Violation]]:
    """Open the run directory at `path`, and return what of its manifest does not fit its schema.

    Keys that do not fit are left out, but for "contract".

    Raises:
        UsageError: when `path` is no path.
        RecordError: when it is not a run directory, or its manifest is no JSON of a run.
    """
    file = checked_path("path", path) / MANIFEST
    try:
        manifest = read_json(file)
    except ValueError as error:
        raise RecordError(f"{path} is not a run directory: {error}") from None
    said = manifest.get("schema") if isinstance(manifest, dict) else None
    if said != RUN:
        raise RecordError(f"{file}: the schema {short_repr(said)} is not known; allowed: {RUN!r}")
    broken = schema_violations(manifest, manifest_schema())
    keys = {violation.field.partition(".")[0].partition("[")[0] for violation in broken}
    fitting = {key: value for key, value in manifest.items() if key not in keys or key == "contract"}
    return Run(path=file.parent, manifest=fitting), broken


def read_json(file: Path) -> Any:  # noqa: ANN401 - JSON types
    """Return the content of a JSON file of a run.

    Raises:
        ValueError: when it is not a regular file of bounded JSON.
    """
    try:
        regular_size(file)
        with file.open("rb") as opened:
            return parse_json(opened.read(LARGEST_FILE + 1), max_bytes=LARGEST_FILE, max_depth=DEEPEST)
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from None


def problems_of_row(row: Any) -> list[Violation]:  # noqa: ANN401 - JSON types
    """Return what of a row does not fit its schema.

    Rows that an outer wrapper made up (``inner`` is null) have an info of any form.
    """
    schemas = {RESET: reset_schema, TRANSITION: transition_schema}
    said = row.get("schema") if isinstance(row, dict) else None
    if not isinstance(said, str) or said not in schemas:
        return [
            make_violation("row.schema", "schema", said, f"schema is {short_repr(said)}; allowed: {', '.join(schemas)}")
        ]
    schema = schemas[said]()
    if row.get("inner", row) is None:
        schema = _made_up(said)
    return schema_violations(row, schema)


@functools.cache
def _made_up(kind: str) -> dict[str, Any]:
    schema = reset_schema() if kind == RESET else transition_schema()
    return {**schema, "properties": {**schema["properties"], "inner": {"type": "null"}, "info": {"type": "object"}}}
