"""Limits, kinematics and shape of a robot in URDF (http://wiki.ros.org/urdf/XML).

It reads links, joints with <limit>, <safety_controller> and <mimic>, and <collision> geometry. ContractErrors name the
element, as in ``urdf.joint[j1].limit.velocity``.
"""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from embodied_env.contract.actuator_schema import FloatArray, JointLimits
from embodied_env.contract.bounded_files import read_xml
from embodied_env.contract.forward_kinematics import (
    WORLD,
    Capsules,
    KinematicModel,
    TreeJoint,
    TreeShape,
    enclosing_capsule,
    joint_transform,
    make_transform,
    transform_points,
)
from embodied_env.contract.value_checks import allow, check_text, naming_file, one_of, require
from embodied_env.errors import ContractError, UsageError

MOST_JOINTS = MOST_LINKS = 1000  # maximum size of one robot: beyond it, reading the tree and its shape takes minutes
MOVABLE = ("revolute", "continuous", "prismatic")


@dataclass(frozen=True, kw_only=True)
class UrdfJoint:
    """One joint with its limits, soft ones included, in rad or m, or None without them."""

    name: str
    kind: str
    parent: str
    child: str
    origin: FloatArray  # (4, 4): the child's frame in the parent's, at zero
    axis: FloatArray  # (3,), of length 1
    position: tuple[float, float] | None = None
    velocity: float | None = None
    mimics: tuple[str, float, float] | None = None  # joint, multiplier, offset

    @property
    def unit(self) -> str:
        """The unit of its position."""
        return "m" if self.kind == "prismatic" else "rad"

    def require_free(self, path: str) -> None:
        """Raise ContractError at `path` unless the joint moves independently of other joints."""
        if self.mimics is not None:
            raise ContractError(path, f"mimics {self.mimics[0]!r} (expected a joint that moves by itself)")
        allow(self.kind in MOVABLE, path, f"{self.kind} joint", " or ".join(MOVABLE))


class UrdfRobot(KinematicModel):
    """A `KinematicModel` read from URDF, whose world frame is that of the root link.

    Joints outside `joints` stay at zero, except those that mimic one of these. `specs` has every joint of the file.
    `without_shape` has the links with only meshes as collision geometry, so that their shape is unknown.
    """

    def __init__(
        self,
        joints: tuple[str, ...],
        tree: Sequence[TreeJoint],
        shapes: Sequence[TreeShape],
        *,
        specs: Mapping[str, UrdfJoint],
        places: Mapping[str, tuple[int, FloatArray]],
        without_shape: Sequence[str],
    ) -> None:
        """Keep `places`, the joint of the tree of each link and its frame in that of the joint."""
        super().__init__(joints, tree, shapes)
        self.specs, self._places, self.without_shape = specs, places, tuple(without_shape)

    def position_m(self, link: str, joint_positions: FloatArray) -> FloatArray:
        """Return the position of the origin of a link, shape (3,), m, or raise UsageError."""
        if link not in self._places:
            raise UsageError(f"unknown link {one_of(link, self._places)}")
        joint, offset = self._places[link]
        frames = self._frames(self._checked(joint_positions, 1)[None])[0]
        return np.array((frames[joint] @ offset)[:3, 3])

    def capsules(self, joint_positions: FloatArray) -> Capsules:
        """Return the robot's shape, or raise ContractError where a link's is unknown."""
        if self.without_shape:
            path = f"urdf.link[{self.without_shape[0]}].collision"
            problem = f"shape unknown: only a mesh in {', '.join(self.without_shape)}"
            raise ContractError(path, f"{problem} (expected primitives); add a sphere, cylinder, box or capsule")
        return super().capsules(joint_positions)


def parse_urdf(
    text: str | bytes,
    joints: Sequence[str] | None = None,
    *,
    source: str = "",
    mimics: Mapping[str, tuple[str, float]] | None = None,
) -> UrdfRobot:
    """Read a URDF, or raise ContractError, with the file `source`, for an invalid one.

    `joints` is the order of joint positions. None stands for every independent joint, in the order of the file.
    `mimics` has the joint, and the multiplier of its position, that each of these fingers follows.
    """
    with naming_file(source):
        return _read_robot(read_xml(text, path="urdf", root="robot"), joints, mimics or {})


def read_joints(text: str | bytes) -> tuple[dict[str, UrdfJoint], dict[str, str]]:
    """Return joints and problems of a URDF, complete or not, or raise ContractError."""
    joints, problems = {}, {}
    for name, element in _named_elements(read_xml(text, path="urdf", root="robot"), "joint").items():
        try:
            joints[name] = _read_joint(name, element)
        except ContractError as error:
            problems[name] = error.problem
    return joints, problems


def tightened(limits: Mapping[str, JointLimits], robot: UrdfRobot) -> dict[str, JointLimits]:
    """Return the tighter of a contract's and the robot's limits for each joint of the contract.

    The position range is the intersection, and the velocity the smaller one. Limits that URDF lacks, such as
    acceleration, stay the contract's, and effort is ignored. Raises ContractError for a joint that is missing,
    unlimited, fixed or mimicking, or has another unit, and for position ranges without intersection.
    """
    return {name: _tighter(name, own, robot) for name, own in limits.items()}


def _tighter(name: str, own: JointLimits, robot: UrdfRobot) -> JointLimits:
    path = f"urdf.joint[{name}]"
    if name not in robot.specs:
        raise ContractError(path, f"no such joint in the URDF: {one_of(name, robot.specs)}")
    spec = robot.specs[name]
    spec.require_free(path)
    allow(own.unit == spec.unit, path, f"{own.unit!r} in the contract", f"{spec.unit!r} for a {spec.kind} joint")
    has_limits = spec.kind == "continuous" or spec.position is not None
    allow(has_limits, f"{path}.limit", "missing", "lower and upper")
    given = spec.velocity
    if given is None or given <= 0.0:
        raise ContractError(f"{path}.limit.velocity", f"{'missing' if given is None else given} (expected > 0)")
    position = own.position
    if spec.position is not None:
        low, high = own.position or (-math.inf, math.inf)
        position = max(low, spec.position[0]), min(high, spec.position[1])
        problem = f"no overlap of {list(spec.position)} {spec.unit} with the contract's [{low}, {high}]"
        require(position[0] < position[1], f"{path}.limit", problem)
    return replace(own, velocity=slowed(own, given), position=position)


def slowed(limits: JointLimits, speed: float) -> float | tuple[float, float]:
    """Return the velocity limit of a joint, at most `speed` in both directions."""
    low, high = limits.velocities
    return (max(low, -speed), min(high, speed)) if isinstance(limits.velocity, tuple) else min(high, speed)


def _read_robot(root: ET.Element, wanted: Sequence[str] | None, mimics: Mapping[str, tuple[str, float]]) -> UrdfRobot:
    links = _named_elements(root, "link")
    specs = {name: _read_joint(name, element) for name, element in _named_elements(root, "joint").items()}
    for name, (leader, ratio) in mimics.items():
        if name in specs and specs[name].mimics is None:
            specs[name] = replace(specs[name], mimics=(leader, ratio, 0.0))
    for name, spec in specs.items():
        for end in (spec.parent, spec.child):
            require(end in links, f"urdf.joint[{name}]", f"unknown link {one_of(end, links)}")
    for name in wanted or ():
        require(name in specs, "urdf", f"unknown joint {one_of(name, specs)}")
        specs[name].require_free(f"urdf.joint[{name}]")
    allow(len(specs) < MOST_LINKS, "urdf.joint", f"{len(specs)} joints", f"fewer than {MOST_LINKS}")
    free = [name for name, spec in specs.items() if spec.kind in MOVABLE and spec.mimics is None]
    joints = tuple(free if wanted is None else wanted)
    allow(len(set(joints)) == len(joints), "urdf", f"joints {list(joints)}", "each joint once")
    tree, places = _grow_tree(specs, tuple(links), joints)
    shapes, without_shape = [], []
    for name, link in links.items():
        found, meshes = _read_shapes(name, link, *places[name])
        shapes += found
        if meshes and not found:
            without_shape.append(name)
    return UrdfRobot(joints, tree, shapes, specs=specs, places=places, without_shape=without_shape)


def _read_joint(name: str, element: ET.Element) -> UrdfJoint:
    path, kind = f"urdf.joint[{name}]", element.get("type", "")
    require(kind in (*MOVABLE, "fixed"), f"{path}.type", f"unsupported type {one_of(kind, (*MOVABLE, 'fixed'))}")
    ends = [_child_attribute(element, tag, "link", path) for tag in ("parent", "child")]
    axis = _read_vector(element.find("axis"), "xyz", (1.0, 0.0, 0.0), f"{path}.axis")
    length = float(np.linalg.norm(axis))
    allow(kind == "fixed" or length > 0.0, f"{path}.axis", axis.tolist(), "a direction")
    mimics = None
    if (mimic := element.find("mimic")) is not None:
        ratio, offset = (_read_number(mimic, key, f"{path}.mimic") for key in ("multiplier", "offset"))
        leader = _child_attribute(element, "mimic", "joint", path)
        mimics = leader, 1.0 if ratio is None else ratio, 0.0 if offset is None else offset
    limit = element.find("limit")
    velocity = None if limit is None else _read_number(limit, "velocity", f"{path}.limit")
    allow(velocity is None or velocity >= 0.0, f"{path}.limit.velocity", velocity, "0 or more")
    return UrdfJoint(
        name=name,
        kind=kind,
        parent=ends[0],
        child=ends[1],
        origin=_read_origin(element, path),
        axis=axis / length if length > 0.0 else axis,
        position=_read_range(element, kind, path),
        velocity=velocity,
        mimics=mimics,
    )


def _grow_tree(
    specs: Mapping[str, UrdfJoint], links: tuple[str, ...], joints: tuple[str, ...]
) -> tuple[list[TreeJoint], dict[str, tuple[int, FloatArray]]]:
    """Return the joints, parents first, and for each link its joint and its frame there."""
    carried = [spec.child for spec in specs.values()]
    twice = sorted({child for child in carried if carried.count(child) > 1})
    allow(not twice, "urdf", f"links {twice} with several parent joints", "one parent joint per link")
    roots = [link for link in links if link not in carried]
    allow(len(roots) == 1, "urdf", f"root links {roots}", "one tree with one root")
    tree: list[TreeJoint] = []
    places: dict[str, tuple[int, FloatArray]] = {roots[0]: (WORLD, np.eye(4))}
    waiting = dict(specs)
    while ready := [spec for spec in waiting.values() if spec.parent in places]:
        for spec in ready:
            del waiting[spec.name]
            at, offset = places[spec.parent]
            frame = offset @ spec.origin
            if spec.kind == "fixed":
                places[spec.child] = at, frame
                continue
            leader, ratio, shift = _resolve_mimic(spec, specs)
            slides, travel_m = spec.kind == "prismatic", 0.0
            if leader not in joints:
                places[spec.child] = at, frame @ joint_transform(spec.axis, shift, slides=slides)
                continue
            if slides:
                travel_m = math.inf if spec.position is None else max(abs(end) for end in spec.position)
            tree.append(
                TreeJoint(
                    parent=at,
                    frame=frame,
                    axis=spec.axis,
                    slides=slides,
                    column=joints.index(leader),
                    ratio=ratio,
                    offset=shift,
                    travel_m=travel_m,
                )
            )
            places[spec.child] = len(tree) - 1, np.eye(4)
    allow(not waiting, "urdf", f"joints {sorted(waiting)} not connected to the root", "one tree")
    return tree, places


def _resolve_mimic(spec: UrdfJoint, specs: Mapping[str, UrdfJoint]) -> tuple[str, float, float]:
    """Return the independent joint that moves this one, with ratio and offset."""
    ratio, shift, name = 1.0, 0.0, spec.name
    seen: list[str] = []
    while (mimics := specs[name].mimics) is not None:
        path = f"urdf.joint[{name}].mimic"
        leader, factor, offset = mimics
        require(leader in specs, path, f"unknown joint {one_of(leader, specs)}")
        require(name not in seen, path, f"circular mimic of the joints {seen}")
        allow(specs[leader].kind in MOVABLE, path, f"fixed joint {leader!r}", "one that moves")
        seen.append(name)
        shift += ratio * offset
        ratio *= factor
        name = leader
    return name, ratio, shift


def _read_shapes(name: str, link: ET.Element, joint: int, offset: FloatArray) -> tuple[list[TreeShape], int]:
    shapes, meshes = [], 0
    for collision in link.findall("collision"):
        path = f"urdf.link[{name}].collision"
        kinds = list(collision.iterfind("geometry/*"))
        allow(len(kinds) == 1, path, f"{len(kinds)} shapes in <geometry>", "one")
        if kinds[0].tag == "mesh":
            meshes += 1
            continue
        ends, radius = _read_geometry(kinds[0], f"{path}.{kinds[0].tag}")
        ends = transform_points(offset @ _read_origin(collision, path), ends)
        shapes.append(TreeShape(link=name, joint=joint, ends_m=ends, radius_m=radius))
    return shapes, meshes


def _read_range(element: ET.Element, kind: str, path: str) -> tuple[float, float] | None:
    """Return the intersection of hard and soft limits, or None without hard limits."""
    if kind not in ("revolute", "prismatic"):
        return None

    def read_limits(tag: str, *keys: str) -> list[float | None]:
        found = element.find(tag)
        return [None if found is None else _read_number(found, key, f"{path}.{tag}") for key in keys]

    hard = read_limits("limit", "lower", "upper")
    soft = read_limits("safety_controller", "soft_lower_limit", "soft_upper_limit")
    if hard == [None, None]:
        return None
    lower, upper = ([limit for limit in pair if limit is not None] for pair in zip(hard, soft, strict=True))
    low, high = max(lower, default=0.0), min(upper, default=0.0)  # 0 is the URDF default of a missing limit
    allow(low <= high, f"{path}.limit", f"empty or inverted range from {low} to {high}", "lower <= upper")
    return low, high


def _read_geometry(element: ET.Element, path: str) -> tuple[FloatArray, float]:
    """Return ends and radius, m, of the enclosing capsule."""
    known = ("sphere", "cylinder", "box", "capsule", "mesh")
    require(element.tag in known, path, f"unsupported geometry {one_of(element.tag, known)}")
    if element.tag == "box":
        sizes = _read_vector(element, "size", None, path)
    else:
        radius = _read_number(element, "radius", path)
        length = 0.0 if element.tag == "sphere" else _read_number(element, "length", path)
        allow(radius is not None and length is not None, path, "missing attribute", "radius, and the length if any")
        sizes = np.array([2.0 * (radius or 0.0), 0.0, length or 0.0])
    allow(bool((sizes >= 0.0).all()) and sizes[0] > 0.0, path, f"half sizes {(sizes / 2).tolist()} m", "sizes > 0")
    return enclosing_capsule(element.tag, sizes / 2.0)


def _named_elements(root: ET.Element, tag: str) -> dict[str, ET.Element]:
    found: dict[str, ET.Element] = {}
    elements = root.findall(tag)
    allow(len(elements) <= MOST_LINKS, f"urdf.{tag}", f"{len(elements)} {tag}s", f"at most {MOST_LINKS}")
    for element in elements:
        name = element.get("name", "")
        check_text(f"urdf.{tag}", name)
        allow(name not in found, f"urdf.{tag}", f"name {name!r}", "unique")
        found[name] = element
    return found


def _child_attribute(element: ET.Element, tag: str, key: str, path: str) -> str:
    child = element.find(tag)
    value = None if child is None else child.get(key)
    if value is None:
        raise ContractError(f"{path}.{tag}.{key}", "missing (expected a name)")
    return value


def _read_number(element: ET.Element, key: str, path: str) -> float | None:
    text = element.get(key)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    allow(math.isfinite(value), f"{path}.{key}", repr(text), "a finite number")
    return value


def _read_vector(element: ET.Element | None, key: str, default: Sequence[float] | None, path: str) -> FloatArray:
    text = None if element is None else element.get(key)
    if text is None:
        if default is None:
            raise ContractError(f"{path}.{key}", "missing (expected three numbers)")
        return np.array(default, dtype=np.float64)
    try:
        values = np.array([float(part) for part in text.split()])
    except ValueError:
        values = np.array([])
    is_vector = values.shape == (3,) and bool(np.isfinite(values).all())
    allow(is_vector, f"{path}.{key}", repr(text), "three finite numbers")
    return values


def _read_origin(element: ET.Element, path: str) -> FloatArray:
    """Return the frame of <origin>, with its rpy as Rz(yaw) Ry(pitch) Rx(roll)."""
    origin = element.find("origin")
    position, angles = (_read_vector(origin, key, (0.0, 0.0, 0.0), f"{path}.origin") for key in ("xyz", "rpy"))
    roll, pitch, yaw = (
        joint_transform(axis, angle, slides=False) for axis, angle in zip(np.eye(3), angles.tolist(), strict=True)
    )
    frame: FloatArray = make_transform(position) @ yaw @ pitch @ roll
    return frame
