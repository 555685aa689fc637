"""Messages whose bytes are there already, all but their numbers and their stamp: quick to make, and to publish.

A topic's messages have the same length, names and counts each time. So where the numbers stand (plain CDR,
little-endian, see `ros.serialization.cdr`) is learned from one message with numbers like no others, and tried with a
second.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.ros.serialization.cdr import from_cdr, to_cdr
from embodied_env.ros.serialization.layout_cache import LITTLE_ENDIAN, infer_layout

Message = Any  # a generated type
Numbers = Mapping[str, NDArray[Any]]
Make = Callable[[Numbers, int], Message]
"""Takes numbers by name, and a stamp, ns."""

_STAMP, _STAMP_AT = struct.Struct("<iI"), slice(4, 12)  # of a header, with which a message begins
_STAMPS_NS = (1_234_567_890_123_456_789, 987_654_321_012_345_678)  # like no others
_NS_PER_S = 1_000_000_000
_LEAST = 4  # bytes that can be like no others
_KEY = 64  # bytes that are looked for, of more
_MOST = 64  # numbers that are looked for one by one


@dataclass(frozen=True, kw_only=True)
class _Hole:
    """Where numbers stand: their name, what they are, which of them, and what they are in the message."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    part: slice | None  # None: all
    wire: np.dtype[Any]
    begin: int
    end: int


class MessageTemplate:
    """Makes the messages of one topic as `make` does: the same bytes, where they are known."""

    def __init__(self, make: Make, example: Numbers) -> None:
        """Learn what `make` makes of numbers like these: it must do nothing but lay them down, and the stamp."""
        self._make = make
        self._names = len(example)
        self._pieces: list[Any] = []  # of bytes
        self._slots: list[tuple[int, _Hole]] = []  # and which piece it is
        self._is_stamped = False
        first, second = (_unique_values(example, seed) for seed in (1, 2))
        data = to_cdr(make(first, _STAMPS_NS[0]))
        slots = _slots(data, first) if data[:2] == LITTLE_ENDIAN else None
        if slots is not None:
            self._cut(data, slots)
        self._fits = slots is not None and self._is_right(second, _STAMPS_NS[1])

    def _cut(self, data: bytes, slots: list[_Hole]) -> None:
        """Cut the message into what never changes and what does."""
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

    def _is_right(self, numbers: Numbers, stamp_ns: int) -> bool:
        """Return whether the bytes say, bit for bit, what the message does."""
        typed = self._make(numbers, stamp_ns)
        wanted, made = to_cdr(typed), self._joined(numbers, stamp_ns)
        return (
            made is not None
            and len(made) == len(wanted)
            and infer_layout(from_cdr(wanted, type(typed)), made) is not None
        )

    def message(self, numbers: Numbers, stamp_ns: int = 0) -> Message:
        """Return what says them, to be published: bytes, or a message where its bytes are not known."""
        made = self._joined(numbers, stamp_ns) if self._fits else None
        return self._make(numbers, stamp_ns) if made is None else made

    def _joined(self, numbers: Numbers, stamp_ns: int) -> bytes | None:
        """Return the bytes; None for numbers that are not like those that were learned."""
        if len(numbers) != self._names:
            return None
        pieces = self._pieces.copy()
        if self._is_stamped:
            pieces[1] = _STAMP.pack(*divmod(stamp_ns, _NS_PER_S))
        for place, slot in self._slots:
            values = numbers.get(slot.name)
            if values is None or values.dtype != slot.dtype or values.shape != slot.shape:
                return None
            laid = np.ascontiguousarray(values, slot.wire)
            pieces[place] = laid if slot.part is None else laid.reshape(-1)[slot.part]
        return b"".join(pieces)


def _unique_values(example: Numbers, seed: int) -> dict[str, NDArray[Any]]:
    """Return numbers of the same types and shapes, each with bytes that no other number has."""
    rng = np.random.default_rng(seed)
    made = {}
    for name, values in example.items():
        if values.dtype.kind == "f":
            made[name] = (1.0 + rng.random(values.shape)).astype(values.dtype)
        else:
            limits = np.iinfo(values.dtype)
            made[name] = rng.integers(limits.min, limits.max, values.shape, values.dtype, endpoint=True)
    return made


def _slots(data: bytes, numbers: Numbers) -> list[_Hole] | None:
    """Return where the numbers stand, in order; None where some do not stand, or could be elsewhere too."""
    slots: list[_Hole] = []
    for name, values in numbers.items():
        found = _found(data, name, values, values.dtype)
        if found is None and values.dtype.kind == "f":
            found = _found(data, name, values, np.dtype(np.float64))
        if found is None:
            return None
        slots += found
    return sorted(slots, key=lambda slot: slot.begin)


def _found(data: bytes, name: str, values: NDArray[Any], wire: np.dtype[Any]) -> list[_Hole] | None:
    """Return where numbers stand as `wire`: all together, or, of a few, each by itself; None where one does not."""
    laid = values.astype(wire).reshape(-1)
    parts: list[slice | None] = [None]
    if laid.size <= _MOST and _place(data, laid.tobytes()) is None:
        parts = [slice(number, number + 1) for number in range(laid.size)]
    found = []
    for part in parts:
        wanted = laid[part or slice(None)].tobytes()
        begin = _place(data, wanted)
        if begin is None:
            return None
        end, dtype, shape = begin + len(wanted), values.dtype, values.shape
        found.append(_Hole(name=name, dtype=dtype, shape=shape, part=part, wire=wire, begin=begin, end=end))
    return found


def _place(data: bytes, wanted: bytes) -> int | None:
    """Return where `wanted` stands; None where it does not, or where it could be elsewhere too."""
    key = wanted[:_KEY]  # of many bytes a search prepares for long
    begin = data.find(key)
    if len(wanted) < _LEAST or begin < 0 or data.find(key, begin + 1) >= 0 or not data.startswith(wanted, begin):
        return None
    return begin
