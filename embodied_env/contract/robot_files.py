"""Robot files: the robot half of a contract, merged under it by ``robot: NAME_OR_PATH``.

A robot file has the sensors, actuators, safety and backend profiles of one robot. A contract is merged over it:
mappings merge, lists and scalars replace, ``null`` replaces, and the paths under ``remove`` are removed first. A
contract may only tighten the limits and the safety of its robot file, unless it sets ``override_robot_limits: true``.
"""

from __future__ import annotations

import hashlib
import operator
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embodied_env.contract.fingerprint import to_plain
from embodied_env.contract.frozen_dict import FrozenFields
from embodied_env.contract.required_sensors import commanded_joints, default_required, joints_of
from embodied_env.contract.safety_schema import Safety
from embodied_env.contract.schema import ActuatorSpec, ContractFields, JointLimits, SensorSpec
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


def rebase_robot(robot: Document, folder: Path, target: Path) -> Document:
    """Return a robot file's mapping with the files that it names relative to `target` instead of its own `folder`.

    A model or description that is not a file of `folder` is the name of a shipped one. The copy shares no value with
    itself, as YAML aliases do: changing one of two aliases would change both.
    """
    copied: Document = _unshared(robot)
    for keys in _FILES:
        for parent in _parents(copied, keys[:-1]):
            file = parent.get(keys[-1])
            if isinstance(file, str) and (keys[-1] == "urdf" or (folder / file).is_file()):
                parent[keys[-1]] = os.path.relpath(folder / file, target)
    return copied


def merge_robot(document: Document, robot: Document, text: str) -> Document:
    """Merge a contract over its robot file.

    Args:
        document: the contract's mapping, with the keys ``robot`` and, optionally, ``remove``.
        robot: the robot file's mapping, from `rebase_robot`; paths are removed from it.
        text: the robot file's text.

    Returns:
        The resolved contract; its key ``robot`` is a `RobotSource` as a mapping.

    Raises:
        ContractError: for a path under ``remove`` or ``confirmed`` that does not exist.
    """
    base = {key: robot[key] for key in _MERGED if isinstance(robot.get(key), dict)}
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


def _unshared(value: Any) -> Any:  # noqa: ANN401 - YAML types
    if isinstance(value, dict):
        return {key: _unshared(item) for key, item in value.items()}
    return [_unshared(item) for item in value] if isinstance(value, list) else value


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


_at_least: Rule = operator.le
_equal: Rule = operator.eq


def _at_most(robot: Any, own: Any) -> bool:  # noqa: ANN401 - numbers; None: no limit
    return robot is None or (own is not None and own <= robot)


def _within(robot: Any, own: Any) -> bool:  # noqa: ANN401 - intervals; None: no limit
    return robot is None or (own is not None and robot[0] <= own[0] and own[1] <= robot[1])


def _keeps(robot: Any, own: Any) -> bool:  # noqa: ANN401 - mappings
    return all(name in own and own[name] == value for name, value in robot.items())


def _none_but(robot: Any, own: Any) -> bool:  # noqa: ANN401 - lists
    return all(item in robot for item in own)


def _boxes_within(robot: Any, own: Any) -> bool:  # noqa: ANN401 - mappings of boxes
    def axes(box: Any) -> Iterator[Any]:  # noqa: ANN401 - a box
        return zip(box["low_m"], box["high_m"], strict=True)

    return all(name in own and all(map(_within, axes(box), axes(own[name]))) for name, box in robot.items())


def _is_kept(robot: Any, own: Any) -> bool:  # noqa: ANN401 - an optional group
    return robot is None or own is not None


def _forces_at_most(robot: Any, own: Any) -> bool:  # noqa: ANN401 - mappings of force limits
    return all(
        name in own and own[name]["field"] == limit["field"] and own[name]["limit"] <= limit["limit"]
        for name, limit in robot.items()
    )


def _margins_as_large(robot: Any, own: Any) -> bool:  # noqa: ANN401 - margins by joint
    """Compare the margins of position, velocity and acceleration of the joints of both."""
    pairs = [(each, own[joint]) for joint, each in robot.items() if joint in own]
    return all(ours[0] >= theirs[0] and ours[1] <= theirs[1] and ours[2] <= theirs[2] for theirs, ours in pairs)


def _tolerances_at_most(robot: Any, own: Any) -> bool:  # noqa: ANN401 - tolerances by joint; None: not checked
    return all(_at_most(tolerance, own[joint]) for joint, tolerance in robot.items() if joint in own)


def _harmless(robot: Any, own: Any) -> bool:  # noqa: ANN401, ARG001 - any values
    """Accept a key that loosens nothing by itself."""
    return True


def _starts_as_safely(robot: Any, own: Any) -> bool:  # noqa: ANN401 - mappings of a reset, None: nothing moves
    """The operator confirms by the same channel, and homing is no faster."""
    if robot is None or own is None:
        return True
    is_confirmed = robot.get("confirm", "") in ("", own.get("confirm", ""))
    return is_confirmed and own.get("speed", _HOMING_SPEED) <= robot.get("speed", _HOMING_SPEED)


def _inward(start_outside: Any) -> set[str]:  # noqa: ANN401 - a word or a mapping by joint
    """Return the joints that may start outside their limits; "" is all of them."""
    if isinstance(start_outside, str):
        return set() if start_outside == "refuse" else {""}
    return {joint for joint, word in start_outside.items() if word != "refuse"}


_HOMING_SPEED = 0.2  # the default of `backends.real.reset.speed`

SENSOR_RULES: Mapping[str, Rule] = {
    "max_age_s": _at_most,
    "on_gap": lambda robot, own: own in (robot, "stop"),
    "timeline": lambda robot, own: own in (robot, "header"),
    "visibility": lambda robot, own: own in (robot, "agent"),
}

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
    "margins.joints": _margins_as_large,
    "margins.actuators": _harmless,  # resolved by joint
    "nonfinite.stop_after": _at_most,
    "watchdog.hold_steps": _at_most,
    "watchdog.stop_steps": _at_most,
    "observation.required": lambda robot, own: set(robot) <= set(own),
    "observation.stop_steps": _at_most,
    "observation.future_tolerance_s": _at_most,
    "observation.require_stamp": _at_least,
    "action.max_age_steps": _at_most,
    "tracking": _is_kept,
    "tracking.tolerance": _at_most,
    "tracking.delay_steps": _at_most,
    "tracking.debounce_steps": _at_most,
    "tracking.stop_steps": _at_most,
    "tracking.joints": _tolerances_at_most,
    "tracking.actuators": _harmless,  # resolved by joint
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
    "start_outside": ("refuse", lambda robot, own: robot == "inward" or _inward(own) <= _inward(robot)),
    "security": ("off", lambda robot, own: own in (robot, "required")),
    "use_sim_time": (False, lambda robot, own: own <= robot),
    "shared": ([], _none_but),
    "reset": (None, _starts_as_safely),
}


Loosened = tuple[str, Any, Any]
"""The path of a limit, its value in the robot file and the contract's."""


def loosened(robot: RobotFile, contract: ContractFields) -> list[Loosened]:
    """Return each limit of `robot` that `contract` loosens, once."""
    found = [
        *_loosened_sensors(robot, contract),
        *_loosened_actuators(robot, contract),
        *_loosened_safety(_filled_safety(robot, contract), _filled_safety(contract, contract)),
        *_loosened_inputs(robot, contract),
    ]
    if "real" in robot.backends and "real" in contract.backends:
        real, own = to_plain(robot.backends["real"]), to_plain(contract.backends["real"])
        for key, (default, rule) in REAL_RULES.items():
            path, old, new = f"backends.real.{key}", real.get(key, default), own.get(key, default)
            is_measured = rule is _equal and path in robot.chosen and new is not None  # a fact of the robot, no limit
            if not is_measured:
                found += _compared(path, rule, old, new)
    return list({path: (path, theirs, ours) for path, theirs, ours in reversed(found)}.values())[::-1]


def limit_paths(contract: ContractFields) -> set[str]:
    """Return the paths that `loosened` may have for `contract`."""
    joints = {f"actuators.{name}.joints.{joint}" for name, spec in contract.actuators.items() for joint in spec.joints}
    return {
        *joints,
        *(f"{path}.{key}" for path in joints for key in JOINT_RULES),
        *(f"actuators.{name}.{key}" for name in contract.actuators for key in ("command", "joints", "type")),
        *(f"sensors.{name}.{key}" for name in contract.sensors for key in (*SENSOR_RULES, "topic")),
        *(f"safety.{path}" for path in SAFETY_RULES),
        *(f"backends.real.{key}" for key in REAL_RULES),
    }


def _compared(path: str, rule: Rule, robot: Any, own: Any) -> Iterator[Loosened]:  # noqa: ANN401 - any values
    """Yield a limit that is not as tight; the values of a profile may have any type, and one of a wrong type is not."""
    try:
        is_as_tight = rule(robot, own)
    except (TypeError, ValueError, AttributeError, LookupError):
        is_as_tight = False
    if not is_as_tight:
        yield path, robot, own


def _loosened_sensors(robot: RobotFile, contract: ContractFields) -> Iterator[Loosened]:
    """Compare sensors by name, by topic, and, if the agent sees them, by joint."""
    for name, sensor in contract.sensors.items():
        joints = joints_of(sensor) if sensor.visibility == "agent" else set()
        for known, other in robot.sensors.items():
            if known == name or _is_same_topic(other, sensor) or joints & joints_of(other):
                for key, rule in SENSOR_RULES.items():
                    yield from _compared(f"sensors.{name}.{key}", rule, getattr(other, key), getattr(sensor, key))


def _loosened_inputs(robot: RobotFile, contract: ContractFields) -> Iterator[Loosened]:
    """Check that what the safety of `robot` depends on is still read, and from there: readings and its shape."""
    commanded = {joint for actuator in contract.actuators.values() for joint in actuator.joints}
    theirs, ours = _measured(robot.sensors), _measured(contract.sensors)
    if theirs & commanded - ours:
        yield "safety.observation.required", sorted(theirs & commanded), sorted(ours)
    if robot.safety.workspace is not None and (shape := _shape(robot)) not in (None, _shape(contract)):
        yield "safety.workspace", shape, _shape(contract)
    for name, limit in robot.safety.forces.items():
        if name in robot.sensors and name in contract.sensors:
            old, new = _place(robot.sensors[name], limit.field), _place(contract.sensors[name], limit.field)
            if old != new:
                yield f"sensors.{name}.topic", old, new


def _loosened_actuators(robot: RobotFile, contract: ContractFields) -> Iterator[Loosened]:
    """Compare joints by name. One that `robot` lacks is new, or a renamed one without its limits."""
    known = {joint: limits for other in robot.actuators.values() for joint, limits in other.joints.items()}
    streamed = {
        joint: other.type for other in robot.actuators.values() if not other.is_action for joint in other.joints
    }
    commanded = {joint for actuator in contract.actuators.values() for joint in actuator.joints}
    for name, actuator in contract.actuators.items():
        path = f"actuators.{name}"
        if actuator.is_action and (joint := next(iter(actuator.joints))) in streamed:  # whose speed is not limited
            yield f"{path}.type", streamed[joint], actuator.type
        rivals = [other for other in robot.actuators.values() if _is_same_topic(other, actuator)]
        for other in rivals:
            yield from _compared(f"{path}.command", _equal, _published(other), _published(actuator))
            if actuator.type in _NAMELESS:
                joints = list(other.joints), list(actuator.joints)
                yield from _compared(f"{path}.joints", lambda robot, own: own == robot[: len(own)], *joints)
        for joint, limits in actuator.joints.items():
            where = f"{path}.joints.{joint}"
            if joint not in known and (rivals or known.keys() - commanded):
                yield where, sorted(known), joint
            same = robot.actuators[name].joints.get(joint) if name in robot.actuators else None
            theirs = same or known.get(joint)
            if theirs is not None:
                old, new = _filled(theirs), _filled(limits)
                for key, rule in JOINT_RULES.items():
                    yield from _compared(f"{where}.{key}", rule, old[key], new[key])


def _filled_safety(spec: RobotFile | ContractFields, contract: ContractFields) -> Document:
    """Return the safety of `spec`: margins and tolerances by joint, and the required sensors by `contract`'s names."""
    filled: Document = to_plain(spec.safety)
    joints = {joint: (name, each) for name, each in spec.actuators.items() for joint in each.joints}
    own = {joint: each.margins_of(joint, spec.safety.margins, name) for joint, (name, each) in joints.items()}
    filled["margins"]["joints"] = own
    if (tracking := spec.safety.tracking) is not None:
        filled["tracking"]["joints"] = {joint: tracking.of(name, joint) for joint, (name, _) in joints.items()}
    required = spec.safety.observation.required
    if required is None:
        required = default_required(
            spec.sensors, commanded_joints(spec.actuators) & commanded_joints(contract.actuators)
        )
    filled["observation"]["required"] = [_known_as(name, spec.sensors, contract.sensors) for name in required]
    return filled


def _known_as(name: str, theirs: Mapping[str, SensorSpec], ours: Mapping[str, SensorSpec]) -> str:
    """Return the name in `ours` of a sensor with the same name, topic or joints; `name` if there is none."""
    if name in ours or name not in theirs:
        return name
    sensor, joints = theirs[name], joints_of(theirs[name])
    same = (own for own, each in ours.items() if _is_same_topic(sensor, each) or joints & joints_of(each))
    return next(same, name)


def _loosened_safety(robot: Document, own: Document) -> Iterator[Loosened]:
    groups = set[str]()
    for path, rule in SAFETY_RULES.items():
        group, _, key = path.partition(".")
        old, new = robot[group], own[group]
        if not key:
            yield from _compared(f"safety.{path}", rule, old, new)
        elif old is not None and new is not None:  # an optional group has a rule of its own
            found = [*_compared(f"safety.{path}", rule, old[key], new[key])]
            if key != "joints" or group not in groups:  # where the value for all joints is looser, that is the reason
                yield from found
            groups |= {group} if found else set()


_NAMELESS = ("std_msgs/msg/Float64MultiArray", "std_msgs/msg/Float64")
"""Types of commands without joint names: a value is for the joint at its place."""


def _published(actuator: ActuatorSpec) -> str:
    return "velocities" if actuator.is_velocity else "positions"


def _is_same_topic(one: ActuatorSpec | SensorSpec, other: ActuatorSpec | SensorSpec) -> bool:
    """Return whether two topics are the same in some namespace, which the contract does not know."""
    whole, relative = sorted(topic.removeprefix("~/") for topic in (one.topic, other.topic))  # "/" precedes letters
    return relative == whole or (whole.startswith("/") and whole.endswith(f"/{relative}"))


def _measured(sensors: Mapping[str, SensorSpec]) -> set[str]:
    """Return the joints whose positions the agent sees."""
    seen = [sensor.fields.get("position") for sensor in sensors.values() if sensor.visibility == "agent"]
    return {joint for position in seen if position is not None for joint in position.joints or ()}


def _shape(spec: RobotFile | ContractFields) -> Any:  # noqa: ANN401 - a value of a profile
    """Return the file with the shape of the robot: its URDF, or the first model of a profile."""
    models = [profile["model"] for profile in spec.backends.values() if "model" in profile]
    return spec.safety.urdf or next(iter(models), None)


def _place(sensor: SensorSpec, field: str) -> tuple[str, str, str | None]:
    """Return where the values of a field come from."""
    spec = sensor.fields.get(field)
    return sensor.topic, sensor.type, None if spec is None else spec.path


def _filled(limits: JointLimits) -> Document:
    """Return the limits of a joint. The default of a deceleration is the acceleration."""
    filled: Document = to_plain(limits)
    return {**filled, "deceleration": filled["acceleration"] if limits.deceleration is None else filled["deceleration"]}
