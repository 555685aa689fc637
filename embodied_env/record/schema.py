"""The JSON Schemas of rows: they describe the channels of a log, and the audit checks rows by them.

What ``info`` is stands in ``info.schema.json``; here it is joined to the fields around it.
"""

from __future__ import annotations

import functools
import json
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from importlib import resources
from typing import Any

from embodied_env.contract import EffectiveLimits
from embodied_env.core.codes import CODES, Quality, Severity
from embodied_env.core.latency.ledger import StepEvent
from embodied_env.record.audit.violation import Violation, make_violation, short_repr
from embodied_env.record.rows import RESET, TRANSITION

Schema = dict[str, Any]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_NAME = "^[a-z][a-z0-9_]*$"
_ANYTHING: Schema = {}
_BOOLEAN: Schema = {"type": "boolean"}
_INTEGER: Schema = {"type": "integer"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_NUMBERS: Schema = {"type": "array", "items": {"type": ["number", "null"]}}
_STAMP: Schema = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
_SEVERITY: Schema = {"type": "string", "enum": [severity.name for severity in Severity]}
_QUALITY: Schema = {"type": "string", "enum": [quality.name for quality in Quality]}
_OPEN: Schema = {"type": "object", "properties": {}}
_WHOLE: Schema = {"minimum": -(2**63), "maximum": 2**63 - 1}
_LONGEST_S = 2**63 / 1e9  # a duration that fits 64-bit nanoseconds

RUN = "embodied_env/run/1"


@functools.cache
def info_schema() -> Schema:
    """Return ``info.schema.json``: the JSON form of the info of `step` (``$defs/step``) and of `reset`."""
    text = resources.files("embodied_env").joinpath("info.schema.json").read_text(encoding="utf-8")
    schema: Schema = json.loads(text)
    return schema


@functools.cache
def step_info_schema() -> Schema:
    """Return the schema of a step's info, to which outer wrappers may have added keys; it refers to nothing else."""
    return _bounded(_info_of("step"))


@functools.cache
def gates() -> tuple[str, ...]:
    """Return the gates in the order of ``info["safety"]["severity"]``."""
    return tuple(step_info_schema()["properties"]["safety"]["properties"]["severity"]["gates"])


@functools.cache
def transition_schema() -> Schema:
    """Return the schema of a transition's row."""
    properties = {
        "schema": {"type": "string", "const": TRANSITION},
        "row": {"type": "integer", "minimum": 0},
        "observation": _ANYTHING,
        "action": _ANYTHING,
        "reward": {"type": "number"},
        "terminated": {"type": "boolean"},
        "truncated": {"type": "boolean"},
        "info": step_info_schema(),
        "inner": _inner_schema(),
    }
    return {"$schema": _DIALECT, "title": TRANSITION, **_bounded(_fixed(properties))}


@functools.cache
def reset_schema() -> Schema:
    """Return the schema of a reset's row."""
    properties = {
        "schema": {"type": "string", "const": RESET},
        "row": {"type": "integer", "minimum": 0},
        "seed": {"type": ["integer", "null"]},
        "options": {"type": ["object", "null"]},
        "observation": _ANYTHING,
        "info": _info_of("reset"),
        "inner": _fixed(
            {
                "level": {"type": "string", "minLength": 1},
                "seed_applied": {"type": ["integer", "null"]},
                "sampled": {"type": "object"},
                "details": {"type": "object", "patternProperties": {_NAME: {"type": "string"}}},
                "ignored": {"type": "array", "items": {"type": "string"}},
                "routine": {"type": "string"},
                "confirmed_by": {"type": "string"},
                "options": {"type": "object"},
                "verdict": _or_null(
                    _fixed({"success": _BOOLEAN, "failure": {"type": "string"}, "out_of_bounds": {"type": "string"}})
                ),
                "observation": _ANYTHING,
                "now_ns": _STAMP,
                "sensors": _sensors_schema(),
                "clock": _clock_schema(),
                "injected": _injected_schema(),
                "evaluator": _evaluator_schema(),
            },
        ),
    }
    return {"$schema": _DIALECT, "title": RESET, **_bounded(_fixed(properties))}


@functools.cache
def manifest_schema() -> Schema:
    """Return the schema of ``manifest.json``; keys that it does not name are allowed."""
    text, texts = {"type": "string"}, {"type": "object", "additionalProperties": {"type": ["string", "null"]}}
    text_or_null = _or_null(text)
    contract = {**dict.fromkeys(("name", "source", "fingerprint", "text"), text), "version": _INTEGER}
    layer = {"class": text, "kwargs": {"type": ["object", "null"]}}
    account = {"complete": {"type": "boolean"}, **dict.fromkeys(("lost_rows", "lost_messages"), _COUNT)}
    properties = {
        "schema": {"type": "string", "const": RUN},
        **dict.fromkeys(("run_id", "problem", "started_utc", "backend", "backend_fingerprint", "clock"), text),
        "clean": {"type": "boolean"},
        **dict.fromkeys(("ended_utc", "pacing", "rows_sha256"), text_or_null),
        "contract": _open(contract),
        "capabilities": {
            "type": ["object", "null"],
            "properties": {
                "actuates": {"type": "boolean"},
                "reset_levels": {"type": "array", "items": text},
                "injected": text,
            },
        },
        **dict.fromkeys(("delays", "scheduling"), _or_null({"type": "object"})),
        "policy": _ANYTHING,
        "seeds": {"type": "array"},
        "distributions": {"type": "object"},
        "wrappers": {"type": "array", "minItems": 1, "items": _open(layer)},
        **dict.fromkeys(("versions", "ros"), texts),
        "host": {"type": "object"},
        "processes": {"type": "array", "items": {"type": "object"}},
        "record": _or_null(_open(account)),
        "messages": {"type": "boolean"},
    }
    return {"$schema": _DIALECT, "title": RUN, **_open(properties)}


def transition_channel_schema() -> Schema:
    """Return what the channel of transitions says of its rows: those fields alone that Foxglove can read a type of.

    It takes no field that may be null, or be of more than one type, and wants `properties` of every object. A field
    that is not named is shown, and can be plotted, all the same. The whole schema is `transition_schema`.
    """
    types = {"schema": "string", "row": "integer", "reward": "number", "terminated": "boolean", "truncated": "boolean"}
    return {
        "$schema": _DIALECT,
        "title": TRANSITION,
        "type": "object",
        "properties": {**{field: {"type": kind} for field, kind in types.items()}, "info": _OPEN},
        "required": [*types, "observation", "action", "info", "inner"],
    }


def reset_channel_schema() -> Schema:
    """Return what the channel of resets says of its rows; see `transition_channel_schema`."""
    return {
        "$schema": _DIALECT,
        "title": RESET,
        "type": "object",
        "properties": {"schema": {"type": "string"}, "row": {"type": "integer"}, "info": _OPEN},
        "required": ["schema", "row", "seed", "options", "observation", "info", "inner"],
    }


def _inner_schema() -> Schema:
    reason = {**info_schema()["$defs"]["end_reason"], "minLength": 1}
    finding = _finding_schema()
    stamps = {slot.name.lower(): _STAMP for slot in StepEvent if slot is not StepEvent.RETURNED}
    return _fixed(
        {
            "observation": _ANYTHING,
            "action": _ANYTHING,
            "reward": {"type": "number"},
            "terminated": {"type": "boolean"},
            "truncated": {"type": "boolean"},
            "end_reasons": {"type": "array", "items": reason},
            "findings": {"type": "array", "items": finding},
            "stamps_ns": _fixed(stamps, optional=("marked",)),
            "report": _fixed(_report_schema()),
            "circumstances": _circumstances_schema(),
            "now_ns": _STAMP,
            "sensors": _sensors_schema(),
            "clock": _clock_schema(),
            "actuation": _or_null(_fixed({"seq": _COUNT, "acted_ns": _STAMP, "method": {"type": "string"}})),
            "injected": _injected_schema(),
            "evaluator": _evaluator_schema(),
        },
    )


def _finding_schema() -> Schema:
    return _fixed(
        {
            "gate": {"type": "string", "enum": list(gates())},
            "severity": _SEVERITY,
            "code": {"type": "string", "enum": list(CODES)},
            "joints": {"type": "array", "items": {"type": "string"}},
            **{vector: _or_null(_NUMBERS) for vector in ("before", "after", "limit", "margin")},
            "detail": {"type": "string"},
        }
    )


def _report_schema() -> Schema:
    """Return the properties of a report."""
    return {
        **dict.fromkeys(("requested", "applied", "applied_si", "velocity_si"), _NUMBERS),
        "dt_s": {"type": "number"},
        "disposition": _SEVERITY,
        "guaranteed": step_info_schema()["properties"]["safety"]["properties"]["guaranteed"],
    }


def _circumstances_schema() -> Schema:
    finding = _finding_schema()
    findings = {"type": "array", "items": finding}
    reference = {
        **dict.fromkeys(("positions", "velocities"), _NUMBERS),
        "seq": _COUNT,
        "epoch": {"type": "integer"},
        **dict.fromkeys(("slack", "accelerations", "before_gap"), _or_null(_NUMBERS)),
    }
    limits = {
        "joints": {"type": "array", "items": {"type": "string"}},
        **{of.name: _NUMBERS for of in fields(EffectiveLimits) if of.name != "joints"},
    }
    return _fixed(
        {
            "action_age_s": {"type": "number"},
            "latency_s": {"type": "number"},
            "estops": {"type": "object", "additionalProperties": {"type": "string"}},
            "latched": _or_null(finding),
            "latched_after": _or_null(finding),
            "watchdog_trips": _COUNT,
            "dt_s": {"type": ["number", "null"]},
            "reference": _or_null(_fixed(reference)),
            "answer": _or_null(_fixed({**_report_schema(), "findings": findings, "intervened": {"type": "boolean"}})),
            "limits": _fixed(limits),
        },
        optional=("limits",),
    )


def _sensors_schema() -> Schema:
    sensor = {
        "stamp_ns": _STAMP,
        "header_ns": _or_null(_STAMP),
        "arrival_ns": _STAMP,
        **dict.fromkeys(("arrival_system_ns", "source_ns", "received_ns"), _or_null(_STAMP)),
        "quality": _QUALITY,
        "reason": {"type": "string"},
        "stamp_quality": _QUALITY,
        "transport_quality": _QUALITY,
        "transport_excess_s": {"type": ["number", "null"]},
        "suspect_clock": {"type": "string"},
        **dict.fromkeys(("seq", "lost", "duplicated", "reordered"), _INTEGER),
        "confidence": {"type": ["number", "null"]},
    }
    return {
        "type": "object",
        "patternProperties": {_NAME: _fixed(sensor, optional=("confidence",))},
        "additionalProperties": False,
    }


def _clock_schema() -> Schema:
    clock = {
        "mode": {"type": "string", "enum": ["wall", "sim"]},
        "epoch": _COUNT,
        "jumps": _COUNT,
        "jump": {"type": "string", "enum": ["", "stepped", "suspended", "rewound", "skipped"]},
        "offset_ns": _STAMP,
        "offset_error_ns": _STAMP,
        "rtf": {"type": "number"},
        "rmw": {"type": "string"},
    }
    return _or_null(_fixed(clock))


def _injected_schema() -> Schema:
    early = {"type": "array", "items": {"type": "string"}}
    return _or_null(_fixed({"inference_ns": _COUNT, "actuation_ns": _COUNT, "early": early}))


def _evaluator_schema() -> Schema:
    """Return sensor -> field -> numbers, or the reference to them."""
    reference = {
        "sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
        "dtype": {"type": "string", "minLength": 1},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
    }
    numbers = {"type": "array", "items": {"type": ["number", "array"]}}
    fields: Schema = {"anyOf": [numbers, _fixed(reference)]}
    for _ in ("field", "sensor"):
        fields = {"type": "object", "patternProperties": {_NAME: fields}, "additionalProperties": False}
    return fields


def _or_null(schema: Schema) -> Schema:
    return {**schema, "type": [schema["type"], "null"]}


def _open(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _fixed(properties: Schema, *, optional: tuple[str, ...] = ()) -> Schema:
    required = [key for key in properties if key not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _bounded(schema: Schema, name: str = "") -> Schema:
    """Return `schema` with bounds: integers but seeds, and durations (`name` in ``_s``, ``_ms``) in ns, fit 64 bits."""
    made = dict(schema)
    for keyword in ("properties", "patternProperties"):
        if keyword in schema:
            is_named = keyword == "properties"
            made[keyword] = {key: _bounded(each, key if is_named else name) for key, each in schema[keyword].items()}
    for keyword in ("items", "additionalProperties"):
        if isinstance(schema.get(keyword), dict):
            made[keyword] = _bounded(schema[keyword], name)
    if "anyOf" in schema:
        made["anyOf"] = [_bounded(option, name) for option in schema["anyOf"]]
    kinds = schema.get("type", ())
    if "integer" in kinds and not name.startswith("seed"):
        made = {**_WHOLE, **made}
    elif "number" in kinds and name.endswith(("_s", "_ms")):
        longest = _LONGEST_S * (1e3 if name.endswith("_ms") else 1.0)
        made = {"minimum": -longest, "maximum": longest, **made}
    return made


def _info_of(call: str) -> Schema:
    definitions = info_schema()["$defs"]
    schema: Schema = _joined(definitions[call], definitions)
    properties = {**schema["properties"], "evaluator": _evaluator_schema()}
    return {**schema, "properties": properties, "additionalProperties": True}


def _joined(schema: Any, definitions: Schema) -> Any:  # noqa: ANN401 - JSON types
    """Return `schema` with each reference replaced by what it refers to."""
    if isinstance(schema, list):
        return [_joined(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    own = {key: _joined(item, definitions) for key, item in schema.items() if key != "$ref"}
    if "$ref" not in schema:
        return own
    return {**_joined(definitions[schema["$ref"].removeprefix("#/$defs/")], definitions), **own}


Schema_ = dict[str, Any]
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


def schema_violations(value: Any, schema: Schema_, *, path: str = "") -> list[Violation]:  # noqa: ANN401 - JSON types
    """Return what of the plain `value` is not as `schema` says, each with the path and what is allowed."""
    return list(_misfits(value, schema, path))


def _misfits(value: Any, schema: Schema_, path: str) -> Iterator[Violation]:  # noqa: ANN401
    if "anyOf" in schema:
        yield from min((schema_violations(value, option, path=path) for option in schema["anyOf"]), key=len)
    elif allowed := _problem(value, schema):
        text = f"{path or 'the value'} is {short_repr(value)}; allowed: {allowed}"
        yield make_violation("row.shape", path, value, text)
    elif isinstance(value, dict):
        yield from _misfits_of_object(value, schema, path)
    elif isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield from _misfits(item, schema["items"], f"{path}[{index}]")


def _misfits_of_object(value: Schema_, schema: Schema_, path: str) -> Iterator[Violation]:
    prefix = f"{path}." if path else ""
    properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for key in schema.get("required", ()):
        if key not in value:
            yield make_violation("row.shape", f"{prefix}{key}", None, f"{prefix}{key} is missing")
    for key, item in value.items():
        if key in properties:
            yield from _misfits(item, properties[key], prefix + key)
            continue
        options = [named for pattern, named in patterns.items() if re.search(pattern, key)]
        if not options and not schema.get("additionalProperties", True):
            allowed = ", ".join(properties) or f"names like {list(patterns)}"
            yield make_violation("row.shape", f"{prefix}{key}", item, f"{prefix}{key} is no field; allowed: {allowed}")
        for named in options:
            yield from _misfits(item, named, prefix + key)


def _problem(value: Any, schema: Schema_) -> str:  # noqa: ANN401
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
