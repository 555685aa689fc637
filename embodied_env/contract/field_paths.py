"""Paths of message fields, as ``pose.pose.position.x`` and ``points[0].positions``, resolved by types alone."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from embodied_env.contract.message_types import message_class
from embodied_env.contract.schema import FieldSpec, SensorSpec
from embodied_env.contract.value_checks import one_of, require
from embodied_env.errors import ContractError, MissingDependencyError

_STEP = re.compile(r"(\w+)(?:\[(\d+)\])?")
_ARRAY = re.compile(r"(.+)\[(\d+)\]")
_SEQUENCE = re.compile(r"sequence<(.+?)(?:, (\d+))?>")
_PRECISIONS = {
    "double": "float64",
    "float": "float32",
    "boolean": "int8",
    "octet": "uint8",
    **{name: name for name in ("int64", "int32", "uint32", "int16", "uint16", "int8", "uint8")},
}
"""The dtype of each ROS type; a boolean is 0 or 1. uint64 is missing: a Box cannot sample it."""


@dataclass(frozen=True, kw_only=True)
class _Part:
    """The ROS type at a path and, for an array, its minimum and maximum length."""

    kind: str
    lengths: tuple[int, float] | None


def steps_of(path: str) -> list[tuple[str, int | None]]:
    """Split a path into field names, each with the index of its element, if any."""
    return [(name, int(index) if index else None) for name, index in _STEP.findall(path)]


def check_message(name: str, sensor: SensorSpec) -> None:
    """Check the sensor `name` against its message type, whose package must be installed.

    Raises:
        MissingDependencyError: when it is not installed.
        ContractError: for an unknown type, a missing header, an unknown path, or another dtype than the message's.
    """
    try:
        kind = message_class(sensor.type)
    except ContractError as error:
        raise ContractError(f"sensors.{name}.type", error.problem) from None
    if not has_header(kind):
        problem = f"'header' is not allowed: a {sensor.type} has none; allowed: receive"
        require(sensor.timeline != "header", f"sensors.{name}.timeline", problem)
        require(sensor.frame is None, f"sensors.{name}.frame", f"a {sensor.type} has no header; allowed: no frame")
    for field, spec in sensor.fields.items():
        if spec.path is not None:
            _check_field(f"sensors.{name}.fields.{field}", sensor.type, spec)


def has_header(kind: Any) -> bool:  # noqa: ANN401 - a generated type
    """Return whether messages of this class have a header, with stamp and frame."""
    return bool(kind.get_fields_and_field_types().get("header") == "std_msgs/Header")


def element_type(message: Any, name: str) -> str:  # noqa: ANN401 - a generated type
    """Return the element type of the sequence `name` in `message`: ``double``, ``geometry_msgs/Pose``."""
    return _part(message.get_fields_and_field_types()[name]).kind


def is_boolean(sensor: SensorSpec, spec: FieldSpec) -> bool:
    """Return whether the field is a boolean in the message; False when its package is not installed."""
    if spec.path is None:
        return sensor.type == "std_msgs/msg/Bool"
    try:
        return _resolved("", sensor.type, spec.path).kind == "boolean"
    except (ContractError, MissingDependencyError):
        return False


def _check_field(where: str, message_type: str, spec: FieldSpec) -> None:
    path = spec.path or ""
    part = _resolved(f"{where}.path", message_type, path)
    found = f"{path!r} has the type {'sequence of ' if part.lengths else ''}{part.kind}"
    if spec.shape is None:
        require(part.lengths is None, f"{where}.path", f"{found}; allowed: a number, or a sequence with a shape")
    else:
        require(part.lengths is not None, f"{where}.shape", f"{found}; allowed: a shape with a sequence alone")
    is_number = part.kind in _PRECISIONS and not (part.kind == "octet" and part.lengths)
    allowed = f"numbers of {', '.join(_PRECISIONS)}, and no sequence of octets"
    require(is_number, f"{where}.path", f"{found}; allowed: {allowed}")
    if spec.shape is not None and part.lengths is not None:
        size, (least, most) = math.prod(spec.shape), part.lengths
        has = least if least == most else f"up to {most}"
        problem = f"{list(spec.shape)} are {size} values; a {message_type} has {has}"
        require(least <= size <= most, f"{where}.shape", problem)
    dtype, wire = spec.dtype or "float64", _PRECISIONS[part.kind]
    problem = f"{dtype!r} is not what the message has: {found}; allowed: {wire}"
    require(dtype == wire, f"{where}.dtype", problem)


def _resolved(where: str, message_type: str, path: str) -> _Part:
    """Follow `path` from type to type; raises ContractError at `where` for a path that does not exist."""
    part, done = _Part(kind=message_type.replace("/msg/", "/"), lengths=None), ""
    for name, index in steps_of(path):
        has_fields = "/" in part.kind and part.lengths is None
        require(has_fields, where, f"{done!r} has the type {part.kind}, which has no fields")
        package, _, type_name = part.kind.partition("/")
        fields = message_class(f"{package}/msg/{type_name}").get_fields_and_field_types()
        require(name in fields, where, f"a {part.kind} has no such field: {one_of(name, fields)}")
        part, done = _part(fields[name]), f"{done}.{name}".lstrip(".")
        if index is None:
            continue
        require(part.lengths is not None, where, f"{done!r} has the type {part.kind}, which has no elements")
        most = math.inf if part.lengths is None else part.lengths[1]
        require(index < most, where, f"{done!r} has no element {index}; allowed: below {most}")
        part, done = _Part(kind=part.kind, lengths=None), f"{done}[{index}]"
    return part


def _part(kind: str) -> _Part:
    """Parse the type of a field: ``double``, ``double[9]``, ``sequence<double>``, ``sequence<double, 3>``."""
    if array := _ARRAY.fullmatch(kind):
        return _Part(kind=array[1], lengths=(int(array[2]), int(array[2])))
    if sequence := _SEQUENCE.fullmatch(kind):
        return _Part(kind=sequence[1], lengths=(0, int(sequence[2]) if sequence[2] else math.inf))
    return _Part(kind=kind, lengths=None)
