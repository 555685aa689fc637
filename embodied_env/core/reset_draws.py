"""Draws of reset options, and the homing and confirmation in a robot's reset.

A draw is a pure function of the contract's options, the seed and the given values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import NormalDist

import numpy as np

from embodied_env.contract import Contract
from embodied_env.contract.actuator_schema import FloatArray
from embodied_env.contract.contract_schema import ResetOption
from embodied_env.contract.spaces import ActionLayout
from embodied_env.contract.value_checks import one_of
from embodied_env.core.measured_joints import MeasuredJoints, nearest_turn
from embodied_env.core.types import Confirmation, EpisodeStart, ResetReport, ResetRequest
from embodied_env.errors import BackendNotReadyError


@dataclass(frozen=True, kw_only=True)
class ResetRoutine:
    """Homing, confirmation and verification in a reset by the stepper."""

    home: Mapping[str, float] = field(default_factory=dict)  # joint -> position, rad or m; empty: no homing
    speed: float = 0.2  # homing speed as a share of every velocity limit, 0 < speed <= 1
    tolerance: float = 0.02  # largest distance from home at the end, in the joint's unit
    timeout_s: float | None = None  # time limit of homing; None: that of the reset
    confirm: Confirmation = ""  # channel of the operator's confirmation


def validate_home(contract: Contract, home: Mapping[str, float]) -> dict[str, str]:
    """Return joint -> why it cannot be driven to its position in `home`, or that it has none."""
    layout = ActionLayout(contract)
    is_measured = MeasuredJoints(contract, layout.joints).known
    sendable = [joint for joint, is_velocity in zip(layout.joints, layout.is_velocity, strict=True) if not is_velocity]
    problems = {}
    for joint, position in home.items():
        if joint not in layout.joints:
            problems[joint] = f"no such joint: {one_of(joint, sendable)}"
            continue
        index = layout.joints.index(joint)
        low, high = float(layout.limits.position_low[index]), float(layout.limits.position_high[index])
        if joint not in sendable:
            problems[joint] = f"commanded by velocity (expected one of: {', '.join(sendable) or 'none'})"
        elif not is_measured[index]:
            problems[joint] = "no agent-visible sensor reports its position"
        elif not low <= position <= high:
            problems[joint] = f"{position} (expected {low:g} to {high:g}, the limits after margins)"
        elif not np.isnan(layout.scale.threshold[index]):
            ends = layout.scale.si_low[index].item(), layout.scale.si_high[index].item()
            if position not in ends:
                problems[joint] = f"{position} (expected {ends[0]:g} or {ends[1]:g}, with scale: binary)"
    missing = [joint for joint in sendable if joint not in home]
    return problems | dict.fromkeys(missing, "missing (expected the home of every joint commanded by position)")


def routine_to_start(
    contract: Contract, start: EpisodeStart, measured: FloatArray, routine: ResetRoutine
) -> tuple[ResetRoutine, str]:
    """Return `routine` with the positions of `start` as its home.

    Also return the largest distance from them in text. There is no home if all joints are within the tolerance already.
    `measured` has NaN for joints without a sensor. Wheels, which turn without limits, and the pose of a base have no
    start.

    Raises:
        BackendNotReadyError: with the distance of a joint that cannot be driven to the start.
    """
    layout = ActionLayout(contract)
    low, high, scale = layout.limits.position_low, layout.limits.position_high, layout.scale
    wanted = np.array([start.positions.get(joint, np.nan) for joint in layout.joints])
    away = np.abs(nearest_turn(measured, wanted, layout.turns) - wanted)
    away = np.where(layout.is_velocity & ~np.isfinite(low), 0.0, away)
    i = int(np.argmax(np.where(np.isnan(away), np.inf, away)))
    farthest = f"{layout.joints[i]} is at {measured[i]:.6g}, {away[i]:.6g} from the recorded start {wanted[i]:.6g}"
    unknown = start.positions.keys() - {*layout.joints}
    if not unknown and (away <= routine.tolerance).all():
        return replace(routine, home={}), farthest
    ends = np.where(np.abs(wanted - scale.si_low) <= np.abs(wanted - scale.si_high), scale.si_low, scale.si_high)
    goal = np.where(np.isnan(scale.threshold), np.clip(wanted, low, high), ends)
    kept = layout.is_velocity & (away <= routine.tolerance)
    is_given = ~kept & np.isfinite(wanted)
    home = {joint: goal[j].item() for j, joint in enumerate(layout.joints) if is_given[j]}
    home |= dict.fromkeys(unknown, math.nan)
    beyond = np.abs(goal - wanted) > routine.tolerance
    problems = {layout.joints[j]: "outside the limits after margins" for j in np.flatnonzero(is_given & beyond)}
    if problems := problems | validate_home(contract, home):
        joint, problem = next(iter(problems.items()))
        remedy = "move it there by hand, or play another episode"
        raise BackendNotReadyError(f"{start.label} cannot begin: {farthest}; {joint}: {problem}; {remedy}")
    return replace(routine, home=home), farthest


def confirmation_prompt(options: Mapping[str, FloatArray], contract: Contract, positions: FloatArray) -> str:
    """Return the question to the operator, with reset options and known joint positions."""
    wanted = ", ".join(f"{name}={(np.round(value, 3) + 0.0).tolist()}" for name, value in options.items())  # no -0.0
    units = {joint: limits.unit for each in contract.actuators.values() for joint, limits in each.joints.items()}
    measured = ", ".join(
        f"{joint} {position:.3f} {unit}"
        for (joint, unit), position in zip(units.items(), np.round(positions, 3) + 0.0, strict=True)
        if math.isfinite(position)
    )
    return f"start the episode? reset options to set up: {wanted or 'none'}; joint positions: {measured or 'unknown'}"


def with_operator_confirmation(report: ResetReport, by: Confirmation, request: ResetRequest) -> ResetReport:
    """Return the report of a reset after the operator has confirmed the displayed options."""
    given = {name: request.options[name] for name in report.ignored}
    set_up = {"options": f"set up by the operator: {', '.join(given)}"} if given else {}
    return replace(
        report, confirmed_by=by, sampled={**report.sampled, **given}, details={**report.details, **set_up}, ignored=()
    )


_LEAST, _MOST = math.ulp(0.0), 1.0 - 2.0**-53  # a quantile is finite within these


def draw_options(
    options: Mapping[str, ResetOption],
    seed: int,
    given: Mapping[str, FloatArray],
    rng: np.random.Generator | None = None,
) -> dict[str, FloatArray]:
    """Return the `given` value of each reset option, or one drawn by `seed`.

    Every option is drawn, so that setting one does not shift another. Uniform options share `rng` in the order of
    their names (None stands for a new one of the seed). Each other option has a generator of the seed and its name.
    """
    shared = np.random.default_rng(seed) if rng is None else rng
    values = {}
    for name, option in sorted(options.items()):
        is_uniform = option.distribution == "uniform"
        own = shared if is_uniform else np.random.default_rng([seed, *b"reset_options.", *name.encode()])
        drawn = np.asarray(_draw(option, own))
        values[name] = np.array(given.get(name, drawn), dtype=np.float64)
        values[name].flags.writeable = False  # tasks see it before the record does
    return values


def with_observed_options(
    report: ResetReport, options: Mapping[str, ResetOption], request: ResetRequest
) -> ResetReport:
    """Return a backend's report with draws of observed options that its world lacks."""
    missing = [name for name, option in options.items() if option.observed and name not in report.sampled]
    if not missing:
        return report
    values = draw_options(options, request.seed, request.options)
    sampled = {**report.sampled, **{name: values[name] for name in missing}}
    return replace(report, sampled=sampled, ignored=tuple(name for name in report.ignored if name not in missing))


def _draw(option: ResetOption, rng: np.random.Generator) -> FloatArray | float:
    if option.values is not None:
        return np.array(option.values[int(rng.integers(len(option.values)))])
    low, high = option.low_array, option.high_array
    if option.distribution == "log_uniform":
        return np.clip(np.exp(rng.uniform(np.log(low), np.log(high))), low, high)
    if option.distribution == "normal":
        columns = np.broadcast_arrays(rng.random(low.shape), np.array(option.mean), np.array(option.std), low, high)
        drawn = [
            _truncated_normal(*each) for each in zip(*(column.ravel().tolist() for column in columns), strict=True)
        ]
        return np.reshape(drawn, low.shape)
    return rng.uniform(low, high)


def _truncated_normal(share: float, mean: float, std: float, low: float, high: float) -> float:
    """Return the quantile of a truncated normal at `share` in [0, 1), without rejection."""
    normal = NormalDist(mean, std)
    below = normal.cdf(low)
    quantile = below + share * (normal.cdf(high) - below)
    return min(max(normal.inv_cdf(min(max(quantile, _LEAST), _MOST)), low), high)
