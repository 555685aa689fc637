"""Validate JSON objects of messages and files; errors name where they are, the field and the value."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from embodied_env.contract.bounded_json import parse_json

INVALID_MESSAGE = "invalid_message"
"""Reason of BackendLostError after an invalid message."""

MAX_BYTES = 262_144
MAX_DEPTH = 8

_FAR = 1e12  # its square is far from overflow
_INT64 = range(-(2**63), 2**63)
_NOT_FINITE = ("nan", "inf", "-inf")  # `repr` of floats that JSON cannot represent


@dataclass(frozen=True, kw_only=True)
class Kind:
    """The type of a field: a description, and a predicate on values from `parse_json`."""

    expected: str
    is_valid: Callable[[Any], bool]


def enum_of(words: Mapping[str, Any] | tuple[str, ...], what: str) -> Kind:
    """Return the kind of one of `words`; `what` describes it in errors."""
    return Kind(expected=what, is_valid=lambda value: isinstance(value, str) and value in words)


def or_null(kind: Kind) -> Kind:
    """Return the kind of `kind` or null."""
    return Kind(expected=f"{kind.expected}, or null", is_valid=lambda value: value is None or kind.is_valid(value))


def list_of(kind: Kind) -> Kind:
    """Return the kind of a list of `kind`."""
    return Kind(
        expected=f"a list, each element {kind.expected}",
        is_valid=lambda value: isinstance(value, list) and all(map(kind.is_valid, value)),
    )


def object_of(kind: Kind) -> Kind:
    """Return the kind of an object with any keys and values of `kind`."""
    return Kind(
        expected=f"an object, each value {kind.expected}",
        is_valid=lambda value: isinstance(value, dict) and all(map(kind.is_valid, value.values())),
    )


def object_with(fields: Mapping[str, Kind]) -> Kind:
    """Return the kind of an object with exactly these fields."""
    return Kind(
        expected=f"an object with {', '.join(f'{name}: {kind.expected}' for name, kind in fields.items())}",
        is_valid=lambda value: (
            isinstance(value, dict)
            and value.keys() == fields.keys()
            and all(kind.is_valid(value[name]) for name, kind in fields.items())
        ),
    )


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value in _INT64


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shape(value: object) -> tuple[int, ...] | None:
    """Return the shape of nested lists of numbers; None: ragged, or not numbers."""
    if not isinstance(value, list):
        return () if _is_number(value) else None
    shapes = {_shape(each) for each in value} or {()}
    inner = shapes.pop()
    return None if shapes or inner is None else (len(value), *inner)


TEXT = Kind(expected="text", is_valid=lambda value: isinstance(value, str))
WORD = Kind(
    expected="a word of letters, digits and underscores",
    is_valid=lambda value: isinstance(value, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", value) is not None,
)
FLAG = Kind(expected="true or false", is_valid=lambda value: isinstance(value, bool))
INTEGER = Kind(expected="an integer of 64 bits", is_valid=_is_integer)
COUNT = Kind(expected="an integer of 64 bits, 0 or more", is_valid=lambda value: _is_integer(value) and value >= 0)
QUANTITY = Kind(expected="a number from -1e12 to 1e12", is_valid=lambda value: _is_number(value) and abs(value) <= _FAR)
ANY_NUMBER = Kind(
    expected="a number, or one of 'nan', 'inf', '-inf'",
    is_valid=lambda value: _is_number(value) or (isinstance(value, str) and value in _NOT_FINITE),
)
ARRAY = Kind(
    expected="a number, or nested lists of numbers of one shape", is_valid=lambda value: _shape(value) is not None
)
OBJECT = Kind(expected="an object", is_valid=lambda value: isinstance(value, dict))
OBJECTS = list_of(OBJECT)


def read_object(text: str, where: str, fields: Mapping[str, Kind]) -> dict[str, Any]:
    """Parse an untrusted JSON object that has exactly `fields`.

    Raises ValueError, one line with `where` (the topic or service), the field, its value and the expected kind.
    """
    try:
        value = parse_json(text, max_bytes=MAX_BYTES, max_depth=MAX_DEPTH)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    return check_object(value, where, fields)


def check_object(value: object, where: str, fields: Mapping[str, Kind]) -> dict[str, Any]:
    """Return `value` if it is an object with exactly `fields`; else raise ValueError like `read_object`."""
    if not isinstance(value, dict):
        raise ValueError(f"{where}: {reprlib.repr(value)} (expected an object with {', '.join(fields)})")  # noqa: TRY004
    for name in value:
        if name not in fields:
            raise ValueError(f"{where}: field {reprlib.repr(name)} is unknown (expected {', '.join(fields)})")
    for name, kind in fields.items():
        if name not in value:
            raise ValueError(f"{where}: field {name} is missing (expected {kind.expected})")
        if not kind.is_valid(value[name]):
            raise ValueError(f"{where}: field {name}: {reprlib.repr(value[name])} (expected {kind.expected})")
    return value
