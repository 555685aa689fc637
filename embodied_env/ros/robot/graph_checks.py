"""Who publishes and who reads on the topics of a contract: before the first motion, and while the robot moves."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rclpy.duration import Infinite
from rclpy.node import Node
from rclpy.qos import (
    DurabilityPolicy,
    LivelinessPolicy,
    QoSCompatibility,
    QoSProfile,
    ReliabilityPolicy,
    qos_check_compatible,
)
from rclpy.utilities import get_rmw_implementation_identifier

from embodied_env.contract import Contract
from embodied_env.ros.qos import RELIABLE
from embodied_env.ros.robot.contract_checks import Check
from embodied_env.safety.relay.protocol import COMMAND_TOPIC, REPORT_TOPIC, STATE_TOPIC

RELAY = "relay"
"""The node that owns the actuator topics when the profile says ``relay: true``; in our namespace."""

ESTOP_TYPE = "std_msgs/msg/Bool"

UNNAMED = "_NODE_NAME_UNKNOWN_"
"""In the name of a node that has just been discovered."""

_INFINITE_NS = 2**63 - 1
_JOINT_STATE = "sensor_msgs/msg/JointState"
_MANY = 4  # so many other topics are named in a remedy

_OF_THE_RELAY = (REPORT_TOPIC, STATE_TOPIC)  # what it alone publishes, beside commands

Problem = tuple[str, str, str]
"""Code, what is wrong, what to do about it."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A publisher or a subscription of a topic: the full name of its node, its message type and its QoS."""

    node: str
    type: str
    qos: QoSProfile


@dataclass(frozen=True, kw_only=True)
class Contention:
    """A topic with a publisher too many while the robot moves: `publishers` are the nodes that ought not to be there.

    `code`: ``robot.contention`` on an actuator topic or one of the relay, ``pub.multiple`` on the topic of a sensor.
    """

    topic: str
    role: Literal["actuator", "sensor"]
    publishers: tuple[str, ...]

    @property
    def code(self) -> str:
        """The reason, for programs."""
        return "robot.contention" if self.role == "actuator" else "pub.multiple"


# ------------------------------------------------------------------------------------- before the first motion


def graph_checks(contract: Contract, profile: Mapping[str, Any], node: Node) -> tuple[Check, ...]:
    """Return one check for each topic of the contract and of the profile's e-stops, as the graph is now.

    Topics are looked for under the names that `node` resolves them to, remappings included.
    """
    shared = profile.get("shared") or ()
    checks = [
        _topic_check(
            f"sensors.{name}",
            sensor.topic,
            node,
            _publisher_problems(sensor.topic, sensor.type, node, at_most=None if name in shared else 1),
        )
        for name, sensor in contract.sensors.items()
    ]
    has_relay = profile.get("relay") is True
    for name, actuator in contract.actuators.items():
        problems = _owner_problems(actuator.topic, node, has_relay=has_relay)
        problems += _reader_problems(actuator.topic, actuator.type, node)
        checks.append(_topic_check(f"actuators.{name}", actuator.topic, node, problems))
    if has_relay:
        problems = _owner_problems(COMMAND_TOPIC, node, has_relay=False)
        problems += _reader_problems(COMMAND_TOPIC, _JOINT_STATE, node)
        checks.append(_topic_check("relay", COMMAND_TOPIC, node, problems))
        checks += [
            _topic_check(topic, topic, node, _owner_problems(topic, node, has_relay=True)) for topic in _OF_THE_RELAY
        ]
    checks += [_estop_check(name, estop, node) for name, estop in (profile.get("estop") or {}).items()]
    return (*checks, _name_check(node, has_relay=has_relay))


def _name_check(node: Node, *, has_relay: bool) -> Check:
    """A node has its name alone: ROS 2 only warns, and services, parameters and logs are then anybody's.

    Behind a relay it is only told: two nodes that command it are found by its command topic.
    """
    ours = (node.get_name(), node.get_namespace())
    full_name = _full_name(ours[1], ours[0])
    if node.get_node_names_and_namespaces().count(ours) > 1:
        remedy = "close the other, or give this one a name of its own: make(..., node_name=...)"
        detail = f"another node is called {full_name}"
        return Check(
            name="node name", passed=None if has_relay else False, detail=detail, remedy=remedy, code="node.name"
        )
    return Check(name="node name", passed=True, detail=f"{full_name} is the only one")


def _estop_check(name: str, estop: Mapping[str, Any], node: Node) -> Check:
    topic, type_name = estop.get("topic"), estop.get("type", ESTOP_TYPE)
    if not isinstance(topic, str):
        detail = f"backends.real.estop.{name}.topic {topic!r} is not allowed; allowed: the name of a topic"
        return Check(name=f"estop.{name}", passed=False, detail=detail, remedy="correct it", code="profile")
    return _topic_check(f"estop.{name}", topic, node, _publisher_problems(topic, type_name, node))


def _topic_check(name: str, topic: str, node: Node, problems: list[Problem]) -> Check:
    resolved = node.resolve_topic_name(topic)
    if problems:
        return Check(
            name=name,
            passed=False,
            detail=f"{resolved}: {'; '.join(detail for _, detail, _ in problems)}",
            remedy="; ".join(dict.fromkeys(remedy for _, _, remedy in problems)),
            code=problems[0][0],
        )
    writers, readers = (_names(found) for found in (publishers_of(node, topic), _subscriptions(node, topic)))
    return Check(name=name, passed=True, detail=f"{resolved}: from {writers or 'us'} to {readers or 'us'}")


def _publisher_problems(topic: str, type_name: str, node: Node, *, at_most: int | None = None) -> list[Problem]:
    """Return what is wrong with those who publish what we read."""
    found = publishers_of(node, topic)
    if not found:
        remedy = (
            f"start what publishes it, or correct its topic; {_surroundings(node, type_name, node.count_publishers)}"
        )
        return [("pub.none", "nobody publishes it", remedy)]
    problems: list[Problem] = []
    if at_most is not None and len(found) > at_most:
        remedy = f"stop all but one (ros2 topic info -v {node.resolve_topic_name(topic)} shows them)"
        problems.append(("pub.multiple", f"it has {len(found)} publishers: {_names(found)}", remedy))
    return problems + _mismatches(
        found,
        type_name,
        our_qos=_own_qos(node.subscriptions, node, topic),
        check=lambda theirs, ours: incompatible_policies(offered=theirs, requested=ours),
        verb="publishes",
    )


def _owner_problems(topic: str, node: Node, *, has_relay: bool) -> list[Problem]:
    """Return what is wrong with those who publish it: only we may, or with a relay only the relay."""
    foreign, owners = _foreign(node, topic, has_relay=has_relay)
    problems: list[Problem] = []
    if foreign:
        allowed = "the relay" if has_relay else "this node"
        detail = f"{', '.join(foreign)} also publishes it; allowed: {allowed} alone"
        problems.append(("robot.contention", detail, "stop it, or take its topic from it: two masters move one robot"))
    if has_relay and not owners:
        remedy = f"start it: embodied-env relay <contract>; {_surroundings(node)}"
        problems.append(("relay.silent", f"no node {_relay(node)} publishes it", remedy))
    return problems


def _reader_problems(topic: str, type_name: str, node: Node) -> list[Problem]:
    """Return what is wrong with those who read what we publish."""
    found = _subscriptions(node, topic)
    if not found:
        remedy = f"start the controller, or correct the topic; {_surroundings(node, type_name, node.count_subscribers)}"
        return [("sub.none", "nobody reads it", remedy)]
    return _mismatches(
        found,
        type_name,
        our_qos=_own_qos(node.publishers, node, topic),
        check=lambda theirs, ours: incompatible_policies(offered=ours, requested=theirs),
        verb="reads",
    )


def _mismatches(
    found: Iterable[Endpoint],
    type_name: str,
    *,
    our_qos: QoSProfile,
    check: Callable[[QoSProfile, QoSProfile], tuple[str, ...]],
    verb: str,
) -> list[Problem]:
    problems: list[Problem] = []
    for other in found:
        if other.type != type_name:
            detail = f"{other.node} {verb} {other.type}, the contract says {type_name}"
            problems.append(("type.mismatch", detail, "correct the type in the contract, or the other node"))
        elif policies := check(other.qos, our_qos):
            detail = f"the QoS of {other.node}, which {verb} it, does not fit: {', '.join(policies)}"
            problems.append(("qos.incompatible", detail, "set that policy of the other node to what is asked for"))
    return problems


def incompatible_policies(*, offered: QoSProfile, requested: QoSProfile) -> tuple[str, ...]:
    """Return the policies for which a publisher's `offered` QoS does not give what a subscription has `requested`.

    The rules are those of DDS (ROS 2 documentation, "Quality of Service settings", compatibilities).
    """
    found = []
    if (offered.reliability, requested.reliability) == (ReliabilityPolicy.BEST_EFFORT, ReliabilityPolicy.RELIABLE):
        found.append("reliability: best effort is offered, reliable is requested")
    if (offered.durability, requested.durability) == (DurabilityPolicy.VOLATILE, DurabilityPolicy.TRANSIENT_LOCAL):
        found.append("durability: volatile is offered, transient local is requested")
    if _ns(offered.deadline) > _ns(requested.deadline):
        found.append(f"deadline: {_text(offered.deadline)} is offered, {_text(requested.deadline)} is requested")
    if (offered.liveliness, requested.liveliness) == (LivelinessPolicy.AUTOMATIC, LivelinessPolicy.MANUAL_BY_TOPIC):
        found.append("liveliness: automatic is offered, manual by topic is requested")
    lease, requested_lease = offered.liveliness_lease_duration, requested.liveliness_lease_duration
    if _ns(lease) > _ns(requested_lease):
        found.append(f"liveliness lease: {_text(lease)} is offered, {_text(requested_lease)} is requested")
    verdict, reason = qos_check_compatible(_resolved(offered), _resolved(requested))
    if verdict == QoSCompatibility.ERROR and not found:  # the middleware has rules of its own
        found.append(reason)
    return tuple(found)


def _resolved(qos: QoSProfile) -> QoSProfile:
    """Return what the graph says of a profile: durations that are left out, 0, are infinite; rclpy compares them."""
    durations = {name: getattr(qos, name) for name in ("deadline", "liveliness_lease_duration")}
    return QoSProfile(
        depth=1,
        reliability=qos.reliability,
        durability=qos.durability,
        liveliness=qos.liveliness,
        **{name: duration if duration.nanoseconds else Infinite for name, duration in durations.items()},
    )


def _ns(duration: Any) -> int:  # noqa: ANN401 - an rclpy Duration
    """Return nanoseconds; 0 stands for a default, which is infinite."""
    return duration.nanoseconds or _INFINITE_NS


def _text(duration: Any) -> str:  # noqa: ANN401 - an rclpy Duration
    ns = _ns(duration)
    return "none" if ns >= _INFINITE_NS else f"{ns / 1e9:g} s"


# --------------------------------------------------------------------------------------- while the robot moves


def contention(contract: Contract, profile: Mapping[str, Any], node: Node) -> tuple[Contention, ...]:
    """Return the topics that have a publisher too many now. It costs some ten microseconds a topic, and never waits.

    `node` is whose publishers on the actuator topics are allowed: with ``relay: true`` they are those of the relay.
    """
    has_relay = profile.get("relay") is True
    found = []
    owned = [(actuator.topic, has_relay) for actuator in contract.actuators.values()]
    owned += [(COMMAND_TOPIC, False), *((topic, True) for topic in _OF_THE_RELAY)] if has_relay else []
    for topic, is_the_relays in owned:
        foreign, _ = _foreign(node, topic, has_relay=is_the_relays)
        if foreign:
            found.append(Contention(topic=topic, role="actuator", publishers=tuple(foreign)))
    for name, sensor in contract.sensors.items():
        if name in (profile.get("shared") or ()):
            continue
        if node.count_publishers(node.resolve_topic_name(sensor.topic)) > 1:
            publishers = tuple(endpoint.node for endpoint in publishers_of(node, sensor.topic))
            if len(publishers) > 1:  # it may have gone since
                found.append(Contention(topic=sensor.topic, role="sensor", publishers=publishers))
    return tuple(found)


def _foreign(node: Node, topic: str, *, has_relay: bool) -> tuple[list[str], list[str]]:
    """Return the nodes that publish on a topic that has one owner: those that may not, and those that may.

    We are known by our full name, and by how many publishers we made: another node of our name is one too many. One
    that has just been discovered has no name yet; it is nobody's. On the command topic of a relay, where it is not we
    who command it (a survey, a dry run), one other may.
    """
    owner = _relay(node) if has_relay else _full_name(node.get_namespace(), node.get_name())
    resolved = node.resolve_topic_name(topic)
    allowed = 1 if has_relay else sum(publisher.topic_name == resolved for publisher in node.publishers)
    if not has_relay and node.count_publishers(resolved) == allowed:
        return [], [owner] * allowed  # ours are in the graph as long as they exist
    names = [endpoint.node for endpoint in publishers_of(node, topic)]
    if topic == COMMAND_TOPIC and allowed == 0 and len(names) == 1:
        return [], names
    owners = [name for name in names if name == owner]
    others = [name for name in names if name != owner]
    return others + [f"another {owner}"] * (len(owners) - allowed), owners


# -------------------------------------------------------------------------------------------------- the graph


# rclpy remaps the name that it is asked about in the first two, and does not in `count_publishers`.


def publishers_of(node: Node, topic: str) -> list[Endpoint]:
    """Return the publishers of a topic as they are known now."""
    return [_endpoint(info) for info in node.get_publishers_info_by_topic(topic)]


def _subscriptions(node: Node, topic: str) -> list[Endpoint]:
    return [_endpoint(info) for info in node.get_subscriptions_info_by_topic(topic)]


def _endpoint(info: Any) -> Endpoint:  # noqa: ANN401 - a TopicEndpointInfo
    return Endpoint(node=_full_name(info.node_namespace, info.node_name), type=info.topic_type, qos=info.qos_profile)


def _full_name(namespace: str, name: str) -> str:
    return f"{namespace.rstrip('/')}/{name}"


def _relay(node: Node) -> str:
    return _full_name(node.get_namespace(), RELAY)


def _names(endpoints: Iterable[Endpoint]) -> str:
    return ", ".join(endpoint.node for endpoint in endpoints)


def _own_qos(own: Iterable[Any], node: Node, topic: str) -> QoSProfile:
    """Return the QoS of our own publisher or subscription on `topic`; without one, that of `RosNode`."""
    resolved = node.resolve_topic_name(topic)
    return next((endpoint.qos_profile for endpoint in own if endpoint.topic_name == resolved), RELIABLE)


def _surroundings(node: Node, type_name: str = "", is_used: Callable[[str], int] | None = None) -> str:
    """Say where we look, since the other may look elsewhere; and which topics of the wanted type are used there."""
    context = f"ROS_DOMAIN_ID={node.context.get_domain_id()}, " + ", ".join(
        f"{name}={os.environ.get(name) or f'unset ({default})'}"
        for name, default in (
            ("ROS_AUTOMATIC_DISCOVERY_RANGE", "SUBNET"),
            ("RMW_IMPLEMENTATION", get_rmw_implementation_identifier()),
        )
    )
    text = f"is it in the same place: namespace {node.get_namespace()}, {context}?"
    if is_used is not None:
        names = [name for name, types in node.get_topic_names_and_types() if type_name in types and is_used(name)]
        text += f" (of that type there are: {', '.join(names[:_MANY]) or 'none'}{', ...' if names[_MANY:] else ''})"
    return text
