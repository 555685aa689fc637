"""Decode the messages of a topic by a byte layout that is inferred from one of them.

Messages of a topic mostly have the same length, names and counts; only their numbers change. The layout of one (plain
CDR, little-endian, see `ros.serialization.cdr`) then fits the next, as long as everything else in it is equal, byte for
byte. Padding bytes are ignored; DDS leaves them uninitialised.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from embodied_env.core.message_tap import ARRAY, SEQUENCE
from embodied_env.ros.serialization import uses_byte_layouts
from embodied_env.ros.serialization.cdr import from_cdr, to_cdr

LITTLE_ENDIAN = b"\x00\x01"  # the encapsulation header begins so
Message = Any  # a generated type

_HEADER = 4
_MAX_LAYOUTS = 16  # per topic: where messages differ each time, rclpy decodes them
_STAMP = struct.Struct("<iI")
_CODES = {
    "float": "f",
    "double": "d",
    **{f"{sign}int{bits}": code for bits, codes in ((8, "bB"), (16, "hH"), (32, "iI"), (64, "qQ"))
       for sign, code in zip(("", "u"), codes, strict=True)},
}  # fmt: skip
_CONSTANT = ("boolean", "octet", "char")  # not every byte is a valid value: they are compared


class RawMessage:
    """A message of a raw subscription: its bytes, decoded on request.

    Attributes:
        data: as received; trailing bytes are possible.
    """

    __slots__ = ("_layout", "_typed", "data")

    def __init__(self, data: bytes, layout: ByteLayout | None, typed: Message = None) -> None:
        """Store the bytes with a layout that fits them, or with the decoded message."""
        self.data = data
        self._layout = layout
        self._typed = typed

    def decoded(self) -> Message:
        """Return the message, or a new namespace with its fields, for reading; arrays are read-only."""
        return self._typed if self._layout is None else self._layout.view(self.data)

    def stamp_ns(self) -> int:
        """Return the stamp of its header, the first field."""
        if self._layout is not None:
            sec, nanosec = _STAMP.unpack_from(self.data, _HEADER)
            return int(sec * 1_000_000_000 + nanosec)
        stamp = self._typed.header.stamp
        return int(stamp.sec * 1_000_000_000 + stamp.nanosec)

    def to_cdr(self) -> bytes:
        """Return the bytes of the message without trailing ones. Thread-safe."""
        return to_cdr(self._typed) if self._layout is None else self.data[: self._layout.size]


def as_message(message: Message) -> Message:
    """Return a message for reading, whether it was received raw (`RawMessage.decoded`) or not."""
    return message.decoded() if isinstance(message, RawMessage) else message


class LayoutDecoder:
    """Decodes the messages of one topic: by a cached layout where it fits, else by rclpy."""

    def __init__(self, kind: Any) -> None:  # noqa: ANN401 - a generated type
        """`kind` is the message class."""
        self._kind = kind
        self._layout: ByteLayout | None = None
        self._layouts_left = _MAX_LAYOUTS if uses_byte_layouts() else 0

    def decode(self, data: bytes) -> RawMessage | None:
        """Return the message in `data`; None for invalid bytes, which rclpy drops too."""
        layout = self._layout
        if layout is not None and layout.fits(data):
            return RawMessage(data, layout)
        try:
            typed = from_cdr(data, self._kind)
        except Exception:  # noqa: BLE001 - rclpy has no public name for its RMWError
            return None
        if self._layouts_left:
            self._layouts_left -= 1
            self._layout = infer_layout(typed, data) or layout
        return RawMessage(data, None, typed)


@dataclass(frozen=True, kw_only=True)
class ByteLayout:
    """Offsets of the numbers in messages that are otherwise equal.

    Attributes:
        size: of the message, bytes.
        fits: matches the bytes of such a message.
        scalars: the numbers; the bytes between them are skipped.
        places: for each number: the part of `skeleton` it belongs to, and its field.
        arrays: for each sequence of numbers: part, field, dtype, length, and offset.
        skeleton: the fields that never change, by the names of the message.
    """

    size: int
    fits: Callable[[bytes], Any]
    scalars: struct.Struct
    places: tuple[tuple[dict[str, Any], str], ...]
    arrays: tuple[tuple[dict[str, Any], str, np.dtype[Any], int, int], ...]
    skeleton: Any

    def view(self, data: bytes) -> Any:  # noqa: ANN401 - has the attributes of a message
        """Return a copy of the skeleton with the numbers of `data`; sequences are read-only views of it."""
        parts: dict[int, dict[str, Any]] = {}
        message = _copied(self.skeleton, parts)
        for (part, name), value in zip(self.places, self.scalars.unpack_from(data), strict=True):
            parts[id(part)][name] = value
        for part, name, dtype, count, begin in self.arrays:
            parts[id(part)][name] = np.frombuffer(data, dtype, count, begin)
        return message


def infer_layout(typed: Message, data: bytes) -> ByteLayout | None:
    """Return the layout of `data`, whose message is `typed`; None where none reproduces the message."""
    if data[:2] != LITTLE_ENDIAN:
        return None
    walk = _LayoutBuilder(data)
    try:
        skeleton = walk.message(typed)
        pattern = re.compile(b"".join(walk.pattern), re.DOTALL)
        layout = ByteLayout(
            size=walk.at,
            fits=pattern.match,
            scalars=struct.Struct("<" + "".join(walk.format)),
            places=tuple(walk.places),
            arrays=tuple(walk.arrays),
            skeleton=skeleton,
        )
        if layout.fits(data) and _same(layout.view(data), typed):
            return layout
    except (_UnreadableError, struct.error, ValueError, OverflowError):  # too short, or too long for a pattern
        return None
    return None


def _copied(part: Any, parts: dict[int, dict[str, Any]]) -> Any:  # noqa: ANN401 - parts of messages
    """Return a copy of a skeleton; `parts` gets the fields of each new part, by the id of those of the old."""
    if isinstance(part, SimpleNamespace):
        new = SimpleNamespace()
        parts[id(vars(part))] = vars(new)
        vars(new).update({name: _copied(value, parts) for name, value in vars(part).items()})
        return new
    return [_copied(value, parts) for value in part] if isinstance(part, list) else part


class _UnreadableError(Exception):
    """The bytes do not encode the message: a string that is not UTF-8, wide characters."""


class _LayoutBuilder:
    """Walks the bytes of a message, field by field."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0
        self.pattern: list[bytes] = []
        self.format: list[str] = []
        self.places: list[tuple[dict[str, Any], str]] = []
        self.arrays: list[tuple[dict[str, Any], str, np.dtype[Any], int, int]] = []
        self._constant(_HEADER)

    def message(self, message: Message) -> SimpleNamespace:
        """Return the skeleton of `message`, and add its numbers to the layout."""
        skeleton = SimpleNamespace()
        for name, idl in type(message).get_fields_and_field_types().items():
            self._field(vars(skeleton), name, idl, getattr(message, name))
        return skeleton

    def _field(self, part: dict[str, Any], name: str, idl: str, value: Any) -> None:  # noqa: ANN401 - any field
        if found := ARRAY.match(idl):
            self._elements(part, name, found["of"], value)
        elif found := SEQUENCE.match(idl):
            self._count(len(value))
            self._elements(part, name, found["of"], value)
        elif idl in _CODES:
            self._align(struct.calcsize(_CODES[idl]))
            self._variable(struct.calcsize(_CODES[idl]), _CODES[idl])
            self.places.append((part, name))
        else:
            part[name] = self._one(idl, value)

    def _elements(self, part: dict[str, Any], name: str, idl: str, values: Any) -> None:  # noqa: ANN401 - a sequence
        if idl not in _CODES:
            part[name] = [self._one(idl, value) for value in values]
        elif not len(values):
            part[name] = np.empty(0, _CODES[idl])
        else:
            dtype = np.dtype(_CODES[idl]).newbyteorder("<")
            self._align(dtype.itemsize)
            self.arrays.append((part, name, dtype, len(values), self.at))
            self._variable(len(values) * dtype.itemsize, f"{len(values) * dtype.itemsize}x")

    def _one(self, idl: str, value: Any) -> Any:  # noqa: ANN401 - what is no number
        if idl.partition("<")[0] == "string":
            text = value.encode() + b"\0"
            self._count(len(text))
            self._constant(len(text), text)
            return value
        if "/" in idl:
            return self.message(value)
        if idl not in _CONSTANT:
            raise _UnreadableError
        self._constant(1)
        return value

    def _count(self, count: int) -> None:
        self._align(4)
        self._constant(4, count.to_bytes(4, "little"))

    def _align(self, width: int) -> None:
        if gap := -(self.at - _HEADER) % width:
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


def _same(view: Any, typed: Any) -> bool:  # noqa: ANN401 - parts of messages
    """Return whether two messages are equal, bit for bit."""
    if isinstance(view, SimpleNamespace):
        return all(_same(value, getattr(typed, name)) for name, value in vars(view).items())
    if isinstance(view, np.ndarray):
        return view.tobytes() == np.asarray(typed).tobytes()
    if isinstance(view, list):
        return len(view) == len(typed) and all(map(_same, view, typed))
    return bool(view == typed or (view != view and typed != typed))  # noqa: PLR0124 - NaN
