"""What is done with a run behind the stepping thread: rows are made and written, and the files around them."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from embodied_env.core.message_tap import TappedMessage
from embodied_env.core.types import Snapshot, Transition
from embodied_env.errors import RecordError
from embodied_env.record.arrays import Reference, refer_to, to_bytes
from embodied_env.record.manifest import write_json
from embodied_env.record.mcap_log import LogWriter
from embodied_env.record.raw_messages import MessageLog
from embodied_env.record.rows import RowEncoder, raw_transition_row, reset_row
from embodied_env.record.summary import Summary

MANIFEST = "manifest.json"
LOG = "transitions.mcap"
MESSAGES = "messages.mcap"
FIRST_TRANSITION = "first_transition.json"
SUMMARY = "summary.json"


def remove_run(path: Path) -> None:
    """Remove a run directory in which nothing happened: its files, and the directory if nothing else is in it."""
    with contextlib.suppress(OSError):
        for name in (MANIFEST, LOG, MESSAGES, FIRST_TRANSITION, SUMMARY):
            (path / name).unlink(missing_ok=True)
        path.rmdir()


class RowArrays:
    """The arrays that one row refers to, by their hash."""

    def __init__(self) -> None:
        """Begin with none."""
        self.found: dict[str, tuple[Reference, bytes]] = {}
        self._seen: dict[int, tuple[NDArray[Any], Reference]] = {}  # by identity, so each is held: none is another's

    def __call__(self, array: NDArray[Any]) -> Reference:
        """Put down the bytes of `array`, which nobody changes any more, once; return the reference for the row."""
        if id(array) not in self._seen:
            self._seen[id(array)] = array, self._put_down(array)
        return dict(self._seen[id(array)][1])

    def _put_down(self, array: NDArray[Any]) -> Reference:
        data = to_bytes(array)
        for known, bytes_of in self.found.values():  # what a wrapper handed on is compared, not hashed
            if (known["dtype"], known["shape"]) == (array.dtype.name, list(array.shape)) and bytes_of == data:
                return known
        reference = refer_to(array, data)
        self.found.setdefault(reference["sha256"], (reference, data))
        return reference


class RunWriter:
    """Writes into one run directory. Nothing raises: what goes wrong is noted, and no robot is stopped for it.

    Attributes:
        losses: what was not written, and why.
        summary: of all rows, those too that were lost.
    """

    def __init__(self, path: Path, *, evaluator: Sequence[str], messages: bool) -> None:
        """Create the logs in the directory `path`. `evaluator`: the sensors that only the evaluator sees.

        Raises:
            RecordError: when they cannot be created.
        """
        self.losses = LossCounter()
        self.summary = Summary()
        self._path, self._evaluator = path, evaluator
        self._encoder = RowEncoder()
        self._log = LogWriter(path / LOG)
        self._messages = MessageLog(path / MESSAGES) if messages else None

    @property
    def rows_flushed(self) -> int:
        """How many rows are with the operating system."""
        return self._log.rows_flushed

    def reset(
        self, made: Snapshot | None, outer: Mapping[str, Any], arrays: RowArrays, *, number: int, now_ns: int
    ) -> None:
        """Write the row of a reset."""
        with self._noting(rows=1):
            self.summary.add_handed_in()
            row = reset_row(made, row=number, outer=outer, evaluator=self._evaluator, store=arrays)
            self.write_row("reset", self._encoder.encode(row), arrays, number=number, now_ns=now_ns)

    def text_of(self, step: StepRow) -> str | None:
        """Return the JSON of the row of a step; None for one that cannot be made, which is noted as lost."""
        with self._noting(rows=1):
            self.summary.add_handed_in()
            row = raw_transition_row(
                step.made, row=step.number, outer=step.outer, action=step.action, evaluator=self._evaluator
            )
            return self._encoder.encode(row, step.arrays)
        return None

    def step(self, step: StepRow, text: str) -> None:
        """Write the row of a step, and the first one apart, too."""
        with self._noting(rows=1):
            self.write_row("transition", text, step.arrays, number=step.number, now_ns=step.now_ns)
            if step.is_first:
                self.file(FIRST_TRANSITION, json.loads(text))

    def write_row(self, topic: str, text: str, arrays: RowArrays, *, number: int, now_ns: int) -> None:
        """Write the messages that came before the row, then its arrays, then the row; raises RecordError."""
        if self._messages is not None:
            with self._noting():
                self._messages.flush()
        for reference, data in arrays.found.values():
            self._log.put(reference, data, log_time_ns=now_ns)
        self._log.append(topic, text, number=number, log_time_ns=now_ns)

    def message(self, message: TappedMessage) -> None:
        """Write a raw message."""
        if self._messages is not None:
            with self._noting(messages=1):
                self._messages.write(message)

    def file(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a file of JSON."""
        with self._noting():
            write_json(self._path / name, value)

    def settle(self) -> None:
        """Hand everything to the operating system."""
        if self._messages is not None:
            with self._noting():
                self._messages.flush()
        with self._noting():
            self._log.flush()

    def complete(self, manifest: Mapping[str, Any], contract_fingerprint: str) -> None:
        """Close the logs, then write the summary, then the manifest: one that says clean is the last thing written."""
        self.settle()
        self._log.close()
        if self._log.problem:
            self.losses.note(self._log.problem, rows=self._log.pop_lost_rows())
        if self._messages is not None:
            self._messages.close()
            if self._messages.problem:
                self.losses.note(self._messages.problem)
        self.file(SUMMARY, {**self.summary.as_json(contract_fingerprint), "record": self.losses.as_json()})
        clean, problem = self.losses.complete, self.losses.problem
        ending = {"clean": clean, "problem": problem, "rows_sha256": self._log.rows_sha256}
        self.file(MANIFEST, {**manifest, **ending, "record": self.losses.as_json()})

    def remove(self) -> None:
        """Remove the run, in which nothing happened."""
        remove_run(self._path)

    @contextlib.contextmanager
    def _noting(self, *, rows: int = 0, messages: int = 0) -> Iterator[None]:
        """Whatever goes wrong with the record is noted, and with it the rows that waited for a write that failed."""
        try:
            yield
        except RecordError as error:
            self.losses.note(str(error), rows=rows + self._log.pop_lost_rows(), messages=messages)
        except Exception as error:  # noqa: BLE001 - a message that cannot be serialised, for one
            self.losses.note(f"{type(error).__name__}: {error}", rows=rows, messages=messages)


@dataclass(kw_only=True)
class StepRow:
    """The row of one step: an `embodied_env.record.writer_thread.EncodableJob`.

    `outer` is what the agent was given and returned, `action` the one of `made` as it was then, and `arrays` are those
    of `outer` already.
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
        """Make the JSON text once."""
        if not self._is_encoded:
            self._text, self._is_encoded = self.run.text_of(self), True

    def __call__(self) -> None:
        """Write it."""
        self.encode()
        if self._text is not None:
            self.run.step(self, self._text)


class LossCounter:
    """Counts what could not be written of a run and keeps the first reason; thread-safe."""

    def __init__(self) -> None:
        """Begin with nothing lost."""
        self._lock = threading.Lock()
        self.problem = ""
        self.rows = 0
        self.messages = 0

    @property
    def complete(self) -> bool:
        """Nothing was lost, and nothing went wrong."""
        return not self.problem

    def note(self, problem: str, *, rows: int = 0, messages: int = 0) -> None:
        """Add to the counts; the first problem is kept."""
        with self._lock:
            self.problem = self.problem or problem
            self.rows += rows
            self.messages += messages

    def as_json(self) -> dict[str, bool | int]:
        """Return the counts, for manifest and summary."""
        with self._lock:
            return {"complete": self.complete, "lost_rows": self.rows, "lost_messages": self.messages}
