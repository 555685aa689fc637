"""Read whole or cut MCAP files of unknown origin, without trust in lengths or the index."""

from __future__ import annotations

import errno
import functools
import io
import stat
import struct
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from embodied_env.core.plugin_loading import import_optional

_library = partial(import_optional, needed_for="recording")
LARGEST_RECORD = 2**28  # size of the largest MCAP record that is read, in bytes
LARGEST_CHUNK = 2**26  # size of the largest chunk that is read, in bytes after decompression
MOST_EXPANSION = 100  # times its size, plus `LARGEST_CHUNK`, is read of a file, in bytes after decompression
_MAGIC = b"\x89MCAP0\r\n"
_HEAD = struct.Struct("<BQ")  # opcode and length of a record
_IN_CHUNKS = (3, 4, 5)  # opcodes of Schema, Channel, Message
_LEAST_PER_RECORD = 8  # bytes of the file: each message of a chunk has 16 in the index
_MOST_RECORDS = 1000  # without an index, such as channels


class MessageEnd(NamedTuple):
    """End of a message, in the content of the chunk at `chunk`, or in the file without one."""

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
    """Iterates over kind, content and end of the complete records, also in chunks.

    It never reads or allocates more than the size of the file, or the largest chunk, whatever length is declared.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.problem = ""  # after the iteration, why the file is not complete
        self.is_cut = False  # after the iteration, whether the file ends before its index: its writer was stopped
        self.end = 0  # offset after the last complete record

    def __iter__(self) -> Iterator[tuple[str, Any, MessageEnd]]:
        """Yield the records up to the first incomplete one."""
        try:
            size = regular_size(self._path)
            with self._path.open("rb") as file:
                yield from self._read(_CheckedFile(file), size)
        except OSError as error:
            self.problem = f"cannot be read ({error.strerror})"
        except EOFError:
            self.problem, self.is_cut = "truncated, because its writer was stopped", True
        except ValueError as error:
            self.problem = f"damaged ({type(error).__name__}: {error})"

    def _read(self, file: _CheckedFile, size: int) -> Iterator[tuple[str, Any, MessageEnd]]:
        count, left, index, kind = 0, MOST_EXPANSION * size + LARGEST_CHUNK, IndexCheck(), ""
        _check_magic(file)
        while kind != "Footer":
            before = file.checksum
            record = _read_record(file, size)
            kind, end = type(record).__name__, file.tell()
            if kind == "DataEnd" and record.data_section_crc not in (0, before):  # 0: none
                raise ValueError(f"wrong checksum of the data: {before} (expected {record.data_section_crc})")
            index.add(kind, record, self.end, end)
            if kind == "Chunk":
                left -= record.uncompressed_size
                if left < 0:
                    most = f"{MOST_EXPANSION} times its size plus {LARGEST_CHUNK} bytes"
                    raise ValueError(f"chunks that expand too much (expected at most {most})")
                offset = 0
                for found in _chunk_records(record, self.end):
                    count += 1
                    index.add_in_chunk(found[0], found[1], offset)
                    offset = found[2].end
                    if count > _MOST_RECORDS + size // _LEAST_PER_RECORD:
                        raise ValueError(f"too many records in its chunks for {size} bytes")
                    yield found
            else:
                yield kind, record, MessageEnd(None, end)
            self.end = end
        _check_magic(file)
        if file.read(1):
            self.problem = "unexpected data after the end"

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


class _CheckedFile:
    """A file with the checksum of what was read of it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.tell, self.checksum = file, file.tell, 0

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self.checksum = zlib.crc32(data, self.checksum)
        return data


def read_chunk(path: Path, start: int) -> bytes:
    """Return the content of the chunk at offset `start`, or raise OSError or ValueError."""
    size = regular_size(path)
    with path.open("rb") as file:
        file.seek(start)
        try:
            record = _read_record(file, size)
        except EOFError:
            raise ValueError(f"no whole record at {start} (expected a chunk)") from None
    if type(record).__name__ != "Chunk":
        raise ValueError(f"unexpected {type(record).__name__} (expected a chunk)")
    return _chunk_content(record)


def _check_magic(file: _CheckedFile) -> None:
    if (found := file.read(len(_MAGIC))) != _MAGIC:
        if len(found) < len(_MAGIC):
            raise EOFError
        raise ValueError(f"magic {found!r} (expected {_MAGIC!r})")


def _read_record(file: IO[bytes] | _CheckedFile, size: int) -> Any:  # noqa: ANN401 - of mcap
    """Return the next record of a file of `size` bytes, or raise EOFError if it is cut."""
    head = file.read(_HEAD.size)
    opcode, length = _HEAD.unpack(head.ljust(_HEAD.size, b"\0"))
    if opcode == 0 or len(head) < _HEAD.size or length > min(size - file.tell(), LARGEST_RECORD):
        raise EOFError  # no opcode: zeros after a loss of power
    return _parse_record(opcode, file.read(length))


def _parse_record(opcode: int, content: bytes) -> Any:  # noqa: ANN401 - of mcap
    """Return a record of the library, which skips unknown ones, or raise ValueError."""
    if (kind := _kinds().get(opcode)) is None:
        raise ValueError(f"unknown record of opcode {opcode}")
    stream = _library("mcap.data_stream").ReadDataStream(_RecordContent(content))
    try:
        return kind.read(stream, len(content)) if kind.__name__ == "Message" else kind.read(stream)
    except (EOFError, _library("mcap.exceptions").EndOfFile):
        raise ValueError(f"{kind.__name__} longer than {len(content)} bytes, its declared length") from None


class _RecordContent:
    """Content of a record, which bounds all reads, as other readers go on at its declared end."""

    def __init__(self, content: bytes) -> None:
        self._file = io.BytesIO(content)

    def read(self, size: int) -> bytes:
        if len(data := self._file.read(min(size, LARGEST_RECORD))) != size:
            raise EOFError
        return data


@functools.cache
def _kinds() -> dict[int, Any]:
    """Return the classes of records by opcode."""
    records = _library("mcap.records")
    return {int(each): getattr(records, each.name.title().replace("_", "")) for each in _library("mcap.opcode").Opcode}


def _chunk_records(chunk: Any, start: int) -> Iterator[tuple[str, Any, MessageEnd]]:  # noqa: ANN401 - of mcap
    """Yield the schemas, channels and whole messages of a chunk, or raise ValueError."""
    data, end = _chunk_content(chunk), 0
    while (at := end) < len(data):
        if data[at] not in _IN_CHUNKS:
            found = f"record of opcode {data[at]} in a chunk"
            raise ValueError(f"unexpected {found} (expected schemas, channels and messages)")
        opcode, length = _HEAD.unpack(data[at : at + _HEAD.size].ljust(_HEAD.size, b"\xff"))
        end = at + _HEAD.size + length
        if end > len(data):
            raise ValueError(f"an incomplete record in a chunk, of {length} bytes")
        record = _parse_record(opcode, data[at + _HEAD.size : end])
        yield type(record).__name__, record, MessageEnd(start, end)


def _chunk_content(chunk: Any) -> bytes:  # noqa: ANN401 - of mcap
    """Decompress a chunk, or raise ValueError unless it has the declared size and checksum."""
    size, zstandard = chunk.uncompressed_size, _library("zstandard")  # which mcap requires, as lz4
    if size > LARGEST_CHUNK:
        raise ValueError(f"chunk of {size} bytes (expected at most {LARGEST_CHUNK})")
    content: bytes = chunk.data
    try:
        if chunk.compression == "zstd":
            with zstandard.ZstdDecompressor().stream_reader(chunk.data) as reader:
                content = reader.read(size + 1)
        elif chunk.compression == "lz4":
            content = _library("lz4.frame").LZ4FrameDecompressor().decompress(chunk.data, max_length=size + 1)
        elif chunk.compression:
            raise ValueError(f"unknown compression {chunk.compression[:20]!r} of a chunk (expected 'zstd' or 'lz4')")
    except (zstandard.ZstdError, RuntimeError) as error:
        raise ValueError(f"chunk that cannot be decompressed: {error}") from None
    if len(content) != size:
        raise ValueError(f"chunk of another size (expected {size} bytes)")
    if chunk.uncompressed_crc and zlib.crc32(content) != chunk.uncompressed_crc:
        raise ValueError(f"wrong checksum of a chunk: {zlib.crc32(content)} (expected {chunk.uncompressed_crc})")
    return content


def regular_size(path: Path) -> int:
    """Return the size of a regular file in bytes, or raise OSError for others, such as a pipe."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return status.st_size


class _IndexedChunk(NamedTuple):
    """The content of a ChunkIndex, computed from one chunk of the data."""

    chunk_start_offset: int
    chunk_length: int
    compression: str
    compressed_size: int
    uncompressed_size: int
    message_start_time: int
    message_end_time: int
    message_index_offsets: dict[int, int]
    message_index_length: int


class IndexCheck:
    """Receives the records, and raises ValueError for a wrong index or definition."""

    def __init__(self) -> None:
        self._defined: dict[tuple[str, int], Any] = {}
        self._counts: Counter[int] = Counter()  # messages by channel
        self._times = (2**64 - 1, 0)  # earliest and latest log time
        self._chunks: dict[int, _IndexedChunk] = {}  # by their start
        self._open: _IndexedChunk | None = None  # the last chunk, whose index follows
        self._entries: dict[int, array[int]] = {}  # log time and offset of its messages, by channel
        self._indexed: set[int] = set()  # starts of the chunks that the summary has
        self._summary_start = 0
        self._checks: dict[str, Callable[[Any, int, int], None]] = {
            "MessageIndex": self._check_entries,
            "DataEnd": self._end_data,
            "ChunkIndex": self._check_chunk,
            "Statistics": self._check_statistics,
            "Footer": self._check_footer,
        }

    def add(self, kind: str, record: Any, start: int, end: int) -> None:  # noqa: ANN401 - of mcap
        """Add a record from `start` to `end`, where a chunk comes before its records."""
        if kind != "MessageIndex":
            self._close_chunk()
        if kind == "Chunk":
            times = record.message_start_time, record.message_end_time
            sizes = record.compression, len(record.data), record.uncompressed_size
            self._open = _IndexedChunk(start, end - start, *sizes, *times, {}, 0)
        elif kind in self._checks:
            self._checks[kind](record, start, end)
        elif kind == "Message":
            raise ValueError(f"a message outside of chunks, at {start}")
        else:
            self._count(kind, record)

    def add_in_chunk(self, kind: str, record: Any, offset: int) -> None:  # noqa: ANN401 - of mcap
        """Add a record of the last chunk, `offset` bytes after the start of its content."""
        self._count(kind, record)
        if kind == "Message":
            self._entries.setdefault(record.channel_id, array("Q")).extend((record.log_time, offset))

    def _count(self, kind: str, record: Any) -> None:  # noqa: ANN401 - of mcap
        if kind == "Message":
            if ("Channel", record.channel_id) not in self._defined:  # the summary could define it for other readers
                raise ValueError(f"a message of channel {record.channel_id}, which is not defined before it")
            self._counts[record.channel_id] += 1
            self._times = min(self._times[0], record.log_time), max(self._times[1], record.log_time)
        elif kind in ("Schema", "Channel") and self._defined.setdefault((kind, record.id), record) != record:
            raise ValueError(f"two definitions of {kind.lower()} {record.id}")

    def _check_entries(self, record: Any, start: int, end: int) -> None:  # noqa: ANN401 - of mcap
        flat = array("Q", [number for entry in record.records for number in entry])
        if self._open is None or record.channel_id in self._open.message_index_offsets:
            raise ValueError("an index of messages that follows no chunk")
        if flat != self._entries.get(record.channel_id):
            raise ValueError(f"the index of channel {record.channel_id} is not that of its chunk")
        self._open.message_index_offsets[record.channel_id] = start
        self._open = self._open._replace(message_index_length=self._open.message_index_length + end - start)

    def _close_chunk(self) -> None:
        chunk, entries = self._open, self._entries
        if chunk is None:
            return
        times = [numbers[at] for numbers in entries.values() for at in range(0, len(numbers), 2)]
        if times and (min(times), max(times)) != (chunk.message_start_time, chunk.message_end_time):
            raise ValueError("the times of a chunk are not those of its messages")
        if chunk.message_index_offsets.keys() != entries.keys():
            raise ValueError("a chunk without the index of its messages")
        self._chunks[chunk.chunk_start_offset] = chunk
        self._open, self._entries = None, {}

    def _end_data(self, _: object, start: int, end: int) -> None:
        if self._summary_start:
            raise ValueError(f"a second end of the data, at {start}")
        self._summary_start = end

    def _check_chunk(self, record: Any, start: int, end: int) -> None:  # noqa: ANN401, ARG002 - of mcap
        place = record.chunk_start_offset
        chunk = self._chunks.get(place)
        if (
            chunk is None
            or chunk != tuple(getattr(record, name) for name in _IndexedChunk._fields)
            or place in self._indexed
        ):
            raise ValueError(f"the index has a chunk at {place} that differs from the data")
        self._indexed.add(place)

    def _check_statistics(self, record: Any, start: int, end: int) -> None:  # noqa: ANN401, ARG002 - of mcap
        times = self._times if self._counts else (0, 0)
        stated = {channel: count for channel, count in record.channel_message_counts.items() if count}
        if (record.message_start_time, record.message_end_time) != times or stated != self._counts:
            raise ValueError("the counts and times of the summary are not those of the messages")

    def _check_footer(self, record: Any, start: int, end: int) -> None:  # noqa: ANN401, ARG002 - of mcap
        if record.summary_start not in (0, self._summary_start):
            raise ValueError(f"the summary is at {self._summary_start} (expected {record.summary_start} of the footer)")
        if self._indexed and len(self._indexed) < len(self._chunks):
            raise ValueError("messages that the index lacks")
