"""The JSON Schema of ``info``, generated from `embodied_env.core.info_types`."""

from __future__ import annotations

import functools
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract.typed_values import From, Keywords, Shared

Schema = dict[str, Any]

_JSON_TYPES = {float: "number", int: "integer", bool: "boolean", str: "string"}
_INTRODUCTION = (
    "The JSON form of info: NaN is null, arrays are lists. `dtype` and `shape` describe the value in memory: int, "
    "float, bool and str are Python's, the others NumPy arrays; names in a shape are sizes that depend on the "
    "contract. `codes`, `gates` and `kinds` spell out numbers and orders. Keys that depend on the contract are "
    "patterns. Keys that are not required depend on backend, clock, host_timing or evaluator_info, and are the same at "
    "every step, but for annotations and confidence. Durations of the host (`host`) are absent in lockstep without "
    "host_timing; the rows of a run always have them."
)


@functools.cache
def info_schema() -> Schema:
    """Return the JSON Schema of the info of `step` (``$defs/step``) and of `reset`."""
    from embodied_env.core.info_types import ResetInfo, StepInfo  # noqa: PLC0415 - a plain step needs no schema

    definitions: Schema = {"step": None, "reset": None}
    definitions["step"] = _schema_of(StepInfo, definitions)
    definitions["reset"] = _schema_of(ResetInfo, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:embodied-env:info:1",
        "title": "info of embodied_env",
        "description": _INTRODUCTION,
        "anyOf": [{"$ref": "#/$defs/step"}, {"$ref": "#/$defs/reset"}],
        "$defs": definitions,
    }


@functools.cache
def info_definition(call: str) -> Schema:
    """Return the schema of the info of `call`, "step" or "reset", without references."""
    definitions = info_schema()["$defs"]
    schema: Schema = _resolve(definitions[call], definitions)
    return schema


def _resolve(schema: Any, definitions: Schema) -> Any:  # noqa: ANN401 - JSON types
    if isinstance(schema, list):
        return [_resolve(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    own = {key: _resolve(item, definitions) for key, item in schema.items() if key != "$ref"}
    if "$ref" not in schema:
        return own
    return {**_resolve(definitions[schema["$ref"].removeprefix("#/$defs/")], definitions), **own}


@functools.cache
def host_keys(*, optional: bool = True) -> frozenset[str]:
    """Return the keys with durations of the host, without `optional` only those of every world."""
    steps_and_resets = (info_definition("step"), info_definition("reset"))
    return frozenset(key for schema in steps_and_resets for key in _host_keys(schema, optional=optional))


def _host_keys(schema: Schema, *, optional: bool) -> Iterator[str]:
    for key, value in schema.get("properties", {}).items():
        if value.get("host") and (optional or not value.get("optional")):
            yield key
        yield from _host_keys(value, optional=optional)
    for value in schema.get("patternProperties", {}).values():
        yield from _host_keys(value, optional=optional)


def without_host_timing(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the info of a step or a reset in lockstep without the durations of the host."""
    kept: dict[str, Any] = _simulated(info)
    if isinstance(latency := kept.get("latency"), Mapping):
        kept["latency"] = _simulated({**latency, "quality": _simulated(latency.get("quality"))})
    if isinstance(sensors := kept.get("sensors"), Mapping):
        kept["sensors"] = {name: _simulated(reading) for name, reading in sensors.items()}
    if "reset" in kept:
        kept["reset"] = _simulated(kept["reset"])
    return kept


def _simulated(values: Any) -> Any:  # noqa: ANN401 - a wrapper may have replaced it
    keys = host_keys()
    return {key: value for key, value in values.items() if key not in keys} if isinstance(values, Mapping) else values


def _schema_of(hint: Any, definitions: Schema) -> Schema:  # noqa: ANN401 - a type
    """Return the schema of a type, and add its shared parts to `definitions`."""
    plain, *metadata = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)
    if typing.get_origin(plain) is typing.NotRequired:
        (plain,) = typing.get_args(plain)
        return _schema_of(Annotated[plain, *metadata] if metadata else plain, definitions)
    if not metadata:
        return _plain_schema_of(plain, definitions)
    for place, shared in enumerate(metadata):
        if isinstance(shared, Shared):
            if shared.name not in definitions:
                definitions[shared.name] = _with_keywords(plain, metadata[:place], definitions)
            own = [text for text in metadata[place + 1 :] if isinstance(text, str)]
            return {"$ref": f"#/$defs/{shared.name}"} | ({"description": own[-1]} if own else {})
    return _with_keywords(plain, metadata, definitions)


def _with_keywords(plain: Any, metadata: list[Any], definitions: Schema) -> Schema:  # noqa: ANN401 - a type
    texts = [text for text in metadata if isinstance(text, str)]
    keywords = {key: value for each in metadata if isinstance(each, Keywords) for key, value in each.values.items()}
    schema = {} if "anyOf" in keywords else _plain_schema_of(plain, definitions)
    for each in metadata:
        if isinstance(each, From) and typing.get_origin(each.type) is list:
            schema["items"] = _item_schema_of(typing.get_args(each.type)[0], definitions)
    return ({"description": texts[-1]} if texts else {}) | schema | keywords


def _item_schema_of(item: Any, definitions: Schema) -> Schema:  # noqa: ANN401 - a type
    if item in (float, float | None):  # the array has the dtype
        return {"type": "number" if item is float else ["number", "null"]}
    return _schema_of(item, definitions)


def _plain_schema_of(plain: Any, definitions: Schema) -> Schema:  # noqa: ANN401 - a type
    if typing.is_typeddict(plain):
        hints = typing.get_type_hints(plain, include_extras=True)
        return {
            "description": plain.__doc__,
            "type": "object",
            "required": [key for key in hints if key in plain.__required_keys__],
            "properties": {key: _schema_of(hint, definitions) for key, hint in hints.items()},
            "additionalProperties": False,
        }
    origin, arguments = typing.get_origin(plain), typing.get_args(plain)
    if origin is dict:
        key, item = arguments
        pattern = key.__metadata__[0].values["pattern"] if typing.get_origin(key) is Annotated else "^"
        items = {pattern: _schema_of(item, definitions)}
        return {"type": "object", "patternProperties": items, "additionalProperties": False}
    if origin is typing.Union:
        return {"anyOf": [_schema_of(option, definitions) for option in arguments]}
    if origin in (np.ndarray, NDArray):  # NDArray is an origin of its own from NumPy 2.5
        scalar = arguments[0] if origin is NDArray else typing.get_args(arguments[1])[0]
        return {"type": "array", "dtype": np.dtype(scalar).name}
    python, values = plain, Schema()
    if origin is typing.Literal:
        python = type(arguments[0])
        values = {"const": arguments[0]} if len(arguments) == 1 else {"enum": list(arguments)}
    return {"type": _JSON_TYPES[python], **values, "dtype": python.__name__, "shape": []}
