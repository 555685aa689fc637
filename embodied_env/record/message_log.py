"""The raw messages of a run in ``messages.mcap``, for rosbag2, ``rosbags`` and Foxglove.

The file is separate from the rows because rosbag2 refuses a file with several serializations ("json" and "cdr") or with
a channel without a schema.
"""

from __future__ import annotations

import functools
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embodied_env.core.message_tap import TappedMessage
from embodied_env.messages.message_types import ARRAY, SEQUENCE, message_class
from embodied_env.record.mcap_file import McapRecords
from embodied_env.record.mcap_writer import DEFAULT_COMPRESSION, McapFile

OURS = "published_by"  # the metadata key of a channel that names its publisher: "environment", or "others"
_MSG_NAMES = {"double": "float64", "float": "float32", "boolean": "bool", "octet": "byte"}
_BOUNDED_TEXT = re.compile(r"(?P<of>w?string)<(?P<most>\d+)>$")


class MessageLog:
    """Writes messages in order from any thread, and raises RecordError like `McapFile`."""

    def __init__(self, path: Path, *, compression: str = DEFAULT_COMPRESSION) -> None:
        self._lock = threading.Lock()
        self._file = McapFile(path, profile="ros2", compression=compression)
        self._schemas: dict[str, int] = {}
        self._channels: dict[tuple[str, str, bool], int] = {}
        self._count = 0
        with self._file.guarded("the header"):
            self._file.begin()

    @property
    def problem(self) -> str:
        """Why further messages are refused, or ""."""
        return self._file.problem

    def write(self, message: TappedMessage) -> None:
        """Append a message, or raise MissingDependencyError if its package is not installed."""
        data = message.serialize(message.message)
        text = "" if message.type in self._schemas else message_definition(message.type)
        file, key = self._file, (message.topic, message.type, message.is_ours)
        with self._lock, file.guarded(f"a message of {message.topic}"):
            if message.type not in self._schemas:
                self._schemas[message.type] = file.register_schema(message.type, "ros2msg", text.encode())
            if key not in self._channels:
                publisher = "environment" if message.is_ours else "others"
                metadata = {"offered_qos_profiles": message.qos, OURS: publisher}
                schema_id = self._schemas[message.type]
                self._channels[key] = file.register_channel(message.topic, "cdr", schema_id, metadata)
            channel_id, log_ns, publish_ns = self._channels[key], message.log_ns, message.publish_ns
            file.add_message(channel_id, [data], number=self._count, log_ns=log_ns, publish_ns=publish_ns)
            self._count += 1
            if file.is_full:
                file.flush()

    def flush(self) -> None:
        """Pass the messages so far to the operating system."""
        with self._lock, self._file.guarded("messages"):
            self._file.flush()

    def close(self) -> None:
        """Finish and close the file once, and store an error in `problem` instead of raising it."""
        with self._lock:
            self._file.close()


@dataclass(frozen=True, kw_only=True)
class StoredMessage:
    """A recorded message with the attributes of `TappedMessage`, and CDR bytes as `data`."""

    topic: str
    type: str
    data: bytes
    log_ns: int
    publish_ns: int
    is_ours: bool


def read_messages(records: McapRecords) -> Iterator[StoredMessage]:
    """Yield each complete message in the order of the file."""
    for stored in records.messages():
        yield StoredMessage(
            topic=stored.channel.topic,
            type=stored.schema_name,
            data=stored.record.data,
            log_ns=stored.record.log_time,
            publish_ns=stored.record.publish_time,
            is_ours=stored.channel.metadata.get(OURS) == "environment",
        )


def problem_of_messages(path: Path) -> str:
    """Read the whole file and return why it is not complete, or ""."""
    records = McapRecords(path)
    count = sum(1 for _ in read_messages(records))
    return f"{path.name}: {records.problem} ({count} complete messages)" if records.problem else ""


@functools.cache
def message_definition(name: str) -> str:
    """Return the definition of a type, as ``sensor_msgs/msg/Imu``, and of all types in it.

    Each after the first follows a line of ``=`` and a line with its name, ``MSG: std_msgs/Header``. Raises like
    `message_class`.
    """
    texts: dict[str, str] = {}
    waiting = [name]
    while waiting:
        if (part := waiting.pop(0)) not in texts:
            texts[part] = _definition_text(part)
            waiting += _message_fields(part)
    parts = (f"{'=' * 80}\nMSG: {part.replace('/msg/', '/')}\n{text}" for part, text in texts.items() if part != name)
    return "\n".join([texts[name], *parts])


def _definition_text(name: str) -> str:
    """Return the installed ``.msg`` file, or one rebuilt from the class, without defaults."""
    package, kind, type_name = name.split("/")
    for prefix in filter(None, os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep)):
        file = Path(prefix) / "share" / package / kind / f"{type_name}.msg"
        if file.is_file():
            return file.read_text(encoding="utf-8")
    generated: Any = message_class(name)
    constants = type(generated).__prepare__("", ())
    lines = [_constant_line(key, value) for key, value in constants.items() if not key.endswith("__DEFAULT")]
    lines += [f"{_field_type(idl)} {field}" for field, idl in generated.get_fields_and_field_types().items()]
    return "".join(f"{line}\n" for line in lines)


def _constant_line(key: str, value: object) -> str:
    """Return the line of a constant with the narrowest common type, since its width is unknown."""
    if isinstance(value, bool):
        return f"bool {key}={str(value).lower()}"
    if isinstance(value, int):
        width = "int32" if -(2**31) <= value < 2**31 else "int64" if value < 2**63 else "uint64"
        return f"{width} {key}={value}"
    if isinstance(value, float):
        return f"float64 {key}={value!r}"
    if isinstance(value, bytes):
        return f"byte {key}={value[0]}"
    return f'string {key}="{value}"'


def _field_type(idl: str) -> str:
    """Translate a type from IDL to ``.msg``."""
    if found := ARRAY.match(idl):
        return f"{_field_type(found['of'])}[{found['size']}]"
    if found := SEQUENCE.match(idl):
        return f"{_field_type(found['of'])}[{'' if found['most'] is None else '<=' + found['most']}]"
    if found := _BOUNDED_TEXT.match(idl):
        return f"{found['of']}<={found['most']}"
    return _MSG_NAMES.get(idl, idl)


def _message_fields(name: str) -> Iterator[str]:
    for idl in message_class(name).get_fields_and_field_types().values():
        while found := ARRAY.match(idl) or SEQUENCE.match(idl):
            idl = found["of"]  # noqa: PLW2901 - the element type
        if "/" in idl:
            package, _, type_name = idl.partition("/")
            yield f"{package}/msg/{type_name}"
