"""The `KinematicModel` protocol: where a robot's parts are, given its joints."""

from __future__ import annotations

from typing import Protocol

from embodied_env.contract.model import FloatArray


class KinematicModel(Protocol):
    """Forward kinematics of one robot. Implementations: `embodied_env.sim.kinematics`."""

    joints: tuple[str, ...]

    def position_m(self, site: str, joint_positions: FloatArray) -> FloatArray:
        """Return the position of `site` in the world frame, shape (3,), m, for joint positions of shape (n,)."""
        ...

    def jacobian(self, site: str, joint_positions: FloatArray) -> FloatArray:
        """Return the translational Jacobian of `site`, shape (3, n), m per joint unit."""
        ...
