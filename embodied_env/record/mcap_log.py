"""The log of a run: an MCAP file of JSON rows in which every row that was flushed survives a SIGKILL of its writer.

There are no chunks. Rows wait in memory until `flush` hands them to the operating system in one go (`write` does both).
What is lost when the machine itself stops is up to its file system. An array that rows refer to is a message of its
own, before the first of them. It is not compressed: zlib at its quickest takes ten times as long as its hash, and more
than a millisecond for an image of 640x480.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import importlib
import json
import os
import stat
import struct
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import IO, Any

from numpy.typing import NDArray

from embodied_env._version import __version__
from embodied_env.core.bounded_json import parse_json
from embodied_env.errors import MissingDependencyError, RecordError
from embodied_env.record.arrays import Reference, from_bytes, is_reference, refer_to, to_bytes
from embodied_env.record.rows import RESET, TRANSITION
from embodied_env.record.schema import reset_channel_schema, transition_channel_schema

_MOST_HELD = 2**18  # bytes that wait for `flush`; more are handed over at once
_LARGE = 2**17  # bytes that are not copied once more to go with others


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


CHANNELS = {"transition": (TRANSITION, transition_channel_schema), "reset": (RESET, reset_channel_schema)}
"""Topic -> the name of its rows' schema, and the schema of the channel."""

LARGEST_RECORD = 2**28
"""Bytes of a record of MCAP that is read."""

LARGEST_ROW = 2**26
"""Bytes of the JSON of a row that is read."""

DEEPEST = 64
"""Levels of nesting of JSON that is read from a run."""

ARRAYS = "array"
"""The topic of the bytes that rows refer to."""

_ABOUT_ARRAYS = {
    "data": "one array in C order, little-endian; rows name dtype and shape, and the SHA-256 of these bytes"
}


def _mcap(module: str) -> Any:  # noqa: ANN401 - a module without type information
    try:
        return importlib.import_module(f"mcap.{module}")
    except ImportError:
        raise MissingDependencyError(
            "mcap", needed_for="recording", remedy='pip install "embodied_env[record]"'
        ) from None


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


def _append(path: str, flags: int) -> int:
    """Open to append, so that a file that others truncate stays shorter than what was written to it."""
    return os.open(path, flags | os.O_APPEND, 0o666)


class LogWriter:
    """Writes rows in order. After a failed write it takes no more, and the file keeps every row before it."""

    def __init__(self, path: Path) -> None:
        """Create the file.

        Raises:
            RecordError: when it exists already or cannot be written.
            MissingDependencyError: when mcap is not installed.
        """
        self._file = McapFile(path)
        self._stored: set[str] = set()  # hashes of the arrays that are in the log
        self._waiting: deque[tuple[int, int]] = deque()  # number and end of the rows that are not flushed
        self._ends = array("Q")  # of the rows that are flushed
        self._digest = hashlib.sha256()
        with self._file.guarded("the start of the log"):
            self._channels = {topic: self._register(topic) for topic in CHANNELS}
            self._channels[ARRAYS] = self._file.writer.register_channel(ARRAYS, "raw", 0, _ABOUT_ARRAYS)
            self._file.begin()

    @property
    def problem(self) -> str:
        """Why no more rows are taken, or ""."""
        return self._file.problem

    @property
    def rows_flushed(self) -> int:
        """How many rows are with the operating system, and were not removed by others."""
        return len(self._ends)

    @property
    def rows_sha256(self) -> str:
        """The SHA-256 of the rows so far: of the JSON text of each, followed by a newline."""
        return self._digest.hexdigest()

    def write(self, topic: str, row: Mapping[str, Any], *, log_time_ns: int) -> None:
        """Append `row` to the channel `topic` and flush it to the operating system.

        Raises:
            RecordError: when it cannot be written, or an earlier row could not.
        """
        text = json.dumps(row, allow_nan=False, separators=(",", ":"))
        self.append(topic, text, number=row["row"], log_time_ns=log_time_ns)
        self.flush()

    def append(self, topic: str, text: str, *, number: int, log_time_ns: int) -> None:
        """Append the row `number` to the channel `topic`: its JSON, in ASCII. It waits for `flush`.

        Raises:
            RecordError: when it cannot be written, or an earlier row could not.
        """
        with self._file.guarded(f"row {number}"):
            data = text.encode("ascii")
            self._append(topic, data, sequence=number, log_time_ns=log_time_ns)
            self._digest.update(data + b"\n")
            self._waiting.append((number, self._file.end))

    def flush(self) -> None:
        """Hand everything to the operating system.

        Raises:
            RecordError: when it cannot be written, or something before it could not.
        """
        try:
            with self._file.guarded(f"row {self._waiting[0][0]}" if self._waiting else "an array"):
                self._file.flush()
        finally:
            while self._waiting and self._waiting[0][1] <= self._file.flushed:
                self._ends.append(self._waiting.popleft()[1])

    def pop_lost_rows(self) -> int:
        """Return how many appended rows are not in the file, after a failed write or check; each is counted once."""
        if not self.problem:
            return 0
        kept = bisect_right(self._ends, self._file.kept)
        lost = len(self._waiting) + len(self._ends) - kept
        self._waiting.clear()
        del self._ends[kept:]
        return lost

    def store(self, array: NDArray[Any], *, log_time_ns: int) -> Reference:
        """Append the bytes of `array`, unless they are there already, and return the reference for a row to come.

        Raises:
            RecordError: when they cannot be written, or something before them could not.
        """
        data = to_bytes(array)
        reference = refer_to(array, data)
        self.put(reference, data, log_time_ns=log_time_ns)
        return reference

    def put(self, reference: Reference, data: bytes, *, log_time_ns: int) -> None:
        """Append the bytes that `reference` refers to, unless they are there already.

        Raises:
            RecordError: when they cannot be written, or something before them could not.
        """
        if reference["sha256"] not in self._stored:
            with self._file.guarded("an array"):
                self._append(ARRAYS, data, sequence=len(self._stored), log_time_ns=log_time_ns)
            self._stored.add(reference["sha256"])

    def close(self) -> None:
        """Finish the file and close it. Idempotent; never raises: `problem` says what went wrong."""
        with contextlib.suppress(RecordError):
            self.flush()
        self._file.close()

    def _register(self, topic: str) -> int:
        name, schema = CHANNELS[topic]
        writer = self._file.writer
        schema_id = writer.register_schema(name, "jsonschema", json.dumps(schema()).encode())
        channel_id: int = writer.register_channel(topic, "json", schema_id)
        return channel_id

    def _append(self, topic: str, data: bytes, *, sequence: int, log_time_ns: int) -> None:
        self._file.writer.add_message(
            channel_id=self._channels[topic],
            log_time=log_time_ns,
            publish_time=log_time_ns,
            sequence=sequence,
            data=data,
        )


class LogReader:
    """Reads a log, whole or not: every row up to the first that is not whole."""

    def __init__(self, path: Path) -> None:
        """Read from `path`, from its start at each iteration."""
        self.path = path
        self._verdict: tuple[str, str] | None = None

    def __iter__(self) -> Iterator[Any]:
        """Yield the rows in the order of their writing: bounded JSON, of any type."""
        digest = hashlib.sha256()
        count, problem = 0, ""
        messages = _messages(self.path)
        while True:
            try:
                topic, data, _ = next(messages)
                if topic not in CHANNELS:
                    continue
                row = parse_json(data, max_bytes=LARGEST_ROW, max_depth=DEEPEST)
            except StopIteration as stop:
                problem = f"{stop.value} after {count} whole rows" if stop.value else ""
                break
            except ValueError as error:
                problem = f"the row after {count} whole rows is not JSON: {error}"
                break
            digest.update(data + b"\n")
            count += 1
            yield row
        self._verdict = (f"{self.path.name}: {problem}" if problem else "", digest.hexdigest())

    def array(self, reference: Mapping[str, Any]) -> NDArray[Any]:
        """Return the array that a row refers to; read-only. Where the arrays lie is found out once.

        Raises:
            RecordError: when it is not in the log, or not as it was written.
        """
        if not is_reference(reference) or reference["sha256"] not in self._places:
            raise RecordError(f"{self.path.name}: there is no array {reference}")
        offset, size = self._places[reference["sha256"]]
        try:
            with self.path.open("rb") as file:
                file.seek(offset)
                return from_bytes(reference, file.read(size))
        except (OSError, ValueError) as error:
            raise RecordError(f"{self.path.name}: the array {reference} cannot be read: {error}") from None

    @functools.cached_property
    def _places(self) -> Mapping[str, tuple[int, int]]:
        """Offset and size of the bytes of each array, by their hash."""
        return {
            hashlib.sha256(data).hexdigest(): (end - len(data), len(data))
            for topic, data, end in _messages(self.path)
            if topic == ARRAYS
        }

    @property
    def clean(self) -> bool:
        """The file is whole, to the last byte that its writer meant to write."""
        return not self.problem

    @property
    def problem(self) -> str:
        """Why the file is not whole, or "", when it was first read to its end."""
        return self._read()[0]

    @property
    def rows_sha256(self) -> str:
        """The SHA-256 of the rows that are whole: of the JSON text of each, followed by a newline."""
        return self._read()[1]

    def _read(self) -> tuple[str, str]:
        if self._verdict is None:
            for _ in self:
                pass
        return self._verdict or ("", "")


def _messages(path: Path) -> Generator[tuple[str, bytes, int], None, str]:
    """Yield topic, data and the offset behind it of each whole message; return why the file is not whole, or ""."""
    topics: dict[int, str] = {}
    records = mcap_records(path)
    while True:
        try:
            kind, record, end = next(records)
        except StopIteration as stop:
            reason: str = stop.value
            return reason
        if kind == "Channel":
            topics[record.id] = record.topic
        elif kind == "Message":
            yield topics.get(record.channel_id, ""), record.data, end


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


class _Bounded:
    """A file of which no more is asked than it has: a buffered read allocates the length it is given."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._left = file, size

    def read(self, length: int) -> bytes:
        data = self._file.read(min(length, self._left) if length >= 0 else 0)
        self._left -= len(data)
        return data


def regular_size(path: Path) -> int:
    """Return the size of a regular file in bytes; raises OSError for anything else, a pipe for one."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return status.st_size
