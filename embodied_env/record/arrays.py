"""Images and large arrays of a row: stored outside it as bytes, once per content, and referred to by their hash.

A reference is ``{"sha256": "...", "dtype": "uint8", "shape": [96, 96, 3]}``. Its bytes are those of the array in C
order, little-endian; `sha256` is the hash of these bytes. They are the field ``data`` of a protobuf message: of
``embodied_env.Array``, or of the ``foxglove.RawImage`` of a camera.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from embodied_env.core.protobuf import describe_message, encode_field, encode_start, encode_varint, find_fields

Reference = dict[str, Any]
Store = Callable[[NDArray[Any]], Reference]
"""Stores an array and returns the reference to it."""

MOST_IN_A_ROW = 4096
"""The largest array, in numbers, that is written into its row."""

ARRAY, RAW_IMAGE = "embodied_env.Array", "foxglove.RawImage"
"""Types of the messages that hold an array."""

_ARRAY_FIELDS = "string dtype = 1; repeated uint32 shape = 2; bytes data = 3"
_DATA_FIELDS = {ARRAY: 3, RAW_IMAGE: 6}
_IMAGE_DIMENSIONS = 3  # height, width, channels
_DOUBLE_BYTES = 8  # wider floats have no portable form
_DTYPES = {"bool", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))}
_DTYPES |= {"float16", "float32", "float64"}
_KEYS = {"sha256": str, "dtype": str, "shape": list}


def is_stored_apart(array: NDArray[Any]) -> bool:
    """Return whether a row refers to `array`: numbers in three or more dimensions, or more than `MOST_IN_A_ROW`."""
    is_large = array.ndim >= _IMAGE_DIMENSIONS or array.size > MOST_IN_A_ROW
    return is_large and array.dtype.kind in "biuf" and array.itemsize <= _DOUBLE_BYTES


def to_bytes(array: NDArray[Any]) -> bytes:
    """Return the bytes of `array` in C order, little-endian."""
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def from_bytes(reference: Mapping[str, Any], data: bytes) -> NDArray[Any]:
    """Return the read-only array of `data`; raises ValueError unless hash, dtype and shape match."""
    if (found := hashlib.sha256(data).hexdigest()) != reference["sha256"]:
        raise ValueError(f"wrong SHA-256 of the bytes: {found} (expected {reference['sha256']})")
    if reference["dtype"] not in _DTYPES:
        raise ValueError(f"unknown dtype {reference['dtype'][:40]!r} (expected one of: {', '.join(sorted(_DTYPES))})")
    try:
        dtype = np.dtype(reference["dtype"]).newbyteorder("<")
        return np.frombuffer(data, dtype).reshape(reference["shape"])
    except (TypeError, OverflowError) as error:
        raise ValueError(str(error)) from None


def refer_to(array: NDArray[Any], data: bytes | memoryview) -> Reference:
    """Return the reference to `array` with the bytes `data`."""
    return {"sha256": hashlib.sha256(data).hexdigest(), "dtype": array.dtype.name, "shape": list(array.shape)}


def is_reference(value: object) -> TypeGuard[Reference]:
    """Return whether `value`, in JSON types, is a reference."""
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


def array_schema() -> bytes:
    """Return the definition of the message type `ARRAY`: its FileDescriptorSet."""
    return describe_message(ARRAY, {ARRAY: _ARRAY_FIELDS})


def encode_array(array: NDArray[Any]) -> tuple[bytes, memoryview]:
    """Return the message of the schema `ARRAY`, and the bytes of the array in it: in C order, little-endian."""
    portable = array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
    start = _array_start(array.dtype.name, array.shape)
    message = b"".join((start, portable.reshape(-1).view(np.uint8).data))  # one copy: an image has a megabyte
    return message, memoryview(message)[len(start) :]


@functools.lru_cache(maxsize=256)
def _array_start(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return an encoded array up to its data, which end the message."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    dimensions = encode_field(2, b"".join(map(encode_varint, shape)))
    return encode_field(1, dtype) + dimensions + encode_start(3, size)


def find_array(schema: str, message: bytes) -> slice | None:
    """Return the place of the bytes of the array in a message, or None without one; raises DamagedMessageError."""
    if (number := _DATA_FIELDS.get(schema)) is None:
        return None
    found = [value for key, value in find_fields(memoryview(message)) if key == number]
    return found[-1] if found and isinstance(found[-1], slice) else slice(0, 0)
