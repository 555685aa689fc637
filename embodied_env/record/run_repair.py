"""Repair of runs that ended uncleanly into indexed files, which stay unsound.

A file is copied message by message into a temporary one, which is read back, synced, and renamed to the name of the
file. Until then a failure, or the end of the process, leaves the file as it is.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from embodied_env.errors import RecordError, described
from embodied_env.record.manifest import write_json
from embodied_env.record.mcap_file import McapRecords, StoredRecord, regular_size
from embodied_env.record.mcap_writer import McapFile
from embodied_env.record.run import read_run
from embodied_env.record.run_writer import LOG, MANIFEST, MESSAGES
from embodied_env.timing.clock import NS_PER_S, SteadyClock


@dataclass(frozen=True, kw_only=True)
class RepairedFile:
    """A file that was completed."""

    name: str
    problem: str  # why it was not complete, or ""
    count: int  # messages: rows and arrays, or raw messages
    cut_bytes: int  # after the last whole record
    kept: str  # name under which the file with the bytes cut off is kept, or ""


@dataclass(frozen=True, kw_only=True)
class RepairReport:
    """Result of a repair."""

    path: Path
    problem: str  # why the run was not sound before, and still is not; "" for a sound run
    files: tuple[RepairedFile, ...]  # those that were not complete


def repair_run(path: str | Path) -> RepairReport:
    """Complete the files of the run at `path` idempotently, as a clean close does.

    Every whole record is kept, what follows the last one is cut off, and ``repaired`` in the manifest has the problem,
    the counts and the time. The audit keeps the problem of the run: a repaired run is never sound. A sound run is not
    marked. A file of which something is cut off is kept under another name.

    Raises:
        RecordError: if `path` is not a run directory, or the run is being recorded, or a file cannot be repaired,
            which leaves that file unchanged.
        MissingDependencyError: if mcap is not installed.
    """
    run = read_run(path)
    problem = run.problem
    names = [LOG, *([MESSAGES] if run.manifest.get("messages") else [])]
    files = tuple(file for name in names if (file := _repair_file(run.path / name)) is not None)
    marks = list(run.manifest.get("repaired") or [])
    if problem and (files or not marks):
        utc = datetime.fromtimestamp(SteadyClock().system_ns() / NS_PER_S, tz=UTC).isoformat(timespec="milliseconds")
        marks.append({"utc": utc, "problem": problem, "files": [asdict(file) for file in files]})
        if read_run(path).manifest != run.manifest:
            raise RecordError("the manifest changed during the repair (expected a run that has ended); repair it again")
        write_json(run.path / MANIFEST, {**run.manifest, "repaired": marks})
    return RepairReport(path=run.path, problem=problem, files=files)


def _repair_file(path: Path) -> RepairedFile | None:
    """Copy the whole messages of a file that is incomplete, or return None for a complete one."""
    found = _Content(path)
    if not found.records.problem:
        return None
    new, damaged = path.with_name(f".{path.name}.new"), path.with_suffix(f".damaged{path.suffix}")
    try:
        with _locked(path):
            _check_space(path)  # other runs may be recorded on the same disk
            try:
                new.unlink(missing_ok=True)  # of a repair that was killed; it could be a link
                expected = _copy(path, new, profile="ros2" if path.name == MESSAGES else "")
                written = _Content(new)
                if written.records.problem or (written.count, written.digest) != (expected.count, expected.digest):
                    raise RecordError(written.records.problem or "it was not written as it was read")
                cut_bytes = regular_size(path) - expected.records.end if expected.records.problem else 0
                if cut_bytes and not (damaged.exists() and damaged.samefile(path)):
                    damaged.hardlink_to(path)  # there may be whole records after a wrong length
                new.replace(path)
                _sync(path.parent, os.O_DIRECTORY)
            finally:
                with contextlib.suppress(OSError):
                    new.unlink()
    except RecordError as error:
        raise RecordError(f"{path.name} cannot be repaired: {error}") from None
    except Exception as error:  # noqa: BLE001 - of the libraries that encode and compress
        raise RecordError(f"{path.name} cannot be repaired: {described(error)}") from None
    return RepairedFile(
        name=path.name,
        problem=expected.records.problem,
        count=expected.count,
        cut_bytes=cut_bytes,
        kept=damaged.name if cut_bytes else "",
    )


class _Content:
    """Count and hash of the whole messages of a file, which are copied to `target` if given."""

    def __init__(self, path: Path, target: McapFile | None = None) -> None:
        self.records, self.count = McapRecords(path), 0
        digest = hashlib.sha256()
        copied: dict[int, tuple[Any, int]] = {}  # channel and schema of the file, and the number in the target
        schemas: dict[tuple[str, bytes], int] = {}
        for stored in self.records.messages():
            self.count += 1
            digest.update(b"%b %d\n" % (stored.channel.topic.encode(), len(stored.record.data)))
            digest.update(stored.record.data)
            if target is None:
                continue
            known, number = copied.get(stored.channel.id, (None, 0))
            if known != (stored.channel, stored.schema):
                number = _register(stored, target, schemas)
                copied[stored.channel.id] = (stored.channel, stored.schema), number
            record = stored.record
            target.add_message(
                number, [record.data], number=record.sequence, log_ns=record.log_time, publish_ns=record.publish_time
            )
            if target.is_full:
                target.flush()
        self.digest = digest.digest()


def _register(stored: StoredRecord, target: McapFile, schemas: dict[tuple[str, bytes], int]) -> int:
    """Add the channel of a message, and its schema once."""
    schema, schema_id = stored.schema, 0
    if schema is not None:
        if (schema.name, schema.data) not in schemas:
            schemas[schema.name, schema.data] = target.register_schema(schema.name, schema.encoding, schema.data)
        schema_id = schemas[schema.name, schema.data]
    channel = stored.channel
    return target.register_channel(channel.topic, channel.message_encoding, schema_id, channel.metadata)


def _copy(path: Path, new: Path, *, profile: str) -> _Content:
    """Copy the whole messages of a file to a new one, and sync it."""
    target = McapFile(new, profile=profile)
    try:
        target.begin()
        content = _Content(path, target)
    finally:
        target.close()
    if target.problem:
        raise RecordError(target.problem)
    _sync(new)
    return content


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock the file, or raise RecordError if another process records or repairs it."""
    regular_size(path)
    with path.open("r+b") as file:  # a lock on a network file system needs a file that is open for writing
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise RecordError("it is in use (expected a run that has ended)") from None
        if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
            raise RecordError("it was replaced by another process")
        yield


def _check_space(path: Path) -> None:
    if (size := regular_size(path)) > (free := shutil.disk_usage(path.parent).free):
        raise RecordError(f"{free} bytes are free on its disk (expected at least its size, {size})")


def _sync(path: Path, flags: int = 0) -> None:
    descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
