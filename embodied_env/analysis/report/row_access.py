"""What stands in a row, taken with care: a row may be anybody's, and damaged; what is not right counts as nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any


def get_mapping(value: object, *keys: str) -> Mapping[str, Any]:
    """Return the mapping at `keys` inside of `value`; an empty one where there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def finite(value: object) -> float | None:
    """Return a finite number as a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def count_of(value: object) -> int:
    """Return a number of things, 0 or more; 0 for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def flat(value: object) -> Iterator[float | None]:
    """Yield the numbers of an action in order, whether it is a list or one list per actuator; None for what is none."""
    if isinstance(value, Mapping):
        for part in value.values():
            yield from flat(part)
    elif isinstance(value, list):
        for part in value:
            yield from flat(part)
    else:
        yield finite(value)


def text_of(value: object, *, longest: int = 200) -> str:
    """Return a text, cut where it is long; "" for what is no text."""
    if not isinstance(value, str):
        return ""
    return value if len(value) <= longest else f"{value[:longest]}…"
