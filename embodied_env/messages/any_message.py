"""Fields of any message type by path, such as ``points[0].positions``."""

from __future__ import annotations

import array
import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.messages.declaration import (
    Content,
    Field,
    InvalidReadingError,
    Message,
    MessageField,
    Read,
    check_length,
    packed,
)
from embodied_env.messages.message_types import ARRAY, SEQUENCE, message_class

_STEP = re.compile(r"(\w+)(?:\[(\d+)\])?")


@dataclass(frozen=True, kw_only=True)
class PathField(MessageField):
    """A number or, with a shape in the contract, a sequence of numbers at the path `place`."""

    is_sequence: bool

    def reader(self, field: Field) -> Read:
        """Return the function that reads the value at the path."""
        path = self.place

        def read(message: Message) -> NDArray[Any]:
            try:
                value = follow(message, path)
            except IndexError:
                raise InvalidReadingError(f"{path}: no such element in the message") from None
            if self.is_sequence:
                check_length(path, len(value), math.prod(field.shape))
                return np.array(np.asarray(value).reshape(field.shape), dtype=field.dtype)
            octet = isinstance(value, bytes)
            return np.array([value[0] if octet else value], dtype=field.dtype)

        return read

    def write(self, message: Message, name: str, value: NDArray[Any] | None, content: Content) -> None:  # noqa: ARG002
        """Write the value at the path, and extend sequences as needed."""
        if value is not None:
            write_path(message, self.place, value)


def steps_of(path: str) -> list[tuple[str, int | None]]:
    """Split a path into field names, each with the index of its element, if any."""
    return [(name, int(index) if index else None) for name, index in _STEP.findall(path)]


def follow(message: Message, path: str) -> Any:  # noqa: ANN401 - part of a message
    """Return the value at `path`, or raise AttributeError or IndexError if it is invalid."""
    value = message
    for name, index in steps_of(path):
        value = getattr(value, name)
        if index is not None:
            value = value[index]
    return value


def write_path(message: Message, path: str, value: NDArray[Any]) -> None:
    """Write an element or a sequence of numbers at `path`, and extend sequences as needed."""
    *parents, (name, index) = steps_of(path)
    for part, place in parents:
        parent, message = message, getattr(message, part)
        if place is not None:
            _extend(parent, part, place)
            message = message[place]
    old = getattr(message, name)
    if index is not None:
        _extend(message, name, index)
        old[index] = type(old[index])(value.flat[0])
    elif isinstance(old, array.array):
        setattr(message, name, packed(value.astype(old.typecode)))
    elif isinstance(old, np.ndarray):
        setattr(message, name, value.astype(old.dtype).ravel())
    elif isinstance(old, list):
        setattr(message, name, [bool(item) for item in value.flat])
    else:
        setattr(message, name, bytes([int(value.flat[0])]) if isinstance(old, bytes) else type(old)(value.flat[0]))


def _extend(message: Message, name: str, index: int) -> None:
    """Append default elements, NaN for floats, until `name` has the element `index`."""
    sequence, kind = getattr(message, name), message.get_fields_and_field_types()[name]
    element = next((found["of"] for pattern in (ARRAY, SEQUENCE) if (found := pattern.match(kind))), kind)
    while index >= len(sequence):
        if isinstance(sequence, array.array):
            sequence.append(math.nan if sequence.typecode in "df" else 0)
        elif "/" in element:
            sequence.append(message_class(element.replace("/", "/msg/"))())
        else:
            sequence.append("" if "string" in element else False)
