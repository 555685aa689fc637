"""The text of ROS 2 message definitions (``ros2msg``): as it is installed, else from the Python class."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from embodied_env.contract.messages import message_class
from embodied_env.wire import ARRAY, SEQUENCE

_LINE = "=" * 80
_NAMES = {"double": "float64", "float": "float32", "boolean": "bool", "octet": "byte"}
_BOUNDED_TEXT = re.compile(r"(?P<of>w?string)<(?P<most>\d+)>$")
_INT32 = 2**31
_INT64 = 2**63


@functools.cache
def definition(name: str) -> str:
    """Return the definition of the message ``sensor_msgs/msg/Imu`` and then of all that it is made of.

    Each after the first stands behind a line of ``=`` and one that names it, ``MSG: std_msgs/Header``.

    Raises:
        MissingDependencyError: for a package that is not installed.
        ContractError: for a type that the package does not have.
    """
    texts = {name: _text(name)}
    waiting = list(_parts(name))
    while waiting:
        part = waiting.pop(0)
        if part not in texts:
            texts[part] = _text(part)
            waiting += _parts(part)
    first = texts.pop(name)
    behind = [f"{_LINE}\nMSG: {part.replace('/msg/', '/')}\n{text}" for part, text in texts.items()]
    return "\n".join([first, *behind])


def _text(name: str) -> str:
    package, kind, type_name = name.split("/")
    for prefix in filter(None, os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep)):
        file = Path(prefix) / "share" / package / kind / f"{type_name}.msg"
        if file.is_file():
            return file.read_text(encoding="utf-8")
    return _text_of_class(message_class(name))


def _text_of_class(kind: Any) -> str:  # noqa: ANN401 - a generated type
    """Write the definition anew from what the class says of itself: without comments, and without default values."""
    constants = {key: value for key, value in type(kind).__prepare__("", ()).items() if not key.endswith("__DEFAULT")}
    lines = [_constant(key, value) for key, value in constants.items()]
    lines += [f"{_field_type(kind_of)} {field}" for field, kind_of in kind.get_fields_and_field_types().items()]
    return "".join(f"{line}\n" for line in lines)


def _constant(key: str, value: object) -> str:
    """A class does not know of what width its constants are: the narrowest of the common ones is told."""
    if isinstance(value, bool):
        return f"bool {key}={str(value).lower()}"
    if isinstance(value, int):
        width = "int32" if -_INT32 <= value < _INT32 else "int64" if value < _INT64 else "uint64"
        return f"{width} {key}={value}"
    if isinstance(value, float):
        return f"float64 {key}={value!r}"
    if isinstance(value, bytes):
        return f"byte {key}={value[0]}"
    return f'string {key}="{value}"'


def _field_type(idl: str) -> str:
    """Return a type in the words of ``.msg`` files, from those of IDL."""
    if found := ARRAY.match(idl):
        return f"{_field_type(found['of'])}[{found['size']}]"
    if found := SEQUENCE.match(idl):
        return f"{_field_type(found['of'])}[{'' if found['most'] is None else '<=' + found['most']}]"
    if found := _BOUNDED_TEXT.match(idl):
        return f"{found['of']}<={found['most']}"
    return _NAMES.get(idl, idl)


def _parts(name: str) -> Iterator[str]:
    """Yield the types of the fields that are messages themselves."""
    for idl in message_class(name).get_fields_and_field_types().values():
        plain = idl
        while found := ARRAY.match(plain) or SEQUENCE.match(plain):
            plain = found["of"]
        if "/" in plain:
            package, _, type_name = plain.partition("/")
            yield f"{package}/msg/{type_name}"
