"""Checks of the arguments of public calls: each returns the value, or raises one UsageError that names it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from embodied_env.errors import UsageError

MOST_SECONDS = 1e6
"""The longest time that an argument can ask for: what is longer overflows clocks and timers."""

_NUMBERS = (int, float, np.integer, np.floating)


def checked_count(name: str, value: object, *, at_least: int) -> int:
    """Return `value`; raises UsageError unless it is a whole number that is large enough."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < at_least:
        raise UsageError(f"{name}={value!r} is not allowed; allowed: a whole number >= {at_least}")
    return int(value)


def checked_seconds(name: str, value: object) -> float:
    """Return `value`; raises UsageError unless it is a number of seconds above 0, at most `MOST_SECONDS`."""
    if isinstance(value, bool) or not isinstance(value, _NUMBERS) or not 0 < value <= MOST_SECONDS:
        raise UsageError(f"{name}={value!r} is not allowed; allowed: seconds > 0, at most {MOST_SECONDS:g}")
    return float(value)


def checked_flag(name: str, value: object) -> bool:
    """Return `value`; raises UsageError unless it is a bool."""
    if not isinstance(value, (bool, np.bool_)):
        raise UsageError(f"{name}={value!r} is not allowed; allowed: True, False")
    return bool(value)


def checked_path(name: str, value: object) -> Path:
    """Return the path; raises UsageError for what is none: empty, with a null byte, no text."""
    try:
        text = os.fspath(value)  # type: ignore[call-overload] # what is no path raises TypeError
        is_name = isinstance(text, str) and bool(text) and b"\0" not in os.fsencode(text)
    except (TypeError, ValueError):
        is_name = False
    if not is_name:
        raise UsageError(f"{name}={value!r} is not allowed; allowed: a path")
    return Path(text)
