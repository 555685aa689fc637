"""Conversion of values to JSON types.

Floats keep every bit, but NaN and infinities become null, because JSON cannot express them. Images and other large
arrays are stored outside the row, which refers to them (`embodied_env.record.arrays`).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.core.policy import NoAction
from embodied_env.record.arrays import Store, StoredApart, has_same_bytes, is_stored_apart

_MAX_INT_BITS = 128  # of an integer that is written as a number
_MAX_DEPTH = 32  # deeper nesting, such as a list that contains itself, becomes its repr; `encode_row` allows more
_DOUBLE_BYTES = 8
_MAX_REPR_CHARS = 2000
_NUMBERS = "biuf"  # kinds of dtypes
_IMMUTABLE = frozenset((float, str, bool, type(None)))


def to_json_types(value: Any, store: Store | None = None) -> Any:  # noqa: ANN401 - any type to JSON types
    """Return `value` in JSON types, sharing nothing mutable with it.

    Arrays become lists, enums their values, NaN and infinities None. Other types become ``{"repr": "..."}``. `store`
    stores images and other large arrays and returns their references. Without it they become lists.
    """
    return _to_json(value, 0, store)


def encodable(text: str) -> str:
    """Return JSON in ASCII with ``?`` for lone surrogates, which UTF-8 cannot encode."""
    if "\\ud" not in text:
        return text
    replaced = json.dumps(json.loads(text), ensure_ascii=False).encode("utf-8", "replace")
    return json.dumps(json.loads(replaced), separators=(",", ":"))


def has_large_arrays(value: Any) -> bool:  # noqa: ANN401 - an observation of any form
    """Return whether a row refers to an array in `value`, in nested mappings and sequences."""
    if isinstance(value, np.ndarray):
        return is_stored_apart(value)
    if isinstance(value, (dict, list, tuple)):
        return any(map(has_large_arrays, value.values() if isinstance(value, dict) else value))
    return False


def detach(value: Any, known: Mapping[str, Any]) -> tuple[Any, int]:  # noqa: ANN401 - an observation of any form
    """Return a copy of nested values, and the size of the copied arrays in bytes.

    The values are nested mappings and sequences of arrays. `known` are arrays that never change. One of them replaces
    an array with the same key and the same bytes, because a comparison is faster than a copy.
    """
    if isinstance(value, np.ndarray):
        return value.copy(), value.nbytes
    if isinstance(value, (list, tuple)):
        pairs = [detach(item, {}) for item in value]
        return [copied for copied, _ in pairs], sum(size for _, size in pairs)
    if not isinstance(value, dict):
        return to_json_types(value), 0
    found, total = {}, 0
    for key, item in value.items():
        same = known.get(key)
        if isinstance(same, np.ndarray) and has_large_arrays(item) and has_same_bytes(item, same):
            found[key] = same
        else:
            found[key], size = detach(item, {})
            total += size
    return found, total


def _to_json(value: Any, depth: int, store: Store | None) -> Any:  # noqa: ANN401, C901, PLR0911, PLR0912 - by kind
    kind = type(value)
    if kind is float:  # the exact types first: they are most of a row
        return value if math.isfinite(value) else None
    if kind in _IMMUTABLE:
        return value
    if kind is np.ndarray and value.dtype.kind in _NUMBERS:
        return _array(value, depth, store)
    if isinstance(value, Enum):
        return _to_json(value.value, depth + 1, store)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, int):
        return int(value) if value.bit_length() <= _MAX_INT_BITS else _described(value)
    if depth > _MAX_DEPTH:
        return _described(value)
    if kind is dict or isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            return _described(value)
        return {key: _to_json(item, depth + 1, store) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_json(item, depth + 1, store) for item in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return _array(np.asarray(value), depth, store)
    if isinstance(value, StoredApart):
        return value.array.tolist() if store is None else store(value.array)
    return str(os.fspath(value)) if isinstance(value, os.PathLike) else _described(value)


def _array(array: NDArray[Any], depth: int, store: Store | None) -> Any:  # noqa: ANN401 - nested lists, or a scalar
    if store is not None and is_stored_apart(array):
        return store(array)
    if array.dtype.kind == "f" and array.itemsize > _DOUBLE_BYTES:
        with np.errstate(over="ignore"):
            array = array.astype(np.float64)
    if array.dtype.kind in "biu" or (array.dtype.kind == "f" and np.isfinite(array).all()):
        return array.tolist()
    return _to_json(array.tolist(), depth + 1, store)


def _described(value: object) -> dict[str, str]:
    if isinstance(value, NoAction):
        return {"no_action": value.reason}
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - a foreign object may raise anything; the row must still be written
        text = f"<{type(value).__qualname__} whose repr raises {type(error).__name__}>"
    return {"repr": text if len(text) <= _MAX_REPR_CHARS else f"{text[:_MAX_REPR_CHARS]}..."}
