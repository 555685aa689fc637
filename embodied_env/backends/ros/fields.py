"""What the readers of messages share: the field to read, and the error of a message that cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import FieldSpec, SensorSpec
from embodied_env.contract.paths import steps_of
from embodied_env.contract.readings import InvalidReadingError
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
