"""Paths of message fields, such as ``points[0].positions``, resolved by types alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from embodied_env.contract.sensor_schema import FieldSpec, SensorSpec
from embodied_env.contract.sensor_validation import check_header
from embodied_env.contract.value_checks import allow, check_all, one_of, require
from embodied_env.errors import ContractError, MissingDependencyError
from embodied_env.messages.any_message import steps_of
from embodied_env.messages.message_types import ARRAY, SEQUENCE, message_class

_PRECISIONS = {  # the dtype of each ROS type; a boolean is 0 or 1. uint64 is missing: a Box cannot sample it.
    "double": "float64",
    "float": "float32",
    "boolean": "int8",
    "octet": "uint8",
    **{name: name for name in ("int64", "int32", "uint32", "int16", "uint16", "int8", "uint8")},
}


@dataclass(frozen=True, kw_only=True)
class _Part:
    """The ROS type at a path and, for an array, its minimum and maximum length."""

    kind: str
    lengths: tuple[int, float] | None


def check_messages(sensors: Mapping[str, SensorSpec], source: str = "") -> None:
    """Check sensors against message types, or raise ContractError or MissingDependencyError."""
    check_all((check for name, sensor in sensors.items() for check in _checks(name, sensor)), source)


def _checks(name: str, sensor: SensorSpec) -> Iterator[Callable[[], None]]:
    try:
        kind = message_class(sensor.type)
    except ContractError as error:
        yield partial(require, False, f"sensors.{name}.type", error.problem)
        return
    yield partial(check_header, f"sensors.{name}", sensor, has_header=has_header(kind))
    for field, spec in sensor.fields.items():
        if spec.path is not None:
            yield partial(_check_field, f"sensors.{name}.fields.{field}", sensor.type, spec)


def has_header(kind: Any) -> bool:  # noqa: ANN401 - a generated type
    """Return whether messages of this class have a header, with stamp and frame."""
    return bool(kind.get_fields_and_field_types().get("header") == "std_msgs/Header")


def wire_dtype(sensor: SensorSpec, spec: FieldSpec) -> np.dtype[Any] | None:
    """Return a field's dtype in the message if it may differ and the message is installed."""
    if spec.path is None:
        return np.dtype(bool) if sensor.type == "std_msgs/msg/Bool" else None
    try:
        kind = _resolved("", sensor.type, spec.path).kind
    except (ContractError, MissingDependencyError):
        return None
    return np.dtype(bool if kind == "boolean" else _PRECISIONS[kind]) if kind in _PRECISIONS else None


def _check_field(where: str, message_type: str, spec: FieldSpec) -> None:
    path = spec.path or ""
    part = _resolved(f"{where}.path", message_type, path)
    found = f"{path!r} of type {'sequence of ' if part.lengths else ''}{part.kind}"
    if spec.shape is None:
        allow(part.lengths is None, f"{where}.path", found, "a number, or a sequence with a shape")
    else:
        allow(part.lengths is not None, f"{where}.shape", found, "a sequence: only these have a shape")
    is_number = part.kind in _PRECISIONS and not (part.kind == "octet" and part.lengths)
    allow(is_number, f"{where}.path", found, f"{', '.join(_PRECISIONS)}, and no sequence of octets")
    if spec.shape is not None and part.lengths is not None:
        size, (least, most) = math.prod(spec.shape), part.lengths
        expected = f"{least if least == most else f'at most {most}'} in {message_type}"
        allow(least <= size <= most, f"{where}.shape", f"{size} values {list(spec.shape)}", expected)
    wire = _PRECISIONS[part.kind]
    is_exact = spec.dtype == wire or (spec.dtype is None and wire != "int64")
    allow(is_exact, f"{where}.dtype", f"{spec.dtype or 'float64'!r} for {found}", repr(wire))


def _resolved(where: str, message_type: str, path: str) -> _Part:
    """Follow `path` from type to type, or raise ContractError if it does not exist."""
    part, done = _Part(kind=message_type.replace("/msg/", "/"), lengths=None), ""
    for name, index in steps_of(path):
        has_fields = "/" in part.kind and part.lengths is None
        require(has_fields, where, f"{done!r} of type {part.kind} has no fields")
        package, _, type_name = part.kind.partition("/")
        fields = message_class(f"{package}/msg/{type_name}").get_fields_and_field_types()
        require(name in fields, where, f"unknown field of {part.kind}: {one_of(name, fields)}")
        part, done = _part(fields[name]), f"{done}.{name}".lstrip(".")
        if index is None:
            continue
        if part.lengths is None:
            raise ContractError(where, f"{done!r} of type {part.kind} has no elements")
        allow(index < part.lengths[1], where, f"index {index} of {done!r}", f"below {part.lengths[1]}")
        part, done = _Part(kind=part.kind, lengths=None), f"{done}[{index}]"
    return part


def _part(kind: str) -> _Part:
    """Parse the type of a field, such as ``double``, ``double[9]`` or ``sequence<double, 3>``."""
    if array := ARRAY.match(kind):
        return _Part(kind=array[1], lengths=(int(array[2]), int(array[2])))
    if sequence := SEQUENCE.match(kind):
        return _Part(kind=sequence[1], lengths=(0, int(sequence[2]) if sequence[2] else math.inf))
    return _Part(kind=kind, lengths=None)
