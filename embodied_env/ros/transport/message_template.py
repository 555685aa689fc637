"""Encode messages by writing numbers and stamp into the bytes of a serialized message.

Messages of a topic mostly have the same length, names and counts. The offsets of their numbers (plain CDR,
little-endian, see `byte_layout`) are found by serializing a message with unique numbers, and verified with a
second one.
"""

from __future__ import annotations

import array
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.messages.message_types import message_class
from embodied_env.ros.transport.byte_layout import LITTLE_ENDIAN, infer_layout, uses_byte_layouts
from embodied_env.ros.transport.cdr import from_cdr, to_cdr

Message = Any  # a generated type
Numbers = Mapping[str, NDArray[Any]]
Make = Callable[[Numbers, int], Message]
"""Returns the message with these numbers (by name) and this stamp, ns."""

_STAMP, _STAMP_AT = struct.Struct("<iI"), slice(4, 12)  # of a header, the first field of a message
_STAMPS_NS = (1_234_567_890_123_456_789, 987_654_321_012_345_678)  # unlike any number
_NS_PER_S = 1_000_000_000
_MIN_BYTES = 4  # shorter values are not unique
_SEARCH_BYTES = 64  # of a longer sequence; a search for many bytes is slow to prepare
_MAX_SCALARS = 64  # that are searched one by one
_VALUES = "values"


@dataclass(frozen=True, kw_only=True)
class _Slot:
    """Bytes of a message that hold numbers."""

    name: str
    part: slice | None  # of the flattened array; None: all of it
    wire: np.dtype[Any]  # in the message
    begin: int  # offset of the first byte
    end: int  # offset after the last byte


class MessageTemplate:
    """Encoder of the messages of one topic as bytes where their layout is known, or else by `make`."""

    def __init__(self, make: Make, example: Numbers) -> None:
        """Find the slots by `make`, which must only copy the stamp and the numbers, in the form of `example`."""
        self._make = make
        self._forms = {name: (values.dtype, values.shape) for name, values in example.items()}
        self._pieces: list[Any] = []  # bytes, in order
        self._slots: list[tuple[int, _Slot]] = []  # each with the index of its piece
        self._is_stamped = self._fits = False
        if not uses_byte_layouts():
            return
        first, second = (_unique_values(example, seed) for seed in (1, 2))
        data = to_cdr(make(first, _STAMPS_NS[0]))
        slots = _find_slots(data, first) if data[:2] == LITTLE_ENDIAN else None
        if slots is not None:
            self._split(data, slots)
            self._fits = self._is_verified(second, _STAMPS_NS[1])

    def encode(self, numbers: Numbers, stamp_ns: int = 0) -> Message:
        """Return the bytes of the message to publish, or the message itself where the template does not fit."""
        made = self._joined(numbers, stamp_ns) if self._fits else None
        return self._make(numbers, stamp_ns) if made is None else made

    def _split(self, data: bytes, slots: list[_Slot]) -> None:
        at = 0
        self._is_stamped = data[_STAMP_AT] == _STAMP.pack(*divmod(_STAMPS_NS[0], _NS_PER_S))
        if self._is_stamped:
            self._pieces += [data[: _STAMP_AT.start], b""]
            at = _STAMP_AT.stop
        for slot in slots:
            self._pieces += [data[at : slot.begin], b""]
            self._slots.append((len(self._pieces) - 1, slot))
            at = slot.end
        self._pieces.append(data[at:])

    def _is_verified(self, numbers: Numbers, stamp_ns: int) -> bool:
        """Return whether the template reproduces a message, bit for bit."""
        typed = self._make(numbers, stamp_ns)
        wanted, made = to_cdr(typed), self._joined(numbers, stamp_ns)
        return (
            made is not None
            and len(made) == len(wanted)
            and infer_layout(from_cdr(wanted, type(typed)), made) is not None
        )

    def _joined(self, numbers: Numbers, stamp_ns: int) -> bytes | None:
        """Return the bytes, or None for numbers with other names, shapes or dtypes than the example."""
        if {name: (values.dtype, values.shape) for name, values in numbers.items()} != self._forms:
            return None
        pieces = self._pieces.copy()
        if self._is_stamped:
            pieces[1] = _STAMP.pack(*divmod(stamp_ns, _NS_PER_S))
        for place, slot in self._slots:
            laid = np.ascontiguousarray(numbers[slot.name], slot.wire)
            pieces[place] = laid if slot.part is None else laid.reshape(-1)[slot.part]
        return b"".join(pieces)


class ArrayEncoder:
    """Encodes one array and a stamp into messages of one topic, by a template."""

    def __init__(self, make: Callable[[NDArray[Any], int], Message], count: int, dtype: type[np.generic]) -> None:
        """Prepare the template of the messages that `make` returns for `count` numbers and a stamp, ns."""
        self._dtype = np.dtype(dtype)
        example = {_VALUES: np.zeros(count, dtype)}
        self._template = MessageTemplate(lambda numbers, stamp_ns: make(numbers[_VALUES], stamp_ns), example)

    def encode(self, values: NDArray[Any], stamp_ns: int = 0) -> Message:
        """Return the bytes of the message to publish, or the message itself where the template does not fit."""
        return self._template.encode({_VALUES: np.ascontiguousarray(values, self._dtype)}, stamp_ns)


def integer_encoder(count: int) -> ArrayEncoder:
    """Return the encoder of an Int64MultiArray of `count` integers."""
    kind = message_class("std_msgs/msg/Int64MultiArray")
    return ArrayEncoder(lambda values, _: kind(data=array.array("q", values.tobytes())), count, np.int64)


def _unique_values(example: Numbers, seed: int) -> dict[str, NDArray[Any]]:
    """Return random numbers of the same dtypes and shapes, where the bytes of each are unique."""
    rng = np.random.default_rng(seed)
    made = {}
    for name, values in example.items():
        if values.dtype.kind == "f":
            made[name] = (1.0 + rng.random(values.shape)).astype(values.dtype)
        else:
            limits = np.iinfo(values.dtype)
            made[name] = rng.integers(limits.min, limits.max, values.shape, values.dtype, endpoint=True)
    return made


def _find_slots(data: bytes, numbers: Numbers) -> list[_Slot] | None:
    """Return the slots in order, or None if a number is not found or is found twice."""
    slots: list[_Slot] = []
    for name, values in numbers.items():
        found = _find_numbers(data, name, values, values.dtype)
        if found is None and values.dtype.kind == "f":
            found = _find_numbers(data, name, values, np.dtype(np.float64))
        if found is None:
            return None
        slots += found
    return sorted(slots, key=lambda slot: slot.begin)


def _find_numbers(data: bytes, name: str, values: NDArray[Any], wire: np.dtype[Any]) -> list[_Slot] | None:
    """Return the slots of numbers stored as `wire`, one for all or one each, or None if one is not found."""
    laid = values.astype(wire).reshape(-1)
    parts: list[slice | None] = [None]
    if laid.size <= _MAX_SCALARS and _offset(data, laid.tobytes()) is None:
        parts = [slice(number, number + 1) for number in range(laid.size)]
    found = []
    for part in parts:
        wanted = laid[part or slice(None)].tobytes()
        begin = _offset(data, wanted)
        if begin is None:
            return None
        found.append(_Slot(name=name, part=part, wire=wire, begin=begin, end=begin + len(wanted)))
    return found


def _offset(data: bytes, wanted: bytes) -> int | None:
    """Return the offset of `wanted`, or None if it is not found or is found twice."""
    key = wanted[:_SEARCH_BYTES]
    begin = data.find(key)
    if len(wanted) < _MIN_BYTES or begin < 0 or data.find(key, begin + 1) >= 0 or not data.startswith(wanted, begin):
        return None
    return begin
