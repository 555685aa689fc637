"""MCAP files: journals, in which a flushed record survives a SIGKILL of the writer, and indexed files, for viewers.

A journal has no chunks. Its bytes are buffered until `McapFile.flush` passes them to the operating system in one write;
whether they survive a power failure depends on the file system. Readers trust no declared length.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import stat
import struct
import zlib
from collections.abc import Iterator
from functools import partial
from io import FileIO
from pathlib import Path
from typing import IO, Any, NamedTuple

from embodied_env._version import __version__
from embodied_env.core.optional_packages import import_optional
from embodied_env.errors import RecordError

_library = partial(import_optional, needed_for="recording")

LARGEST_RECORD = 2**28
"""Size of the largest MCAP record that is read, in bytes."""

CHUNK_SIZE = 2**20
"""Size at which the chunk of an indexed file ends, in bytes before compression."""

LARGEST_CHUNK = 2**26
"""Size of the largest chunk that is read, in bytes after decompression."""

MOST_EXPANSION = 100
"""A file is read up to this multiple of its size, plus `LARGEST_CHUNK`, in bytes after decompression."""

_IN_CHUNKS = {3: "Schema", 4: "Channel", 5: "Message"}  # by opcode

_LEAST_PER_RECORD = 8  # bytes of the file: each message of a chunk has 16 in the index
_MOST_RECORDS = 1000  # without an index, such as channels
_MAX_BUFFERED = 2**18
_LARGE = 2**17  # bytes that are written at once instead of being copied into the buffer


def check_log_libraries() -> None:
    """Raise MissingDependencyError if mcap or orjson is not installed."""
    _library("mcap.writer")
    _library("orjson")


class McapFile:
    """Writes a journal, and locks it until it is closed. After a failed write it refuses further ones.

    Attributes:
        path: the file.
        problem: why further writes are refused, or "".
        writer: the writer of the mcap library.
    """

    def __init__(self, path: Path, *, profile: str = "") -> None:
        """Create the file; raises RecordError if it exists or cannot be written."""
        writer = _library("mcap.writer")
        self.path, self.problem = path, ""
        self._checked = 0  # offset after the last byte that the last check found in the file
        self._is_changed = False
        try:  # appending, so that a file truncated by another process stays shorter than what was written to it
            file = FileIO(path, "x", opener=lambda name, flags: os.open(name, flags | os.O_APPEND, 0o666))
        except OSError as error:
            raise RecordError(f"cannot create the log {path}: {error}") from None
        with contextlib.suppress(OSError):  # of a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
            fcntl.flock(self._raw, fcntl.LOCK_UN)  # a forked process may have the file open too
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


class IndexedFile:
    """Writes the messages of another file into one with chunks, compression and an index."""

    def __init__(self, file: IO[bytes], *, profile: str, compresses: bool = True) -> None:
        """Write to the empty, open `file`; raises OSError, as each method does."""
        writer = _library("mcap.writer")
        kinds = writer.CompressionType
        compression = kinds.ZSTD if compresses else kinds.NONE
        self._writer: Any = writer.Writer(file, CHUNK_SIZE, compression=compression, enable_data_crcs=True)
        self._writer.start(profile=profile, library="embodied_env")
        self._writer.add_metadata("embodied_env", {"version": __version__})
        self._schemas: dict[tuple[str, bytes], int] = {}
        self._channels: dict[tuple[str, str], int] = {}  # of `add`
        self._copied: dict[int, tuple[Any, int]] = {}  # channel and schema of the other file, and the number here

    def copy(self, message: StoredRecord) -> None:
        """Copy a message with its channel and schema."""
        channel, record = message.channel, message.record
        schema = message.schema
        known, number = self._copied.get(channel.id, (None, 0))
        if known != (channel, schema):
            schema_id = 0 if schema is None else self._schema(schema.name, schema.encoding, schema.data)
            number = self._writer.register_channel(channel.topic, channel.message_encoding, schema_id, channel.metadata)
            self._copied[channel.id] = (channel, schema), number
        self._writer.add_message(number, record.log_time, record.data, record.publish_time, record.sequence)

    def add(self, topic: str, schema: str, definition: bytes, data: bytes, *, ns: int) -> None:
        """Append a protobuf message."""
        if (topic, schema) not in self._channels:
            schema_id = self._schema(schema, "protobuf", definition)
            self._channels[topic, schema] = self._writer.register_channel(topic, "protobuf", schema_id)
        self._writer.add_message(self._channels[topic, schema], ns, data, ns)

    def finish(self) -> None:
        """Write the index."""
        self._writer.finish()

    def _schema(self, name: str, encoding: str, data: bytes) -> int:
        if (name, data) not in self._schemas:
            self._schemas[name, data] = self._writer.register_schema(name, encoding, data)
        return self._schemas[name, data]


class MessageEnd(NamedTuple):
    """End of a message: `end` bytes after the start of the file, or of the content of the chunk at `chunk`."""

    chunk: int | None
    end: int


class StoredRecord(NamedTuple):
    """A message of a file, with its channel and schema."""

    schema: Any  # None: the channel has none
    channel: Any
    record: Any
    place: MessageEnd

    @property
    def schema_name(self) -> str:
        """Name of the schema, or ""."""
        return "" if self.schema is None else self.schema.name


class McapRecords:
    """Iterates over the complete records of a file, those in chunks included: kind, content, and the place after it.

    It never reads or allocates more than the size of the file, or the largest chunk, whatever length is declared.

    Attributes:
        problem: after the iteration, why the file is not complete, or "".
        end: after the iteration, the offset after the last complete record.
    """

    def __init__(self, path: Path) -> None:
        self._path, self.problem, self.end = path, "", 0

    def __iter__(self) -> Iterator[tuple[str, Any, MessageEnd]]:
        """Yield the records up to the first incomplete one."""
        exceptions = _library("mcap.exceptions")
        try:
            size = regular_size(self._path)
            with self._path.open("rb") as file:
                count, left = 0, MOST_EXPANSION * size + LARGEST_CHUNK
                for record in _stream(_BoundedFile(file, size), size, validate_crcs=True):
                    end = file.tell()
                    if (kind := type(record).__name__) == "Chunk":
                        left -= record.uncompressed_size
                        if left < 0:
                            most = f"{MOST_EXPANSION} times its size plus {LARGEST_CHUNK} bytes"
                            raise ValueError(f"chunks that expand too much (expected at most {most})")  # noqa: TRY301
                        for found in _chunk_records(record, self.end):
                            count += 1
                            if count > _MOST_RECORDS + size // _LEAST_PER_RECORD:
                                raise ValueError(f"too many records in its chunks for {size} bytes")  # noqa: TRY301
                            yield found
                    else:
                        yield kind, record, MessageEnd(None, end)
                    self.end = end
                if file.read(1):
                    self.problem = "unexpected data after the end"
        except OSError as error:
            self.problem = f"cannot be read ({error.strerror})"
        except (exceptions.EndOfFile, exceptions.RecordLengthLimitExceeded, struct.error):
            self.problem = "truncated, because its writer was stopped"
        except (exceptions.McapError, ValueError) as error:
            self.problem = f"damaged ({type(error).__name__}: {error})"

    def messages(self) -> Iterator[StoredRecord]:
        """Yield each complete message."""
        schemas: dict[int, Any] = {}
        channels: dict[int, Any] = {}
        for kind, record, place in self:
            if kind == "Schema":
                schemas[record.id] = record
            elif kind == "Channel":
                channels[record.id] = record
            elif kind == "Message" and (channel := channels.get(record.channel_id)) is not None:
                yield StoredRecord(schemas.get(channel.schema_id), channel, record, place)


def read_chunk(path: Path, start: int) -> bytes:
    """Return the content of the chunk at offset `start`; raises OSError or ValueError."""
    size = regular_size(path)
    with path.open("rb") as file:
        file.seek(start)
        try:
            record = next(_stream(_BoundedFile(file, max(0, size - start)), size, skip_magic=True))
        except (_library("mcap.exceptions").McapError, struct.error) as error:
            raise ValueError(f"damaged ({type(error).__name__}: {error})") from None
    if type(record).__name__ != "Chunk":
        raise ValueError(f"unexpected {type(record).__name__} (expected a chunk)")
    return _chunk_content(record)


def _stream(file: Any, size: int, **how: bool) -> Iterator[Any]:  # noqa: ANN401 - a file, or a part of it
    """Yield the records of a file or a chunk of `size` bytes; a chunk is one record."""
    limit = min(size, LARGEST_RECORD)
    stream = _library("mcap.stream_reader").StreamReader(file, emit_chunks=True, record_size_limit=limit, **how)
    yield from stream.records


def _chunk_records(chunk: Any, start: int) -> Iterator[tuple[str, Any, MessageEnd]]:  # noqa: ANN401 - of mcap
    """Yield the records of a chunk; raises ValueError for any but schemas, channels and whole messages."""
    data = _chunk_content(chunk)
    content, size = io.BytesIO(data), len(data)
    records = _stream(content, size, skip_magic=True)
    while (at := content.tell()) < size:
        if (kind := _IN_CHUNKS.get(data[at])) is None:  # the library skips unknown ones, one by one
            found = f"record of opcode {data[at]} in a chunk"
            raise ValueError(f"unexpected {found} (expected schemas, channels and messages)")
        try:
            record = next(records)
        except (_library("mcap.exceptions").McapError, struct.error) as error:
            raise ValueError(f"an incomplete record in a chunk ({type(error).__name__})") from None
        yield kind, record, MessageEnd(start, content.tell())


def _chunk_content(chunk: Any) -> bytes:  # noqa: ANN401 - of mcap
    """Decompress a chunk; raises ValueError unless it has the declared size and checksum."""
    size = chunk.uncompressed_size
    if size > LARGEST_CHUNK:
        raise ValueError(f"chunk of {size} bytes (expected at most {LARGEST_CHUNK})")
    if chunk.compression == "zstd":
        zstandard = _library("zstandard")  # which mcap requires
        try:
            with zstandard.ZstdDecompressor().stream_reader(chunk.data) as reader:
                content: bytes = reader.read(size + 1)
        except zstandard.ZstdError as error:
            raise ValueError(f"chunk that cannot be decompressed: {error}") from None
    elif chunk.compression == "":
        content = chunk.data
    else:
        raise ValueError(f"unknown compression {chunk.compression[:20]!r} of a chunk (expected 'zstd')")
    if len(content) != size:
        raise ValueError(f"chunk of another size (expected {size} bytes)")
    if chunk.uncompressed_crc and zlib.crc32(content) != chunk.uncompressed_crc:
        raise ValueError(f"wrong checksum of a chunk: {zlib.crc32(content)} (expected {chunk.uncompressed_crc})")
    return content


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
