"""The raw ROS 2 messages of a run: ``messages.mcap``, which rosbag2, ``rosbags`` and Foxglove read as it is.

It stands beside ``transitions.mcap`` and not in it: rosbag2 refuses a file in which topics differ in their
serialization ("json" and "cdr"), or in which a channel has no schema.
"""

from __future__ import annotations

import functools
import os
import re
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embodied_env.contract.message_types import message_class
from embodied_env.core.message_tap import ARRAY, SEQUENCE, TappedMessage
from embodied_env.record.mcap_file import McapFile, mcap_records

OURS = "published_by"
"""The key of a channel's metadata that says whether we published on it: "environment", or "others"."""

_LINE = "=" * 80

_NAMES = {"double": "float64", "float": "float32", "boolean": "bool", "octet": "byte"}

_BOUNDED_TEXT = re.compile(r"(?P<of>w?string)<(?P<most>\d+)>$")

_INT32 = 2**31

_INT64 = 2**63


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

    def write(self, message: TappedMessage) -> None:
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

    def _channel(self, message: TappedMessage, text: str) -> int:
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
    """A message as it was recorded; the attributes are those of `TappedMessage`, `data` are its CDR bytes."""

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


@functools.cache
def definition(name: str) -> str:
    """Return the definition of the message ``sensor_msgs/msg/Imu`` and then of all that it is made of.

    Each after the first stands behind a line of ``=`` and one that names it, ``MSG: std_msgs/Header``.

    Raises:
        MissingDependencyError: for a package that is not installed.
        ContractError: for a type that the package does not have.
    """
    texts = {name: _text(name)}
    waiting = list(_parts(name))
    while waiting:
        part = waiting.pop(0)
        if part not in texts:
            texts[part] = _text(part)
            waiting += _parts(part)
    first = texts.pop(name)
    behind = [f"{_LINE}\nMSG: {part.replace('/msg/', '/')}\n{text}" for part, text in texts.items()]
    return "\n".join([first, *behind])


def _text(name: str) -> str:
    package, kind, type_name = name.split("/")
    for prefix in filter(None, os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep)):
        file = Path(prefix) / "share" / package / kind / f"{type_name}.msg"
        if file.is_file():
            return file.read_text(encoding="utf-8")
    return _text_of_class(message_class(name))


def _text_of_class(kind: Any) -> str:  # noqa: ANN401 - a generated type
    """Write the definition anew from what the class says of itself: without comments, and without default values."""
    constants = {key: value for key, value in type(kind).__prepare__("", ()).items() if not key.endswith("__DEFAULT")}
    lines = [_constant(key, value) for key, value in constants.items()]
    lines += [f"{_field_type(kind_of)} {field}" for field, kind_of in kind.get_fields_and_field_types().items()]
    return "".join(f"{line}\n" for line in lines)


def _constant(key: str, value: object) -> str:
    """A class does not know of what width its constants are: the narrowest of the common ones is told."""
    if isinstance(value, bool):
        return f"bool {key}={str(value).lower()}"
    if isinstance(value, int):
        width = "int32" if -_INT32 <= value < _INT32 else "int64" if value < _INT64 else "uint64"
        return f"{width} {key}={value}"
    if isinstance(value, float):
        return f"float64 {key}={value!r}"
    if isinstance(value, bytes):
        return f"byte {key}={value[0]}"
    return f'string {key}="{value}"'


def _field_type(idl: str) -> str:
    """Return a type in the words of ``.msg`` files, from those of IDL."""
    if found := ARRAY.match(idl):
        return f"{_field_type(found['of'])}[{found['size']}]"
    if found := SEQUENCE.match(idl):
        return f"{_field_type(found['of'])}[{'' if found['most'] is None else '<=' + found['most']}]"
    if found := _BOUNDED_TEXT.match(idl):
        return f"{found['of']}<={found['most']}"
    return _NAMES.get(idl, idl)


def _parts(name: str) -> Iterator[str]:
    """Yield the types of the fields that are messages themselves."""
    for idl in message_class(name).get_fields_and_field_types().values():
        plain = idl
        while found := ARRAY.match(plain) or SEQUENCE.match(plain):
            plain = found["of"]
        if "/" in plain:
            package, _, type_name = plain.partition("/")
            yield f"{package}/msg/{type_name}"
