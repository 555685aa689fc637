"""JSON Schemas of rows and manifests, and validation of untrusted values against them.

The schema of ``info`` is ``info.schema.json``; here it becomes a part of the schemas of rows.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any

from embodied_env.core.codes import CODES, Quality, Severity
from embodied_env.core.info_schema import Schema, host_keys, info_definition, info_schema
from embodied_env.record.rows import RESET, TRANSITION
from embodied_env.record.violation import Violation, make_violation, short_repr
from embodied_env.timing.ledger import StepEvent

RUN = "embodied_env/run/1"

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_NAME = "^[a-z][a-z0-9_]*$"
_INT64 = {"minimum": -(2**63), "maximum": 2**63 - 1}
_MAX_DURATION_S = 2**63 / 1e9  # fits 64-bit nanoseconds


_ANYTHING: Schema = {}
_OBJECT: Schema = {"type": "object"}
_BOOLEAN: Schema = {"type": "boolean"}
_NUMBER: Schema = {"type": "number"}
_INTEGER: Schema = {"type": "integer"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_STAMP: Schema = {"type": "integer", **_INT64}
_TEXT: Schema = {"type": "string"}
_TEXTS: Schema = {"type": "array", "items": _TEXT}
_NUMBERS: Schema = {"type": "array", "items": {"type": ["number", "null"]}}
_SHA256: Schema = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_SEVERITY: Schema = {"type": "string", "enum": [severity.name for severity in Severity]}
_QUALITY: Schema = {"type": "string", "enum": [quality.name for quality in Quality]}


def _or_null(schema: Schema) -> Schema:
    return {**schema, "type": [schema["type"], "null"]}


def _open(properties: Schema) -> Schema:
    """Return the schema of an object with at least these properties."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def _fixed(properties: Schema, *, optional: tuple[str, ...] = ()) -> Schema:
    """Return the schema of an object with exactly these properties."""
    required = [key for key in properties if key not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


@functools.cache
def step_info_schema(*, host_timing: bool = False) -> Schema:
    """Return the schema of a step's info, without references; outer wrappers may have added keys.

    `host_timing`: it must have the durations of the host, as every row has.
    """
    schema = _bounded(_info_of("step"))
    return _with_host_timing(schema) if host_timing else schema


@functools.cache
def gates() -> tuple[str, ...]:
    """Return the gates in the order of ``info["safety"]["severity"]``."""
    return tuple(step_info_schema()["properties"]["safety"]["properties"]["severity"]["gates"])


@functools.cache
def transition_schema() -> Schema:
    """Return the schema of the row of a transition."""
    reason = {**info_schema()["$defs"]["end_reason"], "minLength": 1}
    stamps = {slot.name.lower(): _STAMP for slot in StepEvent if slot is not StepEvent.RETURNED}
    outer = {
        "observation": _ANYTHING,
        "action": _ANYTHING,
        "reward": _NUMBER,
        "terminated": _BOOLEAN,
        "truncated": _BOOLEAN,
    }
    inner = {
        **outer,
        "end_reasons": {"type": "array", "items": reason},
        "findings": {"type": "array", "items": _finding_schema()},
        "stamps_ns": _fixed(stamps, optional=("marked",)),
        "report": _fixed(_report_properties()),
        "external_inputs": _external_inputs_schema(),
        **_snapshot_properties(actuation=_or_null(_fixed({"seq": _COUNT, "acted_ns": _STAMP, "method": _TEXT}))),
    }
    properties = {
        "schema": {"type": "string", "const": TRANSITION},
        "row": _COUNT,
        **outer,
        "info": step_info_schema(host_timing=True),
        "inner": _fixed(inner),
    }
    return {"$schema": _DIALECT, "title": TRANSITION, **_bounded(_fixed(properties))}


@functools.cache
def reset_schema() -> Schema:
    """Return the schema of the row of a reset."""
    verdict = {"success": _BOOLEAN, "failure": _TEXT, "out_of_bounds": _TEXT}
    inner = {
        "level": {"type": "string", "minLength": 1},
        "seed_applied": _or_null(_INTEGER),
        "sampled": _OBJECT,
        "details": {"type": "object", "patternProperties": {_NAME: _TEXT}},
        "ignored": _TEXTS,
        "routine": _TEXT,
        "confirmed_by": _TEXT,
        "options": _OBJECT,
        "verdict": _or_null(_fixed(verdict)),
        "observation": _ANYTHING,
        **_snapshot_properties(),
    }
    properties = {
        "schema": {"type": "string", "const": RESET},
        "row": _COUNT,
        "seed": _or_null(_INTEGER),
        "options": _or_null(_OBJECT),
        "observation": _ANYTHING,
        "info": _with_host_timing(_info_of("reset")),
        "inner": _fixed(inner),
    }
    return {"$schema": _DIALECT, "title": RESET, **_bounded(_fixed(properties))}


@functools.cache
def manifest_schema() -> Schema:
    """Return the schema of ``manifest.json``; other keys are allowed."""
    contract = {**dict.fromkeys(("name", "source", "fingerprint", "text"), _TEXT), "version": _INTEGER}
    losses = {"complete": _BOOLEAN, **dict.fromkeys(("lost_rows", "lost_messages"), _COUNT)}
    texts = {"type": "object", "additionalProperties": _or_null(_TEXT)}
    flags = dict.fromkeys(("actuates", "emulated", "simulated", "chosen_confirmed"), _BOOLEAN)
    names = dict.fromkeys(("reset_levels", "ignored_inputs", "variants"), _TEXTS)
    capabilities = {**flags, **names, "injected": _TEXT}
    properties = {
        "schema": {"type": "string", "const": RUN},
        **dict.fromkeys(("run_id", "problem", "started_utc", "backend", "backend_fingerprint", "clock"), _TEXT),
        "clean": _BOOLEAN,
        **dict.fromkeys(("ended_utc", "pacing", "rows_sha256"), _or_null(_TEXT)),
        "contract": _open(contract),
        "capabilities": {"type": ["object", "null"], "properties": capabilities},
        **dict.fromkeys(("delays", "scheduling"), _or_null(_OBJECT)),
        "policy": _ANYTHING,
        "seeds": {"type": "array"},
        "distributions": _OBJECT,
        "wrappers": {"type": "array", "minItems": 1, "items": _open({"class": _TEXT, "kwargs": _or_null(_OBJECT)})},
        **dict.fromkeys(("versions", "ros"), texts),
        "host": _OBJECT,
        "processes": {"type": "array", "items": _OBJECT},
        "record": _or_null(_open(losses)),
        "messages": _BOOLEAN,
    }
    schema = _open(properties)
    schema["properties"]["repaired"] = {
        "type": "array",
        "minItems": 1,
        "items": _open({"utc": _TEXT, "problem": _TEXT}),
    }
    return {"$schema": _DIALECT, "title": RUN, **schema}


def channel_schema(name: str) -> Schema:
    """Return the schema of the channel of the rows of schema `name`: only the fields whose type Foxglove can read.

    Foxglove accepts no field that may be null or of several types, and requires `properties` of every object. It shows
    and plots fields that are not named. The complete schemas are `transition_schema` and `reset_schema`.
    """
    types = {"schema": "string", "row": "integer"}
    if name == TRANSITION:
        types |= {"reward": "number", "terminated": "boolean", "truncated": "boolean"}
        required = [*types, "observation", "action", "info", "inner"]
    else:
        required = [*types, "seed", "options", "observation", "info", "inner"]
    info = {"type": "object", "properties": {}}
    properties = {**{field: {"type": kind} for field, kind in types.items()}, "info": info}
    return {"$schema": _DIALECT, "title": name, "type": "object", "properties": properties, "required": required}


def _finding_schema() -> Schema:
    return _fixed(
        {
            "gate": {"type": "string", "enum": list(gates())},
            "severity": _SEVERITY,
            "code": {"type": "string", "enum": list(CODES)},
            "joints": _TEXTS,
            **{vector: _or_null(_NUMBERS) for vector in ("before", "after", "limit", "margin")},
            "detail": _TEXT,
        }
    )


def _report_properties() -> Schema:
    return {
        **dict.fromkeys(("requested", "applied", "applied_si", "velocity_si"), _NUMBERS),
        "dt_s": _NUMBER,
        "disposition": _SEVERITY,
        "guaranteed": step_info_schema()["properties"]["safety"]["properties"]["guaranteed"],
    }


def _external_inputs_schema() -> Schema:
    finding = _finding_schema()
    findings = {"type": "array", "items": finding}
    reference = _or_null(
        _fixed(
            {
                **dict.fromkeys(("positions", "velocities"), _NUMBERS),
                "seq": _COUNT,
                "epoch": _INTEGER,
                **dict.fromkeys(("slack", "accelerations", "before_gap"), _or_null(_NUMBERS)),
            }
        )
    )
    delay = {"passed_s": _NUMBER, "reference": reference, "dt_s": _NUMBER, "is_guaranteed": _BOOLEAN}
    bounds = ("position_low", "position_high", "velocity", "acceleration", "deceleration", "jerk", "velocity_low")
    limits = _fixed({"joints": _TEXTS, **dict.fromkeys(bounds, _NUMBERS)}, optional=("velocity_low",))
    return _fixed(
        {
            "action_age_s": _NUMBER,
            "latency_s": _NUMBER,
            "estops": {"type": "object", "additionalProperties": _TEXT},
            "latched": _or_null(finding),
            "latched_after": _or_null(finding),
            "watchdog_trips": _COUNT,
            "dt_s": _or_null(_NUMBER),
            "reference": reference,
            "answer": _or_null(_fixed({**_report_properties(), "findings": findings, "intervened": _BOOLEAN})),
            "annotations": _named(_OBJECT),
            "limits": limits,
            "required": _TEXTS,
            "delay": _fixed(delay),
        },
        optional=("annotations", "limits", "required", "delay"),
    )


def _snapshot_properties(**of_step: Schema) -> Schema:
    """Return the properties of the snapshot of a reset, or of a step with the additional `of_step`."""
    sensor = {
        "stamp_ns": _STAMP,
        "header_ns": _or_null(_STAMP),
        "arrival_ns": _STAMP,
        **dict.fromkeys(("arrival_system_ns", "source_ns", "received_ns"), _or_null(_STAMP)),
        "quality": _QUALITY,
        "reason": _TEXT,
        "stamp_quality": _QUALITY,
        "transport_quality": _QUALITY,
        "transport_excess_s": _or_null(_NUMBER),
        "suspect_clock": _TEXT,
        **dict.fromkeys(("seq", "lost", "duplicated", "reordered"), _INTEGER),
        "confidence": _or_null(_NUMBER),
        "raw_sha256": _named(_SHA256),
    }
    clock = {
        "mode": {"type": "string", "enum": ["wall", "sim"]},
        "epoch": _COUNT,
        "jumps": _COUNT,
        "jump": {"type": "string", "enum": ["", "stepped", "suspended", "rewound", "skipped"]},
        "offset_ns": _STAMP,
        "offset_error_ns": _STAMP,
        "rtf": _NUMBER,
        "rmw": _TEXT,
    }
    return {
        "now_ns": _STAMP,
        "sensors": _named(_fixed(sensor, optional=("confidence", "raw_sha256"))),
        "clock": _or_null(_fixed(clock)),
        **of_step,
        "injected": _or_null(_fixed({"inference_ns": _COUNT, "actuation_ns": _COUNT, "early": _TEXTS})),
        "evaluator": _evaluator_schema(),
    }


def _evaluator_schema() -> Schema:
    """Return the schema of sensor -> field -> numbers, or the reference to them."""
    reference = {
        "sha256": _SHA256,
        "dtype": {"type": "string", "minLength": 1},
        "shape": {"type": "array", "items": _COUNT},
    }
    numbers = {"type": "array", "items": {"type": ["number", "array"]}}
    return _named(_named({"anyOf": [numbers, _fixed(reference)]}))


def _named(schema: Schema) -> Schema:
    return {"type": "object", "patternProperties": {_NAME: schema}, "additionalProperties": False}


def _bounded(schema: Schema, name: str = "") -> Schema:
    """Return `schema` with bounds of 64 bits for integers except seeds, and for durations (``_s``, ``_ms``) in ns."""
    bounded = dict(schema)
    for keyword in ("properties", "patternProperties"):
        if keyword in schema:
            is_named = keyword == "properties"
            bounded[keyword] = {key: _bounded(each, key if is_named else name) for key, each in schema[keyword].items()}
    for keyword in ("items", "additionalProperties"):
        if isinstance(schema.get(keyword), dict):
            bounded[keyword] = _bounded(schema[keyword], name)
    if "anyOf" in schema:
        bounded["anyOf"] = [_bounded(option, name) for option in schema["anyOf"]]
    kinds = schema.get("type", ())
    if "integer" in kinds and not name.startswith("seed"):
        return {**_INT64, **bounded}
    if "number" in kinds and name.endswith(("_s", "_ms")):
        most = _MAX_DURATION_S * (1e3 if name.endswith("_ms") else 1.0)
        return {"minimum": -most, "maximum": most, **bounded}
    return bounded


def _info_of(call: str) -> Schema:
    schema = info_definition(call)
    properties = {**schema["properties"], "evaluator": _evaluator_schema()}
    return {**schema, "properties": properties, "additionalProperties": True}


def _with_host_timing(schema: Schema) -> Schema:
    """Require the durations of the host."""
    children: Schema = {
        group: {key: _with_host_timing(child) for key, child in schema[group].items()}
        for group in ("properties", "patternProperties")
        if group in schema
    }
    known = children.get("properties", {})
    required = [key for key in known if key in host_keys(transport=False) or key in schema["required"]]
    return {**schema, **children, **({"required": required} if known else {})}


_TYPE_NAMES = {
    dict: "object",
    list: "array",
    str: "string",
    bool: "boolean",
    type(None): "null",
    int: "integer",
    float: "number",
}
_KEYWORDS: dict[str, Callable[[Any, Any], bool]] = {
    "enum": lambda value, allowed: value in allowed,
    "const": operator.eq,
    "minimum": operator.ge,
    "maximum": operator.le,
    "minLength": lambda value, least: len(value) >= least,
    "pattern": lambda value, pattern: re.search(pattern, value) is not None,
    "minItems": lambda value, least: len(value) >= least,
    "maxItems": lambda value, most: len(value) <= most,
}
"""Keyword -> whether a value, of a type that the schema allows, is valid."""


def schema_violations(value: Any, schema: Schema, *, path: str = "") -> list[Violation]:  # noqa: ANN401 - JSON types
    """Return each violation of `schema` in `value`, with its path.

    Unlike `jsonschema` and `fastjsonschema` it refuses 1.0 as an integer: stamps are integer nanoseconds.
    """
    return list(_violations(value, schema, path))


def _violations(value: Any, schema: Schema, path: str) -> Iterator[Violation]:  # noqa: ANN401
    if "anyOf" in schema:
        yield from min((schema_violations(value, option, path=path) for option in schema["anyOf"]), key=len)
    elif expected := _mismatch(value, schema):
        text = f"{path or 'value'} is {short_repr(value)} (expected {expected})"
        yield make_violation("row.shape", path, value, text)
    elif isinstance(value, dict):
        yield from _object_violations(value, schema, f"{path}." if path else "")
    elif isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield from _violations(item, schema["items"], f"{path}[{index}]")


def _object_violations(value: dict[str, Any], schema: Schema, prefix: str) -> Iterator[Violation]:
    properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for key in schema.get("required", ()):
        if key not in value:
            yield make_violation("row.shape", f"{prefix}{key}", None, f"{prefix}{key} is missing")
    for key, item in value.items():
        if key in properties:
            yield from _violations(item, properties[key], prefix + key)
            continue
        matching = [named for pattern, named in patterns.items() if re.search(pattern, key)]
        if not matching and not schema.get("additionalProperties", True):
            expected = f"one of: {', '.join(properties)}" if properties else f"a name like {list(patterns)}"
            yield make_violation(
                "row.shape", f"{prefix}{key}", item, f"unknown field {prefix}{key} (expected {expected})"
            )
        for named in matching:
            yield from _violations(item, named, prefix + key)


def _mismatch(value: Any, schema: Schema) -> str:  # noqa: ANN401
    """Return what is expected instead of `value` itself, not of what it contains, or ""."""
    kind = _TYPE_NAMES[type(value)]
    allowed = schema.get("type", kind)
    kinds = (allowed,) if isinstance(allowed, str) else allowed
    if kind not in kinds and not (kind == "integer" and "number" in kinds):
        return " or ".join(kinds)
    if value is not None:
        for keyword, bound in schema.items():
            if (is_valid := _KEYWORDS.get(keyword)) is not None and not is_valid(value, bound):
                return f"{keyword} {bound}"
    return ""
