"""Find the joints that a robot's nodes declare in their parameters for a command topic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

JOINTS = ("joints", "joint_names", "joint")  # parameters of a controller with the joints that it commands


def controller_of(topic: str) -> str:
    """Return the node of a private topic, as /arm_controller of /arm_controller/commands."""
    return topic.rpartition("/")[0]


def declared_joints(
    topic: str, parameters: Mapping[str, Mapping[str, Any]], subscribers: Iterable[str], *, is_only: bool
) -> tuple[list[str], str]:
    """Return the joints of a command topic by node parameters, and the declaring node.

    That is the controller named by the topic, or a subscriber: one with a parameter ``CONTROLLER.joints``, or with
    ``joints`` of its own if this is its only command topic (`is_only`). Without one, nothing is declared.
    """
    controller = controller_of(topic)
    keys = [(controller, key) for key in JOINTS]
    for node in subscribers:
        keys += [(node, f"{controller.rpartition('/')[2]}.joints"), *((node, key) for key in JOINTS if is_only)]
    for node, key in keys:
        if value := parameters.get(node, {}).get(key):
            return [value] if isinstance(value, str) else [str(each) for each in value], node
    return [], ""
