"""Forward kinematics and Jacobians of a contract's robot, from its MuJoCo model."""

from __future__ import annotations

import numpy as np

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.checks import one_of
from embodied_env.errors import UsageError
from embodied_env.sim.model import Model, actuated_joints
from embodied_env.sim.profile import WorldProfile


class MujocoKinematics:
    """A `KinematicModel` of the actuated joints; all other joints stand as in the keyframe.

    A place on the robot is named by the sensor that reports the pose of its site, or by the name of the site itself.

    Attributes:
        joints: the joints, in the order of the flat action.
    """

    joints: tuple[str, ...]

    def __init__(self, contract: Contract, profile: WorldProfile, *, path: str = "backends.mujoco") -> None:
        """Compile the model of `profile`, which stands at `path` in the contract; raises ContractError like `World`."""
        self._model = Model(contract, profile, path)
        self._data = self._model.new_data()
        joints = actuated_joints(contract)
        self.joints = tuple(name for name, _ in joints)
        self._at = self._model.joint_addresses(joints)
        mj = self._model.mj
        self._sites = {mj.site(i).name: i for i in range(mj.nsite)}
        for sensor, source in profile.sources.items():
            if source.site is not None:
                self._sites[sensor] = self._model.find("site", source.site, f"{path}.sources.{sensor}.site")

    def position_m(self, site: str, joint_positions: FloatArray) -> FloatArray:
        """Return where `site` is, shape (3,), m, in the world frame.

        Args:
            site: the name of a pose sensor or of a site.
            joint_positions: shape (n_joints,), in joint units, in the order of `joints`.

        Raises:
            UsageError: for an unknown site, or another shape.
        """
        index = self._place(site, joint_positions)
        return np.array(self._data.site_xpos[index])

    def jacobian(self, site: str, joint_positions: FloatArray) -> FloatArray:
        """Return how `site` moves with each joint, shape (3, n_joints), m per joint unit. Like `position_m`."""
        index = self._place(site, joint_positions)
        mujoco, mj = self._model.mujoco, self._model.mj
        mujoco.mj_comPos(mj, self._data)
        translation = np.zeros((3, mj.nv))
        mujoco.mj_jacSite(mj, self._data, translation, None, index)
        return np.array(translation[:, self._at.dof])

    def _place(self, site: str, joint_positions: FloatArray) -> int:
        """Put the robot there and return the index of `site`."""
        if site not in self._sites:
            raise UsageError(f"no such site: {one_of(site, self._sites)}")
        if np.shape(joint_positions) != (len(self.joints),):
            raise UsageError(
                f"joint positions of shape {np.shape(joint_positions)} are not allowed; "
                f"allowed: ({len(self.joints)},), the joints {', '.join(self.joints)}"
            )
        self._data.qpos[self._at.qpos] = joint_positions
        self._model.mujoco.mj_kinematics(self._model.mj, self._data)
        return self._sites[site]
