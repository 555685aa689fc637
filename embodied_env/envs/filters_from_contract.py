"""Build a contract's workspace filter, and find the files that a replay of filters needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from embodied_env.contract import Contract, KinematicModel
from embodied_env.contract.contract_schema import SHAPE
from embodied_env.contract.forward_kinematics import dump_shape, parse_shape
from embodied_env.contract.safety_schema import WorkspaceSpec
from embodied_env.contract.spaces import ActionLayout
from embodied_env.errors import ContractError
from embodied_env.safety.command_filters import CommandFilter
from embodied_env.safety.joint_limits import joint_bounds
from embodied_env.safety.workspace.filter import Workspace, WorkspaceFilter


def make_workspace_filter(contract: Contract, *, latency_s: float) -> WorkspaceFilter:
    """Return the filter of ``safety.workspace`` for commands that act after `latency_s`.

    Raises ContractError for a workspace that does not fit the robot, and MissingDependencyError if the shape of the
    robot needs MuJoCo.
    """
    layout = ActionLayout(contract)
    spec = cast("WorkspaceSpec", contract.safety.workspace)
    workspace = Workspace(spec, _kinematics(contract), layout.joints, joint_bounds(layout.limits))
    return WorkspaceFilter(workspace, latency_s=latency_s)


def _kinematics(contract: Contract) -> KinematicModel:
    """Return the kinematics from the URDF, the record, or the first profile with a model."""
    if contract.safety.urdf is not None:
        from embodied_env.contract.urdf import parse_urdf  # noqa: PLC0415 - only where there is one

        file = contract.safety.urdf
        joints = ActionLayout(contract).joints
        return parse_urdf(contract.content_of(file), joints, source=file, mimics=contract.fingers)
    if SHAPE in contract.files:
        return parse_shape(contract.files[SHAPE])
    for name, profile in contract.backends.items():
        if "model" in profile and contract.trusted:
            from embodied_env.sim.mujoco_kinematics import MujocoKinematics  # noqa: PLC0415 - needs MuJoCo
            from embodied_env.sim.world_profile import load_profile  # noqa: PLC0415

            return MujocoKinematics(contract, load_profile(contract, name), path=f"backends.{name}")
    problem = "unknown shape of the robot (expected safety.urdf or a backend profile with a model)"
    if not contract.trusted:
        problem = "shape of the robot not recorded (expected in the manifest of the run); pass the contract's own file"
    raise ContractError(SHAPE, problem, source=contract.source)


def recorded_files(contract: Contract, filters: Mapping[str, CommandFilter]) -> Mapping[str, bytes]:
    """Return the files, and the robot's shape in a MuJoCo model, that a replay needs."""
    workspace = filters.get("workspace")
    if contract.safety.urdf is not None or not isinstance(workspace, WorkspaceFilter):
        return contract.files
    return {**contract.files, SHAPE: dump_shape(workspace.model)}
