"""Moves, and what a controller makes of their commands: the course, and the delay at which motion is most like it.

A controller may take a command as it is ("step"), or reach it along a straight line a control period later ("line").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import optimize, signal

from embodied_env.core.types import FloatArray

Shape = Literal["line", "step"]


@dataclass(frozen=True, kw_only=True)
class Move:
    """One joint that moved and came back to where, and as, it began; all others at rest.

    Times are seconds of one clock that is common to commands and readings. `commanded_s` and `commands` have shape
    (n,): when each was published, and its position, or its velocity. `read_s` and `readings` have shape (m,).
    """

    joint: str
    commanded_s: FloatArray
    commands: FloatArray
    read_s: FloatArray
    readings: FloatArray


def delay_by_correlation(moves: Sequence[Move], period_s: float, shape: Shape, longest_s: float) -> tuple[float, float]:
    """Return the delay at which commands and motion are most alike, and the correlation there.

    It is dead time and lag together.
    """
    delays = np.arange(0.0, longest_s, 0.002)
    score = np.zeros(len(delays))
    for i, delay_s in enumerate(delays):
        both = commands = readings = 0.0
        for move in moves:
            commanded = command_trajectory(move, period_s, shape).at(move.read_s - delay_s)
            x, y = commanded - commanded.mean(), move.readings - move.readings.mean()
            both, commands, readings = both + float(x @ y), commands + float(x @ x), readings + float(y @ y)
        score[i] = abs(both) / max(1e-300, (commands * readings) ** 0.5)
    best = int(score.argmax())
    return float(peak(delays, score, best)), float(score[best])


def peak(x: FloatArray, y: FloatArray, best: int) -> float:
    """Return where the parabola through the greatest of `y` and its neighbours is greatest."""
    if not 0 < best < len(y) - 1:
        return float(x[best])
    left, middle, right = y[best - 1 : best + 2]
    bend = left - 2.0 * middle + right
    return float(x[best] + (x[1] - x[0]) * (0.5 * (left - right) / bend if bend < 0.0 else 0.0))


@dataclass(frozen=True, kw_only=True)
class CommandTrajectory:
    """What a controller makes of commands, less what it began with: straight between its corners."""

    corners_s: FloatArray
    values: FloatArray

    def at(self, times_s: FloatArray) -> FloatArray:
        """Return its values at these times."""
        return np.asarray(np.interp(times_s, self.corners_s, self.values), dtype=np.float64)

    def averaged(self, grid_s: FloatArray) -> FloatArray:
        """Return the mean of each cell of an even grid around its point: a step keeps its place between two."""
        edges = np.append(grid_s, 2.0 * grid_s[-1] - grid_s[-2]) - 0.5 * (grid_s[1] - grid_s[0])
        times = np.concatenate([self.corners_s, edges])
        order = np.argsort(times, kind="stable")
        values = np.concatenate([self.values, self.at(edges)])[order]
        times = times[order]
        area = np.concatenate([[0.0], np.cumsum(np.diff(times) * (values[1:] + values[:-1]) / 2.0)])
        means: FloatArray = np.diff(np.interp(edges, times, area)) / np.diff(edges)
        return means


def command_trajectory(move: Move, period_s: float, shape: Shape) -> CommandTrajectory:
    """Return what a controller makes of the commands of `move`, which acts them out as `shape` says, at once."""
    first = float(move.commands[0])
    if shape == "step":
        before = np.concatenate([[first], move.commands[:-1]])
        corners, values = np.repeat(move.commanded_s, 2), np.stack([before, move.commands], axis=1).ravel()
        return CommandTrajectory(corners_s=corners, values=values - first)
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
    return CommandTrajectory(corners_s=np.array(corners_s), values=np.array(line) - first)


_GRID_S = 0.001
_DEAD_SHARE = 0.3  # of the whole delay, where the search starts
_SCALE_S = 0.01  # size of both parameters, for the trust region
_RELATIVE_STEP = 1e-3  # of the numerical derivative: far above the kinks of interpolated curves


@dataclass(frozen=True, kw_only=True)
class Response:
    """The fit of each move.

    `dead_s` and `lags_s`, s, have shape (n_moves,). `explained` is the share of the motion that the model explains: at
    most 1, and 0 where nothing moved.
    """

    dead_s: FloatArray
    lags_s: FloatArray
    shape: Shape
    explained: float


def fit_response(moves: Sequence[Move], period_s: float, shapes: Sequence[Shape], start_s: float) -> Response:
    """Fit a dead time and a lag to each of `moves`, with the one of `shapes` that explains more.

    Args:
        moves: moves of any joints, at least one.
        period_s: control period, s.
        shapes: candidates for what a controller makes of commands.
        start_s: first guess of dead time and lag together, s, above 0.

    Raises:
        ValueError: for readings that are not finite.
    """
    return max((_fit(moves, period_s, shape, start_s) for shape in shapes), key=lambda response: response.explained)


def _fit(moves: Sequence[Move], period_s: float, shape: Shape, start_s: float) -> Response:
    found, left, whole = np.zeros((len(moves), 2)), 0.0, 0.0
    for i, move in enumerate(moves):
        motion = move.readings - move.readings.mean()
        fit = optimize.least_squares(
            _Residuals(move, period_s, shape),
            [_DEAD_SHARE * start_s, (1.0 - _DEAD_SHARE) * start_s],
            bounds=(0.0, np.inf),
            x_scale=_SCALE_S,
            diff_step=_RELATIVE_STEP,
        )
        found[i], left, whole = fit.x, left + 2.0 * float(fit.cost), whole + float(motion @ motion)
    explained = 1.0 - left / whole if whole else 0.0  # nothing moved: nothing is known
    return Response(dead_s=found[:, 0], lags_s=found[:, 1], shape=shape, explained=explained)


class _Residuals:
    """Measured less modelled motion of one move; the best gain and offset are part of the model."""

    def __init__(self, move: Move, period_s: float, shape: Shape) -> None:
        grid_s = np.arange(move.commanded_s[0] - _GRID_S, move.read_s[-1] + _GRID_S, _GRID_S)
        self._commands, self._ends_s = (
            command_trajectory(move, period_s, shape).averaged(grid_s),
            grid_s + _GRID_S / 2.0,
        )
        self._read_s, self._motion = move.read_s, move.readings - move.readings.mean()

    def __call__(self, parameters: FloatArray) -> FloatArray:
        """Return the residuals, shape (m,), of a dead time and a lag, s."""
        dead_s, lag_s = parameters
        kept = np.exp(-_GRID_S / max(1e-9, lag_s))
        lagged = signal.lfilter([1.0 - kept], [1.0, -kept], self._commands)
        model = np.interp(self._read_s - dead_s, self._ends_s, lagged)
        model -= model.mean()
        residuals: FloatArray = self._motion - model * (model @ self._motion) / max(1e-300, model @ model)
        return residuals
