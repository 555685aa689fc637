"""Find grippers, as action servers or two fingers in one message, and actions that no contract can use."""

from __future__ import annotations

import re
from collections.abc import Iterator

from embodied_env.errors import ContractError
from embodied_env.extensions.contract_init.contract_draft import Document, Draft, add_joint_actuator
from embodied_env.extensions.contract_init.graph_topics import FEEDBACK, GraphReading, Topic, namespace_of, nodes_of
from embodied_env.messages.commands import COMMAND_GOALS

GRIPPER = re.compile(r"gripper|finger|hand|jaw|knuckle|(left|right)_carriage", re.IGNORECASE)

_TRAJECTORY = "control_msgs/action/FollowJointTrajectory"
_REMEDY = (
    "load a controller with a topic, such as position_controllers/JointGroupPositionController, in its place: "
    "ros2 control load_controller --set-state active forward_position_controller"
)
_NEAR = 0.05  # of its range: how far a finger may be from the one that it seems to mimic


def add_gripper_actions(reading: GraphReading) -> None:
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
        add_ends(draft, name)
        if not declared:
            draft.ask(f"actuators.{name}.joints", f"joint of {action.name} ({joint} written)", "its parameter `joint`")


def add_ends(draft: Draft, name: str, mimic: Document | None = None) -> None:
    """Add a gripper's open and closed position and its fingers, as assumptions.

    The fingers mimic its joint.
    """
    ((joint, limits),) = draft.actuators[name]["joints"].items()
    low, high = limits["position"]
    draft.actuators[name]["gripper"] = {"open": high, "closed": low, **({"mimic": mimic} if mimic else {})}
    together = f"; {', '.join(mimic)} moves with {joint}" if mimic else ""
    question = f"which end of {joint} is open (the upper one written){together}"
    draft.ask(f"actuators.{name}.gripper", question, "open it, and echo its joint states")
    ask_unit(draft, name, [joint])


def ask_unit(draft: Draft, name: str, fingers: list[str]) -> None:
    """Ask for the unit of the commands of fingers.

    Many drivers take 0 to 1, percent or counts.
    """
    for finger in fingers:
        if draft.answers.command_units(name, finger) is None:
            where = f"contract init --unit {name}/{finger}=percent:STROKE, see docs/howto/grippers.md"
            draft.ask(f"actuators.{name}.joints.{finger}.driver", f"unit of the commands of {finger}", where)


def fingers_of(draft: Draft, joints: list[str]) -> Document | None:
    """Return how the second of two fingers mimics the first, or None if it does not.

    Their limits and positions decide it.
    """
    first, second = (draft.joints[joint] for joint in joints) if len(joints) == 2 else (None, None)
    if first is None or second is None or first.unit != second.unit or first.position is None:
        return None
    low, high = first.position
    for factor, limits in ((1.0, (low, high)), (-1.0, (-high, -low))):
        off = (second.measured or 0.0) - factor * (first.measured or 0.0)
        if second.position == limits and abs(off) <= _NEAR * (high - low):
            return {joints[1]: factor}
    return None


def note_trajectory_actions(reading: GraphReading) -> None:
    """Report actions that only take whole trajectories.

    Raises ContractError if the robot has no other commands.
    """
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
    """Yield the actions as topics with their names and types, whose subscribers are the servers."""
    for topic in reading.topics:
        name, found, _ = topic.name.partition(FEEDBACK)
        if found and topic.publishers:
            yield Topic(name=name, type=topic.type.removesuffix("_FeedbackMessage"), subscribers=topic.publishers)


def _joint_parameter(reading: GraphReading, action: Topic) -> list[str]:
    """Return the known joints that the parameters of the servers name."""
    for server in action.subscribers:
        parameters = reading.graph.parameters.get(server.node, {})
        named = parameters.get("joint") or parameters.get("joints") or []
        return [joint for joint in ([named] if isinstance(named, str) else named) if joint in reading.draft.joints]
    return []


def _free_fingers(reading: GraphReading, action: Topic) -> list[str]:
    """Return the fingers without a command on the side of the action, or all of them if it has no side."""
    moving = [joint for joint, known in reading.draft.joints.items() if known.moves and joint not in reading.claimed]
    side = reading.side_of(action)
    return [joint for joint in moving if GRIPPER.search(joint) and side in joint.lower()]
