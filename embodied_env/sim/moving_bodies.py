"""What stands or moves around the robot: where a body is at a time, and what a reset puts where."""

from __future__ import annotations

import math

import numpy as np

from embodied_env.contract import FloatArray
from embodied_env.contract.value_checks import one_of
from embodied_env.errors import UsageError
from embodied_env.sim.model import MjData, Model
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


def placeable(model: Model) -> tuple[str, ...]:
    """Return the bodies that can be put anywhere: mocap bodies, and those of a free joint."""
    mj, free = model.mj, int(model.mujoco.mjtJoint.mjJNT_FREE)
    bodies = [i for i in range(mj.nbody) if mj.body_mocapid[i] >= 0]
    bodies += [int(mj.jnt_bodyid[i]) for i in range(mj.njnt) if mj.jnt_type[i] == free]
    return tuple(mj.body(i).name for i in sorted(bodies))


def place_body(model: Model, data: MjData, name: str, position: FloatArray, orientation: FloatArray) -> None:
    """Put a body there, at rest: m, shape (3,), and a unit quaternion x, y, z, w, shape (4,).

    Raises:
        UsageError: for a body that cannot be put anywhere, or numbers that are no pose.
    """
    if name not in (known := placeable(model)):
        raise UsageError(f"no such body can be put anywhere: {one_of(name, known)}")
    pose = np.array([*position, *np.roll(orientation, 1)], dtype=np.float64)  # MuJoCo has w first
    if pose.shape != (7,) or not np.isfinite(pose).all() or not math.isclose(np.linalg.norm(pose[3:]), 1, abs_tol=1e-6):
        raise UsageError(f"{pose.tolist()} is not allowed; allowed: x, y, z, and a quaternion of length 1")
    body = model.mj.body(name)
    if (mocap := int(model.mj.body_mocapid[body.id])) >= 0:
        data.mocap_pos[mocap], data.mocap_quat[mocap] = pose[:3], pose[3:]
        return
    joint = int(body.jntadr[0])
    qpos, dof = int(model.mj.jnt_qposadr[joint]), int(model.mj.jnt_dofadr[joint])
    data.qpos[qpos : qpos + 7], data.qvel[dof : dof + 6] = pose, 0.0
