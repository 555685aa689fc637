"""Convert messages to CDR and back, without trailing bytes.

`serialize_message` returns as many bytes as rmw_fastrtps estimated, which counts an empty sequence of doubles as
aligned; strict readers such as `rosbags` refuse the surplus. The size is therefore measured by the rules of plain CDR
(OMG DDSI-RTPS, XCDR1): a value is aligned to its own size; a string is its length including the terminating zero, then
its bytes; a sequence is its count, then its elements.
"""

from __future__ import annotations

import functools
import struct
from typing import Any

from embodied_env.contract.message_types import ARRAY, SEQUENCE
from embodied_env.ros.setup_checks import rclpy_import_errors

HEADER_BYTES = 4  # of the encapsulation header
BYTES = ("boolean", "octet", "char")  # types of one byte that are no numbers of rclpy
_NUMBERS = ("float", "double", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
STRUCT_CODES = dict(zip(_NUMBERS, "fdbhiqBHIQ", strict=True))
_WIDTHS = {**dict.fromkeys(BYTES, 1), **{name: struct.calcsize(code) for name, code in STRUCT_CODES.items()}}


@functools.cache
def _serialization() -> Any:  # noqa: ANN401 - a module of rclpy
    """Import rclpy's module when it is first used: a backend profile is read without rclpy."""
    with rclpy_import_errors("messages of ROS 2"):
        from rclpy import serialization  # noqa: PLC0415 - see above
    return serialization


def to_cdr(message: Any) -> bytes:  # noqa: ANN401 - a generated type
    """Return the bytes of `message` as they are on the wire."""
    data: bytes = _serialization().serialize_message(message)
    try:
        return data[: HEADER_BYTES + _end_of_message(message, 0)]
    except KeyError:  # a type that is not measured here: wide characters
        return data


def from_cdr(data: bytes, kind: Any) -> Any:  # noqa: ANN401 - a generated type
    """Return the message of class `kind` in `data`; raises what rclpy raises for invalid bytes."""
    return _serialization().deserialize_message(data, kind)


def _end_of_message(message: Any, at: int) -> int:  # noqa: ANN401 - a generated type
    """Return the offset after `message`, which begins at offset `at`."""
    fields = message.get_fields_and_field_types()
    for name, idl in fields.items():
        at = _end(idl, getattr(message, name), at)
    return at if fields else at + 1  # a message without fields has one byte


def _end(idl: str, value: Any, at: int) -> int:  # noqa: ANN401 - a field or an element
    """Return the offset after `value`; raises KeyError for a type that is not measured."""
    if found := ARRAY.match(idl) or SEQUENCE.match(idl):
        at = _aligned(at, 4) + 4 if found.re is SEQUENCE else at
        if width := _WIDTHS.get(found["of"]):
            return _aligned(at, width) + width * len(value) if len(value) else at
        for element in value:
            at = _end(found["of"], element, at)
        return at
    if idl.partition("<")[0] == "string":
        return _aligned(at, 4) + 4 + len(value.encode()) + 1
    if "/" in idl:
        return _end_of_message(value, at)
    return _aligned(at, _WIDTHS[idl]) + _WIDTHS[idl]


def _aligned(at: int, width: int) -> int:
    return -(-at // width) * width
