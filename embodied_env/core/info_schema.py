"""``info.schema.json``: the JSON Schema of ``info``, generated from `embodied_env.envs.info_types`."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

Schema = dict[str, Any]


@functools.cache
def info_schema() -> Schema:
    """Return ``info.schema.json``: the JSON form of the info of `step` (``$defs/step``) and of `reset`."""
    text = resources.files("embodied_env").joinpath("info.schema.json").read_text(encoding="utf-8")
    schema: Schema = json.loads(text)
    return schema


@functools.cache
def info_definition(call: str) -> Schema:
    """Return the schema of the info of `call`, "step" or "reset", without references."""
    definitions = info_schema()["$defs"]
    schema: Schema = _resolve(definitions[call], definitions)
    return schema


def _resolve(schema: Any, definitions: Schema) -> Any:  # noqa: ANN401 - JSON types
    """Replace each reference in `schema` by its definition."""
    if isinstance(schema, list):
        return [_resolve(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    own = {key: _resolve(item, definitions) for key, item in schema.items() if key != "$ref"}
    if "$ref" not in schema:
        return own
    return {**_resolve(definitions[schema["$ref"].removeprefix("#/$defs/")], definitions), **own}


@functools.cache
def host_keys(*, transport: bool = True) -> frozenset[str]:
    """Return the keys with durations of the host; without `transport`, those of every world."""
    steps_and_resets = (info_definition("step"), info_definition("reset"))
    return frozenset(key for schema in steps_and_resets for key in _host_keys(schema, transport=transport))


def _host_keys(schema: Schema, *, transport: bool) -> Iterator[str]:
    for key, value in schema.get("properties", {}).items():
        if value.get("host") and (transport or not value.get("transport")):
            yield key
        yield from _host_keys(value, transport=transport)
    for value in schema.get("patternProperties", {}).values():
        yield from _host_keys(value, transport=transport)


def without_host_timing(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the info of a step or a reset in a lockstep world without the durations of the host."""
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
