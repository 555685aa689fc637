"""The wire format of Protocol Buffers, so that messages can be written and read without generated code."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10
_TYPES = {"double": 1, "int64": 3, "int32": 5, "fixed32": 7, "string": 9, "message": 11, "bytes": 12, "uint32": 13}
_OPTIONAL, _REPEATED = 1, 3  # labels of a field


class DamagedMessageError(ValueError):
    """The data is no protobuf message."""


class ProtoField(NamedTuple):
    """A field of a message type; `type` is a scalar type, or the full name of a message type."""

    number: int
    name: str
    type: str
    is_repeated: bool = False
    has_presence: bool = False  # declared ``optional``


def encode_integer(number: int, value: int) -> bytes:
    """Return an integer field, or an element of a repeated one."""
    return encode_varint(number << 3 | _VARINT) + encode_varint(value)


def encode_fixed32(number: int, value: int) -> bytes:
    """Return a field of the type fixed32."""
    return encode_varint(number << 3 | _FIXED32) + struct.pack("<I", value)


def encode_double(number: int, value: float) -> bytes:
    """Return a field of the type double."""
    return encode_varint(number << 3 | _FIXED64) + struct.pack("<d", value)


def encode_bytes(number: int, data: bytes) -> bytes:
    """Return a field of bytes, or of an encoded message."""
    return encode_bytes_start(number, len(data)) + data


def encode_bytes_start(number: int, size: int) -> bytes:
    """Return the part of `encode_bytes` before the data."""
    return encode_varint(number << 3 | _DELIMITED) + encode_varint(size)


def encode_text(number: int, text: str) -> bytes:
    """Return a field of the type string."""
    return encode_bytes(number, text.encode())


def encode_varint(value: int) -> bytes:
    """Return an unsigned integer of up to 64 bits."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def read_fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield number and value of each field of a message; raises DamagedMessageError."""
    for number, value in find_fields(message):
        yield number, message[value] if isinstance(value, slice) else value


def find_fields(message: memoryview) -> Iterator[tuple[int, int | slice]]:
    """Yield number, and integer or place in the message, of each field; raises DamagedMessageError."""
    place = 0
    while place < len(message):
        key, place = _read_varint(message, place)
        number, kind = key >> 3, key & 7
        if key >= 2**32:  # protobuf ignores the higher bits
            raise DamagedMessageError("a field of a number above 2**29")
        if kind == _VARINT:
            value, place = _read_varint(message, place)
            yield number, value
            continue
        if kind not in (_FIXED64, _DELIMITED, _FIXED32):
            raise DamagedMessageError(f"a field of kind {kind}")
        size, place = _read_varint(message, place) if kind == _DELIMITED else (8 if kind == _FIXED64 else 4, place)
        if place + size > len(message):
            raise DamagedMessageError("it is cut off")
        yield number, slice(place, place + size)
        place += size


def _read_varint(message: memoryview, place: int) -> tuple[int, int]:
    """Return the integer at `place`, and the place after it."""
    value = 0
    for index, byte in enumerate(message[place : place + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, place + index + 1
    raise DamagedMessageError("it is cut off, or has a number of more than 64 bits")


def describe_message(name: str, types: Mapping[str, Sequence[ProtoField]]) -> bytes:
    """Return the FileDescriptorSet of the message type `name`, with the types that it contains before it.

    Each type of `types` is described in a file of its own, ``foxglove/Pose.proto`` for "foxglove.Pose".
    """
    files: dict[str, bytes] = {}

    def add(each: str) -> None:
        if each not in files:
            used = [field.type for field in types[each] if field.type in types]
            for other in used:
                add(other)
            files[each] = encode_bytes(1, _describe_file(each, types[each], used))

    add(name)
    return b"".join(files.values())


def _describe_file(name: str, fields: Sequence[ProtoField], used: Sequence[str]) -> bytes:
    """Return a FileDescriptorProto with one message type, in the syntax proto3."""
    package, _, short = name.rpartition(".")
    optional = [field.name for field in fields if field.has_presence]
    message = encode_text(1, short)
    for field in fields:
        is_message = field.type not in _TYPES
        text = encode_text(1, field.name) + encode_integer(3, field.number)
        text += encode_integer(4, _REPEATED if field.is_repeated else _OPTIONAL)
        text += encode_integer(5, _TYPES["message" if is_message else field.type])
        text += encode_text(6, f".{field.type}") if is_message else b""
        if field.has_presence:  # by the convention of proto3: alone in a oneof
            text += encode_integer(9, optional.index(field.name)) + encode_integer(17, 1)
        message += encode_bytes(2, text)
    message += b"".join(encode_bytes(8, encode_text(1, f"_{each}")) for each in optional)
    imports = b"".join(encode_text(3, _file_name(each)) for each in dict.fromkeys(used))
    head = encode_text(1, _file_name(name)) + encode_text(2, package)
    return head + imports + encode_bytes(4, message) + encode_text(12, "proto3")


def _file_name(name: str) -> str:
    if name == "google.protobuf.Timestamp":
        return "google/protobuf/timestamp.proto"
    return f"{name.replace('.', '/')}.proto"
