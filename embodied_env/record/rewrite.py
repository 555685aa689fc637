"""Rewrite journals as MCAP files that viewers open: with chunks, zstd compression and an index.

A journal is copied message by message into a temporary file, which is read back, synced, and renamed to the name of the
journal. Until then a failure, or the end of the process, leaves the journal as it is.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from embodied_env.contract import Contract
from embodied_env.core.extensions import PARTS, find_extension
from embodied_env.errors import RecordError, described
from embodied_env.record.arrays import RAW_IMAGE, Reference
from embodied_env.record.mcap_file import IndexedFile, McapRecords, StoredRecord, regular_size
from embodied_env.record.row_log import CHANNELS, find_stored_array, parse_row
from embodied_env.record.rows import Row

_MOST_WAITING = 2**28  # bytes of the arrays before one row


class Picture(Protocol):
    """An image of a row, in the form for viewers.

    Attributes:
        topic: topic of its message.
        reference: array that has its pixels.
        is_stacked: whether the array has more than this image.
    """

    topic: str
    reference: Reference
    is_stacked: bool

    def encode(self, data: bytes, ns: int, /) -> bytes | None:
        """Return the message of the type `RAW_IMAGE`, or None if `data` are not those of the image."""


class ViewMessages(Protocol):
    """Messages for viewers of the rows of one contract; its constructor takes the sensors of the contract."""

    def definition(self, schema: str, /) -> bytes:
        """Return the definition of a message type."""

    def pictures(self, row: Row, /) -> Iterable[Picture]:
        """Return the images of a row, of any JSON types."""

    def messages(self, row: Row, ns: int, /) -> Iterable[tuple[str, str, bytes]]:
        """Return topic, type and data of the other messages of a row, of any JSON types."""


@dataclass(frozen=True, kw_only=True)
class RewrittenFile:
    """A file that was rewritten."""

    name: str
    problem: str  # why it was not complete, or ""
    count: int  # rows or raw messages
    cut_bytes: int  # after the last whole record
    kept: str  # name under which the file with the bytes cut off is kept, or ""


def rewrite_log(path: Path, contract: Contract | None, *, repairs: bool = False) -> RewrittenFile:
    """Rewrite the rows and arrays at `path`, with the images, poses and joint states of the sensors of `contract`.

    An image that a viewer can draw is stored only in the form for viewers, from which its array is read. `repairs`:
    rewrite also a file that is not complete, up to its last whole record.

    Raises:
        RecordError: if the journal is in use, or cannot be rewritten; it is unchanged.
    """
    return _rewrite(path, "", lambda records, file: _copy_log(records, file, contract, path), repairs=repairs)


def rewrite_messages(path: Path, *, repairs: bool = False) -> RewrittenFile:
    """Rewrite the raw ROS 2 messages at `path`; see `rewrite_log`."""
    return _rewrite(path, "ros2", _copy_all, repairs=repairs)


def is_journal(path: Path) -> bool:
    """Return whether the file at `path` begins with a message outside of chunks."""
    first = next(McapRecords(path).messages(), None)
    return first is not None and first.place.chunk is None


def temporary_path(path: Path) -> Path:
    """Return the path of the file that replaces the journal at `path`."""
    return path.with_name(f".{path.name}.new")


class _Content:
    """The content that a rewritten file must have: messages in order, and arrays; those for viewers are additional."""

    def __init__(self) -> None:
        self.count = 0  # of the messages in order
        self._messages = hashlib.sha256()
        self._arrays: set[str] = set()

    def add(self, stored: StoredRecord) -> tuple[str, slice] | None:
        """Add a message; return the hash of its array and the place of the bytes in it, if it is one."""
        if (found := find_stored_array(stored)) is not None:
            sha256 = hashlib.sha256(memoryview(stored.record.data)[found]).hexdigest()
            self._arrays.add(sha256)
            return sha256, found
        if stored.channel.topic in CHANNELS or stored.channel.message_encoding != "protobuf":
            self.count += 1
            self._messages.update(stored.record.data + b"\n")
        return None

    def is_in(self, other: _Content) -> bool:
        """Return whether `other` has all of it."""
        return self._messages.digest() == other._messages.digest() and self._arrays <= other._arrays


def _rewrite(
    path: Path, profile: str, copy: Callable[[McapRecords, IndexedFile], _Content], *, repairs: bool
) -> RewrittenFile:
    new, damaged = temporary_path(path), path.with_suffix(f".damaged{path.suffix}")
    try:
        with _locked(path):
            _check_space(path)  # other runs may be recorded on the same disk
            try:
                for compresses in (True, False):
                    new.unlink(missing_ok=True)  # of a rewrite that was killed; it could be a link
                    with new.open("xb") as opened:
                        file, records = IndexedFile(opened, profile=profile, compresses=compresses), McapRecords(path)
                        expected = copy(records, file)
                        file.finish()
                        opened.flush()
                        os.fsync(opened.fileno())
                    written, found = McapRecords(new), _Content()
                    for stored in written.messages():
                        found.add(stored)
                    if not written.problem:  # else its chunks may expand too much, as those of flat images
                        break
                _check(records, expected, written, found, repairs=repairs)
                cut_bytes = regular_size(path) - records.end if records.problem else 0
                if cut_bytes and not (damaged.exists() and damaged.samefile(path)):
                    damaged.hardlink_to(path)  # there may be whole records after a wrong length
                new.replace(path)
                _sync_directory(path.parent)
            finally:
                with contextlib.suppress(OSError):
                    new.unlink()
    except RecordError as error:
        raise RecordError(f"{path.name} cannot be rewritten: {error}") from None
    except Exception as error:  # noqa: BLE001 - of the libraries that encode and compress
        raise RecordError(f"{path.name} cannot be rewritten: {described(error)}") from None
    return RewrittenFile(
        name=path.name,
        problem=records.problem,
        count=expected.count,
        cut_bytes=cut_bytes,
        kept=damaged.name if cut_bytes else "",
    )


def _check(records: McapRecords, expected: _Content, written: McapRecords, found: _Content, *, repairs: bool) -> None:
    """Raise RecordError unless a file was read to its end, and written as it was read."""
    if records.problem and not repairs:
        raise RecordError(records.problem)
    if written.problem or not expected.is_in(found):
        raise RecordError(written.problem or "it was not written as it was read")


def _copy_all(records: McapRecords, file: IndexedFile) -> _Content:
    content = _Content()
    for stored in records.messages():
        content.add(stored)
        file.copy(stored)
    return content


def _copy_log(records: McapRecords, file: IndexedFile, contract: Contract | None, path: Path) -> _Content:
    content, arrays = _Content(), _ArrayCopies(file, path)
    make_views = find_extension(PARTS["row_views"])
    views: ViewMessages | None = None if contract is None or make_views is None else make_views(contract.sensors)
    for stored in records.messages():
        if (array := content.add(stored)) is not None:
            arrays.add(stored, *array)
            continue
        if views is None or stored.channel.topic not in CHANNELS:
            arrays.copy_waiting()
            file.copy(stored)
            continue
        row, ns = _parse_row(stored.record.data), stored.record.log_time
        for picture in views.pictures(row):
            arrays.show(picture, views.definition(RAW_IMAGE), ns)
        arrays.copy_waiting()
        file.copy(stored)
        for topic, schema, message in views.messages(row, ns):
            file.add(topic, schema, views.definition(schema), message, ns=ns)
    arrays.copy_waiting()
    return content


class _ArrayCopies:
    """Copies arrays; they wait for the row that refers to them, because those that it shows become images."""

    def __init__(self, file: IndexedFile, path: Path) -> None:
        self._file, self._path = file, path
        self._waiting: dict[str, StoredRecord] = {}  # by hash
        self._places: dict[str, tuple[int, int]] = {}  # offset and size of the bytes of each in the journal
        self._shown: dict[str, str] = {}  # topic -> hash of the newest image

    def add(self, stored: StoredRecord, sha256: str, found: slice) -> None:
        size = len(stored.record.data)
        if size + sum(len(each.record.data) for each in self._waiting.values()) > _MOST_WAITING:
            self.copy_waiting()
        self._waiting[sha256] = stored
        self._places[sha256] = stored.place.end - size + found.start, found.stop - found.start

    def show(self, picture: Picture, definition: bytes, ns: int) -> None:
        """Write an image unless it is the newest of its topic."""
        sha256 = picture.reference["sha256"]
        if self._shown.get(picture.topic) == sha256 or sha256 not in self._places:
            return
        offset, size = self._places[sha256]
        with self._path.open("rb") as journal:
            journal.seek(offset)
            message = picture.encode(journal.read(size), ns)
        if message is not None:
            self._file.add(picture.topic, RAW_IMAGE, definition, message, ns=ns)
            self._shown[picture.topic] = sha256
            if not picture.is_stacked:
                self._waiting.pop(sha256, None)

    def copy_waiting(self) -> None:
        for stored in self._waiting.values():
            self._file.copy(stored)
        self._waiting.clear()


def _parse_row(data: bytes) -> Row:
    try:
        row = parse_row(data)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock the journal; raises RecordError if it is being recorded, or rewritten by another process."""
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


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
