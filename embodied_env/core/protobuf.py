"""The wire format of Protocol Buffers, read and written without generated code."""

from __future__ import annotations

import re
from collections.abc import Iterator

_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10
_TYPES = {"string": 9, "bytes": 12, "uint32": 13}
_FIELD = re.compile(r"(repeated )?(\S+) (\S+) = (\d+)")


class DamagedMessageError(ValueError):
    """The data is no protobuf message."""


def encode_field(number: int, value: int | str | bytes) -> bytes:
    """Return a field with an int as a varint, or with bytes, also of an encoded message."""
    if isinstance(value, int):
        return encode_varint(number << 3 | _VARINT) + encode_varint(value)
    data = value.encode() if isinstance(value, str) else value
    return encode_start(number, len(data)) + data


def encode_start(number: int, size: int) -> bytes:
    """Return a field of `size` bytes up to its data."""
    return encode_varint(number << 3 | _DELIMITED) + encode_varint(size)


def encode_varint(value: int) -> bytes:
    """Return an unsigned integer of up to 64 bits."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def read_fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield number and value of each field of a message, or raise DamagedMessageError."""
    for number, value in find_fields(message):
        yield number, message[value] if isinstance(value, slice) else value


def find_fields(message: memoryview) -> Iterator[tuple[int, int | slice]]:
    """Yield number and integer, or place, of each field, or raise DamagedMessageError."""
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
    if place < len(message) and message[place] < 0x80:  # most have one byte
        return message[place], place + 1
    value = 0
    for index, byte in enumerate(message[place : place + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, place + index + 1
    raise DamagedMessageError("it is cut off, or has a number of more than 64 bits")


def describe_message(name: str, fields: str) -> bytes:
    """Return the FileDescriptorSet of a message with `fields` as in a ``.proto`` file."""
    package, _, short = name.rpartition(".")
    message = encode_field(1, short)
    for label, kind, field, number in _FIELD.findall(fields):
        text = encode_field(1, field) + encode_field(3, int(number)) + encode_field(4, 3 if label else 1)
        message += encode_field(2, text + encode_field(5, _TYPES[kind]))
    file = encode_field(1, f"{name.replace('.', '/').lower()}.proto") + encode_field(2, package)
    return encode_field(1, file + encode_field(4, message) + encode_field(12, "proto3"))
