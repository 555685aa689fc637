"""Write `info.schema.json` from the types of `info`: `python tools/info.py [--check]`; the site shows its tables."""

from __future__ import annotations

import json
import sys
import typing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.core.info_annotations import Items, Keywords, Shared
from embodied_env.envs.info_types import ResetInfo, StepInfo

ROOT = Path(__file__).resolve().parents[1]
JSON_TYPES = {float: "number", int: "integer", bool: "boolean", str: "string"}
INTRODUCTION = (
    "The JSON form of info: NaN is null, arrays are lists. `dtype` and `shape` describe the value in memory: int, "
    "float, bool and str are Python's, the others NumPy arrays; names in a shape are sizes that depend on the "
    "contract. `codes`, `gates` and `kinds` spell out numbers and orders. Keys that depend on the contract are "
    "patterns. Keys that are not required depend on backend, clock, host_timing or evaluator_info, and are the same at "
    "every step, but for annotations and confidence. Durations of the host (`host`) are absent in lockstep without "
    "host_timing; the rows of a run always have them."
)


def write_schema() -> str:
    """Return the text of ``info.schema.json``."""
    return json.dumps(make_schema(), indent=2) + "\n"


def make_schema() -> dict[str, Any]:
    """Return the JSON Schema of the info of `step` (``$defs/step``) and of `reset`."""
    definitions: dict[str, Any] = {"step": None, "reset": None}
    definitions["step"] = _schema_of(StepInfo, definitions)
    definitions["reset"] = _schema_of(ResetInfo, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:embodied-env:info:1",
        "title": "info of embodied_env",
        "description": INTRODUCTION,
        "anyOf": [{"$ref": "#/$defs/step"}, {"$ref": "#/$defs/reset"}],
        "$defs": definitions,
    }


def _schema_of(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a type; what it shares with others is added to `definitions`."""
    plain, *metadata = typing.get_args(hint) if typing.get_origin(hint) is typing.Annotated else (hint,)
    if typing.get_origin(plain) is typing.NotRequired:
        (plain,) = typing.get_args(plain)
        return _schema_of(typing.Annotated[plain, *metadata] if metadata else plain, definitions)
    if not metadata:
        return _plain_schema_of(plain, definitions)
    for place, shared in enumerate(metadata):
        if isinstance(shared, Shared):
            if shared.name not in definitions:
                definitions[shared.name] = _with_keywords(plain, metadata[:place], definitions)
            own = [text for text in metadata[place + 1 :] if isinstance(text, str)]
            return {"$ref": f"#/$defs/{shared.name}"} | ({"description": own[-1]} if own else {})
    return _with_keywords(plain, metadata, definitions)


def _with_keywords(plain: Any, metadata: list[Any], definitions: dict[str, Any]) -> dict[str, Any]:
    texts = [text for text in metadata if isinstance(text, str)]
    keywords = {key: value for each in metadata if isinstance(each, Keywords) for key, value in each.values.items()}
    items = [{"items": _schema_of(each.type, definitions)} for each in metadata if isinstance(each, Items)]
    schema = {} if "anyOf" in keywords else _plain_schema_of(plain, definitions)
    return ({"description": texts[-1]} if texts else {}) | schema | dict(*items) | keywords


def _plain_schema_of(plain: Any, definitions: dict[str, Any]) -> dict[str, Any]:
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
        pattern = key.__metadata__[0].values["pattern"] if typing.get_origin(key) is typing.Annotated else "^"
        items = {pattern: _schema_of(item, definitions)}
        return {"type": "object", "patternProperties": items, "additionalProperties": False}
    if origin is typing.Union:
        return {"anyOf": [_schema_of(option, definitions) for option in arguments]}
    if origin in (np.ndarray, NDArray):  # NDArray is an origin of its own from NumPy 2.5
        scalar = arguments[0] if origin is NDArray else typing.get_args(arguments[1])[0]
        return {"type": "array", "dtype": np.dtype(scalar).name}
    python, values = plain, {}
    if origin is typing.Literal:
        python = type(arguments[0])
        values = {"const": arguments[0]} if len(arguments) == 1 else {"enum": list(arguments)}
    return {"type": JSON_TYPES[python], **values, "dtype": python.__name__, "shape": []}


def write_tables() -> str:
    """Return the tables of ``docs/reference/info.md``."""
    definitions = make_schema()["$defs"]
    gates = definitions["step"]["properties"]["safety"]["properties"]["severity"]["gates"]
    lines = []
    for title, name, path in (
        ("`info` of `step()`", "step", ()),
        ("`info` of `reset()`", "reset", ()),
        ("Sensors", "sensor", ("sensors", "<name>")),
    ):
        rows = list(_rows(definitions[name], definitions, path))
        lines += [f"## {title}", "", "| key | type | meaning |", "|---|---|---|", *rows, ""]
    for title, name in (("Quality codes", "quality"), ("Severities", "severity"), ("Safety codes", "code")):
        rows = [
            f"| {code} | `{key}` |" if key else f"| {code} | none |" for key, code in definitions[name]["codes"].items()
        ]
        lines += [f"## {title}", "", definitions[name]["description"], "", "| code | name |", "|---|---|", *rows, ""]
    lines += ["## Gates", "", f"The order of `safety.severity` and `safety.code`: {_listed(gates)}.", ""]
    lines += ["## End reasons", "", f"In the order of precedence: {_listed(definitions['end_reason']['kinds'])}."]
    return "\n".join(lines) + "\n"


def _rows(schema: dict[str, Any], definitions: dict[str, Any], path: tuple[str, ...] = ()) -> typing.Iterator[str]:
    """Yield a line of the table for each key of an object, and for the keys in it."""
    for key, value in schema["properties"].items():
        joined = _resolve(value, definitions)
        where = ".".join((*path, key))
        shown = f"`{where}`" if key in schema["required"] else f"*`{where}`*"
        of_host = " Duration of the host." if joined.get("host") else ""
        yield f"| {shown} | {_type_of(value, definitions)} | {joined.get('description', '')}{of_host} |"
        if "properties" in joined and where != "latency.quality":  # its keys are those of `latency`
            yield from _rows(joined, definitions, (*path, key))


def _type_of(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    """Return the type of a value in memory."""
    name = schema.get("$ref", "").removeprefix("#/$defs/")
    if name in ("sensor", "quality", "severity"):
        return {"sensor": "see Sensors", "quality": "int: quality code", "severity": "int: severity"}[name]
    joined = _resolve(schema, definitions)
    if "anyOf" in joined:
        return " or ".join(dict.fromkeys(_type_of(option, definitions) for option in joined["anyOf"]))
    for item in joined.get("patternProperties", {}).values():
        return f"dict by name: {_type_of(item, definitions)}"
    if joined["type"] == "object":
        return "dict"
    dtype = joined["dtype"] if isinstance(joined["dtype"], str) else "array"
    return f"{dtype} ({', '.join(joined['shape'])})" if joined["shape"] else dtype


def _resolve(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    return definitions[schema["$ref"].removeprefix("#/$defs/")] | schema if "$ref" in schema else schema


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


FILE = ROOT / "embodied_env" / "info.schema.json"


def main() -> int:
    """Write the file, or with ``--check`` report that it is stale."""
    is_stale = not FILE.exists() or FILE.read_text() != write_schema()
    if is_stale and "--check" in sys.argv:
        print(f"{FILE} is stale; run: python tools/info.py")
        return 1
    if is_stale:
        FILE.write_text(write_schema())
    return 0


if __name__ == "__main__":
    sys.exit(main())
