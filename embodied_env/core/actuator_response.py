"""Response of a joint to its commands by dead time and first-order lag of moves.

A controller may apply a command at once ("step"), or reach it along a line over a control period ("line").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from embodied_env.core.types import FloatArray
from embodied_env.errors import MissingDependencyError

try:
    import scipy
except ImportError:
    raise MissingDependencyError("scipy", needed_for="a fit of a response") from None

Shape = Literal["line", "step"]

_DELAY_STEP_S = 0.002
_GRID_S = 0.001
_DEAD_SHARE = 0.3  # of the whole delay, where the search starts
_SCALE_S = 0.01  # size of both parameters, for the trust region
_RELATIVE_STEP = 1e-3  # of the numerical derivative: far above the kinks of interpolated curves


@dataclass(frozen=True, kw_only=True)
class Move:
    """Motion of one joint that ends where it began, all others at rest.

    Times are seconds of one clock. `commanded_s` and `commands`, shape (n,): when each command was published, and its
    position or velocity. `read_s` and `readings`, shape (m,): the same of the readings.
    """

    joint: str
    commanded_s: FloatArray
    commands: FloatArray
    read_s: FloatArray
    readings: FloatArray


@dataclass(frozen=True, kw_only=True)
class CommandTrajectory:
    """The motion of a controller relative to its initial value `first`, linear between corners."""

    first: float
    corners_s: FloatArray
    values: FloatArray

    def at(self, times_s: FloatArray) -> FloatArray:
        """Return the values at `times_s`."""
        return np.asarray(np.interp(times_s, self.corners_s, self.values), dtype=np.float64)

    def averaged(self, grid_s: FloatArray) -> FloatArray:
        """Return the mean of each cell of an even grid, which keeps the place of steps."""
        edges = np.append(grid_s, 2.0 * grid_s[-1] - grid_s[-2]) - 0.5 * (grid_s[1] - grid_s[0])
        times = np.concatenate([self.corners_s, edges])
        order = np.argsort(times, kind="stable")
        values = np.concatenate([self.values, self.at(edges)])[order]
        times = times[order]
        area = np.concatenate([[0.0], np.cumsum(np.diff(times) * (values[1:] + values[:-1]) / 2.0)])
        means: FloatArray = np.diff(np.interp(edges, times, area)) / np.diff(edges)
        return means


def command_trajectory(move: Move, period_s: float, shape: Shape) -> CommandTrajectory:
    """Return the motion that an ideal controller makes of the commands of `move`."""
    first = float(move.commands[0])
    if shape == "step":
        before = np.concatenate([[first], move.commands[:-1]])
        corners, values = np.repeat(move.commanded_s, 2), np.stack([before, move.commands], axis=1).ravel()
        return CommandTrajectory(first=first, corners_s=corners, values=values - first)
    corners_s, line = [float(move.commanded_s[0])], [first]
    start_s, start, target = corners_s[0], first, first
    for at_s, value in zip(move.commanded_s[1:].tolist(), move.commands[1:].tolist(), strict=True):
        if at_s > start_s + period_s:
            corners_s.append(start_s + period_s)
            line.append(target)
        start += min(1.0, (at_s - start_s) / period_s) * (target - start)
        corners_s.append(at_s)
        line.append(start)
        start_s, target = at_s, value
    corners_s.append(start_s + period_s)
    line.append(target)
    return CommandTrajectory(first=first, corners_s=np.array(corners_s), values=np.array(line) - first)


def delay_by_correlation(moves: Sequence[Move], period_s: float, shape: Shape, longest_s: float) -> tuple[float, float]:
    """Return the delay, s, at which commands and motion correlate best, and the correlation.

    The delay is dead time and lag together.
    """
    delays = np.arange(0.0, longest_s, _DELAY_STEP_S)
    both, commands, readings = np.zeros((3, len(delays)))
    for move in moves:
        trajectory, y = command_trajectory(move, period_s, shape), move.readings - move.readings.mean()
        x = trajectory.at(move.read_s - delays[:, np.newaxis])
        x -= x.mean(axis=1, keepdims=True)
        both += x @ y
        commands += (x * x).sum(axis=1)
        readings += y @ y
    score = np.abs(both) / np.maximum(1e-300, np.sqrt(commands * readings))
    best = int(score.argmax())
    return peak(delays, score, best), float(score[best])


@dataclass(frozen=True, kw_only=True)
class ActuatorResponse:
    """Fit of each move.

    `dead_s` and `lags_s`, s, have shape (n_moves,). `explained` is the share of the motion that the model explains, at
    most 1, and 0 where nothing moved.
    """

    dead_s: FloatArray
    lags_s: FloatArray
    shape: Shape
    explained: float


def fit_response(moves: Sequence[Move], period_s: float, shapes: Sequence[Shape], start_s: float) -> ActuatorResponse:
    """Fit a dead time and a first-order lag to each move, with the best of `shapes`.

    The search starts at dead time and lag of `start_s` together, above 0. Raises ValueError for readings that are not
    finite.
    """
    return max((_fit(moves, period_s, shape, start_s) for shape in shapes), key=lambda response: response.explained)


def _fit(moves: Sequence[Move], period_s: float, shape: Shape, start_s: float) -> ActuatorResponse:
    found, left, whole = np.zeros((len(moves), 2)), 0.0, 0.0
    for i, move in enumerate(moves):
        motion = move.readings - move.readings.mean()
        grid_s = np.arange(move.commanded_s[0] - _GRID_S, move.read_s[-1] + _GRID_S, _GRID_S)
        fit = scipy.optimize.least_squares(
            _residuals,
            [_DEAD_SHARE * start_s, (1.0 - _DEAD_SHARE) * start_s],
            args=(command_trajectory(move, period_s, shape).averaged(grid_s), grid_s, move.read_s, motion),
            bounds=(0.0, np.inf),
            x_scale=_SCALE_S,
            diff_step=_RELATIVE_STEP,
        )
        found[i], left, whole = fit.x, left + 2.0 * float(fit.cost), whole + float(motion @ motion)
    explained = 1.0 - left / whole if whole else 0.0
    return ActuatorResponse(dead_s=found[:, 0], lags_s=found[:, 1], shape=shape, explained=explained)


def _residuals(
    parameters: FloatArray, commands: FloatArray, grid_s: FloatArray, read_s: FloatArray, motion: FloatArray
) -> FloatArray:
    """Return measured less modelled motion, shape (m,), with the best gain and offset."""
    dead_s, lag_s = parameters
    kept = np.exp(-_GRID_S / max(1e-9, lag_s))
    lagged = scipy.signal.lfilter([1.0 - kept], [1.0, -kept], commands)
    model = np.interp(read_s - dead_s, grid_s + _GRID_S / 2.0, lagged)
    model -= model.mean()
    residuals: FloatArray = motion - model * (model @ motion) / max(1e-300, model @ model)
    return residuals


def peak(x: FloatArray, y: FloatArray, best: int) -> float:
    """Return where the parabola through ``y[best]``, the greatest, and its neighbours peaks."""
    if not 0 < best < len(y) - 1:
        return float(x[best])
    left, middle, right = y[best - 1 : best + 2]
    bend = left - 2.0 * middle + right
    return float(x[best] + (x[1] - x[0]) * (0.5 * (left - right) / bend if bend < 0.0 else 0.0))
