"""Bodies around the robot: movers, and placement on request."""

from __future__ import annotations

import math

import numpy as np

from embodied_env.contract import FloatArray
from embodied_env.contract.value_checks import one_of
from embodied_env.errors import UsageError
from embodied_env.sim.backend_profile import Mover
from embodied_env.sim.model import MjData, Model


class MovingBody:
    """The mocap body with the index `mocap`, which moves between the two points of a mover."""

    def __init__(self, mover: Mover, mocap: int) -> None:
        """Move the mocap body at this index."""
        self.mocap = mocap
        self._from = np.array(mover.from_m)
        self._way = np.array(mover.to_m) - self._from
        self._turns_per_s = mover.speed_m_per_s / (2.0 * float(np.linalg.norm(self._way)))
        self._phase = 0.0

    def set_phase(self, phase: FloatArray) -> None:
        """Set the initial phase: 0 at the first point, 0.5 at the second, 1 at the first again."""
        self._phase = float(phase)

    def positions(self, times_s: FloatArray) -> FloatArray:
        """Return the positions of the body at these times of the episode, shape (n, 3)."""
        turns = (self._phase + self._turns_per_s * times_s[:, np.newaxis]) % 1.0
        positions: FloatArray = self._from + self._way * (1.0 - abs(2.0 * turns - 1.0))
        return positions


def placeable(model: Model) -> tuple[str, ...]:
    """Return the bodies that can be placed: mocap bodies, and those with a free joint."""
    mj, free = model.mj, int(model.mujoco.mjtJoint.mjJNT_FREE)
    bodies = [i for i in range(mj.nbody) if mj.body_mocapid[i] >= 0]
    bodies += [int(mj.jnt_bodyid[i]) for i in range(mj.njnt) if mj.jnt_type[i] == free]
    return tuple(mj.body(i).name for i in sorted(bodies))


def place_body(model: Model, data: MjData, name: str, position: FloatArray, orientation: FloatArray) -> None:
    """Place a body at rest: position (3,), m, and unit quaternion x, y, z, w (4,); raises UsageError."""
    if name not in (known := placeable(model)):
        raise UsageError(f"no such body that can be placed: {one_of(name, known)}")
    pose = np.array([*position, *np.roll(orientation, 1)], dtype=np.float64)  # MuJoCo has w first
    if pose.shape != (7,) or not np.isfinite(pose).all() or not math.isclose(np.linalg.norm(pose[3:]), 1, abs_tol=1e-6):
        raise UsageError(f"invalid pose: {pose.tolist()} (expected x, y, z, and a quaternion of length 1)")
    body = model.mj.body(name)
    if (mocap := int(model.mj.body_mocapid[body.id])) >= 0:
        data.mocap_pos[mocap], data.mocap_quat[mocap] = pose[:3], pose[3:]
        return
    joint = int(body.jntadr[0])
    qpos, dof = int(model.mj.jnt_qposadr[joint]), int(model.mj.jnt_dofadr[joint])
    data.qpos[qpos : qpos + 7], data.qvel[dof : dof + 6] = pose, 0.0
