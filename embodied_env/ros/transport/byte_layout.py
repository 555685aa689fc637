"""Read the numbers of a message from its bytes in little-endian plain CDR (XCDR1).

A value is aligned to its own size. A string is its length including the terminating zero, then its bytes. A sequence is
its count, then its elements. Padding bytes are ignored, since DDS leaves them uninitialised.

Messages of a topic mostly have the same length, names and counts; only their numbers change. The layout of one then
fits the next, as long as everything else in it is equal, byte for byte.

Set the environment variable `EMBODIED_ENV_PLAIN_SERIALIZATION` to 1 to get the same messages more slowly from rclpy.
"""

from __future__ import annotations

import functools
import os
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from embodied_env.messages.message_types import ARRAY, SEQUENCE
from embodied_env.ros.transport.setup_checks import rclpy_import_errors

PLAIN_VARIABLE = "EMBODIED_ENV_PLAIN_SERIALIZATION"

LITTLE_ENDIAN = b"\x00\x01"  # the first bytes of the encapsulation header
HEADER_BYTES = 4  # of the encapsulation header
Message = Any  # a generated type

_BYTES = ("boolean", "octet", "char")  # types of one byte that are not numbers in rclpy
_NUMBERS = ("float", "double", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_STRUCT_CODES = dict(zip(_NUMBERS, "fdbhiqBHIQ", strict=True))
_STAMPS = struct.Struct(">iI"), struct.Struct("<iI")  # big-endian, little-endian
_MAX_LAYOUTS = 16  # per topic; rclpy decodes topics whose messages keep changing


def uses_byte_layouts() -> bool:
    """Return whether layouts and templates are enabled, as read by each new decoder."""
    return os.environ.get(PLAIN_VARIABLE, "") in ("", "0")


@functools.cache
def _serialization() -> Any:  # noqa: ANN401 - a module of rclpy, without which a backend profile can be read
    with rclpy_import_errors("messages of ROS 2"):
        from rclpy import serialization  # noqa: PLC0415 - see above
    return serialization


def to_cdr(message: Message) -> bytes:
    """Return the bytes of `message` as they are on the wire, without trailing ones.

    `serialize_message` returns as many as rmw_fastrtps estimated, which counts an empty sequence of doubles as aligned.
    Strict readers such as `rosbags` refuse the surplus, so the size is measured.
    """
    data: bytes = _serialization().serialize_message(message)
    builder = _LayoutBuilder(data)
    try:
        builder.fields(message)
    except _UnreadableError:  # a type that is not measured: wide characters
        return data
    return data[: builder.at]


def from_cdr(data: bytes, kind: Any) -> Message:  # noqa: ANN401 - a generated type
    """Return the message of class `kind` in `data`, or raise rclpy's error for invalid bytes."""
    return _serialization().deserialize_message(data, kind)


@dataclass(slots=True)
class RawMessage:
    """Message of a raw subscription as bytes that are decoded on request."""

    data: bytes  # as received; trailing bytes are possible
    kind: Any  # the message class
    layout: ByteLayout | None = None  # if one fits

    def decoded(self) -> Message:
        """Return a new message or a new namespace with its fields, whose arrays may be read-only."""
        return from_cdr(self.data, self.kind) if self.layout is None else self.layout.view(self.data)

    def stamp_ns(self) -> int:
        """Return the stamp of the header, which must be the first field."""
        sec, nanosec = _STAMPS[self.data[1] & 1].unpack_from(self.data, HEADER_BYTES)
        return int(sec * 1_000_000_000 + nanosec)

    def to_cdr(self) -> bytes:
        """Return the bytes of the message without trailing ones (thread-safe)."""
        return to_cdr(self.decoded()) if self.layout is None else self.data[: self.layout.size]


def as_message(message: Message) -> Message:
    """Return a message for reading, decoded (`RawMessage.decoded`) if its subscription is raw."""
    return message.decoded() if isinstance(message, RawMessage) else message


class LayoutDecoder:
    """Decoder of the messages of one topic by a cached layout where it fits, or else by rclpy."""

    def __init__(self, kind: Any) -> None:  # noqa: ANN401 - a generated type
        self._kind = kind
        self._layout: ByteLayout | None = None
        self._layouts_left = _MAX_LAYOUTS if uses_byte_layouts() else 0

    def decode(self, data: bytes) -> RawMessage | None:
        """Return the message in `data`, or None for invalid bytes, which rclpy drops too."""
        layout = self._layout
        if layout is not None and layout.fits(data):
            return RawMessage(data, self._kind, layout)
        try:
            typed = from_cdr(data, self._kind)
        except Exception:  # noqa: BLE001 - rclpy has no public name for its RMWError
            return None
        if self._layouts_left:
            self._layouts_left -= 1
            self._layout = infer_layout(typed, data) or layout
        return RawMessage(data, self._kind)


class _Scalar(NamedTuple):
    place: int  # among the numbers of the message


class _Array(NamedTuple):
    dtype: np.dtype[Any]
    length: int
    offset: int


@dataclass(frozen=True, kw_only=True)
class ByteLayout:
    """Offsets of the numbers in messages that are otherwise equal.

    Attributes:
        size: of the message, bytes.
        fits: matches the bytes of such a message.
        scalars: the numbers; the bytes between them are skipped.
        fields: name -> a constant, `_Scalar`, `_Array`, a list of these, or the fields of a nested message.
    """

    size: int
    fits: Callable[[bytes], Any]
    scalars: struct.Struct
    fields: dict[str, Any]

    def view(self, data: bytes) -> Any:  # noqa: ANN401 - has the attributes of a message
        """Return a new namespace with the fields of `data`, whose arrays are read-only views of it."""
        return _view(self.fields, self.scalars.unpack_from(data), data)


def _view(part: Any, numbers: tuple[Any, ...], data: bytes) -> Any:  # noqa: ANN401 - a part of a message
    if isinstance(part, _Scalar):
        return numbers[part.place]
    if isinstance(part, _Array):
        return np.frombuffer(data, *part)
    if isinstance(part, dict):
        return SimpleNamespace(**{name: _view(value, numbers, data) for name, value in part.items()})
    return [_view(value, numbers, data) for value in part] if isinstance(part, list) else part


def infer_layout(typed: Message, data: bytes) -> ByteLayout | None:
    """Return the layout of `data`, the bytes of `typed`, or None if none reproduces it."""
    if data[:2] != LITTLE_ENDIAN:
        return None
    builder = _LayoutBuilder(data)
    try:
        fields = builder.fields(typed)
        fits = re.compile(b"".join(builder.pattern), re.DOTALL).match
        scalars = struct.Struct("<" + "".join(builder.format))
        layout = ByteLayout(size=builder.at, fits=fits, scalars=scalars, fields=fields)
        if layout.fits(data) and _is_same(layout.view(data), typed):
            return layout
    except (_UnreadableError, struct.error, ValueError, OverflowError):  # too short, or too long for a pattern
        return None
    return None


def _is_same(view: Any, typed: Any) -> bool:  # noqa: ANN401 - parts of messages
    """Return whether two messages are equal, bit for bit."""
    if isinstance(view, SimpleNamespace):
        return all(_is_same(value, getattr(typed, name)) for name, value in vars(view).items())
    if isinstance(view, np.ndarray):
        return view.tobytes() == np.asarray(typed).tobytes()
    if isinstance(view, list):
        return len(view) == len(typed) and all(map(_is_same, view, typed))
    return bool(view == typed or (view != view and typed != typed))  # noqa: PLR0124 - NaN


class _UnreadableError(Exception):
    """Error for bytes that do not encode the message, or a type with wide characters."""


class _LayoutBuilder:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._numbers = 0
        self.at = 0
        self.pattern: list[bytes] = []
        self.format: list[str] = []
        self._constant(HEADER_BYTES)

    def fields(self, message: Message) -> dict[str, Any]:
        """Return `ByteLayout.fields` of `message`."""
        types = type(message).get_fields_and_field_types()
        if not types:  # a message without fields has one byte
            self._constant(1)
        return {name: self._field(idl, getattr(message, name)) for name, idl in types.items()}

    def _field(self, idl: str, value: Any) -> Any:  # noqa: ANN401 - any field
        if found := ARRAY.match(idl):
            return self._elements(found["of"], value)
        if found := SEQUENCE.match(idl):
            self._count(len(value))
            return self._elements(found["of"], value)
        if idl in _STRUCT_CODES:
            size = struct.calcsize(_STRUCT_CODES[idl])
            self._align(size)
            self._variable(size, _STRUCT_CODES[idl])
            self._numbers += 1
            return _Scalar(self._numbers - 1)
        if idl.partition("<")[0] == "string":
            text = value.encode() + b"\0"
            self._count(len(text))
            self._constant(len(text), text)
            return value
        if "/" in idl:
            return self.fields(value)
        if idl not in _BYTES:
            raise _UnreadableError
        self._constant(1)  # compared, since not every byte is a valid value
        return value

    def _elements(self, idl: str, values: Any) -> Any:  # noqa: ANN401 - a sequence
        if idl in _BYTES:
            self._constant(len(values))
            return list(values)
        if idl not in _STRUCT_CODES:
            return [self._field(idl, value) for value in values]
        dtype = np.dtype(_STRUCT_CODES[idl]).newbyteorder("<")
        if not len(values):
            return np.empty(0, dtype)
        self._align(dtype.itemsize)
        array = _Array(dtype, len(values), self.at)
        self._variable(len(values) * dtype.itemsize, f"{len(values) * dtype.itemsize}x")
        return array

    def _count(self, count: int) -> None:
        self._align(4)
        self._constant(4, count.to_bytes(4, "little"))

    def _align(self, width: int) -> None:
        if gap := -(self.at - HEADER_BYTES) % width:
            self._variable(gap, f"{gap}x")

    def _constant(self, size: int, wanted: bytes | None = None) -> None:
        found = self._data[self.at : self.at + size]
        if wanted not in (None, found):
            raise _UnreadableError
        self.pattern.append(re.escape(found))
        self.format.append(f"{size}x")
        self.at += size

    def _variable(self, size: int, code: str) -> None:
        self.pattern.append(b".{%d}" % size)
        self.format.append(code)
        self.at += size
