"""The log of a run, an MCAP file in which every flushed row survives a SIGKILL.

An array that rows refer to is a separate message before the first of them.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from embodied_env.contract.bounded_json import MOST_VALUES, count_values, parse_json
from embodied_env.core.protobuf import DamagedMessageError
from embodied_env.errors import RecordError
from embodied_env.record.arrays import (
    ARRAY,
    Reference,
    array_schema,
    check_layout,
    find_array,
    from_bytes,
    is_reference,
)
from embodied_env.record.mcap_file import McapRecords, read_chunk
from embodied_env.record.mcap_writer import DEFAULT_COMPRESSION, McapFile, Piece
from embodied_env.record.row_types import RESET, TRANSITION, ChainRecord

CHANNELS = {"transition": TRANSITION, "reset": RESET}  # topic -> the name of the schema of its rows
ARRAYS = "array"  # the topic of the bytes that rows refer to
LARGEST_ROW = 2**26  # size of the JSON of the largest row that is read, in bytes
DEEPEST = 256  # the deepest nesting of JSON that is read from a run; the recorder writes no deeper one
_DECODED_CHUNKS = 2  # chunks of the arrays read last


class LogWriter:
    """Writes rows in order, and raises RecordError for a failed write and each later one."""

    def __init__(self, path: Path, *, start: str = "", compression: str = DEFAULT_COMPRESSION) -> None:
        """Create the log, whose first row has the hash `start` in the chain, or raise RecordError."""
        self.chain = RowChain(start)
        self._stored: set[str] = set()  # hashes of the arrays in the log
        self._unflushed: list[int] = []  # numbers of the rows of the chunk in progress
        self._ends = array("Q")  # ends of the chunks of the flushed rows
        note_chunk = functools.partial(_note_chunk, self._unflushed, self._ends)  # no cycle with the file
        self._file = McapFile(path, compression=compression, is_hashed=True, after_chunk=note_chunk)
        file, self._channels = self._file, {}
        for topic, name in CHANNELS.items():
            schema_id = file.register_schema(name, "jsonschema", json.dumps(channel_schema(name)).encode())
            self._channels[topic] = file.register_channel(topic, "json", schema_id)
        schema_id = file.register_schema(ARRAY, "protobuf", array_schema())
        self._channels[ARRAYS] = file.register_channel(ARRAYS, "protobuf", schema_id)
        with file.guarded("the header"):
            file.begin()

    @property
    def problem(self) -> str:
        """Why further rows are refused, or ""."""
        return self._file.problem

    @property
    def is_full(self) -> bool:
        """Whether the log has enough rows for a chunk, so that `flush` should be called."""
        return self._file.is_full

    @property
    def rows_flushed(self) -> int:
        """The number of rows passed to the operating system and not removed by another process."""
        return len(self._ends)

    def append(self, topic: str, data: bytes, *, number: int, log_time_ns: int) -> None:
        """Append a linked row without flushing, or raise RecordError if readers would refuse it."""
        if len(data) >= MOST_VALUES and (count := count_values(data)) > MOST_VALUES:
            raise RecordError(f"row {number} has {count} values (expected at most {MOST_VALUES})")
        with self._file.guarded(f"row {number}"):
            self._add_message(topic, [data], number, log_time_ns)
            self.chain.add(data, is_reset=topic == "reset")
            self._unflushed.append(number)

    def put(self, reference: Reference, message: Sequence[Piece], *, log_time_ns: int) -> None:
        """Append the array that `reference` refers to, in the pieces of `encode_array`, once."""
        if reference["sha256"] not in self._stored:
            with self._file.guarded("an array"):
                self._add_message(ARRAYS, message, len(self._stored), log_time_ns)
            self._stored.add(reference["sha256"])

    def flush(self) -> None:
        """Pass everything to the operating system."""
        with self._file.guarded(f"row {self._unflushed[0]}" if self._unflushed else "an array"):
            self._file.flush()

    def pop_lost_rows(self) -> int:
        """Return the number of appended rows lost by a failed write or check, each counted once."""
        if not self.problem:
            return 0
        kept = bisect_right(self._ends, self._file.kept)
        lost = len(self._unflushed) + len(self._ends) - kept
        self._unflushed.clear()
        del self._ends[kept:]
        return lost

    def close(self) -> None:
        """Finish and close the file once, and store an error in `problem` instead of raising it."""
        with contextlib.suppress(RecordError):
            self.flush()
        self._file.close()

    def _add_message(self, topic: str, data: Sequence[Piece], number: int, ns: int) -> None:
        self._file.add_message(self._channels[topic], data, number=number, log_ns=ns, publish_ns=ns)


def _note_chunk(unflushed: list[int], ends: array[int], end: int) -> None:
    """Count the rows of a chunk that was passed to the operating system as flushed."""
    ends.extend([end] * len(unflushed))
    unflushed.clear()


def channel_schema(name: str) -> dict[str, Any]:
    """Return the channel's schema of rows `name`, with the fields that Foxglove reads.

    Foxglove accepts no field that may be null or of several types, and requires `properties` of every object. It shows
    and plots fields that are not named. The complete types are in `embodied_env.record.row_types`.
    """
    types = {"schema": "string", "row": "integer"}
    if name == TRANSITION:
        types |= {"reward": "number", "terminated": "boolean", "truncated": "boolean"}
        required = [*types, "observation", "action", "info", "inner"]
    else:
        required = [*types, "seed", "options", "observation", "info", "inner"]
    info = {"type": "object", "properties": {}}
    properties = {**{field: {"type": kind} for field, kind in types.items()}, "info": info}
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, "title": name, "type": "object", "properties": properties, "required": required}


def parse_row(data: bytes) -> Any:  # noqa: ANN401 - JSON types
    """Return a row as bounded JSON of any type, or raise ValueError."""
    return parse_json(data, max_bytes=LARGEST_ROW, max_depth=DEEPEST)


class LogContent(NamedTuple):
    """The result of reading a log to its end."""

    problem: str  # why the file is not complete, or ""
    rows_sha256: str  # of the JSON text of each complete row, followed by a newline; of runs without a chain
    chain: RowChain  # of the complete rows
    is_cut: bool  # its writer was stopped


class LogReader:
    """Reads the rows of a log up to the first incomplete one, from the start at each iteration."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._content: LogContent | None = None  # of the newest iteration to the end

    def __iter__(self) -> Iterator[Any]:
        """Yield the rows in the order of writing as bounded JSON of any type."""
        digest, chain = hashlib.sha256(), RowChain()
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
            record = stored.record  # published when it was logged
            log_ns = record.log_time if record.publish_time == record.log_time else None
            chain.check(row, record.data, log_ns, CHANNELS[stored.channel.topic])
            count += 1
            yield row
        if records.problem:
            problem = f"{self.path.name}: {records.problem} ({count} complete rows)"
        self._content = LogContent(problem, digest.hexdigest(), chain, is_cut=records.is_cut)

    def array(self, reference: Mapping[str, Any]) -> NDArray[Any]:
        """Return the read-only array of a reference, or raise RecordError if it is damaged."""
        self.check_array(reference)
        try:
            try:
                return from_bytes(reference, self._arrays.read(reference["sha256"]))
            except ValueError:  # the file may have been repaired since the search
                del self._arrays
                return from_bytes(reference, self._arrays.read(reference["sha256"]))
        except (OSError, ValueError, KeyError) as error:
            raise RecordError(f"{self.path.name}: cannot read the array {reference}: {error}") from None

    def check_array(self, reference: Mapping[str, Any]) -> None:
        """Raise RecordError unless the log has the array, whose hash is known without reading."""
        if not is_reference(reference) or reference["sha256"] not in self._arrays.places:
            raise RecordError(f"{self.path.name}: no such array: {reference}")
        try:
            check_layout(reference, self._arrays.places[reference["sha256"]][2])
        except ValueError as error:
            raise RecordError(f"{self.path.name}: cannot read the array {reference}: {error}") from None

    @functools.cached_property
    def _arrays(self) -> _Arrays:
        return _Arrays(self.path)

    @property
    def problem(self) -> str:
        """Why the file was not complete when it was read to its end, or ""."""
        return self.content.problem

    @property
    def content(self) -> LogContent:
        """The result of reading the file to its end."""
        if self._content is None:
            for _ in self:
                pass
        return self._content or LogContent("", "", RowChain(), is_cut=False)


class _Arrays:
    """The arrays of one file, which is searched once and whose newest chunks read are kept."""

    def __init__(self, path: Path) -> None:
        self._chunk = functools.lru_cache(_DECODED_CHUNKS)(functools.partial(read_chunk, path))
        self.places: dict[str, tuple[int | None, int, int]] = {}  # chunk, and in it offset and size, by hash
        for stored in McapRecords(path).messages():
            data, found = stored.record.data, None
            with contextlib.suppress(DamagedMessageError):
                found = find_array(stored.schema_name, data)
            if found is not None:
                place = (stored.place.chunk, stored.place.end - len(data) + found.start, found.stop - found.start)
                self.places.setdefault(hashlib.sha256(memoryview(data)[found]).hexdigest(), place)

    def read(self, sha256: str) -> bytes:
        """Return the bytes of an array, or raise OSError, ValueError or KeyError."""
        chunk, start, size = self.places[sha256]
        return self._chunk(chunk)[start : start + size]


PREVIOUS, LOG_TIME = "previous_sha256", "log_time_ns"  # the fields of a row that make the chain
_STATED = ("run_id", "started_utc", "backend")


def start_of_chain(manifest: Mapping[str, Any]) -> str:
    """Return the hash of name, start, backend and contract, which the first row has."""
    contract = manifest.get("contract")
    fingerprint = contract.get("fingerprint") if isinstance(contract, dict) else None
    stated = [*(manifest.get(key) for key in _STATED), fingerprint]
    return hashlib.sha256(json.dumps(stated).encode()).hexdigest()


def describe_chain(manifest: Mapping[str, Any]) -> str:
    """Return head and counts in words, as a finished manifest states them."""
    if (chain := manifest.get("chain")) is None:
        return "no head: the run was not closed"
    return f"head {chain['head']}, {chain['rows']} rows, {chain['resets']} resets"


class RowChain:
    """Makes or checks the chain, in which each row has the hash of the one before it.

    The first row has the hash of name, start, contract and backend of the run. References cover the arrays.
    """

    def __init__(self, start: str = "") -> None:
        self.start = start  # hash in the first row, "" without rows, or in a run from before there were chains
        self.head = start  # hash of the last row, or the start without rows, "" without a chain
        self.rows = self.resets = 0
        self.problem = ""  # first row that does not fit

    def link(self, data: bytes, log_time_ns: int) -> bytes:
        """Return a row, as JSON, with the fields that link it to the previous one."""
        return b'%b,"%b":"%b","%b":%d}' % (
            data[:-1], PREVIOUS.encode(), self.head.encode(), LOG_TIME.encode(), log_time_ns
        )  # fmt: skip

    def add(self, data: bytes, *, is_reset: bool) -> None:
        """Add a linked row."""
        self.head = hashlib.sha256(data).hexdigest()
        self.rows += 1
        self.resets += is_reset

    def check(self, row: Any, data: bytes, log_time_ns: int | None, schema: str) -> None:  # noqa: ANN401 - JSON types
        """Add a row as JSON types and text, with its message's time, or None, and topic's schema."""
        fields = row if isinstance(row, dict) else {}
        previous = fields.get(PREVIOUS, "")
        if not self.rows:
            self.start = self.head = previous if isinstance(previous, str) else ""
        where = f"row {self.rows}"
        if previous != (self.head if self.start else ""):
            self.problem = self.problem or f"{where} does not have the hash of the row before it"
        elif self.start and fields.get(LOG_TIME) != log_time_ns:
            self.problem = self.problem or f"{where} does not have the log time of its message"
        elif self.start and fields.get("schema") in {RESET, TRANSITION} - {schema}:
            self.problem = self.problem or f"{where} does not have the schema of its topic"
        self.add(data, is_reset=fields.get("schema") == RESET)
        if not self.start:
            self.head = ""

    def as_json(self) -> ChainRecord:
        """Return head and counts, for the manifest."""
        return {"head": self.head, "rows": self.rows, "resets": self.resets}
