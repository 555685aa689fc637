"""The files of a run and their contents, as the writer thread writes them."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from embodied_env.contract import Contract
from embodied_env.core.message_tap import TappedMessage
from embodied_env.core.types import Snapshot, Transition
from embodied_env.errors import RecordError
from embodied_env.record.arrays import Reference, refer_to
from embodied_env.record.foxglove import encode_array
from embodied_env.record.manifest import write_json
from embodied_env.record.message_log import MessageLog
from embodied_env.record.rewrite import rewrite_log, rewrite_messages, temporary_path
from embodied_env.record.row_log import LogWriter
from embodied_env.record.rows import encode_row, reset_row, transition_row
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
    """The encoded arrays that one row refers to, by their hash."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[Reference, bytes]] = {}
        self._seen: dict[int, tuple[NDArray[Any], Reference]] = {}  # by id; holding the array keeps its id unique

    def __call__(self, array: NDArray[Any]) -> Reference:
        """Encode `array`, which must not change afterwards, and return its reference."""
        if id(array) not in self._seen:
            self._seen[id(array)] = array, self._add(array)
        return dict(self._seen[id(array)][1])

    def _add(self, array: NDArray[Any]) -> Reference:
        message, data = encode_array(array)
        for known, known_message in self.found.values():  # comparing a copy by a wrapper is cheaper than hashing it
            if known_message == message:
                return known
        reference = refer_to(array, data)
        self.found.setdefault(reference["sha256"], (reference, message))
        return reference


class RunWriter:
    """Writes into one run directory. Once open, it never raises: failures count as losses and do not stop the robot.

    Attributes:
        path: the run directory.
        losses: rows and messages that could not be written, and why.
        summary: of all rows, including lost ones.
        log: the rows on disk.
    """

    def __init__(self, path: Path, *, evaluator: Sequence[str], messages: bool) -> None:
        """Create the logs in `path`; `evaluator`: the sensors visible only to the evaluator. Raises RecordError."""
        self.losses = LossCounter()
        self.summary = Summary()
        self.path, self._evaluator = path, evaluator
        self.log = LogWriter(path / LOG)
        self._messages = MessageLog(path / MESSAGES) if messages else None

    def reset(
        self, made: Snapshot | None, outer: Mapping[str, Any], arrays: RowArrays, *, number: int, now_ns: int
    ) -> None:
        """Write the row of a reset."""
        with self._count_losses(rows=1):
            self.summary.add_queued()
            row = reset_row(made, row=number, outer=outer, evaluator=self._evaluator, store=arrays)
            self.write_row("reset", encode_row(row), arrays, number=number, now_ns=now_ns)

    def encode_step(self, step: StepRow) -> str | None:
        """Return the row of a step as JSON, or None if it cannot be encoded and counts as lost."""
        with self._count_losses(rows=1):
            self.summary.add_queued()
            row = transition_row(
                step.made, row=step.number, outer=step.outer, action=step.action, evaluator=self._evaluator
            )
            return encode_row(row, step.arrays)
        return None

    def step(self, step: StepRow, text: str) -> None:
        """Write the row of a step; the first one also to a separate file."""
        with self._count_losses(rows=1):
            self.write_row("transition", text, step.arrays, number=step.number, now_ns=step.now_ns)
            if step.is_first:
                self.file(FIRST_TRANSITION, json.loads(text))

    def write_row(self, topic: str, text: str, arrays: RowArrays, *, number: int, now_ns: int) -> None:
        """Flush the messages before the row, then write its arrays, then the row; raises RecordError."""
        self._flush_messages()
        for reference, message in arrays.found.values():
            self.log.put(reference, message, log_time_ns=now_ns)
        self.log.append(topic, text, number=number, log_time_ns=now_ns)

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
        self.file(SUMMARY, {**self.summary.as_json(contract_fingerprint), "record": self.losses.as_json()})
        clean, problem = self.losses.complete, self.losses.problem
        ending = {"clean": clean, "problem": problem, "rows_sha256": self.log.rows_sha256}
        self.file(MANIFEST, {**manifest, **ending, "record": self.losses.as_json()})

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


@dataclass(kw_only=True)
class StepRow:
    """The row of one step: an `embodied_env.record.writer_thread.EncodableJob`.

    `outer` has the values that the agent sent and received, `action` is a copy of the action of `made` from before the
    step, and `arrays` has the arrays of `outer`.
    """

    run: RunWriter
    made: Transition | None
    action: Any
    outer: Mapping[str, Any]
    arrays: RowArrays
    number: int
    now_ns: int
    is_first: bool
    _text: str | None = None
    _is_encoded: bool = False

    def encode(self) -> None:
        """Encode the row as JSON, once."""
        if not self._is_encoded:
            self._text, self._is_encoded = self.run.encode_step(self), True

    def __call__(self) -> None:
        """Write the row."""
        self.encode()
        if self._text is not None:
            self.run.step(self, self._text)


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
