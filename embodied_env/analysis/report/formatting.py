"""Numbers and values of a manifest as short text."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def format_number(value: float) -> str:
    """Return `value` with three significant digits, without an exponent where it is readable; "none" if not finite."""
    if not math.isfinite(value):
        return "none"
    size = abs(value)
    if size == 0:
        return "0"
    if not 1e-5 <= size < 1e7:
        return f"{value:.2e}"
    decimals = max(0, 2 - math.floor(math.log10(size)))
    return f"{value:,.{decimals}f}"


def milliseconds(seconds: float) -> str:
    """Return a duration as a number of milliseconds, without the unit."""
    return format_number(1e3 * seconds)


def percent(share: float | None) -> str:
    """Return a share from 0 to 1 in percent; "none" for None and NaN."""
    return "none" if share is None or not math.isfinite(share) else f"{100 * share:.1f} %"


def share_of(count: int, total: int) -> str:
    """Return `count / total` in percent; a positive share never reads as 0 %."""
    if not count and total:
        return "0 %"
    return "< 0.1 %" if count < total / 1000 else percent(count / total if total else None)


def plural(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun: "1 step", "2 steps"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def mapping_of(value: object, *keys: str) -> Mapping[str, Any]:
    """Return the mapping at the path `keys` in `value`; an empty one where there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def describe_value(value: object) -> str:
    """Return a value of a manifest in one line; "unknown" for None and ""."""
    if value is None or value == "":
        return "unknown"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
