"""What a command is to the servos of a world that moves by itself: at any time, not only where a physics step begins.

Positions are reached along a straight line, one control period after the command; velocities act at once. Servos follow
with a lag of the first order, exactly. Times are in physics steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import FloatArray

_NOTHING = 1e-9  # of a step: less than a ns


class SetpointInterpolator:
    """Where servos are led to.

    MuJoCo integrates semi-implicitly: a joint follows the positions that its servo had where the steps began, and its
    way is that of the velocities during the steps. So those are what a step is given, and nothing is early or late.
    """

    def __init__(self, is_velocity: NDArray[np.bool_], *, period_steps: int, lag_steps: float = 0.0) -> None:
        """Command the joints of `is_velocity`, shape (n_joints,); `lag_steps` >= 0: the time constant of the lag."""
        self._is_velocity, self._period, self._lag = is_velocity, float(period_steps), lag_steps
        self.begin(np.zeros(len(is_velocity)))

    def begin(self, values: FloatArray) -> None:
        """Rest at `values`, shape (n_joints,)."""
        self._start = self._target = self._lagging = values
        self._done = 0.0  # steps since the command

    def command(self, values: FloatArray, *, done: float = 1.0) -> None:
        """Take a command of which `done` steps are done; 1, as in lockstep: it is where the next step leads to."""
        self._done -= done
        self._start = np.where(self._is_velocity, values, self._led() if self._done < self._period else self._target)
        self._target = values
        self._done = done

    def advance(self, commands: Sequence[tuple[float, FloatArray]] = ()) -> FloatArray:
        """Go on by a step; return its set-points, shape (n_joints,).

        Args:
            commands: those that come into force within it: after which part of it, in order, and the values.
        """
        begin = self._lagging if self._lag else self._led()
        area, at = np.zeros_like(begin), 0.0
        for after, values in commands:
            area = area + self._go(after - at)
            self.command(values, done=0.0)
            at = after
        return np.where(self._is_velocity, area + self._go(1.0 - at), begin)

    def _led(self) -> FloatArray:
        """Return where the command has led to by now, without the lag."""
        if self._done > self._period:
            return self._target
        return self._start + self._done / self._period * (self._target - self._start)

    def _go(self, steps: float) -> FloatArray:
        """Go on by so many steps, without a command; return the integral of what servos are led to."""
        to_corner = self._period - self._done
        if 0.0 < to_corner < steps:
            return self._straight(to_corner) + self._straight(steps - to_corner)
        return self._straight(steps)

    def _straight(self, steps: float) -> FloatArray:
        before = self._led()
        self._done += steps
        after = self._led()
        area = steps * (before + after) / 2.0
        if not self._lag or steps < _NOTHING:
            return area
        steady = self._lag / steps * (after - before)  # how far what follows is behind, in the end
        lagging = self._lagging
        self._lagging = after - steady + (lagging - before + steady) * math.exp(-steps / self._lag)
        return area - self._lag * (self._lagging - lagging)
