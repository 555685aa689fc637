"""Read whole or cut MCAP files of unknown origin, without trust in a declared length."""

from __future__ import annotations

import errno
import functools
import io
import stat
import struct
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from embodied_env.core.plugin_loading import import_optional
from embodied_env.record.mcap_index import IndexCheck

_library = partial(import_optional, needed_for="recording")

LARGEST_RECORD = 2**28
"""Size of the largest MCAP record that is read, in bytes."""

LARGEST_CHUNK = 2**26
"""Size of the largest chunk that is read, in bytes after decompression."""

MOST_EXPANSION = 100
"""A file is read up to this multiple of its size, plus `LARGEST_CHUNK`, in bytes after decompression."""

_IN_CHUNKS = {3: "Schema", 4: "Channel", 5: "Message"}  # by opcode

_LEAST_PER_RECORD = 8  # bytes of the file: each message of a chunk has 16 in the index
_MOST_RECORDS = 1000  # without an index, such as channels


class MessageEnd(NamedTuple):
    """End of a message in a file.

    It is `end` bytes after the start of the content of the chunk at `chunk`, or of the file outside of chunks.
    """

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

    Attributes:
        problem: after the iteration, why the file is not complete, or "".
        is_cut: after the iteration, whether the file ends before its index does: its writer was stopped.
        end: after the iteration, the offset after the last complete record.
    """

    def __init__(self, path: Path) -> None:
        self._path, self.problem, self.end, self.is_cut = path, "", 0, False

    def __iter__(self) -> Iterator[tuple[str, Any, MessageEnd]]:
        """Yield the records up to the first incomplete one."""
        exceptions = _library("mcap.exceptions")
        try:
            size = regular_size(self._path)
            with self._path.open("rb") as file:
                count, left, index = 0, MOST_EXPANSION * size + LARGEST_CHUNK, IndexCheck()
                for record in _stream(_BoundedFile(file, size), size, validate_crcs=True):
                    end = file.tell()
                    index.add(type(record).__name__, record, self.end, end)
                    if (kind := type(record).__name__) == "Chunk":
                        left -= record.uncompressed_size
                        if left < 0:
                            most = f"{MOST_EXPANSION} times its size plus {LARGEST_CHUNK} bytes"
                            raise ValueError(f"chunks that expand too much (expected at most {most})")  # noqa: TRY301
                        offset = 0
                        for found in _chunk_records(record, self.end):
                            count += 1
                            index.add_in_chunk(found[0], found[1], offset)
                            offset = found[2].end
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
            self.problem, self.is_cut = "truncated, because its writer was stopped", True
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
    """Return the content of the chunk at offset `start`, or raise OSError or ValueError."""
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
    """Yield the records of a file or a chunk of `size` bytes, with each chunk as one record."""
    limit = min(size, LARGEST_RECORD)
    yield from _strict_reader()(file, emit_chunks=True, record_size_limit=limit, **how).records


@functools.cache
def _strict_reader() -> Any:  # noqa: ANN401 - a class of mcap
    """Return the library's reader, without records that it skips, or that end after their declared length."""
    base: Any = _library("mcap.stream_reader").StreamReader
    end = _library("mcap.exceptions").EndOfFile

    class StrictReader(base):  # type: ignore[misc] # of a library without types
        def _read_record(self, opcode: int, length: int) -> Any:  # noqa: ANN401 - of mcap
            start = self._stream.count
            record = super()._read_record(opcode, length)
            if opcode == 0:  # no opcode: zeros after a loss of power
                raise end
            if record is None:
                raise ValueError(f"unknown record of opcode {opcode}")
            if (found := self._stream.count - start) > length:  # other readers go on at the declared end
                raise ValueError(f"{type(record).__name__} of {found} bytes (expected {length}, its declared length)")
            return record

    return StrictReader


def _chunk_records(chunk: Any, start: int) -> Iterator[tuple[str, Any, MessageEnd]]:  # noqa: ANN401 - of mcap
    """Yield the records of a chunk, or raise ValueError for any but schemas, channels and whole messages."""
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
    """Decompress a chunk, or raise ValueError unless it has the declared size and checksum."""
    size = chunk.uncompressed_size
    if size > LARGEST_CHUNK:
        raise ValueError(f"chunk of {size} bytes (expected at most {LARGEST_CHUNK})")
    if chunk.compression == "":
        content: bytes = chunk.data
    elif (decompress := _DECOMPRESSIONS.get(chunk.compression)) is not None:
        content = decompress(chunk.data, size + 1)
    else:
        raise ValueError(f"unknown compression {chunk.compression[:20]!r} of a chunk (expected 'zstd' or 'lz4')")
    if len(content) != size:
        raise ValueError(f"chunk of another size (expected {size} bytes)")
    if chunk.uncompressed_crc and zlib.crc32(content) != chunk.uncompressed_crc:
        raise ValueError(f"wrong checksum of a chunk: {zlib.crc32(content)} (expected {chunk.uncompressed_crc})")
    return content


def _decompress_zstd(data: bytes, most: int) -> bytes:
    """Return at most `most` bytes of the content, or raise ValueError."""
    zstandard = _library("zstandard")  # which mcap requires
    try:
        with zstandard.ZstdDecompressor().stream_reader(data) as reader:
            content: bytes = reader.read(most)
    except zstandard.ZstdError as error:
        raise ValueError(f"chunk that cannot be decompressed: {error}") from None
    return content


def _decompress_lz4(data: bytes, most: int) -> bytes:
    """Return at most `most` bytes of the content, or raise ValueError."""
    frame = _library("lz4.frame")  # which mcap requires
    try:
        content: bytes = frame.LZ4FrameDecompressor().decompress(data, max_length=most)
    except RuntimeError as error:
        raise ValueError(f"chunk that cannot be decompressed: {error}") from None
    return content


_DECOMPRESSIONS = {"zstd": _decompress_zstd, "lz4": _decompress_lz4}


def regular_size(path: Path) -> int:
    """Return the size of a regular file in bytes, or raise OSError for anything else.

    An example is a pipe.
    """
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
