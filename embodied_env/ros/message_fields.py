"""What the readers of messages share: the field to read, and the error of a message that cannot be read."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import FieldSpec, SensorSpec
from embodied_env.contract.field_paths import steps_of
from embodied_env.contract.reading_values import InvalidReadingError
from embodied_env.contract.spaces import FieldLayout

Message = Any  # a generated type
ReadField = Callable[[Message], NDArray[Any]]
"""Returns a fresh array of the field's shape and dtype; raises MalformedMessageError."""


class MalformedMessageError(InvalidReadingError):
    """A message that does not have what the contract declares; the text says what."""


@dataclass(frozen=True, kw_only=True)
class Field:
    """One field of one sensor, and what the contract says of it."""

    layout: FieldLayout
    spec: FieldSpec
    sensor: SensorSpec

    @property
    def name(self) -> str:
        """Its name in the contract."""
        return self.layout.field

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its array."""
        return self.layout.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The precision of its array."""
        return self.layout.dtype


def check_length(name: str, found: int, wanted: int) -> None:
    """Raise MalformedMessageError unless `name` has as many values as the contract declares."""
    if found != wanted:
        raise MalformedMessageError(f"{name} has {found} values; the contract declares {wanted}")


def follow(message: Message, path: str) -> Any:  # noqa: ANN401 - part of a message
    """Return what stands at `path` in `message`; raises AttributeError or IndexError where it leads nowhere."""
    value = message
    for name, index in steps_of(path):
        value = getattr(value, name)
        if index is not None:
            value = value[index]
    return value


def path_reader(field: Field) -> ReadField:
    """Return the reader of a field with a path: a number, or with a declared shape a sequence of numbers."""
    path = field.spec.path or ""
    steps = steps_of(path)
    convert = _number if field.spec.shape is None else _numbers

    def read(message: Message) -> NDArray[Any]:
        value = message
        for name, index in steps:
            value = getattr(value, name)
            if index is not None:
                if index >= len(value):
                    raise MalformedMessageError(f"{path}: there is no element {index}, only {len(value)} elements")
                value = value[index]
        return convert(value, field)

    return read


def _number(value: Any, field: Field) -> NDArray[Any]:  # noqa: ANN401 - part of a message
    return np.array([value[0] if isinstance(value, bytes) else value], dtype=field.dtype)  # bytes: the ROS type octet


def _numbers(value: Any, field: Field) -> NDArray[Any]:  # noqa: ANN401 - part of a message
    """Copy a sequence into an array of the declared shape."""
    check_length(field.spec.path or "", len(value), math.prod(field.shape))
    return np.array(np.asarray(value).reshape(field.shape), dtype=field.dtype)
