"""Compare the index of an MCAP file with its chunks, which readers that seek rely on."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple


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
    """Receives a file's records in order, and raises ValueError for a wrong index or a message outside of chunks.

    A definition that disagrees raises the same error. A file that was cut off may lack an index, but one with an index
    has no other messages than those in it.
    """

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
