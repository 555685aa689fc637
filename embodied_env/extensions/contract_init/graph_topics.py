"""Represent a ROS graph as values, and select the topics of one robot and of its joints."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from embodied_env.errors import ContractError
from embodied_env.extensions.contract_init.contract_draft import Document, Draft, Joint, check_joint
from embodied_env.extensions.contract_init.driver_answers import to_si
from embodied_env.messages.commands import COMMAND_MESSAGES
from embodied_env.messages.declaration import AXES, MessageField
from embodied_env.messages.images import ENCODINGS
from embodied_env.messages.message_types import JOINT_SENSOR, TRAJECTORY
from embodied_env.messages.sensor_types import SENSOR_MESSAGES

BOOL, ODOMETRY = "std_msgs/msg/Bool", "nav_msgs/msg/Odometry"
IMAGE, COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
CLOUD = "sensor_msgs/msg/PointCloud2"
BY_JOINT = [name for name, message in COMMAND_MESSAGES.items() if not message.axes]
TWISTS = [name for name, message in COMMAND_MESSAGES.items() if message.axes]  # the preferred first
FIELDS: Mapping[str, Mapping[str, MessageField]] = {  # vectors and quaternions of sensors
    name: {key: field for key, field in message.fields.items() if field.column in AXES}
    for name, message in SENSOR_MESSAGES.items()
    if name not in COMMAND_MESSAGES
}
TIMEOUTS = ("cmd_vel_timeout", "reference_timeout", "command_timeout", "cmd_timeout")  # without a command
BASE_LIMITS: Mapping[str, tuple[str, ...]] = {  # parameters of a controller, of which the smallest applies
    "velocity": ("max_velocity",),
    "acceleration": ("max_acceleration", "max_acceleration_reverse"),
    "deceleration": ("max_deceleration", "max_deceleration_reverse", "min_acceleration"),
}
NO_DATA = re.compile(r"^(diagnostic_msgs|lifecycle_msgs|rcl_interfaces|tf2_msgs|bond|visualization_msgs)/|/_action/")
"""Types and topics that no contract observes."""

FEEDBACK = "/_action/feedback"  # end of the topic from which the type and the server of an action are read
COMMAND = re.compile(r"cmd|command|desired|target|goal|setpoint|reference")
_BASE = "a mobile base"

_FARTHEST_M = 100.0  # of a point in a drafted cloud
POINTS: Document = {"count": 1024, "pad": _FARTHEST_M, "method": "voxel", "voxel_m": 0.1}  # of a drafted cloud


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
    stamp: str = "none"  # state of the header's stamp: none, zero, sound, simulated, other_clock
    age_s: float = 0.0  # the smallest, by sound stamps
    sample: Document = field(default_factory=dict)  # content of the last message, by type

    @property
    def is_command(self) -> bool:
        """Whether a robot takes commands on it, by its type, name and subscriptions."""
        is_named = bool(COMMAND.search(self.name.rpartition("/")[2] if self.type == JOINT_SENSOR else self.name))
        if not self.subscribers or self.type not in COMMAND_MESSAGES:
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
    """A ROS graph with descriptions by topic, and parameters and controllers by node."""

    topics: list[Topic]
    descriptions: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, Document] = field(default_factory=dict)
    controllers: dict[str, Document] = field(default_factory=dict)  # manager, is_active, joints, interfaces
    managers: tuple[str, ...] = ()  # controller managers that were not read
    listened_s: float = 0.0


def topics_of_robot(draft: Draft, graph: Graph, namespace: str | None = None) -> list[Topic]:
    """Return the topics of the robot in `namespace`, without those of a second robot.

    The second one has the same joint names. A `namespace` of None is the root of a graph with one robot. Raises
    ContractError for a graph without a robot, or with several.
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
    """Return the keys of a sensor by its type and last message, or {} if unusable."""
    sample = topic.sample
    if not topic.count:
        return {}
    keys = {key: sample[key] for key in ("frame", "child_frame") if sample.get(key)}
    if vectors := FIELDS.get(topic.type):
        known = {name: each for name, each in vectors.items() if name not in sample["left_out"]}
        fields: Document = {
            name: {"unit": each.units[0] if each.units else "1", "low": -each.bound, "high": each.bound}
            for name, each in known.items()
        }
    elif "range_max" in sample and sample.get("size") != 0:  # a LaserScan or a Range
        far = round(sample["range_max"], 3) if 0.1 <= sample["range_max"] <= 1000.0 else 1000.0
        span = {"unit": "m", "low": 0.0, "high": far, "no_return": far}
        is_scan = "size" in sample
        fields = {"ranges": _rays(sample, {**span, "nan": far})} if is_scan else {"range": span}
        keys = keys if is_scan else {}
    elif sample.get("cloud"):
        fields = {"points": {"unit": "m", "low": -_FARTHEST_M, "high": _FARTHEST_M, "points": POINTS}}
    elif sample.get("encoding") in ENCODINGS:
        encoding = ENCODINGS[sample["encoding"]]
        is_depth = encoding.metres_per_unit is not None
        unit = {"unit": "m", "nan": 0.0, "no_return": 20.0} if is_depth else {"unit": "1"}
        shape = [sample["height"], sample["width"], encoding.channels]
        most = 20.0 if is_depth else 65535.0 if encoding.dtype == "uint16" else 255.0
        fields = {"image": {"shape": shape, **unit, "low": 0.0, "high": most}}
        keys = {"encoding": sample["encoding"]}
    else:
        return {}
    return {**keys, "fields": fields} if fields else {}


def last_angle_rad(sample: Document) -> float:
    """Return the last angle of a LaserScan, by its increment if that ends below `angle_max`."""
    first: float = sample.get("angle_min", math.nan)
    last: float = sample.get("angle_max", math.nan)
    increment: float = sample.get("angle_increment", 0.0)
    size: int = sample.get("size", 0)
    # Many drivers count one ray too many or too few.
    is_short = increment > 0.0 and first + increment * (sample.get("largest", size) + 1) < last
    return first + increment * (size - 1) if is_short else last


def _rays(sample: Document, span: Document) -> Document:
    """Return the ranges of a LaserScan, resampled to fixed angles if the number of rays varies."""
    most = sample.get("largest", sample["size"])
    if most == sample["size"]:
        return {"shape": [most], **span}
    first, last = round(sample["angle_min"], 6), round(last_angle_rad(sample), 6)
    is_range = 0.0 < last - first <= math.tau and abs(first) < 2 * math.tau
    angles = {"min_rad": first, "max_rad": last, "count": sample["size"]} if is_range else sample["size"]
    return {"shape": [most], **span, "resample": {"angles": angles}}


class GraphReading:
    """One reading of a graph into a draft."""

    def __init__(self, draft: Draft, graph: Graph, topics: list[Topic], root: str) -> None:
        """Read `topics`, those of one robot below `root`."""
        self.draft, self.graph, self.topics, self.root = draft, graph, topics, root
        self.commands = [topic for topic in topics if topic.is_command]
        self.claimed: dict[str, str] = {}  # joint -> the topic that commands it
        self.reporters: dict[str, Topic] = {}  # joint -> its joint state topic
        self.apart = set[str]()  # joints that are not in the largest messages of their topic
        self._twins = self._find_twins()
        self._find_reporters()

    def _find_twins(self) -> set[str]:
        """Return the namespaces that share a topic of commands or joint states."""
        spaces: dict[str, set[str]] = {}
        for topic in self.topics:
            space, _, rest = self.local(topic).partition("/")
            if topic.is_joint_state or (topic.is_command and "/" in rest):  # not the topic of a controller alone
                spaces.setdefault(rest, set()).add(space)
        return {space for rest, found in spaces.items() if rest and len(found) > 1 for space in found}

    def _find_reporters(self) -> None:
        """Choose the topic of each joint, by name, measurement and then rate."""
        states = [topic for topic in self.topics if topic.is_joint_state]

        def order(topic: Topic) -> tuple[bool, bool, int, str]:
            is_usual, is_desired = topic.name.endswith("/joint_states"), bool(COMMAND.search(topic.name))
            return not is_usual, is_desired, -round(topic.rate_hz or 0.0), topic.name

        for topic in sorted(states, key=order):
            for joint, position in topic.sample["position"].items():
                known = self.draft.joints.setdefault(joint, Joint())
                if self.reporters.setdefault(joint, topic) is topic:
                    known.measured = to_si(self.draft.answers.reading_units(joint), position)
                    check_joint(joint, known)
        for topic in states:
            if messages := topic.sample.get("messages"):
                largest = max(messages, key=len)
                self.apart |= {j for j in topic.sample["names"] if j not in largest and self.reporters.get(j) is topic}
                if topic.rate_hz:
                    topic.rate_hz *= messages[largest] / sum(messages.values())
            for problem, where in (("repeated", "named twice in"), ("not_finite", "without a finite position in")):
                if joints := [j for j in topic.sample.get(problem, ()) if self.reporters.get(j, topic) is topic]:
                    what = f"{', '.join(joints)} {where} {topic.name}: its messages are not valid"
                    self.draft.gap(what, f"ros2 topic echo {topic.name}; correct the driver")

    def controller(self, topic: Topic) -> tuple[str, Document] | None:
        """Return the controller that subscribes to `topic`, by the name of its node."""
        nodes = {each.node for each in topic.subscribers}
        found = self.graph.controllers.items()
        return next(((n, c) for n, c in found if n in nodes or topic.name.startswith(f"{n}/")), None)

    def local(self, topic: Topic) -> str:
        """Return the name of a topic below the root."""
        return topic.name.removeprefix(f"{self.root}/")

    def side_of(self, topic: Topic) -> str:
        """Return left or right for a topic that is also there on the other side, else nothing."""
        names = {each.name.removesuffix(FEEDBACK) for each in self.topics}
        for side, other in (("left", "right"), ("right", "left")):
            mirrored = re.sub(rf"(?<![a-z]){side}(?![a-z])", other, topic.name)
            if mirrored != topic.name and mirrored in names:
                return side
        return ""

    def unique(self, name: str, topic: Topic, taken: Mapping[str, Any]) -> str:
        """Return `name` as an identifier that is not taken, with side or namespace where needed."""
        name, side = identifier(name), self.side_of(topic)
        space = self.local(topic).split("/")[0]
        if side and side not in name.split("_"):
            name = f"{side}_{name}"
        elif not side and space in self._twins:
            name = identifier(f"{space}_{name}")
        if name in taken:
            name = f"{space.removesuffix('_controller')}_{name}"
        return unique_name(name, taken)


def namespace_of(topic: str) -> str:
    """Return the namespace of a topic, with the slash at its end."""
    return topic.rpartition("/")[0] + "/"


def identifier(text: str) -> str:
    """Return a text as the name of a sensor or actuator."""
    text = re.sub(r"[^a-z0-9_]", "_", text.lower()).strip("_")
    return text if text[:1].isalpha() else f"s_{text}"


def unique_name(name: str, taken: Mapping[str, Any]) -> str:
    """Return the name of a sensor or actuator, with a number if it is taken."""
    name, number = identifier(name), 2
    while name in taken:
        name, number = f"{name.rstrip('0123456789').rstrip('_')}_{number}", number + 1
    return name
