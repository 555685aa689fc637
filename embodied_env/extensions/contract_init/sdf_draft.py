"""Draft a contract and the configuration of ros_gz_bridge from an SDF world."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from embodied_env.contract.bounded_files import read_text_file
from embodied_env.contract.value_checks import one_of
from embodied_env.contract.yaml_text import checked_text, comment, dump_yaml, read_yaml
from embodied_env.errors import ContractError
from embodied_env.extensions.contract_init.contract_draft import (
    MAX_AGE_S,
    Document,
    Draft,
    add_base,
    add_joint_actuator,
    control_period_s,
    joint_fields,
)
from embodied_env.extensions.contract_init.graph_topics import Topic, sensor_keys, unique_name
from embodied_env.extensions.contract_init.sdf_interfaces import (
    BRIDGED,
    LEAST_HZ,
    MOST_HZ,
    SENSORS,
    SYSTEMS,
    TWIST,
    SdfInterface,
    SdfInterfaces,
    find_interfaces,
    system_line,
    system_of,
)
from embodied_env.extensions.contract_init.sdf_world import (
    REAL_TIME_FACTOR,
    STEP_S,
    SdfModel,
    SdfWorld,
    find_file,
    read_world,
    text_of,
)
from embodied_env.messages.message_types import JOINT_SENSOR, TRAJECTORY

_SETTLE_S = 0.1
_TOPIC_KEYS = ("ros_topic_name", "gz_topic_name", "ros_type_name", "gz_type_name", "direction")
_SERVICE_KEYS = ("service_name", "ros_type_name", "gz_req_type_name", "gz_rep_type_name")
_CONTROLLERS: Mapping[str, tuple[str, str, str]] = {  # topic end, message, interface ("": a parameter)
    "forward_command_controller/ForwardCommandController": ("commands", "std_msgs/msg/Float64MultiArray", ""),
    "position_controllers/JointGroupPositionController": ("commands", "std_msgs/msg/Float64MultiArray", "position"),
    "velocity_controllers/JointGroupVelocityController": ("commands", "std_msgs/msg/Float64MultiArray", "velocity"),
    "joint_trajectory_controller/JointTrajectoryController": ("joint_trajectory", TRAJECTORY, "position"),
    "diff_drive_controller/DiffDriveController": ("cmd_vel", "geometry_msgs/msg/TwistStamped", "base"),
    "joint_state_broadcaster/JointStateBroadcaster": ("", JOINT_SENSOR, "states"),
}


def add_world(draft: Draft, file: Path, model_name: str | None) -> None:
    """Add a model of an SDF world, by default the only one with commands, and its bridge."""
    world = read_world(file)
    model = _choose_model(world, model_name)
    draft.gazebo = {"world": world.name, "step_s": world.step_s or STEP_S, "reset": "world"}
    of_model: dict[str, str] = {}
    for each in model.tree():
        for name, joint in each.joints.items():
            if (first := of_model.setdefault(name, each.name)) != each.name:
                draft.gap(f"joint {name} of {each.name}: its limits are those of {first}", "give joints other names")
            draft.joints.setdefault(name, joint)
    interfaces = find_interfaces(model)
    _leave_out_repeated_names(interfaces)
    states = [each for plugin in interfaces.control for each in _add_controllers(draft, world, plugin)]
    for interface in interfaces.found:
        if interface.is_command:
            _add_command(draft, interface)
    states += [each for each in interfaces.found if each.gz_type == "gz.msgs.Model"]
    _add_states(draft, states)
    for interface in interfaces.found:
        if not interface.is_command and interface.gz_type != "gz.msgs.Model":
            _add_sensor(draft, interface)
    _finish_profile(draft, world, has_control=bool(interfaces.control))
    for what, where in [*world.gaps, *interfaces.gaps]:
        draft.gap(what, where)
    _list_missing(draft, world, model)
    topics = {spec["topic"] for group in (draft.sensors, draft.actuators) for spec in group.values()}
    used = [each for each in interfaces.found if _ros_name(each.topic) in topics]
    draft.bridge = _bridge_text(world, file.name, used)


def _choose_model(world: SdfWorld, name: str | None) -> SdfModel:
    if name is not None:
        if name not in world.models:
            raise ContractError("", f"no such model: {one_of(name, world.models)}")
        return world.models[name]
    commanded = [model for model in world.models.values() if _has_commands(model)]
    candidates = commanded or [model for model in world.models.values() if any(each.joints for each in model.tree())]
    if len(candidates) != 1:
        found = ", ".join(model.name for model in candidates) or "none"
        problem = f"models with commands or joints in world {world.name!r}: {found} (expected one)"
        raise ContractError("", f"{problem}; choose one with --model")
    return candidates[0]


def _has_commands(model: SdfModel) -> bool:
    interfaces = find_interfaces(model)
    return bool(interfaces.control) or any(each.is_command for each in interfaces.found)


def _ros_name(topic: str) -> str:
    return re.sub(r"(^|/)(?=[0-9])", r"\1_", re.sub(r"[^A-Za-z0-9_/]", "_", topic).strip("/"))


def _leave_out_repeated_names(interfaces: SdfInterfaces) -> None:
    """Leave out topics that have the name of another one in ROS 2, or of the clock."""
    taken = {"clock": "the clock"}
    for each in list(interfaces.found):
        name = _ros_name(each.topic)
        if name in taken:
            interfaces.found.remove(each)
            what = f"{each.topic} of {each.origin} would be {name} in ROS 2, as {taken[name]}: left out"
            interfaces.gaps.append((what, "give it a <topic> or <odom_topic> of its own"))
        taken.setdefault(name, f"{each.topic} of {each.origin}")


def _account(interface: SdfInterface) -> str:
    rate = "at every physics step" if interface.rate_hz is None else f"{interface.rate_hz:g} Hz"
    parts = [interface.origin, *([] if interface.is_command else [rate])]
    assumed = f"; {' and '.join(interface.assumed)} by default of the plug-in" if interface.assumed else ""
    return f"Found: {', '.join(parts)}{assumed}."


# ------------------------------------------------------------------------------------------------------ actuators


def _add_command(draft: Draft, interface: SdfInterface) -> None:
    """Add the actuator of a plug-in, unless its joints or the base have one."""
    topic, kind = _ros_name(interface.topic), BRIDGED[interface.gz_type]
    if kind == TWIST:
        if "base" in draft.actuators:
            used = draft.actuators["base"]["topic"]
            draft.gap(f"{interface.origin} also drives the base, left out", f"used instead: {used}")
            return
        add_base(draft, topic, kind, interface.limits, moves_sideways=interface.moves_sideways)
        draft.comment("actuators.base", _account(interface))
        return
    name = unique_name(interface.name, draft.actuators)
    if _add_joints(draft, name, {"topic": topic, "type": kind, "command": "position_delta"}, interface.joints):
        draft.comment(f"actuators.{name}", _account(interface))


def _add_joints(draft: Draft, name: str, spec: Document, joints: tuple[str, ...]) -> bool:
    """Add an actuator over joints that no other commands, and return whether there is one."""
    claimed = {joint for each in draft.actuators.values() for joint in each["joints"]}
    if not joints or claimed & {*joints}:
        what = f"{spec['topic']} ({spec['type']}) commands {', '.join(joints) or 'no joint'}, left out"
        draft.gap(what, "one actuator per joint; choose one plug-in or controller")
        return False
    if unknown := [joint for joint in joints if joint not in draft.joints]:
        what = f"joints of {spec['topic']} that the model does not have: {', '.join(unknown)}"
        draft.gap(what, "correct their names")
        return False
    add_joint_actuator(draft, name, spec, joints)
    return True


def _add_controllers(draft: Draft, world: SdfWorld, plugin: ET.Element) -> Iterator[SdfInterface]:
    """Add the actuators of gz_ros2_control by its parameters files, and yield the joint states."""
    namespace = text_of(plugin, "ros/namespace") or ""
    for element in plugin.findall("parameters"):
        name = (element.text or "").strip()
        file = find_file(name, world.folder)
        if file is None:
            draft.gap(f"the parameters {name} of gz_ros2_control: no such file", "write their path in the world")
            continue
        try:
            document = read_yaml(read_text_file(file), str(file))
        except (OSError, UnicodeDecodeError) as error:
            raise ContractError("sdf.plugin.parameters", f"cannot read {str(file)!r}: {error}") from None
        manager = _parameters(document, text_of(plugin, "controller_manager_name") or "controller_manager")
        for controller, spec in manager.items():
            if isinstance(spec, dict) and isinstance(spec.get("type"), str):
                space = f"{namespace.strip('/')}/" if namespace.strip("/") else ""
                yield from _add_controller(draft, space, controller, spec["type"], document, manager)


def _parameters(document: Any, node: str) -> Document:  # noqa: ANN401 - YAML types
    for key, value in document.items() if isinstance(document, dict) else ():
        if not isinstance(value, dict):
            continue
        own = value.get("ros__parameters")
        found: Document = own if key.rpartition("/")[2] == node and isinstance(own, dict) else _parameters(value, node)
        if found:
            return found
    return {}


def _add_controller(
    draft: Draft,
    space: str,
    name: str,
    kind: str,
    document: Any,  # noqa: ANN401 - YAML types
    manager: Document,
) -> Iterator[SdfInterface]:
    parameters = _parameters(document, name)
    end, message, commands = _CONTROLLERS.get(kind, ("", "", "unknown"))
    commands = commands or str(parameters.get("interface_name", "unknown"))
    if commands == "states":
        rate_hz = manager.get("update_rate", 100)
        interface = SdfInterface(name="joints", origin=f"{name} ({kind})", topic=f"{space}joint_states", gz_type="")
        interface.joints = tuple(draft.joints)
        is_rate = isinstance(rate_hz, (int, float)) and LEAST_HZ <= rate_hz <= MOST_HZ
        interface.rate_hz = float(rate_hz) if is_rate else None
        yield interface
        return
    topic, path = f"{space}{name}/{end}", f"actuators.{unique_name(name.removesuffix('_controller'), draft.actuators)}"
    if commands == "base" and "base" not in draft.actuators:
        add_base(draft, topic, message, {})
        draft.comment("actuators.base", f"Found: {name} ({kind}) of gz_ros2_control.")
    elif commands in ("position", "velocity"):
        joints = parameters.get("joints", [])
        names = tuple(map(str, joints)) if isinstance(joints, list) else ()
        command = "velocity" if commands == "velocity" else "position_delta"
        spec = {"topic": topic, "type": message, "command": command}
        if _add_joints(draft, path.rpartition(".")[2], spec, names):
            draft.comment(path, f"Found: {name} ({kind}) of gz_ros2_control.")
    else:
        draft.gap(f"the controller {name} ({kind}): not used", "a contract commands positions, velocities or a base")


# -------------------------------------------------------------------------------------------------------- sensors


def _add_states(draft: Draft, states: list[SdfInterface]) -> None:
    """Add the joint states of the commanded joints, each from the first publisher that has it."""
    left = [joint for each in draft.actuators.values() if each["command"] != "twist" for joint in each["joints"]]
    used: list[tuple[SdfInterface, list[str]]] = []
    for interface in states:
        joints = [joint for joint in left if joint in interface.joints]
        left = [joint for joint in left if joint not in joints]
        if joints:
            used.append((interface, joints))
        else:
            what = f"{interface.origin} reports no further commanded joint, not observed"
            draft.gap(what, "add its joints to a sensor if the policy needs them")
    draft.slowest_hz = min((each.rate_hz for each, _ in used if each.rate_hz is not None), default=None)
    for interface, joints in used:
        _write_sensor(
            draft, interface, {"type": JOINT_SENSOR, "fields": joint_fields(draft, joints, has_velocity=True)}
        )
    if left:
        line = system_line("JointStatePublisher")
        draft.gap(f"joint states of {', '.join(left)}", f"add to the model, with <update_rate> and <topic>: {line}")


def _add_sensor(draft: Draft, interface: SdfInterface) -> None:
    kind = BRIDGED[interface.gz_type]
    if kind.endswith("NavSatFix"):
        units = {"latitude": "1", "longitude": "1", "altitude": "m"}
        ends = {"low": -math.inf, "high": math.inf}
        keys: Document = {"fields": {name: {"path": name, "unit": unit, **ends} for name, unit in units.items()}}
    else:
        sample = {"left_out": (), **interface.sample}
        keys = sensor_keys(Topic(name=interface.topic, type=kind, count=1, sample=sample))
    if not keys:
        draft.gap(f"{interface.origin}: its format is not observed", "use R8G8B8, B8G8R8 or L8")
        return
    stops = {"on_gap": "stop"} if keys["fields"].keys() & {"image", "ranges"} else {}
    name = _write_sensor(draft, interface, {"type": kind, **stops, **keys})
    scan = interface.sample
    if "angle_min" in scan and scan["angle_min"] < scan["angle_max"]:
        ends = {f"{key}_rad": scan[key] for key in ("angle_min", "angle_max")}
        draft.scans[name] = {**ends, **{f"{key}_m": scan[key] for key in ("range_min", "range_max")}}


def _write_sensor(draft: Draft, interface: SdfInterface, keys: Document) -> str:
    """Add a sensor, with its rate if it is not due at every step, and return its name."""
    name, period_s = unique_name(interface.name, draft.sensors), control_period_s(draft)
    spec: Document = {"topic": _ros_name(interface.topic), "type": keys["type"]}
    age_s = 1.5 * period_s
    if interface.rate_hz is None:
        what = f"{interface.origin} publishes at every physics step: more than one message per step only costs time"
        draft.gap(what, f"set its update_rate, update_frequency or odom_publish_frequency to {1.0 / period_s:g}")
    else:
        per_step = interface.rate_hz * period_s
        if per_step < 1.0 - 1e-6 or abs(per_step - round(per_step)) > 1e-6:
            spec["rate_hz"] = interface.rate_hz
        age_s = max(age_s, 3.0 / interface.rate_hz)
    spec["max_age_s"] = max(MAX_AGE_S, round(age_s, 2))
    draft.sensors[name] = {**spec, **keys}
    draft.comment(f"sensors.{name}", _account(interface))
    return name


# -------------------------------------------------------------------------------------------- profile and lockstep


def _finish_profile(draft: Draft, world: SdfWorld, *, has_control: bool) -> None:
    """Complete the profile with a soft reset for gz_ros2_control or a reset of the world."""
    profile = draft.gazebo or {}
    profile["settle_steps"] = max(5, round(_SETTLE_S / profile["step_s"]))
    path, found = "backends.gazebo", "found" if world.step_s is not None else "the default of SDF"
    draft.comment(path, f"step_s: {found}; settle_steps: chosen, {_SETTLE_S:g} s of simulated time.")
    engine = next((text_of(each, "engine/filename") for each in world.plugins if system_of(each) == "physics"), None)
    draft.comment(path, f"Physics engine: {engine or 'dartsim, the default of gz-sim'}.")
    if not has_control:
        return
    profile["reset"] = "soft"
    draft.comment(path, "gz_ros2_control does not survive a world reset; home: chosen, 0 or the nearest value inside.")
    home = {}
    for actuator in draft.actuators.values():
        for joint, limits in actuator["joints"].items() if actuator["command"] == "position_delta" else ():
            low, high = limits["position"] or (-math.inf, math.inf)
            inset = min(0.04, 0.1 * (high - low))
            home[joint] = round(min(max(0.0, low + inset), high - inset), 6)
    profile |= {"home": home} if home else {}
    where = "put WORLD.urdf and WORLD.controllers.yaml next to WORLD.sdf: launch gazebo starts both with them"
    draft.gap("robot_state_publisher and the spawner of the controllers", where)


def _list_missing(draft: Draft, world: SdfWorld, model: SdfModel) -> None:
    factor = REAL_TIME_FACTOR if world.real_time_factor is None else world.real_time_factor
    if factor > 0.0:
        source = "the default of SDF" if world.real_time_factor is None else "found"
        where = "<real_time_factor>0</real_time_factor> in <physics>, or launch gazebo real_time_factor:=0"
        draft.gap(
            f"real_time_factor {factor:g} ({source}): a step takes at least {1 / factor:g} times its duration", where
        )
    needed = {"physics": "nothing moves without it", "usercommands": "no reset can place entities without it"}
    for sensor in (sensor for each in model.tree() for sensor in each.sensors):
        if sensor.kind in SENSORS:
            needed.setdefault(SENSORS[sensor.kind][0], f"{sensor.kind} {sensor.name} is silent without it")
    loaded = {system_of(plugin) for plugin in world.plugins}
    if not world.plugins and needed.keys() <= {"physics", "usercommands"}:
        loaded = set(needed)  # gz-sim loads its defaults into a world without plug-ins
    for key, reason in needed.items():
        if key not in loaded:
            draft.gap(f"the system {SYSTEMS[key]}: {reason}", f"add to <world>: {system_line(SYSTEMS[key])}")
    if not draft.actuators:
        names = ", ".join(map(system_line, ("DiffDrive", "JointPositionController", "JointTrajectoryController")))
        draft.gap(
            f"a plug-in of {model.name} that takes commands", f"add one to the model with its parameters: {names}"
        )
    unknown = {
        each.get("name") or each.get("filename") or "?" for each in world.plugins if system_of(each) not in SYSTEMS
    }
    if unknown:
        draft.gap(f"plug-ins of the world: {', '.join(sorted(unknown))}: unknown", "check that none moves the world")
    elsewhere = [
        f"{sensor.kind} {sensor.name} of {other.name}"
        for other in world.models.values()
        if other is not model
        for each in other.tree()
        for sensor in each.sensors
    ]
    if elsewhere:
        draft.gap(f"sensors of other models: {', '.join(elsewhere)}", "contract init --model NAME lists their topics")


def _bridge_text(world: SdfWorld, source: str, used: list[SdfInterface]) -> str:
    """Return the checked YAML of ros_gz_bridge for clock, topics and lockstep services."""
    root = f"/world/{world.name}"
    topics = [("/clock", f"{root}/clock", "rosgraph_msgs/msg/Clock", "gz.msgs.Clock", "GZ_TO_ROS")]
    for each in used:
        direction = "ROS_TO_GZ" if each.is_command else "GZ_TO_ROS"
        topics.append((_ros_name(each.topic), each.topic, BRIDGED[each.gz_type], each.gz_type, direction))
    entries = [dict(zip(_TOPIC_KEYS, each, strict=True)) for each in topics]
    for name, kind, request in (("control", "ControlWorld", "WorldControl"), ("set_pose", "SetEntityPose", "Pose")):
        service = f"{root}/{name}", f"ros_gz_interfaces/srv/{kind}", f"gz.msgs.{request}", "gz.msgs.Boolean"
        entries.append(dict(zip(_SERVICE_KEYS, service, strict=True)))
    heading = comment(f"ros_gz_bridge for {source}, drafted by `embodied-env contract init --from-sdf`")
    return checked_text(f"{heading}\n{dump_yaml(entries, flow=False)}", entries)
