"""Describe the keys of a file from their dataclasses and the comments there."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import io
import json
import re
import tokenize
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen

from embodied_env.contract.key_types import Such
from embodied_env.contract.tightening_rules import Rule

UNITS = {"_m_per_s": "m/s", "_per_m": "", "_per_rad": "", "_s": "s", "_m": "m", "_hz": "Hz", "_rad": "rad", "_n": "N"}
PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", Any: "any"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Key:
    """A row of a table, whose `name` is the path with `<name>` for the user's names."""

    name: str
    type: str
    unit: str
    default: str
    rule: str
    meaning: str


def declared_keys(cls: type, prefix: str = "", apart: frozenset[type] = frozenset()) -> Iterator[Key]:
    """Yield the keys of a dataclass and of those in it, except the classes `apart`."""
    hints, meanings = typing.get_type_hints(cls, include_extras=True), meanings_of(cls)
    for field in dataclasses.fields(cls):
        if not field.compare:  # such as `source`: no key of the file
            continue
        hint, name = hints[field.name], prefix + field.name
        inner = inner_class(hint)
        is_apart = inner is None or inner in apart
        if is_apart or meanings[field.name]:
            yield Key(
                name=name,
                type=_type_text(hint),
                unit=next((unit for end, unit in UNITS.items() if field.name.endswith(end)), ""),
                default=_default_text(field),
                rule=next((each.kind for each in _metadata(hint) if isinstance(each, Rule)), ""),
                meaning=meanings[field.name],
            )
        if inner is not None and not is_apart:
            yield from declared_keys(inner, name + _step_text(hint), apart)


def inner_class(hint: Any) -> type | None:  # noqa: ANN401 - a type hint
    """Return the dataclass that a key holds, by itself, by name or in a list."""
    for option in _options(hint):
        values = typing.get_args(option)[-1:] if _is_mapping(option) else typing.get_args(option)[:1] or (option,)
        for value in map(_plain, values):
            if dataclasses.is_dataclass(value) and value.__name__ != "QosSpec":  # type: ignore[union-attr]
                return typing.cast("type", value)
    return None


@functools.cache
def meanings_of(cls: type) -> Mapping[str, str]:
    """Return the comment of each field, also of inherited ones, or an empty text."""
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


def _plain(hint: Any) -> Any:  # noqa: ANN401 - a type hint
    return typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint


def _metadata(hint: Any) -> list[Any]:  # noqa: ANN401 - a type hint
    found = []
    for each in getattr(hint, "__metadata__", ()):
        found += list(each) if hasattr(each, "__iter__") else [each]
    return found


def _members(hint: Any) -> tuple[Any, ...]:  # noqa: ANN401 - a type hint
    plain = _plain(hint)
    return typing.get_args(plain) if typing.get_origin(plain) in (typing.Union, types.UnionType) else (hint,)


def _options(hint: Any) -> list[Any]:  # noqa: ANN401 - a type hint
    return [_plain(each) for each in _members(hint) if each is not type(None)]


def _is_mapping(option: Any) -> bool:  # noqa: ANN401 - a type hint
    return typing.get_origin(option) is Mapping


def _step_text(hint: Any) -> str:  # noqa: ANN401 - a type hint
    if any(map(_is_mapping, _options(hint))):
        return ".<name>."
    return "[]." if any(typing.get_origin(option) is tuple for option in _options(hint)) else "."


def _type_text(hint: Any) -> str:  # noqa: ANN401 - a type hint
    options = _members(hint)
    texts = dict.fromkeys(_single_text(each) for each in options if each is not type(None))
    return " or ".join(texts) + (" or null" if type(None) in options else "")


def _single_text(hint: Any) -> str:  # noqa: ANN401 - a type hint
    plain = _plain(hint)
    origin, arguments = typing.get_origin(plain), typing.get_args(plain)
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin is tuple:
        count = "" if arguments[-1] is Ellipsis else f"{len(arguments)} "
        text = f"list of {count}{_plural(_type_text(arguments[0]))}"
    else:
        text = PLAIN.get(plain, "mapping")
    return " ".join([text, *filter(None, [_bounds_text(_metadata(hint))])])


def _bounds_text(metadata: list[Any]) -> str:
    low = next((each for each in metadata if isinstance(each, (Ge, Gt))), None)
    high = next((each for each in metadata if isinstance(each, (Le, Lt))), None)
    texts = []
    if low is not None and high is not None:
        left, right = "[" if isinstance(low, Ge) else "(", "]" if isinstance(high, Le) else ")"
        texts.append(f"in {left}{_end(low):g}, {_end(high):g}{right}")
    elif (end := low or high) is not None:
        sign = {Ge: ">=", Gt: ">", Le: "<=", Lt: "<"}[type(end)]
        texts.append(f"{sign} {_end(end):g}")
    texts += [f"({each.expected})" for each in metadata if isinstance(each, Such)]
    lengths = [f"at least {each.min_length}" for each in metadata if isinstance(each, MinLen) and each.min_length]
    lengths += [f"at most {each.max_length}" for each in metadata if isinstance(each, MaxLen)]
    return " ".join([*texts, *([f"({', '.join(lengths)})"] if lengths else [])])


def _end(bound: Ge | Gt | Le | Lt) -> float:
    return float(getattr(bound, type(bound).__name__.lower()))


def _plural(text: str) -> str:
    return re.sub(r"\b(boolean|number|integer|string|mapping|list)\b", r"\1s", text)


def _default_text(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return "none" if field.default_factory is dict else ""
    if field.default is dataclasses.MISSING:
        return "required"
    if field.default in (None, ()):
        return "null" if field.default is None else "none"
    return f"`{field.default if isinstance(field.default, str) else json.dumps(field.default, default=str)}`"
