"""MCAP files without chunks: a flushed record survives a SIGKILL of the writer, and readers trust no declared length.

Bytes are buffered until `McapFile.flush` passes them to the operating system in one write. Whether they survive a power
failure depends on the file system.
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
"""Size of the largest MCAP record that is read, in bytes."""

_MAX_BUFFERED = 2**18
_LARGE = 2**17  # bytes that are written at once instead of being copied into the buffer


def check_installed() -> None:
    """Raise MissingDependencyError if mcap is not installed."""
    _mcap("writer")


class McapFile:
    """Writes an MCAP file without chunks. After a failed write it refuses further ones.

    Attributes:
        path: the file.
        problem: why further writes are refused, or "".
        writer: the writer of the mcap library.
    """

    def __init__(self, path: Path, *, profile: str = "") -> None:
        """Create the file; raises RecordError if it exists or cannot be written."""
        writer = _mcap("writer")
        self.path, self.problem = path, ""
        self._checked = 0  # offset after the last byte that the last check found in the file
        self._is_changed = False
        try:  # appending, so that a file truncated by another process stays shorter than what was written to it
            file = FileIO(path, "x", opener=lambda name, flags: os.open(name, flags | os.O_APPEND, 0o666))
        except OSError as error:
            raise RecordError(f"cannot create the log {path}: {error}") from None
        self._raw, self._file = file, BufferedFile(file)
        self.writer: Any = writer.Writer(
            self._file, compression=writer.CompressionType.NONE, use_chunking=False, enable_data_crcs=True
        )
        with self.guarded("the header"):
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
        """Offset after the last flushed byte that was still in the file at the last check."""
        return self._checked if self._is_changed else self.flushed

    def begin(self) -> None:
        """Flush the header and the channels registered so far; mcap writes them with the first record."""
        self.writer.add_metadata("embodied_env", {"version": __version__})
        self.flush()

    def add_message(self, channel_id: int, data: bytes, *, number: int, log_ns: int, publish_ns: int) -> None:
        """Append a message without flushing."""
        self.writer.add_message(channel_id, log_ns, data, publish_ns, number % 2**32)

    def flush(self) -> None:
        """Pass everything to the operating system, then check that `path` still has all of it; raises OSError."""
        if self._raw.closed:
            return
        self._file.flush()
        problem, self._checked = self._foreign_change()
        self._is_changed = bool(problem)
        if problem:
            raise OSError(f"{problem}; do not modify a run while it is being recorded")

    def _foreign_change(self) -> tuple[str, int]:
        """Return the change made by another process, or "", and the number of bytes that are certainly left."""
        written = self.flushed
        try:
            found, own = os.stat(self.path), os.fstat(self._raw.fileno())  # noqa: PTH116 - faster, and called often
        except FileNotFoundError:
            return "the file was removed", 0
        if not os.path.samestat(found, own):
            return "the file was replaced", 0
        if (size := found.st_size) != written:
            kept = max(0, min(self._checked, size - (written - self._checked)))
            return f"another process changed the file: {size} bytes (expected {written})", kept
        return "", written

    @contextlib.contextmanager
    def guarded(self, what: str) -> Iterator[None]:
        """Guard a write of `what`: after a failure, raise RecordError for it and for every later write."""
        if self.problem:
            raise RecordError(f"{self.problem}; {what} was not written either")
        try:
            yield
        except OSError as error:
            self.problem = f"{self.path}: cannot write {what}: {error}"
            raise RecordError(self.problem) from None

    def close(self) -> None:
        """Finish and close the file; idempotent. It never raises: `problem` has the error."""
        if self._raw.closed:
            return
        with contextlib.suppress(RecordError), self.guarded("the footer"):
            self.writer.finish()
            self.flush()
        with contextlib.suppress(OSError):
            self._raw.close()


class BufferedFile:
    """Write buffer of an empty, unbuffered, appending `file`.

    A failed write drops the rest of the buffer, so that the file has a prefix of the data.

    Attributes:
        flushed: bytes passed to the operating system.
    """

    def __init__(self, file: FileIO) -> None:
        self._file = file
        self._buffer: list[bytes] = []
        self._end = 0
        self.flushed = 0

    def write(self, data: bytes) -> int:
        """Buffer `data`; raises OSError when the buffer is full and cannot be written."""
        if len(data) >= _LARGE:
            self.flush()
        self._buffer.append(data)
        self._end += len(data)
        if len(data) >= _LARGE or self._end - self.flushed > _MAX_BUFFERED:
            self.flush()
        return len(data)

    def tell(self) -> int:
        """Return the offset after the last byte, flushed or not."""
        return self._end

    def flush(self) -> None:
        """Write the buffer; raises OSError when it cannot be written completely."""
        rest = memoryview(b"".join(self._buffer))
        self._buffer.clear()
        while rest:
            count = self._file.write(rest)
            self.flushed += count
            rest = rest[count:]


class McapRecords:
    """Iterates over the complete records of a file: kind, content, and the offset after it.

    It never reads or allocates more than the size of the file, whatever length is declared. Chunks are refused, because
    they could decompress to any size; `McapFile` writes none.

    Attributes:
        problem: after the iteration, why the file is not complete, or "".
    """

    def __init__(self, path: Path) -> None:
        self._path, self.problem = path, ""

    def __iter__(self) -> Iterator[tuple[str, Any, int]]:
        """Yield the records up to the first incomplete one."""
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
                        self.problem = "unexpected chunk (expected single messages)"
                        return
                    yield type(record).__name__, record, file.tell()
                if file.read(1):
                    self.problem = "unexpected data after the end"
        except OSError as error:
            self.problem = f"cannot be read ({error.strerror})"
        except (exceptions.EndOfFile, exceptions.RecordLengthLimitExceeded, struct.error):
            self.problem = "truncated, because its writer was stopped"
        except (exceptions.McapError, ValueError) as error:
            self.problem = f"damaged ({type(error).__name__}: {error})"

    def messages(self) -> Iterator[tuple[str, Any, Any, int]]:
        """Yield the name of the schema, the channel, each complete message, and the offset after it."""
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
    """Limits each read to the rest of the file, because a buffered read allocates the requested length."""

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
