"""Message formats of openpi and GR00T, MessagePack with bounded arrays, without pickle.

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
from collections.abc import Mapping
from typing import Any

import numpy as np

from embodied_env.core.plugin_loading import import_optional
from embodied_env.errors import EmbodiedEnvError, described
from embodied_env.policies.policy_model import ArraySpec

import_library = functools.partial(import_optional, needed_for="a policy server")

EXTENSION = "embodied_env"  # key of what this package adds to openpi's metadata, requests and answers
MOST_BYTES, MOST_ANSWER_BYTES = 2**26, 2**24
"""Limits of a request to a server, and of an answer, which must not take longer than a step to decode."""

_DEEPEST, _MOST_AXES, _MOST_VALUES = 16, 8, 2**13  # values: without those of arrays
_packers = threading.local()  # by protocol, since a new one takes memory for every message
_DTYPE = re.compile(r"[<>|=]?([biuf][1248]|[US][1-9]\d{0,5})")


def keep_freed_memory() -> None:
    """Let the C library keep freed memory, which every message would take again.

    glibc returns what exceeds twice the largest block that was freed so far; with images that costs 0.5 ms a message.
    """
    bytes(2**24)


class WireError(EmbodiedEnvError, ValueError):
    """A message is not of the expected format."""


def pack(message: Any, protocol: str = "openpi") -> bytes:  # noqa: ANN401 - any message
    """Return `message` in the format of ``openpi`` or ``gr00t``, or raise WireError."""
    packers = vars(_packers)
    if protocol not in packers:
        packers[protocol] = import_library("msgpack").Packer(default=_FORMATS[protocol][0])
    try:
        packed: bytes = packers[protocol].pack(message)
    except Exception as error:
        raise WireError(f"message cannot be encoded: {described(error)}") from error
    return packed


def unpack(data: bytes | bytearray, protocol: str = "openpi") -> Any:  # noqa: ANN401 - any message
    """Return a message in the format of ``openpi`` or ``gr00t``, or raise WireError."""
    library = import_library("msgpack")
    if len(data) > MOST_BYTES:
        raise WireError(f"message too large: {len(data)} bytes (expected at most {MOST_BYTES})")
    decode, left = _FORMATS[protocol][1], _MOST_VALUES

    def count(values: Any) -> Any:  # noqa: ANN401 - a list or a map
        nonlocal left
        left -= 1 + len(values)
        if left < 0:
            raise ValueError(f"more than {_MOST_VALUES} values")
        return values

    try:
        message = library.unpackb(
            data,
            object_hook=lambda value: decode(count(value)),
            list_hook=count,
            ext_hook=_refuse_extension,
            max_array_len=_MOST_VALUES,
            max_map_len=_MOST_VALUES,
        )
        _check_depth(message)
    except Exception as error:
        raise WireError(f"message cannot be decoded: {described(error):.200}") from error
    return message


def specs_to_message(specs: Mapping[str, ArraySpec] | None) -> dict[str, Any] | None:
    """Return specifications as a server announces them."""
    if specs is None:
        return None
    return {
        name: {"shape": list(spec.shape), "dtype": spec.dtype.str}
        | {key: bound.tolist() for key, bound in (("low", spec.low), ("high", spec.high)) if bound is not None}
        for name, spec in specs.items()
    }


def specs_from_message(message: Any) -> dict[str, ArraySpec] | None:  # noqa: ANN401 - of a server
    """Return the specifications that a server announces, or raise WireError for an invalid one."""
    if message is None:
        return None
    try:
        return {str(name): _parse_spec(spec) for name, spec in message.items()}
    except Exception as error:
        raise WireError(f"invalid announcement of a server: {described(error)}") from error


def _parse_spec(spec: Mapping[str, Any]) -> ArraySpec:
    shape = tuple(None if length is None else int(length) for length in spec["shape"])
    bounds = {key: np.asarray(spec[key], dtype=np.float64) for key in ("low", "high") if spec.get(key) is not None}
    text = np.dtype(str)
    dtype = text if spec["dtype"] == text.str else _checked_dtype(spec["dtype"])
    return ArraySpec(shape=shape, dtype=dtype, **bounds)


def _refuse_extension(code: int, _: bytes) -> Any:  # noqa: ANN401 - never returns
    raise ValueError(f"extension type {code} of MessagePack (expected none)")


def _check_depth(value: Any, depth: int = 0) -> None:  # noqa: ANN401 - any message
    if depth > _DEEPEST:
        raise ValueError(f"more than {_DEEPEST} levels")
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_depth(part, depth + 1)


def _to_openpi(value: Any) -> Any:  # noqa: ANN401 - types that MessagePack does not have
    if not isinstance(value, (np.ndarray, np.generic)):
        raise TypeError(f"value of the type {type(value).__name__}")
    dtype = _checked_dtype(value.dtype.str).str
    if isinstance(value, np.generic):
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": dtype}
    data = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data if value.size else b""
    return {b"__ndarray__": True, b"data": data, b"dtype": dtype, b"shape": value.shape}


def _from_openpi(value: dict[Any, Any]) -> Any:  # noqa: ANN401 - any message
    if b"__ndarray__" in value:
        data, dtype, shape = value[b"data"], _checked_dtype(value[b"dtype"]), tuple(value[b"shape"])
        if len(shape) > _MOST_AXES or any(type(length) is not int or length < 0 for length in shape):
            raise ValueError(f"array of the shape {shape!s:.80}")
        if math.prod(shape) * dtype.itemsize != len(data):
            raise ValueError(f"array of {dtype.str}, shape {shape} of {len(data)} bytes")
        return np.ndarray(buffer=data, dtype=dtype, shape=shape)
    if b"__npgeneric__" in value:
        with np.errstate(over="ignore"):
            return np.array(value[b"data"], _checked_dtype(value[b"dtype"])).reshape(())[()]
    return value


def _checked_dtype(text: object) -> np.dtype[Any]:
    if not isinstance(text, str) or not _DTYPE.fullmatch(text):
        raise ValueError(f"array of {text!r:.40} (expected numbers or text)")
    return np.dtype(text)


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
    array = np.lib.format.read_array(file, allow_pickle=False)
    _checked_dtype(array.dtype.str)
    if file.read(1):
        raise ValueError("more bytes than an array has")
    return array


_FORMATS = {"openpi": (_to_openpi, _from_openpi), "gr00t": (_to_gr00t, _from_gr00t)}
"""For each protocol, the functions to and from the types that MessagePack has."""
