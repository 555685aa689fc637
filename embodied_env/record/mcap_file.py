"""MCAP files without chunks: a flushed record survives a SIGKILL of the writer, and readers trust no declared length.

Bytes wait in memory until `McapFile.flush` hands them to the operating system in one write. Whether they survive a
power failure depends on the file system.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import stat
import struct
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import IO, Any

from embodied_env._version import __version__
from embodied_env.errors import MissingDependencyError, RecordError

LARGEST_RECORD = 2**28
"""Bytes of the largest MCAP record that is read."""

_MAX_WAITING = 2**18  # bytes that wait for `flush`
_LARGE = 2**17  # bytes that are written at once instead of being copied into a batch


def check_installed() -> None:
    """Raise MissingDependencyError if mcap is not installed."""
    _mcap("writer")


class McapFile:
    """An MCAP file being written, without chunks. After a failed write it refuses further ones.

    Attributes:
        path: the file.
        problem: why further writes are refused, or "".
        writer: the writer of the mcap library.
    """

    def __init__(self, path: Path, *, profile: str = "") -> None:
        """Create the file.

        Raises:
            RecordError: when it exists already or cannot be written.
            MissingDependencyError: when mcap is not installed.
        """
        writer = _mcap("writer")
        self.path, self.problem = path, ""
        self._checked = 0  # offset after the last byte that the last check found in the file
        self._is_changed = False
        try:  # appending, so that a file truncated by others stays shorter than what was written to it
            file = FileIO(path, "x", opener=lambda name, flags: os.open(name, flags | os.O_APPEND, 0o666))
        except OSError as error:
            raise RecordError(f"{path}: the log cannot be created: {error}") from None
        self._raw, self._file = file, BufferedFile(file)
        self.writer: Any = writer.Writer(
            self._file, compression=writer.CompressionType.NONE, use_chunking=False, enable_data_crcs=True
        )
        with self.guarded("the start of the log"):
            self.writer.start(profile=profile, library="embodied_env")

    @property
    def end(self) -> int:
        """Offset after the last byte written, flushed or not."""
        return self._file.tell()

    @property
    def flushed(self) -> int:
        """Offset after the last flushed byte."""
        return self._file.flushed

    @property
    def kept(self) -> int:
        """Offset after the last flushed byte that is still in the file, as far as known."""
        return self._checked if self._is_changed else self.flushed

    def begin(self) -> None:
        """Flush the header and the channels registered so far; mcap writes them only with a first record."""
        self.writer.add_metadata("embodied_env", {"version": __version__})
        self.flush()

    def flush(self) -> None:
        """Hand everything to the operating system, then check that `path` still has all of it.

        Raises:
            OSError: when it cannot be written, or others removed, replaced, truncated or extended the file.
        """
        if self._raw.closed:
            return
        self._file.flush()
        problem, self._checked = self._foreign_change()
        self._is_changed = bool(problem)
        if problem:
            raise OSError(f"{problem}; keep others away from a run that is being recorded")

    def _foreign_change(self) -> tuple[str, int]:
        """Return the change made by others, or "", and how many bytes are certainly left."""
        written = self.flushed
        try:
            found, own = os.stat(self.path), os.fstat(self._raw.fileno())  # noqa: PTH116 - faster, and called often
        except FileNotFoundError:
            return "the file was removed", 0
        if not os.path.samestat(found, own):
            return "the file was replaced", 0
        if (size := found.st_size) != written:
            kept = max(0, min(self._checked, size - (written - self._checked)))
            return f"the file was changed by others: {size} bytes (expected {written})", kept
        return "", written

    @contextlib.contextmanager
    def guarded(self, what: str) -> Iterator[None]:
        """Guard a write of `what`: once one has failed, raise RecordError for it and for every later one."""
        if self.problem:
            raise RecordError(f"{self.problem}; {what} is not written either")
        try:
            yield
        except OSError as error:
            self.problem = f"{self.path}: {what} cannot be written: {error}"
            raise RecordError(self.problem) from None

    def close(self) -> None:
        """Finish and close the file; idempotent. It never raises: `problem` has the reason."""
        if self._raw.closed:
            return
        with contextlib.suppress(RecordError), self.guarded("the end of the log"):
            self.writer.finish()
            self.flush()
        with contextlib.suppress(OSError):
            self._raw.close()


class BufferedFile:
    """Write buffer for mcap. After a failed write the rest of the buffer is dropped: the file has a prefix of the data.

    Attributes:
        flushed: bytes handed to the operating system.
    """

    def __init__(self, file: FileIO) -> None:
        """Write to `file`, which is empty, appends and is unbuffered."""
        self._file = file
        self._waiting: list[bytes] = []
        self._end = 0
        self.flushed = 0

    def write(self, data: bytes) -> int:
        """Buffer `data`; raises OSError when the buffer is full and cannot be written."""
        if len(data) >= _LARGE:
            self.flush()
        self._waiting.append(data)
        self._end += len(data)
        if len(data) >= _LARGE or self._end - self.flushed > _MAX_WAITING:
            self.flush()
        return len(data)

    def tell(self) -> int:
        """Return the offset after the last byte, flushed or not."""
        return self._end

    def flush(self) -> None:
        """Write the buffer; raises OSError when it cannot be written completely."""
        rest = memoryview(b"".join(self._waiting))
        self._waiting.clear()
        while rest:
            count = self._file.write(rest)
            self.flushed += count
            rest = rest[count:]


class McapRecords:
    """Iterates over the whole records of a file: kind, content, and the offset after it.

    No declared length makes it read or allocate more than the size of the file. Chunks, which no writer here makes, are
    refused: they could decompress to any size.

    Attributes:
        problem: after the iteration, why the file is not whole, or "".
    """

    def __init__(self, path: Path) -> None:
        """Read the file at `path`."""
        self._path, self.problem = path, ""

    def __iter__(self) -> Iterator[tuple[str, Any, int]]:
        """Yield the records up to the first that is not whole."""
        reader, exceptions = _mcap("stream_reader"), _mcap("exceptions")
        try:
            size = regular_size(self._path)
            with self._path.open("rb") as file:
                records = reader.StreamReader(
                    _BoundedFile(file, size),
                    emit_chunks=True,
                    validate_crcs=True,
                    record_size_limit=min(size, LARGEST_RECORD),
                ).records
                for record in records:
                    if type(record).__name__ == "Chunk":
                        self.problem = "it has a chunk (expected single messages)"
                        return
                    yield type(record).__name__, record, file.tell()
                if file.read(1):
                    self.problem = "it goes on behind its end"
        except OSError as error:
            self.problem = f"it cannot be read ({error.strerror})"
        except (exceptions.EndOfFile, exceptions.RecordLengthLimitExceeded, struct.error):
            self.problem = "it ends before its end was written: its writer was stopped"
        except (exceptions.McapError, ValueError) as error:
            self.problem = f"it is damaged ({type(error).__name__}: {error})"

    def messages(self) -> Iterator[tuple[str, Any, Any, int]]:
        """Yield the name of the schema, the channel, the message, and the offset after it, for each whole message."""
        schemas: dict[int, str] = {}
        channels: dict[int, Any] = {}
        for kind, record, end in self:
            if kind == "Schema":
                schemas[record.id] = record.name
            elif kind == "Channel":
                channels[record.id] = record
            elif kind == "Message" and (channel := channels.get(record.channel_id)) is not None:
                yield schemas.get(channel.schema_id, ""), channel, record, end


def regular_size(path: Path) -> int:
    """Return the size of a regular file in bytes; raises OSError for anything else, such as a pipe."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return status.st_size


class _BoundedFile:
    """Limits each read to the rest of the file: a buffered read allocates the length it is given."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._left = file, size

    def read(self, length: int) -> bytes:
        data = self._file.read(min(length, self._left) if length >= 0 else 0)
        self._left -= len(data)
        return data


def _mcap(module: str) -> Any:  # noqa: ANN401 - a module without type information
    try:
        return importlib.import_module(f"mcap.{module}")
    except ImportError:
        raise MissingDependencyError(
            "mcap", needed_for="recording", remedy='pip install "embodied_env[record]"'
        ) from None
