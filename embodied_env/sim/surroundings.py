"""What stands or moves around the robot: where a body is at a time, and what a reset puts where."""

from __future__ import annotations

import math

import numpy as np

from embodied_env.contract import FloatArray
from embodied_env.sim.model import MjData
from embodied_env.sim.profile import Mover


class MovingBody:
    """A mover of the profile, at its mocap index."""

    def __init__(self, mover: Mover, mocap: int) -> None:
        """Move the mocap body at this index."""
        self._mocap = mocap
        self._from = np.array(mover.from_m)
        self._way = np.array(mover.to_m) - self._from
        self._turns_per_s = mover.speed_m_per_s / (2.0 * float(np.linalg.norm(self._way)))
        self._phase = 0.0

    def set_phase(self, phase: FloatArray) -> None:
        """Say where between the first point (0), the second (0.5) and the first again (1) it starts."""
        self._phase = float(phase)

    def place(self, data: MjData, time_s: float) -> None:
        """Put the body where it is after so much time."""
        turn = (self._phase + self._turns_per_s * time_s) % 1.0
        data.mocap_pos[self._mocap] = self._from + self._way * (1.0 - abs(2.0 * turn - 1.0))


def put(place: FloatArray, value: FloatArray) -> None:
    """Write the first numbers of a place."""
    place[: len(value)] = value


def put_pose(data: MjData, adr: int, value: FloatArray) -> None:
    """Write x, y and the heading into a free joint; its height stays, it stands upright."""
    x, y, heading_rad = value.tolist()
    data.qpos[adr : adr + 2] = x, y
    data.qpos[adr + 3 : adr + 7] = math.cos(heading_rad / 2.0), 0.0, 0.0, math.sin(heading_rad / 2.0)
