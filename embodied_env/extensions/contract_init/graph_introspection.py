"""Read the topics, parameters and controllers of a ROS graph."""

from __future__ import annotations

import io
import itertools
import math
import operator
import time
from typing import Any

from embodied_env.contract.urdf import MOST_JOINTS
from embodied_env.contract.value_checks import allow
from embodied_env.core.controller_joints import JOINTS, controller_of
from embodied_env.errors import ContractError, MissingDependencyError
from embodied_env.extensions.contract_init.contract_draft import AXES, MAX_AGE_S, Document
from embodied_env.extensions.contract_init.graph_topics import (
    BASE_LIMITS,
    BY_JOINT,
    CLOUD,
    COMPRESSED,
    FEEDBACK,
    FIELDS,
    IMAGE,
    ODOMETRY,
    TIMEOUTS,
    TWISTS,
    Endpoint,
    Graph,
    Topic,
)
from embodied_env.messages.message_types import JOINT_SENSOR, message_class
from embodied_env.messages.sensor_types import SENSOR_MESSAGES
from embodied_env.ros.robot.sensor_publishers import TopicPublishers
from embodied_env.ros.transport.node import RosNode
from embodied_env.ros.transport.qos import ANY, LATCHED
from embodied_env.ros.transport.receiver import ReceivedMessage, read_parameters
from embodied_env.timing.clock import NS_PER_S, SteadyClock

NODE = "embodied_env_contract_init"
STRING = "std_msgs/msg/String"

_RESCAN_S = 0.5
_CALL_S = 1.0  # timeout of each service call
_EARLIEST_NS, _LATEST_NS = NS_PER_S, round(MAX_AGE_S * NS_PER_S)  # a stamp beyond these is not of the host's clock
_CLOCK = "/clock"
_SKIPPED = ("/rosout", "/parameter_events", _CLOCK, "/tf", "/tf_static")
_LIST_CONTROLLERS = "controller_manager_msgs/srv/ListControllers"
_PARAMETERS = (
    *(*JOINTS, "interface_name", "command_interfaces"),
    *TIMEOUTS,
    *(f"{axis}.{name}" for axis in AXES for name in ("min_velocity", *itertools.chain(*BASE_LIMITS.values()))),
)
_MODES = {"RGB": "rgb8", "L": "mono8"}  # mode of Pillow -> encoding


def read_graph(listen_s: float, *, domain_id: int | None = None) -> Graph:
    """Listen for `listen_s` seconds and return the graph, or raise BackendNotReadyError."""
    ros = RosNode(NODE, namespace="/", clock=SteadyClock(), domain_id=domain_id)
    try:
        reader = _GraphReader(ros, listen_s)
        reader.listen()
        return reader.graph()
    finally:
        ros.close()


class _GraphReader:
    def __init__(self, ros: RosNode, listen_s: float) -> None:
        self._ros, self._listen_s = ros, listen_s
        self._topics: dict[str, Topic] = {}
        self._subscribed: set[str] = set()
        self._arrivals_ns: dict[str, list[int]] = {}
        self._descriptions: dict[str, str] = {}
        self._publishers: dict[str, TopicPublishers] = {}  # publishers of joint states
        self._clock_ns: int | None = None  # simulated time

    def listen(self) -> None:
        """Subscribe to every known type as it appears, and keep what is needed of each message."""
        end = time.monotonic() + self._listen_s
        self._ros.receiver.subscribe(_CLOCK, message_class("rosgraph_msgs/msg/Clock"), _CLOCK, ANY)
        rescan = 0.0
        while (now := time.monotonic()) < end:
            if now >= rescan:
                self._scan()
                rescan = now + _RESCAN_S
            for arrival in self._ros.receiver.receive(max(0.0, min(end, rescan) - time.monotonic())):
                self._keep(arrival)

    def graph(self) -> Graph:
        self._scan()
        for topic in self._topics.values():
            self._complete(topic)
        topics = [topic for _, topic in sorted(self._topics.items()) if topic.publishers or topic.subscribers]
        readers = {e.node for t in topics if t.type in (*BY_JOINT, *TWISTS) for e in t.subscribers}
        readers |= {e.node for t in topics if t.name.endswith(FEEDBACK) for e in t.publishers}
        readers |= {controller_of(t.name) for t in topics if t.type in BY_JOINT and t.subscribers} - {""}
        controllers, unread = self._controllers()
        parameters = {node: read_parameters(self._ros.receiver, node, _is_read) for node in sorted(readers)}
        return Graph(
            topics=topics,
            descriptions=self._descriptions,
            parameters={node: found for node, found in parameters.items() if found},
            controllers=controllers,
            managers=unread,
            listened_s=self._listen_s,
        )

    def _complete(self, topic: Topic) -> None:
        """Set the ends and the rate of a topic, and what its publishers of joint states share."""
        name, node = topic.name, self._ros.node
        infos = node.get_publishers_info_by_topic(name), node.get_subscriptions_info_by_topic(name)
        topic.publishers, topic.subscribers = (
            tuple(_endpoint(info) for info in ends if info.node_name != NODE) for ends in infos
        )
        times = self._arrivals_ns.get(name, [])
        span_ns = times[-1] - times[0] if len(times) > 2 else 0
        topic.count, topic.rate_hz = len(times), (len(times) - 1) * NS_PER_S / span_ns if span_ns else None
        if found := self._publishers.get(name):
            topic.sample |= {"state": found.state, "separate": found.separate}

    def _scan(self) -> None:
        node = self._ros.node
        for name, types in node.get_topic_names_and_types():
            if name in _SKIPPED or "/simulator/" in name or name.rpartition("/")[2].startswith("_"):
                continue
            self._topics.setdefault(name, Topic(name=name, type=types[0])).type = types[0]
            is_description = types[0] == STRING and name.endswith("robot_description")
            if name in self._subscribed or not (is_description or types[0] in SENSOR_MESSAGES):
                continue
            publishers = node.get_publishers_info_by_topic(name)
            if publishers and (kind := _class_of(types[0])) is not None:
                latched = all(_endpoint(info).durability == "transient_local" for info in publishers)
                self._ros.receiver.subscribe(name, kind, name, LATCHED if latched else ANY)
                self._subscribed.add(name)

    def _keep(self, arrival: ReceivedMessage) -> None:
        name, message = arrival.key, arrival.message
        if name == _CLOCK:
            self._clock_ns = message.clock.sec * NS_PER_S + message.clock.nanosec
            return
        topic = self._topics[name]
        kind = topic.type
        if kind == STRING:
            self._descriptions[name] = message.data
            return
        if kind == JOINT_SENSOR:
            _check_size(topic, message)
        self._arrivals_ns.setdefault(name, []).append(arrival.arrival_ns)
        if hasattr(message, "header"):
            stamp_ns = message.header.stamp.sec * NS_PER_S + message.header.stamp.nanosec
            age_ns = arrival.arrival_system_ns - stamp_ns
            is_near = -_LATEST_NS < age_ns < _EARLIEST_NS
            topic.age_s = min(age_ns / NS_PER_S, math.inf if topic.stamp == "none" else topic.age_s)
            is_simulated = self._clock_ns is not None and abs(self._clock_ns - stamp_ns) < _EARLIEST_NS
            of_clock = "sound" if is_near else "simulated" if is_simulated else "other_clock"
            topic.stamp = "zero" if stamp_ns == 0 else of_clock
        topic.sample = _sample(kind, message, topic.sample)
        if kind == JOINT_SENSOR:
            self._publishers.setdefault(name, TopicPublishers(is_by_joint=True)).add(arrival)

    def _controllers(self) -> tuple[dict[str, Document], tuple[str, ...]]:
        found: dict[str, Document] = {}
        unread = []
        for service, types in self._ros.receiver.services().items():
            if _LIST_CONTROLLERS not in types:
                continue
            manager = service.removesuffix("/list_controllers")
            try:
                kind = message_class(_LIST_CONTROLLERS)
                reply = self._ros.receiver.call(kind, service, kind.Request(), _CALL_S, lambda: None)
            except (MissingDependencyError, ContractError, TimeoutError):
                unread.append(manager)
                continue
            for each in reply.controller:
                pairs = [name.rsplit("/", 1) for name in each.required_command_interfaces]
                found[f"{manager.rpartition('/')[0]}/{each.name}"] = {
                    "manager": manager,
                    "type": each.type,
                    "is_active": each.state == "active",
                    "joints": list(dict.fromkeys(pair[0] for pair in pairs)),
                    "interfaces": sorted({pair[-1] for pair in pairs}),
                }
        return found, tuple(unread)


def _check_size(topic: Topic, message: Any) -> None:  # noqa: ANN401 - of a message
    """Refuse more joints than a robot has, before any work on their names."""
    count = max(len({*topic.sample.get("names", ()), *message.name}), len(message.name))
    allow(count <= MOST_JOINTS, topic.name, f"{count} joint names", f"at most {MOST_JOINTS}")


def _is_read(parameter: str) -> bool:
    return parameter in _PARAMETERS or parameter.endswith(".joints")


def _endpoint(info: Any) -> Endpoint:  # noqa: ANN401 - of rclpy
    qos = info.qos_profile
    node = f"{info.node_namespace.rstrip('/')}/{info.node_name}"
    return Endpoint(node=node, reliability=qos.reliability.name.lower(), durability=qos.durability.name.lower())


def _class_of(kind: str) -> Any:  # noqa: ANN401 - a generated type
    try:
        return message_class(kind)
    except (MissingDependencyError, ContractError):
        return None


def _sample(kind: str, message: Any, before: Document) -> Document:  # noqa: ANN401, PLR0911 - generated types
    if kind == JOINT_SENSOR:
        names = list(dict.fromkeys([*before.get("names", ()), *message.name]))
        position = {**before.get("position", {}), **_finite(message.name, message.position)}
        velocity = {**before.get("velocity", {}), **_finite(message.name, message.velocity)}
        repeated = [name for name in names if list(message.name).count(name) > 1]
        not_finite = [name for name in names if name not in position]
        messages, key = dict(before.get("messages", {})), tuple(sorted(message.name))
        messages[key] = messages.get(key, 0) + 1
        return {
            "names": names, "position": position, "velocity": velocity, "messages": messages,
            "repeated": repeated, "not_finite": not_finite,
        }  # fmt: skip
    if kind == "std_msgs/msg/Bool":
        return {"data": message.data}
    sample: Document = {"frame": message.header.frame_id} if hasattr(message, "header") else {}
    if kind == "sensor_msgs/msg/LaserScan":
        wanted = ("angle_min", "angle_max", "angle_increment", "range_min", "range_max")
        size = len(message.ranges)
        sizes = {"size": min(size, before.get("size", size)), "largest": max(size, before.get("largest", size))}
        return {**sample, **sizes, **{name: getattr(message, name) for name in wanted}}
    if kind == "sensor_msgs/msg/Range":
        return {**sample, "range_max": message.max_range}
    if kind == IMAGE:
        return {**sample, "height": message.height, "width": message.width, "encoding": message.encoding}
    if kind == CLOUD:
        axes = {part.name for part in message.fields if part.datatype == part.FLOAT32}
        return {**sample, "cloud": {"x", "y", "z"} <= axes and not message.is_bigendian}
    if kind == COMPRESSED:
        return before or _compressed(message.data)
    if kind == ODOMETRY:
        sample["child_frame"] = message.child_frame_id
    vectors = FIELDS.get(kind, {})
    return {**sample, "left_out": [name for name, each in vectors.items() if not _is_filled(message, each.place)]}


def _compressed(data: Any) -> Document:  # noqa: ANN401 - of a message
    """Return size and encoding of a JPEG or PNG, or {} for other data or without Pillow."""
    try:
        from PIL import Image

        with Image.open(io.BytesIO(data), formats=["JPEG", "PNG"]) as image:
            return {"width": image.width, "height": image.height, "encoding": _MODES.get(image.mode)}
    except Exception:  # noqa: BLE001 - decoders raise many types for damaged data
        return {}


def _is_filled(message: Any, path: str) -> bool:  # noqa: ANN401 - a generated type
    """Return whether a vector is finite or a quaternion valid, since drivers leave gaps."""
    value = operator.attrgetter(path)(message)
    parts = [getattr(value, axis) for axis in ("x", "y", "z", "w") if hasattr(value, axis)]
    is_unknown = getattr(message, f"{path}_covariance", (0.0,))[0] == -1.0  # an Imu marks unknown values so
    return (
        all(map(math.isfinite, parts)) and (len(parts) == 3 or abs(math.hypot(*parts) - 1.0) < 0.1) and not is_unknown
    )


def _finite(names: Any, values: Any) -> dict[str, float]:  # noqa: ANN401 - of a message
    """Return the finite values by joint, or none if names and values differ in number."""
    if len(names) != len(values):
        return {}
    return {name: float(value) for name, value in zip(names, values, strict=True) if math.isfinite(value)}
