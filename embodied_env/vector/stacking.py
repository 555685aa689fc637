"""The infos of many environments as one, the way that Gymnasium stacks them, and in one pass.

Every key of an info becomes an array with a row for each slot, beside a mask ``_<key>`` that says which slots have it.
Numbers and arrays keep their dtype (that of the first slot that has the key), dicts are stacked in turn, and what else
there is stands in an array of objects. The result is that of ``gymnasium.vector.VectorEnv._add_info``, slot by slot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FINAL = "final_obs"  # Gymnasium leaves it unstacked, whatever it is


def stacked(infos: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
    """Return the infos of all slots as one; None: the slot has none.

    Raises:
        ValueError: for arrays of one key in different shapes.
    """
    there = [(slot, info) for slot, info in enumerate(infos) if info is not None]
    return _stacked(there, len(infos))


def _stacked(there: list[tuple[int, Mapping[str, Any]]], size: int) -> dict[str, Any]:
    together: dict[str, Any] = {}
    keys = dict.fromkeys(key for _, info in there for key in info)
    everywhere = all(len(info) == len(keys) for _, info in there)
    slots = [slot for slot, _ in there]
    for key in keys:
        if everywhere:
            values = [info[key] for _, info in there]
        else:
            slots = [slot for slot, info in there if key in info]
            values = [info[key] for _, info in there if key in info]
        if isinstance(values[0], dict) and key != _FINAL:
            together[key] = _stacked(list(zip(slots, values, strict=True)), size)
        else:
            together[key] = _column(values, slots, size, as_it_is=key == _FINAL)
        together[f"_{key}"] = _mask(slots, size)
    return together


def _column(values: list[Any], slots: list[int], size: int, *, as_it_is: bool) -> NDArray[Any]:
    """Return one row per slot: zero, or None, for those without a value."""
    first = values[0]
    kind = type(first)
    if as_it_is:
        column = np.full(size, None, dtype=object)
    elif kind in (bool, int, float) or issubclass(kind, np.number):
        if len(values) == size:
            return np.array(values, dtype=kind)
        column = np.zeros(size, dtype=kind)
    elif isinstance(first, np.ndarray):
        column = np.zeros((size, *first.shape), dtype=first.dtype)
    else:
        column = np.full(size, None, dtype=object)
    for slot, value in zip(slots, values, strict=True):
        column[slot] = value
    return column


def _mask(slots: list[int], size: int) -> NDArray[np.bool_]:
    if len(slots) == size:
        return np.full(size, fill_value=True)
    mask = np.zeros(size, dtype=np.bool_)
    mask[slots] = True
    return mask
