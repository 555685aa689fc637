"""Read sensors, actuators and safety inputs from a ROS graph, given as plain values."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

import numpy as np

from embodied_env.contract.required_sensors import PLACEHOLDER_AGE_S
from embodied_env.core.safety_input_state import INPUT_OK, InputStatus
from embodied_env.errors import ContractError
from embodied_env.extensions.contract_init.contract_draft import MAX_AGE_S, Document, Draft, add_urdf, joint_fields
from embodied_env.extensions.contract_init.graph_commands import add_commands
from embodied_env.extensions.contract_init.graph_topics import (
    BOOL,
    BY_JOINT,
    COMPRESSED,
    IMAGE,
    NO_DATA,
    POINTS,
    Graph,
    GraphReading,
    Topic,
    last_angle_rad,
    namespace_of,
    nodes_of,
    sensor_keys,
)
from embodied_env.messages.images import ENCODINGS
from embodied_env.messages.sensor_types import SENSOR_MESSAGES
from embodied_env.ros.transport.fastdds import LARGE_BYTES

_ESTOP = re.compile(r"e_?stop|emergency|protective|safety|fault", re.IGNORECASE)
_ACTIVE = re.compile(r"program_running|motors?_(on|enabled)|(is_)?(active|enabled|armed)$", re.IGNORECASE)
_GENERIC = ("data", "raw", "data_raw", "filtered", "image_raw", "image", "pose", "wrench", "state", "states", "points")


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


def add_sensors(reading: GraphReading) -> None:
    """Add the joint states of the commanded joints, the other sensors, and the safety inputs."""
    _add_joint_sensors(reading)
    for topic in reading.topics:
        if topic.publishers:
            _add_sensor(reading, topic)
            _add_safety_input(reading, topic)
    if any(topic.stamp == "simulated" for topic in reading.topics):
        reading.draft.real["use_sim_time"] = True
        reading.draft.comment("backends.real", "The stamps of the sensors are simulated time, of /clock.")
    if not any(" safety input" in what or " permits motion" in what for what, _ in reading.draft.gaps):
        reading.draft.gap("e-stop: no topic looks like one", "the driver's documentation; set backends.real.estop")


def _add_joint_sensors(reading: GraphReading) -> None:
    draft = reading.draft
    for topic in dict.fromkeys(reading.reporters.values()):
        joints = [joint for joint in reading.claimed if reading.reporters.get(joint) is topic]
        if unused := [j for j, each in reading.reporters.items() if each is topic and j not in reading.claimed]:
            where = "add them to the fields of the joint states if the policy needs them"
            draft.gap(f"joints of {topic.name} without a command, not observed: {', '.join(unused)}", where)
        if not joints:
            continue
        name = reading.unique("joints", topic, draft.sensors)
        fields = joint_fields(draft, joints, has_velocity=set(joints) <= set(topic.sample["velocity"]))
        draft.sensors[name] = {**_sensor(reading, topic, name), "fields": fields}
        if "velocity" not in fields:
            where = "the driver; without them, use a history of the positions if the policy needs velocities"
            draft.gap(f"velocities of the joints of {topic.name}: not published as numbers, left out", where)
        if topic.rate_hz:
            draft.slowest_hz = min(draft.slowest_hz or topic.rate_hz, topic.rate_hz)
        _check_publishers(reading, topic, name)
        for joint in joints:
            _check_start(reading, joint)


def _check_publishers(reading: GraphReading, topic: Topic, name: str) -> None:
    """Let publishers share a topic if they report different joints, or raise if they conflict."""
    state, nodes = topic.sample.get("state", INPUT_OK), nodes_of(topic.publishers)
    if state.status is InputStatus.CONTENTION:
        problem = f"conflicting publishers of {topic.name}: {nodes} (expected each joint from one); {state}"
        raise ContractError("", f"{problem}; stop all but one, then contract init again")
    if 1 < len(topic.publishers) <= topic.sample.get("separate", 1):
        reading.draft.real["shared"] = [*reading.draft.real.get("shared", []), name]
    elif len(topic.publishers) > 1:
        what = f"which joints each publisher of {topic.name} reports ({nodes}): not by its messages"
        reading.draft.gap(what, "stop all but one, or contract init again with a longer --listen")


def _check_start(reading: GraphReading, joint: str) -> None:
    """Let the robot start from the end of a joint's range, if it rests there."""
    known = reading.draft.joints[joint]
    if known.position is None or known.measured is None:
        return
    low, high = known.position
    inset = min(0.02, 0.05 * (high - low))
    if low - 1e-3 <= known.measured <= high + 1e-3 and not low + inset <= known.measured <= high - inset:
        reading.draft.real.setdefault("start_outside", {})[joint] = "inward"
        reading.draft.comment("backends.real.start_outside", f"{joint} rests at the end of its range.")


def _sensor(reading: GraphReading, topic: Topic, name: str) -> Document:
    rate_hz = topic.rate_hz
    qos = ", ".join(sorted({f"{each.reliability} {each.durability}" for each in topic.publishers}))
    rate = f"{rate_hz:.3g} Hz" if rate_hz else f"{topic.count} message(s) in {reading.graph.listened_s:g} s"
    reading.draft.comment(f"sensors.{name}", f"{rate}, {qos.replace('_', ' ')}, from {nodes_of(topic.publishers)}.")
    spec: Document = {"topic": reading.local(topic), "type": topic.type}
    has_header = SENSOR_MESSAGES[topic.type].header
    if not has_header or topic.stamp in ("zero", "other_clock"):
        spec["timeline"] = "receive"
        if has_header:
            what = "zero stamps" if topic.stamp == "zero" else "stamps of another clock"
            reading.draft.gap(f"age of {topic.name}: {what}", "the driver; until then ages count from the reception")
    if topic.is_latched:
        spec["qos"] = "latched"
    elif not rate_hz:
        path, few = f"sensors.{name}.max_age_s", f"{topic.count} message(s) in {reading.graph.listened_s:g} s"
        reading.draft.choose(path, f"{PLACEHOLDER_AGE_S:g} for lack of a rate; {few}")
        where = f"--listen S, or set {path} to three periods; large messages may be lost: docs/howto/large_messages.md"
        reading.draft.gap(f"rate of {topic.name}: {few} (max_age_s {PLACEHOLDER_AGE_S:g} written)", where)
    age_s = topic.age_s if topic.stamp == "sound" else 0.0
    spec["max_age_s"] = max(MAX_AGE_S, round(3.0 / rate_hz + age_s, 2)) if rate_hz else PLACEHOLDER_AGE_S
    return spec


def _add_sensor(reading: GraphReading, topic: Topic) -> None:
    """Add a sensor of another type, if messages arrived and its type is known."""
    if topic.type not in SENSOR_MESSAGES or topic in reading.commands:
        return
    if not topic.count and SENSOR_MESSAGES[topic.type].header:
        where = f"ros2 topic echo {topic.name}; longer with --listen S"
        reading.draft.gap(f"{topic.name} ({topic.type}): no message in {reading.graph.listened_s:g} s, left out", where)
    has_raw = topic.type == COMPRESSED and any(t.count and topic.name.startswith(f"{t.name}/") for t in reading.topics)
    keys = {} if has_raw else sensor_keys(topic)
    if not keys:
        return
    if len(topic.publishers) > 1:
        what = f"{topic.name} has several publishers ({nodes_of(topic.publishers)}), left out"
        reading.draft.gap(what, "stop all but one")
        return
    parts = [part for part in topic.name.split("/") if part and part not in _GENERIC] or ["sensor"]
    name = reading.unique(re.sub(r"_broadcaster$", "", parts[-1]), topic, reading.draft.sensors)
    _note_scan(reading, topic, name, keys)
    _note_size(reading, topic, keys)
    if "points" in keys["fields"]:
        written = f"{POINTS['count']} in voxels of {POINTS['voxel_m']} m written"
        where = f"set sensors.{name}.fields.points.points, or remove the sensor"
        reading.draft.gap(f"points of {topic.name} that the policy needs ({written})", where)
    stops = {"on_gap": "stop"} if keys["fields"].keys() & {"image", "ranges", "points"} else {}
    reading.draft.sensors[name] = {**_sensor(reading, topic, name), **stops, **keys}


def _note_size(reading: GraphReading, topic: Topic, keys: Document) -> None:
    """Report best-effort images that exceed a segment of Fast DDS shared memory."""
    if topic.type != IMAGE or all(each.reliability != "best_effort" for each in topic.publishers):
        return
    size = math.prod(keys["fields"]["image"]["shape"]) * np.dtype(ENCODINGS[keys["encoding"]].dtype).itemsize
    if size > LARGE_BYTES:
        rate = f"{topic.rate_hz:.3g} Hz" if topic.rate_hz else f"{topic.count} message(s)"
        what = f"images of {topic.name} that were lost: {rate} received, {size / 1e6:.1f} MB each, best effort"
        reading.draft.gap(what, "docs/howto/large_messages.md for its publisher, then contract init again")


def _note_scan(reading: GraphReading, topic: Topic, name: str, keys: Document) -> None:
    """Keep the angles and the range of a LaserScan, so that it can be simulated."""
    sample, last = topic.sample, last_angle_rad(topic.sample)
    known = [sample.get("angle_min", math.nan), last, sample.get("range_min", math.nan)]
    first_rad, last_rad, least_m = (round(value, 6) if math.isfinite(value) else math.nan for value in known)
    if math.isfinite(last) and last != sample["angle_max"]:
        what = f"angles of {topic.name}: the last of {sample['size']} rays is at {last:.4g} rad by the increment, "
        what += f"angle_max is {sample['angle_max']:.4g} rad"
        reading.draft.gap(what, "correct the driver; until then the angles of its rays are written")
    most_m = keys["fields"].get("ranges", {}).get("high", math.nan)
    if first_rad < last_rad and 0.0 <= least_m < most_m:
        angles = {"angle_min_rad": first_rad, "angle_max_rad": last_rad}
        reading.draft.scans[name] = {**angles, "range_min_m": least_m, "range_max_m": most_m}


def _add_safety_input(reading: GraphReading, topic: Topic) -> None:
    """Add a Bool topic that looks like an e-stop, or like a state that must be active."""
    last = topic.name.rpartition("/")[2]
    is_estop = bool(_ESTOP.search(last))
    group = "estop" if is_estop else "active"
    path = f"backends.real.{group}"
    if not (is_estop or _ACTIVE.search(last)) or NO_DATA.search(topic.type):
        return
    if topic.type != BOOL:
        if is_estop:
            where = f"declare it under {path} with type, path and safe values"
            reading.draft.gap(f"{topic.name} ({topic.type}) looks like a safety input", where)
        return
    if "data" not in topic.sample:
        what = f"{topic.name} looks like a safety input, but no message arrived"
        reading.draft.gap(what, f"declare it under {path}")
        return
    name = reading.unique(last, topic, reading.draft.real.get(group, {}))
    value = bool(topic.sample["data"])
    spec: Document = {"topic": reading.local(topic), "safe": [value]}
    if topic.is_latched:
        spec["latched"] = True
    elif topic.rate_hz:
        spec["timeout_s"] = max(0.5, round(3.0 / topic.rate_hz, 2))
    else:
        spec["timeout_s"] = 1000.0
        where = "set timeout_s to three of its periods"
        reading.draft.gap(f"whether {topic.name} is still published: its rate", where)
    reading.draft.real.setdefault(group, {})[name] = spec
    reading.draft.choose(f"{path}.{name}.safe", f"assumed; {value} was its value when the robot was idle")
    where = f"change its state by hand and watch ros2 topic echo {topic.name}"
    reading.draft.gap(f"which value of {topic.name} permits motion ({value} assumed)", where)
