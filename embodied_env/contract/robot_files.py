"""Robot files: the robot half of a contract, merged under it by ``robot: NAME_OR_PATH``.

A robot file has the sensors, actuators, safety and backend profiles of one robot. A contract is merged over it:
mappings merge, lists and scalars replace, ``null`` replaces, and the paths under ``remove`` are removed first. A
contract may only tighten the limits and the safety of its robot file, unless it sets ``override_robot_limits: true``.
"""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embodied_env.contract.fingerprint import to_plain
from embodied_env.contract.frozen_dict import FrozenFields
from embodied_env.contract.schema import ActuatorSpec, ContractFields, JointLimits, Safety, SensorSpec
from embodied_env.contract.value_checks import one_of
from embodied_env.errors import ContractError

Document = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class RobotFile(FrozenFields):
    """The keys of a robot file."""

    name: str  # the robot's name
    sensors: Mapping[str, SensorSpec]  # sensors by name, at least one
    actuators: Mapping[str, ActuatorSpec]  # actuators by name, at least one
    safety: Safety = field(default_factory=Safety)  # safety gates
    backends: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # profiles by backend
    chosen: Mapping[str, str] = field(default_factory=dict)  # path to reason: conservative values that no source gives


_MERGED = ("sensors", "actuators", "safety", "backends")
_FILES = (("safety", "urdf"), ("backends", "*", "model"), ("backends", "*", "stand_in", "robot_description"))
"""Keys that name a file, relative to the folder of the file that they stand in."""


def merge_robot(document: Document, robot: Document, text: str, *, robot_source: str, source: str) -> Document:
    """Merge a contract over its robot file.

    Args:
        document: the contract's mapping, with the keys ``robot`` and, optionally, ``remove``.
        robot: the robot file's mapping.
        text: the robot file's text.
        robot_source: the robot file's path; the files it names are relative to its folder.
        source: the contract's path.

    Returns:
        The resolved contract; its key ``robot`` is a `RobotSource` as a mapping.

    Raises:
        ContractError: for a path under ``remove`` or ``confirmed`` that does not exist.
    """
    base = {key: copy.deepcopy(robot[key]) for key in _MERGED if isinstance(robot.get(key), dict)}
    _rebase_files(base, Path(robot_source).parent, Path(source).parent)
    own = {key: value for key, value in document.items() if key not in ("robot", "remove")}
    for path in _texts(document.get("remove", []), "remove"):
        _remove(base, path)
    merged = _merge(base, own)
    chosen = {
        path: str(reason)
        for path, reason in (robot.get("chosen") or {}).items()
        if _has(merged, path) and not _has(own, path)
    }
    origin = {"name": robot.get("name"), "sha256": hashlib.sha256(text.encode()).hexdigest(), "chosen": chosen}
    return {**merged, "robot": origin}


def _merge(base: Any, own: Any) -> Any:  # noqa: ANN401 - YAML types
    if not (isinstance(base, dict) and isinstance(own, dict)):
        return own
    return {**base, **{key: _merge(base[key], value) if key in base else value for key, value in own.items()}}


def _texts(value: object, path: str) -> list[str]:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    raise ContractError(path, f"{value!r} is not a list of paths (expected e.g. [sensors.wrench])")


def _remove(document: Document, path: str) -> None:
    *parents, last = path.split(".")
    node: Any = document
    for key in parents:
        node = node.get(key) if isinstance(node, dict) else None
    if not isinstance(node, dict) or last not in node:
        names = one_of(last, node) if isinstance(node, dict) else "its parent is not a mapping of the robot file"
        raise ContractError("remove", f"no such path in the robot file: {path!r}: {names}")
    del node[last]


def _has(document: Any, path: str) -> bool:  # noqa: ANN401 - YAML types
    """Return whether `document` has a value at `path`; the last keys may be of a mapping that is a scalar here."""
    node = document
    for key in path.split("."):
        if not isinstance(node, dict):
            return True
        if key not in node:
            return False
        node = node[key]
    return True


def _rebase_files(document: Document, folder: Path, target: Path) -> None:
    """Make the files that exist in `folder` relative to `target`. Others are names of shipped models."""
    for keys in _FILES:
        for parent in _parents(document, keys[:-1]):
            file = parent.get(keys[-1])
            if isinstance(file, str) and (folder / file).is_file():
                parent[keys[-1]] = os.path.relpath(folder / file, target)


def _parents(node: Any, keys: tuple[str, ...]) -> Iterator[Document]:  # noqa: ANN401 - YAML types
    if not isinstance(node, dict):
        return
    if not keys:
        yield node
        return
    for key in node if keys[0] == "*" else (keys[0],):
        yield from _parents(node.get(key), keys[1:])


Rule = Callable[[Any, Any], bool]
"""Whether a contract's value (second) is as tight as its robot file's (first)."""


def _at_most(robot: Any, own: Any) -> bool:  # noqa: ANN401 - numbers; None: no limit
    return robot is None or (own is not None and own <= robot)


def _at_least(robot: Any, own: Any) -> bool:  # noqa: ANN401 - numbers or bools
    return bool(own >= robot)


def _equal(robot: Any, own: Any) -> bool:  # noqa: ANN401 - any value
    return bool(robot == own)


def _within(robot: Any, own: Any) -> bool:  # noqa: ANN401 - an interval; None: no limit
    return robot is None or (own is not None and robot[0] <= own[0] and own[1] <= robot[1])


def _keeps(robot: Any, own: Any) -> bool:  # noqa: ANN401 - mappings
    """Every entry of the robot's mapping is there, and equal."""
    return all(name in own and own[name] == value for name, value in robot.items())


def _all_of(robot: Any, own: Any) -> bool:  # noqa: ANN401 - lists; None: the default ones
    return robot == own or (robot is not None and own is not None and set(robot) <= set(own))


def _none_but(robot: Any, own: Any) -> bool:  # noqa: ANN401 - lists
    return all(item in robot for item in own)


def _boxes_within(robot: Any, own: Any) -> bool:  # noqa: ANN401 - mappings of boxes
    def is_inside(outer: Any, inner: Any) -> bool:  # noqa: ANN401 - boxes
        lows, highs = (
            zip(outer["low_m"], inner["low_m"], strict=True),
            zip(outer["high_m"], inner["high_m"], strict=True),
        )
        return all(a <= b for a, b in lows) and all(a >= b for a, b in highs)

    return all(name in own and is_inside(box, own[name]) for name, box in robot.items())


def _is_kept(robot: Any, own: Any) -> bool:  # noqa: ANN401 - an optional group
    return robot is None or own is not None


def _forces_at_most(robot: Any, own: Any) -> bool:  # noqa: ANN401 - mappings of force limits
    return all(
        name in own and own[name]["field"] == limit["field"] and own[name]["limit"] <= limit["limit"]
        for name, limit in robot.items()
    )


JOINT_RULES: Mapping[str, Rule] = {
    "position": _within,
    "velocity": _at_most,
    "acceleration": _at_most,
    "deceleration": _at_most,
    "jerk": _at_most,
    "unit": _equal,
}

SAFETY_RULES: Mapping[str, Rule] = {
    "mode": lambda robot, own: own in (robot, "enforce"),
    "margins.position": _at_least,
    "margins.velocity": _at_most,
    "margins.acceleration": _at_most,
    "nonfinite.stop_after": _at_most,
    "watchdog.hold_steps": _at_most,
    "watchdog.stop_steps": _at_most,
    "observation.required": _all_of,
    "observation.stop_steps": _at_most,
    "observation.future_tolerance_s": _at_most,
    "observation.require_stamp": _at_least,
    "action.max_age_steps": _at_most,
    "tracking": _is_kept,
    "tracking.tolerance": _at_most,
    "tracking.delay_steps": _at_most,
    "tracking.debounce_steps": _at_most,
    "tracking.stop_steps": _at_most,
    "latency.budget_s": _at_most,
    "latency.misses": _at_most,
    "latency.window_steps": _at_least,
    "latency.action": lambda robot, own: own in (robot, "hold"),
    "intervention.window_steps": _equal,
    "intervention.warn_share": _at_most,
    "intervention.stop_share": _at_most,
    "forces": _forces_at_most,
    "urdf": lambda robot, own: robot in (None, own),
    "workspace": _is_kept,
    "workspace.keep_in": _boxes_within,
    "workspace.keep_out": _keeps,
    "workspace.self_collision": _at_least,
    "workspace.ignore_pairs": _none_but,
    "workspace.ignore_links": _none_but,
    "workspace.margin_m": _at_least,
    "workspace.gamma": _at_most,
    "gates": _keeps,
}

REAL_RULES: Mapping[str, tuple[Any, Rule]] = {  # of `backends.real`: the default, and the rule
    "estop": ({}, _keeps),
    "active": ({}, _keeps),
    "relay": (False, _at_least),
    "downstream_timeout_s": (None, _equal),
    "allow_no_downstream_timeout": (False, lambda robot, own: own <= robot),
    "start_outside": ("refuse", lambda robot, own: own in (robot, "refuse")),
    "security": ("off", lambda robot, own: own in (robot, "required")),
}


Loosened = tuple[str, Any, Any]
"""The path of a limit, its value in the robot file and the contract's."""


def loosened(robot: RobotFile, contract: ContractFields) -> Iterator[Loosened]:
    """Yield each limit of `robot` that `contract` loosens."""
    yield from _loosened_ages(robot, contract)
    yield from _loosened_joints(robot, contract)
    yield from _loosened_safety(to_plain(robot.safety), to_plain(contract.safety))
    if "real" in robot.backends and "real" in contract.backends:
        real, own = to_plain(robot.backends["real"]), to_plain(contract.backends["real"])
        for key, (default, rule) in REAL_RULES.items():
            path, old, new = f"backends.real.{key}", real.get(key, default), own.get(key, default)
            is_measured = rule is _equal and path in robot.chosen and new is not None  # a fact of the robot, no limit
            if not is_measured and not rule(old, new):
                yield path, old, new


def limit_paths(contract: ContractFields) -> set[str]:
    """Return the paths that `loosened` may yield for `contract`."""
    joints = {path for path, _ in _limits(contract.actuators).values()}
    return {
        *(f"sensors.{name}.max_age_s" for name in contract.sensors),
        *(f"{path}.{key}" for path in joints for key in JOINT_RULES),
        *(f"safety.{path}" for path in SAFETY_RULES),
        *(f"backends.real.{key}" for key in REAL_RULES),
    }


def _loosened_ages(robot: RobotFile, contract: ContractFields) -> Iterator[Loosened]:
    for name, sensor in robot.sensors.items():
        if name in contract.sensors and contract.sensors[name].max_age_s > sensor.max_age_s:
            yield f"sensors.{name}.max_age_s", sensor.max_age_s, contract.sensors[name].max_age_s


def _loosened_joints(robot: RobotFile, contract: ContractFields) -> Iterator[Loosened]:
    joints = _limits(robot.actuators)
    for joint, (path, own) in _limits(contract.actuators).items():
        for key, rule in JOINT_RULES.items():
            if joint in joints and not rule(joints[joint][1][key], own[key]):
                yield f"{path}.{key}", joints[joint][1][key], own[key]


def _loosened_safety(robot: Document, own: Document) -> Iterator[Loosened]:
    for path, rule in SAFETY_RULES.items():
        group, _, key = path.partition(".")
        old, new = robot[group], own[group]
        if key and (old is None or new is None):
            continue  # an optional group, which has a rule of its own
        old, new = (old[key], new[key]) if key else (old, new)
        if not rule(old, new):
            yield f"safety.{path}", old, new


def _limits(actuators: Mapping[str, ActuatorSpec]) -> dict[str, tuple[str, Document]]:
    """Return the path and the limits of each joint, by its name. The default of a deceleration is the acceleration."""
    return {
        joint: (f"actuators.{name}.joints.{joint}", _filled(limits))
        for name, actuator in actuators.items()
        for joint, limits in actuator.joints.items()
    }


def _filled(limits: JointLimits) -> Document:
    filled: Document = to_plain(limits)
    return {**filled, "deceleration": filled["acceleration"] if limits.deceleration is None else filled["deceleration"]}
