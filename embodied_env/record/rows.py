"""A transition as one plain row: types of JSON only, so that what is on disk needs nothing of ours to be read.

The six fields of a row are what the outermost wrapper was given and returned; ``inner`` is the account of the
environment itself. Floats keep every bit; NaN and infinities are null, since JSON has no other word for them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.transition import Finding, GateReport, Sample, Transition

TRANSITION = "embodied_env/transition/1"
RESET = "embodied_env/reset/1"

FIELDS = ("observation", "action", "reward", "terminated", "truncated", "info")

Row = dict[str, Any]

_DEEPEST = 32  # nesting beyond this, a list that holds itself for one, is described and not followed
_AS_IT_IS = (str, bool, type(None))
_DOUBLE = 8  # bytes
_WIDEST = 1024  # bits of an integer that is written as a number
_LONGEST = 2000  # characters of a description


def transition_row(
    transition: Transition | None, *, row: int, outer: Mapping[str, Any], evaluator: Collection[str]
) -> Row:
    """Return the row of one step.

    Args:
        transition: the environment's own account, or None when an outer wrapper answered in its place.
        row: the number of the row in its run, resets included.
        outer: the six `FIELDS`, as the outermost wrapper was given and returned them.
        evaluator: the sensors that only the evaluator sees; their values stand in ``inner.evaluator``.
    """
    return {
        "schema": TRANSITION,
        "row": row,
        **{field: plain(outer[field]) for field in FIELDS},
        "inner": None if transition is None else _inner(transition, evaluator),
    }


def reset_row(
    *,
    row: int,
    seed: int | None,
    options: Mapping[str, Any] | None,
    observation: Any,  # noqa: ANN401 - whatever the outermost wrapper returned
    info: Mapping[str, Any],
) -> Row:
    """Return the row of one reset: what it was given, and what the outermost wrapper returned."""
    return {
        "schema": RESET,
        "row": row,
        "seed": plain(seed),
        "options": plain(options),
        "observation": plain(observation),
        "info": plain(info),
    }


def plain(value: Any) -> Any:  # noqa: ANN401 - anything goes in, JSON comes out
    """Return `value` in types of JSON, sharing nothing with it that could change.

    Arrays become lists, enums numbers or names, NaN and infinities None. What JSON cannot say becomes
    ``{"repr": "..."}``.
    """
    return _plain(value, 0)


def _plain(value: Any, depth: int) -> Any:  # noqa: ANN401, PLR0911 - one line per kind of value
    kind = type(value)
    if kind is float:
        return value if math.isfinite(value) else None
    if kind in _AS_IT_IS:
        return value
    if kind is dict and depth < _DEEPEST:
        return _plain_mapping(value, depth)
    if isinstance(value, Enum):
        return int(value) if isinstance(value, int) else value.name
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, int):
        return int(value) if value.bit_length() <= _WIDEST else _described(value)
    return _described(value) if depth > _DEEPEST else _plain_container(value, depth)


def _plain_container(value: Any, depth: int) -> Any:  # noqa: ANN401
    if isinstance(value, Mapping):
        return _plain_mapping(value, depth)
    if isinstance(value, (list, tuple)):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return _plain_array(np.asarray(value), depth)
    return str(os.fspath(value)) if isinstance(value, os.PathLike) else _described(value)


def _plain_mapping(value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
    for key in value:
        if not isinstance(key, str):
            return _described(value)
    return {key: _plain(item, depth + 1) for key, item in value.items()}


def _plain_array(array: NDArray[Any], depth: int) -> Any:  # noqa: ANN401 - nested lists, or a scalar
    if array.dtype.kind == "f" and array.itemsize > _DOUBLE:
        with np.errstate(over="ignore"):
            array = array.astype(np.float64)
    if array.dtype.kind in "biu" or (array.dtype.kind == "f" and np.isfinite(array).all()):
        return array.tolist()
    return _plain(array.tolist(), depth + 1)


def _described(value: object) -> dict[str, str]:
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - a foreign object may raise anything; the row must still be written
        text = f"<{type(value).__qualname__} whose repr raises {type(error).__name__}>"
    return {"repr": text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."}


def _inner(transition: Transition, evaluator: Collection[str]) -> Row:
    samples = transition.snapshot.samples
    return {
        "observation": plain(transition.observation),
        "action": plain(transition.action),
        "reward": plain(transition.reward),
        "terminated": transition.terminated,
        "truncated": transition.truncated,
        "end_reasons": list(transition.end_reasons),
        "findings": [_finding(finding) for finding in transition.report.findings],
        "stamps_ns": {name: ns for name, ns in transition.stamps_ns.items() if name != "returned"},  # not returned yet
        "report": _report(transition.report),
        "sensors": {name: _sample(sample) for name, sample in samples.items()},
        "evaluator": {name: plain(samples[name].values) for name in evaluator},
    }


def _finding(finding: Finding) -> Row:
    return {
        "gate": finding.gate,
        "severity": finding.severity.name,
        "code": finding.code,
        "joints": list(finding.joints),
        "before": plain(finding.before),
        "after": plain(finding.after),
        "limit": plain(finding.limit),
        "margin": plain(finding.margin),
        "detail": finding.detail,
    }


def _report(report: GateReport) -> Row:
    return {
        "requested": plain(report.requested),
        "applied": plain(report.applied),
        "applied_si": plain(report.applied_si),
        "velocity_si": plain(report.velocity_si),
        "dt_s": plain(report.dt_s),
        "disposition": report.disposition.name,
        "guaranteed": plain(report.guaranteed),
    }


def _sample(sample: Sample) -> Row:
    return {
        "stamp_ns": sample.stamp_ns,
        "arrival_ns": sample.arrival_ns,
        "source_ns": sample.source_ns,
        "received_ns": sample.received_ns,
        "quality": sample.quality.name,
        "reason": sample.reason,
    }
