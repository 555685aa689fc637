"""A transition as one plain row: types of JSON only, so that what is on disk needs nothing of ours to be read.

The six fields of a row are what the outermost wrapper was given and returned; ``inner`` is the account of the
environment itself.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

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
from embodied_env.record.arrays import Store, is_stored_apart
from embodied_env.record.json_values import Encoded, encodable, to_json_types

TRANSITION = "embodied_env/transition/1"

RESET = "embodied_env/reset/1"

FIELDS = ("observation", "action", "reward", "terminated", "truncated", "info")

FIELDS_OF_RESET = ("seed", "options", "observation", "info")

Row = dict[str, Any]

_DOUBLE_BYTES = 8  # bytes


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
        store: see `to_json_types`. An action stays in its row whatever its size, as it was put down before the step.
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
    """Return the row of one step before `to_json_row` converts its values, field by field.

    `action` is the one of `transition`, as it was before anybody could change it; for the others see `transition_row`.
    """
    return {
        "schema": TRANSITION,
        "row": row,
        **{field: outer[field] for field in FIELDS},
        "inner": None if transition is None else _inner(transition, action, evaluator),
    }


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
        store: see `to_json_types`.
    """
    return {
        "schema": RESET,
        "row": row,
        **{field: to_json_types(outer[field], store) for field in FIELDS_OF_RESET},
        "inner": None if snapshot is None else _inner_of_reset(snapshot, evaluator, store),
    }


def to_json_row(raw: Row, store: Store | None = None) -> Row:
    """Return the row with its values in JSON types."""
    return {field: to_json_types(value, store) for field, value in raw.items()}


class RowEncoder:
    """Writes rows as JSON, in any thread: ``encode(row, store)`` is the text of ``to_json_row(row, store)``.

    Containers and numbers of a row must be such as JSON and `to_json_types` write alike: those that `detached_copy`,
    `detached_action` and the functions above return.
    """

    def __init__(self) -> None:
        """Create the JSON encoder."""
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
            return value.tolist() if self._store is None or not is_stored_apart(value) else self._store(value)
        return value.value if type(value) is Encoded else to_json_types(value, self._store)


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


def _clock(clock: ClockStatus | None) -> Row | None:
    """Return what was noticed of the clock, and how it lies to the steady one; None: the world waits."""
    if clock is None:
        return None
    return field_values(clock)


def _injected(injected: InjectedDelays | None) -> Row | None:
    """Return what was put into a world that waits; None: nothing was."""
    return None if injected is None else {**field_values(injected), "early": list(injected.early)}


def _actuation(evidence: ActuationEvidence | None) -> Row | None:
    return None if evidence is None else field_values(evidence)


def _listed(value: Any) -> Any:  # noqa: ANN401 - an array becomes a list
    return value.tolist() if isinstance(value, np.ndarray) else value
