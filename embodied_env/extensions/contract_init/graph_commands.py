"""Find the commands of joints, a base and grippers in a ROS graph."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from embodied_env.core.controller_joints import controller_of, declared_joints
from embodied_env.errors import ContractError
from embodied_env.extensions.contract_init.contract_draft import (
    AXES,
    Document,
    Draft,
    add_base,
    add_joint_actuator,
    ask_order,
    assume_actuator,
)
from embodied_env.extensions.contract_init.graph_topics import (
    BASE_LIMITS,
    BY_JOINT,
    FEEDBACK,
    ODOMETRY,
    TIMEOUTS,
    TWISTS,
    GraphReading,
    Topic,
    draft_command_qos,
    namespace_of,
    nodes_of,
)
from embodied_env.messages.commands import COMMAND_GOALS, COMMAND_MESSAGES
from embodied_env.messages.message_types import TRAJECTORY

_VELOCITY = re.compile(r"veloc|(?<![a-z])vel(?![a-z])")
_EFFORT = re.compile(r"effort|torque")
_SIDEWAYS = re.compile(r"mecanum_|omni_")
_GRIPPER = re.compile(r"grip|finger|hand|jaw|knuckle|(left|right)_carriage", re.IGNORECASE)

_TRAJECTORY = "control_msgs/action/FollowJointTrajectory"
_REMEDY = (
    "load a controller with a topic, such as position_controllers/JointGroupPositionController, in its place: "
    "ros2 control load_controller --set-state active forward_position_controller"
)
_NEAR = 0.05  # of its range: how far a finger may be from the one that it seems to mimic
_LEG, _FOUR = re.compile(r"(FL|FR|RL|RR|LF|RF|LH|RH|HL|HR)(?![a-z])", re.IGNORECASE), 4


def add_commands(reading: GraphReading) -> None:
    """Add the actuators, or the conventional one where no topic takes commands."""
    for topic in sorted((t for t in reading.commands if t.type in BY_JOINT), key=lambda topic: _rank(reading, topic)):
        _add_joints(reading, topic)
    _add_gripper_actions(reading)
    _add_base(reading)
    _note_trajectory_actions(reading)
    if not reading.draft.actuators:
        reading.claimed |= dict.fromkeys(assume_actuator(reading.draft), "")


def _rank(reading: GraphReading, topic: Topic) -> tuple[bool, bool, int, str]:
    """Return a sort key that prefers active controllers, positions, and all joints at once."""
    found = reading.controller(topic)
    is_active = found is None or found[1]["is_active"]
    return not is_active, _kind(reading, topic) != "position", BY_JOINT.index(topic.type), topic.name


def _parameter(reading: GraphReading, topic: Topic, *keys: str) -> Any:  # noqa: ANN401 - parameter types
    """Return the first of `keys` set on a topic's subscribers, or on any twist's for a base."""
    others = [each for each in reading.commands if each.type in TWISTS and topic.type in TWISTS]
    subscribers = [node.node for each in (topic, *others) for node in each.subscribers]
    for node in (controller_of(topic.name), *subscribers):
        for key in keys:
            if (value := reading.graph.parameters.get(node, {}).get(key)) not in (None, "", []):
                return value
    return None


def _kind(reading: GraphReading, topic: Topic) -> str:
    """Return position, velocity or effort by the controller's interfaces or the topic name."""
    found = reading.controller(topic)
    named = _parameter(reading, topic, "interface_name", "command_interfaces") or (found and found[1]["interfaces"])
    text = " ".join([named] if isinstance(named, str) else named or [topic.name])
    if "position" in text or "velocity" not in COMMAND_MESSAGES[topic.type].commands:
        return "position"
    return "velocity" if _VELOCITY.search(text) else "effort" if _EFFORT.search(text) else "position"


def _add_joints(reading: GraphReading, topic: Topic) -> None:
    """Add an actuator for a topic of joint commands, unless its joints have one."""
    draft, kind = reading.draft, _kind(reading, topic)
    if kind == "effort":
        draft.gap(f"{topic.name} takes efforts, left out", "a contract commands positions or velocities")
        return
    joints, assumed = _joints_of(reading, topic)
    if not joints:
        pool = _pool(reading, topic)
        used = ", ".join(dict.fromkeys(reading.claimed[joint] for joint in pool if joint in reading.claimed))
        where = "contract init --from-graph --urdf FILE, or the driver's documentation"
        draft.gap(f"joints of {topic.name} ({topic.type}), left out", f"used instead: {used}" if used else where)
        return
    if taken := [joint for joint in joints if joint in reading.claimed]:
        used = f"used instead: {reading.claimed[taken[0]]}"
        draft.gap(f"{topic.name} ({topic.type}) also commands {', '.join(taken)}, left out", used)
        return
    if apart := [joint for joint in joints if joint in reading.apart]:
        reporter = reading.reporters[apart[0]]
        what = f"{topic.name} ({topic.type}), left out: {reporter.name} has {', '.join(apart)} in separate messages"
        draft.gap(what, f"remap one of its publishers ({nodes_of(reporter.publishers)}), then contract init again")
        return
    name = _draft_actuator(reading, topic, kind, joints)
    if assumed and not COMMAND_MESSAGES[topic.type].has_names:
        ask_order(draft, name, topic.name, joints, assumed)
    elif assumed:
        draft.choose(f"actuators.{name}.joints", f"{assumed} assumed")
        where = "the parameter `joints` of the controller, or the driver's documentation"
        draft.gap(f"joints of {topic.name}: {', '.join(joints)} ({assumed} assumed)", where)
    if kind == "velocity":
        _add_timeout(reading, topic, name)
    _note_others(reading, topic, f"actuators.{name}")
    _require_controller(reading, topic, name)


def _require_controller(reading: GraphReading, topic: Topic, name: str) -> None:
    """Declare that the controller of an actuator must be active, if a manager has it."""
    nodes = {each.node for each in topic.subscribers}
    behind = [t for t in reading.commands if t.type in TWISTS and nodes & {each.node for each in t.publishers}]
    through = [topic, *(behind if topic.type in TWISTS else [])]  # a multiplexer has a controller behind it
    if (found := next(filter(None, map(reading.controller, through)), None)) is None:
        return
    controller, manager = found[0].rpartition("/")[2], found[1]["manager"]
    reading.draft.real.setdefault("active", {})[name] = {"controller": controller, "manager": manager}
    if not found[1]["is_active"]:
        where = f"ros2 control switch_controllers -c {manager} --activate {controller}"
        reading.draft.gap(f"{found[0]} is not active", where)


def _draft_actuator(reading: GraphReading, topic: Topic, kind: str, joints: list[str]) -> str:
    """Add one actuator for these joints, or for two coupled fingers, and return its name."""
    draft = reading.draft
    is_gripper = all(map(_GRIPPER.search, joints)) or (bool(_GRIPPER.search(topic.name)) and len(joints) < 3)
    kind_of = "gripper" if is_gripper else joints[0] if COMMAND_MESSAGES[topic.type].joints == 1 else "arm"
    name = reading.unique(kind_of, topic, draft.actuators)
    reading.claimed |= dict.fromkeys(joints, topic.name)
    command = "velocity" if kind == "velocity" else "position_delta"
    spec = {"topic": reading.local(topic), "type": topic.type, "command": command, **draft_command_qos(topic)}
    mimic = _fingers_of(draft, joints) if is_gripper and kind == "position" else None
    if mimic is not None:
        spec |= {"command": "position", "scale": "binary"}
        add_joint_actuator(draft, name, spec, joints[:1])
        _add_ends(draft, name, mimic)
        return name
    if kind == "position":
        _note_fingers(reading, name, joints if is_gripper else [joint for joint in joints if _GRIPPER.search(joint)])
    add_joint_actuator(draft, name, spec, joints)
    return name


def _note_fingers(reading: GraphReading, actuator: str, fingers: list[str]) -> None:
    """Report what is missing for a gripper to close on an object, and to take its commands."""
    if fingers:
        what = f"whether {', '.join(fingers)} may close on an object; until then that is a tracking error"
        where = f"set actuators.{actuator}.gripper for a topic of its own, else safety.tracking.joints"
        reading.draft.gap(what, where)
        _ask_unit(reading.draft, actuator, fingers)


def _joints_of(reading: GraphReading, topic: Topic) -> tuple[list[str], str]:
    """Return the joints of a command topic, and the assumption about them or ""."""
    found = reading.controller(topic)
    declared = (found and found[1]["joints"]) or None
    nodes = {node.node for node in topic.subscribers}
    is_only = sum(any(n.node in nodes for n in c.subscribers) for c in reading.commands) == 1
    if declared is None:
        declared, _ = declared_joints(topic.name, reading.graph.parameters, sorted(nodes), is_only=is_only)
    if declared:
        return declared, ""
    pool = _pool(reading, topic)
    free = [joint for joint in pool if joint not in reading.claimed]
    fingers = [joint for joint in free if _GRIPPER.search(joint)]
    others = [joint for joint in free if joint not in fingers]
    candidates = (each.name for each in reading.topics if each in reading.commands or "/_action/" in each.name)
    if _GRIPPER.search(topic.name):
        free = fingers or [joint for joint in others if reading.draft.joints[joint].unit == "m"] or free
    elif topic.type == TRAJECTORY or "arm" in topic.name or any(map(_GRIPPER.search, candidates)):
        free = fingers if all(map(_GRIPPER.search, pool)) else others
    if COMMAND_MESSAGES[topic.type].joints == 1:
        if named := [joint for joint in pool if _names(topic.name, joint)]:
            return [max(named, key=len)], ""
        free = free if len(free) == 1 else []  # a topic of one joint, which no source names
    if len(free) == 1 == len(pool):
        return free, ""
    source = "of the URDF" if any(reading.draft.joints[joint].source for joint in free) else "of the joint states"
    return free, f"names {source}" if COMMAND_MESSAGES[topic.type].has_names else f"names and order {source}"


def _pool(reading: GraphReading, topic: Topic) -> list[str]:
    """Return the moving joints in the namespace of `topic`, or else all."""
    near = [j for j, reporter in reading.reporters.items() if topic.name.startswith(namespace_of(reporter.name))]
    order = list(reading.draft.joints)  # a URDF comes first, and has the order of the chain
    known = reading.draft.joints
    is_described = any(joint.source for joint in known.values())
    pool = sorted(near or reading.reporters or order, key=order.index)
    return [joint for joint in pool if known[joint].moves and (known[joint].source or not is_described)]


def _add_base(reading: GraphReading) -> None:
    """Add the mobile base on the shortest cmd_vel topic, or else on the only twist topic."""
    twists = sorted((topic for topic in reading.commands if topic.type in TWISTS), key=lambda t: (len(t.name), t.name))
    named = [topic for topic in twists if "cmd_vel" in topic.name]
    has_odometry = any(topic.type == ODOMETRY for topic in reading.topics)
    candidates = named or (twists if has_odometry or not reading.draft.actuators else [])
    if rest := [f"{topic.name} ({topic.type})" for topic in twists if topic not in candidates[:1]]:
        used = f"used instead: {candidates[0].name}" if candidates else "no sign of a mobile base, such as odometry"
        reading.draft.gap(f"{', '.join(rest)}, left out", used)
    if not candidates:
        return
    topic, limits = candidates[0], dict[str, Document]()
    for axis in AXES:
        limits[axis] = {}
        for key, names in BASE_LIMITS.items():
            found = [_parameter(reading, topic, f"{axis}.{name}") for name in names]
            if known := [abs(v) for v in found if isinstance(v, (int, float)) and 1e-3 <= abs(v) < 100]:
                limits[axis][key] = min(known)
        high, low = limits[axis].get("velocity"), _parameter(reading, topic, f"{axis}.min_velocity")
        if high is not None and isinstance(low, (int, float)) and -high < low <= 0.0:
            limits[axis]["velocity"] = [low if low <= -1e-3 else 0.0, high]
        elif isinstance(low, (int, float)) and low > 0.0:
            what = f"{axis}.min_velocity of {topic.name} is {low:g}: whether the base moves more slowly"
            reading.draft.gap(what, "the controller; a policy with smaller velocities may not move it")
    is_sideways = bool(limits["linear.y"]) or _is_omnidirectional(reading) or None
    add_base(reading.draft, reading.local(topic), topic.type, limits, moves_sideways=is_sideways)
    reading.draft.actuators["base"] |= draft_command_qos(topic)
    _note_others(reading, topic, "actuators.base")
    _add_timeout(reading, topic, "base")
    _require_controller(reading, topic, "base")


def _is_omnidirectional(reading: GraphReading) -> bool:
    """Return whether a base moves sideways, by its active controller or four legs."""
    kinds = [found["type"] for found in reading.graph.controllers.values() if found["is_active"]]
    legs = {found[1] for joint in reading.reporters if (found := _LEG.match(joint))}
    return any(map(_SIDEWAYS.match, kinds)) or len(legs) == _FOUR


def _add_timeout(reading: GraphReading, topic: Topic, name: str) -> None:
    """Declare the time after which the controller ends a velocity that is not commanded again."""
    timeout_s, path = _parameter(reading, topic, *TIMEOUTS), "backends.real.downstream_timeout_s"
    if isinstance(timeout_s, float) and 1e-3 <= timeout_s <= 10.0:
        known_s = reading.draft.real.setdefault("downstream_timeout_s", timeout_s)
        reading.draft.real["downstream_timeout_s"] = min(known_s, timeout_s)
        if known_s != timeout_s:
            reading.draft.choose(path, f"the smaller of {known_s:g} s and the {timeout_s:g} s of {name}")
            where = "set the timeouts of all controllers to the same value"
            reading.draft.gap(f"{topic.name} stops after {timeout_s:g} s, another one after {known_s:g} s", where)
        return
    reading.draft.real.setdefault("downstream_timeout_s", 0.5)
    where = "publish one slow command and measure when it stops"
    reading.draft.choose(path, f"assumed; the robot may not stop {name} by itself")
    reading.draft.gap(f"time after which {topic.name} stops without a command (0.5 s written)", where)


def _note_others(reading: GraphReading, topic: Topic, path: str) -> None:
    """Comment the topic's subscribers, and report its publishers, which `real` refuses."""
    reading.draft.comment(path, f"Subscribed by {nodes_of(topic.subscribers)}.")
    if topic.publishers:
        what = f"{topic.name} is also published by {nodes_of(topic.publishers)}"
        reading.draft.gap(what, "stop that node, or remap its publisher, before the environment runs")


def _names(topic: str, joint: str) -> bool:
    """Return whether a topic has the name of a joint in it, as whole words."""
    return re.search(rf"(?<![^\W_]){re.escape(joint)}(?![^\W_])", topic) is not None


def _add_gripper_actions(reading: GraphReading) -> None:
    """Add an actuator for each action server of a gripper, unless a topic commands its joint."""
    draft = reading.draft
    for action in _actions(reading):
        if action.type not in COMMAND_GOALS:
            continue
        declared, fingers = _joint_parameter(reading, action), _free_fingers(reading, action)
        joint = next(iter(declared or fingers), None)
        if joint is None or draft.joints[joint].is_continuous or joint in reading.claimed:
            what = f"joint of {action.name} ({action.type}), left out"
            used = f"used instead: {reading.claimed[joint]}" if joint in reading.claimed else ""
            draft.gap(what, used or "the parameter `joint` of its controller, and a URDF with its limits")
            continue
        name = reading.unique("gripper", action, draft.actuators)
        reading.claimed[joint] = action.name
        spec = {"topic": reading.local(action), "type": action.type, "command": "position", "scale": "binary"}
        add_joint_actuator(draft, name, spec, [joint])
        draft.comment(f"actuators.{name}", f"Action of {nodes_of(action.subscribers)}.")
        _add_ends(draft, name)
        if not declared:
            draft.ask(f"actuators.{name}.joints", f"joint of {action.name} ({joint} written)", "its parameter `joint`")


def _add_ends(draft: Draft, name: str, mimic: Document | None = None) -> None:
    """Add a gripper's ends and the fingers that mimic its joint, as assumptions."""
    ((joint, limits),) = draft.actuators[name]["joints"].items()
    low, high = limits["position"]
    draft.actuators[name]["gripper"] = {"open": high, "closed": low, **({"mimic": mimic} if mimic else {})}
    together = f"; {', '.join(mimic)} moves with {joint}" if mimic else ""
    question = f"which end of {joint} is open (the upper one written){together}"
    draft.ask(f"actuators.{name}.gripper", question, "open it, and echo its joint states")
    _ask_unit(draft, name, [joint])


def _ask_unit(draft: Draft, name: str, fingers: list[str]) -> None:
    """Ask for the unit of commands of fingers, for which many drivers take 0 to 1 or percent."""
    for finger in fingers:
        if draft.answers.command_units(name, finger) is None:
            where = f"contract init --unit {name}/{finger}=percent:STROKE, see docs/howto/grippers.md"
            draft.ask(f"actuators.{name}.joints.{finger}.driver", f"unit of the commands of {finger}", where)


def _fingers_of(draft: Draft, joints: list[str]) -> Document | None:
    """Return how the second of two fingers mimics the first by limits and positions, or None."""
    first, second = (draft.joints[joint] for joint in joints) if len(joints) == 2 else (None, None)
    if first is None or second is None or first.unit != second.unit or first.position is None:
        return None
    low, high = first.position
    for factor, limits in ((1.0, (low, high)), (-1.0, (-high, -low))):
        off = (second.measured or 0.0) - factor * (first.measured or 0.0)
        if second.position == limits and abs(off) <= _NEAR * (high - low):
            return {joints[1]: factor}
    return None


def _note_trajectory_actions(reading: GraphReading) -> None:
    """Report trajectory actions, or raise ContractError without other commands."""
    for action in _actions(reading):
        is_alone = not any(command.name.startswith(namespace_of(action.name)) for command in reading.commands)
        if action.type != _TRAJECTORY or not is_alone:
            continue
        joints = ", ".join(_joint_parameter(reading, action)) or "its joints"
        what = f"{action.name} ({_TRAJECTORY}) is the only interface of {joints}: a goal is a whole motion, "
        what += "of which no step can be limited or replaced"
        if not reading.commands:
            raise ContractError("", f"{what}; {_REMEDY}; then contract init again")
        reading.draft.gap(f"{what}; left out", _REMEDY)


def _actions(reading: GraphReading) -> Iterator[Topic]:
    """Yield the actions as topics, whose subscribers are the servers."""
    for topic in reading.topics:
        name, found, _ = topic.name.partition(FEEDBACK)
        if found and topic.publishers:
            yield Topic(name=name, type=topic.type.removesuffix("_FeedbackMessage"), subscribers=topic.publishers)


def _joint_parameter(reading: GraphReading, action: Topic) -> list[str]:
    for server in action.subscribers:
        parameters = reading.graph.parameters.get(server.node, {})
        named = parameters.get("joint") or parameters.get("joints") or []
        return [joint for joint in ([named] if isinstance(named, str) else named) if joint in reading.draft.joints]
    return []


def _free_fingers(reading: GraphReading, action: Topic) -> list[str]:
    """Return the uncommanded fingers on the side of the action, or all without a side."""
    moving = [joint for joint, known in reading.draft.joints.items() if known.moves and joint not in reading.claimed]
    side = reading.side_of(action)
    return [joint for joint in moving if _GRIPPER.search(joint) and side in joint.lower()]
