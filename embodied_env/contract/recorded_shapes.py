"""The shape that a MuJoCo model gave a robot, as JSON: a run keeps it, so its workspace is judged without it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from embodied_env.contract.kinematics import (
    WORLD,
    Capsules,
    JointTree,
    KinematicModel,
    MotionBounds,
    TreeJoint,
    TreeShape,
)
from embodied_env.contract.loader import parse_as
from embodied_env.contract.schema import SHAPE, FloatArray
from embodied_env.contract.value_checks import require
from embodied_env.errors import ContractError, UsageError

_Point = tuple[float, float, float]
_Line = tuple[float, float, float, float]


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedShape:
    """A `KinematicModel` without sites: the joints and the capsules of a robot.

    Attributes:
        joints: the order of joint positions.
        adjacent: the pairs of links that touch by construction.
        tree: the joints and the capsules that they carry.
    """

    joints: tuple[str, ...]
    adjacent: frozenset[frozenset[str]]
    tree: JointTree

    def position_m(self, site: str, joint_positions: FloatArray) -> FloatArray:
        """Raise UsageError: the sites are not recorded."""
        raise UsageError(f"site not recorded: {site!r} at {joint_positions} (expected none); use the model itself")

    def jacobian(self, site: str, joint_positions: FloatArray) -> FloatArray:
        """Raise UsageError: the sites are not recorded."""
        return self.position_m(site, joint_positions)

    def capsules(self, joint_positions: FloatArray) -> Capsules:
        """Return the robot's shape at joint positions of shape (n_joints,), or (k, n_joints) for k of them at once."""
        return self.tree.capsules(joint_positions)

    def levers(self) -> MotionBounds:
        """Return how far the capsules move at most when the joints do."""
        return self.tree.levers


@dataclass(frozen=True, kw_only=True)
class _Joint:
    """A `TreeJoint`; `travel_m` None: without bound."""

    parent: int
    frame: tuple[_Line, _Line, _Line, _Line]
    axis: _Point
    slides: bool
    column: int
    ratio: float
    offset: float
    travel_m: float | None


@dataclass(frozen=True, kw_only=True)
class _Capsule:
    """A `TreeShape`."""

    link: str
    joint: int
    ends_m: tuple[_Point, _Point]
    radius_m: float


@dataclass(frozen=True, kw_only=True)
class _Shape:
    """A `RecordedShape`."""

    joints: tuple[str, ...]
    adjacent: tuple[tuple[str, ...], ...]
    tree: tuple[_Joint, ...]
    capsules: tuple[_Capsule, ...]


def dump_shape(model: KinematicModel) -> bytes:
    """Return the shape of a robot as JSON; `parse_shape` gives the same numbers back, bit for bit."""
    value = {
        "joints": model.joints,
        "adjacent": sorted(sorted(pair) for pair in model.adjacent),
        "tree": [
            {**_plain(asdict(joint)), "travel_m": joint.travel_m if math.isfinite(joint.travel_m) else None}
            for joint in model.tree.joints
        ],
        "capsules": [_plain(asdict(shape)) for shape in model.tree.shapes],
    }
    return json.dumps(value).encode()


def parse_shape(content: bytes) -> RecordedShape:
    """Return the shape in `content`; raises ContractError for anything that `dump_shape` does not write."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ContractError(SHAPE, f"not JSON: {error}") from None
    require(isinstance(data, dict), SHAPE, f"not a mapping: {type(data).__name__}")
    said = parse_as(_Shape, data, path=SHAPE)
    for index, joint in enumerate(said.tree):
        sound = WORLD <= joint.parent < index and 0 <= joint.column < len(said.joints)
        require(sound, f"{SHAPE}.tree[{index}]", "no such parent or column")
    for index, capsule in enumerate(said.capsules):
        require(WORLD <= capsule.joint < len(said.tree), f"{SHAPE}.capsules[{index}]", f"no joint {capsule.joint}")
    tree = JointTree(
        n_columns=len(said.joints),
        joints=tuple(
            TreeJoint(
                parent=joint.parent,
                frame=np.array(joint.frame),
                axis=np.array(joint.axis),
                slides=joint.slides,
                column=joint.column,
                ratio=joint.ratio,
                offset=joint.offset,
                travel_m=math.inf if joint.travel_m is None else joint.travel_m,
            )
            for joint in said.tree
        ),
        shapes=tuple(
            TreeShape(link=shape.link, joint=shape.joint, ends_m=np.array(shape.ends_m), radius_m=shape.radius_m)
            for shape in said.capsules
        ),
    )
    return RecordedShape(joints=said.joints, adjacent=frozenset(map(frozenset, said.adjacent)), tree=tree)


def _plain(value: dict[str, Any]) -> dict[str, Any]:
    return {key: item.tolist() if isinstance(item, (np.ndarray, np.generic)) else item for key, item in value.items()}
