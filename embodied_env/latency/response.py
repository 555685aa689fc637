"""How commands become motion: a dead time and a first-order lag of each move, by least squares.

A servo of higher order shows part of its lag as dead time. The sum of both is known much better than each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, signal

from embodied_env.latency.course import Move, Shape, course_of
from embodied_env.transition import FloatArray

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
        self._commands, self._ends_s = course_of(move, period_s, shape).averaged(grid_s), grid_s + _GRID_S / 2.0
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
