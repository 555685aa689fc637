"""Rules of one row that fits its schema, under its contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from gymnasium import spaces

from embodied_env.contract import Contract
from embodied_env.contract.contract_schema import APPLIED_ACTIONS, TIME_REMAINING
from embodied_env.contract.spaces import ActionLayout, field_layouts
from embodied_env.core.code_table import GATES
from embodied_env.core.code_types import Quality, Severity, end_kind
from embodied_env.extensions.audit.latency_rules import USABLE, is_free_running, to_ns
from embodied_env.record.arrays import is_reference
from embodied_env.record.row_schema import Violation, check_equal, make_violation, short_repr, wrong_value
from embodied_env.record.row_types import RESET, ReferenceRecord, ResetRow, StepRow, TransitionRow
from embodied_env.safety.joint_limits import joint_bounds, limit_violation
from embodied_env.timing.clock import NS_PER_S

_REST = 1e-6  # share of the velocity limit
_TIME_LIMITS = {"time_limit": "time_limit", "finite_horizon": "horizon"}  # end reason by kind of episode


def observed(row: StepRow | ResetRow) -> tuple[str, Any]:
    """Return path and value of the observation that the environment itself returned."""
    if row["inner"] is None:
        return "observation", row["observation"]
    return "inner.observation", row["inner"]["observation"]


def end_reasons(row: StepRow) -> list[str]:
    """Return the reasons why the episode ended with a step, as far as they are known."""
    return [row["info"]["end_reason"]] if row["inner"] is None else row["inner"]["end_reasons"]


def reference_of(row: TransitionRow) -> ReferenceRecord | None:
    """Return the reference of the written command, or of the braking in its place."""
    inputs = row["inner"]["external_inputs"]
    replaced = inputs["delay"]["reference"] if "delay" in inputs else None
    return replaced or inputs["reference"]


def _check_fingerprint(row: StepRow | ResetRow, contract: Contract) -> Iterator[Violation]:
    named, why = row["info"]["contract"], f", the fingerprint of {contract.name}"
    yield from check_equal("contract.fingerprint", "info.contract", named, contract.fingerprint, why)


def _check_observation(row: StepRow, contract: Contract) -> Iterator[Violation]:
    """Check the observation against its space, and readings of quality OK against their range."""
    where, observation = observed(row)
    space = contract.observation_space
    if not isinstance(observation, dict):
        yield wrong_value("space.observation", where, observation, f"a mapping of {', '.join(space.spaces)}")
        return
    layouts = {each.key: each for name, spec in contract.sensors.items() for each in field_layouts(name, spec)}
    for key in dict.fromkeys([*space.spaces, *observation]):
        path, value = f"{where}.{key}", observation.get(key)
        if key not in observation:
            yield make_violation("space.observation", path, None, f"{path} is missing")
        elif key not in space.spaces:
            text = f"{path} is not in the contract (expected one of: {', '.join(space.spaces)})"
            yield make_violation("space.observation", path, value, text)
        else:
            layout = layouts.get(key)
            sensor = None if layout is None else row["info"]["sensors"].get(layout.sensor)
            judged = slice(None) if layout is None or layout.history is None else slice(-1, None)  # the newest reading
            if sensor is not None and sensor["quality"] != Quality.OK:
                judged = slice(0)
            if expected := _mismatch(value, space.spaces[key], judged):
                yield wrong_value("space.observation", path, value, expected)


def _mismatch(value: Any, space: Any, judged: slice) -> str:  # noqa: ANN401 - JSON types, a Box
    """Return what `value` is not, in its `judged` part within the bounds, or ""."""
    if is_reference(value):
        fits = value["dtype"] == space.dtype.name and value["shape"] == list(space.shape)
        return "" if fits else f"an array of {space.dtype.name} with the shape {space.shape}"
    try:
        array = np.array(value)
    except ValueError:  # a ragged list
        array = np.array(None)
    if array.dtype.kind not in "if" or array.shape != space.shape:
        return f"numbers of shape {space.shape}"
    if not ((space.low <= array) & (array <= space.high))[judged].all():
        return f"{short_repr(space.low.tolist())} to {short_repr(space.high.tolist())}, because its quality is OK"
    return ""


def _check_action(row: StepRow, contract: Contract) -> Iterator[Violation]:
    """Check that an action without the shape of its space was refused by the gate ``form``."""
    where, action = ("action", row["action"]) if row["inner"] is None else ("inner.action", row["inner"]["action"])
    is_refused = row["info"]["safety"]["severity"][GATES.index("form")] >= Severity.HOLD
    if not is_refused and not _has_shape(action, contract.action_space):
        yield wrong_value("space.action", where, action, f"{contract.action_space}, or a gate that refused it")


def _has_shape(action: Any, space: spaces.Space[Any]) -> bool:  # noqa: ANN401 - JSON types
    """Return whether `action` has numbers, or values beyond JSON, in the shape of `space`."""
    if _is_described(action):
        return True
    if isinstance(space, spaces.Dict):
        named = isinstance(action, dict) and set(action) == set(space.spaces)
        return named and all(_has_shape(action[name], part) for name, part in space.items())
    (size,) = space.shape or (0,)
    is_vector = isinstance(action, list) and len(action) == size
    return is_vector and all(isinstance(x, (int, float)) or _is_described(x) for x in action)


def _is_described(value: object) -> bool:
    return isinstance(value, dict) and set(value) == {"repr"}


def _check_horizon(row: StepRow, contract: Contract) -> Iterator[Violation]:
    """Check that the episode ends at its horizon, with the end reason of its kind."""
    episode, step = contract.episode, row["info"]["step_index"]
    kinds = {end_kind(reason) for reason in end_reasons(row)}
    due = _TIME_LIMITS[episode.kind]
    if wrong := kinds & ({*_TIME_LIMITS.values()} - {due}):
        expected = f"{due!r} for an episode of kind {episode.kind}"
        yield wrong_value("time_limit.kind", "info.end_reason", min(wrong), expected)
    elif due in kinds and step < episode.horizon_steps:
        text = f"the episode ended with {due!r} at step {step} (expected its horizon, step {episode.horizon_steps})"
        yield make_violation("time_limit.early", "info.step_index", step, text)
    elif step >= episode.horizon_steps and due not in kinds and (row["inner"] is not None or kinds == {""}):
        text = f"the episode continues at step {step} (expected an end at its horizon, step {episode.horizon_steps})"
        yield make_violation("time_limit.missed", "info.step_index", step, text)


def _check_time_remaining(row: StepRow, contract: Contract) -> Iterator[Violation]:
    where, observation = observed(row)
    episode = contract.episode
    if episode.kind != "finite_horizon" or not isinstance(observation, dict) or TIME_REMAINING not in observation:
        return
    left = max(0, episode.horizon_steps - row["info"]["step_index"]) / episode.horizon_steps
    yield from check_equal("time_limit.remaining", f"{where}.{TIME_REMAINING}", observation[TIME_REMAINING], [left], "")


def _check_applied_actions(row: StepRow, contract: Contract) -> Iterator[Violation]:
    """Check that the applied actions in an observation end with the one of this step."""
    where, observation = observed(row)
    if row["inner"] is None or not contract.applied_actions or not isinstance(observation, dict):
        return
    applied, history = row["inner"]["report"]["applied"], observation.get(APPLIED_ACTIONS)
    if isinstance(history, list) and (last := history[-len(applied) :]) != applied:
        text = f"{where}.{APPLIED_ACTIONS} ends with {short_repr(last)} (expected {short_repr(applied)}, as applied)"
        yield make_violation("action.observed", f"{where}.{APPLIED_ACTIONS}", history, text)


def _check_evaluator_only(row: StepRow | ResetRow, contract: Contract) -> Iterator[Violation]:
    """Check that info without ``evaluator`` has no evaluator-only sensor or sampled option."""
    info = row["info"]
    sampled = row["info"]["reset"]["sampled"] if row["schema"] == RESET else {}
    parts: tuple[tuple[str, Mapping[str, object], Mapping[str, Any]], ...]
    parts = (("sensors", info["sensors"], contract.sensors), ("reset.sampled", sampled, contract.reset_options))
    for part, values, specs in parts if "evaluator" not in info else ():
        for name, value in values.items():
            if name in specs and specs[name].visibility == "evaluator":
                text = f"info.{part}.{name} is present without info.evaluator, although {name} is evaluator-only"
                yield make_violation("evaluator.disclosed", f"info.{part}.{name}", value, text)


def _check_reading_ages(row: StepRow | ResetRow, contract: Contract) -> Iterator[Violation]:
    """Check that a reading of quality OK is within ``max_age_s`` and not stamped in the future."""
    info = row["info"]
    is_free = row["schema"] == RESET or is_free_running(row["info"])
    ahead_ns = round(contract.safety.observation.future_tolerance_s * NS_PER_S) if is_free else 0
    for name, sensor in info["sensors"].items():
        if name not in contract.sensors or sensor["quality"] != Quality.OK:
            continue
        where, age_s, max_age_s = f"info.sensors.{name}.age_s", sensor["age_s"], contract.sensors[name].max_age_s
        if to_ns(age_s) > max_age_s * NS_PER_S:
            yield wrong_value("sensor.stale", where, age_s, f"at most max_age_s {max_age_s}, because its quality is OK")
        elif to_ns(age_s) < -ahead_ns:
            yield wrong_value("sensor.future", where, age_s, "no stamp in the future, because its quality is OK")


def _check_masks(row: StepRow, contract: Contract) -> Iterator[Violation]:
    info, (_, observation) = row["info"], observed(row)
    for name, sensor in contract.sensors.items() if isinstance(observation, dict) else ():
        key = f"{name}_valid"
        if not sensor.mask or key not in observation or name not in info["sensors"]:
            continue
        quality = info["sensors"][name]["quality"]
        if observation[key] in ([0], [1]) and observation[key] != (expected := [int(quality in USABLE)]):
            reason = f"{expected}, because its quality is {Quality(quality).name}"
            yield wrong_value("sensor.mask", f"observation.{key}", observation[key], reason)


def _check_trajectory(row: StepRow, contract: Contract) -> Iterator[Violation]:
    """Check that a trajectory leads from reference through command to rest, within limits."""
    rule, where = "limits.trajectory", "info.annotations.trajectory.points"
    account = row["info"].get("annotations", {}).get("trajectory")
    if account is None or row["inner"] is None or contract.trajectory_steps is None:
        return
    layout, dt_s, points = ActionLayout(contract), contract.control_period_s, account.get("points")
    reference, report = reference_of(row), row["inner"]["report"]
    begin = [None if reference is None else reference["positions"], report["applied_si"]]
    points = points if isinstance(points, list) and points[:2] == begin else []
    if (
        reference is None
        or not points
        or _mismatch(points, spaces.Box(-np.inf, np.inf, (len(points), layout.size)), slice(0))
    ):
        yield wrong_value(rule, where, account, "points from the reference through the command")
        return
    if not report["guaranteed"]["velocity"]:
        return
    rows = zip(layout.joints, joint_bounds(layout.limits), reference["velocities"], *points, strict=True)
    for joint, bounds, velocity, *positions in rows:
        before, problem = velocity, ""
        for x, next_x in pairwise(positions):
            after = 0.0 if bounds.is_goal else (next_x - x) / dt_s
            problem = problem or limit_violation(x, before, next_x, after, bounds, dt_s)
            before = after
        if problem or abs(before) > _REST * bounds.fastest:
            text = f"{where}: {joint}: {problem or f'ends at a velocity of {before}'} (expected the limits, and rest)"
            yield make_violation(rule, where, positions, text)


def _check_driver_commands(row: StepRow, contract: Contract) -> Iterator[Violation]:
    """Check that the commands in drivers' units follow from those in SI units."""
    action = row["info"]["action"]
    drivers = [limits.driver for each in contract.actuators.values() for limits in each.joints.values()]
    if "applied_driver" not in action and not any(drivers):
        return
    layout, found, applied = ActionLayout(contract), action.get("applied_driver", {}), action["applied_si"]
    if list(applied) != list(layout.joints):  # reported by the rule of its space
        return
    wanted = layout.driver_values(np.array([*applied.values()])) if layout.in_driver_units else {}
    yield from check_equal("driver.command", "info.action.applied_driver", found, wanted, ", by applied_si")


def _check_driver_readings(row: StepRow | ResetRow, contract: Contract) -> Iterator[Violation]:
    """Check that each reading follows from its driver's values, where the account has them."""
    if (inner := row["inner"]) is None:
        return
    for name, account in inner["sensors"].items():
        recorded = account.get("driver", {})
        for layout in field_layouts(name, contract.sensors[name]) if recorded else ():
            conversion, values = contract.sensors[name].fields[layout.field].conversion, recorded.get(layout.field)
            if conversion is None or values is None:
                continue
            truth = inner["evaluator"].get(name)
            reading: Any = inner["observation"].get(layout.key) if truth is None else truth.get(layout.field)
            if layout.history is not None and truth is None and "report" in inner:
                reading = reading[-1]
            wanted = conversion.to_si(np.array(values, dtype=np.float64)).astype(layout.dtype)
            if not is_reference(reading) and np.ravel(reading).tolist() != wanted.tolist():
                where = f"inner.sensors.{name}.driver.{layout.field}"
                yield wrong_value("driver.reading", where, values, f"values whose reading is {short_repr(reading)}")


CONTRACT_RULES: tuple[Callable[[StepRow, Contract], Iterator[Violation]], ...] = (  # with or without an account
    _check_fingerprint,
    _check_observation,
    _check_action,
    _check_horizon,
    _check_time_remaining,
    _check_applied_actions,
    _check_evaluator_only,
    _check_reading_ages,
    _check_masks,
    _check_trajectory,
    _check_driver_commands,
    _check_driver_readings,
)

RESET_CONTRACT_RULES: tuple[Callable[[ResetRow, Contract], Iterator[Violation]], ...] = (
    _check_fingerprint,
    _check_evaluator_only,
    _check_reading_ages,
    _check_driver_readings,
)
"""For a reset with a known contract."""
