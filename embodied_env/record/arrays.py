"""Images and large arrays of a row, stored outside it once per content, named by hash.

A reference is ``{"sha256": "...", "dtype": "uint8", "shape": [96, 96, 3]}``. Its bytes are those of the array in C
order, little-endian, and `sha256` is the hash of these bytes. They are the field ``data`` of a protobuf message,
``embodied_env.Array``.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from embodied_env.core.protobuf import describe_message, encode_field, encode_start, encode_varint, find_fields

Reference = dict[str, Any]
Store = Callable[[NDArray[Any]], Reference]  # stores an array and returns the reference to it
MOST_IN_A_ROW = 4096  # the largest array, in numbers, that is written into its row
ARRAY = "embodied_env.Array"  # type of the messages that hold an array
_ARRAY_FIELDS = "string dtype = 1; repeated uint32 shape = 2; bytes data = 3"
_DATA_FIELD = 3
_IMAGE_DIMENSIONS = 3  # height, width, channels
_MOST_DIMENSIONS = 32  # of numpy 1
_LONGEST = 2**31 - 1
_SHOWN = 80  # characters of a shape
_DOUBLE_BYTES = 8  # wider floats have no portable form
_FIRST_BYTES = 4096
_DTYPES = {"bool", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))}
_DTYPES |= {"float16", "float32", "float64"}
_KEYS = {"sha256": str, "dtype": str, "shape": list}


def is_stored_apart(array: NDArray[Any]) -> bool:
    """Return whether a row refers to `array`, which is an image or has too many numbers."""
    is_large = array.ndim >= _IMAGE_DIMENSIONS or array.size > MOST_IN_A_ROW
    return is_large and array.dtype.kind in "biuf" and array.itemsize <= _DOUBLE_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class StoredApart:
    """An array in a row that refers to it whatever its size."""

    array: NDArray[Any]


def from_bytes(reference: Mapping[str, Any], data: bytes) -> NDArray[Any]:
    """Return the read-only array of `data`, or raise ValueError for another hash or layout."""
    if (found := hashlib.sha256(data).hexdigest()) != reference["sha256"]:
        raise ValueError(f"wrong SHA-256 of the bytes: {found} (expected {reference['sha256']})")
    check_layout(reference, len(data))
    return np.frombuffer(data, np.dtype(reference["dtype"]).newbyteorder("<")).reshape(reference["shape"])


def check_layout(reference: Mapping[str, Any], size: int) -> None:
    """Raise ValueError unless an array of the dtype and shape of a reference has `size` bytes."""
    if reference["dtype"] not in _DTYPES:
        raise ValueError(f"unknown dtype {reference['dtype'][:40]!r} (expected one of: {', '.join(sorted(_DTYPES))})")
    shape, itemsize = reference["shape"], np.dtype(reference["dtype"]).itemsize
    if len(shape) > _MOST_DIMENSIONS or not all(type(length) is int and 0 <= length <= _LONGEST for length in shape):
        raise ValueError(f"invalid shape {str(shape)[:_SHOWN]} (expected at most {_MOST_DIMENSIONS} lengths)")
    if (expected := math.prod(shape) * itemsize) != size:
        shown = f"{reference['dtype']} of shape {str(shape)[:_SHOWN]}"
        raise ValueError(f"{size} bytes (expected {expected} for {shown})")


def refer_to(array: NDArray[Any]) -> Reference:
    """Return the reference to `array`, as returned by `portable`."""
    return {"sha256": hashlib.sha256(array.data).hexdigest(), "dtype": array.dtype.name, "shape": list(array.shape)}


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
    """Return the FileDescriptorSet that defines the message type `ARRAY`."""
    return describe_message(ARRAY, _ARRAY_FIELDS)


def portable(array: NDArray[Any]) -> NDArray[Any]:
    """Return `array` if it is in C order and little-endian, and otherwise a copy that is."""
    if array.flags.c_contiguous and array.dtype.newbyteorder("<") == array.dtype:
        return array
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(array.shape)


def has_same_bytes(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Return whether type, shape and bytes are equal, much faster than by their hashes."""
    if a is b:
        return True
    if (a.dtype, a.shape) != (b.dtype, b.shape) or not (a.flags.c_contiguous and b.flags.c_contiguous):
        return False
    x, y = a.reshape(-1).view(np.uint8), b.reshape(-1).view(np.uint8)
    words = x.size - x.size % _DOUBLE_BYTES
    starts = (slice(0, _FIRST_BYTES), slice(words, None))  # different images differ early
    if not all(np.array_equal(x[part], y[part]) for part in starts):
        return False
    return np.array_equal(x[:words].view(np.uint64), y[:words].view(np.uint64))


def encode_array(array: NDArray[Any]) -> tuple[bytes, memoryview]:
    """Return the message of a portable array in two pieces, the second without a copy."""
    return _array_start(array.dtype.name, array.shape), array.reshape(-1).view(np.uint8).data


@functools.lru_cache(maxsize=256)
def _array_start(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return an encoded array up to its data, which end the message."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    dimensions = encode_field(2, b"".join(map(encode_varint, shape)))
    return encode_field(1, dtype) + dimensions + encode_start(_DATA_FIELD, size)


def find_array(schema: str, message: bytes) -> slice | None:
    """Return the place of the array's bytes, None without one, or raise DamagedMessageError."""
    if schema != ARRAY:
        return None
    found = [value for key, value in find_fields(memoryview(message)) if key == _DATA_FIELD]
    return found[-1] if found and isinstance(found[-1], slice) else slice(0, 0)
