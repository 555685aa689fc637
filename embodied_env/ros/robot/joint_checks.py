"""Compare a contract's joints with those in the parameters of a robot's controllers."""

from __future__ import annotations

from collections.abc import Iterator

from embodied_env.contract import Contract
from embodied_env.core.controller_joints import JOINTS, controller_of, declared_joints
from embodied_env.messages.message_types import TRAJECTORY
from embodied_env.ros.robot.graph_checks import UNNAMED
from embodied_env.ros.transport.checklist import Check, failed, passed
from embodied_env.ros.transport.node import RosNode
from embodied_env.ros.transport.publishers import node_name
from embodied_env.ros.transport.receiver import read_parameters

_PARTIAL = "allow_partial_joints_goal"
_DISCOVERY_S = 5.0  # a new node may miss the first announcements of the others, which are repeated every 3 s


def joint_checks(contract: Contract, ros: RosNode) -> Iterator[Check]:
    """Yield a check of each actuator with joints on a topic, from a node that serves no other thread."""
    for name, actuator in contract.actuators.items():
        if actuator.command == "twist" or actuator.is_action:
            continue
        topic, title = ros.node.resolve_topic_name(actuator.topic), f"joints.{name}"
        own = list(actuator.published_joints)
        subscribers = _subscribers(ros, topic)
        wanted = (*JOINTS, f"{controller_of(topic).rpartition('/')[2]}.joints", _PARTIAL)
        nodes = dict.fromkeys([controller_of(topic), *subscribers])
        parameters = {node: read_parameters(ros.receiver, node, wanted.__contains__) for node in nodes if node}
        joints, node = declared_joints(
            topic, parameters, subscribers, is_only=_is_only(ros, subscribers, actuator.type)
        )
        if not joints:
            detail = f"not compared: no node of {topic} has a parameter `joints`"
            yield Check(name=title, passed=None, detail=detail, remedy="compare with the controller's configuration")
            continue
        if actuator.type == TRAJECTORY:
            is_partial = parameters[node].get(_PARTIAL) is True
            fits = set(own) == set(joints) or (is_partial and set(own) < set(joints))
        else:
            fits = own == joints
        detail = f"{node} commands {', '.join(joints)}"
        if fits:
            yield passed(title, detail)
        else:
            remedy = f"set actuators.{name}.joints (gripper.mimic for fingers) to those of the controller, in its order"
            yield failed(title, f"{detail}; the contract has {', '.join(own)}", remedy, "joints")


def _subscribers(ros: RosNode, topic: str) -> list[str]:
    """Return the nodes that subscribe to a topic, once it has subscriptions and all their nodes have names."""

    def found() -> list[str]:
        return [node_name(info) for info in ros.node.get_subscriptions_info_by_topic(topic)]

    def are_named() -> bool:
        names = found()
        return bool(names) and not any(name.endswith(UNNAMED) for name in names)

    ros.wait_until(are_named, _DISCOVERY_S)
    return found()


def _is_only(ros: RosNode, subscribers: list[str], kind: str) -> bool:
    """Return whether the only subscriber of a command topic subscribes to no other topic of this type."""
    topics = [name for name, kinds in ros.node.get_topic_names_and_types() if kind in kinds]
    found = [node_name(info) for name in topics for info in ros.node.get_subscriptions_info_by_topic(name)]
    return len(subscribers) == 1 == found.count(subscribers[0])
