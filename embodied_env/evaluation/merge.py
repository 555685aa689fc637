"""The summary of episodes that lie in several runs: that of one run with all of them in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from embodied_env.errors import RecordError
from embodied_env.record.rows import RESET, Row
from embodied_env.record.run import read_run
from embodied_env.record.summary import Summary


def merged_summary(where: Mapping[int, Path], fingerprint: str) -> dict[str, Any]:
    """Return the summary of the episodes in `where`, each in its run directory.

    Raises:
        RecordError: when one of them is not whole in its log.
    """
    summary = Summary()
    cursors: dict[Path, _Cursor] = {}
    for episode in sorted(where):
        path = where[episode]
        cursor = cursors.setdefault(path, _Cursor(path))
        for row in cursor.episode(episode):
            summary.add(row)
    return {**summary.as_json(fingerprint), "record": _record(cursors)}


def _record(paths: Iterable[Path]) -> dict[str, Any]:
    """Return what of these runs was not written, by those that were closed; an episode of the others is whole."""
    known = [manifest["record"] for path in paths if (manifest := read_run(path).manifest).get("clean")]
    return {
        "complete": all(record["complete"] for record in known),
        **{key: sum(record[key] for record in known) for key in ("lost_rows", "lost_messages")},
    }


class _Cursor:
    """Reads the episodes of a run forward, and from the start when one behind is asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rest = _episodes(path)

    def episode(self, number: int) -> list[Row]:
        for _ in range(2):
            for found, rows in self._rest:
                if found == number and (rows[-1].get("terminated") or rows[-1].get("truncated")):
                    return rows
            self._rest = _episodes(self._path)
        raise RecordError(f"{self._path}: episode {number} is not whole in its log")


def _episodes(path: Path) -> Iterator[tuple[int, list[Row]]]:
    """Yield number and rows of each episode; those of one at a time are in memory."""
    rows: list[Row] = []
    for row in read_run(path).rows():
        if row["schema"] == RESET and rows:
            yield rows[0]["info"]["episode_index"], rows
            rows = []
        rows.append(row)
    if rows:
        yield rows[0]["info"]["episode_index"], rows
