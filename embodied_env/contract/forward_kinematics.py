"""Kinematics and shape of a robot as a `KinematicModel` of joints and capsules.

It is pure numpy and accepts batches of joint positions. `embodied_env.sim.mujoco_kinematics` builds one from MJCF,
`embodied_env.contract.urdf` from URDF. Frames are homogeneous transforms of shape (4, 4).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract.actuator_schema import FloatArray
from embodied_env.contract.contract_schema import SHAPE
from embodied_env.contract.typed_values import From, parse_as
from embodied_env.contract.value_checks import allow
from embodied_env.errors import ContractError, UsageError

_Point = tuple[float, float, float]
_Line = tuple[float, float, float, float]
_Frame = Annotated[FloatArray, From(tuple[_Line, _Line, _Line, _Line], np.array)]
_Travel = Annotated[float, From(float | None, lambda value: math.inf if value is None else value)]  # in JSON: null

MOST_LEVERS = 20_000_000  # maximum size of the motion bounds of one robot: 160 MB
WORLD = -1  # the joint index of anything fixed to the world


@dataclass(frozen=True, kw_only=True, eq=False)
class Capsules:
    """The shape of a robot as one or more capsules per link in the world frame.

    A sphere has two equal ends. `links` names the link of each capsule, (n,). `ends_m` has shape (n, 2, 3), or (k, n,
    2, 3) for k joint positions. `radii_m` has shape (n,).
    """

    links: tuple[str, ...]
    ends_m: FloatArray
    radii_m: FloatArray


@dataclass(frozen=True, kw_only=True, eq=False)
class MotionBounds:
    """Upper bounds on the motion of capsules, in m per joint unit.

    `alone`, shape (n_capsules, n_joints), is the displacement of any point of a capsule. `apart`, shape (n_capsules,
    n_capsules, n_joints), is the change of the distance of two capsules, for which a joint that carries both does not
    count.
    """

    alone: FloatArray
    apart: FloatArray


@dataclass(frozen=True, kw_only=True, eq=False)
class TreeJoint:
    """A joint that rotates about or slides along the unit vector `axis` through its origin."""

    parent: int  # the index of an earlier joint, or WORLD
    frame: _Frame  # its frame at value zero in that of the parent
    axis: Annotated[FloatArray, From(_Point, np.array)]
    slides: bool
    column: int  # its value is ratio * positions[column] + offset
    ratio: float
    offset: float
    travel_m: _Travel  # maximum magnitude of the value of a sliding joint, else 0


@dataclass(frozen=True, kw_only=True, eq=False)
class TreeShape:
    """One capsule of a link, with its ends, shape (2, 3), in the frame of `joint`."""

    link: str
    joint: int
    ends_m: Annotated[FloatArray, From(tuple[_Point, _Point], np.array)]
    radius_m: float


class KinematicModel:
    """The joints of a robot, in `tree` each after its parent, and the capsules they carry."""

    def __init__(
        self,
        joints: tuple[str, ...],
        tree: Sequence[TreeJoint],
        shapes: Sequence[TreeShape],
        *,
        adjacent: frozenset[frozenset[str]] = frozenset(),
    ) -> None:
        """Connect joints and capsules, with further `adjacent` links that touch by construction."""
        self.joints, self.tree, self.shapes = joints, tuple(tree), tuple(shapes)
        self._adjacent = adjacent

    def capsules(self, joint_positions: FloatArray) -> Capsules:
        """Return the shape for joint positions (n,) or (k, n), or raise UsageError."""
        positions = self._checked(joint_positions, 1, 2)
        carriers, ends, radii = self._outline
        placed = (self._frames(np.atleast_2d(positions))[:, carriers, :3] @ ends).swapaxes(-1, -2)
        return Capsules(
            links=tuple(shape.link for shape in self.shapes),
            ends_m=placed if positions.ndim > 1 else placed[0],
            radii_m=radii,
        )

    def levers(self) -> MotionBounds:
        """Return upper bounds on the motion of the capsules, in the order of `capsules`.

        For a rotating joint: the sum of the distances of neighbouring joints up to the capsule, the first one from the
        joint's axis. Raises ContractError for a tree that is too large.
        """
        size = len(self.shapes) ** 2 * len(self.tree)
        allow(size <= MOST_LEVERS, SHAPE, f"robot too large: capsules^2 * joints = {size}", f"at most {MOST_LEVERS}")
        by_joint = np.array([self._levers_of(shape) for shape in self.shapes]).reshape(-1, len(self.tree))
        chains = [set(self._chain(shape.joint)) for shape in self.shapes]
        carries = np.array([[i in chain for i in range(len(self.tree))] for chain in chains])
        carries = carries.reshape(by_joint.shape)
        either = np.where(carries[:, None] != carries[None], by_joint[:, None] + by_joint[None], 0.0)
        alone, apart = (np.zeros((*levers.shape[:-1], len(self.joints))) for levers in (by_joint, either))
        for i, joint in enumerate(self.tree):
            if joint.ratio != 0.0:  # 0 * inf is NaN
                alone[:, joint.column] += abs(joint.ratio) * by_joint[:, i]
                apart[..., joint.column] += abs(joint.ratio) * either[..., i]
        return MotionBounds(alone=alone, apart=apart)

    @cached_property
    def adjacent(self) -> frozenset[frozenset[str]]:
        """The pairs of links that touch by construction, fixed to each other or joined by a joint."""
        links: dict[int, set[str]] = {}
        for shape in self.shapes:
            links.setdefault(shape.joint, set()).add(shape.link)
        pairs = {frozenset(pair) for group in links.values() for pair in combinations(sorted(group), 2)}
        for joint, group in links.items():
            shaped = [i for i in [*self._chain(joint), WORLD] if i in links and i != joint]
            if joint != WORLD and shaped:
                pairs |= {frozenset((a, b)) for a in group for b in links[shaped[0]] if a != b}
        return self._adjacent | pairs

    def _checked(self, joint_positions: FloatArray, *dimensions: int) -> FloatArray:
        positions = np.asarray(joint_positions, dtype=np.float64)
        if positions.ndim not in dimensions or positions.shape[-1] != len(self.joints):
            expected = f"({len(self.joints)},): {', '.join(self.joints)}"
            raise UsageError(f"invalid joint positions: shape {positions.shape} (expected {expected})")
        return positions

    def _frames(self, positions: FloatArray) -> FloatArray:
        """Return the frames of joints and world, (k, n_joints + 1, 4, 4), for positions (k, n)."""
        columns, ratios, offsets, basis = self._terms
        values = positions[:, columns] * ratios + offsets
        weights = np.stack([np.ones_like(values), np.cos(values), np.sin(values), values], axis=-1)
        steps = (weights.swapaxes(0, 1) @ basis).reshape(len(self.tree), len(positions), 4, 4)
        frames = np.empty((len(self.tree) + 1, len(positions), 4, 4))
        frames[WORLD] = np.eye(4)
        for i, joint in enumerate(self.tree):
            np.matmul(frames[joint.parent], steps[i], out=frames[i])
        return frames.swapaxes(0, 1)

    def _chain(self, joint: int) -> list[int]:
        chain = []
        while joint != WORLD:
            chain.append(joint)
            joint = self.tree[joint].parent
        return chain

    def _levers_of(self, shape: TreeShape) -> FloatArray:
        """Return the motion bounds of one capsule by joint, zero for joints that do not carry it."""
        levers = np.zeros(len(self.tree))
        for end in shape.ends_m:
            offset, beyond = end, 0.0  # the next joint outwards, in this joint's frame, and the reach beyond it
            for i in self._chain(shape.joint):
                joint = self.tree[i]
                from_axis = math.sqrt(max(0.0, float(offset @ offset) - float(offset @ joint.axis) ** 2))
                levers[i] = max(levers[i], 1.0 if joint.slides else from_axis + beyond)
                beyond += float(np.linalg.norm(offset)) + joint.travel_m
                offset = joint.frame[:3, 3]
        return levers

    @cached_property
    def _terms(self) -> tuple[NDArray[np.intp], FloatArray, FloatArray, FloatArray]:
        """Return column, ratio, offset, and weights (n, 4, 16) of 1, cos, sin and the value."""
        basis = np.zeros((len(self.tree), 4, 4, 4))
        for terms, joint in zip(basis, self.tree, strict=True):
            terms[0] = np.eye(4)
            if joint.slides:
                terms[3, :3, 3] = joint.axis
            else:
                terms[0, :3, :3], terms[1, :3, :3], terms[2, :3, :3] = _rotation_terms(joint.axis)
            terms[:] = joint.frame @ terms
        columns = np.array([joint.column for joint in self.tree], dtype=np.intp)
        ratios = np.array([joint.ratio for joint in self.tree])
        offsets = np.array([joint.offset for joint in self.tree])
        return columns, ratios, offsets, basis.reshape(-1, 4, 16)

    @cached_property
    def _outline(self) -> tuple[NDArray[np.intp], FloatArray, FloatArray]:
        """Joint (n,), ends as homogeneous columns (n, 4, 2), and radius (n,) of each capsule."""
        ends = np.ones((len(self.shapes), 4, 2))
        for columns, shape in zip(ends, self.shapes, strict=True):
            columns[:3] = shape.ends_m.T
        radii = np.array([shape.radius_m for shape in self.shapes])
        radii.flags.writeable = False
        return np.array([shape.joint for shape in self.shapes], dtype=np.intp), ends, radii


def make_transform(position_m: Iterable[float], rotation: FloatArray | None = None) -> FloatArray:
    """Return the transform (4, 4) of an origin and a rotation, by default the identity."""
    frame = np.eye(4)
    frame[:3, 3] = list(position_m)
    if rotation is not None:
        frame[:3, :3] = rotation
    return frame


def _rotation_terms(axis: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the terms of Rodrigues' formula u u' + cos t (1 - u u') + sin t [u]x."""
    x, y, z = axis
    along = np.outer(axis, axis)
    return along, np.eye(3) - along, np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])


def joint_transform(axis: FloatArray, value: float, *, slides: bool) -> FloatArray:
    """Return the transform of a joint with this unit vector at `value`, rad or m."""
    if slides:
        return make_transform(axis * value)
    along, across, turned = _rotation_terms(axis)
    return make_transform((0.0, 0.0, 0.0), along + math.cos(value) * across + math.sin(value) * turned)


def enclosing_capsule(kind: str, half_sizes_m: FloatArray) -> tuple[FloatArray, float]:
    """Return ends (2, 3) and radius, m, of a capsule that encloses a shape at the origin.

    `half_sizes_m`, (3,), are the half extents of a box or an ellipsoid. For a sphere, and a capsule or cylinder along
    z, the radius is first and half the length of the straight part last.

    A cylinder, and a box as the cylinder about its longest axis, gets the smallest coaxial capsule: half length h < l
    and radius hypot(r, l - h), which reaches the rims. An ellipsoid with semi-axes a >= b >= c is inside the
    capsule of radius b with half length a - b: (a cos t - (a - b))^2 + (b sin t)^2 <= b^2 where a cos t >= a - b.
    """
    longest, radius = 2, float(half_sizes_m[0])
    half = 0.0 if kind == "sphere" else float(half_sizes_m[2])
    if kind in ("box", "ellipsoid"):
        longest = int(np.argmax(half_sizes_m))
        across = np.sort(np.delete(half_sizes_m, longest))
        half, radius = float(half_sizes_m[longest]), float(np.hypot(*across))
        if kind == "ellipsoid":
            half, radius = half - float(across[1]), float(across[1])
    if kind in ("box", "cylinder"):
        halves = half * np.linspace(0.0, 1.0, 129)
        radii = np.hypot(radius, half - halves)
        smallest = int(np.argmin(radii**2 * (halves / 2.0 + radii / 3.0)))  # the volume over 4 pi
        half, radius = float(halves[smallest]), float(radii[smallest])
    ends = np.zeros((2, 3))
    ends[:, longest] = (-half, half)
    return ends, radius


def transform_points(frame: FloatArray, ends_m: FloatArray) -> FloatArray:
    """Transform points of shape (k, 3) by `frame`."""
    moved: FloatArray = ends_m @ frame[:3, :3].T + frame[:3, 3]
    return moved


@dataclass(frozen=True, kw_only=True)
class _Shape:
    joints: tuple[str, ...]
    adjacent: tuple[tuple[str, ...], ...]
    tree: tuple[TreeJoint, ...]
    capsules: tuple[TreeShape, ...]


def dump_shape(model: KinematicModel) -> bytes:
    """Return the shape of a robot as JSON, from which `parse_shape` restores it bit for bit."""
    value = {
        "joints": model.joints,
        "adjacent": sorted(sorted(pair) for pair in model.adjacent),
        "tree": [
            {**vars(joint), "travel_m": joint.travel_m if math.isfinite(joint.travel_m) else None}
            for joint in model.tree
        ],
        "capsules": list(map(vars, model.shapes)),
    }
    return json.dumps(value, default=lambda item: item.tolist()).encode()  # numpy's arrays and numbers


def parse_shape(content: bytes) -> KinematicModel:
    """Return the shape dumped by `dump_shape`, or raise ContractError for any other content."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ContractError(SHAPE, f"not JSON: {error}") from None
    allow(isinstance(data, dict), SHAPE, type(data).__name__, "a mapping")
    shape = parse_as(_Shape, data, path=SHAPE)
    for index, joint in enumerate(shape.tree):
        is_valid = WORLD <= joint.parent < index and 0 <= joint.column < len(shape.joints)
        allow(is_valid, f"{SHAPE}.tree[{index}]", f"parent {joint.parent}, column {joint.column}", "existing ones")
    for index, capsule in enumerate(shape.capsules):
        is_valid = WORLD <= capsule.joint < len(shape.tree)
        allow(is_valid, f"{SHAPE}.capsules[{index}]", f"joint {capsule.joint}", f"below {len(shape.tree)}")
    return KinematicModel(shape.joints, shape.tree, shape.capsules, adjacent=frozenset(map(frozenset, shape.adjacent)))
