"""How commands become motion: dead time and lag, by least squares over what was commanded and what was measured.

The model of a joint: what is commanded, `dead_s` later, through (1 + z s) / (1 + a1 s + a2 s^2 + a3 s^3), times a gain.
The dead time is when a joint begins to act; the lag a1 - z is how much it trails a command that moves steadily,
whatever the poles are. Three poles hold a servo of the second order behind a filter. The zero z is that of a body that
swings after a change of velocity; it is 0 for positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from embodied_env.latency.course import Move, Shape, course_of
from embodied_env.latency.intervals import grouped_interval
from embodied_env.transition import FloatArray

_GRID_S = 0.002
_PADDING_S = 0.6  # so that the end of a move does not come round to its begin
_ORDER = 3
_PER_JOINT = _ORDER + 2  # and a gain, and a zero
_STARTS = (0.2, 0.45, 0.7)  # how much of the whole delay is dead time, to begin with
_ROUGH, _FINE = 8, 40  # rounds of a search
_WEIGHINGS = 2
_ENOUGH = 1e-5  # s: a smaller change of the dead time ends a search
_NEGLIGIBLE_S = 5e-4  # a pole whose whole effect is that of a smaller delay
_STAMPS_S = 5e-4  # neither stamps of publications nor the place of clocks to each other are known better
_LEAST_JOINTS = 3  # that show how much joints differ
_ONE_JOINT_S = 0.0015  # how far the poles of a stiff arm were found to lead astray, of one joint
_LEAST_LOG = -20.0  # of the filter's coefficients: none
_SHIFT_S = 0.001  # by which a command is shifted to see what that changes


@dataclass(frozen=True, kw_only=True)
class Response:
    """What was fitted. `parameters`: dead_s, of each joint three logarithms, gain and zero, then each move's offset.

    `jacobian`, `residuals`, `groups` (parts of moves) and `joints` have one row per reading, weighted by what is known
    of its errors: noise, and commands that come into force a little earlier or later than the others. `jitter_s` is how
    much (one standard deviation). `simple_dead_s` and `simple_lag_s` are by the fewest poles that the readings allow.
    `explained` is the share of the motion that the model explains.
    """

    dead_s: float
    lags_s: dict[str, float]
    shape: Shape
    explained: float
    parameters: FloatArray
    jacobian: FloatArray
    residuals: FloatArray
    groups: NDArray[np.intp]
    joints: NDArray[np.intp]
    jitter_s: float
    simple_dead_s: float
    simple_lag_s: float

    def dead_time(self) -> Fitted:
        """Return the dead time, in the middle between few poles and many: readings that allow both do not say which."""
        weights = np.zeros(len(self.parameters))
        weights[0] = 1.0
        return self._fitted(weights, self.dead_s, self.simple_dead_s)

    def lag(self) -> Fitted:
        """Return the lag, the mean over the joints, likewise."""
        weights = np.zeros(len(self.parameters))
        for i in range(len(self.lags_s)):
            at = 1 + _PER_JOINT * i
            weights[at : at + 2] = np.exp(self.parameters[at : at + 2]) / len(self.lags_s)
            weights[at + _ORDER + 1] = -1.0 / len(self.lags_s)
        return self._fitted(weights, float(np.mean(list(self.lags_s.values()))), self.simple_lag_s)

    def _fitted(self, weights: FloatArray, full_s: float, simple_s: float) -> Fitted:
        half_s, moved_s = grouped_interval(self.jacobian, self.residuals, self.groups, weights)
        value_s, n = (full_s + simple_s) / 2.0, len(moved_s)
        single_s = value_s - (n - 1) * (moved_s - moved_s.mean())
        model_s = max(_ONE_JOINT_S, self.jitter_s)  # what the poles do not explain looks like commands that vary
        if len(self.lags_s) >= _LEAST_JOINTS:  # no joint is quite as the model says, each in its own way
            model_s, _ = grouped_interval(self.jacobian, self.residuals, self.joints, weights)
        half_s = max(half_s, model_s) + abs(full_s - simple_s) / 2.0 + _STAMPS_S
        return Fitted(value_s=value_s, half_s=half_s, single_s=single_s)


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A value, the half width of its interval of confidence, and what each part of a move says, shape (n,)."""

    value_s: float
    half_s: float
    single_s: FloatArray


def fit_response(
    moves: Sequence[Move], period_s: float, shapes: Sequence[Shape], start_s: float, *, swings: bool = False
) -> Response:
    """Fit dead time and lags to `moves`; of the `shapes` the one that explains more.

    Args:
        moves: of any joints.
        period_s: the control period.
        shapes: what a controller may make of commands.
        start_s: dead time and lag together, about.
        swings: whether a joint may overshoot as a body does that swings: one that is commanded by velocity.

    Raises:
        ValueError: when no fit comes to an end.
    """
    problems = [_Problem(moves, period_s, shape, swings=swings) for shape in shapes]
    found = [
        (cost, i, parameters)
        for i, problem in enumerate(problems)
        for share in _STARTS
        for parameters, cost in [problem.search(problem.begin(share * start_s, (1.0 - share) * start_s), _ROUGH)]
        if np.isfinite(cost)
    ]
    if not found:
        raise ValueError("no dead time and lag explain how the commands became motion")
    _, best, parameters = min(found, key=lambda each: each[:2])
    return problems[best].solve(parameters)


class _Problem:
    """The least squares over moves, all on even grids of one length."""

    def __init__(self, moves: Sequence[Move], period_s: float, shape: Shape, *, swings: bool) -> None:
        self._moves, self._period_s, self._shape = moves, period_s, shape
        self._joints = list(dict.fromkeys(move.joint for move in moves))
        self._size = 1 + _PER_JOINT * len(self._joints) + len(moves)
        begins_s = [min(move.commanded_s[0], move.read_s[0]) - _GRID_S for move in moves]
        ends_s = [max(move.commanded_s[-1] + period_s, move.read_s[-1]) + _PADDING_S for move in moves]
        longest_s = max(end_s - begin_s for begin_s, end_s in zip(begins_s, ends_s, strict=True))
        self._count = 1 << int(np.ceil(np.log2(longest_s / _GRID_S)))
        self._grids_s = [begin_s + _GRID_S * np.arange(self._count) for begin_s in begins_s]
        self._s = 2j * np.pi * np.fft.rfftfreq(self._count, _GRID_S)
        self._spectra = np.stack([self._spectrum(i, move) for i, move in enumerate(moves)])
        self._of_joint = np.array([self._joints.index(move.joint) for move in moves])
        ends = np.cumsum([len(move.readings) for move in moves])
        self._rows = [slice(int(end) - len(move.readings), int(end)) for end, move in zip(ends, moves, strict=True)]
        self._readings = np.concatenate([move.readings for move in moves])
        self._weighing: list[tuple[FloatArray, FloatArray]] = []
        zeros = np.arange(_PER_JOINT, 1 + _PER_JOINT * len(self._joints), _PER_JOINT)
        self._swings = swings
        self._never = zeros[:0] if swings else zeros
        self._absent = self._never  # parameters that stay as they are

    def begin(self, dead_s: float, lag_s: float) -> FloatArray:
        """Return parameters to begin with."""
        of_joint = [*np.log([lag_s / 2.0, lag_s / 2.0, (lag_s / 4.0) ** 2]), 1.0, 0.0]
        offsets = [move.readings[0] for move in self._moves]
        return np.array([dead_s, *of_joint * len(self._joints), *offsets])

    def search(self, parameters: FloatArray, rounds: int) -> tuple[FloatArray, float]:
        """Find the least squares by Levenberg's and Marquardt's method; return the parameters and the cost there."""
        damping = 1e-3
        jacobian, residuals = self._weighted(*self._linearised(parameters))
        cost = float(residuals @ residuals)
        lags = np.arange(1, 1 + _PER_JOINT * len(self._joints)).reshape(-1, _PER_JOINT)[:, :_ORDER].ravel()
        for _ in range(rounds):
            jacobian[:, self._absent] = 0.0
            normal = jacobian.T @ jacobian
            diagonal = np.diag(damping * np.diag(normal) + 1e-12 * np.trace(normal) / len(normal))
            step = np.linalg.solve(normal + diagonal, jacobian.T @ residuals)
            step[self._absent] = 0.0
            step[lags] = np.clip(step[lags], -1.0, 1.0)
            tried = parameters + step
            tried[0] = max(0.0, tried[0])
            tried[lags] = np.maximum(_LEAST_LOG, tried[lags])
            new_jacobian, new_residuals = self._weighted(*self._linearised(tried))
            new_cost = float(new_residuals @ new_residuals)
            if not new_cost < cost:
                damping *= 8.0
                if damping > 1e8:
                    break
                continue
            is_done = abs(tried[0] - parameters[0]) < _ENOUGH and cost - new_cost < 1e-5 * cost
            parameters, jacobian, residuals, cost = tried, new_jacobian, new_residuals, new_cost
            damping = max(1e-9, damping / 8.0)
            if is_done:
                break
        return parameters, cost

    def solve(self, parameters: FloatArray) -> Response:
        """Go on from `parameters`, with readings weighted by what their errors turn out to be."""
        jitter_s = 0.0
        for _ in range(_WEIGHINGS):
            jitter_s = self._weigh(parameters)
            parameters, _ = self.search(parameters, _FINE)
        simple = self._simplest(parameters)
        plain_jacobian, plain = self._linearised(parameters)
        sizes = np.sqrt((plain_jacobian**2).sum(axis=0))
        poles = np.arange(1, 1 + _PER_JOINT * len(self._joints)).reshape(-1, _PER_JOINT)[:, :_ORDER].ravel()
        plain_jacobian[:, poles[sizes[poles] < _NEGLIGIBLE_S * sizes[0]]] = 0.0  # of a pole that is as good as absent
        jacobian, residuals = self._weighted(plain_jacobian, plain)
        spread = sum(float(((move.readings - move.readings.mean()) ** 2).sum()) for move in self._moves)
        firsts = np.cumsum([0, *(int(move.halves.max()) + 1 for move in self._moves)])
        return Response(
            dead_s=float(parameters[0]),
            lags_s=dict(zip(self._joints, self._lags_s(parameters).tolist(), strict=True)),
            shape=self._shape,
            explained=1.0 - float(plain @ plain) / max(1e-300, spread),
            parameters=parameters,
            jacobian=jacobian,
            residuals=residuals,
            groups=np.concatenate([first + move.halves for first, move in zip(firsts, self._moves, strict=False)]),
            joints=np.concatenate(
                [np.full(len(m.readings), i) for m, i in zip(self._moves, self._of_joint, strict=True)]
            ),
            jitter_s=jitter_s,
            simple_dead_s=float(simple[0]),
            simple_lag_s=float(np.mean(self._lags_s(simple))),
        )

    def _lags_s(self, parameters: FloatArray) -> FloatArray:
        of_joint = parameters[1 : 1 + _PER_JOINT * len(self._joints)].reshape(-1, _PER_JOINT)
        return np.asarray(np.exp(of_joint[:, :2]).sum(axis=1) - of_joint[:, _ORDER + 1])

    def _simplest(self, full: FloatArray) -> FloatArray:
        """Do without poles that the readings do not ask for (Akaike's criterion): they only blur the dead time."""
        columns = 1 + _PER_JOINT * np.arange(len(self._joints))
        count = len(self._readings)
        chosen, least = full, count * np.log(self.search(full, 1)[1]) + 2 * _ORDER * len(columns)
        lags_s = np.exp(full[columns]) + np.exp(full[columns + 1])
        for absent in ([0], [2], [0, 2]):
            if len(absent) > 1 and chosen is full:
                break
            begin = full.copy()
            self._absent = np.concatenate([self._never, *(columns + each for each in absent)])
            begin[columns + 1] = np.log(lags_s if 0 in absent else lags_s / 2.0)
            begin[columns] = np.log(lags_s / 2.0)
            begin[np.concatenate([columns + each for each in absent])] = _LEAST_LOG
            found, cost = self.search(begin, _FINE)
            criterion = count * np.log(cost) + 2 * (_ORDER - len(absent)) * len(columns)
            if criterion < least:
                chosen, least = found, criterion
        self._absent = self._never
        return chosen

    def _spectrum(self, index: int, move: Move) -> NDArray[np.complex128]:
        course = course_of(move, self._period_s, self._shape).averaged(self._grids_s[index])
        return np.fft.rfft(course)

    def _filters(self, parameters: FloatArray) -> tuple[NDArray[np.complex128], ...]:
        """Return what filters each move (first order, second order), and the delay; shape (n_moves, n_frequencies)."""
        logs = parameters[1 : 1 + _PER_JOINT * len(self._joints)].reshape(-1, _PER_JOINT)[self._of_joint, :_ORDER]
        filter_s, damping_s, inertia_s2 = (column[:, np.newaxis] for column in np.exp(logs).T)
        s = self._s[np.newaxis]
        return filter_s * s, damping_s * s, inertia_s2 * s * s, np.exp(-s * parameters[0])

    def _linearised(self, parameters: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the Jacobian, shape (n, n_parameters), and measured less modelled, shape (n,)."""
        first, damping, inertia, delay = self._filters(parameters)
        filtered, served = 1.0 + first, 1.0 + damping + inertia
        zeros_s = parameters[1 : 1 + _PER_JOINT * len(self._joints)].reshape(-1, _PER_JOINT)[self._of_joint, -1:]
        plain = self._spectra * delay / (filtered * served)
        moved = plain * (1.0 + zeros_s * self._s)
        bent = (
            self._s * plain,
            moved,
            -self._s * moved,
            -first / filtered * moved,
            -damping / served * moved,
            -inertia / served * moved,
        )
        curves = np.fft.irfft(np.stack(bent), self._count)
        jacobian, residuals = np.zeros((len(self._readings), self._size)), self._readings.copy()
        for i, (move, rows) in enumerate(zip(self._moves, self._rows, strict=True)):
            at = 1 + _PER_JOINT * int(self._of_joint[i])
            gain = parameters[at + _ORDER]
            by_zero, curve, by_dead, *of_joint = (np.interp(move.read_s, self._grids_s[i], each[i]) for each in curves)
            jacobian[rows, 0] = gain * by_dead
            for k, column in enumerate(of_joint):
                jacobian[rows, at + k] = gain * column
            jacobian[rows, at + _ORDER] = curve
            if self._swings:
                jacobian[rows, at + _ORDER + 1] = gain * by_zero
            jacobian[rows, self._size - len(self._moves) + i] = 1.0
            residuals[rows] -= gain * curve + parameters[self._size - len(self._moves) + i]
        return jacobian, residuals

    def _weighted(self, jacobian: FloatArray, residuals: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return both as if all errors were independent and of one size (generalised least squares)."""
        if not self._weighing:
            return jacobian, residuals
        both = np.concatenate([jacobian, residuals[:, np.newaxis]], axis=1)
        for rows, (directions, shares) in zip(self._rows, self._weighing, strict=True):
            both[rows] -= directions @ (shares[:, np.newaxis] * (directions.T @ both[rows]))
        return both[:, :-1], both[:, -1]

    def _weigh(self, parameters: FloatArray) -> float:
        """Take noise and jitter from the residuals: noise is what no shift of commands explains; return the jitter, s.

        The covariance of a move's errors is noise^2 I + jitter^2 E E^T, where E says how each shift shows.
        """
        _, residuals = self._linearised(parameters)
        effects = self._effects(parameters)
        noise, free, shifts = 0.0, 0, []
        for rows, effect in zip(self._rows, effects, strict=True):
            left, sizes, right = np.linalg.svd(effect, full_matrices=False)
            kept = sizes > 0.05 * sizes[0]
            left, sizes, right = left[:, kept], sizes[kept], right[kept]
            inside = left.T @ residuals[rows]
            noise += max(0.0, float(residuals[rows] @ residuals[rows] - inside @ inside))
            free += max(1, len(effect) - len(sizes))
            shifts.append(inside / sizes)
        noise /= free
        jitter = float(np.mean(np.concatenate(shifts) ** 2))
        size = float(np.mean([np.mean(effect**2) for effect in effects]))
        noise = max(noise, 1e-8 * jitter * size, 1e-300)
        self._weighing = []
        for effect in effects:
            left, sizes, _ = np.linalg.svd(effect, full_matrices=False)
            self._weighing.append((left, 1.0 - 1.0 / np.sqrt(1.0 + sizes**2 * jitter / noise)))
        return float(np.sqrt(jitter))

    def _effects(self, parameters: FloatArray) -> list[FloatArray]:
        """Return of each move how its readings change per s that a command is in force later: (n, n_commands)."""
        first, damping, inertia, delay = self._filters(parameters)
        zeros_s = parameters[1 : 1 + _PER_JOINT * len(self._joints)].reshape(-1, _PER_JOINT)[self._of_joint, -1:]
        through = delay * (1.0 + zeros_s * self._s) / ((1.0 + first) * (1.0 + damping + inertia))
        effects = []
        for i, move in enumerate(self._moves):
            gain = parameters[1 + _PER_JOINT * int(self._of_joint[i]) + _ORDER]
            base = course_of(move, self._period_s, self._shape).averaged(self._grids_s[i])
            changes = []
            for k in np.flatnonzero(np.diff(move.commands)) + 1:
                shifted = move.commanded_s.copy()
                shifted[k] += _SHIFT_S
                changed = replace(move, commanded_s=shifted)
                changes.append(course_of(changed, self._period_s, self._shape).averaged(self._grids_s[i]) - base)
            spectra = np.fft.rfft(np.stack(changes)) * through[i]
            curves = np.fft.irfft(spectra, self._count) * (gain / _SHIFT_S)
            effects.append(np.stack([np.interp(move.read_s, self._grids_s[i], curve) for curve in curves], axis=1))
        return effects
