"""The log of a run: an MCAP file of JSON rows in which every flushed row survives a SIGKILL of the writer.

An array that rows refer to is a separate message before the first of them. While recording it is not compressed: the
fastest level of zlib takes ten times as long as the hash, and more than a millisecond for an image of 640x480.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from embodied_env.contract.bounded_json import parse_json
from embodied_env.core.protobuf import DamagedMessageError
from embodied_env.errors import RecordError
from embodied_env.record.arrays import ARRAY, Reference, array_schema, find_array, from_bytes, is_reference
from embodied_env.record.mcap_file import McapFile, McapRecords, StoredRecord, read_chunk
from embodied_env.record.row_schema import channel_schema
from embodied_env.record.rows import RESET, TRANSITION

CHANNELS = {"transition": TRANSITION, "reset": RESET}
"""Topic -> the name of the schema of its rows."""

ARRAYS = "array"
"""The topic of the bytes that rows refer to."""

LARGEST_ROW = 2**26
"""Size of the JSON of the largest row that is read, in bytes."""

DEEPEST = 256
"""The deepest nesting of JSON that is read from a run; the recorder writes no deeper one."""

_DECODED_CHUNKS = 2  # of the arrays read last


class LogWriter:
    """Writes rows in order. Raises RecordError for a failed write and each later one; earlier rows are kept."""

    def __init__(self, path: Path) -> None:
        self._file = McapFile(path)
        self._stored: set[str] = set()  # hashes of the arrays in the log
        self._unflushed: deque[tuple[int, int]] = deque()  # number and end of each row
        self._ends = array("Q")  # of the flushed rows
        self._digest = hashlib.sha256()
        writer, self._channels = self._file.writer, {}
        with self._file.guarded("the header"):
            for topic, name in CHANNELS.items():
                schema_id = writer.register_schema(name, "jsonschema", json.dumps(channel_schema(name)).encode())
                self._channels[topic] = writer.register_channel(topic, "json", schema_id)
            schema_id = writer.register_schema(ARRAY, "protobuf", array_schema())
            self._channels[ARRAYS] = writer.register_channel(ARRAYS, "protobuf", schema_id)
            self._file.begin()

    @property
    def problem(self) -> str:
        """Why further rows are refused, or ""."""
        return self._file.problem

    @property
    def rows_flushed(self) -> int:
        """The number of rows passed to the operating system and not removed by another process."""
        return len(self._ends)

    @property
    def rows_sha256(self) -> str:
        """SHA-256 of the rows so far: of the JSON text of each, followed by a newline."""
        return self._digest.hexdigest()

    def append(self, topic: str, data: bytes, *, number: int, log_time_ns: int) -> None:
        """Append row `number`, as JSON, to the channel `topic`, without flushing."""
        with self._file.guarded(f"row {number}"):
            self._add_message(topic, data, number, log_time_ns)
            self._digest.update(data + b"\n")
            self._unflushed.append((number, self._file.end))

    def put(self, reference: Reference, message: bytes, *, log_time_ns: int) -> None:
        """Append the array that `reference` refers to, encoded by `encode_array`, once."""
        if reference["sha256"] not in self._stored:
            with self._file.guarded("an array"):
                self._add_message(ARRAYS, message, len(self._stored), log_time_ns)
            self._stored.add(reference["sha256"])

    def flush(self) -> None:
        """Pass everything to the operating system."""
        try:
            with self._file.guarded(f"row {self._unflushed[0][0]}" if self._unflushed else "an array"):
                self._file.flush()
        finally:
            while self._unflushed and self._unflushed[0][1] <= self._file.flushed:
                self._ends.append(self._unflushed.popleft()[1])

    def pop_lost_rows(self) -> int:
        """Return the number of appended rows lost by a failed write or check; each is counted once."""
        if not self.problem:
            return 0
        kept = bisect_right(self._ends, self._file.kept)
        lost = len(self._unflushed) + len(self._ends) - kept
        self._unflushed.clear()
        del self._ends[kept:]
        return lost

    def close(self) -> None:
        """Finish and close the file; idempotent. It never raises: `problem` has the error."""
        with contextlib.suppress(RecordError):
            self.flush()
        self._file.close()

    def _add_message(self, topic: str, data: bytes, number: int, ns: int) -> None:
        self._file.add_message(self._channels[topic], data, number=number, log_ns=ns, publish_ns=ns)


def parse_row(data: bytes) -> Any:  # noqa: ANN401 - JSON types
    """Return a row as bounded JSON of any type; raises ValueError."""
    return parse_json(data, max_bytes=LARGEST_ROW, max_depth=DEEPEST)


def find_stored_array(stored: StoredRecord) -> slice | None:
    """Return the place of the bytes of the array in the data of a message, or None if it has none."""
    try:
        return find_array(stored.schema_name, stored.record.data)
    except DamagedMessageError:
        return None


class LogReader:
    """Reads the rows of a log up to the first incomplete one, from the start at each iteration."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._result: tuple[str, str] | None = None  # problem and hash of the newest iteration to the end

    def __iter__(self) -> Iterator[Any]:
        """Yield the rows in the order of writing: bounded JSON of any type."""
        digest = hashlib.sha256()
        count, problem = 0, ""
        records = McapRecords(self.path)
        for stored in records.messages():
            if stored.channel.topic not in CHANNELS:
                continue
            try:
                row = parse_row(stored.record.data)
            except ValueError as error:
                problem = f"{self.path.name}: row {count} is not JSON: {error}"
                break
            digest.update(stored.record.data + b"\n")
            count += 1
            yield row
        if records.problem:
            problem = f"{self.path.name}: {records.problem} ({count} complete rows)"
        self._result = (problem, digest.hexdigest())

    def array(self, reference: Mapping[str, Any]) -> NDArray[Any]:
        """Return the read-only array that a row refers to; raises RecordError if it is missing or damaged."""
        if not is_reference(reference) or reference["sha256"] not in self._arrays.places:
            raise RecordError(f"{self.path.name}: no such array: {reference}")
        try:
            try:
                return from_bytes(reference, self._arrays.read(reference["sha256"]))
            except ValueError:  # the file may have been rewritten since the search
                del self._arrays
                return from_bytes(reference, self._arrays.read(reference["sha256"]))
        except (OSError, ValueError, KeyError) as error:
            raise RecordError(f"{self.path.name}: cannot read the array {reference}: {error}") from None

    @functools.cached_property
    def _arrays(self) -> _Arrays:
        return _Arrays(self.path)

    @property
    def problem(self) -> str:
        """Why the file was not complete when it was read to its end, or ""."""
        return self._read_all()[0]

    @property
    def rows_sha256(self) -> str:
        """SHA-256 of the complete rows: of the JSON text of each, followed by a newline."""
        return self._read_all()[1]

    def _read_all(self) -> tuple[str, str]:
        if self._result is None:
            for _ in self:
                pass
        return self._result or ("", "")


class _Arrays:
    """The arrays of one file. The file is searched once; the newest chunks read are kept.

    Attributes:
        places: offset of the chunk, or None, and offset and size of the bytes of each array, by their hash.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._chunk = functools.lru_cache(_DECODED_CHUNKS)(functools.partial(read_chunk, path))
        self.places: dict[str, tuple[int | None, int, int]] = {}
        for stored in McapRecords(path).messages():
            if (found := find_stored_array(stored)) is not None:
                data = stored.record.data
                place = (stored.place.chunk, stored.place.end - len(data) + found.start, found.stop - found.start)
                self.places.setdefault(hashlib.sha256(memoryview(data)[found]).hexdigest(), place)

    def read(self, sha256: str) -> bytes:
        """Return the bytes of an array; raises OSError, ValueError or KeyError."""
        chunk, start, size = self.places[sha256]
        if chunk is not None:
            return self._chunk(chunk)[start : start + size]
        with self._path.open("rb") as file:
            file.seek(start)
            return file.read(size)
