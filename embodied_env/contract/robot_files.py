"""Robot files, over which contracts are merged, and the limits that a contract loosens."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import operator
import os
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from embodied_env.contract.actuator_schema import ActuatorSpec, JointLimits
from embodied_env.contract.contract_schema import ContractFields
from embodied_env.contract.fingerprint import to_plain
from embodied_env.contract.frozen_dict import FrozenFields
from embodied_env.contract.required_sensors import commanded_joint_names, default_required, joints_of
from embodied_env.contract.safety_schema import Safety
from embodied_env.contract.sensor_schema import SensorSpec
from embodied_env.contract.tightening_rules import IsAsTight, Rule
from embodied_env.contract.typed_values import hints_of
from embodied_env.contract.value_checks import one_of
from embodied_env.errors import ContractError
from embodied_env.messages.commands import COMMAND_MESSAGES
from embodied_env.plugins.plugin_table import built_in_classes

Document = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class RobotFile(FrozenFields):
    """The keys of a robot file."""

    name: str  # the robot's name
    sensors: Mapping[str, SensorSpec]  # sensors by name, at least one
    actuators: Mapping[str, ActuatorSpec]  # actuators by name, at least one
    safety: Safety = field(default_factory=Safety)  # safety gates
    backends: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # profiles by backend
    blocks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # keys of plug-ins by name
    chosen: Mapping[str, str] = field(default_factory=dict)  # path to reason: conservative values that no source gives
    # longest control period for which the times in `safety` that count steps were chosen, such as the watchdog's, > 0
    control_period_s: float = 0.1


_MERGED = ("sensors", "actuators", "safety", "backends", "blocks")
_FILES = (  # keys that name a file, relative to the folder of the file that they stand in
    ("safety", "urdf"),
    ("backends", "*", "model"),
    ("backends", "*", "emulator", "robot_description"),
    ("backends", "*", "identified", "file"),
)


def rules_of(cls: type) -> dict[str, IsAsTight]:
    """Return the rules of the keys of `cls` and its groups, or raise TypeError without one."""
    found: dict[str, IsAsTight] = {}
    for key, hint in hints_of(cls).items():
        rule = next((each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Rule)), None)
        plain = typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint
        group: Any = next(filter(dataclasses.is_dataclass, (plain, *typing.get_args(plain))), None)
        if rule is not None:
            found[key] = rule.is_as_tight
        if group is not None and (rule is None or rule.is_group):
            found |= {f"{key}.{inner}": each for inner, each in rules_of(group).items()}
        elif rule is None:
            raise TypeError(f"{cls.__name__}.{key} has no rule for robot files (expected one of `tightening_rules`)")
    return found


SENSOR_RULES = rules_of(SensorSpec)
ACTUATOR_RULES = rules_of(ActuatorSpec)  # for actuators with the same topic; by joint for a gripper
JOINT_RULES = rules_of(JointLimits)
SAFETY_RULES = rules_of(Safety)


@functools.cache
def rules_with_defaults(cls: type) -> dict[str, tuple[Any, IsAsTight]]:
    """Return the default and the rule of each key of a profile, a mapping in a contract."""
    rules = rules_of(cls)
    return {key: (value, rules[key]) for key, value in to_plain(cls()).items()}


def real_rules() -> dict[str, tuple[Any, IsAsTight]]:
    """Return the default and the rule of each key of ``backends.real``."""
    return rules_with_defaults(resolve_name("embodied_env.ros.robot.robot_profile:RealProfile"))


def rebase_robot(robot: Document, folder: Path, target: Path) -> Document:
    """Return a robot file's mapping with its files relative to `target`.

    In `robot` they are relative to its own `folder`. A model or description that is not a file of `folder` is the name
    of a shipped one. The copy shares no value with itself, as YAML aliases do: changing one of two aliases would change
    both.
    """
    copied: Document = _unshared(robot)
    for keys in _FILES:
        for parent in _parents(copied, keys[:-1]):
            file = parent.get(keys[-1])
            if isinstance(file, str) and (keys[-1] == "urdf" or (folder / file).is_file()):
                parent[keys[-1]] = os.path.relpath(folder / file, target)
    return copied


def merge_robot(document: Document, robot: Document, text: str) -> Document:
    """Merge a contract over its robot file from `rebase_robot`, whose text is `text`.

    Raises ContractError for a path under ``remove`` that does not exist.
    """
    base = {key: robot[key] for key in _MERGED if isinstance(robot.get(key), dict)}
    own = {key: value for key, value in document.items() if key not in ("robot", "remove")}
    removed = document.get("remove", [])
    if not (isinstance(removed, list) and all(isinstance(path, str) for path in removed)):
        raise ContractError("remove", f"{removed!r} is not a list of paths (expected e.g. [sensors.wrench])")
    for path in removed:
        _remove(base, path)
    merged = merged_over(base, own)
    chosen = {
        path: str(reason)
        for path, reason in (robot.get("chosen") or {}).items()
        if _has(merged, path) and not _has(own, path)
    }
    origin = {"name": robot.get("name"), "sha256": hashlib.sha256(text.encode()).hexdigest(), "chosen": chosen}
    return {**merged, "robot": origin}


def merged_over(base: Any, own: Any) -> Any:  # noqa: ANN401 - YAML types
    """Return `own` merged over `base`, mappings key by key."""
    if not (isinstance(base, Mapping) and isinstance(own, Mapping)):
        return own
    return {**base, **{key: merged_over(base[key], value) if key in base else value for key, value in own.items()}}


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
    """Return whether `document` has a value at `path`, or a scalar above it."""
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


Loosened = tuple[str, Any, Any]  # the path of a limit, its value in the robot file and the contract's


def loosened(robot: RobotFile, contract: ContractFields) -> list[Loosened]:
    """Return each limit of `robot` that `contract` loosens, once."""
    found = [
        *_loosened_times(robot, contract),
        *_loosened_sensors(robot, contract),
        *_loosened_actuators(robot, contract),
        *_loosened_safety(_filled_safety(robot, contract), _filled_safety(contract, contract)),
        *_loosened_inputs(robot, contract),
    ]
    if "real" in robot.backends and "real" in contract.backends:
        real, own = to_plain(robot.backends["real"]), to_plain(contract.backends["real"])
        for key, (default, rule) in real_rules().items():
            old, new = real.get(key, default), own.get(key, default)
            if key == "clocks" and isinstance(old, Mapping) and isinstance(new, Mapping):  # of sensors it has
                names = {_known_as(name, robot.sensors, contract.sensors) for name in robot.sensors} | {"default"}
                old = {_known_as(name, robot.sensors, contract.sensors): clock for name, clock in old.items()}
                new = {name: clock for name, clock in new.items() if name in names}
            found += _compared(f"backends.real.{key}", rule, old, new)
    return list({path: (path, theirs, ours) for path, theirs, ours in reversed(found)}.values())[::-1]


def limit_paths(contract: ContractFields) -> set[str]:
    """Return the paths that `loosened` may have for `contract`."""
    joints = {f"actuators.{name}.joints.{joint}" for name, spec in contract.actuators.items() for joint in spec.joints}
    return {
        "control_period_s",
        *joints,
        *(f"{path}.{key}" for path in joints for key in JOINT_RULES),
        *(f"actuators.{name}.{key}" for name in contract.actuators for key in ACTUATOR_RULES),
        *(f"sensors.{name}.{key}" for name in contract.sensors for key in SENSOR_RULES),
        *(f"safety.{path}" for path in SAFETY_RULES),
        *(f"backends.real.{key}" for key in real_rules()),
    }


def _compared(path: str, rule: IsAsTight, robot: Any, own: Any) -> Iterator[Loosened]:  # noqa: ANN401 - any values
    """Yield a limit that is not as tight, including a value whose type is wrong in the profile."""
    try:
        is_as_tight = rule(robot, own)
    except (TypeError, ValueError, AttributeError, LookupError):
        is_as_tight = False
    if not is_as_tight:
        yield path, robot, own


_TIMES = ("watchdog.hold_steps", "watchdog.stop_steps", "observation.stop_steps", "action.max_age_steps")
_TIMES_OF_TRACKING = ("delay_steps", "debounce_steps", "stop_steps")


def _loosened_times(robot: RobotFile, contract: ContractFields) -> Iterator[Loosened]:
    """Check that a longer control period prolongs no time that is counted in steps."""
    own_s, longest_s = contract.control_period_s, robot.control_period_s
    if own_s <= longest_s:
        return
    theirs, ours = to_plain(robot.safety), to_plain(contract.safety)
    keys = _TIMES + tuple(f"tracking.{key}" for key in _TIMES_OF_TRACKING if theirs["tracking"] and ours["tracking"])
    for group, key in (path.split(".") for path in keys):
        if ours[group][key] * own_s > theirs[group][key] * longest_s * (1.0 + 1e-9):
            yield "control_period_s", longest_s, own_s


def _loosened_sensors(robot: RobotFile, contract: ContractFields) -> Iterator[Loosened]:
    """Compare sensors by name, by topic, and, if the agent sees them, by joint.

    Sensors of the same joints that both are those of the robot file are not compared with each other.
    """
    own = contract.sensors
    kept = {name for name, other in robot.sensors.items() if name in own and _is_same_source(other, own[name])}
    for name, sensor in contract.sensors.items():
        joints = joints_of(sensor) if sensor.visibility == "agent" else set()
        for known, other in robot.sensors.items():
            shares_joints = joints & joints_of(other) and not kept.issuperset((name, known))
            if known == name or _is_same_topic(other, sensor) or shares_joints:
                for key, rule in SENSOR_RULES.items():
                    yield from _compared(f"sensors.{name}.{key}", rule, getattr(other, key), getattr(sensor, key))


def _loosened_inputs(robot: RobotFile, contract: ContractFields) -> Iterator[Loosened]:
    """Check that the safety of `robot` still uses the same readings and the same shape."""
    commanded = {joint for actuator in contract.actuators.values() for joint in actuator.joints}
    theirs, ours = _measured(robot.sensors), _measured(contract.sensors)
    if theirs & commanded - ours:
        yield "safety.observation.required", sorted(theirs & commanded), sorted(ours)
    if robot.safety.workspace is not None and (shape := _shape(robot)) not in (None, _shape(contract)):
        yield "safety.workspace", shape, _shape(contract)
    for name, field_name in (pair for each in built_in_classes("interlocks") for pair in each.readings(robot.safety)):
        if name in robot.sensors and name in contract.sensors:
            sensors = robot.sensors[name], contract.sensors[name]
            fields = [sensor.fields.get(field_name) for sensor in sensors]
            old, new = ((each.topic, each.type, f and f.path) for each, f in zip(sensors, fields, strict=True))
            if old != new:
                yield f"sensors.{name}.topic", old, new
            old_joints, joints = (list((field and field.joints) or ()) for field in fields)
            if not set(old_joints) <= set(joints):
                yield f"sensors.{name}.fields", old_joints, joints


def _loosened_actuators(robot: RobotFile, contract: ContractFields) -> Iterator[Loosened]:
    """Compare joints by name, where an unknown joint may be a renamed one without its limits."""
    known = {joint: limits for other in robot.actuators.values() for joint, limits in other.joints.items()}
    streamed = {
        joint: other.type for other in robot.actuators.values() if not other.is_action for joint in other.joints
    }
    commanded = {joint for actuator in contract.actuators.values() for joint in actuator.joints}
    for name, actuator in contract.actuators.items():
        path = f"actuators.{name}"
        if actuator.is_action and (joint := next(iter(actuator.joints))) in streamed:  # whose speed is not limited
            yield f"{path}.type", streamed[joint], actuator.type
        message = COMMAND_MESSAGES.get(actuator.type)
        rivals = [other for other in robot.actuators.values() if _is_same_topic(other, actuator)]
        for other in rivals:
            yield from _compared(f"{path}.command", operator.eq, _published(other), _published(actuator))
            if message is not None and not message.has_names:
                joints = list(other.joints), list(actuator.joints)
                yield from _compared(f"{path}.joints", lambda robot, own: own == robot[: len(own)], *joints)
        yield from _loosened_controller(path, actuator, robot)
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


def _loosened_controller(path: str, own: ActuatorSpec, robot: RobotFile) -> Iterator[Loosened]:
    """Compare what a controller does between two commands, by topic, and a gripper by joint."""
    for theirs in robot.actuators.values():
        if _is_same_topic(theirs, own):
            for key in ("setpoint_rate_hz", "trajectory_steps"):
                yield from _compared(f"{path}.{key}", ACTUATOR_RULES[key], getattr(theirs, key), getattr(own, key))
        if own.joints.keys() & theirs.joints.keys():
            yield from _compared(f"{path}.gripper", ACTUATOR_RULES["gripper"], theirs.gripper, own.gripper)
            old, new = to_plain(theirs.gripper) or {}, to_plain(own.gripper) or {}
            for key in old.keys() & new.keys():
                yield from _compared(f"{path}.gripper.{key}", ACTUATOR_RULES[f"gripper.{key}"], old[key], new[key])


def _filled_safety(spec: RobotFile | ContractFields, contract: ContractFields) -> Document:
    """Return the safety of `spec` by joint, with the sensor names of `contract`."""
    filled: Document = to_plain(spec.safety)
    joints = {joint: (name, each) for name, each in spec.actuators.items() for joint in each.joints}
    own = {joint: each.margins_of(joint, spec.safety.margins, name) for joint, (name, each) in joints.items()}
    filled["margins"]["joints"] = own
    if (tracking := spec.safety.tracking) is not None:
        filled["tracking"]["joints"] = {joint: tracking.of(name, joint) for joint, (name, _) in joints.items()}
    required = spec.safety.observation.required
    if required is None:
        required = default_required(
            spec.sensors, commanded_joint_names(spec.actuators) & commanded_joint_names(contract.actuators)
        )
    filled["observation"]["required"] = [_known_as(name, spec.sensors, contract.sensors) for name in required]
    return filled


def _known_as(name: str, theirs: Mapping[str, SensorSpec], ours: Mapping[str, SensorSpec]) -> str:
    """Return the name in `ours` of a sensor with this name, topic or joints, else `name`."""
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


def _published(actuator: ActuatorSpec) -> str:
    return "velocities" if actuator.is_velocity else "positions"


def _is_same_topic(one: ActuatorSpec | SensorSpec, other: ActuatorSpec | SensorSpec) -> bool:
    """Return whether two topics are the same in some namespace."""
    whole, relative = sorted(topic.removeprefix("~/") for topic in (one.topic, other.topic))  # "/" precedes letters
    return relative == whole or (whole.startswith("/") and whole.endswith(f"/{relative}"))


def _is_same_source(one: SensorSpec, other: SensorSpec) -> bool:
    keys = ("type", "fields", "visibility")
    return _is_same_topic(one, other) and all(getattr(one, key) == getattr(other, key) for key in keys)


def _measured(sensors: Mapping[str, SensorSpec]) -> set[str]:
    seen = [sensor.fields.get("position") for sensor in sensors.values() if sensor.visibility == "agent"]
    return {joint for position in seen if position is not None for joint in position.joints or ()}


def _shape(spec: RobotFile | ContractFields) -> Any:  # noqa: ANN401 - a value of a profile
    """Return the file of the robot's shape, its URDF or the first model of a profile."""
    models = [profile["model"] for profile in spec.backends.values() if "model" in profile]
    return spec.safety.urdf or next(iter(models), None)


def _filled(limits: JointLimits) -> Document:
    """Return the limits of a joint, with the acceleration as default of the deceleration."""
    filled: Document = to_plain(limits)
    return {**filled, "deceleration": filled["acceleration"] if limits.deceleration is None else filled["deceleration"]}
