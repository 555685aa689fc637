"""Write indexed MCAP files in chunks, each of which survives a SIGKILL once written.

The records of the `mcap` library are used, but not its `Writer`, which copies each message five times, compresses at
one level, and cannot store a single chunk without compression. Whether a chunk survives a power failure depends on the
file system.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any

from embodied_env._version import __version__
from embodied_env.core.plugin_loading import import_optional
from embodied_env.errors import RecordError, UsageError
from embodied_env.record.mcap_file import LARGEST_CHUNK

_library = partial(import_optional, needed_for="recording")
CHUNK_SIZE = 2**20  # size at which a chunk is full, in bytes before compression
MOST_SHRINKING = 50  # a chunk that shrinks more is stored as it is, because readers limit the expansion of a file
COMPRESSIONS = ("zstd", "lz4", "none")
DEFAULT_COMPRESSION = "zstd"
_ZSTD_LEVEL = 1  # level 3 takes up to six times as long for camera images, and gains 5 %
_MESSAGE_HEAD = struct.Struct("<BQHIQQ")  # opcode, length, channel, sequence, log time, publish time
_CHUNK_HEAD = struct.Struct("<BQQQQII")  # opcode, length, first and last time, size, checksum, length of the name
_INDEX_HEAD = struct.Struct("<BQHI")  # opcode, length, channel, length of the entries
_LENGTH = struct.Struct("<Q")
_RECORD_HEAD_SIZE = 9  # opcode and length
_MESSAGE, _CHUNK, _MESSAGE_INDEX, _FOOTER = 5, 6, 7, 2
_INDEX_ENTRY_SIZE = 16
LARGEST_MESSAGE = LARGEST_CHUNK - _MESSAGE_HEAD.size  # bytes, as it must fit into a chunk that readers accept
Piece = bytes | memoryview


def check_log_libraries(compression: str = DEFAULT_COMPRESSION) -> None:
    """Raise UsageError for an unknown compression, or MissingDependencyError for a library."""
    _library("mcap.records")
    _library("orjson")
    _compressor(compression)


class McapFile:
    """Writes a locked file in chunks, and refuses writes after a failed one."""

    def __init__(
        self,
        path: Path,
        *,
        profile: str = "",
        compression: str = DEFAULT_COMPRESSION,
        is_hashed: bool = False,
        after_chunk: Callable[[int], object] = lambda _: None,
    ) -> None:
        """Create the file, or raise RecordError if it exists or cannot be written.

        With `is_hashed` the messages have cryptographic hashes, so that chunks need no checksum of their own.
        `after_chunk` is called with the end of each chunk that was passed to the operating system.
        """
        self._records, self._builder = _library("mcap.records"), _library("mcap.data_stream").RecordBuilder
        self.path, self.problem = path, ""  # why further writes are refused
        self.flushed = 0  # offset after the last byte passed to the operating system
        self._compress, self._is_hashed, self._after_chunk = _compressor(compression), is_hashed, after_chunk
        self._compression = "" if compression == "none" else compression
        self._checked = 0  # offset after the last byte that the last check found in the file
        self._is_changed = False
        try:  # appending, so that a file truncated by another process stays shorter than what was written to it
            self._raw = FileIO(path, "x", opener=lambda name, flags: os.open(name, flags | os.O_APPEND, 0o666))
        except OSError as error:
            raise RecordError(f"cannot create the log {path}: {error}") from None
        with contextlib.suppress(OSError):  # of a file system without locks
            fcntl.flock(self._raw, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._chunk = _Chunk()
        self._schemas: list[Any] = []
        self._channels: list[Any] = []
        self._counts: Counter[int] = Counter()  # messages by channel
        self._times: list[int] = []  # earliest and latest log time of the file
        self._chunk_indexes: list[bytes] = []
        self._metadata_indexes: list[Any] = []
        magic = _library("mcap.writer").MCAP0_MAGIC
        self._magic: bytes = magic
        self._outside = [magic, self._encode(self._records.Header(profile=profile, library="embodied_env"))]

    @property
    def kept(self) -> int:
        """Offset after the last flushed byte that was still in the file at the last check."""
        return self._checked if self._is_changed else self.flushed

    @property
    def is_full(self) -> bool:
        """Whether the chunk in progress should be ended."""
        return self._chunk.size > CHUNK_SIZE

    def register_schema(self, name: str, encoding: str, data: bytes) -> int:
        """Add a schema, and return its number."""
        schema = self._records.Schema(id=len(self._schemas) + 1, name=name, encoding=encoding, data=data)
        self._schemas.append(schema)
        self._outside.append(self._encode(schema))
        return len(self._schemas)

    def register_channel(
        self, topic: str, encoding: str, schema_id: int, metadata: Mapping[str, str] | None = None
    ) -> int:
        """Add a channel, and return its number."""
        number = len(self._channels) + 1
        channel = self._records.Channel(
            id=number, topic=topic, message_encoding=encoding, metadata=dict(metadata or {}), schema_id=schema_id
        )
        self._channels.append(channel)
        self._outside.append(self._encode(channel))
        return number

    def begin(self) -> None:
        """Write the header, the version of this package, and the channels registered so far."""
        record = self._encode(self._records.Metadata(name="embodied_env", metadata={"version": __version__}))
        offset = self.flushed + sum(map(len, self._outside))
        index = self._records.MetadataIndex(offset=offset, length=len(record), name="embodied_env")
        self._metadata_indexes.append(index)
        self._outside.append(record)
        self.flush()

    def add_message(self, channel_id: int, data: Sequence[Piece], *, number: int, log_ns: int, publish_ns: int) -> None:
        """Append a message of the pieces `data`, which must not change, to the chunk.

        It ends the chunk first if both are too large for one. Otherwise its owner ends the chunk by `flush`.

        Raises:
            RecordError: if the message is larger than `LARGEST_MESSAGE`. It is not written, and later ones may be.
            OSError: if a chunk cannot be written.
        """
        size = sum(map(len, data))
        if size > LARGEST_MESSAGE:
            topic = self._channels[channel_id - 1].topic
            raise RecordError(f"a message of {topic} has {size} bytes (expected at most {LARGEST_MESSAGE})")
        if self._chunk.size + _MESSAGE_HEAD.size + size > LARGEST_CHUNK:
            self._end_chunk()
        length = _MESSAGE_HEAD.size - _RECORD_HEAD_SIZE + size
        head = _MESSAGE_HEAD.pack(_MESSAGE, length, channel_id, number % 2**32, log_ns, publish_ns)
        self._chunk.add(channel_id, log_ns, (head, *data))

    def flush(self) -> None:
        """End the chunk and write it, or raise OSError unless `path` still has everything."""
        if self._raw.closed:
            return
        self._end_chunk()
        problem, self._checked = self._foreign_change()
        self._is_changed = bool(problem)
        if problem:
            raise OSError(f"{problem}; do not modify a run while it is being recorded")

    def guarded(self, what: str) -> _Guard:
        """Guard a write of `what`, whose failure is a RecordError of all later writes too."""
        return _Guard(self, what)

    def close(self) -> None:
        """Write the index and close the file once, with an error in `problem` and not raised."""
        if self._raw.closed:
            return
        with contextlib.suppress(RecordError), self.guarded("the index"):
            self._end_chunk()
            self._write_summary()
            self.flush()
        with contextlib.suppress(OSError):
            fcntl.flock(self._raw, fcntl.LOCK_UN)  # a forked process may have the file open too
        with contextlib.suppress(OSError):
            self._raw.close()

    def _end_chunk(self) -> None:
        """Write data outside of chunks, then the chunk with its index, or drop them on failure."""
        outside, self._outside = self._outside, []
        chunk, self._chunk = self._chunk, _Chunk()
        self._write(outside)
        if not chunk.pieces:
            return
        compression, content, size = self._compression, chunk.pieces, chunk.size
        if compression:
            content = [self._compress(b"".join(chunk.pieces))]
            if len(content[0]) * MOST_SHRINKING < size:
                compression, content = "", chunk.pieces
        stored = sum(map(len, content))
        checksum = 0 if self._is_hashed else chunk.checksum()
        name = compression.encode()
        length = _CHUNK_HEAD.size - _RECORD_HEAD_SIZE + len(name) + _LENGTH.size + stored
        head = _CHUNK_HEAD.pack(_CHUNK, length, *chunk.times, size, checksum, len(name))
        start, index, places = self.flushed, b"", {}
        for channel, entries in chunk.entries.items():
            places[channel] = start + _RECORD_HEAD_SIZE + length + len(index)
            entries_size = len(entries) // 2 * _INDEX_ENTRY_SIZE
            head_of_index = _INDEX_HEAD.pack(_MESSAGE_INDEX, 6 + entries_size, channel, entries_size)
            index += head_of_index + entries.tobytes()
        self._write([head, name, _LENGTH.pack(stored), *content, index])
        record = self._records.ChunkIndex(
            chunk_start_offset=start, chunk_length=_RECORD_HEAD_SIZE + length, compression=compression,
            compressed_size=stored, uncompressed_size=size, message_start_time=chunk.times[0],
            message_end_time=chunk.times[1], message_index_offsets=places, message_index_length=len(index),
        )  # fmt: skip
        self._chunk_indexes.append(self._encode(record))  # as bytes, because a long run has many
        self._counts.update({channel: len(entries) // 2 for channel, entries in chunk.entries.items()})
        times = [*self._times, *chunk.times]
        self._times = [min(times), max(times)]
        self._after_chunk(self.flushed)

    def _write_summary(self) -> None:
        records, start, offsets = self._records, 0, b""
        end = self._encode(records.DataEnd(0))
        start = self.flushed + len(end)
        first, last = self._times or (0, 0)
        statistics = records.Statistics(
            attachment_count=0, metadata_count=len(self._metadata_indexes), channel_count=len(self._channels),
            channel_message_counts=dict(self._counts), chunk_count=len(self._chunk_indexes),
            schema_count=len(self._schemas), message_count=self._counts.total(),
            message_start_time=first, message_end_time=last,
        )  # fmt: skip
        groups = (
            [self._encode(schema) for schema in self._schemas],
            [self._encode(channel) for channel in self._channels],
            [self._encode(statistics)],
            self._chunk_indexes,
            [self._encode(index) for index in self._metadata_indexes],
        )
        summary = b""
        for group in groups:
            if content := b"".join(group):
                offset = records.SummaryOffset(
                    group_opcode=content[0], group_start=start + len(summary), group_length=len(content)
                )
                offsets += self._encode(offset)
                summary += content
        place = struct.pack("<QQ", start, start + len(summary))
        head = struct.pack("<BQ", _FOOTER, len(place) + 4) + place
        checksum = zlib.crc32(summary + offsets + head)
        self._write([end, summary, offsets, head, struct.pack("<I", checksum), self._magic])

    def _encode(self, record: Any) -> bytes:  # noqa: ANN401 - of mcap
        builder = self._builder()
        record.write(builder)
        encoded: bytes = builder.end()
        return encoded

    def _write(self, pieces: Sequence[Piece]) -> None:
        """Pass the pieces to the operating system, of which the file has a prefix after a failure."""
        rest = memoryview(b"".join(pieces))
        while rest:
            count = self._raw.write(rest)
            self.flushed += count
            rest = rest[count:]

    def _foreign_change(self) -> tuple[str, int]:
        """Return the change by another process, or "", and the number of bytes certainly left."""
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


class _Guard:
    """Context of a write, a class because a generator takes longer and each row enters it."""

    __slots__ = ("_file", "_what")

    def __init__(self, file: McapFile, what: str) -> None:
        self._file, self._what = file, what

    def __enter__(self) -> None:
        if self._file.problem:
            raise RecordError(f"{self._file.problem}; {self._what} was not written either")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, RecordError):  # the chunk is lost
            self._file.problem = f"{self._file.path}: cannot write {self._what}: {error}"
            raise RecordError(self._file.problem) from None


class _Chunk:
    """The messages of one chunk."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []  # none is copied
        self.size = 0  # in bytes
        self.entries: dict[int, array[int]] = {}  # log time and offset of each message, by channel
        self.times = (2**64 - 1, 0)  # earliest and latest log time

    def add(self, channel_id: int, log_ns: int, pieces: Sequence[Piece]) -> None:
        self.entries.setdefault(channel_id, array("Q")).extend((log_ns, self.size))
        self.times = min(self.times[0], log_ns), max(self.times[1], log_ns)
        self.pieces += pieces
        self.size += sum(map(len, pieces))

    def checksum(self) -> int:
        found = 0
        for piece in self.pieces:
            found = zlib.crc32(piece, found)
        return found


def _compressor(compression: str) -> Callable[[bytes], bytes]:
    match compression:
        case "zstd":  # its checksum takes a fifth of the time of that of a chunk
            compress: Callable[[bytes], bytes] = (
                _library("zstandard").ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True).compress
            )
            return compress
        case "lz4":
            return partial(_library("lz4.frame").compress, store_size=True)
        case "none":
            return bytes
    raise UsageError(f"unknown compression {compression!r} (expected one of: {', '.join(COMPRESSIONS)})")
