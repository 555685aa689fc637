"""Tables of ``docs/reference/info.md``, which the site shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from embodied_env.core.info_schema import info_schema


def write_tables() -> str:
    """Return the tables of ``docs/reference/info.md``."""
    definitions = info_schema()["$defs"]
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


def _rows(schema: dict[str, Any], definitions: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[str]:
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
