"""Kinematics of a contract's robot from its MuJoCo model, for the gate and as a URDF.

The robot consists of every body of each kinematic tree with an actuated joint, its fixed base included. Links have the
names of their bodies, or of the nearest named ancestor. Each geom that can collide (`contype` or `conaffinity` not
zero) becomes one enclosing capsule (`enclosing_capsule`); a mesh counts as its bounding box. Joints that are not
actuated, free bases and mocap bodies stay as in the keyframe.
"""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Mapping

import numpy as np

from embodied_env.contract import Contract, FloatArray, KinematicModel
from embodied_env.contract.bounded_files import read_text_file
from embodied_env.contract.forward_kinematics import (
    WORLD,
    TreeJoint,
    TreeShape,
    enclosing_capsule,
    joint_transform,
    make_transform,
    transform_points,
)
from embodied_env.contract.value_checks import one_of
from embodied_env.errors import UsageError
from embodied_env.sim.servos import actuators_of
from embodied_env.sim.world_model import MjData, WorldModel
from embodied_env.sim.world_profile import WorldProfile

GENERATED = "generated"  # a robot description that is made from the model


class MujocoKinematics(KinematicModel):
    """A `KinematicModel` of the actuated joints, in the order of the flat action.

    A site is named by the sensor that reports its pose, or by its own name. Links whose contacts the model excludes
    are adjacent too.
    """

    def __init__(self, contract: Contract, profile: WorldProfile, *, path: str = "backends.mujoco") -> None:
        """Compile the model of `profile`, found at `path`, or raise ContractError like `World`."""
        self._model = model = WorldModel(contract, profile, path)
        self._data = model.new_data()
        joints = [
            (joint, f"actuators.{name}.joints.{joint}")
            for name, actuator in contract.actuators.items()
            if actuator.command != "twist"
            for joint in actuator.joints
        ]
        self._qpos, self._qvel = model.joint_addresses(joints)
        columns = {int(address): (column, 1.0) for column, address in enumerate(self._qpos)}
        names = [name for name, _ in joints]
        for finger, (leader, factor) in contract.fingers.items():
            if (index := model.joint_of_finger(finger)) >= 0:
                columns[int(model.mj.jnt_qposadr[index])] = names.index(leader), factor
        tree, shapes = _read_tree(model, self._data, columns)
        # The signature of two bodies whose contacts the model excludes is body1 << 16 + body2.
        pairs = ((signature >> 16, signature & 0xFFFF) for signature in model.mj.exclude_signature.tolist())
        excluded = frozenset(frozenset((_link_name(model, a), _link_name(model, b))) for a, b in pairs)
        super().__init__(tuple(names), tree, shapes, adjacent=excluded)
        self._sites = {model.mj.site(i).name: i for i in range(model.mj.nsite)}
        for sensor, source in profile.sources.items():
            if source.site is not None:
                self._sites[sensor] = model.find("site", source.site, f"{path}.sources.{sensor}.site")

    def position_m(self, site: str, joint_positions: FloatArray) -> FloatArray:
        """Return the world position of `site`, shape (3,), m, at joints (n,), or raise UsageError."""
        index = self._move_to(joint_positions, site)
        return np.array(self._data.site_xpos[index])

    def jacobian(self, site: str, joint_positions: FloatArray) -> FloatArray:
        """Return the Jacobian of `position_m`, shape (3, n), m per joint unit, with its errors."""
        index = self._move_to(joint_positions, site)
        mujoco, mj = self._model.mujoco, self._model.mj
        mujoco.mj_comPos(mj, self._data)
        translation = np.zeros((3, mj.nv))
        mujoco.mj_jacSite(mj, self._data, translation, None, index)
        return np.array(translation[:, self._qvel])

    def _move_to(self, joint_positions: FloatArray, site: str) -> int:
        if site not in self._sites:
            raise UsageError(f"no such site: {one_of(site, self._sites)}")
        self._data.qpos[self._qpos] = self._checked(joint_positions, 1)
        self._model.mujoco.mj_kinematics(self._model.mj, self._data)
        return self._sites[site]


_Place = tuple[int, FloatArray]
"""A joint of the tree, or WORLD, and the frame of a body in that of the joint, shape (4, 4)."""


def _read_tree(
    model: WorldModel, data: MjData, columns: Mapping[int, tuple[int, float]]
) -> tuple[list[TreeJoint], list[TreeShape]]:
    """Read the tree of the actuated joints, keyed by address in ``qpos``, and the capsules."""
    joints: list[TreeJoint] = []
    places: list[_Place] = [(WORLD, np.eye(4))]
    for body in range(1, model.mj.nbody):
        places.append(_place_body(model, data, body, places[model.mj.body_parentid[body]], joints, columns))
    roots = {int(model.mj.body_rootid[body]) for body, (joint, _) in enumerate(places) if joint != WORLD}
    shapes = [
        _read_shape(model, geom, places[body])
        for geom, body in enumerate(model.mj.geom_bodyid)
        if int(model.mj.body_rootid[body]) in roots and (model.mj.geom_contype[geom] or model.mj.geom_conaffinity[geom])
    ]
    return joints, shapes


def _place_body(
    model: WorldModel,
    data: MjData,
    body: int,
    parent: _Place,
    joints: list[TreeJoint],
    columns: Mapping[int, tuple[int, float]],
) -> _Place:
    """Return the place of `body`, appending its actuated joints to `joints` in MuJoCo's order."""
    mj = model.mj
    at, offset = parent[0], parent[1] @ pose(model, mj.body_pos[body], mj.body_quat[body])
    if mj.body_mocapid[body] >= 0:
        offset = pose(model, data.mocap_pos[mj.body_mocapid[body]], data.mocap_quat[mj.body_mocapid[body]])
    for joint in range(mj.body_jntadr[body], mj.body_jntadr[body] + mj.body_jntnum[body]):
        address, anchor = int(mj.jnt_qposadr[joint]), mj.jnt_pos[joint]
        if address not in columns:
            offset = _past_passive_joint(model, data, joint, offset)
            continue
        slides, rest = mj.jnt_type[joint] == int(model.mujoco.mjtJoint.mjJNT_SLIDE), float(mj.qpos0[address])
        furthest = float(np.abs(mj.jnt_range[joint]).max()) + abs(rest) if mj.jnt_limited[joint] else np.inf
        joints.append(
            TreeJoint(
                parent=at,
                frame=offset @ make_transform(anchor),
                axis=np.array(mj.jnt_axis[joint]),
                slides=slides,
                column=columns[address][0],
                ratio=columns[address][1],
                offset=-rest,
                travel_m=furthest if slides else 0.0,
            )
        )
        at, offset = len(joints) - 1, make_transform(-anchor)
    return at, offset


def _past_passive_joint(model: WorldModel, data: MjData, joint: int, offset: FloatArray) -> FloatArray:
    """Return `offset` transformed by a joint that stays as in the keyframe."""
    mj, kinds = model.mj, model.mujoco.mjtJoint
    address, kind, anchor = int(mj.jnt_qposadr[joint]), int(mj.jnt_type[joint]), mj.jnt_pos[joint]
    qpos = data.qpos[address:]
    if kind == int(kinds.mjJNT_FREE):
        return pose(model, qpos[:3], qpos[3:7])
    if kind == int(kinds.mjJNT_SLIDE):
        return np.array(offset @ make_transform(mj.jnt_axis[joint] * (qpos[0] - mj.qpos0[address])))
    turn = np.array(qpos[:4])
    if kind == int(kinds.mjJNT_HINGE):
        turn = np.zeros(4)
        model.mujoco.mju_axisAngle2Quat(turn, mj.jnt_axis[joint], qpos[0] - mj.qpos0[address])
    return np.array(offset @ pose(model, anchor, turn) @ make_transform(-anchor))


def _read_shape(model: WorldModel, geom: int, place: _Place) -> TreeShape:
    """Return the capsule that encloses a geom, or raise ContractError for an unbounded one."""
    mj, kinds = model.mj, model.mujoco.mjtGeom
    names = {
        int(kinds.mjGEOM_SPHERE): "sphere",
        int(kinds.mjGEOM_CAPSULE): "capsule",
        int(kinds.mjGEOM_CYLINDER): "cylinder",
        int(kinds.mjGEOM_ELLIPSOID): "ellipsoid",
        int(kinds.mjGEOM_BOX): "box",
        int(kinds.mjGEOM_MESH): "box",
    }
    kind, body = int(mj.geom_type[geom]), int(mj.geom_bodyid[geom])
    link = _link_name(model, body)
    if kind not in names:
        found = f"{mj.geom(geom).name!r} of {link!r} is a {kinds(kind).name.removeprefix('mjGEOM_').lower()}"
        expected = ", ".join(sorted(set(names.values())))
        raise model.error(f"{model.path}.model", f"unsupported geom on a robot: {found} (expected one of: {expected})")
    sizes = np.array(mj.geom_size[geom])
    if names[kind] in ("capsule", "cylinder"):
        sizes = sizes[[0, 0, 1]]
    joint, offset = place
    frame = offset @ pose(model, mj.geom_pos[geom], mj.geom_quat[geom])
    if kind == int(kinds.mjGEOM_MESH):
        frame, sizes = frame @ make_transform(mj.geom_aabb[geom, :3]), np.array(mj.geom_aabb[geom, 3:])
    ends, radius = enclosing_capsule(names[kind], sizes)
    return TreeShape(link=link, joint=joint, ends_m=transform_points(frame, ends), radius_m=radius)


def _link_name(model: WorldModel, body: int) -> str:
    while body and not model.mj.body(body).name:
        body = int(model.mj.body_parentid[body])
    return str(model.mj.body(body).name)


def pose(model: WorldModel, position_m: FloatArray, quaternion: FloatArray) -> FloatArray:
    """Return a position and a quaternion w, x, y, z as a transform, shape (4, 4)."""
    rotation = np.zeros(9)
    model.mujoco.mju_quat2Mat(rotation, np.array(quaternion, dtype=np.float64))
    return make_transform(position_m, rotation.reshape(3, 3))


def robot_description(model: WorldModel) -> str | None:
    """Return the profile's URDF, None without one, or raise ContractError if unreadable."""
    file, contract = model.profile.emulator.robot_description, model.contract
    if file is None or file == GENERATED:
        return None if file is None else generate_urdf(model)
    try:
        return read_text_file(contract.resolve_path(file))
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a null byte in the name
        problem = f"cannot read {file!r}: {error} (expected a path to a URDF, or {GENERATED})"
        raise model.error(f"{model.path}.emulator.robot_description", problem) from None


def generate_urdf(model: WorldModel) -> str:
    """Return the URDF of every tree with an actuated joint.

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
        ET.SubElement(robot, "link", name="world")
    places = {0: ("" if is_mobile else "world", np.eye(4))}  # by body, its link, and its frame in that of the link
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
