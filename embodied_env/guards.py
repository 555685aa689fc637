"""The gates that weaken, for one contract: those of third parties, then the workspace with the robot's shape."""

from __future__ import annotations

from embodied_env.contract import Contract, KinematicModel
from embodied_env.contract.spaces import ActionLayout
from embodied_env.errors import ContractError
from embodied_env.safety.limits import joint_bounds
from embodied_env.safety.shaping import Shaper, make_plugins
from embodied_env.safety.workspace import Workspace, WorkspaceGate


def make_shapers(contract: Contract, *, latency_s: float = 0.0) -> dict[str, Shaper]:
    """Return the gates of `contract` by name, in order. `latency_s`: how late a command may act.

    Raises:
        ContractError: for a gate that nobody offers, or a workspace that does not fit the robot.
        MissingDependencyError: when the shape of the robot is in a MuJoCo model, and MuJoCo is not installed.
    """
    shapers = make_plugins(contract)
    spec = contract.safety.workspace
    if spec is None:
        return shapers
    layout = ActionLayout(contract)
    workspace = Workspace(spec, _kinematics(contract), layout.joints, joint_bounds(layout.limits))
    return {**shapers, "workspace": WorkspaceGate(workspace, latency_s=latency_s)}


def _kinematics(contract: Contract) -> KinematicModel:
    """Return the shape of the robot: of its URDF, else of the first profile with a MuJoCo model."""
    if contract.safety.urdf is not None:
        from embodied_env.contract.urdf import load_urdf  # noqa: PLC0415 - only where there is one

        return load_urdf(contract.beside(contract.safety.urdf), ActionLayout(contract).joints)
    for name, profile in contract.backends.items():
        if "model" in profile:
            from embodied_env.sim.kinematics import MujocoKinematics  # noqa: PLC0415 - needs MuJoCo
            from embodied_env.sim.profile import load_profile  # noqa: PLC0415

            return MujocoKinematics(contract, load_profile(contract, name), path=f"backends.{name}")
    raise ContractError(
        "safety.workspace",
        "nothing says what the robot looks like; allowed: safety.urdf, or a backend profile with a model",
        source=contract.source,
    )
