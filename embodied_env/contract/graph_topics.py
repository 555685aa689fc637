"""A robot's ROS graph as plain values, and the contract keys that follow from one topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from embodied_env.contract.draft import Document
from embodied_env.contract.message_types import ENCODINGS, JOINT_SENSOR

BOOL, TRAJECTORY, FLOAT = "std_msgs/msg/Bool", "trajectory_msgs/msg/JointTrajectory", "std_msgs/msg/Float64"
BY_JOINT = ("std_msgs/msg/Float64MultiArray", TRAJECTORY, FLOAT, JOINT_SENSOR)
TWISTS = ("geometry_msgs/msg/Twist", "geometry_msgs/msg/TwistStamped")

FIELDS: Mapping[str, Mapping[str, tuple[str, float]]] = {  # type -> field -> unit and bound
    "nav_msgs/msg/Odometry": {
        "position": ("m", 1000.0), "orientation": ("1", 1.01), "linear": ("m/s", 10.0), "angular": ("rad/s", 20.0)
    },
    "sensor_msgs/msg/Imu": {
        "orientation": ("1", 1.01), "angular_velocity": ("rad/s", 50.0), "linear_acceleration": ("m/s^2", 200.0)
    },
    "geometry_msgs/msg/PoseStamped": {"position": ("m", 100.0), "orientation": ("1", 1.01)},
    "geometry_msgs/msg/PoseWithCovarianceStamped": {"position": ("m", 100.0), "orientation": ("1", 1.01)},
    "geometry_msgs/msg/PointStamped": {"position": ("m", 100.0)},
    "geometry_msgs/msg/WrenchStamped": {"force": ("N", 1000.0), "torque": ("N*m", 200.0)},
}  # fmt: skip


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
    def namespace(self) -> str:
        """The name without its last part, with a slash at the end."""
        return self.name.rpartition("/")[0] + "/"

    @property
    def is_latched(self) -> bool:
        """Whether late subscribers get the last message."""
        return bool(self.publishers) and all(each.durability == "transient_local" for each in self.publishers)


@dataclass(kw_only=True)
class Graph:
    """A ROS graph: topics, `robot_description` by topic, parameters by node, active controllers by name."""

    topics: list[Topic]
    descriptions: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, Document] = field(default_factory=dict)
    controllers: dict[str, Document] = field(default_factory=dict)  # name -> manager, is_active, joints, interfaces
    managers: tuple[str, ...] = ()  # controller managers that were not read
    listened_s: float = 0.0


def command_qos(topic: Topic) -> Document:
    """Return the QoS of a publisher that every subscription accepts."""
    is_latched = any(each.durability == "transient_local" for each in topic.subscribers)
    return {"qos": "latched"} if is_latched else {}


def sensor_fields(topic: Topic) -> tuple[Document, Document]:  # noqa: PLR0911 - one for each type
    """Return the fields of a sensor and further keys; no fields, and the reason, for an unusable one."""
    sample = topic.sample
    if not topic.count:
        return {}, {}
    if topic.type in FIELDS:
        left_out = sample.get("left_out", ())
        known = {k: v for k, v in FIELDS[topic.type].items() if k not in left_out}
        fields = {key: {"unit": unit, "low": -bound, "high": bound} for key, (unit, bound) in known.items()}
        return fields, {key: sample[key] for key in ("frame", "child_frame") if sample.get(key)}
    if topic.type == "sensor_msgs/msg/LaserScan":
        far = min(max(round(sample["range_max"], 3), 0.1), 1000.0)
        ranges = {"shape": [sample["size"]], "unit": "m", "low": 0.0, "high": far, "no_return": far, "nan": far}
        return ({"ranges": ranges} if sample["size"] else {}), {"frame": sample["frame"]} if sample["frame"] else {}
    if topic.type == "sensor_msgs/msg/Range":
        far = min(max(round(sample["range_max"], 3), 0.1), 1000.0)
        return {"range": {"unit": "m", "low": 0.0, "high": far, "no_return": far}}, {}
    if topic.type == "sensor_msgs/msg/Image":
        if sample["encoding"] not in ENCODINGS:
            return {}, {"why": f"encoding {sample['encoding']} (expected one of: {', '.join(ENCODINGS)})"}
        encoding = ENCODINGS[sample["encoding"]]
        is_depth = encoding.metres_per_unit is not None
        image = {"shape": [sample["height"], sample["width"], encoding.channels], "unit": "m" if is_depth else "1"}
        nan = {"nan": 0.0, "no_return": 20.0} if is_depth else {}
        return {"image": {**image, "low": 0.0, "high": 20.0 if is_depth else 255.0, **nan}}, {
            "encoding": sample["encoding"]
        }
    return {}, {}
