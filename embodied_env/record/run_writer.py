"""The files of a run and their contents.

Rows are encoded in the stepping thread, in real time without the environment's account, and written in another one.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from embodied_env.contract import Contract
from embodied_env.core.message_tap import TappedMessage
from embodied_env.core.types import Snapshot, Transition
from embodied_env.errors import RecordError
from embodied_env.record.arrays import Reference, encode_array, refer_to
from embodied_env.record.json_values import to_json_types
from embodied_env.record.manifest import write_json
from embodied_env.record.message_log import MessageLog
from embodied_env.record.rewrite import rewrite_log, rewrite_messages, temporary_path
from embodied_env.record.row_log import LogWriter
from embodied_env.record.rows import TRANSITION, Row, encode_row, reset_row, step_account, transition_row
from embodied_env.record.summary import Summary

MANIFEST = "manifest.json"
LOG = "transitions.mcap"
MESSAGES = "messages.mcap"
FIRST_TRANSITION = "first_transition.json"
SUMMARY = "summary.json"


def remove_run(path: Path) -> None:
    """Remove the files of a run, and its directory if nothing else is in it."""
    with contextlib.suppress(OSError):
        for name in (MANIFEST, LOG, MESSAGES, FIRST_TRANSITION, SUMMARY):
            temporary_path(path / name).unlink(missing_ok=True)
            (path / name).unlink(missing_ok=True)
        path.rmdir()


class RowArrays:
    """Copies of the arrays that one row refers to, and placeholders for their hashes, which take long."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[NDArray[Any], NDArray[Any], str]] = {}  # by id; holding an array keeps it unique

    def __call__(self, array: NDArray[Any]) -> Reference:
        """Copy `array`, and return the reference to it with a placeholder."""
        if id(array) not in self._found:
            self._found[id(array)] = array, array.copy(), secrets.token_hex(32)
        return {"sha256": self._found[id(array)][2], "dtype": array.dtype.name, "shape": list(array.shape)}

    @property
    def nbytes(self) -> int:
        """Size of the copies."""
        return sum(copy.nbytes for _, copy, _ in self._found.values())

    def hashed(self) -> Iterator[tuple[str, Reference, bytes]]:
        """Yield placeholder, reference and encoded message of each array."""
        found: list[tuple[Reference, bytes]] = []
        for _, copy, placeholder in self._found.values():
            message, data = encode_array(copy)
            equal = (known for known, other in found if other == message)  # a comparison is cheaper than a hash
            reference = next(equal, None) or refer_to(copy, data)
            found.append((reference, message))
            yield placeholder, reference, message


class EncodedRow(NamedTuple):
    """A row as JSON with placeholders for the hashes of its `arrays`, or without ``inner``, if that is in `account`."""

    topic: str
    data: bytes
    arrays: RowArrays
    number: int
    now_ns: int
    account: Callable[[], Row] | None = None

    @property
    def nbytes(self) -> int:
        """Approximate size in memory; an account has about as much as the rest."""
        return (len(self.data) + self.arrays.nbytes) * (1 if self.account is None else 2)


class RunWriter:
    """Writes into one run directory. Once open, it never raises: failures count as losses and do not stop the robot.

    Attributes:
        path: the run directory.
        losses: rows and messages that could not be written, and why.
        summary: of all rows, including lost ones.
        log: the rows on disk.
    """

    def __init__(self, path: Path, *, evaluator: Sequence[str], messages: bool, encodes_at_once: bool) -> None:
        """Create the logs in `path`; raises RecordError.

        Args:
            path: the run directory.
            evaluator: the sensors visible only to the evaluator.
            messages: whether to log raw messages.
            encodes_at_once: `encode_step` encodes the whole row; otherwise `write` encodes the environment's account.
        """
        self.losses = LossCounter()
        self.summary = Summary()
        self.path, self._evaluator = path, evaluator
        self.log = LogWriter(path / LOG)
        self._messages = MessageLog(path / MESSAGES) if messages else None
        self._encodes_at_once, self._has_step = encodes_at_once, False

    def encode_reset(
        self, made: Snapshot | None, outer: Mapping[str, Any], *, number: int, now_ns: int
    ) -> EncodedRow | None:
        """Return the row of a reset, or None if it cannot be encoded and counts as lost."""
        with self._count_losses(rows=1):
            self.summary.add_reset(None if made is None else made.reset)
            arrays = RowArrays()
            row = reset_row(made, row=number, outer=outer, evaluator=self._evaluator, store=arrays)
            return EncodedRow("reset", encode_row(row), arrays, number, now_ns)
        return None

    def encode_step(
        self, made: Transition | None, outer: Mapping[str, Any], *, number: int, now_ns: int
    ) -> EncodedRow | None:
        """Return the row of a step, or None if it cannot be encoded and counts as lost."""
        with self._count_losses(rows=1):
            self.summary.add_step(outer)
            arrays = RowArrays()
            if made is None or self._encodes_at_once:
                row = transition_row(made, row=number, outer=outer, evaluator=self._evaluator)
                return EncodedRow("transition", encode_row(row, arrays), arrays, number, now_ns)
            data = encode_row({"schema": TRANSITION, "row": number, **outer}, arrays)
            account = partial(step_account, made, to_json_types(made.action), self._evaluator)
            return EncodedRow("transition", data, arrays, number, now_ns, account)
        return None

    def write(self, row: EncodedRow) -> None:
        """Flush the messages before the row, then write its arrays, then the row; the first step also to a file."""
        with self._count_losses(rows=1):
            self._flush_messages()
            data = row.data
            if row.account is not None:
                data = b'%b,"inner":%b}' % (data[:-1], encode_row(row.account(), row.arrays))
            for placeholder, reference, message in row.arrays.hashed():
                data = data.replace(placeholder.encode(), reference["sha256"].encode())
                self.log.put(reference, message, log_time_ns=row.now_ns)
            self.log.append(row.topic, data, number=row.number, log_time_ns=row.now_ns)
            if row.topic == "transition" and not self._has_step:
                self._has_step = True
                self.file(FIRST_TRANSITION, json.loads(data))

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
        """Pass everything to the operating system."""
        self._flush_messages()
        with self._count_losses():
            self.log.flush()

    def complete(self, manifest: Mapping[str, Any], contract_fingerprint: str) -> None:
        """Close the logs, then write the summary, then the manifest: ``clean`` is the last thing written."""
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
        ending = {"clean": clean, "problem": problem, "rows_sha256": self.log.rows_sha256}
        self.file(MANIFEST, {**manifest, **ending, "record": self.losses.as_json()})

    def summarize(self, contract_fingerprint: str) -> dict[str, Any]:
        """Return the content of ``summary.json``."""
        return {**self.summary.as_json(contract_fingerprint), "record": self.losses.as_json()}

    def rewrite(self, contract: Contract) -> None:
        """Rewrite the journals of a complete run for viewers; raises RecordError, which leaves a file unchanged."""
        if self.losses.complete:
            rewrite_log(self.path / LOG, contract)
            if self._messages is not None:
                rewrite_messages(self.path / MESSAGES)

    def _flush_messages(self) -> None:
        if self._messages is not None:
            with self._count_losses():
                self._messages.flush()

    @contextlib.contextmanager
    def _count_losses(self, *, rows: int = 0, messages: int = 0) -> Iterator[None]:
        """Count a failed write as lost, together with the buffered rows."""
        try:
            yield
        except RecordError as error:
            self.losses.note(str(error), rows=rows + self.log.pop_lost_rows(), messages=messages)
        except Exception as error:  # noqa: BLE001 - of a message that cannot be serialised, for example
            self.losses.note(f"{type(error).__name__}: {error}", rows=rows, messages=messages)


class LossCounter:
    """Counts the rows and messages that could not be written and keeps the first problem; thread-safe."""

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

    def as_json(self) -> dict[str, bool | int]:
        """Return the counts, for manifest and summary."""
        with self._lock:
            return {"complete": self.complete, "lost_rows": self.rows, "lost_messages": self.messages}
