"""Write the tables of the reference pages from the definitions that they document.

A page has a marker `<!-- keys: MODULE:CLASS -->` where the keys of a dataclass belong, or `<!-- table: NAME -->`. The
meaning of a key is the comment on its line, or the comment above it.
"""

from __future__ import annotations

import dataclasses
import inspect
import io
import re
import runpy
import tokenize
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from embodied_env.core.extensions import find_extension
from embodied_env.messages.message_types import ACTUATOR_MESSAGES, ENCODINGS, PATH_DTYPES, SENSOR_MESSAGES
from embodied_env.sim.servos import ELEMENTS, REFUSED

KEYS = re.compile(r"<!-- keys: ([\w.]+):(\w+) -->")
TABLE = re.compile(r"<!-- table: ([\w-]+) -->")
UNITS = {"_m_per_s": "m/s", "_per_m": "", "_per_rad": "", "_s": "s", "_m": "m", "_hz": "Hz", "_rad": "rad", "_n": "N"}
PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", typing.Any: "any"}


def fill(markdown: str) -> str:
    """Return a page with a table in place of each marker, or nothing for a class of an extension that was removed."""
    classes = {found: _class_at(*found) for found in KEYS.findall(markdown)}
    shown = {cls for cls in classes.values() if cls is not None}

    def table(found: re.Match[str]) -> str:
        cls = classes[found[1], found[2]]
        return "" if cls is None else _keys_table(cls, shown)

    with_keys = KEYS.sub(table, markdown)
    return TABLE.sub(lambda found: TABLES[found[1]](), with_keys)


def _class_at(module: str, name: str) -> type | None:
    cls: type | None = find_extension(f"embodied_env.{module}:{name}")
    return cls


def _table(columns: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    return "\n".join(lines + [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows])


# --------------------------------------------------------------------------------------------------- keys of a contract


def _keys_table(cls: type, shown: set[type]) -> str:
    return _table(("key", "type", "default", "meaning"), _key_rows(cls, "", shown - {cls}))


def _key_rows(cls: type, prefix: str, shown: set[type]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each key of a dataclass, and for those of the classes in it that have no table of their own."""
    hints, meanings = typing.get_type_hints(cls), meanings_of(cls)
    for field in dataclasses.fields(cls):
        if not field.compare:  # as `source`, no key of the file
            continue
        key = prefix + field.name
        inner = _inner_class(hints[field.name])
        if inner is None or inner in shown:
            yield f"`{key}`", _type_text(hints[field.name], field.name), _default_text(field), meanings[field.name]
            continue
        if meanings[field.name]:
            yield f"`{key}`", _type_text(hints[field.name], field.name), _default_text(field), meanings[field.name]
        name = ".<name>." if _is_mapping(hints[field.name]) else "."
        yield from _key_rows(inner, key + name, shown)


def meanings_of(cls: type) -> dict[str, str]:
    """Return the comment of each field of a dataclass, inherited fields included; empty for a field without one."""
    found: dict[str, str] = {}
    for base in reversed([each for each in cls.__mro__ if dataclasses.is_dataclass(each)]):
        above: list[str] = []
        name = ""
        for token in tokenize.generate_tokens(io.StringIO(inspect.getsource(base)).readline):
            text = token.string.removeprefix("#").strip()
            match = re.match(r" {4}(\w+):", token.line)
            if token.type == tokenize.COMMENT and token.line.lstrip().startswith("#"):
                above.append(text)
            elif token.type == tokenize.COMMENT and name:
                found[name] = " ".join([*filter(None, [found.get(name, "")]), text])
            elif match and token.type == tokenize.NAME and token.start[1] == 4 and match[1] == token.string:
                name = token.string
                found[name], above = " ".join(above), []
            elif token.type == tokenize.NAME and token.start[1] == 4:
                name, above = "", []
    return {field.name: found.get(field.name, "") for field in dataclasses.fields(cls)}


def _options(hint: Any) -> tuple[Any, ...]:
    """Return the alternatives of a union, or the type itself, without None."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return tuple(each for each in (typing.get_args(hint) if is_union else (hint,)) if each is not type(None))


def _is_mapping(hint: Any) -> bool:
    return any(typing.get_origin(each) is Mapping for each in _options(hint))


def _inner_class(hint: Any) -> type | None:
    """Return the dataclass that a key holds, by itself or by name."""
    for each in _options(hint):
        values = [typing.get_args(each)[-1]] if _is_mapping(each) else [each]
        if dataclasses.is_dataclass(values[0]) and values[0].__name__ != "QosSpec":
            return typing.cast("type", values[0])
    return None


def _type_text(hint: Any, name: str = "") -> str:
    """Return the type of a key in words, with the unit that its name ends with."""
    optional = type(None) in typing.get_args(hint)
    texts = list(dict.fromkeys(_single_text(each) for each in _options(hint)))
    unit = next((unit for end, unit in UNITS.items() if name.endswith(end)), "")
    return ", ".join(filter(None, [" or ".join(texts), unit])) + (" or null" if optional else "")


def _single_text(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return f"list of {len(arguments)} {_plural(_single_text(arguments[0]))}"
    if origin is tuple:
        return f"list of {_plural(_type_text(arguments[0]))}"
    return PLAIN.get(hint, "mapping")


def _plural(text: str) -> str:
    return text.replace("list of", "lists of") if text.startswith("list") else re.sub(r"(\w)( or |$)", r"\1s\2", text)


def _default_text(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return "none" if field.default_factory is dict else ""
    if field.default is dataclasses.MISSING:
        return "required"
    values = {None: "null", (): "none", True: "`true`", False: "`false`"}
    is_named = isinstance(field.default, (type(None), tuple, bool))
    text = values.get(field.default) if is_named else None
    plain = list(field.default) if isinstance(field.default, tuple) else field.default
    return text or "`" + str(plain).replace("True", "true").replace("False", "false") + "`"


# ------------------------------------------------------------------------------------------------------- other tables


def _sensor_messages() -> str:
    def rows() -> Iterator[tuple[str, ...]]:
        for name, message in SENSOR_MESSAGES.items():
            for key, field in message.fields.items():
                shape = "joints" if field.shape is None else ", ".join(str(size or "n") for size in field.shape)
                units = ", ".join(f"`{unit}`" for unit in field.units) if field.units else "any"
                first = f"`{name}`" + ("" if message.header else ", no header")
                yield first if key == next(iter(message.fields)) else "", f"`{key}`", shape, units, field.dtype
        yield "any other `package/msg/Type`", "fields with a `path`", "1, or `shape`", "any", "`dtype`"

    return _table(("type", "field", "shape", "unit", "dtype"), rows())


def _encodings() -> str:
    def rows() -> Iterator[tuple[str, ...]]:
        for name, encoding in ENCODINGS.items():
            depth = encoding.metres_per_unit is not None
            types_ = [key.rpartition("/")[2] for key, message in SENSOR_MESSAGES.items() if name in message.encodings]
            dtype = "float32, depth in `m`" if depth else "uint8"
            yield f"`{name}`", str(encoding.channels), dtype, ", ".join(f"`{each}`" for each in types_)

    return _table(("encoding", "channels", "observation", "message types"), rows())


def _actuator_messages() -> str:
    rows = (
        (
            f"`{name}`" + (", with a header" if message.header else ""),
            ", ".join(f"`{command}`" for command in message.commands),
            "axes" if message.commands == ("twist",) else "any" if message.joints is None else str(message.joints),
        )
        for name, message in ACTUATOR_MESSAGES.items()
    )
    return _table(("type", "`command`", "joints"), rows)


def _mjcf_actuators() -> str:
    supported = [(element, *takes, "") for element, takes in ELEMENTS.items()]
    refused = [(element, "no", "no", reason) for element, reason in REFUSED.values()]
    return _table(("actuator of the model", "positions", "velocities", "reason"), iter([*supported, *refused]))


def _info() -> str:
    text: str = runpy.run_path(str(Path(__file__).with_name("info.py")))["write_tables"]()
    return text


TABLES: Mapping[str, Callable[[], str]] = {
    "sensor-messages": _sensor_messages,
    "path-dtypes": lambda: ", ".join(f"`{dtype}`" for dtype in PATH_DTYPES),
    "encodings": _encodings,
    "actuator-messages": _actuator_messages,
    "mjcf-actuators": _mjcf_actuators,
    "info": _info,
}
