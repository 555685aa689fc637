"""Stack the infos of slots as `gymnasium.vector.VectorEnv._add_info` does, but key by key, not slot by slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.core.batches import BoolArray
from embodied_env.envs.transition_builder import Info

_SCALARS = (bool, int, float)


def stack_infos(infos: Mapping[int, Info], num_envs: int) -> Info:
    """Return the infos of a vector environment from those of its slots, with a mask for each key."""
    slots = sorted(infos)
    mask = np.zeros(num_envs, dtype=np.bool_)
    mask[slots] = True
    return _stack([infos[slot] for slot in slots], slots, mask) if slots else {}


def stack_rows(values: Mapping[str, Any], rows: BoolArray) -> Info:
    """Return nested arrays with a row per slot as infos in which only `rows` have them, with masks, in new arrays."""
    is_full = bool(rows.all())

    def stacked(values: Mapping[str, Any]) -> Info:
        infos: Info = {}
        for key, value in values.items():
            if isinstance(value, dict):
                infos[key] = stacked(value)
            elif is_full:
                infos[key] = value.copy()
            else:
                infos[key] = np.full_like(value, None if value.dtype == object else 0)
                infos[key][rows] = value[rows]
            infos[f"_{key}"] = rows.copy()
        return infos

    return stacked(values)


def merge_infos(one: Info, other: Info) -> Info:
    """Return stacked infos of some slots together with those of other slots; both may be written."""
    merged = {**other, **one}
    for key in one.keys() & other.keys():
        if isinstance(one[key], dict):
            merged[key] = merge_infos(one[key], other[key])
        elif f"_{key}" in other:
            rows = other[f"_{key}"]
            one[key][rows] = other[key][rows]
        else:  # a mask
            one[key] |= other[key]
    return merged


def _stack(rows: Sequence[Info], slots: Sequence[int], mask: BoolArray) -> Info:
    keys, stacked = rows[0].keys(), {}
    if all([row.keys() == keys for row in rows]):  # noqa: C419 - a generator takes longer
        for key in keys:
            stacked[key] = _column(key, [row[key] for row in rows], slots, mask)
            stacked["_" + key] = mask.copy()
        return stacked
    for key in dict.fromkeys(key for row in rows for key in row):
        own = {slot: {key: row[key]} for slot, row in zip(slots, rows, strict=True) if key in row}
        stacked |= stack_infos(own, len(mask))
    return stacked


def _column(key: str, values: list[Any], slots: Sequence[int], mask: BoolArray) -> Info | NDArray[Any]:
    """Return the values of one key in an array, or in a dict of arrays; the first value determines its type."""
    first, num_envs = values[0], len(mask)
    kind = type(first)
    column: NDArray[Any]
    if kind in _SCALARS and len(values) == num_envs:
        return np.array(values, dtype=kind)
    if key == "final_obs":
        column = np.full(num_envs, None, dtype=object)
    elif isinstance(first, dict):
        return _stack(values, slots, mask)
    elif kind in _SCALARS or issubclass(kind, np.number):
        column = np.zeros(num_envs, dtype=kind)
    elif isinstance(first, np.ndarray):
        column = np.zeros((num_envs, *first.shape), dtype=first.dtype)
    else:
        column = np.full(num_envs, None, dtype=object)
    for slot, value in zip(slots, values, strict=True):
        column[slot] = value
    return column
