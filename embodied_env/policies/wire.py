"""The message formats of openpi and GR00T: MessagePack with arrays, bounded, and without pickle.

openpi sends an array as a map of its bytes, dtype and shape; GR00T as a map with the bytes of an npy file. Only arrays
of numbers, booleans and text are decoded, and only if their bytes have exactly the size of their shape.

Servers of this package announce themselves in openpi's metadata by the key `EXTENSION`::

    metadata  {"embodied_env": {"inputs": specs, "outputs": specs, "identity": {...}, ...}, ...}
    request   {"embodied_env": {"request": {"epoch": 2, "step": 7}, "reset": {"seed": 1, "episode_index": 2}}, **inputs}
    answer    {"embodied_env": {"request": {"epoch": 2, "step": 7}}, "server_timing": {"infer_ms": 3.1}, **outputs}

Only to them the client sends that key; other servers receive exactly what openpi's own client sends. ``reset`` is
present until the first answer of the episode has arrived.
"""

from __future__ import annotations

import functools
import io
import math
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.errors import EmbodiedEnvError, MissingDependencyError, described
from embodied_env.policies.model import ArraySpec

EXTENSION = "embodied_env"
"""Key of what this package adds to openpi's metadata, requests and answers."""

MOST_BYTES = 2**26
"""Default limit of a message."""

_DEEPEST, _MOST_AXES, _LONGEST_LIST = 16, 8, 2**20
_packers = threading.local()  # by format: their buffers are large
_DTYPE = re.compile(r"[<>|=]?[biufUS]\d{1,6}")


def keep_freed_memory() -> None:
    """Let the C library keep freed memory, which it would otherwise return and take again for every message.

    glibc returns what exceeds twice the largest block that was freed so far; with images that costs 0.5 ms a message.
    """
    bytes(2**24)


class WireError(EmbodiedEnvError, ValueError):
    """A message is not of the expected format."""


def pack(message: Any) -> bytes:  # noqa: ANN401 - any message
    """Return `message` in openpi's format; raises WireError for values that it cannot express."""
    return _pack(message, _to_openpi)


def unpack(data: bytes | bytearray, most_bytes: int = MOST_BYTES) -> Any:  # noqa: ANN401 - any message
    """Return a message in openpi's format, with read-only arrays; raises WireError for any other data."""
    return _unpack(data, _from_openpi, most_bytes)


def pack_gr00t(message: Any) -> bytes:  # noqa: ANN401 - any message
    """Return `message` in GR00T's format; raises WireError for values that it cannot express."""
    return _pack(message, _to_gr00t)


def unpack_gr00t(data: bytes | bytearray, most_bytes: int = MOST_BYTES) -> Any:  # noqa: ANN401 - any message
    """Return a message in GR00T's format, with read-only arrays; raises WireError for any other data."""
    return _unpack(data, _from_gr00t, most_bytes)


def specs_from_message(message: Any) -> dict[str, ArraySpec] | None:  # noqa: ANN401 - of a server
    """Return the specifications that a server announces; raises WireError for an invalid one."""
    if message is None:
        return None
    try:
        return {str(name): _parse_spec(spec) for name, spec in message.items()}
    except Exception as error:
        raise WireError(f"invalid announcement of a server: {described(error)}") from error


def _parse_spec(spec: Mapping[str, Any]) -> ArraySpec:
    shape = tuple(None if length is None else int(length) for length in spec["shape"])
    bounds = {key: np.asarray(spec[key], dtype=np.float64) for key in ("low", "high") if spec.get(key) is not None}
    return ArraySpec(shape=shape, dtype=_checked_dtype(spec["dtype"]), **bounds)


# ---------------------------------------------------------------------------------------------------------- MessagePack


def _msgpack() -> Any:  # noqa: ANN401 - untyped
    try:
        import msgpack
    except ImportError:
        raise MissingDependencyError(
            "msgpack", needed_for="a policy server", remedy='pip install "embodied_env[remote]"'
        ) from None
    return msgpack


def _pack(message: Any, encode: Callable[[Any], Any]) -> bytes:  # noqa: ANN401 - any message
    try:
        packer = getattr(_packers, encode.__name__)
    except AttributeError:
        packer = _msgpack().Packer(default=encode)
        setattr(_packers, encode.__name__, packer)
    try:
        packed: bytes = packer.pack(message)
    except Exception as error:
        raise WireError(f"message cannot be encoded: {described(error)}") from error
    return packed


def _unpack(data: bytes | bytearray, decode: Callable[[Any], Any], most_bytes: int) -> Any:  # noqa: ANN401
    library = _msgpack()
    if len(data) > most_bytes:
        raise WireError(f"message too large: {len(data)} bytes (expected at most {most_bytes})")
    try:
        message = library.unpackb(
            data,
            object_hook=decode,
            ext_hook=_refuse_extension,
            max_array_len=_LONGEST_LIST,
            max_map_len=_LONGEST_LIST,
        )
        _check_depth(message)
    except Exception as error:
        raise WireError(f"message cannot be decoded: {described(error):.200}") from error
    return message


def _refuse_extension(code: int, _: bytes) -> Any:  # noqa: ANN401 - never returns
    raise ValueError(f"extension type {code} of MessagePack (expected none)")


def _check_depth(message: Any) -> None:  # noqa: ANN401 - any message
    level, depth = [message], 0
    while level := [part for each in level for part in _parts(each)]:
        depth += 1
        if depth > _DEEPEST:
            raise ValueError(f"more than {_DEEPEST} levels")


def _parts(value: Any) -> Any:  # noqa: ANN401 - any message
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _array_of(data: Any, dtype: np.dtype[Any], shape: tuple[int, ...], order: Any = "C") -> NDArray[Any]:  # noqa: ANN401
    """Return an array over `data`; raises ValueError unless it has exactly that size."""
    _checked_dtype(dtype.str)
    if len(shape) > _MOST_AXES or any(type(length) is not int or length < 0 for length in shape):
        raise ValueError(f"array of the shape {shape!s:.80}")
    if math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError(f"array of {dtype.str}, shape {shape} of {len(data)} bytes")
    return np.ndarray(buffer=data, dtype=dtype, shape=shape, order=order)


# --------------------------------------------------------------------------------------------------------------- openpi


def _to_openpi(value: Any) -> Any:  # noqa: ANN401 - types that MessagePack does not have
    if isinstance(value, (np.ndarray, np.generic)):
        _checked_dtype(value.dtype.str)
    if isinstance(value, np.ndarray):
        data = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data if value.size else b""
        return {b"__ndarray__": True, b"data": data, b"dtype": value.dtype.str, b"shape": value.shape}
    if isinstance(value, np.generic):
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    raise TypeError(f"value of the type {type(value).__name__}")


def _from_openpi(value: dict[Any, Any]) -> Any:  # noqa: ANN401 - any message
    if b"__ndarray__" in value:
        return _array_of(value[b"data"], _checked_dtype(value[b"dtype"]), tuple(value[b"shape"]))
    if b"__npgeneric__" in value:
        return _checked_dtype(value[b"dtype"]).type(value[b"data"])
    return value


@functools.lru_cache(64)
def _checked_dtype(text: str) -> np.dtype[Any]:
    if not isinstance(text, str) or not _DTYPE.fullmatch(text):
        raise ValueError(f"array of {text!r:.40} (expected numbers or text)")
    return np.dtype(text)


# ---------------------------------------------------------------------------------------------------------------- GR00T


def _to_gr00t(value: Any) -> Any:  # noqa: ANN401 - types that MessagePack does not have
    if not isinstance(value, np.ndarray):
        raise TypeError(f"value of the type {type(value).__name__}")
    _checked_dtype(value.dtype.str)
    file = io.BytesIO()
    np.save(file, value, allow_pickle=False)
    return {"__ndarray_class__": True, "as_npy": file.getvalue()}


def _from_gr00t(value: dict[Any, Any]) -> Any:  # noqa: ANN401 - any message
    if "__ndarray_class__" not in value:
        return value
    file = io.BytesIO(value["as_npy"])
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = read_header(file)
    return _array_of(file.read(), dtype, shape, "F" if is_fortran else "C")
