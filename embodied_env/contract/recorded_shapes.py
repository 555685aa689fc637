"""The shape of a robot from its MuJoCo model as JSON, to check its workspace without it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import numpy as np

from embodied_env.contract.contract_schema import SHAPE
from embodied_env.contract.forward_kinematics import WORLD, KinematicModel, TreeJoint, TreeShape
from embodied_env.contract.typed_values import parse_as
from embodied_env.contract.value_checks import allow
from embodied_env.errors import ContractError

_Point = tuple[float, float, float]
_Line = tuple[float, float, float, float]


@dataclass(frozen=True, kw_only=True)
class _Joint:
    """A `TreeJoint`, unlimited if `travel_m` is None."""

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
    """A `KinematicModel`."""

    joints: tuple[str, ...]
    adjacent: tuple[tuple[str, ...], ...]
    tree: tuple[_Joint, ...]
    capsules: tuple[_Capsule, ...]


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
    joints = []
    for joint in shape.tree:
        travel_m = math.inf if joint.travel_m is None else joint.travel_m
        arrays = {"frame": np.array(joint.frame), "axis": np.array(joint.axis)}
        joints.append(TreeJoint(**{**vars(joint), **arrays, "travel_m": travel_m}))
    capsules = [TreeShape(**{**vars(capsule), "ends_m": np.array(capsule.ends_m)}) for capsule in shape.capsules]
    return KinematicModel(shape.joints, joints, capsules, adjacent=frozenset(map(frozenset, shape.adjacent)))
