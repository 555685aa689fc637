"""Read a MuJoCo model's joints, limits and actuators into a draft and a profile."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from embodied_env.errors import ContractError
from embodied_env.extensions.contract_init.contract_draft import Draft, Joint
from embodied_env.sim.servos import actuators_of, is_motor, why_no_servo
from embodied_env.sim.world_model import import_mujoco

_BANDWIDTH_PER_S = 20.0  # bandwidth of the servos that motors become, critically damped
_INSET = 0.05  # share of a range: at least the draft's margin


def add_mjcf(draft: Draft, file: Path, *, folder: Path) -> None:
    """Add the joints of the model `file`, and a profile of `mujoco`.

    The path in the profile is relative to `folder`. Joints with a position servo or a motor are commanded. Without any,
    all are, and there is no profile.
    """
    mujoco = import_mujoco()
    try:
        model = mujoco.MjModel.from_xml_path(str(file))
    except ValueError as error:
        raise ContractError("", f"cannot compile the MuJoCo model {str(file)!r}: {error}") from None
    kinds = {int(mujoco.mjtJoint.mjJNT_HINGE): "rad", int(mujoco.mjtJoint.mjJNT_SLIDE): "m"}
    profile: dict[str, Any] = {"model": os.path.relpath(file, folder)}
    if model.nkey:
        profile["keyframe"] = model.key(0).name
    driven: set[str] = set()
    for index in range(model.njnt):
        unit = kinds.get(int(model.jnt_type[index]))
        if unit is None:
            continue
        joint = _add_joint(draft, model, index, unit, file.name)
        if _add_actuator(draft, profile, mujoco, model, index):
            driven.add(model.joint(index).name)
            _add_home(profile, model, index, joint)
    if not driven:
        draft.gap(f"{file.name} has no position servo and no motor of a joint", "add <position joint=JOINT/> to it")
        return
    for name, joint in draft.joints.items():
        joint.moves = joint.moves and name in driven
    draft.world = profile


def _add_joint(draft: Draft, model: Any, index: int, unit: str, source: str) -> Joint:  # noqa: ANN401 - no type stubs
    low, high = map(float, model.jnt_range[index])
    known = draft.joints.setdefault(model.joint(index).name, Joint())
    known.unit = unit
    if model.jnt_limited[index]:  # the tighter one, if a URDF was read before
        own = known.position or (low, high)
        known.position = max(own[0], low), min(own[1], high)
    known.is_continuous = not model.jnt_limited[index] and unit == "rad"
    known.source = ", ".join(filter(None, (known.source, source)))
    return known


def _add_actuator(draft: Draft, profile: dict[str, Any], mujoco: Any, model: Any, index: int) -> bool:  # noqa: ANN401
    """Add a joint's position servo or motor to `profile`, and return whether it has one."""
    name, driving = model.joint(index).name, actuators_of(mujoco, model, index)
    reasons = {each: why_no_servo(mujoco, model, each, velocity=False) for each in driving}
    motors = [each for each in driving if is_motor(mujoco, model, each)]
    chosen = [each for each in driving if reasons[each] is None] or motors
    if driving and not chosen:
        takes_velocities = why_no_servo(mujoco, model, driving[0], velocity=True) is None
        reason = "its servo takes velocities" if takes_velocities else reasons[driving[0]]
        draft.gap(f"joint {name} is not commanded: {reason}", "add drives for wheels, or an actuator with velocities")
    if chosen and len(driving) > 1:
        profile.setdefault("actuators", {})[name] = model.actuator(chosen[0]).name
    if chosen and chosen is motors:
        inertia = float(model.dof_M0[model.jnt_dofadr[index]])
        gains = {"stiffness": inertia * _BANDWIDTH_PER_S**2, "damping": 2 * inertia * _BANDWIDTH_PER_S}
        profile.setdefault("servo_gains", {})[name] = {key: float(f"{value:.3g}") for key, value in gains.items()}
        draft.gap("servo gains of the motors (written from their inertia)", "the robot's controller; set servo_gains")
    return bool(chosen)


def _add_home(profile: dict[str, Any], model: Any, index: int, joint: Joint) -> None:  # noqa: ANN401 - no type stubs
    """Start a joint inside its limits where the model does not."""
    start = float((model.key(0).qpos if model.nkey else model.qpos0)[model.jnt_qposadr[index]])
    if joint.position is not None:
        span = joint.position[1] - joint.position[0]
        inset = max(_INSET * span, min(2.0 * _INSET * span, 0.03))  # the draft rounds the margin of a small range
        inside = min(max(start, joint.position[0] + inset), joint.position[1] - inset)
        if inside != start:
            profile.setdefault("home", {})[model.joint(index).name] = float(f"{inside:.4g}")
