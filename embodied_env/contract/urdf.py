"""URDF: the limits, the kinematics and the shape of a robot, read with the standard library alone.

What counts is what http://wiki.ros.org/urdf/XML says: links, joints (revolute, continuous, prismatic, fixed, and those
that mimic another), their <limit> and <safety_controller>, and <collision> geometry. Everything else is passed over.
Errors are ContractErrors that name the element, as in ``urdf.joint[j1].limit.velocity``. A file with a DOCTYPE is
refused, so that no entity is ever expanded.
"""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from embodied_env.contract.files import read_file
from embodied_env.contract.kinematics import (
    WORLD,
    Capsules,
    JointTree,
    MotionBounds,
    TreeJoint,
    TreeShape,
    enclosing_capsule,
    frame_of,
    moved_ends,
    step_of,
)
from embodied_env.contract.schema import FloatArray, JointLimits
from embodied_env.contract.value_checks import one_of, require
from embodied_env.errors import ContractError, UsageError


class _NoDoctype(ET.TreeBuilder):
    def doctype(self, name: str, pubid: str | None, system: str | None) -> NoReturn:  # noqa: ARG002 - expat's names
        """Refuse: a DOCTYPE can define entities."""
        raise ContractError("urdf", f"<!DOCTYPE {name}> is not allowed; allowed: a file without")


def parse_xml(text: str | bytes) -> ET.Element:
    """Return the root element; raises ContractError for what is not well-formed, has a DOCTYPE or is no robot."""
    parser = ET.XMLParser(target=_NoDoctype())  # noqa: S314 - see _NoDoctype
    try:
        parser.feed(text)
        root = parser.close()
    except (ET.ParseError, LookupError) as error:  # the latter: an encoding that does not exist
        raise ContractError("urdf", f"not well-formed XML: {error}") from None
    if root.tag != "robot":
        raise ContractError("urdf", f"the root element is <{root.tag}>; allowed: <robot>")
    return root


def read_range(element: ET.Element, kind: str, path: str) -> tuple[float, float] | None:
    """Return the range within the hard limits and the soft ones; None where there are no hard ones.

    A soft limit that is not there does not count. Of two hard ones, the one that is not there is 0: so URDF has it.
    """
    if kind not in ("revolute", "prismatic"):
        return None
    low, high, given = -math.inf, math.inf, False
    for tag, lower, upper in (
        ("limit", "lower", "upper"),
        ("safety_controller", "soft_lower_limit", "soft_upper_limit"),
    ):
        found = element.find(tag)
        if found is None:
            continue
        least, most = read_number(found, lower, f"{path}.{tag}"), read_number(found, upper, f"{path}.{tag}")
        low, high = max(low, -math.inf if least is None else least), min(high, math.inf if most is None else most)
        given = given or (tag == "limit" and not (least is None and most is None))
    if not given:
        return None
    if math.isinf(low) or math.isinf(high):  # the default of URDF for the one that is not there
        low, high = (0.0 if math.isinf(low) else low), (0.0 if math.isinf(high) else high)
    require(low <= high, f"{path}.limit", f"the range from {low} to {high} is empty or inverted")
    return low, high


def read_geometry(element: ET.Element, path: str) -> tuple[FloatArray, float]:
    """Return ends and radius of the capsule that encloses a shape. The length of a capsule is its straight part's."""
    allowed = ("sphere", "cylinder", "box", "capsule", "mesh")
    require(element.tag in allowed, path, f"<{element.tag}>: {one_of(element.tag, allowed)}")
    if element.tag == "box":
        sizes = read_vector(element, "size", None, path)
    else:
        radius = read_number(element, "radius", path)
        length = 0.0 if element.tag == "sphere" else read_number(element, "length", path)
        require(radius is not None and length is not None, path, "radius or length is missing")
        sizes = np.array([2.0 * (radius or 0.0), 0.0, length or 0.0])
    require(bool((sizes >= 0.0).all()) and sizes[0] > 0.0, path, f"{(sizes / 2).tolist()} m; allowed: sizes above 0")
    return enclosing_capsule(element.tag, sizes / 2.0)


def named_elements(root: ET.Element, tag: str) -> dict[str, ET.Element]:
    """Return the elements by their names, which must be there and differ."""
    found: dict[str, ET.Element] = {}
    for element in root.findall(tag):
        name = element.get("name", "")
        require(name != "" and name not in found, f"urdf.{tag}", f"the name {name!r} is empty or taken")
        found[name] = element
    return found


def child_attribute(element: ET.Element, tag: str, key: str, path: str) -> str:
    """Return an attribute of a child element, which must be there."""
    child = element.find(tag)
    value = None if child is None else child.get(key)
    if value is None:
        raise ContractError(f"{path}.{tag}.{key}", "missing; allowed: a name")
    return value


def read_number(element: ET.Element, key: str, path: str) -> float | None:
    """Return a finite number, or None where there is no such attribute."""
    text = element.get(key)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    require(math.isfinite(value), f"{path}.{key}", f"{text!r} is not allowed; allowed: a finite number")
    return value


def read_vector(element: ET.Element | None, key: str, default: Sequence[float] | None, path: str) -> FloatArray:
    """Return three finite numbers."""
    text = None if element is None else element.get(key)
    if text is None:
        if default is None:
            raise ContractError(f"{path}.{key}", "missing; allowed: three numbers")
        return np.array(default, dtype=np.float64)
    try:
        values = np.array([float(part) for part in text.split()])
    except ValueError:
        values = np.array([])
    allowed = values.shape == (3,) and bool(np.isfinite(values).all())
    require(allowed, f"{path}.{key}", f"{text!r} is not allowed; allowed: three finite numbers")
    return values


def read_origin(element: ET.Element, path: str) -> FloatArray:
    """Return the frame in <origin>: fixed-axis roll, pitch and yaw, so Rz(yaw) Ry(pitch) Rx(roll)."""
    origin = element.find("origin")
    position, angles = (read_vector(origin, key, (0.0, 0.0, 0.0), f"{path}.origin") for key in ("xyz", "rpy"))
    roll, pitch, yaw = (
        step_of(axis, angle, slides=False) for axis, angle in zip(np.eye(3), angles.tolist(), strict=True)
    )
    frame: FloatArray = frame_of(position) @ yaw @ pitch @ roll
    return frame


MOST_LINKS = 1000
"""Of one robot: beyond it, the tree and its shape would take minutes."""

MOVABLE = ("revolute", "continuous", "prismatic")


@dataclass(frozen=True, kw_only=True)
class UrdfJoint:
    """One joint. Limits are in rad or m, and None where the file has none; `position` keeps the soft limits too."""

    name: str
    kind: str
    parent: str
    child: str
    origin: FloatArray  # (4, 4): the child's frame in the parent's, at zero
    axis: FloatArray  # (3,), of length 1
    position: tuple[float, float] | None = None
    velocity: float | None = None
    effort: float | None = None
    mimics: tuple[str, float, float] | None = None  # joint, multiplier, offset

    @property
    def unit(self) -> str:
        """The unit of its position."""
        return "m" if self.kind == "prismatic" else "rad"


@dataclass(frozen=True, kw_only=True, eq=False)
class UrdfRobot:
    """A `KinematicModel` read from URDF; the world frame is that of the root link, and places are links.

    Attributes:
        name: of the robot.
        joints: the order of joint positions. Other joints stand at zero, but for those that mimic one of these.
        specs: every joint of the file.
        links: every link of the file.
        without_shape: links whose only collision geometry is a mesh, so that their shape is not known.
    """

    name: str
    joints: tuple[str, ...]
    specs: Mapping[str, UrdfJoint]
    links: tuple[str, ...]
    without_shape: tuple[str, ...]
    tree: JointTree
    places: Mapping[str, tuple[int, FloatArray]]  # link -> joint of the tree, and its frame in that of the joint

    @property
    def adjacent(self) -> frozenset[frozenset[str]]:
        """The pairs of links that a joint joins, or that do not move against each other."""
        return self.tree.adjacent

    def position_m(self, site: str, joint_positions: FloatArray) -> FloatArray:
        """Return where the origin of the link `site` is, shape (3,), m; raises UsageError like `MujocoKinematics`."""
        joint, offset = self._place(site)
        frames = self.tree.frames(self._checked(joint_positions, 1)[None])[0]
        return np.array((frames[joint] @ offset)[:3, 3])

    def jacobian(self, site: str, joint_positions: FloatArray) -> FloatArray:
        """Return how the origin of the link `site` moves with each joint, shape (3, n_joints), m per joint unit."""
        joint, offset = self._place(site)
        return self.tree.jacobian(joint, offset[:3, 3], self._checked(joint_positions, 1))

    def capsules(self, joint_positions: FloatArray) -> Capsules:
        """Return the robot's shape at joint positions of shape (n_joints,), or (k, n_joints) for k of them at once.

        Raises:
            ContractError: where the shape of a link is not known: it has a mesh and nothing else.
            UsageError: for another shape of positions.
        """
        if self.without_shape:
            problem = f"of {', '.join(self.without_shape)} there is a mesh only, which is not read"
            raise ContractError(
                f"urdf.link[{self.without_shape[0]}].collision",
                f"{problem}; allowed: add a sphere, a cylinder, a box or a capsule around it",
            )
        return self.tree.capsules(self._checked(joint_positions, 1, 2))

    def levers(self) -> MotionBounds:
        """Return how far the capsules move at most when the joints do."""
        return self.tree.levers

    def _place(self, link: str) -> tuple[int, FloatArray]:
        if link not in self.places:
            raise UsageError(f"no such link: {one_of(link, self.places)}")
        return self.places[link]

    def _checked(self, joint_positions: FloatArray, *dimensions: int) -> FloatArray:
        positions = np.asarray(joint_positions, dtype=np.float64)
        if positions.ndim not in dimensions or positions.shape[-1] != len(self.joints):
            raise UsageError(
                f"joint positions of shape {positions.shape} are not allowed; "
                f"allowed: ({len(self.joints)},), the joints {', '.join(self.joints)}"
            )
        return positions


def load_urdf(file: str | Path, joints: Sequence[str] | None = None) -> UrdfRobot:
    """Read a URDF file; raises ContractError like `parse_urdf`, with the file's name."""
    try:
        return parse_urdf(read_file(file), joints, source=str(file))
    except OSError as error:
        raise ContractError("urdf", f"the file cannot be read: {error}", source=str(file)) from None


def parse_urdf(text: str | bytes, joints: Sequence[str] | None = None, *, source: str = "") -> UrdfRobot:
    """Read a URDF.

    Args:
        text: the XML.
        joints: the joints whose positions are given, in this order; None: every one that moves by itself, as they come.
        source: where the text is from, for messages.

    Raises:
        ContractError: for what is not well-formed XML, no tree of links, or a value that is not allowed.
    """
    try:
        return _read_robot(parse_xml(text), joints)
    except ContractError as error:
        raise ContractError(error.path, error.problem, source=source) from None


def _read_robot(root: ET.Element, wanted: Sequence[str] | None) -> UrdfRobot:
    links = named_elements(root, "link")
    specs = {name: _read_joint(name, element) for name, element in named_elements(root, "joint").items()}
    require(len(links) <= MOST_LINKS, "urdf.link", f"{len(links)} links are not allowed; allowed: up to {MOST_LINKS}")
    for name, spec in specs.items():
        for end in (spec.parent, spec.child):
            require(end in links, f"urdf.joint[{name}]", f"no such link: {one_of(end, links)}")
    free = [name for name, spec in specs.items() if spec.kind in MOVABLE and spec.mimics is None]
    for name in wanted or ():
        require(name in specs, "urdf", f"no such joint: {one_of(name, specs)}")
        require(name in free, f"urdf.joint[{name}]", _why_not_free(specs[name]))
    require(len(specs) < MOST_LINKS, "urdf.joint", f"{len(specs)} joints are not allowed; allowed: below {MOST_LINKS}")
    joints = tuple(free if wanted is None else wanted)
    require(len(set(joints)) == len(joints), "urdf", f"the joints {list(joints)} are not different; allowed: each once")
    tree_joints, places = _grow(specs, tuple(links), joints)
    shapes, without_shape = [], []
    for name, link in links.items():
        found, meshes = _read_shapes(name, link, *places[name])
        shapes += found
        if meshes and not found:
            without_shape.append(name)
    return UrdfRobot(
        name=root.get("name", ""),
        joints=joints,
        specs=specs,
        links=tuple(links),
        without_shape=tuple(without_shape),
        tree=JointTree(n_columns=len(joints), joints=tuple(tree_joints), shapes=tuple(shapes)),
        places=places,
    )


def _read_joint(name: str, element: ET.Element) -> UrdfJoint:
    path, kind = f"urdf.joint[{name}]", element.get("type", "")
    require(kind in (*MOVABLE, "fixed"), f"{path}.type", one_of(kind, (*MOVABLE, "fixed")))
    ends = [child_attribute(element, tag, "link", path) for tag in ("parent", "child")]
    axis = read_vector(element.find("axis"), "xyz", (1.0, 0.0, 0.0), f"{path}.axis")
    length = float(np.linalg.norm(axis))
    require(kind == "fixed" or length > 0.0, f"{path}.axis", f"{axis.tolist()} has no direction")
    mimic = element.find("mimic")
    mimics = None
    if mimic is not None:
        ratio, offset = (read_number(mimic, key, f"{path}.mimic") for key in ("multiplier", "offset"))
        ratio, offset = 1.0 if ratio is None else ratio, 0.0 if offset is None else offset
        mimics = (child_attribute(element, "mimic", "joint", path), ratio, offset)
    limit = element.find("limit")
    velocity, effort = (
        None if limit is None else read_number(limit, key, f"{path}.limit") for key in ("velocity", "effort")
    )
    for key, value in (("velocity", velocity), ("effort", effort)):
        require(value is None or value >= 0.0, f"{path}.limit.{key}", f"{value} is not allowed; allowed: 0 or more")
    return UrdfJoint(
        name=name,
        kind=kind,
        parent=ends[0],
        child=ends[1],
        origin=read_origin(element, path),
        axis=axis / length if length > 0.0 else axis,
        position=read_range(element, kind, path),
        velocity=velocity,
        effort=effort,
        mimics=mimics,
    )


def _grow(
    specs: Mapping[str, UrdfJoint], links: tuple[str, ...], joints: tuple[str, ...]
) -> tuple[list[TreeJoint], dict[str, tuple[int, FloatArray]]]:
    """Return the joints of the tree, parents first, and where each link hangs."""
    carried = [spec.child for spec in specs.values()]
    twice = sorted({child for child in carried if carried.count(child) > 1})
    require(not twice, "urdf", f"the links {twice} are the children of several joints; allowed: of one each")
    roots = [link for link in links if link not in carried]
    require(len(roots) == 1, "urdf", f"the root links {roots} are not one; allowed: one tree")
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
            leader, ratio, shift = _follow(spec, specs)
            slides = spec.kind == "prismatic"
            if leader not in joints:
                places[spec.child] = at, frame @ step_of(spec.axis, shift, slides=slides)
                continue
            tree.append(
                TreeJoint(
                    parent=at,
                    frame=frame,
                    axis=spec.axis,
                    slides=slides,
                    column=joints.index(leader),
                    ratio=ratio,
                    offset=shift,
                    travel_m=_travel_m(spec),
                )
            )
            places[spec.child] = len(tree) - 1, np.eye(4)
    require(not waiting, "urdf", f"the joints {sorted(waiting)} hang on no root; allowed: one tree")
    return tree, places


def _follow(spec: UrdfJoint, specs: Mapping[str, UrdfJoint]) -> tuple[str, float, float]:
    """Return the joint that moves this one, and ratio and offset of their values; of most, itself."""
    ratio, shift, name = 1.0, 0.0, spec.name
    seen: list[str] = []
    while (mimics := specs[name].mimics) is not None:
        path = f"urdf.joint[{name}].mimic"
        leader, factor, offset = mimics
        require(leader in specs, path, f"no such joint: {one_of(leader, specs)}")
        require(name not in seen, path, f"the joints {seen} mimic each other in a circle")
        require(specs[leader].kind in MOVABLE, path, f"the joint {leader!r} is fixed; allowed: one that moves")
        seen.append(name)
        shift += ratio * offset
        ratio *= factor
        name = leader
    return name, ratio, shift


def _travel_m(spec: UrdfJoint) -> float:
    """Return how far a joint slides at most from zero; inf where the file does not say."""
    if spec.kind != "prismatic":
        return 0.0
    return math.inf if spec.position is None else max(abs(end) for end in spec.position)


def _read_shapes(name: str, link: ET.Element, joint: int, offset: FloatArray) -> tuple[list[TreeShape], int]:
    """Return the capsules about the collision geometry of a link, and how many meshes there are."""
    shapes, meshes = [], 0
    for collision in link.findall("collision"):
        path = f"urdf.link[{name}].collision"
        kinds = list(collision.iterfind("geometry/*"))
        require(len(kinds) == 1, path, f"{len(kinds)} shapes in <geometry>; allowed: one")
        if kinds[0].tag == "mesh":
            meshes += 1
            continue
        ends, radius = read_geometry(kinds[0], f"{path}.{kinds[0].tag}")
        ends = moved_ends(offset @ read_origin(collision, path), ends)
        shapes.append(TreeShape(link=name, joint=joint, ends_m=ends, radius_m=radius))
    return shapes, meshes


def tightened(limits: Mapping[str, JointLimits], robot: UrdfRobot) -> dict[str, JointLimits]:
    """Return the limits of a contract's joints, each the tighter of the contract's own and the robot's.

    Position: the part that both allow; velocity: the smaller. What URDF does not know, as acceleration, stays the
    contract's; its efforts are nothing that a contract limits.

    Raises:
        ContractError: for a joint that the URDF does not have, cannot move by itself, measures in another unit, or
            limits not at all; and where the two ranges have nothing in common.
    """
    return {name: _tighter(name, own, robot) for name, own in limits.items()}


def _tighter(name: str, own: JointLimits, robot: UrdfRobot) -> JointLimits:
    path = f"urdf.joint[{name}]"
    if name not in robot.specs:
        raise ContractError(path, f"the contract's joint is not in the URDF: {one_of(name, robot.specs)}")
    spec = robot.specs[name]
    require(spec.kind in MOVABLE and spec.mimics is None, path, _why_not_free(spec))
    require(own.unit == spec.unit, path, f"{spec.kind}, in {spec.unit}; the contract has it in {own.unit!r}")
    require(spec.kind == "continuous" or spec.position is not None, f"{path}.limit", "lower and upper are missing")
    changes: dict[str, Any] = {"velocity": _smaller(own.velocity, spec.velocity, f"{path}.limit.velocity")}
    if spec.position is not None:
        low, high = own.position or (-math.inf, math.inf)
        both = max(low, spec.position[0]), min(high, spec.position[1])
        problem = (
            f"the range {list(spec.position)} {spec.unit} and the contract's [{low}, {high}] have nothing in common"
        )
        require(both[0] < both[1], f"{path}.limit", problem)
        changes["position"] = both
    return replace(own, **changes)


def _smaller(own: float, given: float | None, path: str) -> float:
    """Return the smaller limit; raises ContractError where the URDF has none, or zero: then nothing can move."""
    if given is None or not given > 0.0:
        raise ContractError(path, f"{'missing' if given is None else given}; allowed: above 0")
    return min(own, given)


def _why_not_free(spec: UrdfJoint) -> str:
    if spec.mimics is not None:
        return f"it mimics {spec.mimics[0]!r}; allowed: a joint that moves by itself"
    return f"it is {spec.kind}; allowed: {', '.join(MOVABLE)}"
