"""Parse untrusted JSON within limits of size, nesting and numbers."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any, NoReturn

import numpy as np

_MAX_DIGITS = 40  # a 128-bit seed has 39; an integer of 40 digits still converts to a finite float
MOST_VALUES = 2**20  # in a text that is parsed: each may take a hundred times its text in memory
_SHOWN = 80
_STRINGS_AND_BRACKETS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{}]', re.DOTALL)
_HAS_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(text: str | bytes, *, max_bytes: int, max_depth: int = 32) -> Any:  # noqa: ANN401 - any JSON value
    """Parse a JSON text strictly (RFC 8259), within bounds.

    Integers have at most 40 digits, floats are finite, and text is encodable as UTF-8. Raises ValueError, with a reason
    of one line, for a text beyond `max_bytes` in UTF-8, `max_depth` or `MOST_VALUES`, a syntax error, an invalid
    number, or a duplicate key.
    """
    try:
        size = len(text) if isinstance(text, bytes) or len(text) > max_bytes else len(text.encode())
        if size > max_bytes:
            raise ValueError(f"JSON of {size} bytes or more (expected at most {max_bytes})")
        if (count := count_values(text if isinstance(text, bytes) else text.encode())) > MOST_VALUES:
            raise ValueError(f"JSON with {count} values (expected at most {MOST_VALUES})")
        if isinstance(text, bytes):
            text = text.decode()
        check_depth(text, max_depth)
        value = json.loads(
            text,
            object_pairs_hook=_unique_keys,
            parse_constant=_refuse_constant,
            parse_float=_finite_float,
            parse_int=_bounded_int,
        )
        if _HAS_SURROGATE_ESCAPE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeError:
        raise ValueError("JSON that is not valid Unicode (expected UTF-8)") from None
    return value


def plain_copy(value: object, *, max_characters: int, max_depth: int = 16) -> Any:  # noqa: ANN401 - any JSON value
    """Return a copy in JSON types, with arrays as lists, and NaN and infinities as None.

    Raises ValueError, with a reason of one line, for values of other types, and beyond `max_characters` of JSON,
    `max_depth` or integers of 40 digits.
    """
    try:
        text = json.dumps(value, default=_to_list)
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if len(text) > max_characters:
        raise ValueError(f"JSON of {len(text)} characters (expected at most {max_characters})")
    check_depth(text, max_depth)
    return json.loads(text, parse_constant=lambda _: None, parse_int=_bounded_int)


def count_values(text: bytes) -> int:
    """Return a bound of the number of values in a JSON text, without parsing it."""
    return 1 + text.count(b",") + text.count(b"[") + text.count(b"{")


def check_depth(text: str, max_depth: int) -> None:
    """Raise ValueError when brackets outside strings are nested deeper than `max_depth`."""
    if text.count("[") + text.count("{") <= max_depth:
        return
    depth = 0
    for match in _STRINGS_AND_BRACKETS.finditer(text):
        first = text[match.start()]
        if first in "[{":
            depth += 1
            if depth > max_depth:
                raise ValueError(f"JSON nested deeper than {max_depth} levels (expected at most {max_depth})")
        elif first in "]}":
            depth -= 1


def _to_list(value: object) -> Any:  # noqa: ANN401 - JSON types
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not a value of JSON")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"JSON object with the key {_shown(twice)} twice (expected unique keys)")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"JSON with the number {name} (expected finite numbers)")


def _finite_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"JSON with the number {_shown(digits)} (expected finite numbers)")
    return value


def _bounded_int(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"JSON with an integer of {len(digits)} digits (expected at most {_MAX_DIGITS})")
    return int(digits)


def _shown(text: str) -> str:
    return ascii(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")
