"""Check publishers and subscriptions of a contract's topics, before and during motion."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Literal

from rclpy.duration import Infinite
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSCompatibility, QoSProfile, qos_check_compatible
from rclpy.utilities import get_rmw_implementation_identifier

from embodied_env.contract import ActuatorSpec, Contract, SensorSpec
from embodied_env.contract.qos_schema import is_latched
from embodied_env.ros.robot.grippers import SEND_GOAL
from embodied_env.ros.robot.robot_profile import RealProfile
from embodied_env.ros.robot.sensor_publishers import CONFLICT, REMEDY, SensorPublishers
from embodied_env.ros.transport.checklist import Check, failed, passed
from embodied_env.ros.transport.node import node_name, publisher_names
from embodied_env.ros.transport.qos import RELIABLE
from embodied_env.safety.relay.relay_protocol import COMMAND_TOPIC, NODE, REPORT_TOPIC, STATE_TOPIC

CLOCK_TOPIC = "/clock"
"""The topic of simulated time."""

UNNAMED = "_NODE_NAME_UNKNOWN_"
"""Part of the name of a node that has just been discovered."""

_JOINT_STATE = "sensor_msgs/msg/JointState"
_RELAY_TOPICS = (REPORT_TOPIC, STATE_TOPIC)  # in addition to commands, published only by the relay
_MAX_NAMED = 4  # other topics in a remedy

Problem = tuple[str, str, str]
"""Code, description, remedy."""


# ------------------------------------------------------------------------------------- before the first motion


def graph_checks(
    contract: Contract, profile: RealProfile, node: Node, publishers: SensorPublishers | None = None
) -> tuple[Check, ...]:
    """Return a check for each topic of the contract, each safety input and the reset service.

    `publishers` has received the messages of the sensors; without it no topic can be shared.
    """
    has_relay, shared = profile.relay, {contract.sensors[name].topic for name in profile.shared}
    checks = []
    for name, sensor in contract.sensors.items():
        at_most = None if sensor.topic in shared and publishers is not None else 1
        problems = publisher_problems(f"sensors.{name}.qos", sensor.topic, sensor.type, node, at_most=at_most)
        problems = problems or _conflicts(sensor.topic, publishers)
        checks.append(topic_check(f"sensors.{name}", sensor.topic, node, problems))
    for name, actuator in contract.actuators.items():
        if actuator.is_action:
            checks.append(_service_check(f"actuators.{name}", _goal_service(actuator), node, f"actuators.{name}.topic"))
            continue
        problems = _owner_problems(actuator.topic, node, has_relay=has_relay)
        problems += reader_problems(f"actuators.{name}.qos", actuator.topic, actuator.type, node)
        checks.append(topic_check(f"actuators.{name}", actuator.topic, node, problems))
    if has_relay:
        problems = _owner_problems(COMMAND_TOPIC, node, has_relay=False)
        problems += reader_problems("", COMMAND_TOPIC, _JOINT_STATE, node)
        checks.append(topic_check("relay", COMMAND_TOPIC, node, problems))
        checks += [
            topic_check(topic, topic, node, _owner_problems(topic, node, has_relay=True)) for topic in _RELAY_TOPICS
        ]
    if profile.reset_spec.service is not None:
        checks.append(_service_check("reset service", profile.reset_spec.service, node, "backends.real.reset.service"))
    for name, estop in profile.estop.items():
        problems = publisher_problems(f"backends.real.estop.{name}.latched", estop.topic, estop.type, node, at_most=1)
        checks.append(topic_check(f"estop.{name}", estop.topic, node, problems))
    for name, active in profile.active.items():
        if active.topic is not None:
            key = f"backends.real.active.{name}.latched"
            problems = publisher_problems(key, active.topic, active.type, node, at_most=1)
            checks.append(topic_check(f"active.{name}", active.topic, node, problems))
        elif active.service is not None:
            checks.append(_service_check(f"active.{name}", active.service, node, f"backends.real.active.{name}"))
    return (*checks, *_clock_checks(profile, node), _name_check(node, has_relay=has_relay))


def _clock_checks(profile: RealProfile, node: Node) -> list[Check]:
    publishers = ", ".join(publisher_names(node, CLOCK_TOPIC))
    if profile.use_sim_time and not publishers:
        remedy = "start the simulator's clock, or remove backends.real.use_sim_time"
        return [failed("simulated time", f"{CLOCK_TOPIC}: no publisher", remedy, "pub.none")]
    if publishers and not profile.use_sim_time:
        remedy = "set backends.real.use_sim_time: true if the sensors are stamped by it"
        detail = f"{CLOCK_TOPIC} is published by {publishers} and not used"
        return [Check(name="simulated time", passed=None, detail=detail, remedy=remedy)]
    return [passed("simulated time", f"{CLOCK_TOPIC} is published by {publishers}")] if publishers else []


def _conflicts(topic: str, publishers: SensorPublishers | None) -> list[Problem]:
    problem = "" if publishers is None else publishers.problem(topic)
    return [(CONFLICT, problem.partition(": ")[2], REMEDY)] if problem else []


def _name_check(node: Node, *, has_relay: bool) -> Check:
    """Check that no other node has the name of this node.

    ROS 2 only warns, and services and parameters become ambiguous. Behind a relay this is not a failure, since its
    command topic shows whether two nodes command it.
    """
    full_name = node.get_fully_qualified_name()
    if node.get_node_names_and_namespaces().count((node.get_name(), node.get_namespace())) > 1:
        remedy = "close the other node, or choose another name: make(..., node_name=...)"
        check = failed("node name", f"another node has the name {full_name}", remedy, "node.name")
        return replace(check, passed=None) if has_relay else check
    return passed("node name", f"{full_name} is unique")


def _service_check(name: str, service: str, node: Node, key: str) -> Check:
    resolved = node.resolve_service_name(service)
    if node.count_services(resolved):
        return passed(name, f"{resolved} is available")
    remedy = f"start its node, or correct {key}; {surroundings(node)}"
    return failed(name, f"{resolved}: no service", remedy, "service.none")


def topic_check(name: str, topic: str, node: Node, problems: list[Problem]) -> Check:
    """Return the check of a topic with its problems or its publishers and subscribers."""
    resolved = node.resolve_topic_name(topic)
    if problems:
        codes, details, remedies = zip(*problems, strict=True)
        return failed(name, f"{resolved}: {'; '.join(details)}", "; ".join(dict.fromkeys(remedies)), codes[0])
    writers = ", ".join(publisher_names(node, topic))
    found = {node_name(info) for info in node.get_subscriptions_info_by_topic(topic)}
    readers = ", ".join(sorted(found - {node.get_fully_qualified_name()}))
    return passed(name, f"{resolved}: from {writers or 'the environment'} to {readers or 'the environment'}")


def publisher_problems(
    key: str, topic: str, type_name: str, node: Node, *, at_most: int | None = None
) -> list[Problem]:
    """Return the problems with the publishers of a topic that we read with the QoS of `key`."""
    found = node.get_publishers_info_by_topic(topic)
    if not found:
        remedy = f"start the publisher, or correct the topic; {surroundings(node, type_name, node.count_publishers)}"
        return [("pub.none", "no publisher", remedy)]
    problems: list[Problem] = []
    if at_most is not None and len(found) > at_most:
        names = ", ".join(node_name(info) for info in found)
        remedy = f"stop all but one (ros2 topic info -v {node.resolve_topic_name(topic)}); a killed one stays for 20 s"
        problems.append(("pub.multiple", f"{len(found)} publishers (expected 1): {names}", remedy))
    return problems + _mismatches(found, "publisher", key, type_name, _own_qos(node.subscriptions, node, topic))


def reader_problems(key: str, topic: str, type_name: str, node: Node) -> list[Problem]:
    """Return the problems with the subscriptions of a topic that we publish as `key`."""
    ours = node.get_fully_qualified_name()
    found = [info for info in node.get_subscriptions_info_by_topic(topic) if node_name(info) != ours]
    if not found:
        remedy = f"start the controller, or correct the topic; {surroundings(node, type_name, node.count_subscribers)}"
        return [("sub.none", "no subscriber", remedy)]
    return _mismatches(found, "subscriber", key, type_name, _own_qos(node.publishers, node, topic))


def _mismatches(
    endpoints: Iterable[Any], kind: Literal["publisher", "subscriber"], key: str, type_name: str, our_qos: QoSProfile
) -> list[Problem]:
    """Return the endpoints with another type than the contract's or with an incompatible QoS."""
    problems: list[Problem] = []
    for info in endpoints:
        offered, requested = (info.qos_profile, our_qos) if kind == "publisher" else (our_qos, info.qos_profile)
        if info.topic_type != type_name:
            detail = f"{kind} {node_name(info)} has type {info.topic_type} (expected {type_name})"
            problems.append(("type.mismatch", detail, "correct the type in the contract or in the other node"))
        elif policies := incompatible_policies(offered=offered, requested=requested):
            detail = f"incompatible QoS of {kind} {node_name(info)}: {', '.join(policies)}"
            problems.append(("qos.incompatible", detail, _qos_remedy(kind, key, info.qos_profile)))
    return problems


def _qos_remedy(kind: Literal["publisher", "subscriber"], key: str, theirs: QoSProfile) -> str:
    """Return what makes our QoS, declared by `key`, compatible with `theirs`."""
    if kind == "publisher":
        ours = f"set {key}: false" if key.endswith(".latched") else f"remove {key} (the default suits any publisher)"
    else:
        ours = f"set {key}: {'latched' if _is_latched(theirs) else 'reliable'}" if key else ""
    return ", or ".join(filter(None, (ours, "change this policy in the other node")))


def latched_remedy(name: str, sensor: SensorSpec, node: Node) -> str:
    """Return the remedy for a silent sensor with latched publishers, or "" for others."""
    found = node.get_publishers_info_by_topic(sensor.topic)
    if is_latched(sensor.qos) or not found or not all(_is_latched(info.qos_profile) for info in found):
        return ""
    return f"{node_name(found[0])} publishes it latched (transient local); set sensors.{name}.qos: latched"


def _is_latched(qos: QoSProfile) -> bool:
    return bool(qos.durability == DurabilityPolicy.TRANSIENT_LOCAL)


def _owner_problems(topic: str, node: Node, *, has_relay: bool) -> list[Problem]:
    """Return the problems with publishers of a topic that only we, or only the relay, may use."""
    foreign, owners = _foreign_publishers(node, topic, has_relay=has_relay)
    problems: list[Problem] = []
    if foreign:
        owner = "the relay" if has_relay else "this node"
        detail = f"also published by {', '.join(foreign)} (expected {owner} only)"
        problems.append(("robot.contention", detail, "stop that node, or remap its topic"))
    if has_relay and not owners:
        remedy = f"start the relay: embodied-env relay <contract>; {surroundings(node)}"
        problems.append(("relay.silent", f"not published by {_relay_name(node)}", remedy))
    return problems


def incompatible_policies(*, offered: QoSProfile, requested: QoSProfile) -> tuple[str, ...]:
    """Return the policies in which the `offered` QoS does not satisfy the `requested` QoS."""
    verdict, reason = qos_check_compatible(_with_infinite_defaults(offered), _with_infinite_defaults(requested))
    if verdict != QoSCompatibility.ERROR:
        return ()
    return tuple(text.removeprefix("ERROR: ") for text in reason.split(";") if text.startswith("ERROR: ")) or (reason,)


def _with_infinite_defaults(qos: QoSProfile) -> QoSProfile:
    """Return a profile as the graph reports it, with durations of 0, the default, as infinite."""
    durations = {name: getattr(qos, name) for name in ("deadline", "liveliness_lease_duration")}
    return QoSProfile(
        depth=1,
        reliability=qos.reliability,
        durability=qos.durability,
        liveliness=qos.liveliness,
        **{name: duration if duration.nanoseconds else Infinite for name, duration in durations.items()},
    )


# --------------------------------------------------------------------------------------- while the robot moves


def contention(contract: Contract, profile: RealProfile, node: Node) -> dict[str, list[str]]:
    """Return the foreign publishers of commands, by topic.

    It takes about ten microseconds per topic and never waits. Those of `node` are allowed, and with ``relay: true``
    those of the relay, whose own topics are checked too.
    """
    owned = dict.fromkeys((actuator.topic for actuator in contract.actuators.values()), profile.relay)
    if profile.relay:
        owned |= {COMMAND_TOPIC: False, **dict.fromkeys(_RELAY_TOPICS, True)}
    found = {
        topic: _foreign_publishers(node, topic, has_relay=is_the_relays)[0] for topic, is_the_relays in owned.items()
    }
    grippers = [_goal_service(actuator) for actuator in contract.actuators.values() if actuator.is_action]
    found |= {service: _foreign_clients(node, service, has_relay=profile.relay) for service in grippers}
    return {topic: publishers for topic, publishers in found.items() if publishers}


def _goal_service(actuator: ActuatorSpec) -> str:
    return f"{actuator.topic}/{SEND_GOAL}"


def _foreign_clients(node: Node, service: str, *, has_relay: bool) -> list[str]:
    """Return a description of the other clients of an action, which the graph does not name."""
    resolved = node.resolve_service_name(service)
    own = sum(node.resolve_service_name(client.srv_name) == resolved for client in node.clients)
    others = node.count_clients(resolved) - max(own, has_relay)
    return [f"{others} other action clients"] if others > 0 else []


def _foreign_publishers(node: Node, topic: str, *, has_relay: bool) -> tuple[list[str], list[str]]:
    """Return the foreign nodes that publish a topic with one owner, and the owner.

    Our node is identified by its full name and its one publisher, so that one more is another node of the same name,
    or another actuator that is remapped to this topic. A node that was just discovered has no name yet, and counts as
    foreign. If this node does not command the relay (a survey, a dry run), one other node may publish its commands.
    """
    owner = _relay_name(node) if has_relay else node.get_fully_qualified_name()
    resolved = node.resolve_topic_name(topic)
    allowed = 1 if has_relay else int(any(publisher.topic_name == resolved for publisher in node.publishers))
    if not has_relay and node.count_publishers(resolved) == allowed:
        return [], [owner] * allowed  # our own publishers are always in the graph
    names = publisher_names(node, topic)
    if topic == COMMAND_TOPIC and allowed == 0 and len(names) == 1:
        return [], names
    owners = [name for name in names if name == owner]
    others = [name for name in names if name != owner]
    return others + [f"another {owner}"] * (len(owners) - allowed), owners


# -------------------------------------------------------------------------------------------------- the graph


def _relay_name(node: Node) -> str:
    return f"{node.get_namespace().rstrip('/')}/{NODE}"


def _own_qos(own: Iterable[Any], node: Node, topic: str) -> QoSProfile:
    """Return the QoS of our own endpoint on `topic`, or that of `RosNode` without one."""
    resolved = node.resolve_topic_name(topic)
    return next((endpoint.qos_profile for endpoint in own if endpoint.topic_name == resolved), RELIABLE)


def surroundings(node: Node, type_name: str = "", is_used: Callable[[str], int] | None = None) -> str:
    """Describe our namespace and ROS environment, and the topics of the same type."""
    reach = os.environ.get("ROS_AUTOMATIC_DISCOVERY_RANGE") or "unset (SUBNET)"
    text = (
        f"it must use namespace {node.get_namespace()}, ROS_DOMAIN_ID={node.context.get_domain_id()}, "
        f"ROS_AUTOMATIC_DISCOVERY_RANGE={reach}, RMW_IMPLEMENTATION={get_rmw_implementation_identifier()}"
    )
    if is_used is not None:
        names = [name for name, types in node.get_topic_names_and_types() if type_name in types and is_used(name)]
        shown = f"{', '.join(names[:_MAX_NAMED]) or 'none'}{', ...' if names[_MAX_NAMED:] else ''}"
        text += f" (topics of this type: {shown})"
    return text
