"""Rows of a transition or reset in JSON types, to be read without this package.

The six fields of a transition are the values that the outermost wrapper received and returned, ``info`` with the
durations of the host. ``inner`` is the account of the environment itself.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from embodied_env.contract import EffectiveLimits
from embodied_env.core.code_table import CODES
from embodied_env.core.code_types import Quality
from embodied_env.core.plugin_loading import import_optional
from embodied_env.core.safety_input_state import texts_of
from embodied_env.core.types import ExternalInputs, Finding, GateReport, Sample, Snapshot, Transition, field_values
from embodied_env.record.arrays import Store, StoredApart, is_stored_apart
from embodied_env.record.json_values import encodable, to_json_types
from embodied_env.record.row_types import RESET, TRANSITION, ResetRow, Row, StepAccount
from embodied_env.safety.action_parsing import NO_ACTION

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FIELDS = ("observation", "action", "reward", "terminated", "truncated", "info")
FIELDS_OF_RESET = ("seed", "options", "observation", "info")
_DOUBLE_BYTES = 8
_DRY_RUN = "dry_run"  # a key of the details of a reset
_DRY_RUN_MEANS = "no command is published, no reset service is called, no confirmation is requested"

_SAMPLE_FIELDS = (
    *("stamp_ns", "header_ns", "arrival_ns", "arrival_system_ns", "source_ns", "received_ns"),
    *("quality", "reason", "stamp_quality", "transport_quality", "transport_excess_s", "suspect_clock"),
    *("seq", "lost", "duplicated", "reordered"),
)
_sample_fields = attrgetter(*_SAMPLE_FIELDS)
_QUALITIES = {quality: quality.name for quality in Quality}  # faster than the property
_USED = (Quality.OK, Quality.OUT_OF_RANGE)
_REPORT_FIELDS = ("requested", "applied", "applied_si", "velocity_si", "dt_s", "disposition")


def is_no_action(action: Any) -> bool:  # noqa: ANN401 - JSON types
    """Return whether the action of a transition is a recorded `NoAction`."""
    return isinstance(action, dict) and isinstance(action.get("no_action"), str)


def has_missed_action(info: Mapping[str, Any]) -> bool:
    """Return whether the gate received no action from policy or action stages."""
    safety = info.get("safety")
    codes = safety.get("code") if isinstance(safety, dict) else None  # faster than Mapping, and read in each step
    return codes is not None and CODES[NO_ACTION] in list(codes)


def is_staged(account: StepAccount) -> bool:
    """Return whether ``inner.action`` is of an action stage and not the agent's."""
    return "given" in account["external_inputs"].get("annotations", {}).get("action_stages", {})


def given_action(account: StepAccount) -> Any:  # noqa: ANN401 - JSON types
    """Return the action that the environment received in a step, before its action stages."""
    if not is_staged(account):
        return account["action"]
    return account["external_inputs"]["annotations"]["action_stages"]["given"]


def held_readings(info: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the sensors of which an observation holds an earlier reading, with quality."""
    sensors, found = info.get("sensors"), []
    for name, reading in sensors.items() if isinstance(sensors, dict) else ():
        quality = reading.get("quality") if isinstance(reading, dict) else None
        if isinstance(quality, int) and quality not in _USED and quality in _QUALITIES:
            found.append((str(name), _QUALITIES[Quality(quality)]))
    return found


def stopped_joints(info: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the joints of the code that ended the episode, and those unmoved since the reset."""
    safety, code = info.get("safety"), str(info.get("end_reason", "")).partition(":")[2]
    codes = safety.get("joints") if isinstance(safety, Mapping) else None
    if not code or code not in CODES or not isinstance(safety, Mapping) or not isinstance(codes, Mapping):
        return [], []
    named = [str(joint) for joint, number in codes.items() if number == CODES[code]]
    return named, [joint for joint in str(safety.get("unmoved", "")).split(",") if joint]


def by_sensor(held: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    """Return counts of `held_readings` by sensor, then by quality."""
    found: dict[str, dict[str, int]] = {}
    for (sensor, quality), count in sorted(held.items()):
        found.setdefault(sensor, {})[quality] = count
    return found


def transition_row(
    transition: Transition | None,
    *,
    row: int,
    outer: Mapping[str, Any],
    evaluator: Collection[str],
) -> Row:
    """Return the row of one step, before `encode_row` or `to_json_row` converts its values.

    Args:
        transition: the environment's own account, or None if an outer wrapper made the step.
        row: the number of the row in its run, resets included.
        outer: the six `FIELDS`, as the outermost wrapper received and returned them, the action in JSON types.
        evaluator: the sensors visible only to the evaluator; their values go to ``inner.evaluator``.
    """
    inner = None if transition is None else step_account(transition, to_json_types(transition.action), evaluator)
    return {"schema": TRANSITION, "row": row, **{field: outer[field] for field in FIELDS}, "inner": inner}


def step_account(transition: Transition, action: Any, evaluator: Collection[str]) -> Row:  # noqa: ANN401 - JSON types
    """Return ``inner`` of a step's row, which never changes, with its action in JSON types."""
    snapshot, report = transition.snapshot, transition.report
    stamps_ns = {name: ns for name, ns in transition.stamps_ns.items() if name != "returned"}  # not returned yet
    return {
        "observation": transition.observation,
        "action": action,
        "reward": transition.reward,
        "terminated": transition.terminated,
        "truncated": transition.truncated,
        "end_reasons": list(transition.end_reasons),
        "findings": finding_rows(report.findings),
        "stamps_ns": stamps_ns,
        "report": _report(report),
        "external_inputs": _external_inputs(transition.external_inputs),
        "now_ns": snapshot.now_ns,
        "sensors": {name: _sample(sample) for name, sample in snapshot.samples.items()},
        "clock": _fields(snapshot.clock),
        "actuation": _fields(snapshot.actuation),
        "injected": _fields(snapshot.injected),
        "evaluator": {name: snapshot.samples[name].values for name in evaluator},
    }


def finding_rows(findings: Iterable[Finding]) -> list[Row | None]:
    """Return the rows of findings of the gates."""
    return [_fields(finding) for finding in findings]


def reset_row(
    snapshot: Snapshot | None,
    *,
    row: int,
    outer: Mapping[str, Any],
    evaluator: Collection[str],
    store: Store | None = None,
) -> Row:
    """Return the row of one reset in JSON types, like `transition_row`."""
    inner = None
    if snapshot is not None:
        report = snapshot.reset
        if report is None:
            raise TypeError("snapshot without a ResetReport (expected the snapshot of a reset)")
        observation = {
            f"{name}_{field}": values
            for name, sample in snapshot.samples.items()
            if name not in evaluator
            for field, values in sample.values.items()
        }
        values = field_values(report)
        if values.pop("dry_run"):
            values["details"] = {**report.details, _DRY_RUN: _DRY_RUN_MEANS}
        raw = {
            **values,
            "verdict": _fields(report.verdict),
            "observation": observation,
            "now_ns": snapshot.now_ns,
            "sensors": {name: _sample(sample) for name, sample in snapshot.samples.items()},
            "clock": _fields(snapshot.clock),
            "injected": _fields(snapshot.injected),
            "evaluator": {name: snapshot.samples[name].values for name in evaluator},
        }
        inner = to_json_row(raw, store)
    fields = {field: to_json_types(outer[field], store) for field in FIELDS_OF_RESET}
    return {"schema": RESET, "row": row, **fields, "inner": inner}


def is_dry_run(row: ResetRow) -> bool:
    """Return whether the commands after a reset do not reach the robot."""
    return _DRY_RUN in row["inner"]["details"]


def to_json_row(raw: Row, store: Store | None = None) -> Row:
    """Return the row with its values in JSON types."""
    return {field: to_json_types(value, store) for field, value in raw.items()}


def encode_row(row: Row, store: Store | None = None) -> bytes:
    """Return the row as JSON, like `to_json_row` but with UUIDs as text and any nesting."""
    orjson = _orjson()

    def to_json(value: Any) -> Any:  # noqa: ANN401 - a type that JSON does not have
        if type(value) is np.ndarray and value.itemsize <= _DOUBLE_BYTES:
            return value.tolist() if store is None or not is_stored_apart(value) else store(value)
        return to_json_types(value, store)

    options = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
    try:
        encoded: bytes = orjson.dumps(row, to_json, options)
    except (TypeError, RecursionError):  # wide integers, lone surrogates, keys that are no text, cycles
        text = json.dumps(to_json_row(row, store), allow_nan=False, separators=(",", ":"))
        encoded = encodable(text).encode()
    return encoded


@functools.cache
def _orjson() -> Any:  # noqa: ANN401 - a module without type information
    return import_optional("orjson", needed_for="recording")


def _report(report: GateReport) -> Row:
    row = {name: _plain(getattr(report, name)) for name in _REPORT_FIELDS}
    return {**row, "guaranteed": dict(report.guaranteed)}


def _external_inputs(inputs: ExternalInputs) -> Row:
    """Return the external inputs of a step for replay, without what follows from the sensors."""
    row = {
        "action_age_s": inputs.safety_context.action_age_s,
        "latency_s": inputs.safety_context.latency_s,
        "estops": texts_of(inputs.safety_context.estops),
        "latched": _fields(inputs.latched),
        "latched_after": _fields(inputs.latched_after),
        "watchdog_trips": inputs.watchdog_trips,
        "dt_s": inputs.dt_s,
        "reference": _fields(inputs.reference),
        "answer": None,
    }
    if (answer := inputs.answer) is not None:  # the relay's report
        row["answer"] = {**_report(answer), "findings": finding_rows(answer.findings), "intervened": answer.intervened}
    if inputs.safety_context.required:
        row["required"] = list(inputs.safety_context.required)
    row["instruction"] = inputs.instruction
    if inputs.annotations:
        row["annotations"] = dict(inputs.annotations)
    if (chunk := inputs.chunk) is not None:
        row["chunk"] = {"id": chunk.id, "born": chunk.born, "actions": StoredApart(chunk.actions)}
    if inputs.delay is not None:
        row["delay"] = {**field_values(inputs.delay), "reference": _fields(inputs.delay.reference)}
    return row if inputs.limits is None else {**row, "limits": _limits(inputs.limits)}


def _limits(limits: EffectiveLimits) -> Row:
    return {"joints": list(limits.joints), **{name: vector.tolist() for name, vector in limits.vectors().items()}}


def _sample(sample: Sample) -> Row:
    """Return the fields of a reading except its values."""
    row = dict(zip(_SAMPLE_FIELDS, _sample_fields(sample), strict=True))
    for name in ("quality", "stamp_quality", "transport_quality"):
        row[name] = _QUALITIES[row[name]]
    if sample.driver:
        row["driver"] = {field: _plain(values) for field, values in sample.driver.items()}
    if sample.raw_sha256:
        row["raw_sha256"] = dict(sample.raw_sha256)
    return row if sample.confidence is None else {**row, "confidence": sample.confidence}


def _fields(value: DataclassInstance | None) -> Row | None:
    """Return the fields of a dataclass in order, enums by name, arrays and tuples as lists."""
    return None if value is None else {name: _plain(field) for name, field in field_values(value).items()}


def _plain(value: Any) -> Any:  # noqa: ANN401 - of a field
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, tuple):
        return list(value)
    return value.name if isinstance(value, Enum) else value
