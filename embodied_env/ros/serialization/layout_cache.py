"""Where the numbers of a topic's messages stand in their bytes: learned from one message, as the next are alike.

A message of robots has the same length, names and counts each time; only its numbers change. So the layout of one
(plain CDR, little-endian, see `ros.serialization.cdr`) is that of the next, as long as everything else in it is
the same, byte for byte. What stands between for alignment is not looked at: it is whatever was in the memory.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.core.message_tap import ARRAY, SEQUENCE
from embodied_env.ros.serialization.cdr import from_cdr, to_cdr

LITTLE_ENDIAN = b"\x00\x01"  # how plain CDR begins
Message = Any  # a generated type

_HEADER = 4
_LEARNINGS = 16  # of one topic: where messages differ each time, they are decoded as rclpy does it
_STAMP = struct.Struct("<iI")
_CODES = {
    "float": "f",
    "double": "d",
    **{f"{sign}int{bits}": code for bits, codes in ((8, "bB"), (16, "hH"), (32, "iI"), (64, "qQ"))
       for sign, code in zip(("", "u"), codes, strict=True)},
}  # fmt: skip
_CONSTANT = ("boolean", "octet", "char")  # not every byte is one of them: they are compared


class RawMessage:
    """A message of a raw subscription: its bytes, which are decoded when they are asked for.

    Attributes:
        data: as they came from the wire; there may be some behind the end.
    """

    __slots__ = ("_layout", "_typed", "data")

    def __init__(self, data: bytes, layout: ByteLayout | None, typed: Message = None) -> None:
        """Keep the bytes, with a layout that fits them or the message that they are."""
        self.data = data
        self._layout = layout
        self._typed = typed

    def decoded(self) -> Message:
        """Return the message, or its like: the same names and values, for reading."""
        return self._typed if self._layout is None else self._layout.view(self.data)

    def stamp_ns(self) -> int:
        """Return the stamp of its header, with which it begins."""
        if self._layout is not None:
            sec, nanosec = _STAMP.unpack_from(self.data, _HEADER)
            return int(sec * 1_000_000_000 + nanosec)
        stamp = self._typed.header.stamp
        return int(stamp.sec * 1_000_000_000 + stamp.nanosec)

    def to_cdr(self) -> bytes:
        """Return the bytes of the message, without what is behind its end. In any thread."""
        return to_cdr(self._typed) if self._layout is None else self.data[: self._layout.size]


def as_message(message: Message) -> Message:
    """Return a message, or its like (`RawMessage.decoded`), whether it was received raw or not."""
    return message.decoded() if isinstance(message, RawMessage) else message


class LayoutDecoder:
    """Decodes the messages of one topic: by a learned layout where it fits, and as rclpy does it where not."""

    def __init__(self, kind: Any) -> None:  # noqa: ANN401 - a generated type
        """`kind` is the message class."""
        self._kind = kind
        self._layout: ByteLayout | None = None
        self._left = _LEARNINGS

    def take(self, data: bytes) -> RawMessage | None:
        """Return the message of `data`; None for bytes that are none, which rclpy drops too."""
        layout = self._layout
        if layout is not None and layout.fits(data):
            return RawMessage(data, layout)
        try:
            typed = from_cdr(data, self._kind)
        except Exception:  # noqa: BLE001 - rclpy has no public name for its RMWError
            return None
        if self._left:
            self._left -= 1
            self._layout = infer_layout(typed, data) or layout
        return RawMessage(data, None, typed)


@dataclass(frozen=True, kw_only=True)
class ByteLayout:
    """Where what changes stands in messages that are alike.

    Attributes:
        size: of the message, bytes.
        fits: whether bytes are of such a message.
        scalars: the numbers, with what is between them skipped.
        places: of each of them: which part of `skeleton`, and the name there.
        arrays: of each sequence of numbers: part, name, precision, how many, and where it begins.
        skeleton: has the attributes of the message; what never changes stands in it.
    """

    size: int
    fits: Callable[[bytes], Any]
    scalars: struct.Struct
    places: tuple[tuple[dict[str, Any], str], ...]
    arrays: tuple[tuple[dict[str, Any], str, np.dtype[Any], int, int], ...]
    skeleton: Any

    def view(self, data: bytes) -> Any:  # noqa: ANN401 - has the attributes of a message
        """Return a copy of the skeleton with what changes; sequences are read-only views of `data`."""
        parts: dict[int, dict[str, Any]] = {}
        message = _copied(self.skeleton, parts)
        for (part, name), value in zip(self.places, self.scalars.unpack_from(data), strict=True):
            parts[id(part)][name] = value
        for part, name, dtype, count, begin in self.arrays:
            parts[id(part)][name] = np.frombuffer(data, dtype, count, begin)
        return message


def infer_layout(typed: Message, data: bytes) -> ByteLayout | None:
    """Return the layout of `data`, of which `typed` is the message; None where it is not found, or reads otherwise."""
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
    except (_UnreadableError, struct.error, ValueError, OverflowError):  # or shorter, or more than a pattern can say
        return None
    return None


def _copied(part: Any, parts: dict[int, dict[str, Any]]) -> Any:  # noqa: ANN401 - parts of messages
    """Return a copy of a skeleton; `parts` gets the attributes of each new part, by the id of those of the old."""
    if isinstance(part, SimpleNamespace):
        new = SimpleNamespace()
        parts[id(vars(part))] = vars(new)
        vars(new).update({name: _copied(value, parts) for name, value in vars(part).items()})
        return new
    return [_copied(value, parts) for value in part] if isinstance(part, list) else part


class _UnreadableError(Exception):
    """The bytes are not what the message says: a text that is not UTF-8, wide characters."""


class _LayoutBuilder:
    """Goes through the bytes of a message, field by field."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0
        self.pattern: list[bytes] = []
        self.format: list[str] = []
        self.places: list[tuple[dict[str, Any], str]] = []
        self.arrays: list[tuple[dict[str, Any], str, np.dtype[Any], int, int]] = []
        self._constant(_HEADER)

    def message(self, message: Message) -> SimpleNamespace:
        """Return the like of `message`."""
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
            self._free(struct.calcsize(_CODES[idl]), _CODES[idl])
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
            self._free(len(values) * dtype.itemsize, f"{len(values) * dtype.itemsize}x")

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
            self._free(gap, f"{gap}x")

    def _constant(self, size: int, wanted: bytes | None = None) -> None:
        found = self._data[self.at : self.at + size]
        if wanted not in (None, found):
            raise _UnreadableError
        self.pattern.append(re.escape(found))
        self.format.append(f"{size}x")
        self.at += size

    def _free(self, size: int, code: str) -> None:
        self.pattern.append(b".{%d}" % size)
        self.format.append(code)
        self.at += size


def _same(view: Any, typed: Any) -> bool:  # noqa: ANN401 - parts of messages
    """Return whether two messages say the same, bit for bit."""
    if isinstance(view, SimpleNamespace):
        return all(_same(value, getattr(typed, name)) for name, value in vars(view).items())
    if isinstance(view, np.ndarray):
        return _bytes_of(view) == _bytes_of(np.asarray(typed))
    if isinstance(view, list):
        return len(view) == len(typed) and all(map(_same, view, typed))
    return bool(view == typed or (view != view and typed != typed))  # noqa: PLR0124 - NaN


def _bytes_of(values: NDArray[Any]) -> bytes:
    return values.tobytes()
