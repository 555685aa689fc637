"""Reading a run back, whole or cut short."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from embodied_env.arguments import checked_path
from embodied_env.errors import RecordError
from embodied_env.record.log import LogReader
from embodied_env.record.manifest import RUN
from embodied_env.record.messages import StoredMessage, problem_of_messages, read_messages
from embodied_env.record.rows import RESET, TRANSITION, Row
from embodied_env.record.run_writer import LOG, MANIFEST, MESSAGES


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
        return "" if self.manifest.get("clean") is True else f"{MANIFEST}: the run was never closed"

    def rows(self) -> Iterator[Row]:
        """Yield every row, of resets and of transitions, in the order of the run; up to the first that is not whole."""
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
        RecordError: when it is not a run directory, or its manifest cannot be read.
        MissingDependencyError: at the first row, when mcap is not installed.
    """
    file = checked_path("path", path) / MANIFEST
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"{path} is not a run directory: {file} cannot be read: {error}") from None
    found = manifest.get("schema") if isinstance(manifest, dict) else None
    if found != RUN:
        raise RecordError(f"{file}: the schema {found!r} is not known; allowed: {RUN!r}")
    return Run(path=Path(path), manifest=manifest)
