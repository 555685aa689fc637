"""A check of plain values against a JSON Schema that names what is wrong, for the keywords that our schemas use."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from typing import Any

from embodied_env.record.violations import Violation, found, shortened

Schema = dict[str, Any]
Rule = Callable[[Any, Any], bool]

_KINDS = {
    dict: "object",
    list: "array",
    str: "string",
    bool: "boolean",
    type(None): "null",
    int: "integer",
    float: "number",
}
_OF_NUMBERS: dict[str, Rule] = {
    "enum": lambda value, allowed: value in allowed,
    "const": operator.eq,
    "minimum": operator.ge,
    "maximum": operator.le,
}
_RULES: dict[str, dict[str, Rule]] = {
    "integer": _OF_NUMBERS,
    "number": _OF_NUMBERS,
    "boolean": {"const": operator.is_},
    "string": {
        "enum": lambda value, allowed: value in allowed,
        "const": operator.eq,
        "minLength": lambda value, least: len(value) >= least,
        "pattern": lambda value, pattern: re.search(pattern, value) is not None,
    },
    "array": {
        "minItems": lambda value, least: len(value) >= least,
        "maxItems": lambda value, most: len(value) <= most,
    },
}


def misfits(value: Any, schema: Schema, *, path: str = "") -> list[Violation]:  # noqa: ANN401 - JSON types
    """Return what of the plain `value` is not as `schema` says, each with the path and what is allowed."""
    return list(_misfits(value, schema, path))


def _misfits(value: Any, schema: Schema, path: str) -> Iterator[Violation]:  # noqa: ANN401
    if "anyOf" in schema:
        yield from min((misfits(value, option, path=path) for option in schema["anyOf"]), key=len)
    elif allowed := _problem(value, schema):
        text = f"{path or 'the value'} is {shortened(value)}; allowed: {allowed}"
        yield found("row.shape", path, value, text)
    elif isinstance(value, dict):
        yield from _misfits_of_object(value, schema, path)
    elif isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield from _misfits(item, schema["items"], f"{path}[{index}]")


def _misfits_of_object(value: Schema, schema: Schema, path: str) -> Iterator[Violation]:
    prefix = f"{path}." if path else ""
    properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for key in schema.get("required", ()):
        if key not in value:
            yield found("row.shape", f"{prefix}{key}", None, f"{prefix}{key} is missing")
    for key, item in value.items():
        if key in properties:
            yield from _misfits(item, properties[key], prefix + key)
            continue
        options = [named for pattern, named in patterns.items() if re.search(pattern, key)]
        if not options and not schema.get("additionalProperties", True):
            allowed = ", ".join(properties) or f"names like {list(patterns)}"
            yield found("row.shape", f"{prefix}{key}", item, f"{prefix}{key} is no field; allowed: {allowed}")
        for named in options:
            yield from _misfits(item, named, prefix + key)


def _problem(value: Any, schema: Schema) -> str:  # noqa: ANN401
    """Return what is allowed instead of `value` by the keywords for one value, or ""."""
    kind = _KINDS[type(value)]
    allowed = schema.get("type", kind)
    kinds = (allowed,) if isinstance(allowed, str) else allowed
    if kind not in kinds and not (kind == "integer" and "number" in kinds):
        return " or ".join(kinds)
    for keyword, rule in _RULES.get(kind, {}).items():
        if keyword in schema and not rule(value, schema[keyword]):
            return f"{keyword} {schema[keyword]}"
    return ""
