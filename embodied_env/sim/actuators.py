"""From commands to the controls of a MuJoCo model: position servos, velocity servos, differential drives."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import ActuatorSpec, Contract, FloatArray
from embodied_env.contract.spaces import ActionLayout
from embodied_env.contract.value_checks import one_of
from embodied_env.errors import UsageError
from embodied_env.sim.model import MjData, Model
from embodied_env.sim.profile import Drive, WorldProfile


class Actuation:
    """Applies the flat command of all actuators, in lockstep.

    Positions are reached along a straight line, one control period after the command; then they are held. Velocities
    act at once, as long as the next command is not there.

    Attributes:
        joints: the names of what is commanded, in the order of the flat command.
        is_velocity: which of it are velocities, shape (n_joints,).
        places: where the controls stand among those of the model.
    """

    def __init__(self, contract: Contract, profile: WorldProfile, model: Model) -> None:
        """Resolve servos and drives; raises ContractError for what the model does not have or is of another kind."""
        layout = ActionLayout(contract)
        self.joints = layout.joints
        self.is_velocity = layout.is_velocity
        twists = [name for name, actuator in contract.actuators.items() if actuator.command == "twist"]
        for name in profile.drives:
            if name not in twists:
                raise model.error(f"{model.path}.drives.{name}", f"no such actuator of a twist: {one_of(name, twists)}")
        controls: list[int] = []
        rows: list[FloatArray] = []
        for name, actuator in contract.actuators.items():
            indices, block = (_drive if name in twists else _servos)(name, actuator, profile, model)
            if len({*controls, *indices}) < len(controls) + len(indices):
                raise model.error(f"actuators.{name}", "it drives a joint that is driven already; allowed: once")
            controls += indices
            whole = np.zeros((len(indices), layout.size))
            whole[:, layout.slices[name]] = block
            rows += list(whole)
        in_order = controls == list(range(controls[0], controls[0] + len(controls)))
        self.places: slice | NDArray[np.intp] = np.array(controls, dtype=np.intp)
        if in_order:
            self.places = slice(controls[0], controls[0] + len(controls))  # is written to in a third of the time
        self._mix = np.array(rows)
        self._is_position = ~self.is_velocity
        self._all_by_position = bool(self._is_position.all())
        self._parts = np.empty((0, 1))
        positions = np.array(self.joints)[self._is_position].tolist()
        self._qpos = model.joint_addresses((joint, "actuators") for joint in positions).qpos
        self._sent = self._target = np.zeros(layout.size)

    def begin(self, data: MjData) -> None:
        """Hold the position that the joints have, at rest."""
        self._sent = np.zeros(len(self.joints))
        self._sent[self._is_position] = data.qpos[self._qpos]
        self._target = self._sent
        self.apply(data, self.controls(self._sent))

    def command(self, values: FloatArray) -> None:
        """Take the next command; raises UsageError for another shape."""
        self._target = self.checked(values)

    def checked(self, values: FloatArray) -> FloatArray:
        """Return a copy of a command; raises UsageError for another shape."""
        target = np.array(values, dtype=np.float64)
        if target.shape != self._sent.shape:
            raise UsageError(
                f"a command of shape {target.shape} is not allowed; allowed: {self._sent.shape}, "
                f"the joints {', '.join(self.joints)}"
            )
        return target

    @property
    def target(self) -> FloatArray:
        """The command in force, shape (n_joints,). A fresh array."""
        return self._target.copy()

    def path(self, substeps: int) -> FloatArray:
        """Return the controls during each physics step of a control period, shape (substeps, n_controls)."""
        if len(self._parts) != substeps:
            self._parts = np.arange(1, substeps + 1)[:, np.newaxis] / substeps
        start = self._sent if self._all_by_position else np.where(self.is_velocity, self._target, self._sent)
        self._sent = self._target
        return self.controls(start + self._parts * (self._target - start))

    def controls(self, set_points: FloatArray) -> FloatArray:
        """Return the controls for these set-points of the joints, shape (..., n_joints)."""
        controls: FloatArray = set_points @ self._mix.T
        return controls

    def apply(self, data: MjData, controls: FloatArray) -> None:
        """Set the controls, one row of `path`."""
        data.ctrl[self.places] = controls


def _servos(
    name: str,
    actuator: ActuatorSpec,
    profile: WorldProfile,  # noqa: ARG001 - only drives need it
    model: Model,
) -> tuple[list[int], FloatArray]:
    """Return the servos of joints, and that each takes its own value."""
    indices = [
        model.servo(joint, f"actuators.{name}.joints.{joint}", velocity=actuator.is_velocity)
        for joint in actuator.joints
    ]
    return indices, np.eye(len(indices))


def _drive(name: str, actuator: ActuatorSpec, profile: WorldProfile, model: Model) -> tuple[list[int], FloatArray]:
    """Return the servos of the wheels, rad/s, and how a twist turns them: (v -+ w separation / 2) / radius."""
    path = f"{model.path}.drives"
    drive: Drive | None = profile.drives.get(name)
    if drive is None:
        allowed = f"{name}: {{left, right, radius_m, separation_m}}"
        raise model.error(path, f"nothing turns the twist of {name!r} into motion; allowed: {allowed}")
    axes = list(actuator.joints)
    if set(axes) != {"linear.x", "angular.z"}:
        raise model.error(
            f"actuators.{name}.joints", f"a differential drive cannot do {axes}; allowed: linear.x and angular.z"
        )
    wheels = [model.servo(getattr(drive, side), f"{path}.{name}.{side}", velocity=True) for side in ("left", "right")]
    by_axis = {
        "linear.x": np.array([1.0, 1.0]) / drive.radius_m,
        "angular.z": np.array([-0.5, 0.5]) * drive.separation_m / drive.radius_m,
    }
    return wheels, np.stack([by_axis[axis] for axis in axes], axis=1)
