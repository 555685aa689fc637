"""MCAP files without chunks: written so that what was flushed survives a SIGKILL, read so that no length is trusted.

Bytes wait in memory until `McapFile.flush` hands them to the operating system in one go. What is lost when the machine
itself stops is up to its file system.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import stat
import struct
from collections.abc import Generator, Iterator
from io import FileIO
from pathlib import Path
from typing import IO, Any

from embodied_env._version import __version__
from embodied_env.errors import MissingDependencyError, RecordError

LARGEST_RECORD = 2**28
"""Bytes of a record of MCAP that is read."""

_MOST_HELD = 2**18  # bytes that wait for `flush`; more are handed over at once

_LARGE = 2**17  # bytes that are not copied once more to go with others


def check_installed() -> None:
    """Raise MissingDependencyError when logs cannot be written or read here."""
    _mcap("writer")


class McapFile:
    """An MCAP file that is being written, without chunks. After a failed write it takes no more.

    Attributes:
        writer: mcap's.
    """

    def __init__(self, path: Path, *, profile: str = "") -> None:
        """Create the file.

        Raises:
            RecordError: when it exists already or cannot be written.
            MissingDependencyError: when mcap is not installed.
        """
        writer = _mcap("writer")
        self.path = path
        self._problem = ""
        self._checked = 0  # offset behind the last byte that was in the file at the last check
        self._is_changed = False
        try:
            self._file = BufferedFile(FileIO(path, "x", opener=_append))
        except OSError as error:
            raise RecordError(f"{path}: the log cannot be created: {error}") from None
        self.writer: Any = writer.Writer(
            self._file, compression=writer.CompressionType.NONE, use_chunking=False, enable_data_crcs=True
        )
        with self.guarded("the start of the log"):
            self.writer.start(profile=profile, library="embodied_env")

    @property
    def problem(self) -> str:
        """Why no more is taken, or ""."""
        return self._problem

    @property
    def end(self) -> int:
        """Offset behind the last byte that was written, flushed or not."""
        return self._file.tell()

    @property
    def flushed(self) -> int:
        """Offset behind the last byte that is with the operating system."""
        return self._file.flushed

    def begin(self) -> None:
        """Hand the header to the operating system, and the channels that are known; only mcap's metadata does so."""
        self.writer.add_metadata("embodied_env", {"version": __version__})
        self.flush()

    @property
    def kept(self) -> int:
        """Offset behind the last flushed byte that others are not known to have removed."""
        return self._checked if self._is_changed else self.flushed

    def flush(self) -> None:
        """Hand everything to the operating system, then check that `path` still holds all of it.

        Raises:
            OSError: when it cannot be written, or the file was removed, replaced, truncated or written to by others.
        """
        if self._file.closed:
            return
        self._file.flush()
        problem, kept = self._foreign_change()
        self._is_changed, self._checked = bool(problem), kept
        if problem:
            raise OSError(f"{problem}; keep others away from a run that is being recorded")

    def _foreign_change(self) -> tuple[str, int]:
        """Return what others did to the file, or "", and how many of its bytes are certainly left."""
        written = self.flushed
        try:
            found, own = os.stat(self.path), os.fstat(self._file.fileno())  # noqa: PTH116 - quicker, and called often
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
        """Around a write of `what`: the first that fails is the last; raises RecordError, then and ever after."""
        if self._problem:
            raise RecordError(f"{self._problem}; {what} is not written either")
        try:
            yield
        except OSError as error:
            self._problem = f"{self.path}: {what} cannot be written: {error}"
            raise RecordError(self._problem) from None

    def close(self) -> None:
        """Finish the file and close it. Idempotent; never raises: `problem` says what went wrong."""
        if self._file.closed:
            return
        with contextlib.suppress(RecordError), self.guarded("the end of the log"):
            self.writer.finish()
            self.flush()
        with contextlib.suppress(OSError):
            self._file.close()


class BufferedFile:
    """What `mcap` writes to. After a failed write the rest of what waited is dropped: the file has a prefix of it all.

    Attributes:
        flushed: how many bytes are with the operating system.
    """

    def __init__(self, file: FileIO) -> None:
        """Write to `file`, which is empty, appends and has no buffer of its own; it is closed with this one."""
        self._file = file
        self._waiting: list[bytes] = []
        self._end = 0
        self.flushed = 0

    @property
    def closed(self) -> bool:
        """Nothing can be written any more."""
        return self._file.closed

    def write(self, data: bytes) -> int:
        """Let `data` wait; raises OSError when too much waits and cannot be written."""
        if len(data) >= _LARGE:
            self.flush()
        self._waiting.append(data)
        self._end += len(data)
        if len(data) >= _LARGE or self._end - self.flushed > _MOST_HELD:
            self.flush()
        return len(data)

    def tell(self) -> int:
        """Return the offset behind the last byte, flushed or not."""
        return self._end

    def flush(self) -> None:
        """Hand over what waits; raises OSError when it cannot be written whole."""
        rest = memoryview(b"".join(self._waiting))
        self._waiting.clear()
        while rest:
            count = self._file.write(rest)
            self.flushed += count
            rest = rest[count:]

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self._file.fileno()

    def close(self) -> None:
        """Close the file; what was not flushed is dropped."""
        self._file.close()


def mcap_records(path: Path) -> Generator[tuple[str, Any, int], None, str]:
    """Yield kind, content and the offset behind it of each whole record; return why the file is not whole, or "".

    No declared length makes it read or allocate more than the file has. Chunks, which no writer here makes,
    are refused: they may decompress to any size.
    """
    reader, exceptions = _mcap("stream_reader"), _mcap("exceptions")
    try:
        size = regular_size(path)
        with path.open("rb") as file:
            stream = _Bounded(file, size)
            for record in reader.StreamReader(
                stream, emit_chunks=True, validate_crcs=True, record_size_limit=min(size, LARGEST_RECORD)
            ).records:
                if type(record).__name__ == "Chunk":
                    return "it has a chunk (expected single messages)"
                yield type(record).__name__, record, file.tell()
            rest = file.read(1)
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    except (exceptions.EndOfFile, exceptions.RecordLengthLimitExceeded, struct.error):
        return "it ends before its end was written: its writer was stopped"
    except (exceptions.McapError, ValueError) as error:
        return f"it is damaged ({type(error).__name__}: {error})"
    return "it goes on behind its end" if rest else ""


def regular_size(path: Path) -> int:
    """Return the size of a regular file in bytes; raises OSError for anything else, a pipe for one."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return status.st_size


def _append(path: str, flags: int) -> int:
    """Open to append, so that a file that others truncate stays shorter than what was written to it."""
    return os.open(path, flags | os.O_APPEND, 0o666)


class _Bounded:
    """A file of which no more is asked than it has: a buffered read allocates the length it is given."""

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
