"""The raw ROS 2 messages of a run: ``messages.mcap``, which rosbag2, ``rosbags`` and Foxglove read as it is.

It stands beside ``transitions.mcap`` and not in it: rosbag2 refuses a file in which topics differ in their
serialization ("json" and "cdr"), or in which a channel has no schema.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embodied_env.record.definitions import definition
from embodied_env.record.log import McapFile, mcap_records
from embodied_env.wire import WireMessage

OURS = "published_by"
"""The key of a channel's metadata that says whether we published on it: "environment", or "others"."""


class MessageLog:
    """Writes messages in the order in which they came. Any thread may call; what is written is not yet flushed."""

    def __init__(self, path: Path) -> None:
        """Create the file.

        Raises:
            RecordError: when it exists already or cannot be written.
            MissingDependencyError: when mcap is not installed.
        """
        self._lock = threading.Lock()
        self._file = McapFile(path, profile="ros2")
        self._schemas: dict[str, int] = {}
        self._channels: dict[tuple[str, str, bool], int] = {}
        self._count = 0
        with self._file.guarded("the start of the log"):
            self._file.begin()

    @property
    def problem(self) -> str:
        """Why no more messages are taken, or ""."""
        return self._file.problem

    def write(self, message: WireMessage) -> None:
        """Append a message.

        Raises:
            RecordError: when it cannot be written, or an earlier one could not.
            MissingDependencyError: when its package is not installed.
        """
        data = message.serialize(message.message)
        text = "" if message.type in self._schemas else definition(message.type)
        with self._lock, self._file.guarded(f"a message of {message.topic}"):
            self._file.writer.add_message(
                channel_id=self._channel(message, text),
                log_time=message.log_ns,
                publish_time=message.publish_ns,
                sequence=self._count % 2**32,
                data=data,
            )
            self._count += 1

    def flush(self) -> None:
        """Hand what was written to the operating system.

        Raises:
            RecordError: when it cannot be written.
        """
        with self._lock, self._file.guarded("messages"):
            self._file.flush()

    def close(self) -> None:
        """Finish the file and close it. Idempotent; never raises: `problem` says what went wrong."""
        with self._lock:
            self._file.close()

    def _channel(self, message: WireMessage, text: str) -> int:
        key = (message.topic, message.type, message.is_ours)
        if key not in self._channels:
            writer = self._file.writer
            if message.type not in self._schemas:
                self._schemas[message.type] = writer.register_schema(message.type, "ros2msg", text.encode())
            metadata = {"offered_qos_profiles": message.qos, OURS: "environment" if message.is_ours else "others"}
            self._channels[key] = writer.register_channel(message.topic, "cdr", self._schemas[message.type], metadata)
        return self._channels[key]


@dataclass(frozen=True, kw_only=True)
class StoredMessage:
    """A message as it was recorded; the attributes are those of `WireMessage`, `data` are its CDR bytes."""

    topic: str
    type: str
    data: bytes
    log_ns: int
    publish_ns: int
    is_ours: bool


def read_messages(path: Path) -> Generator[StoredMessage, None, str]:
    """Yield each whole message in the order of the file; return why the file is not whole, or ""."""
    schemas: dict[int, str] = {}
    channels: dict[int, Any] = {}
    records = mcap_records(path)
    while True:
        try:
            kind, record, _ = next(records)
        except StopIteration as stop:
            reason: str = stop.value
            return reason
        if kind == "Schema":
            schemas[record.id] = record.name
        elif kind == "Channel":
            channels[record.id] = record
        elif kind == "Message" and record.channel_id in channels:
            channel = channels[record.channel_id]
            yield StoredMessage(
                topic=channel.topic,
                type=schemas.get(channel.schema_id, ""),
                data=record.data,
                log_ns=record.log_time,
                publish_ns=record.publish_time,
                is_ours=channel.metadata.get(OURS) == "environment",
            )


def problem_of_messages(path: Path) -> str:
    """Return why the file is not whole, or ""; it is read whole."""
    messages: Iterator[StoredMessage] = read_messages(path)
    count = 0
    while True:
        try:
            next(messages)
        except StopIteration as stop:
            return f"{path.name}: {stop.value} after {count} whole messages" if stop.value else ""
        count += 1
