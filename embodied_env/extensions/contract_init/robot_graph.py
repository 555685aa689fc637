"""Read the sensors, actuators and safety inputs of a robot out of its ROS graph, given as plain values."""

from __future__ import annotations

import re
from collections.abc import Iterable

from embodied_env.errors import ContractError
from embodied_env.extensions.contract_init.contract_draft import Draft, add_urdf
from embodied_env.extensions.contract_init.graph_commands import add_commands
from embodied_env.extensions.contract_init.graph_sensors import add_sensors
from embodied_env.extensions.contract_init.graph_topics import (
    BY_JOINT,
    NO_DATA,
    Graph,
    GraphReading,
    Topic,
    namespace_of,
)


def add_graph(draft: Draft, graph: Graph, topics: list[Topic], namespace: str = "/") -> None:
    """Add what the robot with these `topics` publishes and subscribes to (`topics_of_robot`)."""
    root = namespace.rstrip("/")
    for manager in graph.managers:
        if manager.startswith(f"{root}/"):
            where = "source a ROS 2 installation with controller_manager_msgs, or ros2 control list_controllers"
            draft.gap(f"which controllers of {manager} are active", where)
    _add_descriptions(draft, graph, topics, root)
    reading = GraphReading(draft, graph, topics, root)
    add_commands(reading)
    add_sensors(reading)
    _list_unused(reading)


def _add_descriptions(draft: Draft, graph: Graph, topics: Iterable[Topic], root: str) -> None:
    """Add the URDF of the robot, or of the namespaces around it."""
    names = {topic.name for topic in topics}
    around = {name: text for name, text in graph.descriptions.items() if f"{root}/".startswith(namespace_of(name))}
    found = {name: text for name, text in graph.descriptions.items() if name in names} or around
    for name, text in found.items():
        try:
            add_urdf(draft, text, name)
        except ContractError as error:
            draft.gap(f"{name} is no readable URDF: {error.problem}", "contract init --from-graph --urdf FILE")
    if not found and not draft.joints and any(topic.is_command and topic.type in BY_JOINT for topic in topics):
        what = f"joint limits: no message on {root}/robot_description in {graph.listened_s:g} s"
        draft.gap(what, "contract init --from-graph --urdf FILE, or the data sheet")


def _list_unused(reading: GraphReading) -> None:
    """Report the actions, and the topics that neither the contract nor another report names."""
    draft = reading.draft
    for topic in reading.topics:
        if topic.publishers and topic.type == "sensor_msgs/msg/BatteryState":
            where = "a sensor with the field percentage, in backends.real.active where a low one must stop the robot"
            draft.gap(f"{topic.name} (BatteryState) is not observed", where)
    inputs = [spec for group in ("estop", "active") for spec in draft.real.get(group, {}).values()]
    specs = (*draft.sensors.values(), *draft.actuators.values(), *inputs)
    named = {f"{reading.root}/{spec['topic']}" for spec in specs if "topic" in spec}
    named |= {word for what, _ in draft.gaps for word in re.split(r"[\s,;:()]+", what)}
    for topic in reading.topics:
        action, _, is_action = topic.name.partition("/_action/")
        is_known = action in named or any(c.name.startswith(namespace_of(action)) for c in reading.commands)
        if is_action and not is_known:
            draft.gap(f"action {action} is not used", "a contract commands topics; use a controller with a topic")
    rest = [t for t in reading.topics if t.name not in named and not NO_DATA.search(t.type + t.name)]
    reference = "docs/reference/contract.md"
    if data := [f"{t.name} ({t.type})" for t in rest if t.publishers and t.name not in reading.graph.descriptions]:
        where = f"a field with a `path` reads any message type: {reference}"
        draft.gap(f"published topics that are not observed: {', '.join(data)}", where)
    if subscribed := [f"{t.name} ({t.type})" for t in rest if not t.publishers]:
        where = f"if one is the command, use a controller or a node with a command type of {reference}"
        draft.gap(f"subscribed topics that are not commanded: {', '.join(subscribed)}", where)
