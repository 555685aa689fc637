"""JSON messages, converted from untrusted text to the object that they represent, and back."""

from __future__ import annotations

import dataclasses
import json
import reprlib
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract.bounded_json import parse_json
from embodied_env.contract.typed_values import From, check_value

T = TypeVar("T")

INVALID_MESSAGE = "invalid_message"  # reason of BackendLostError after an invalid message
MAX_BYTES = 262_144
MAX_DEPTH = 8

AnyNumber = float | typing.Literal["nan", "inf", "-inf"]  # JSON cannot represent the others


class JsonMessage:
    """Base of the dataclasses that are sent as JSON objects with the same keys."""

    place: ClassVar[str]  # topic or service, for errors

    def to_text(self) -> str:
        """Return JSON in which floats keep every bit, and NaN and infinities in arrays are text."""
        return json.dumps(self.as_mapping(), default=_to_json, allow_nan=False)

    def as_mapping(self) -> dict[str, Any]:
        """Return the fields that `to_text` writes."""
        return vars(self)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Parse an untrusted message, or raise ValueError like `read_message`."""
        return read_message(text, cls.place, cls)


def read_message(text: str, where: str, kind: type[T]) -> T:
    """Return the `kind` that an untrusted JSON object represents, or raise ValueError.

    The error is one line with `where` (the topic or service), the field, its value and what is expected.
    """
    try:
        value = parse_json(text, max_bytes=MAX_BYTES, max_depth=MAX_DEPTH)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    return typing.cast("T", check_value(value, where, kind))


def finite_or_text(value: float) -> float | str:
    """Return a number for JSON, which cannot represent NaN and infinities."""
    return value if np.isfinite(value) else repr(value)


def read_only_array(values: Sequence[float | str]) -> NDArray[np.float64]:
    """Return the array of numbers, or of their text."""
    array = np.array([float(value) for value in values], dtype=np.float64)
    array.flags.writeable = False
    return array


def _regular_array(value: object) -> NDArray[np.float64]:
    if _shape(value) is None:
        raise ValueError(f"{reprlib.repr(value)} (expected a number, or nested lists of numbers of one shape)")
    return np.array(value, dtype=np.float64)


def _shape(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list):
        return () if isinstance(value, int | float) and not isinstance(value, bool) else None
    shapes = {_shape(each) for each in value} or {()}
    inner = shapes.pop()
    return None if shapes or inner is None else (len(value), *inner)


def _to_json(value: object) -> Any:  # noqa: ANN401 - JSON types
    if isinstance(value, np.ndarray):
        return [finite_or_text(each) for each in np.atleast_1d(value).tolist()]
    if dataclasses.is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not a value of JSON")


RegularArray = Annotated[NDArray[np.float64], From(Any, _regular_array)]  # in JSON a number or nested lists
