"""Bodies around the robot that move by themselves."""

from __future__ import annotations

import numpy as np

from embodied_env.contract import FloatArray
from embodied_env.sim.world_profile import Mover


class MovingBody:
    """The mocap body with the index `mocap`, which moves between the two points of a mover."""

    def __init__(self, mover: Mover, mocap: int) -> None:
        """Move the mocap body at this index."""
        self.mocap = mocap
        self._from = np.array(mover.from_m)
        self._way = np.array(mover.to_m) - self._from
        self._turns_per_s = mover.speed_m_per_s / (2.0 * float(np.linalg.norm(self._way)))
        self.phase = 0.0

    def set_phase(self, phase: FloatArray) -> None:
        """Set the initial phase: 0 at the first point, 0.5 at the second, 1 at the first again."""
        self.phase = float(phase)

    def positions(self, times_s: FloatArray, phase: float | FloatArray) -> FloatArray:
        """Return the positions of the body at these times of an episode with this initial phase, shape (..., 3)."""
        turns = (phase + self._turns_per_s * times_s)[..., np.newaxis] % 1.0
        positions: FloatArray = self._from + self._way * (1.0 - abs(2.0 * turns - 1.0))
        return positions
