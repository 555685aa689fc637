"""A value as it is now, to be written later: what it was may be changed by whoever has it, while its row waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from embodied_env.record.arrays import Store
from embodied_env.record.rows import Settled, plain

_UNCHANGEABLE = frozenset((float, int, str, bool, type(None)))
_NUMBERS = "biuf"
_DEEPEST = 8  # what is nested deeper, or holds itself, is settled at once


def kept(value: Any, store: Store | None = None) -> Any:  # noqa: ANN401 - anything goes in
    """Return a copy of `value` that shares nothing with it that could change; `plain` of both is the same.

    Dicts, lists, tuples and arrays of numbers are copied, which is quick; what else it holds is settled at once.
    `store`: see `plain`.
    """
    return _kept(value, 0, store)


def _kept(value: Any, depth: int, store: Store | None) -> Any:  # noqa: ANN401
    kind = type(value)
    if kind in _UNCHANGEABLE:
        return value
    if kind is np.ndarray and value.dtype.kind in _NUMBERS:
        return value.copy()
    if depth < _DEEPEST:
        if kind is dict:
            return _kept_dict(value, depth, store)
        if kind in (list, tuple):
            return [_kept(item, depth + 1, store) for item in value]
    return Settled(plain(value, store))


def _kept_dict(value: dict[Any, Any], depth: int, store: Store | None) -> Any:  # noqa: ANN401
    copied = {}
    for key, item in value.items():
        if type(key) is not str:  # JSON has no such keys: what stands for the dict is its description
            return Settled(plain(value, store))
        copied[key] = item if type(item) in _UNCHANGEABLE else _kept(item, depth + 1, store)
    return copied


def size_of(value: Any) -> int:  # noqa: ANN401 - what `kept` returned
    """Return about how many bytes the arrays in a dict take; what is nested in others is not looked for."""
    if not isinstance(value, Mapping):
        return int(getattr(value, "nbytes", 0))
    return sum(item.nbytes for item in value.values() if isinstance(item, np.ndarray))
