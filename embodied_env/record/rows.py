"""A transition as one plain row: types of JSON only, so that what is on disk needs nothing of ours to be read.

The six fields of a row are what the outermost wrapper was given and returned; ``inner`` is the account of the
environment itself. Floats keep every bit; NaN and infinities are null, since JSON has no other word for them. Images
and other large arrays stand beside the row, which refers to them (`embodied_env.record.arrays`).
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.core.field_values import field_values
from embodied_env.core.types import (
    ActuationEvidence,
    ClockStatus,
    CommandState,
    ExternalInputs,
    Finding,
    GateReport,
    InjectedDelays,
    Sample,
    Snapshot,
    Transition,
)
from embodied_env.record.arrays import Store, stands_apart

TRANSITION = "embodied_env/transition/1"
RESET = "embodied_env/reset/1"

FIELDS = ("observation", "action", "reward", "terminated", "truncated", "info")
FIELDS_OF_RESET = ("seed", "options", "observation", "info")

WIDEST = 128
"""Bits of an integer that is still written as a number."""

Row = dict[str, Any]

_DEEPEST = 32  # nesting beyond this, a list that holds itself for one, is described and not followed
_AS_IT_IS = (str, bool, type(None))
_DOUBLE = 8  # bytes
_LONGEST = 2000  # characters of a description


def transition_row(
    transition: Transition | None,
    *,
    row: int,
    outer: Mapping[str, Any],
    evaluator: Collection[str],
    store: Store | None = None,
) -> Row:
    """Return the row of one step.

    Args:
        transition: the environment's own account, or None when an outer wrapper answered in its place.
        row: the number of the row in its run, resets included.
        outer: the six `FIELDS`, as the outermost wrapper was given and returned them.
        evaluator: the sensors that only the evaluator sees; their values stand in ``inner.evaluator``.
        store: see `plain`. An action stays in its row whatever its size, as it was put down before the step.
    """
    raw = raw_transition_row(
        transition,
        row=row,
        outer={**outer, "action": Encoded(to_json_types(outer["action"]))},
        action=None if transition is None else Encoded(to_json_types(transition.action)),
        evaluator=evaluator,
    )
    return to_json_row(raw, store)


def raw_transition_row(
    transition: Transition | None,
    *,
    row: int,
    outer: Mapping[str, Any],
    action: Any,  # noqa: ANN401 - any action
    evaluator: Collection[str],
) -> Row:
    """Return the row of one step before its values are made `plain`, which `strict` does, field by field.

    `action` is the one of `transition`, as it was before anybody could change it; for the others see `transition_row`.
    """
    return {
        "schema": TRANSITION,
        "row": row,
        **{field: outer[field] for field in FIELDS},
        "inner": None if transition is None else _inner(transition, action, evaluator),
    }


def to_json_row(raw: Row, store: Store | None = None) -> Row:
    """Return a row whose values are `plain`."""
    return {field: to_json_types(value, store) for field, value in raw.items()}


def reset_row(
    snapshot: Snapshot | None,
    *,
    row: int,
    outer: Mapping[str, Any],
    evaluator: Collection[str],
    store: Store | None = None,
) -> Row:
    """Return the row of one reset.

    Args:
        snapshot: what the environment itself came up with, or None when an outer wrapper answered in its place.
        row: the number of the row in its run.
        outer: seed, options, observation and info, as the outermost wrapper was given and returned them.
        evaluator: the sensors that only the evaluator sees; their values stand in ``inner.evaluator``.
        store: see `plain`.
    """
    return {
        "schema": RESET,
        "row": row,
        **{field: to_json_types(outer[field], store) for field in FIELDS_OF_RESET},
        "inner": None if snapshot is None else _inner_of_reset(snapshot, evaluator, store),
    }


class Encoded:
    """What is plain already, and stays as it is."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:  # noqa: ANN401 - JSON types
        """Keep `value`, of types of JSON."""
        self.value = value


def encode(value: Any, depth: int, store: Store | None) -> Encoded:  # noqa: ANN401 - anything goes in
    """Return what `plain` makes of `value` where it lies `depth` containers deep."""
    return Encoded(_plain(value, depth, store))


def to_json_types(value: Any, store: Store | None = None) -> Any:  # noqa: ANN401 - anything goes in, JSON comes out
    """Return `value` in types of JSON, sharing nothing with it that could change.

    Arrays become lists, enums numbers or names, NaN and infinities None. What JSON cannot say becomes
    ``{"repr": "..."}``.

    Args:
        value: anything.
        store: keeps images and other large arrays and returns what stands for them; without it they become lists too.
    """
    return _plain(value, 0, store)


def _plain(value: Any, depth: int, store: Store | None) -> Any:  # noqa: ANN401, PLR0911 - one line per kind of value
    kind = type(value)
    if kind is float:
        return value if math.isfinite(value) else None
    if kind in _AS_IT_IS:
        return value
    if kind is dict and depth < _DEEPEST:
        return _plain_mapping(value, depth, store)
    if kind is Encoded:
        return value.value
    if isinstance(value, Enum):
        return int(value) if isinstance(value, int) else value.name
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, int):
        return int(value) if value.bit_length() <= WIDEST else _described(value)
    return _described(value) if depth > _DEEPEST else _plain_container(value, depth, store)


def _plain_container(value: Any, depth: int, store: Store | None) -> Any:  # noqa: ANN401
    if isinstance(value, Mapping):
        return _plain_mapping(value, depth, store)
    if isinstance(value, (list, tuple)):
        return [_plain(item, depth + 1, store) for item in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return _plain_array(np.asarray(value), depth, store)
    return str(os.fspath(value)) if isinstance(value, os.PathLike) else _described(value)


def _plain_mapping(value: Mapping[Any, Any], depth: int, store: Store | None) -> dict[str, Any]:
    for key in value:
        if not isinstance(key, str):
            return _described(value)
    return {key: _plain(item, depth + 1, store) for key, item in value.items()}


def _plain_array(array: NDArray[Any], depth: int, store: Store | None) -> Any:  # noqa: ANN401 - nested lists, or a scalar
    if store is not None and stands_apart(array):
        return store(array)
    if array.dtype.kind == "f" and array.itemsize > _DOUBLE:
        with np.errstate(over="ignore"):
            array = array.astype(np.float64)
    if array.dtype.kind in "biu" or (array.dtype.kind == "f" and np.isfinite(array).all()):
        return array.tolist()
    return _plain(array.tolist(), depth + 1, store)


def _described(value: object) -> dict[str, str]:
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - a foreign object may raise anything; the row must still be written
        text = f"<{type(value).__qualname__} whose repr raises {type(error).__name__}>"
    return {"repr": text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."}


def _inner_of_reset(snapshot: Snapshot, evaluator: Collection[str], store: Store | None) -> Row:
    report = snapshot.reset
    if report is None:
        raise TypeError("the snapshot of a reset must have a ResetReport")
    return {
        "level": report.level,
        "seed_applied": report.seed_applied,
        "sampled": to_json_types(report.sampled),
        "details": to_json_types(report.details),
        "ignored": list(report.ignored),
        "routine": report.routine,
        "confirmed_by": report.confirmed_by,
        "options": to_json_types(report.options),
        "verdict": None if report.verdict is None else to_json_types(field_values(report.verdict)),
        "observation": {
            f"{name}_{field}": to_json_types(values, store)
            for name, sample in snapshot.samples.items()
            if name not in evaluator
            for field, values in sample.values.items()
        },
        "now_ns": snapshot.now_ns,
        "sensors": to_json_types({name: _sample(sample) for name, sample in snapshot.samples.items()}),
        "clock": to_json_types(_clock(snapshot.clock)),
        "injected": _injected(snapshot.injected),
        "evaluator": {name: to_json_types(snapshot.samples[name].values, store) for name in evaluator},
    }


def _inner(transition: Transition, action: Any, evaluator: Collection[str]) -> Row:  # noqa: ANN401 - any action
    """Return the account of one step; what is not plain in it is the action, floats that are not finite, and arrays."""
    snapshot = transition.snapshot
    samples = snapshot.samples
    return {
        "observation": transition.observation,
        "action": action,
        "reward": transition.reward,
        "terminated": transition.terminated,
        "truncated": transition.truncated,
        "end_reasons": list(transition.end_reasons),
        "findings": [_finding(finding) for finding in transition.report.findings],
        "stamps_ns": {name: ns for name, ns in transition.stamps_ns.items() if name != "returned"},  # not returned yet
        "report": _report(transition.report),
        "circumstances": _circumstances(transition.circumstances),
        "now_ns": snapshot.now_ns,
        "sensors": {name: _sample(sample) for name, sample in samples.items()},
        "clock": _clock(snapshot.clock),
        "actuation": _actuation(snapshot.actuation),
        "injected": _injected(snapshot.injected),
        "evaluator": {name: samples[name].values for name in evaluator},
    }


def _clock(clock: ClockStatus | None) -> Row | None:
    """Return what was noticed of the clock, and how it lies to the steady one; None: the world waits."""
    return None if clock is None else field_values(clock)


def _injected(injected: InjectedDelays | None) -> Row | None:
    """Return what was put into a world that waits; None: nothing was."""
    return None if injected is None else {**field_values(injected), "early": list(injected.early)}


def _actuation(evidence: ActuationEvidence | None) -> Row | None:
    return None if evidence is None else field_values(evidence)


def _circumstances(seen: ExternalInputs) -> Row:
    """Return what a replay needs of what time and others did; the rest of the situation follows from the sensors."""
    return {
        "action_age_s": seen.situation.action_age_s,
        "latency_s": seen.situation.latency_s,
        "estops": dict(seen.situation.estops),
        "latched": None if seen.latched is None else _finding(seen.latched),
        "latched_after": None if seen.latched_after is None else _finding(seen.latched_after),
        "watchdog_trips": seen.watchdog_trips,
        "dt_s": seen.dt_s,
        "reference": None if seen.reference is None else _reference(seen.reference),
        "answer": None if seen.answer is None else _answer(seen.answer),
        **({} if seen.limits is None else {"limits": {name: _listed(of) for name, of in vars(seen.limits).items()}}),
    }


def _reference(reference: CommandState) -> Row:
    return {name: _listed(value) for name, value in field_values(reference).items()}


def _answer(report: GateReport) -> Row:
    """Return the account of another process' gate, which no other part of the row tells apart from ours."""
    findings = [_finding(finding) for finding in report.findings]
    return {**_report(report), "findings": findings, "intervened": report.intervened}


def _listed(value: Any) -> Any:  # noqa: ANN401 - an array becomes a list
    return value.tolist() if isinstance(value, np.ndarray) else value


def _finding(finding: Finding) -> Row:
    return {
        "gate": finding.gate,
        "severity": finding.severity.name,
        "code": finding.code,
        "joints": list(finding.joints),
        "before": _listed(finding.before),
        "after": _listed(finding.after),
        "limit": _listed(finding.limit),
        "margin": _listed(finding.margin),
        "detail": finding.detail,
    }


def _report(report: GateReport) -> Row:
    return {
        "requested": report.requested.tolist(),
        "applied": report.applied.tolist(),
        "applied_si": report.applied_si.tolist(),
        "velocity_si": report.velocity_si.tolist(),
        "dt_s": report.dt_s,
        "disposition": report.disposition.name,
        "guaranteed": dict(report.guaranteed),
    }


def _sample(sample: Sample) -> Row:
    """Return what is known of a reading, but for its values; a confidence that is null is NaN."""
    confidence = {} if sample.confidence is None else {"confidence": sample.confidence}
    return {
        "stamp_ns": sample.stamp_ns,
        "header_ns": sample.header_ns,
        "arrival_ns": sample.arrival_ns,
        "arrival_system_ns": sample.arrival_system_ns,
        "source_ns": sample.source_ns,
        "received_ns": sample.received_ns,
        "quality": sample.quality.name,
        "reason": sample.reason,
        "stamp_quality": sample.stamp_quality.name,
        "transport_quality": sample.transport_quality.name,
        "transport_excess_s": sample.transport_excess_s,
        "suspect_clock": sample.suspect_clock,
        "seq": sample.seq,
        "lost": sample.lost,
        "duplicated": sample.duplicated,
        "reordered": sample.reordered,
        **confidence,
    }


_UNCHANGEABLE = frozenset((float, str, bool, type(None)))
_SCALARS = _UNCHANGEABLE | {int}
_NUMBERS = "biuf"
_MAX_COPY_DEPTH = 8  # what is nested deeper, or holds itself, is settled at once
_LARGEST = 2**WIDEST


def detached_copy(value: Any, store: Store | None = None) -> Any:  # noqa: ANN401 - anything goes in
    """Return a copy of `value` that shares nothing with it that could change; `plain` of both is the same.

    Dicts, lists, tuples and arrays of numbers are copied, which is quick; what else it holds is settled at once. So
    what JSON would say otherwise than `plain` is settled, or an array: `embodied_env.record.rows` relies on it.
    `store`: see `plain`.
    """
    return _kept(value, 0, store)


def detached_action(action: Any) -> Any:  # noqa: ANN401 - anything goes in
    """Return the same for an action, which stays in its row whatever its size."""
    if type(action) is np.ndarray and action.dtype.kind in _NUMBERS and not stands_apart(action):
        return action.copy()
    return Encoded(to_json_types(action))


def _kept(value: Any, depth: int, store: Store | None) -> Any:  # noqa: ANN401
    kind = type(value)
    if kind in _UNCHANGEABLE or (kind is int and -_LARGEST < value < _LARGEST):
        return value
    if kind is np.ndarray and value.dtype.kind in _NUMBERS:
        return value.copy()
    if depth < _MAX_COPY_DEPTH:
        if kind is dict:
            return _kept_dict(value, depth, store)
        if kind in (list, tuple):
            return [_kept(item, depth + 1, store) for item in value]
    made = encode(value, depth, store)
    return made.value if type(made.value) in _SCALARS else made


def _kept_dict(value: dict[Any, Any], depth: int, store: Store | None) -> Any:  # noqa: ANN401
    """Return what `_kept` does; of what an info has most, the copy is written out here: each call would cost more."""
    copied = value.copy()
    for key, item in value.items():
        if type(key) is not str:  # JSON has no such keys: what stands for the dict is its description
            return encode(value, depth, store)
        kind = type(item)
        if kind in _UNCHANGEABLE or (kind is int and -_LARGEST < item < _LARGEST):
            continue
        if kind is dict and depth < _MAX_COPY_DEPTH - 1:
            copied[key] = _kept_dict(item, depth + 1, store)
        elif kind is np.ndarray and item.dtype.kind in _NUMBERS:
            copied[key] = item.copy()
        else:
            copied[key] = _kept(item, depth + 1, store)
    return copied


def memory_size(value: Any) -> int:  # noqa: ANN401 - what `kept` returned
    """Return about how many bytes the arrays in a dict take; what is nested in others is not looked for."""
    if not isinstance(value, Mapping):
        return int(getattr(value, "nbytes", 0))
    return sum(item.nbytes for item in value.values() if isinstance(item, np.ndarray))


_DOUBLE_BYTES = 8  # bytes


def encodable(text: str) -> str:
    """Return JSON in ASCII with ``?`` for lone surrogates, which no reader of UTF-8 accepts."""
    if "\\ud" not in text:
        return text
    replaced = json.dumps(json.loads(text), ensure_ascii=False).encode("utf-8", "replace")
    return json.dumps(json.loads(replaced), separators=(",", ":"))


class RowEncoder:
    """Writes rows as JSON, in any thread: ``encode(row, store)`` is the text of `strict` of it, byte for byte.

    Containers and numbers of a row must be such as JSON and `plain` write alike: what `kept`, `detached_action` and the
    functions of `embodied_env.record.rows` return.
    """

    def __init__(self) -> None:
        """Prepare."""
        self._lock = threading.Lock()  # of the store
        self._store: Store | None = None
        encoder = json.JSONEncoder(
            allow_nan=False, check_circular=False, separators=(",", ":"), default=self._in_types_of_json
        )
        self._text_of = encoder.encode

    def encode(self, row: Row, store: Store | None = None) -> str:
        """Return the text of `row`; it is ASCII. Images and other large arrays go to `store`."""
        with self._lock:
            self._store = store
            try:
                return encodable(self._text_of(row))
            except (ValueError, TypeError, RecursionError):  # mostly a NaN, which becomes null
                return encodable(self._text_of(to_json_row(row, store)))

    def _in_types_of_json(self, value: Any) -> Any:  # noqa: ANN401 - what JSON does not know
        if type(value) is np.ndarray and value.itemsize <= _DOUBLE_BYTES:
            return value.tolist() if self._store is None or not stands_apart(value) else self._store(value)
        return value.value if type(value) is Encoded else to_json_types(value, self._store)
