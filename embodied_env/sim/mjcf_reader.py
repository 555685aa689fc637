"""Read the joints and limits of a MuJoCo model into a draft contract, and its simulation profile."""

from __future__ import annotations

import os
from pathlib import Path

from embodied_env.contract.draft import Draft, Joint
from embodied_env.errors import ContractError
from embodied_env.sim.model import import_mujoco


def add_mjcf(draft: Draft, file: Path, *, folder: Path) -> None:
    """Add the joints of the model `file`, and a profile of `mujoco` with the path relative to `folder`."""
    mujoco = import_mujoco()
    try:
        model = mujoco.MjModel.from_xml_path(str(file))
    except ValueError as error:
        raise ContractError("", f"cannot compile the MuJoCo model {str(file)!r}: {error}") from None
    kinds = {int(mujoco.mjtJoint.mjJNT_HINGE): "rad", int(mujoco.mjtJoint.mjJNT_SLIDE): "m"}
    for index in range(model.njnt):
        unit = kinds.get(int(model.jnt_type[index]))
        if unit is None:
            continue
        is_limited = bool(model.jnt_limited[index])
        low, high = map(float, model.jnt_range[index])
        known = draft.joints.setdefault(model.joint(index).name, Joint())
        known.unit = unit
        if is_limited:  # the tighter one, if a URDF was read before
            own = known.position or (low, high)
            known.position = max(own[0], low), min(own[1], high)
        known.is_continuous = not is_limited and unit == "rad"
        known.source = ", ".join(filter(None, (known.source, file.name)))
    servos = [model.actuator(index).name for index in range(model.nu)]
    driven = [
        model.joint(int(model.actuator_trnid[index, 0])).name
        for index in range(model.nu)
        if model.actuator_trntype[index] == int(mujoco.mjtTrn.mjTRN_JOINT)
    ]
    for name, joint in draft.joints.items():
        joint.moves = joint.moves and (name in driven or not driven)
    if not driven or any(name not in servos for name in driven):
        draft.gap(
            f"{file.name} has no position servo with the name of each joint", "add <position name=JOINT joint=JOINT/>"
        )
        return
    draft.world = {"model": os.path.relpath(file, folder)}
    if model.nkey:
        draft.world["keyframe"] = model.key(0).name
