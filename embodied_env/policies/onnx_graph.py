"""Check of an ONNX file before a library reads it: size, nesting, operators, and no other files.

Only the structure of the protobuf message is read; see ``onnx.proto`` for the numbers of its fields.
"""

from __future__ import annotations

from collections.abc import Iterator

from embodied_env.errors import UsageError

Field = tuple[int, int | memoryview]
"""Number and value of a field."""

MOST_BYTES = 2**30
MOST_FIELDS = 2_000_000  # about 100000 nodes
_DEEPEST = 32  # messages within messages
_DOMAINS = frozenset(("", "ai.onnx", "ai.onnx.ml", "com.microsoft"))  # of the operators that onnxruntime contains

_PARTS: dict[str, dict[int, str]] = {  # message -> number of a field -> message in it
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
_NODE_DOMAIN, _FUNCTION_DOMAIN, _EXTERNAL_DATA, _DATA_LOCATION = 7, 10, 13, 14


class _DamagedError(Exception):
    """The data is no protobuf message."""


def check_graph(name: str, data: bytes) -> None:
    """Raise UsageError for a model `name` that is damaged, too large, or needs other files or custom operators."""
    domains: set[str] = set()
    own: set[str] = set()  # of functions in the model
    pending = [("model", memoryview(data), 0)]
    count = 0
    try:
        while pending:
            kind, message, depth = pending.pop()
            if depth > _DEEPEST:
                raise UsageError(f"ONNX model nested too deeply: {name} (expected at most {_DEEPEST} levels)")
            for number, value in _fields(message):
                count += 1
                if count > MOST_FIELDS:
                    raise UsageError(f"ONNX model too large: {name} (expected at most {MOST_FIELDS} fields)")
                if number in _PARTS[kind] and isinstance(value, memoryview):
                    pending.append((_PARTS[kind][number], value, depth + 1))
                elif kind == "tensor" and (number == _EXTERNAL_DATA or (number == _DATA_LOCATION and value != 0)):
                    raise UsageError(f"ONNX model with data in other files: {name} (expected one file); save it as one")
                elif (kind, number) in (("node", _NODE_DOMAIN), ("function", _FUNCTION_DOMAIN)):
                    text = str(value) if isinstance(value, int) else bytes(value).decode("utf-8", "replace")
                    (domains if kind == "node" else own).add(text)
    except _DamagedError as error:
        raise UsageError(f"ONNX model not readable: {name}: {error} (expected a .onnx file)") from None
    if unknown := domains - _DOMAINS - own:
        raise UsageError(f"ONNX model with custom operators: {name}: {min(unknown)!r} (expected those of onnxruntime)")


def _fields(message: memoryview) -> Iterator[Field]:
    """Yield number and value of each field; raises _DamagedError."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        kind = key & 7
        if key >= 2**32:  # protobuf ignores the higher bits
            raise _DamagedError("a field of a number above 2**29")
        if kind == 0:
            value, place = _varint(message, place)
            yield key >> 3, value
            continue
        if kind == 2:
            size, place = _varint(message, place)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise _DamagedError(f"a field of kind {kind}")
        if place + size > len(message):
            raise _DamagedError("it is cut off")
        yield key >> 3, message[place : place + size]
        place += size


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(message):
            raise _DamagedError("it is cut off")
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise _DamagedError("a number of more than 64 bits")
