"""The rules of ``safety.workspace``. Which links there are is known to the kinematic model only, not here."""

from __future__ import annotations

import math
from collections.abc import Mapping

from embodied_env.contract.checks import check_bounds, check_name, check_positive, require
from embodied_env.contract.model import ActuatorSpec
from embodied_env.contract.workspace import KeepOutSpec, WorkspaceSpec


def check_workspace(path: str, spec: WorkspaceSpec, actuators: Mapping[str, ActuatorSpec]) -> None:
    """Check the workspace at `path` of a robot with these actuators; raises ContractError."""
    require(
        bool(spec.keep_in or spec.keep_out or spec.self_collision),
        path,
        "there is nothing to keep; allowed: keep_in, keep_out or self_collision: true",
    )
    for name, box in spec.keep_in.items():
        check_name(f"{path}.keep_in.{name}", name)
        check_bounds(f"{path}.keep_in.{name}", box.low_m, box.high_m, 3)
    for name, region in spec.keep_out.items():
        check_name(f"{path}.keep_out.{name}", name)
        _check_region(f"{path}.keep_out.{name}", region)
    for i, pair in enumerate(spec.ignore_pairs):
        require(pair[0] != pair[1], f"{path}.ignore_pairs[{i}]", f"{list(pair)} is one link; allowed: two links")
    require(
        math.isfinite(spec.margin_m) and spec.margin_m >= 0,
        f"{path}.margin_m",
        f"{spec.margin_m} is not allowed; allowed: a finite number of m >= 0",
    )
    require(0.0 < spec.gamma <= 1.0, f"{path}.gamma", f"{spec.gamma} is not allowed; allowed: above 0, up to 1")
    for name, actuator in actuators.items():
        _check_actuator(path, name, actuator)


def _check_region(path: str, region: KeepOutSpec) -> None:
    shapes = [shape for shape in (region.box, region.sphere, region.capsule) if shape is not None]
    require(len(shapes) == 1, path, f"{len(shapes)} shapes; allowed: exactly one of box, sphere, capsule")
    if region.box is not None:
        check_bounds(f"{path}.box", region.box.low_m, region.box.high_m, 3)
    if region.sphere is not None:
        check_positive(f"{path}.sphere.radius_m", region.sphere.radius_m, "m")
        _check_point(f"{path}.sphere.center_m", region.sphere.center_m)
    if region.capsule is not None:
        check_positive(f"{path}.capsule.radius_m", region.capsule.radius_m, "m")
        for i, end in enumerate(region.capsule.ends_m):
            _check_point(f"{path}.capsule.ends_m[{i}]", end)


def _check_point(path: str, point: tuple[float, ...]) -> None:
    is_point = len(point) == 3 and all(math.isfinite(value) for value in point)
    require(is_point, path, f"{list(point)} is not allowed; allowed: three finite numbers of m")


def _check_actuator(path: str, name: str, actuator: ActuatorSpec) -> None:
    """Positions of all joints are known: from the last command, or measured where there are limits of position."""
    problem = f"the actuator {name!r} is commanded by a twist, so where the robot stands is not known"
    require(actuator.command != "twist", path, f"{problem}; allowed: only joints")
    for joint, limits in actuator.joints.items():
        require(
            not (actuator.is_velocity and limits.position is None),
            path,
            f"where the joint {joint!r} of {name!r} is, is not known: it is commanded by velocity and has no limits of "
            "position; allowed: limits of position",
        )
