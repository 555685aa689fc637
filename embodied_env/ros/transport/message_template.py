"""Encode messages by writing numbers and stamp into the bytes of a serialized message.

Messages of a topic mostly have the same length, names and counts. The offsets of their numbers (plain CDR,
little-endian, see `byte_layout`) are found by serializing a message with unique numbers, and verified with a
second one.
"""

from __future__ import annotations

import array
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.messages.message_types import message_class
from embodied_env.ros.transport.byte_layout import LITTLE_ENDIAN, from_cdr, infer_layout, to_cdr, uses_byte_layouts

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


class MessageTemplate:
    """Encoder of a topic's messages, as bytes if their layout is known, or else by `make`.

    Not thread-safe.
    """

    def __init__(self, make: Make, example: Numbers) -> None:
        """Find the numbers by `make`, which must only copy them and the stamp, as in `example`."""
        self._make = make
        self._forms = {name: (values.dtype, values.shape) for name, values in example.items()}
        self._data = bytearray()  # of the last message
        self._slots: list[tuple[NDArray[Any], str, Any]] = []  # view of `_data`, and the name and index of its numbers
        self._is_stamped = self._fits = False
        if not uses_byte_layouts():
            return
        first, second = (_unique_values(example, seed) for seed in (1, 2))
        self._data = bytearray(to_cdr(make(first, _STAMPS_NS[0])))
        self._is_stamped = self._data[_STAMP_AT] == _STAMP.pack(*divmod(_STAMPS_NS[0], _NS_PER_S))
        if self._data[:2] == LITTLE_ENDIAN and all(self._find(name, values) for name, values in first.items()):
            typed = make(second, _STAMPS_NS[1])
            wanted, made = to_cdr(typed), self._filled(second, _STAMPS_NS[1])
            self._fits = len(made) == len(wanted) and infer_layout(from_cdr(wanted, type(typed)), made) is not None

    def encode(self, numbers: Numbers, stamp_ns: int = 0) -> Message:
        """Return the bytes of the message, or the message itself where the template does not fit.

        It does not fit numbers with other names, shapes or dtypes than the example.
        """
        if self._fits and {name: (values.dtype, values.shape) for name, values in numbers.items()} == self._forms:
            return self._filled(numbers, stamp_ns)
        return self._make(numbers, stamp_ns)

    def _filled(self, numbers: Numbers, stamp_ns: int) -> bytes:
        if self._is_stamped:
            _STAMP.pack_into(self._data, _STAMP_AT.start, *divmod(stamp_ns, _NS_PER_S))
        for view, name, place in self._slots:
            view[...] = numbers[name][place]
        return bytes(self._data)

    def _find(self, name: str, values: NDArray[Any]) -> bool:
        """Find numbers, or floats sent as doubles, and return whether all were found."""
        for wire in (values.dtype, np.dtype(np.float64))[: 2 if values.dtype.kind == "f" else 1]:
            laid = values.astype(wire)
            places: list[Any] = [...]
            if laid.size <= _MAX_SCALARS and _offset(self._data, laid.tobytes()) is None:
                places = list(np.ndindex(laid.shape))
            offsets = [_offset(self._data, laid[place].tobytes()) for place in places]
            if None not in offsets:
                for place, offset in zip(places, offsets, strict=True):
                    found = laid[place]
                    view = np.frombuffer(self._data, wire, found.size, offset or 0).reshape(found.shape)
                    self._slots.append((view, name, place))
                return True
        return False


class ArrayEncoder:
    """Encodes one array and a stamp into messages of one topic, by a template."""

    def __init__(self, make: Callable[[NDArray[Any], int], Message], count: int, dtype: type[np.generic]) -> None:
        """Prepare a template of the messages of `make` for `count` numbers and a stamp, ns."""
        self._dtype = np.dtype(dtype)
        example = {_VALUES: np.zeros(count, dtype)}
        self._template = MessageTemplate(lambda numbers, stamp_ns: make(numbers[_VALUES], stamp_ns), example)

    def encode(self, values: NDArray[Any], stamp_ns: int = 0) -> Message:
        """Return the message of `values`, as `MessageTemplate.encode` does."""
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


def _offset(data: bytearray, wanted: bytes) -> int | None:
    """Return the offset of `wanted`, or None if it is not found or is found twice."""
    key = wanted[:_SEARCH_BYTES]
    begin = data.find(key)
    if len(wanted) < _MIN_BYTES or begin < 0 or data.find(key, begin + 1) >= 0 or not data.startswith(wanted, begin):
        return None
    return begin
