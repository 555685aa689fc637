"""Large arrays of a row: they stand beside it as bytes, once per content, and the row refers to them by their hash.

A reference is ``{"sha256": "...", "dtype": "uint8", "shape": [96, 96, 3]}``. Its bytes are those of the array in C
order, little-endian; `sha256` is theirs alone. So whoever can read MCAP and NumPy can read them::

    arrays = {hashlib.sha256(message.data).hexdigest(): message.data for message in channel_array}
    image = np.frombuffer(arrays[reference["sha256"]], reference["dtype"]).reshape(reference["shape"])
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Reference = dict[str, Any]
Store = Callable[[NDArray[Any]], Reference]
"""Keeps an array and returns the reference to it."""

MOST_IN_A_ROW = 4096
"""Numbers of an array that still stands in its row."""

_IMAGE = 3  # dimensions: height, width, channels
_KINDS = "biuf"
_DOUBLE = 8  # bytes; wider floats have no form that every machine can read
_DTYPES = {
    "bool",
    "float16",
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
    "float32",
    "float64",
}
_KEYS = {"sha256": str, "dtype": str, "shape": list}


def stands_apart(array: NDArray[Any]) -> bool:
    """Say whether `array` is referred to: numbers in three or more dimensions, or more than `MOST_IN_A_ROW` of them."""
    is_large = array.ndim >= _IMAGE or array.size > MOST_IN_A_ROW
    return is_large and array.dtype.kind in _KINDS and array.itemsize <= _DOUBLE


def to_bytes(array: NDArray[Any]) -> bytes:
    """Return the bytes of `array` in C order, little-endian."""
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def from_bytes(reference: Mapping[str, Any], data: bytes) -> NDArray[Any]:
    """Return the array that `reference` refers to; read-only.

    Raises:
        ValueError: when `data` are not its bytes, or its dtype or shape is not theirs.
    """
    if hashlib.sha256(data).hexdigest() != reference["sha256"]:
        raise ValueError("the bytes have another hash")
    if reference["dtype"] not in _DTYPES:
        raise ValueError(f"dtype {reference['dtype'][:40]!r} (expected one of: {', '.join(sorted(_DTYPES))})")
    try:
        dtype = np.dtype(reference["dtype"]).newbyteorder("<")
        return np.frombuffer(data, dtype).reshape(reference["shape"])
    except (TypeError, OverflowError) as error:
        raise ValueError(str(error)) from None


def refer_to(array: NDArray[Any], data: bytes) -> Reference:
    """Return the reference to `array`, whose bytes are `data`."""
    return {"sha256": hashlib.sha256(data).hexdigest(), "dtype": array.dtype.name, "shape": list(array.shape)}


def is_reference(value: object) -> bool:
    """Say whether `value`, in types of JSON, is a reference."""
    return (
        isinstance(value, dict)
        and value.keys() == _KEYS.keys()
        and all(isinstance(value[key], kind) for key, kind in _KEYS.items())
    )


def references(value: Any, path: str = "") -> Iterator[tuple[str, Reference]]:  # noqa: ANN401 - JSON types
    """Yield each reference in a row, with its path."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            if isinstance(item, (list, dict)):
                yield from references(item, f"{path}[{index}]")
    elif isinstance(value, dict):
        if is_reference(value):
            yield path, value
            return
        for key, item in value.items():
            if isinstance(item, (list, dict)):
                yield from references(item, f"{path}.{key}" if path else key)
