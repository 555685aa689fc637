"""Rewriting the files of a recorded run, so that it is consistent except for the intended change."""

from __future__ import annotations

import json
from pathlib import Path

from embodied_env.record.row_log import LogReader, LogWriter
from embodied_env.record.rows import RESET, TRANSITION


def rewrite_log(path: Path, rows) -> None:
    """Replace the log of the run at `path` by `rows`, of any JSON type, and their hashes and copies in other files."""
    log = path / "transitions.mcap"
    log.unlink()
    writer = LogWriter(log)
    for row in rows:
        named = row if isinstance(row, dict) else {}
        topic = "reset" if named.get("schema") == RESET else "transition"
        writer._add_message(topic, json.dumps(row).encode(), 0, 0)  # including rows that `append` rejects
    writer.close()
    steps = [row for row in rows if isinstance(row, dict) and row.get("schema") == TRANSITION]
    if steps:
        (path / "first_transition.json").write_text(json.dumps(steps[0]))
    seal(path)


def seal(path: Path) -> None:
    """Write the hash of the rows to the manifest."""
    file = path / "manifest.json"
    file.write_text(
        json.dumps({**json.loads(file.read_text()), "rows_sha256": LogReader(path / "transitions.mcap").rows_sha256})
    )
