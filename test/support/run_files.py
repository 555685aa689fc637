"""Rewriting the files of a recorded run, so that it is consistent except for the intended change."""

from __future__ import annotations

import json
from pathlib import Path

from embodied_env.record.arrays import encode_array, references
from embodied_env.record.mcap_file import McapRecords
from embodied_env.record.row_log import CHANNELS, LogReader, LogWriter
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


def as_journal(path: Path) -> Path:
    """Make the log of the run at `path` a journal again, as before its rewrite; return the log."""
    log = path / "transitions.mcap"
    reader, stored = LogReader(log), list(McapRecords(log).messages())
    found = [(reference, reader.array(reference)) for row in reader for _, reference in references(row)]
    arrays = [(reference, encode_array(array)[0]) for reference, array in found]
    log.unlink()
    writer = LogWriter(log)
    for reference, message in arrays:
        writer.put(reference, message, log_time_ns=0)
    rows = [each for each in stored if each.channel.topic in CHANNELS]
    for number, each in enumerate(rows):
        data, ns = each.record.data, each.record.log_time
        writer.append(each.channel.topic, data, number=number, log_time_ns=ns)
    writer.close()
    return log


def seal(path: Path) -> None:
    """Write the hash of the rows to the manifest."""
    file = path / "manifest.json"
    file.write_text(
        json.dumps({**json.loads(file.read_text()), "rows_sha256": LogReader(path / "transitions.mcap").rows_sha256})
    )
