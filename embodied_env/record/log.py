"""The log of a run: an MCAP file of JSON rows in which every row that was written survives a SIGKILL of its writer.

There are no chunks, and each row is handed to the operating system before `write` returns. What is lost when the
machine itself stops is up to its file system.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import struct
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from embodied_env._version import __version__
from embodied_env.errors import MissingDependencyError, RecordError
from embodied_env.record.rows import RESET, TRANSITION
from embodied_env.record.schema import reset_schema, transition_schema

CHANNELS = {"transition": (TRANSITION, transition_schema), "reset": (RESET, reset_schema)}
"""Topic -> the name of its rows' schema, and the schema."""


def _mcap(module: str) -> Any:  # noqa: ANN401 - a module without type information
    try:
        return importlib.import_module(f"mcap.{module}")
    except ImportError:
        raise MissingDependencyError(
            "mcap", needed_for="recording", remedy='pip install "embodied_env[record]"'
        ) from None


def check_installed() -> None:
    """Raise MissingDependencyError when logs cannot be written or read here."""
    _mcap("writer")


class LogWriter:
    """Writes rows in order. After a failed write it takes no more, and the file keeps every row before it."""

    def __init__(self, path: Path) -> None:
        """Create the file.

        Raises:
            RecordError: when it exists already or cannot be written.
            MissingDependencyError: when mcap is not installed.
        """
        writer = _mcap("writer")
        self.path = path
        self._problem = ""
        self._file: IO[bytes]
        try:
            self._file = path.open("xb")
        except OSError as error:
            raise RecordError(f"{path}: the log cannot be created: {error}") from None
        self._writer = writer.Writer(
            self._file, compression=writer.CompressionType.NONE, use_chunking=False, enable_data_crcs=True
        )
        with self._guarded("the start of the log"):
            self._writer.start(library="embodied_env")
            self._channels = {topic: self._register(topic) for topic in CHANNELS}
            self._writer.add_metadata("embodied_env", {"version": __version__})  # this also hands over the channels
            self._file.flush()

    @property
    def problem(self) -> str:
        """Why no more rows are taken, or ""."""
        return self._problem

    def write(self, topic: str, row: Mapping[str, Any], *, log_time_ns: int) -> None:
        """Append `row` to the channel `topic` and flush it to the operating system.

        Raises:
            RecordError: when it cannot be written, or an earlier row could not.
        """
        if self._problem:
            raise RecordError(f"{self._problem}; row {row['row']} is not written either")
        text = json.dumps(row, allow_nan=False, separators=(",", ":"))
        with self._guarded(f"row {row['row']}"):
            self._writer.add_message(
                channel_id=self._channels[topic],
                log_time=log_time_ns,
                publish_time=log_time_ns,
                sequence=row["row"],
                data=text.encode("ascii"),
            )
            self._file.flush()

    def close(self) -> None:
        """Finish the file and close it. Idempotent; never raises: `problem` says what went wrong."""
        if self._file.closed:
            return
        with contextlib.suppress(RecordError):
            if not self._problem:
                with self._guarded("the end of the log"):
                    self._writer.finish()
                    self._file.flush()
        with contextlib.suppress(OSError):
            self._file.close()

    def _register(self, topic: str) -> int:
        name, schema = CHANNELS[topic]
        schema_id = self._writer.register_schema(name, "jsonschema", json.dumps(schema()).encode())
        channel_id: int = self._writer.register_channel(topic, "json", schema_id)
        return channel_id

    @contextlib.contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._problem = f"{self.path}: {what} cannot be written: {error}"
            raise RecordError(self._problem) from None


class LogReader:
    """Reads a log, whole or not: every row up to the first that is not whole."""

    def __init__(self, path: Path) -> None:
        """Read from `path`, anew at each iteration."""
        self.path = path

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the rows in the order of their writing."""
        for data in _messages(self.path):
            try:
                row = json.loads(data)
            except ValueError:
                return
            yield row

    @property
    def clean(self) -> bool:
        """The file is whole, to the last byte that its writer meant to write."""
        return not self.problem

    @functools.cached_property
    def problem(self) -> str:
        """Why the file is not whole, or "". The whole file is read to know it."""
        messages = _messages(self.path)
        count = 0
        while True:
            try:
                json.loads(next(messages))
            except StopIteration as stop:
                reason: str = stop.value
                return f"{self.path.name}: {reason} after {count} whole rows" if reason else ""
            except ValueError as error:
                return f"{self.path.name}: the row after {count} whole rows is not JSON: {error}"
            count += 1


def _messages(path: Path) -> Generator[bytes, None, str]:
    """Yield the data of each whole message; return why the file is not whole, or ""."""
    reader, exceptions = _mcap("stream_reader"), _mcap("exceptions")
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            for record in reader.StreamReader(file, validate_crcs=True, record_size_limit=size).records:
                if type(record).__name__ == "Message":
                    yield record.data
            rest = file.read(1)
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    except (exceptions.EndOfFile, exceptions.RecordLengthLimitExceeded, struct.error):
        return "it ends before its end was written: its writer was stopped"
    except (exceptions.McapError, ValueError) as error:
        return f"it is damaged ({type(error).__name__}: {error})"
    return "it goes on behind its end" if rest else ""
