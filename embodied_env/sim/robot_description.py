"""URDF for the topic ``robot_description`` of the robot emulator, from a file or from the MuJoCo model."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import numpy as np

from embodied_env.contract import FloatArray
from embodied_env.contract.bounded_files import read_text_file
from embodied_env.contract.forward_kinematics import joint_transform, make_transform
from embodied_env.sim.mujoco_kinematics import pose
from embodied_env.sim.servos import actuators_of
from embodied_env.sim.world_model import WorldModel

GENERATED = "generated"
_WORLD = "world"


def robot_description(model: WorldModel) -> str | None:
    """Return the URDF that the profile names or None without one, or raise ContractError if it is unreadable."""
    file, contract = model.profile.emulator.robot_description, model.contract
    if file is None or file == GENERATED:
        return None if file is None else generate_urdf(model)
    try:
        return read_text_file(contract.resolve_path(file))
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a null byte in the name
        problem = f"cannot read {file!r}: {error} (expected a path to a URDF, or {GENERATED})"
        raise model.error(f"{model.path}.emulator.robot_description", problem) from None


def generate_urdf(model: WorldModel) -> str:
    """Return the kinematics of every tree with an actuated joint, with a link for each body and each named site.

    Positions of joints are those of the model, the frame of a link is at the joint that moves it, and velocities are
    limited as in the contract. A free body that is alone is the root link. Otherwise that is ``world``.
    """
    mj, kinds = model.mj, model.mujoco.mjtJoint
    by_joint = mj.actuator_trntype == int(model.mujoco.mjtTrn.mjTRN_JOINT)
    roots = {int(mj.body_rootid[mj.jnt_bodyid[joint]]) for joint in mj.actuator_trnid[by_joint, 0]}
    source = model.contract.robot
    robot = ET.Element("robot", name=model.contract.name if source is None else source.name)
    is_mobile = [bool((mj.jnt_type[mj.jnt_bodyid == root] == int(kinds.mjJNT_FREE)).any()) for root in roots] == [True]
    if not is_mobile:
        ET.SubElement(robot, "link", name=_WORLD)
    places = {0: ("" if is_mobile else _WORLD, np.eye(4))}  # for each body: its link, and its frame in that of the link
    for body in range(1, mj.nbody):
        if int(mj.body_rootid[body]) not in roots:
            continue
        link, frame = places[int(mj.body_parentid[body])]
        frame, name = frame @ pose(model, mj.body_pos[body], mj.body_quat[body]), mj.body(body).name or f"body_{body}"
        joints = range(mj.body_jntadr[body], mj.body_jntadr[body] + mj.body_jntnum[body])
        moving = [joint for joint in joints if mj.jnt_type[joint] in (int(kinds.mjJNT_HINGE), int(kinds.mjJNT_SLIDE))]
        for joint in moving:
            slides, rest = mj.jnt_type[joint] == int(kinds.mjJNT_SLIDE), float(mj.qpos0[mj.jnt_qposadr[joint]])
            zero = make_transform(mj.jnt_pos[joint]) @ joint_transform(mj.jnt_axis[joint], -rest, slides=slides)
            child = name if joint == moving[-1] else f"{name}_{mj.joint(joint).name}"
            _add_moving(robot, model, joint, link, child, frame @ zero)
            link, frame = child, make_transform(-mj.jnt_pos[joint])
        if not moving:
            _add_fixed(robot, link, name, frame)
            link, frame = name, np.eye(4)
        places[body] = link, frame
    for site in range(mj.nsite):
        name, body = mj.site(site).name, int(mj.site_bodyid[site])
        if body in places and body and name and robot.find(f"link[@name='{name}']") is None:
            link, frame = places[body]
            _add_fixed(robot, link, name, frame @ pose(model, mj.site_pos[site], mj.site_quat[site]))
    ET.indent(robot)
    return ET.tostring(robot, encoding="unicode")


def _add_fixed(robot: ET.Element, parent: str, child: str, frame: FloatArray) -> None:
    """Add a link at `frame` in that of its parent, or as the root without a parent."""
    if parent:
        _add_joint(robot, f"{child}_fixed", "fixed", parent, child, frame)
    else:
        ET.SubElement(robot, "link", name=child)


def _add_moving(robot: ET.Element, model: WorldModel, joint: int, parent: str, child: str, frame: FloatArray) -> None:
    """Add a hinge or slide joint, with its limits, and its link."""
    mj, name = model.mj, model.mj.joint(joint).name or f"{child}_joint"
    name = {theirs: ours for ours, theirs in model.profile.joints.items()}.get(name, name)
    limits = {key: limit for part in model.contract.actuators.values() for key, limit in part.joints.items()}
    own = limits.get(name)
    position = None if own is None else own.position
    if mj.jnt_limited[joint]:
        position = mj.jnt_range[joint].tolist()
    slides = mj.jnt_type[joint] == int(model.mujoco.mjtJoint.mjJNT_SLIDE)
    kind = "prismatic" if slides else "continuous" if position is None else "revolute"
    element = _add_joint(robot, name, kind, parent, child, frame)
    ET.SubElement(element, "axis", xyz=_text(mj.jnt_axis[joint]))
    forces = [float(mj.actuator_forcerange[i, 1]) for i in actuators_of(model.mujoco, mj, joint)]
    numbers = {"effort": max(forces, default=0.0), "velocity": 0.0 if own is None else own.fastest}
    if position is not None:
        numbers |= {"lower": position[0], "upper": position[1]}
    if numbers["velocity"] or position is not None:
        ET.SubElement(element, "limit", {key: _text([value]) for key, value in numbers.items()})


def _add_joint(robot: ET.Element, name: str, kind: str, parent: str, child: str, frame: FloatArray) -> ET.Element:
    ET.SubElement(robot, "link", name=child)
    element = ET.SubElement(robot, "joint", name=name, type=kind)
    ET.SubElement(element, "parent", link=parent)
    ET.SubElement(element, "child", link=child)
    ET.SubElement(element, "origin", xyz=_text(frame[:3, 3]), rpy=_text(_rpy(frame)))
    return element


def _rpy(frame: FloatArray) -> list[float]:
    """Return fixed-axis roll, pitch and yaw, rad."""
    level = math.hypot(frame[0, 0], frame[1, 0])
    pitch = math.atan2(-frame[2, 0], level)
    if level < 1e-9:  # straight up or down: only the difference of roll and yaw is determined
        return [math.atan2(-frame[1, 2], frame[1, 1]), pitch, 0.0]
    return [math.atan2(frame[2, 1], frame[2, 2]), pitch, math.atan2(frame[1, 0], frame[0, 0])]


def _text(values: FloatArray | list[float]) -> str:
    return " ".join(f"{value + 0.0:.12g}" for value in values)  # + 0.0: no negative zero
