"""The files of a run and their contents.

Rows are encoded in the stepping thread, except for images and, in real time, the environment's account. Another thread
hashes the images, encodes the rest, and writes the rows.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from embodied_env.core.message_tap import TappedMessage
from embodied_env.core.types import Snapshot, Transition
from embodied_env.errors import RecordError
from embodied_env.record.arrays import Reference, encode_array, has_same_bytes, portable, refer_to
from embodied_env.record.json_values import detach, has_large_arrays, to_json_types
from embodied_env.record.manifest import write_json
from embodied_env.record.message_log import MessageLog
from embodied_env.record.row_log import LogWriter
from embodied_env.record.row_types import TRANSITION, Row
from embodied_env.record.rows import encode_row, reset_row, step_account, transition_row
from embodied_env.record.summary import Summary

MANIFEST = "manifest.json"
LOG = "transitions.mcap"
MESSAGES = "messages.mcap"
FIRST_TRANSITION = "first_transition.json"
SUMMARY = "summary.json"


def remove_run(path: Path, made_for_it: Sequence[Path] = ()) -> None:
    """Remove the files of a run, and its folder and those made for it if they are empty."""
    with contextlib.suppress(OSError):
        for name in (MANIFEST, LOG, MESSAGES, FIRST_TRANSITION, SUMMARY):
            (path / name).unlink(missing_ok=True)
        for folder in (path, *made_for_it):
            folder.rmdir()


class RowArrays:
    """The arrays that one row refers to, each hashed and stored once."""

    def __init__(self) -> None:
        self.found: list[tuple[Reference, NDArray[Any]]] = []  # in portable form

    def keep(self, array: NDArray[Any]) -> Reference:
        """Return the reference to an array that never changes."""
        return self._refer(portable(array))

    def copy(self, array: NDArray[Any]) -> Reference:
        """Return the reference to an array that its owner may change later."""
        return self._refer(portable(array.copy()))

    def _refer(self, data: NDArray[Any]) -> Reference:
        for reference, known in self.found:
            if has_same_bytes(known, data):  # much faster than a hash
                return reference
        reference = refer_to(data)
        self.found.append((reference, data))
        return reference


class PendingRow(NamedTuple):
    """A row to be written."""

    topic: str
    parts: Sequence[bytes | Callable[[], Row]]  # JSON without the braces, or fields that are encoded later
    arrays: RowArrays
    number: int
    now_ns: int
    nbytes: int  # approximate size in memory


class RunWriter:
    """Writes into one run directory, and counts failures once open, so that the robot goes on."""

    def __init__(
        self,
        path: Path,
        *,
        evaluator: Sequence[str],
        messages: bool,
        encodes_at_once: bool,
        start: str,
        compression: str,
    ) -> None:
        """Create the logs in `path`, or raise RecordError.

        `evaluator` names the sensors visible only to it, and `start` is the hash in the first row. `encode_step`
        encodes rows without images if `encodes_at_once`, otherwise `write` encodes their accounts.
        """
        self.losses = LossCounter()
        self.summary = Summary()  # of all rows, including lost ones
        self.path, self._evaluator = path, evaluator
        self.log = LogWriter(path / LOG, start=start, compression=compression)
        self._messages = MessageLog(path / MESSAGES, compression=compression) if messages else None
        self._encodes_at_once, self._has_step = encodes_at_once, False

    def encode_reset(
        self, made: Snapshot | None, outer: Mapping[str, Any], *, number: int, now_ns: int
    ) -> PendingRow | None:
        """Return the row of a reset, or None if it cannot be encoded and counts as lost."""
        with self._count_losses(rows=1):
            self.summary.add_reset(None if made is None else made.reset)
            arrays = RowArrays()
            row = reset_row(made, row=number, outer=outer, evaluator=self._evaluator, store=arrays.copy)
            data = encode_row(row)[1:-1]
            size = len(data) + sum(array.nbytes for _, array in arrays.found)
            return PendingRow("reset", [data], arrays, number, now_ns, size)
        return None

    def encode_step(
        self, made: Transition | None, outer: Mapping[str, Any], *, number: int, now_ns: int
    ) -> PendingRow | None:
        """Return the row of a step, or None if it cannot be encoded and counts as lost."""
        with self._count_losses(rows=1):
            self.summary.add_step(outer)
            arrays, has_images = RowArrays(), has_large_arrays(outer["observation"])
            if not has_images and (made is None or self._encodes_at_once):
                row = transition_row(made, row=number, outer=outer, evaluator=self._evaluator)
                data = encode_row(row, arrays.copy)[1:-1]
                return PendingRow("transition", [data], arrays, number, now_ns, len(data))
            parts: list[bytes | Callable[[], Row]] = []
            fields, size = {"schema": TRANSITION, "row": number, **outer}, 0
            if has_images:
                known = {} if made is None else made.observation
                observation, size = detach(fields.pop("observation"), known)
                parts.append(lambda: {"observation": observation})
            data = encode_row(fields, arrays.copy)[1:-1]
            parts.insert(0, data)
            if made is None:
                parts.append(b'"inner":null')
            else:
                account = partial(step_account, made, to_json_types(made.action), self._evaluator)
                parts.append(lambda: {"inner": account()})
                size += sum(array.nbytes for array in made.observation.values())
            return PendingRow("transition", parts, arrays, number, now_ns, size + 2 * len(data))
        return None

    def encode_made(self, row: Row, *, now_ns: int) -> PendingRow | None:
        """Return the row of a step with constant arrays, without its latencies in the summary."""
        try:
            self.summary.add(row, with_latency=False)
            arrays = RowArrays()
            data = encode_row(row, arrays.keep)[1:-1]
        except Exception as error:  # noqa: BLE001 - as in `_count_losses`, which takes longer
            self._note_loss(error, rows=1)
            return None
        size = len(data) + sum(array.nbytes for _, array in arrays.found) if arrays.found else len(data)
        return PendingRow("transition", [data], arrays, row["row"], now_ns, size)

    def write(self, row: PendingRow) -> None:
        """Write the arrays of a row, then the row, and the first step also to a file."""
        try:
            parts = [
                part if isinstance(part, bytes) else encode_row(part(), row.arrays.keep)[1:-1] for part in row.parts
            ]
            data = self.log.chain.link(b"{%b}" % b",".join(parts), row.now_ns)
            for reference, array in row.arrays.found:
                self.log.put(reference, encode_array(array), log_time_ns=row.now_ns)
            self.log.append(row.topic, data, number=row.number, log_time_ns=row.now_ns)
            if row.topic == "transition" and not self._has_step:
                self._has_step = True
                self.file(FIRST_TRANSITION, json.loads(data))
        except Exception as error:  # noqa: BLE001 - as in `_count_losses`, which takes longer
            self._note_loss(error, rows=1)
        if self.log.is_full:
            self.settle()

    def message(self, message: TappedMessage) -> None:
        """Write a raw message."""
        if self._messages is not None:
            with self._count_losses(messages=1):
                self._messages.write(message)

    def file(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a JSON file."""
        with self._count_losses():
            write_json(self.path / name, value)

    def settle(self) -> None:
        """Pass everything to the operating system, a row after the messages before it."""
        if self._messages is not None:
            with self._count_losses():
                self._messages.flush()
        with self._count_losses():
            self.log.flush()

    def complete(self, manifest: Mapping[str, Any], contract_fingerprint: str) -> None:
        """Close the logs, then write summary and manifest, so that ``clean`` is written last."""
        self.settle()
        self.log.close()
        if self.log.problem:
            self.losses.note(self.log.problem, rows=self.log.pop_lost_rows())
        if self._messages is not None:
            self._messages.close()
            if self._messages.problem:
                self.losses.note(self._messages.problem)
        self.file(SUMMARY, self.summarize(contract_fingerprint))
        clean, problem = self.losses.complete, self.losses.problem
        ending = {"clean": clean, "problem": problem, "chain": self.log.chain.as_json()}
        self.file(MANIFEST, {**manifest, **ending, "record": self.losses.as_json()})

    def summarize(self, contract_fingerprint: str) -> dict[str, Any]:
        """Return the content of ``summary.json``."""
        return {**self.summary.as_json(contract_fingerprint), "record": self.losses.as_json()}

    @contextlib.contextmanager
    def _count_losses(self, *, rows: int = 0, messages: int = 0) -> Iterator[None]:
        """Count a failed write as lost, together with the buffered rows."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - of a message that cannot be serialised, for example
            self._note_loss(error, rows=rows, messages=messages)

    def _note_loss(self, error: Exception, *, rows: int = 0, messages: int = 0) -> None:
        if isinstance(error, RecordError):
            self.losses.note(str(error), rows=rows + self.log.pop_lost_rows(), messages=messages)
        else:
            self.losses.note(f"{type(error).__name__}: {error}", rows=rows, messages=messages)


class LossCounter:
    """Counts lost rows and messages in any thread, and keeps the first problem."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.problem = ""
        self.rows = 0
        self.messages = 0

    @property
    def complete(self) -> bool:
        """Whether nothing was lost and nothing failed."""
        return not self.problem

    def note(self, problem: str, *, rows: int = 0, messages: int = 0) -> None:
        """Add to the counts and keep the first problem."""
        with self._lock:
            self.problem = self.problem or problem
            self.rows += rows
            self.messages += messages

    def note_dropped(self, row: int) -> None:
        """Count a row that found no room in the queue."""
        self.note(f"row {row} was dropped: the disk is too slow", rows=1)

    def as_json(self) -> dict[str, bool | int]:
        """Return the counts, for manifest and summary."""
        with self._lock:
            return {"complete": self.complete, "lost_rows": self.rows, "lost_messages": self.messages}
