"""A value as it is now, to be written later: what it was may be changed by whoever has it, while its row waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from embodied_env.record.arrays import Store, stands_apart
from embodied_env.record.rows import WIDEST, Settled, plain, settled

_UNCHANGEABLE = frozenset((float, str, bool, type(None)))
_SCALARS = _UNCHANGEABLE | {int}
_NUMBERS = "biuf"
_DEEPEST = 8  # what is nested deeper, or holds itself, is settled at once
_LARGEST = 2**WIDEST


def kept(value: Any, store: Store | None = None) -> Any:  # noqa: ANN401 - anything goes in
    """Return a copy of `value` that shares nothing with it that could change; `plain` of both is the same.

    Dicts, lists, tuples and arrays of numbers are copied, which is quick; what else it holds is settled at once. So
    what JSON would say otherwise than `plain` is settled, or an array: `embodied_env.record.encoding` relies on it.
    `store`: see `plain`.
    """
    return _kept(value, 0, store)


def kept_action(action: Any) -> Any:  # noqa: ANN401 - anything goes in
    """Return the same for an action, which stays in its row whatever its size."""
    if type(action) is np.ndarray and action.dtype.kind in _NUMBERS and not stands_apart(action):
        return action.copy()
    return Settled(plain(action))


def _kept(value: Any, depth: int, store: Store | None) -> Any:  # noqa: ANN401
    kind = type(value)
    if kind in _UNCHANGEABLE or (kind is int and -_LARGEST < value < _LARGEST):
        return value
    if kind is np.ndarray and value.dtype.kind in _NUMBERS:
        return value.copy()
    if depth < _DEEPEST:
        if kind is dict:
            return _kept_dict(value, depth, store)
        if kind in (list, tuple):
            return [_kept(item, depth + 1, store) for item in value]
    made = settled(value, depth, store)
    return made.value if type(made.value) in _SCALARS else made


def _kept_dict(value: dict[Any, Any], depth: int, store: Store | None) -> Any:  # noqa: ANN401
    """Return what `_kept` does; of what an info has most, the copy is written out here: each call would cost more."""
    copied = value.copy()
    for key, item in value.items():
        if type(key) is not str:  # JSON has no such keys: what stands for the dict is its description
            return settled(value, depth, store)
        kind = type(item)
        if kind in _UNCHANGEABLE or (kind is int and -_LARGEST < item < _LARGEST):
            continue
        if kind is dict and depth < _DEEPEST - 1:
            copied[key] = _kept_dict(item, depth + 1, store)
        elif kind is np.ndarray and item.dtype.kind in _NUMBERS:
            copied[key] = item.copy()
        else:
            copied[key] = _kept(item, depth + 1, store)
    return copied


def size_of(value: Any) -> int:  # noqa: ANN401 - what `kept` returned
    """Return about how many bytes the arrays in a dict take; what is nested in others is not looked for."""
    if not isinstance(value, Mapping):
        return int(getattr(value, "nbytes", 0))
    return sum(item.nbytes for item in value.values() if isinstance(item, np.ndarray))
