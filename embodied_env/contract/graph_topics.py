"""A robot's ROS graph as plain values, and the contract keys that follow from one topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from embodied_env.contract.draft import Document
from embodied_env.contract.message_types import ENCODINGS, JOINT_SENSOR

BOOL, TRAJECTORY, FLOAT = "std_msgs/msg/Bool", "trajectory_msgs/msg/JointTrajectory", "std_msgs/msg/Float64"
ODOMETRY, IMAGE, COMPRESSED = "nav_msgs/msg/Odometry", "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
BY_JOINT = ("std_msgs/msg/Float64MultiArray", TRAJECTORY, FLOAT, JOINT_SENSOR)
TWISTS = ("geometry_msgs/msg/Twist", "geometry_msgs/msg/TwistStamped")

_POSE = {"position": ("pose.pose.position", "m", 100.0), "orientation": ("pose.pose.orientation", "1", 1.01)}
FIELDS: Mapping[str, Mapping[str, tuple[str, str, float]]] = {  # type -> field -> place in the message, unit, bound
    ODOMETRY: {
        **_POSE,
        "position": ("pose.pose.position", "m", 1000.0),
        "linear": ("twist.twist.linear", "m/s", 10.0),
        "angular": ("twist.twist.angular", "rad/s", 20.0),
    },
    "sensor_msgs/msg/Imu": {
        "orientation": ("orientation", "1", 1.01),
        "angular_velocity": ("angular_velocity", "rad/s", 50.0),
        "linear_acceleration": ("linear_acceleration", "m/s^2", 200.0),
    },
    "geometry_msgs/msg/PoseStamped": {
        "position": ("pose.position", "m", 100.0),
        "orientation": ("pose.orientation", "1", 1.01),
    },
    "geometry_msgs/msg/PoseWithCovarianceStamped": _POSE,
    "geometry_msgs/msg/PointStamped": {"position": ("point", "m", 100.0)},
    "geometry_msgs/msg/WrenchStamped": {
        "force": ("wrench.force", "N", 1000.0),
        "torque": ("wrench.torque", "N*m", 200.0),
    },
}
"""Vectors and quaternions of sensors."""


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
    sample: Document = field(default_factory=dict)  # of the last message, by type

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


def nodes_of(endpoints: tuple[Endpoint, ...]) -> str:
    """Return the names of the nodes, each once."""
    return ", ".join(sorted({each.node for each in endpoints}))


def command_qos(topic: Topic) -> Document:
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
        far = min(max(round(sample["range_max"], 3), 0.1), 1000.0)
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
