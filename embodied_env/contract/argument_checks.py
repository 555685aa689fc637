"""Validate arguments of public calls, or raise UsageError with the name of one."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from embodied_env.errors import UsageError

MOST_SECONDS = 1e6  # upper limit of time arguments: larger values overflow clocks and timers
_NUMBERS = (int, float, np.integer, np.floating)


def checked_count(name: str, value: object, *, at_least: int, at_most: int | None = None) -> int:
    """Return `value`, or raise UsageError unless it is an integer from `at_least` to `at_most`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < at_least:
        raise UsageError(f"invalid {name}={value!r} (expected an integer >= {at_least})")
    if at_most is not None and value > at_most:
        raise UsageError(f"invalid {name}={value!r} (expected at most {at_most})")
    return int(value)


def checked_seconds(name: str, value: object) -> float:
    """Return `value`, or raise UsageError unless it is a number in (0, `MOST_SECONDS`]."""
    if isinstance(value, bool) or not isinstance(value, _NUMBERS) or not 0 < value <= MOST_SECONDS:
        raise UsageError(f"invalid {name}={value!r} (expected seconds > 0, at most {MOST_SECONDS:g})")
    return float(value)


def checked_flag(name: str, value: object) -> bool:
    """Return `value`, or raise UsageError unless it is a bool."""
    if not isinstance(value, (bool, np.bool_)):
        raise UsageError(f"invalid {name}={value!r} (expected True or False)")
    return bool(value)


def checked_path(name: str, value: object) -> Path:
    """Return the path, or raise UsageError unless it is a non-empty string without null bytes."""
    try:
        text = os.fspath(value)  # type: ignore[call-overload] # TypeError is caught
        is_name = isinstance(text, str) and bool(text) and b"\0" not in os.fsencode(text)
    except (TypeError, ValueError):
        is_name = False
    if not is_name:
        raise UsageError(f"invalid {name}={value!r} (expected a path)")
    return Path(text)
