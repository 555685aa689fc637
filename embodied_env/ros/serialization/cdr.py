"""Convert messages to CDR and back, without trailing bytes.

`serialize_message` returns as many bytes as rmw_fastrtps estimated, which counts an empty sequence of doubles as
aligned; strict readers such as `rosbags` refuse the surplus. The size is therefore measured by the rules of plain CDR
(OMG DDSI-RTPS, XCDR1): a value is aligned to its own size; a string is its length including the terminating zero, then
its bytes; a sequence is its count, then its elements.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from embodied_env.contract.message_types import message_class
from embodied_env.core.message_tap import ARRAY, SEQUENCE
from embodied_env.ros.setup_checks import rclpy_import_errors

HEADER_BYTES = 4  # of the encapsulation header
_WIDTHS = {
    **dict.fromkeys(("boolean", "octet", "char", "uint8", "int8"), 1),
    **dict.fromkeys(("uint16", "int16"), 2),
    **dict.fromkeys(("float", "uint32", "int32"), 4),
    **dict.fromkeys(("double", "uint64", "int64"), 8),
}

Measure = Callable[[Any, int], int]
"""Takes a value and the offset of its first byte; returns the offset after its last."""


@functools.cache
def _serialization() -> Any:  # noqa: ANN401 - a module of rclpy
    """Import rclpy's module when it is first used: a backend profile is read without rclpy."""
    with rclpy_import_errors("messages of ROS 2"):
        from rclpy import serialization  # noqa: PLC0415 - see above
    return serialization


def to_cdr(message: Any) -> bytes:  # noqa: ANN401 - a generated type
    """Return the bytes of `message` as they are on the wire."""
    data: bytes = _serialization().serialize_message(message)
    kind: Any = type(message)
    try:
        size = HEADER_BYTES + _measure_message(kind)(message, 0)
    except KeyError:  # a type that is not measured here: wide characters
        return data
    return data[:size]


def from_cdr(data: bytes, kind: Any) -> Any:  # noqa: ANN401 - a generated type
    """Return the message of class `kind` in `data`; raises what rclpy raises for invalid bytes."""
    return _serialization().deserialize_message(data, kind)


@functools.cache
def _measure_message(kind: Any) -> Measure:  # noqa: ANN401 - a generated type
    measures = [(name, _measure(idl)) for name, idl in kind.get_fields_and_field_types().items()]

    def end(message: Any, at: int) -> int:  # noqa: ANN401
        for name, measure in measures:
            at = measure(getattr(message, name), at)
        return at if measures else at + 1  # a message without fields has one byte

    return end


@functools.cache
def _measure(idl: str) -> Measure:
    if found := ARRAY.match(idl) or SEQUENCE.match(idl):
        return _measure_elements(found["of"], counted=found.re is SEQUENCE)
    if idl.partition("<")[0] == "string":
        return lambda value, at: _aligned(at, 4) + 4 + len(value.encode()) + 1
    if "/" in idl:
        return _measure_message(message_class(idl.replace("/", "/msg/")))
    width = _WIDTHS[idl]
    return lambda _, at: _aligned(at, width) + width


def _measure_elements(idl: str, *, counted: bool) -> Measure:
    width = _WIDTHS.get(idl)
    measure = _measure(idl)

    def end(values: Any, at: int) -> int:  # noqa: ANN401 - a sequence
        at = _aligned(at, 4) + 4 if counted else at
        if width is not None:
            return _aligned(at, width) + width * len(values) if len(values) else at
        for value in values:
            at = measure(value, at)
        return at

    return end


def _aligned(at: int, width: int) -> int:
    return -(-at // width) * width
