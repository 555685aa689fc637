"""A ROS graph as plain values: which topics are one robot's, and the contract keys that follow from one topic."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from embodied_env.errors import ContractError
from embodied_env.extensions.contract_init.contract_draft import Document, Draft
from embodied_env.messages.message_types import ENCODINGS, JOINT_SENSOR, SENSOR_MESSAGES

BOOL, TRAJECTORY, FLOAT = "std_msgs/msg/Bool", "trajectory_msgs/msg/JointTrajectory", "std_msgs/msg/Float64"
ODOMETRY, IMAGE, COMPRESSED = "nav_msgs/msg/Odometry", "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
BY_JOINT = ("std_msgs/msg/Float64MultiArray", TRAJECTORY, FLOAT, JOINT_SENSOR)
TWISTS = ("geometry_msgs/msg/Twist", "geometry_msgs/msg/TwistStamped")

_POSE = {"position": ("pose.pose.position", "m", math.inf), "orientation": ("pose.pose.orientation", "1", 1.01)}
FIELDS: Mapping[str, Mapping[str, tuple[str, str, float]]] = {  # type -> field -> place in the message, unit, bound
    ODOMETRY: {
        **_POSE,
        "linear": ("twist.twist.linear", "m/s", math.inf),
        "angular": ("twist.twist.angular", "rad/s", math.inf),
    },
    "sensor_msgs/msg/Imu": {
        "orientation": ("orientation", "1", 1.01),
        "angular_velocity": ("angular_velocity", "rad/s", 50.0),
        "linear_acceleration": ("linear_acceleration", "m/s^2", 200.0),
    },
    "geometry_msgs/msg/PoseStamped": {
        "position": ("pose.position", "m", math.inf),
        "orientation": ("pose.orientation", "1", 1.01),
    },
    "geometry_msgs/msg/PoseWithCovarianceStamped": _POSE,
    "geometry_msgs/msg/PointStamped": {"position": ("point", "m", math.inf)},
    "geometry_msgs/msg/WrenchStamped": {
        "force": ("wrench.force", "N", 1000.0),
        "torque": ("wrench.torque", "N*m", 200.0),
    },
}
"""Vectors and quaternions of sensors."""

TIMEOUTS = ("cmd_vel_timeout", "reference_timeout", "command_timeout", "cmd_timeout")
"""Parameters of a controller: the time after which it stops without a command."""

COMMAND = re.compile(r"cmd|command|desired|target|goal|setpoint|reference")
_BASE = "a mobile base"


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A publisher or a subscription."""

    node: str
    reliability: str = "reliable"
    durability: str = "volatile"


@dataclass(kw_only=True, eq=False)
class Topic:
    """A topic, and what was received on it."""

    name: str
    type: str
    publishers: tuple[Endpoint, ...] = ()
    subscribers: tuple[Endpoint, ...] = ()
    count: int = 0
    rate_hz: float | None = None
    stamp: str = "none"  # of the header: none, zero, other_clock, sound
    age_s: float = 0.0  # the smallest, by sound stamps
    sample: Document = field(default_factory=dict)  # of the last message, by type

    @property
    def is_command(self) -> bool:
        """Whether a robot takes commands on it, by its type, name and subscriptions."""
        is_named = bool(COMMAND.search(self.name.rpartition("/")[2] if self.type == JOINT_SENSOR else self.name))
        if not self.subscribers or self.type not in (*BY_JOINT, *TWISTS):
            return False
        return is_named or self.type == TRAJECTORY or not (self.publishers or self.type == JOINT_SENSOR)

    @property
    def is_joint_state(self) -> bool:
        """Whether joint states were received on it."""
        return self.type == JOINT_SENSOR and bool(self.sample.get("names")) and not self.is_command

    @property
    def is_latched(self) -> bool:
        """Whether late subscribers get the last message."""
        return bool(self.publishers) and all(each.durability == "transient_local" for each in self.publishers)


@dataclass(kw_only=True)
class Graph:
    """A ROS graph: topics, `robot_description` by topic, parameters by node, controllers by the name of their node."""

    topics: list[Topic]
    descriptions: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, Document] = field(default_factory=dict)
    controllers: dict[str, Document] = field(default_factory=dict)  # manager, is_active, joints, interfaces
    managers: tuple[str, ...] = ()  # controller managers that were not read
    listened_s: float = 0.0


def topics_of_robot(draft: Draft, graph: Graph, namespace: str | None = None) -> list[Topic]:
    """Return the topics of the robot in `namespace`, without those of a second robot with the same joint names.

    None is the root of a graph with one robot. Raises ContractError for a graph without a robot, or with several.
    """
    root = (namespace or "/").rstrip("/") + "/"
    topics = [topic for topic in graph.topics if topic.name.startswith(root)]
    if not any(topic.is_command or (topic.publishers and topic.type in SENSOR_MESSAGES) for topic in topics):
        expected = "expected publishers of sensors or subscribers of commands"
        remedy = "start the driver; check ROS_DOMAIN_ID, ROS_AUTOMATIC_DISCOVERY_RANGE and --namespace"
        raise ContractError("", f"no robot in {root} within {graph.listened_s:g} s ({expected}); {remedy}")
    robots, kept = _robots(topics), set[str]()
    if namespace is None and len(robots) > 1:
        each = "; ".join(f"{name} ({', '.join(sorted(joints)) or 'no joints'})" for name, joints in robots.items())
        remedy = f"choose one with --namespace {max(robots)}, or combine different joints with --namespace /"
        raise ContractError("", f"several robots: {each} (expected one); {remedy}")
    for name, joints in robots.items():
        if kept & joints:
            what = f"a second robot, {name}, with the same joints, left out"
            draft.gap(what, f"contract init --from-graph --namespace {name}")
            topics = [topic for topic in topics if not topic.name.startswith(f"{name}/")]
        kept |= joints
    return topics


def _robots(topics: list[Topic]) -> dict[str, set[str]]:
    """Return the joints of each robot by its namespace.

    Each namespace with states and commands is a robot, unless its joints are different and there are commands
    outside: a gripper or a base; or unless joint states outside report the joints of all.
    """
    commands = [topic for topic in topics if topic.is_command]
    states = [topic for topic in topics if topic.is_joint_state or topic.type == ODOMETRY]
    root = os.path.commonpath([topic.name.rpartition("/")[0] or "/" for topic in (*commands, *states)] or ["/"])
    size = root.rstrip("/").count("/") + 2
    spaces = {"/".join(topic.name.split("/")[:size]) for topic in commands if topic.name.count("/") >= size}
    parts: dict[str, set[str]] = {}
    whole = set[str]()
    for topic in states:
        space = next((each for each in sorted(spaces) if topic.name.startswith(f"{each}/")), None)
        joints = whole if space is None else parts.setdefault(space, set())
        joints.update(topic.sample.get("names", ()))
        if space and topic.type == ODOMETRY and any(c.type in TWISTS and c.name.startswith(space) for c in commands):
            joints.add(_BASE)
    everything = set[str]().union(*parts.values())
    is_distinct = sum(map(len, parts.values())) == len(everything)
    if any(not topic.name.startswith(tuple(f"{name}/" for name in parts)) for topic in commands):
        second = {name: joints for name, joints in parts.items() if joints & whole and not joints < whole}
        return {root: whole} | (second if is_distinct else parts)
    if len(parts) < 2 or (is_distinct and everything <= whole | {_BASE}):
        return {root: whole | everything}
    return parts


def nodes_of(endpoints: tuple[Endpoint, ...]) -> str:
    """Return the names of the nodes, each once."""
    return ", ".join(sorted({each.node for each in endpoints}))


def draft_command_qos(topic: Topic) -> Document:
    """Return the QoS of a publisher that every subscription accepts."""
    is_latched = any(each.durability == "transient_local" for each in topic.subscribers)
    return {"qos": "latched"} if is_latched else {}


def sensor_keys(topic: Topic) -> Document:
    """Return the keys of a sensor that its type and last message give; empty for an unusable one."""
    sample = topic.sample
    if not topic.count:
        return {}
    keys = {key: sample[key] for key in ("frame", "child_frame") if sample.get(key)}
    if topic.type in FIELDS:
        known = {name: each for name, each in FIELDS[topic.type].items() if name not in sample["left_out"]}
        fields: Document = {name: {"unit": unit, "low": -end, "high": end} for name, (_, unit, end) in known.items()}
    elif "range_max" in sample and sample.get("size") != 0:  # a LaserScan or a Range
        far = round(sample["range_max"], 3) if 0.1 <= sample["range_max"] <= 1000.0 else 1000.0
        span = {"unit": "m", "low": 0.0, "high": far, "no_return": far}
        is_scan = "size" in sample
        fields = {"ranges": {"shape": [sample["size"]], **span, "nan": far}} if is_scan else {"range": span}
        keys = keys if is_scan else {}
    elif sample.get("encoding") in ENCODINGS:
        encoding = ENCODINGS[sample["encoding"]]
        is_depth = encoding.metres_per_unit is not None
        unit = {"unit": "m", "nan": 0.0, "no_return": 20.0} if is_depth else {"unit": "1"}
        shape = [sample["height"], sample["width"], encoding.channels]
        fields = {"image": {"shape": shape, **unit, "low": 0.0, "high": 20.0 if is_depth else 255.0}}
        keys = {"encoding": sample["encoding"]}
    else:
        return {}
    return {**keys, "fields": fields} if fields else {}
