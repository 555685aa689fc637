"""``info.schema.json``: the JSON Schema of ``info``, generated from `embodied_env.envs.info_types`."""

from __future__ import annotations

import functools
import json
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
