"""Differences of two rows of the same step, bit for bit, in the step's causal order."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from embodied_env.record.row_types import TRANSITION, ResetRow, Row, TransitionRow

_INPUTS = ("action_age_s", "latency_s", "estops", "latched", "dt_s", "reference")
_ORDER_OF_A_STEP = (
    *(f"inner.external_inputs.{key}" for key in _INPUTS),
    *(f"inner.{key}" for key in ("findings", "report", "external_inputs", "clock", "now_ns", "actuation", "sensors")),
    *("inner.evaluator", "inner.observation", "info.task", "inner.reward", "inner.terminated", "inner.truncated"),
    *("inner.end_reasons", "inner.stamps_ns", "inner", "info"),  # with all other keys
)
_RESET = ("level", "seed_applied", "sampled", "details", "ignored", "routine", "confirmed_by", "options")
_ORDER_OF_A_RESET = (
    *(f"inner.{key}" for key in (*_RESET, "clock", "now_ns", "sensors", "evaluator", "observation", "verdict")),
    *("inner", "info", "observation"),  # with all other keys
)

IDENTITY = ("info.backend", "info.world", "info.contract", "info.wrapper_version")
"""Fields that always differ between a run and its replay, or that are compared once per run."""

_NOT_REPLAYED = ("info.reset.duration_s", "inner.action")  # measured again, and the input of the replay
Found = tuple[str, Any, Any]  # the path of a field, its recorded value, and its replayed value
ABSENT = "(absent)"


def row_differences(recorded: TransitionRow | ResetRow, replayed: Row) -> Iterator[Found]:
    """Yield each field in which `replayed` differs from `recorded`, in the order of a step.

    Of the values of the outermost wrapper, ``info`` is compared, to which wrappers may have added keys, and the
    observation of a reset. Its other values are those of ``inner``, as the audit checks.
    """
    order = _ORDER_OF_A_STEP if recorded["schema"] == TRANSITION else _ORDER_OF_A_RESET
    seen: set[str] = set()
    for path in order:
        for found in _walk(path, _value_at(recorded, path), _value_at(replayed, path), is_info=path == "info"):
            if found[0] not in seen:
                seen.add(found[0])
                yield found


def _value_at(row: Mapping[str, Any], path: str) -> Any:  # noqa: ANN401 - JSON types
    """Return the value at `path`, without `IDENTITY` if it is ``info``."""
    value: Any = row
    for key in path.split("."):
        value = value.get(key, ABSENT) if isinstance(value, dict) else ABSENT
    if path == "info" and isinstance(value, dict):
        return {key: item for key, item in value.items() if f"info.{key}" not in IDENTITY}
    return value


def _walk(path: str, recorded: Any, replayed: Any, *, is_info: bool = False) -> Iterator[Found]:  # noqa: ANN401
    """Yield the differences by leaf, but of findings of different kinds as a whole."""
    is_equal = recorded is replayed or json.dumps(recorded) == json.dumps(replayed)  # -0.0 is not 0.0, and 1 is not 1.0
    if is_equal or path in _NOT_REPLAYED:
        return
    are_dicts = isinstance(recorded, dict) and isinstance(replayed, dict)
    if are_dicts and all(key not in recorded or recorded[key] == replayed.get(key) for key in ("gate", "code")):
        for key in replayed if is_info else {**recorded, **replayed}:
            yield from _walk(f"{path}.{key}", recorded.get(key, ABSENT), replayed.get(key, ABSENT))
    elif isinstance(recorded, list) and isinstance(replayed, list) and len(recorded) == len(replayed):
        for index, pair in enumerate(zip(recorded, replayed, strict=True)):
            yield from _walk(f"{path}[{index}]", *pair)
    else:
        yield path, recorded, replayed
