"""The rules of a contract: functions that take a row whose structure is sound and its contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from embodied_env.contract import Contract
from embodied_env.contract.schema import APPLIED_ACTIONS, TIME_REMAINING
from embodied_env.contract.spaces import field_layouts
from embodied_env.core.codes import Quality, Severity, end_kind
from embodied_env.record.arrays import is_reference
from embodied_env.record.audit.sensor_rules import mask, readings
from embodied_env.record.audit.violation import Violation, make_violation, short_repr
from embodied_env.record.rows import Row
from embodied_env.record.schema import gates

_LIMITS_OF_TIME = {"time_limit": "time_limit", "finite_horizon": "horizon"}
"""Kind of an episode -> the reason by which it ends at its horizon."""


def _fingerprint(row: Row, contract: Contract) -> Iterator[Violation]:
    named = row["info"]["contract"]
    if named != contract.fingerprint:
        text = f"info.contract is {named}, but the fingerprint of {contract.name} is {contract.fingerprint}"
        yield make_violation("contract.fingerprint", "info.contract", named, text)


def _observation(row: Row, contract: Contract) -> Iterator[Violation]:
    """The observation lies in the contract's space; a reading outside of its range must be named as such."""
    where, observation = inside(row, "observation")
    space = contract.observation_space
    if not isinstance(observation, dict):
        text = f"{where} is {short_repr(observation)}; allowed: a mapping of {', '.join(space.spaces)}"
        yield make_violation("space.observation", where, observation, text)
        return
    sensor_of = {layout.key: name for name, spec in contract.sensors.items() for layout in field_layouts(name, spec)}
    for key in dict.fromkeys([*space.spaces, *observation]):
        if key not in observation:
            yield make_violation("space.observation", f"{where}.{key}", None, f"{where}.{key} is missing")
        elif key not in space.spaces:
            text = f"{where}.{key} is not in the contract; allowed: {', '.join(space.spaces)}"
            yield make_violation("space.observation", f"{where}.{key}", observation[key], text)
        else:
            quality = row["info"]["sensors"].get(sensor_of.get(key), {}).get("quality", Quality.OK)
            if problem := _outside_of(observation[key], space.spaces[key], checked=quality == Quality.OK):
                text = f"{where}.{key} is {short_repr(observation[key])}; allowed: {problem}"
                yield make_violation("space.observation", f"{where}.{key}", observation[key], text)


def _outside_of(value: Any, space: Any, *, checked: bool) -> str:  # noqa: ANN401 - JSON types, a Box
    """Return what is allowed instead of `value`, or "".

    A held reading may have been out of range when it was made. Of an array beside the row, dtype and shape are known.
    """
    if is_reference(value):
        fits = value["dtype"] == space.dtype.name and value["shape"] == list(space.shape)
        return "" if fits else f"an array of {space.dtype.name} of the shape {space.shape}"
    try:
        array = np.array(value)
    except ValueError:  # a ragged list
        array = np.array(None)
    if array.dtype.kind not in "if" or array.shape != space.shape:
        return f"numbers of the shape {space.shape}"
    if checked and not ((space.low <= array) & (array <= space.high)).all():
        return f"{short_repr(space.low.tolist())} to {short_repr(space.high.tolist())}, unless its quality is not OK"
    return ""


def _action(row: Row, contract: Contract) -> Iterator[Violation]:
    """An action that is not of the space's shape was refused by the gate of forms."""
    where, action = inside(row, "action")
    refused = row["info"]["safety"]["severity"][gates().index("form")] >= Severity.HOLD
    if not refused and not _fits(action, contract.action_space):
        text = f"{where} is {short_repr(action)}, and no gate refused it; allowed: {contract.action_space}"
        yield make_violation("space.action", where, action, text)


def _fits(action: Any, space: spaces.Space[Any]) -> bool:  # noqa: ANN401 - JSON types
    """Whether `action` is of numbers in the space's shape; what JSON could not say is not judged."""
    if _is_described(action):
        return True
    if isinstance(space, spaces.Dict):
        named = isinstance(action, dict) and set(action) == set(space.spaces)
        return named and all(_fits(action[name], part) for name, part in space.items())
    (size,) = space.shape or (0,)
    vector = isinstance(action, list) and len(action) == size
    return vector and all(_is_number(x) or _is_described(x) for x in action)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float))


def _is_described(value: object) -> bool:
    return isinstance(value, dict) and set(value) == {"repr"}


def inside(row: Row, field: str) -> tuple[str, Any]:
    """Return path and value of what the environment itself was given or returned."""
    return (f"inner.{field}", row["inner"][field]) if "inner" in row else (field, row[field])


# --------------------------------------------------------------------------------------------------------- the horizon


def _horizon(row: Row, contract: Contract) -> Iterator[Violation]:
    """The episode ends by its horizon at its horizon, under the name that its kind has for it."""
    episode, step = contract.episode, row["info"]["step_index"]
    reasons = row["inner"]["end_reasons"] if "inner" in row else [row["info"]["end_reason"]]
    kinds = {end_kind(reason) for reason in reasons}
    due = _LIMITS_OF_TIME[episode.kind]
    if wrong := kinds & ({*_LIMITS_OF_TIME.values()} - {due}):
        text = f"the end reason is {min(wrong)!r}, but an episode of the kind {episode.kind} ends by {due!r}"
        yield make_violation("time_limit.kind", "info.end_reason", min(wrong), text)
    elif due in kinds and step < episode.horizon_steps:
        text = f"the episode ended by {due!r} at step {step}; allowed: at its horizon, step {episode.horizon_steps}"
        yield make_violation("time_limit.early", "info.step_index", step, text)
    elif step >= episode.horizon_steps and due not in kinds and ("inner" in row or kinds == {""}):
        text = f"the episode goes on at step {step}; allowed: to its horizon, step {episode.horizon_steps}"
        yield make_violation("time_limit.missed", "info.step_index", step, text)


def _time_remaining(row: Row, contract: Contract) -> Iterator[Violation]:
    """A task with a horizon tells the share of it that is left."""
    where, observation = inside(row, "observation")
    episode = contract.episode
    if episode.kind != "finite_horizon" or not isinstance(observation, dict) or TIME_REMAINING not in observation:
        return
    left = max(0, episode.horizon_steps - row["info"]["step_index"]) / episode.horizon_steps
    if (said := observation[TIME_REMAINING]) != [left]:
        text = f"{where}.{TIME_REMAINING} is {short_repr(said)}, but {left} of the horizon is left"
        yield make_violation("time_limit.remaining", f"{where}.{TIME_REMAINING}", said, text)


# ----------------------------------------------------------------------------------------------- what the agent is told


def _applied(row: Row, contract: Contract) -> Iterator[Violation]:
    """Where the observation tells what was applied, it ends with what was applied now."""
    where, observation = inside(row, "observation")
    if "inner" not in row or not contract.applied_actions or not isinstance(observation, dict):
        return
    applied = row["inner"]["report"]["applied"]
    told = observation.get(APPLIED_ACTIONS)
    if isinstance(told, list) and (last := told[-len(applied) :]) != applied:
        text = f"{where}.{APPLIED_ACTIONS} ends with {short_repr(last)}, but {short_repr(applied)} was applied"
        yield make_violation("action.observed", f"{where}.{APPLIED_ACTIONS}", told, text)


def _of_evaluator(row: Row, contract: Contract) -> Iterator[Violation]:
    """Sensors of the evaluator alone are not told of, unless its info was asked for."""
    if "evaluator" in row["info"]:
        return
    for name in row["info"]["sensors"]:
        if name in contract.sensors and contract.sensors[name].visibility == "evaluator":
            text = f"info.sensors.{name} is there, but {name} is of the evaluator alone and info.evaluator is not"
            yield make_violation("evaluator.told", f"info.sensors.{name}", row["info"]["sensors"][name], text)


def evaluator_options(row: Row, contract: Contract) -> Iterator[Violation]:
    """What a reset drew for the evaluator alone is not told, unless its info was asked for."""
    if "evaluator" in row["info"]:
        return
    for name, value in row["info"]["reset"]["sampled"].items():
        if name in contract.reset_options and contract.reset_options[name].visibility == "evaluator":
            text = f"info.reset.sampled.{name} is {short_repr(value)}, but {name} is of the evaluator alone"
            yield make_violation("evaluator.told", f"info.reset.sampled.{name}", value, text)


RULES_OF_CONTRACT: tuple[Callable[[Row, Contract], Iterator[Violation]], ...] = (
    _fingerprint,
    _observation,
    _action,
    _horizon,
    _time_remaining,
    _applied,
    _of_evaluator,
    readings,
    mask,
)
"""For a transition, with or without the environment's account, when its contract is known."""

RULES_OF_RESET: tuple[Callable[[Row, Contract], Iterator[Violation]], ...] = (
    _fingerprint,
    _of_evaluator,
    evaluator_options,
    readings,
)
"""For a reset, when its contract is known."""
