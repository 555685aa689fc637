"""Fit parameters by least squares, with intervals by a bootstrap of segments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from embodied_env.contract import FloatArray
from embodied_env.core.actuator_response import Move, Shape, delay_by_correlation
from embodied_env.core.terminal import Progress
from embodied_env.extensions.identification.rollouts import Parameter, Rollouts
from embodied_env.record.step_values import CommandedJoint

TOLERANCE = 0.15
"""Half width of an interval beyond which a parameter is undetermined, as a share of its value."""

_SMALLEST = 0.05  # share of the scale of a parameter that counts as its value, if that is smaller
_WIDEST = 20.0  # upper bound, in scales
_PRIOR = 3.0  # standard deviation, in scales
_LONGEST_DELAY_S = 0.4
_STEP = 2e-3  # of the numerical derivative, in scales
_PASSES = 3  # with the residuals of each joint and of odd segments weighted by those of the pass before
_ODD = 3.0  # residuals of a segment, in medians of all, above which it counts less
_MOST_EVALUATIONS = 30
_EXACTNESS = 1e-3  # share of the motion of a joint to which residuals count
_REPLICATES = 2000
_LEAST_WIDTH = 2e-3  # half width of the narrowest interval, as a share of the value
_MOST_MOVES = 30  # that start the delay of commands
_AT_BOUND = 1e-4  # scales, from a bound
_STRONG = 0.9  # correlation that a reason names


class Estimates(NamedTuple):
    """Value, 95 % interval and correlation of each parameter, the model's if not fitted."""

    values: FloatArray
    low: FloatArray
    high: FloatArray
    correlation: FloatArray


class ParameterFit:
    """Fits the `active` parameters of rollouts, in units of their scales, and no others."""

    def __init__(
        self,
        rollouts: Rollouts,
        parameters: Sequence[Parameter],
        active: Sequence[int],
        joints: Sequence[CommandedJoint],
        progress: Progress,
    ) -> None:
        """Resolve bounds and priors."""
        self._rollouts, self._parameters, self._active = rollouts, parameters, np.array(active, dtype=np.intp)
        self._progress = progress
        self._wraps = np.array([joint.wraps for joint in joints])[rollouts.joints]
        self._joints = joints
        self._scales = rollouts.scales[self._active]
        self._model = rollouts.values[self._active] / self._scales
        chosen = [parameters[index] for index in active]
        most = np.array([_LONGEST_DELAY_S if each.kind == "command_delay" else np.inf for each in chosen])
        least = np.array([0.05 if each.kind in ("gain", "mass") else 0.0 for each in chosen])
        low = [np.nan if each.low is None else each.low for each in chosen] / self._scales
        high = [np.nan if each.high is None else each.high for each in chosen] / self._scales
        self.low = np.where(np.isnan(low), least, low)
        widest = np.minimum(_WIDEST * np.maximum(1.0, self._model), most / self._scales)
        self.high = np.where(np.isnan(high), widest, high)
        prior = [np.nan if each.prior is None else each.prior for each in chosen] / self._scales
        self._prior = np.where(np.isnan(prior), _PRIOR * np.maximum(1.0, self._model), prior)

    def estimate(self, seed: int) -> Estimates:
        """Return the best values with their intervals, from a bootstrap with this seed."""
        from scipy.special import stdtrit

        x, joints = self._start(), self._rollouts.joints
        motion = self._by_joint(np.ptp, self._rollouts.readings)
        weights = (1.0 / motion)[joints]
        groups = self._rollouts.owners * len(self._joints) + joints
        readings, counts = self._rollouts.readings, np.maximum(1, np.bincount(groups))
        centred = readings - (np.bincount(groups, readings) / counts)[groups]
        for _ in range(_PASSES):
            x = self._solve(x, weights[:, np.newaxis])
            rest = self._residuals(x)
            rms = self._by_joint(lambda own: np.sqrt(np.mean(own * own)), rest)
            weights = (1.0 / np.maximum(rms, _EXACTNESS * motion))[joints]
            weights *= self._share_of_odd(weights * rest, weights * centred)
        moves = self._replicates(x, weights[:, np.newaxis], seed)
        count = int(self._rollouts.owners[-1]) + 1
        quantile = float(stdtrit(count - 1, 0.975)) * np.sqrt(count / (count - 1))
        half = np.maximum(quantile * moves.std(axis=0), _LEAST_WIDTH * np.maximum(x, _SMALLEST))
        values, low, high = (self._rollouts.values.copy() for _ in range(3))
        for ends, each in ((values, x), (low, np.maximum(x - half, self.low)), (high, np.minimum(x + half, self.high))):
            ends[self._active] = each * self._scales
        correlation = np.eye(len(values))
        correlation[np.ix_(self._active, self._active)] = np.clip(np.atleast_2d(np.corrcoef(moves.T)), -1.0, 1.0)
        return Estimates(values=values, low=low, high=high, correlation=correlation)

    def why_undetermined(self, index: int, found: Estimates) -> str:
        """Return why the runs do not determine a parameter, or ""."""
        place = int(np.flatnonzero(self._active == index)[0])
        value, low, high, scale = (float(each[index]) for each in (*found[:3], self._rollouts.scales))
        for bound in (self.low[place] * scale, self.high[place] * scale):
            if abs(value - bound) <= _AT_BOUND * scale and bound > 0.0:
                return f"its value is at the bound {bound:.3g}"
        if max(high - value, value - low) <= TOLERANCE * max(value, _SMALLEST * scale):
            return ""
        of_others = np.where(np.arange(len(found.values)) == index, 0.0, abs(found.correlation[index]))
        partner = int(of_others.argmax())
        with_ = f"; correlated with {self._parameters[partner].name}" if of_others[partner] > _STRONG else ""
        return f"its 95 % interval is {low:.3g} to {high:.3g}, more than {100 * TOLERANCE:.0f} % to a side{with_}"

    def _by_joint(self, size: Callable[[FloatArray], float], values: FloatArray) -> FloatArray:
        """Return the size of the values of each joint, above 0, or 1 for a joint without readings."""
        parts = [values[self._rollouts.joints == joint] for joint in range(len(self._joints))]
        sizes: FloatArray = np.array([max(1e-9, float(size(own))) if len(own) else 1.0 for own in parts])
        return sizes

    def _share_of_odd(self, rest: FloatArray, motion: FloatArray) -> FloatArray:
        """Return each reading's weight, below 1 in segments that fit far worse, as in a stall."""
        owners = self._rollouts.owners
        sizes = [np.sqrt(np.bincount(owners, each * each) / np.bincount(owners)) for each in (rest, motion)]
        odd = sizes[0], sizes[0] / np.maximum(sizes[1], 1e-12)
        shares = [np.minimum(1.0, _ODD * np.median(each) / np.maximum(each, 1e-12)) for each in odd]
        found: FloatArray = np.sqrt(np.maximum(*shares))[owners]
        return found

    def _start(self) -> FloatArray:
        """Return the model's values, with the delay of readings after simulated ones."""
        start: FloatArray = np.clip(self._model, self.low, self.high)
        for place, index in enumerate(self._active):
            if self._parameters[index].kind == "command_delay":
                rollouts, own = self._rollouts, self._rollouts.values
                delays = [self._delay_s(values) for values in (rollouts.readings, rollouts.simulate(own))]
                later = (delays[0] - delays[1]) / self._scales[place]
                start[place] = np.clip(self._model[place] + later, self.low[place], self.high[place])
        return start

    def _delay_s(self, values: FloatArray) -> float:
        """Return the delay at which commands and readings correlate best."""
        rollouts, moves = self._rollouts, list[Move]()
        for segment in range(int(rollouts.owners[-1]) + 1):
            for index, joint in enumerate(self._joints):
                own = (rollouts.owners == segment) & (rollouts.joints == index)
                if own.any() and np.ptp(rollouts.readings[own]) >= joint.step and len(moves) < _MOST_MOVES:
                    times_s, commands = rollouts.commands_of(segment, index)
                    read = {"read_s": rollouts.times_s[own], "readings": values[own]}
                    moves.append(Move(joint=joint.name, commanded_s=times_s, commands=commands, **read))
        if not moves:
            return 0.0
        shape: Shape = "step" if all(joint.quantity == "velocity" for joint in self._joints) else "line"
        return delay_by_correlation(moves, rollouts.period_s, shape, _LONGEST_DELAY_S)[0]

    def _simulate(self, x: FloatArray) -> FloatArray:
        self._progress.advance()
        values = self._rollouts.values.copy()
        values[self._active] = x * self._scales
        return self._rollouts.simulate(values)

    def _residuals(self, x: FloatArray) -> FloatArray:
        rest = self._simulate(x) - self._rollouts.readings
        wrapped = np.remainder(rest + np.pi, 2.0 * np.pi) - np.pi
        return np.asarray(np.where(self._wraps, wrapped, rest))

    def _slopes(self, x: FloatArray) -> FloatArray:
        """Return the derivatives of the readings, shape (n_readings, n_active)."""
        base, columns = self._simulate(x), []
        for place in range(len(x)):
            other = x.copy()
            other[place] += _STEP if x[place] + _STEP <= self.high[place] else -_STEP
            columns.append((self._simulate(other) - base) / (other[place] - x[place]))
        return np.stack(columns, axis=1)

    def _solve(self, x: FloatArray, weights: FloatArray) -> FloatArray:
        from scipy.optimize import least_squares

        def residuals(x: FloatArray) -> FloatArray:
            return np.append(weights[:, 0] * self._residuals(x), (x - self._model) / self._prior)

        def slopes(x: FloatArray) -> FloatArray:
            return np.vstack([weights * self._slopes(x), np.diag(1.0 / self._prior)])

        inside = np.clip(x, self.low + 1e-6, self.high - 1e-6)
        bounds, most = (self.low, self.high), _MOST_EVALUATIONS
        found = least_squares(residuals, inside, slopes, bounds, xtol=1e-5, ftol=1e-6, max_nfev=most)
        solution: FloatArray = found.x
        return solution

    def _replicates(self, x: FloatArray, weights: FloatArray, seed: int) -> FloatArray:
        """Return replicates of the values less `x`, shape (n_replicates, n_active).

        Each is one step of the fit from `x`, with as many drawn segments, and with drawn centres of the priors. The
        residuals of a segment are those of the fit without it, since its own fit makes them smaller.
        """
        rng, owners = np.random.default_rng(seed), self._rollouts.owners
        slopes, rest, count = weights * self._slopes(x), weights[:, 0] * self._residuals(x), int(owners[-1]) + 1
        parts = [owners == segment for segment in range(count)]
        squares = np.array([slopes[own].T @ slopes[own] for own in parts])
        gradients = np.array([slopes[own].T @ rest[own] for own in parts])
        whole = squares.sum(axis=0) + np.diag(1.0 / self._prior**2)
        others = np.eye(len(x)) - squares @ np.linalg.inv(whole)
        gradients = np.linalg.solve(others, gradients[..., np.newaxis])[..., 0]  # of the fit without the segment
        counts = rng.multinomial(count, np.full(count, 1.0 / count), size=_REPLICATES).astype(np.float64)
        centres = self._model + self._prior * rng.standard_normal((_REPLICATES, len(x)))
        of_priors = (x - centres) / self._prior**2
        left = np.tensordot(counts, squares, axes=1) + np.diag(1.0 / self._prior**2)
        steps: FloatArray = -np.linalg.solve(left, (counts @ gradients + of_priors)[..., np.newaxis])[..., 0]
        return steps
