"""Seeded moves within the limits of a contract that show the response of joints.

Each begins and ends at rest in the same place. A calibration takes gentle moves of one joint, an identification sines
of many frequencies on all joints together, and steps of each joint as fast as its limits allow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.spaces import ActionLayout
from embodied_env.errors import UsageError

# shares of the range of a joint, or of its way in ten seconds at its greatest velocity
GENTLE_AMPLITUDE, BRISK_AMPLITUDE = 0.01, 0.05

_SPEED = 0.1  # gentle moves: of the velocity limit
_CHANGE = 0.45  # of the velocity change per period that the acceleration limits allow
_MOVING, _RESTING = 12, 6  # periods: half a move, at rest after it
_RUNS = (2, 5)  # periods between two changes of velocity
_BRISK_SPEED, _BRISK_CHANGE = 0.5, 0.7  # the same of moves for an identification
_SINES = 10
_SINES_S, _HOLD_S = 4.0, 0.5  # of a sum of sines, and at rest after each step
_HIGHEST_HZ, _HIGHEST_SHARE = 4.0, 0.1  # frequency of a sine, and its share of the control rate
_ROOM = 10  # periods of an episode without sines
_RAMP = 0.15  # share of a sum of sines in which it grows, and in which it fades
_STEPS = (0.2, -1.0, 0.5)  # sizes of the steps of a joint


class PlannedMove(NamedTuple):
    """Velocities in unit/s, (n_periods, n_joints), of a move named like its joint or itself."""

    name: str
    velocities: FloatArray


class _Bounds(NamedTuple):
    """Maximum velocity, velocity change per period and displacement of a joint, in its unit."""

    fastest: float
    change: float
    way: float


def gentle_moves(
    contract: Contract, joints: Sequence[str], *, amplitude: float, repeats: int, seed: int
) -> list[PlannedMove]:
    """Return `repeats` slow moves of each joint there and back, over `amplitude` of its range."""
    rng, layout, period_s = np.random.default_rng(seed), ActionLayout(contract), contract.control_period_s
    moves = []
    for joint in list(joints) * repeats:
        fastest, change, way = _bounds(contract, layout, joint, (_SPEED, _CHANGE), amplitude)
        velocities = draw_velocities(rng, fastest=fastest, change=change, way=way, period_s=period_s)
        moves.append(_move_of_one(joint, layout, velocities))
    return moves


def brisk_moves(
    contract: Contract, joints: Sequence[str], *, amplitude: float = BRISK_AMPLITUDE, repeats: int = 3, seed: int = 0
) -> list[PlannedMove]:
    """Return `repeats` times a sum of sines on all joints, and three steps of each.

    The moves cover at most `amplitude` of a range. Raises UsageError for an amplitude that is not above 0 and at most
    0.5.
    """
    if not 0.0 < amplitude <= 0.5:
        raise UsageError(f"invalid amplitude: {amplitude} (expected above 0, at most 0.5)")
    rng, layout, period_s = np.random.default_rng(seed), ActionLayout(contract), contract.control_period_s
    bounds = {joint: _bounds(contract, layout, joint, (_BRISK_SPEED, _BRISK_CHANGE), amplitude) for joint in joints}
    longest, shortest = (round(each_s / period_s) for each_s in (_SINES_S, 2.0 * _HOLD_S))
    periods = max(shortest, min(longest, contract.episode.horizon_steps - _ROOM))
    moves = []
    for _ in range(repeats):
        sines = np.zeros((periods, layout.size))
        for joint in joints:
            sines[:, layout.joints.index(joint)] = _draw_sines(rng, len(sines), bounds[joint], period_s)
        moves.append(PlannedMove("sines", sines))
        for joint in joints:
            sizes = np.array(_STEPS) * rng.uniform(0.8, 1.0) * rng.choice([-1.0, 1.0])
            steps = (_step_and_back(size, bounds[joint], period_s) for size in sizes.tolist())
            moves += [_move_of_one(joint, layout, each) for each in steps]
    return moves


def _bounds(
    contract: Contract, layout: ActionLayout, name: str, shares: tuple[float, float], amplitude: float
) -> _Bounds:
    limits, period_s, joint = layout.limits, contract.control_period_s, layout.joints.index(name)
    fastest = shares[0] * float(min(-limits.velocity_low[joint], limits.velocity_high[joint]))
    span = float(limits.position_high[joint] - limits.position_low[joint])
    way = amplitude * (span if np.isfinite(span) else 10.0 * float(limits.fastest[joint]))
    change = shares[1] * float(min(limits.acceleration[joint], limits.deceleration[joint])) * period_s
    return _Bounds(fastest, min(change, 0.2 * float(limits.jerk[joint]) * period_s**2), way)


def _move_of_one(joint: str, layout: ActionLayout, velocities: FloatArray) -> PlannedMove:
    planned = np.zeros((len(velocities), layout.size))
    planned[:, layout.joints.index(joint)] = velocities
    return PlannedMove(joint, planned)


def draw_velocities(
    rng: np.random.Generator, *, fastest: float, change: float, way: float, period_s: float
) -> FloatArray:
    """Return the velocities of a move there and back, one per period, in unit/s.

    The joint is at rest in the middle and at the end. `fastest` is the greatest velocity, `change` the greatest change
    of velocity per period, `way` the greatest displacement, in the unit of the joint.
    """
    goals: list[float] = []
    sign = rng.choice([-1.0, 1.0])
    while len(goals) < _MOVING:
        goals += [sign * fastest * rng.uniform(0.5, 1.0)] * int(rng.integers(*_RUNS))
        sign = -sign if rng.random() < 0.7 else sign
    velocity, there = 0.0, np.zeros(_MOVING)
    for i in range(_MOVING):
        reach = change * (_MOVING - 1 - i)  # so that it comes to rest in time
        velocity += float(np.clip(np.clip(goals[i], -reach, reach) - velocity, -change, change))
        there[i] = velocity
    there *= min(1.0, way / max(1e-12, float(np.abs(np.cumsum(there)).max()) * period_s))
    rest = np.zeros(_RESTING)
    return np.concatenate([there, rest, -there[::-1], rest])


def _draw_sines(rng: np.random.Generator, periods: int, bounds: _Bounds, period_s: float) -> FloatArray:
    """Return the velocities of a sum of sines with equal peak velocity and random phase."""
    times_s, rest = np.arange(periods + 1) * period_s, max(1, round(_HOLD_S / period_s))
    moving_s = (periods - rest) * period_s
    highest = min(_HIGHEST_HZ, _HIGHEST_SHARE / period_s)
    frequencies = np.geomspace(2.0 / moving_s, highest, _SINES) * rng.uniform(0.9, 1.1, _SINES)
    phases = rng.uniform(0.0, 2.0 * np.pi, _SINES)
    waves = np.sin(2.0 * np.pi * frequencies * times_s[:, np.newaxis] + phases) / frequencies
    ramp = np.clip(np.minimum(times_s, moving_s - times_s) / (_RAMP * moving_s), 0.0, 1.0)
    places = np.sin(0.5 * np.pi * ramp) ** 2 * waves.sum(axis=1)
    velocities: FloatArray = np.diff(places) / period_s
    change = float(np.abs(np.diff(velocities, prepend=0.0, append=0.0)).max())
    most = max(np.abs(velocities).max() / bounds.fastest, change / bounds.change, np.abs(places).max() / bounds.way)
    velocities /= max(1e-12, float(most))
    return velocities


def _step_and_back(size: float, bounds: _Bounds, period_s: float) -> FloatArray:
    way = abs(size) * bounds.way
    ramp = max(1, int(min(bounds.fastest / bounds.change, (way / (bounds.change * period_s)) ** 0.5)))
    fastest = min(bounds.fastest, ramp * bounds.change)
    flat = max(0, int(way / (fastest * period_s)) - ramp)
    rising = np.arange(1, ramp + 1) / ramp
    there: FloatArray = np.concatenate([rising, np.ones(flat), rising[-2::-1]])
    there *= math.copysign(min(fastest, way / (period_s * float(there.sum()))), size)
    rest = np.zeros(max(1, round(_HOLD_S / period_s)))
    return np.concatenate([there, rest, -there, rest])
