"""Read a robot's interface out of its ROS graph, given as plain values: sensors, actuators, safety inputs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from embodied_env.contract.draft import (
    MAX_AGE_S,
    Document,
    Draft,
    Joint,
    add_base,
    add_joint_actuator,
    add_urdf,
    joint_fields,
)
from embodied_env.contract.graph_topics import (
    BOOL,
    BY_JOINT,
    FIELDS,
    FLOAT,
    TRAJECTORY,
    TWISTS,
    Graph,
    Topic,
    command_qos,
    sensor_fields,
)
from embodied_env.contract.message_types import JOINT_SENSOR, SENSOR_MESSAGES
from embodied_env.errors import ContractError

_COMMAND = re.compile(r"cmd|command|desired|target|goal|setpoint|reference")
_GRIPPER = re.compile(r"gripper|finger|hand|jaw|knuckle", re.IGNORECASE)
_WHEEL = re.compile(r"wheel|caster", re.IGNORECASE)
_ESTOP = re.compile(r"e_?stop|emergency|protective|safety|fault", re.IGNORECASE)
_ACTIVE = re.compile(r"program_running|motors?_(on|enabled)|(is_)?(active|enabled|armed)$", re.IGNORECASE)
_GENERIC = ("data", "raw", "data_raw", "filtered", "image_raw", "image", "pose", "wrench", "state", "states", "points")


def add_graph(draft: Draft, graph: Graph, namespace: str = "/") -> None:
    """Add what the nodes in `namespace` publish and subscribe; raises ContractError for a graph without a robot."""
    topics = [topic for topic in graph.topics if topic.name.startswith(namespace.rstrip("/") + "/")]
    commands = _commands(topics)
    if not any(topic.publishers and topic.type in SENSOR_MESSAGES for topic in topics) and not commands:
        expected = "expected publishers of sensors or subscribers of commands"
        remedy = "start the driver; check ROS_DOMAIN_ID, ROS_AUTOMATIC_DISCOVERY_RANGE and --namespace"
        raise ContractError("", f"no robot in {namespace} within {graph.listened_s:g} s ({expected}); {remedy}")
    topics, commands = _first_robot(draft, topics, commands)
    for manager in graph.managers:
        where = "source a ROS 2 installation with controller_manager_msgs, or ros2 control list_controllers"
        draft.gap(f"which controllers of {manager} are active", where)
    _add_descriptions(draft, graph, topics)
    _Reading(draft, graph, topics, commands, namespace.rstrip("/")).add()


def _commands(topics: Iterable[Topic]) -> list[Topic]:
    """Return the topics that a robot takes commands on, by their type and subscriptions."""
    return [
        topic
        for topic in topics
        if topic.subscribers
        and topic.type in (*BY_JOINT, *TWISTS)
        and (topic.type != JOINT_SENSOR or _COMMAND.search(topic.name.rpartition("/")[2]))
        and (topic.type not in (*TWISTS, FLOAT) or not topic.publishers or _COMMAND.search(topic.name))
    ]


def _first_robot(draft: Draft, topics: list[Topic], commands: list[Topic]) -> tuple[list[Topic], list[Topic]]:
    """Return the topics of the first of several robots whose joints have the same names."""
    states = [
        topic
        for topic in topics
        if _is_joint_state(topic) and any(c.name.startswith(topic.namespace) for c in commands)
    ]
    inner = [
        each
        for each in states
        if not any(each.namespace != o.namespace and o.namespace.startswith(each.namespace) for o in states)
    ]
    for state in inner[1:]:
        first = inner[0]
        if state.namespace != first.namespace and set(state.sample["names"]) & set(first.sample["names"]):
            robot = state.namespace.rstrip("/")
            draft.gap(
                f"a second robot, {robot}, with the same joint names", f"contract init --from-graph --namespace {robot}"
            )
            topics, commands = (
                [topic for topic in group if not topic.name.startswith(state.namespace)] for group in (topics, commands)
            )
    return topics, commands


def _add_descriptions(draft: Draft, graph: Graph, topics: Iterable[Topic]) -> None:
    names = {topic.name for topic in topics}
    found = {topic: text for topic, text in graph.descriptions.items() if topic in names}
    for topic, text in found.items():
        try:
            add_urdf(draft, text, topic)
        except ContractError as error:
            draft.gap(f"{topic} is no readable URDF: {error.problem}", "contract init --urdf FILE")
    if not found and not draft.joints and any(topic.type in BY_JOINT and topic.subscribers for topic in topics):
        draft.gap("joint limits: no /robot_description", "contract init --from-graph --urdf FILE, or the data sheet")


def _is_joint_state(topic: Topic) -> bool:
    is_command = topic.subscribers and _COMMAND.search(topic.name.rpartition("/")[2])
    return topic.type == JOINT_SENSOR and bool(topic.sample.get("names")) and not is_command


class _Reading:
    """One reading of a graph into a draft."""

    def __init__(self, draft: Draft, graph: Graph, topics: list[Topic], commands: list[Topic], root: str) -> None:
        self.draft, self.graph, self.topics, self.commands, self.root = draft, graph, topics, commands, root
        self.claimed: dict[str, str] = {}  # joint -> topic
        self.reporters: dict[str, Topic] = {}  # joint -> its joint state topic

    def add(self) -> None:
        self._find_reporters()
        by_joint = sorted((topic for topic in self.commands if topic.type in BY_JOINT), key=self._rank)
        for topic in by_joint:
            self._add_joints(topic)
        self._add_base()
        self._add_joint_sensors()
        for topic in self.topics:
            self._add_sensor(topic)
            self._add_safety_input(topic)
        if not self.draft.real.get("estop"):
            self.draft.gap("e-stop: no topic looks like one", "the driver's documentation; set backends.real.estop")
        for topic in self.topics:
            if topic.name.endswith("/_action/status") and not topic.name.startswith("/_"):
                action = topic.name.removesuffix("/_action/status")
                self.draft.gap(
                    f"action {action} is not used", "a contract commands topics; use a controller with a topic"
                )

    def _find_reporters(self) -> None:
        """Choose the topic of each joint: the name joint_states first, then the highest rate."""
        states = [topic for topic in self.topics if _is_joint_state(topic)]
        ranked = sorted(states, key=lambda t: (not t.name.endswith("joint_states"), -round(t.rate_hz or 0.0), t.name))
        for topic in ranked:
            for joint, position in topic.sample["position"].items():
                self.reporters.setdefault(joint, topic)
                known = self.draft.joints.setdefault(joint, Joint())
                if self.reporters[joint] is topic:
                    known.measured = position
        for topic in (
            topic for topic in self.topics if topic.type == JOINT_SENSOR and topic.publishers and not topic.count
        ):
            self._silent(topic)

    def _silent(self, topic: Topic) -> None:
        where = f"ros2 topic echo {topic.name}; longer with --listen S"
        self.draft.gap(f"{topic.name} ({topic.type}): no message in {self.graph.listened_s:g} s, left out", where)

    # ------------------------------------------------------------------------------------------------ actuators

    def _controller(self, topic: Topic) -> tuple[str, Document] | None:
        return next(((n, c) for n, c in self.graph.controllers.items() if f"/{n}/" in topic.name), None)

    def _rank(self, topic: Topic) -> tuple[int, int, int, str]:
        """Order commands: active controllers, positions, and messages for all joints first."""
        found = self._controller(topic)
        is_active = found is None or found[1]["is_active"]
        return not is_active, self._kind(topic) != "position", BY_JOINT.index(topic.type), topic.name

    def _parameter(self, topic: Topic, *keys: str) -> Any:  # noqa: ANN401 - parameter types
        """Return the first of the parameters `keys` of the topic's subscribers; None without one."""
        for node in topic.subscribers:
            for key in keys:
                if (value := self.graph.parameters.get(node.node, {}).get(key)) not in (None, "", []):
                    return value
        return None

    def _kind(self, topic: Topic) -> str:
        found = self._controller(topic)
        named = (
            self._parameter(topic, "interface_name", "command_interfaces") or (found and found[1]["interfaces"]) or ""
        )
        text = (
            " ".join([named] if isinstance(named, str) else named) or topic.name.rpartition("/")[0][-60:] + topic.name
        )
        if "position" in text or topic.type == TRAJECTORY:
            return "position"
        return next(
            (kind for kind in ("velocity", "effort") if kind[:3] in text or (kind == "effort" and "torque" in text)),
            "position",
        )

    def _add_joints(self, topic: Topic) -> None:
        """Add an actuator for a topic of joint commands, unless its joints have one."""
        draft, kind = self.draft, self._kind(topic)
        if kind == "effort":
            draft.gap(f"{topic.name} takes efforts, left out", "a contract commands positions or velocities")
            return
        joints, assumed = self._joints_of(topic)
        if not joints:
            where = (
                "contract init --urdf FILE, or the driver's documentation"
                if not self.claimed
                else "set it by hand if needed"
            )
            draft.gap(f"joints of {topic.name} ({topic.type}), left out", where)
            return
        if taken := [joint for joint in joints if joint in self.claimed]:
            draft.gap(
                f"{topic.name} also commands {', '.join(taken)}, left out", f"used instead: {self.claimed[taken[0]]}"
            )
            return
        is_gripper = all(_GRIPPER.search(joint) for joint in joints) or (
            bool(_GRIPPER.search(topic.name)) and len(joints) < 3
        )
        name = self._unique("gripper" if is_gripper else "arm", topic, draft.actuators)
        self.claimed |= dict.fromkeys(joints, topic.name)
        command = "velocity" if kind == "velocity" else "position_delta"
        spec = {"topic": self._local(topic), "type": topic.type, "command": command, **command_qos(topic)}
        add_joint_actuator(draft, name, spec, joints)
        if assumed:
            draft.choose(f"actuators.{name}.joints", assumed)
            draft.gap(f"joints of {topic.name}: {', '.join(joints)}; {assumed}", "the driver's documentation")
        if kind == "velocity":
            self._add_timeout(topic, name)
        self._note_others(topic, f"actuators.{name}")
        if (found := self._controller(topic)) is not None:
            active = {"controller": found[0], "manager": found[1]["manager"]}
            draft.real.setdefault("active", {})[name] = active

    def _joints_of(self, topic: Topic) -> tuple[list[str], str]:
        """Return the joints of a command topic, and how they were assumed; an empty text: they are known."""
        found = self._controller(topic)
        declared = (found and found[1]["joints"]) or None
        nodes = {node.node for node in topic.subscribers}
        if declared is None and sum(any(n.node in nodes for n in c.subscribers) for c in self.commands) == 1:
            declared = self._parameter(topic, "joints", "joint_names", "joint")
        if declared:
            return ([declared] if isinstance(declared, str) else list(declared)), ""
        near = [j for j, reporter in self.reporters.items() if topic.name.startswith(reporter.namespace)]
        order = list(self.draft.joints)  # a URDF comes first, and has the order of the chain
        pool = near or list(self.reporters) or order
        free = [
            joint
            for joint in sorted(pool, key=order.index)
            if self.draft.joints[joint].moves and not _WHEEL.search(joint) and joint not in self.claimed
        ]
        fingers = [joint for joint in free if _GRIPPER.search(joint)]
        others = [joint for joint in free if joint not in fingers]
        has_gripper_topic = any(
            _GRIPPER.search(each.name) for each in self.topics if each in self.commands or "/_action/" in each.name
        )
        if _GRIPPER.search(topic.name):
            free = fingers or [joint for joint in others if self.draft.joints[joint].unit == "m"] or free
        elif has_gripper_topic or topic.type == TRAJECTORY:
            free = others or fingers
        if topic.type == FLOAT:
            named = [joint for joint in free if f"/{joint}" in topic.name]
            free = (named or free)[:1]
        has_urdf = any(self.draft.joints[joint].source for joint in free)
        if len(free) == 1 == len(pool):
            return free, ""
        how = "of the URDF" if has_urdf else "of the joint states"
        if topic.type in (TRAJECTORY, JOINT_SENSOR):
            return free, f"the joint names {how}, assumed to be those of the controller"
        return free, f"the joint names and their order {how}, assumed to be those of the controller"

    def _add_base(self) -> None:
        """Add the mobile base: the shortest topic with cmd_vel in its name, else the only twist topic."""
        twists = sorted((topic for topic in self.commands if topic.type in TWISTS), key=lambda t: (len(t.name), t.name))
        named = [topic for topic in twists if "cmd_vel" in topic.name]
        has_odometry = any(topic.type == "nav_msgs/msg/Odometry" for topic in self.topics)
        candidates = named or (twists if has_odometry or not self.draft.actuators else [])
        for topic in twists:
            if topic not in candidates[:1]:
                used = f"used instead: {candidates[0].name}" if candidates else "it does not look like a mobile base"
                self.draft.gap(f"{topic.name} ({topic.type}), left out", used)
        if not candidates:
            return
        topic, limits = candidates[0], {}
        for axis in ("linear.x", "angular.z"):
            known = {key: self._parameter(topic, f"{axis}.max_{key}") for key in ("velocity", "acceleration")}
            limits[axis] = {k: v for k, v in known.items() if isinstance(v, (int, float)) and 0 < v < 100}
        add_base(self.draft, self._local(topic), topic.type, limits)
        self.draft.actuators["base"] |= command_qos(topic)
        self._note_others(topic, "actuators.base")
        self._add_timeout(topic, "base")

    def _add_timeout(self, topic: Topic, name: str) -> None:
        """Declare the time after which the controller ends a velocity that is not commanded again."""
        timeout_s = self._parameter(topic, "cmd_vel_timeout", "command_timeout", "cmd_timeout")
        if isinstance(timeout_s, float) and timeout_s > 0:
            self.draft.real["downstream_timeout_s"] = timeout_s
            return
        self.draft.real.setdefault("downstream_timeout_s", 0.5)
        path, where = "backends.real.downstream_timeout_s", "publish one slow command and measure when it stops"
        self.draft.choose(path, f"assumed; the robot may not stop {name} by itself")
        self.draft.gap(f"time after which {topic.name} stops without a command (0.5 s written)", where)

    def _note_others(self, topic: Topic, path: str) -> None:
        """Comment the topic's subscribers, and report its publishers, which `real` refuses."""
        nodes = ", ".join(sorted({each.node for each in topic.subscribers}))
        self.draft.comment(path, f"Subscribed by {nodes}.")
        if topic.publishers:
            nodes = ", ".join(sorted({each.node for each in topic.publishers}))
            self.draft.gap(f"{topic.name} is also published by {nodes}", "stop that node before the environment runs")

    # -------------------------------------------------------------------------------------------------- sensors

    def _add_joint_sensors(self) -> None:
        """Add the joint states of the commanded joints."""
        draft, unused = self.draft, []
        for topic in dict.fromkeys(self.reporters.values()):
            joints = [joint for joint in self.claimed if self.reporters.get(joint) is topic]
            unused += [joint for joint, reporter in self.reporters.items() if reporter is topic and joint not in joints]
            if not joints:
                continue
            name = self._unique("joints", topic, draft.sensors)
            fields = joint_fields(draft, joints, has_velocity=set(joints) <= set(topic.sample["velocity"]))
            draft.sensors[name] = {**self._sensor(topic, name), "fields": fields}
            if topic.rate_hz:
                draft.slowest_hz = min(draft.slowest_hz or topic.rate_hz, topic.rate_hz)
            if len(topic.publishers) > 1:
                draft.real["shared"] = [*draft.real.get("shared", []), name]
            for joint in joints:
                self._check_start(joint)
        if unused:
            draft.gap(
                f"joints in the joint states without a command: {', '.join(unused)}",
                "not observed; add them by hand if needed",
            )

    def _check_start(self, joint: str) -> None:
        known = self.draft.joints[joint]
        if known.position is None or known.measured is None:
            return
        low, high = known.position
        inset = min(0.02, 0.05 * (high - low))
        if low - 1e-3 <= known.measured <= high + 1e-3 and not low + inset <= known.measured <= high - inset:
            self.draft.real["start_outside"] = "inward"
            self.draft.comment("backends.real.start_outside", f"{joint} rests at the end of its range.")

    def _sensor(self, topic: Topic, name: str) -> Document:
        """Return the keys of any sensor, and comment its publishers."""
        rate_hz = topic.rate_hz
        nodes = ", ".join(sorted({each.node for each in topic.publishers}))
        qos = ", ".join(sorted({f"{each.reliability} {each.durability}" for each in topic.publishers}))
        rate = f"{rate_hz:.3g} Hz" if rate_hz else f"{topic.count} message(s) in {self.graph.listened_s:g} s"
        self.draft.comment(f"sensors.{name}", f"{rate}, {qos.replace('_', ' ')}, from {nodes}.")
        spec: Document = {"topic": self._local(topic), "type": topic.type}
        has_header = SENSOR_MESSAGES[topic.type].header
        if not has_header or topic.stamp in ("zero", "other_clock"):
            spec["timeline"] = "receive"
            if has_header:
                what = "zero stamps" if topic.stamp == "zero" else "stamps of another clock"
                self.draft.gap(f"age of {topic.name}: {what}", "the driver; until then ages count from the reception")
        if topic.is_latched:
            spec["qos"] = "latched"
        spec["max_age_s"] = max(MAX_AGE_S, round(3.0 / rate_hz, 2)) if rate_hz else 1000.0
        return spec

    def _add_sensor(self, topic: Topic) -> None:
        """Add a sensor of another type, if messages arrived and its type is known."""
        if (
            topic.type == JOINT_SENSOR
            or topic.type not in SENSOR_MESSAGES
            or not topic.publishers
            or topic in self.commands
        ):
            return
        fields, extra = sensor_fields(topic)
        if not fields:
            is_data = topic.type.startswith("sensor_msgs/") or topic.type in FIELDS
            if is_data and not topic.count:
                self._silent(topic)
            elif is_data:
                self.draft.gap(f"{topic.name} ({topic.type}), left out", extra.get("why", "add it by hand if needed"))
            return
        if len(topic.publishers) > 1:
            nodes = ", ".join(each.node for each in topic.publishers)
            self.draft.gap(f"{topic.name} has several publishers ({nodes}), left out", "stop all but one")
            return
        parts = [part for part in topic.name.split("/") if part and part not in _GENERIC] or ["sensor"]
        name = self._unique(re.sub(r"_broadcaster$", "", parts[-1]), topic, self.draft.sensors)
        self.draft.sensors[name] = {**self._sensor(topic, name), **extra, "fields": fields}

    # -------------------------------------------------------------------------------------------- safety inputs

    def _add_safety_input(self, topic: Topic) -> None:
        """Add a Bool topic that looks like an e-stop, or like a state that must be active."""
        last = topic.name.rpartition("/")[2]
        is_estop = bool(_ESTOP.search(last))
        if not topic.publishers or not (is_estop or _ACTIVE.search(last)):
            return
        group = "estop" if is_estop else "active"
        path = f"backends.real.{group}"
        if topic.type != BOOL:
            if is_estop and not topic.type.startswith("rcl_interfaces/"):
                where = f"declare it under {path} with type, path and safe values"
                self.draft.gap(f"{topic.name} ({topic.type}) looks like a safety input", where)
            return
        name = self._unique(_identifier(last), topic, self.draft.real.get(group, {}))
        if "data" not in topic.sample:
            self.draft.gap(
                f"{topic.name} looks like a safety input, but no message arrived", f"declare it under {path}"
            )
            return
        value = bool(topic.sample["data"])
        spec: Document = {"topic": self._local(topic), "safe": [value]}
        if topic.is_latched:
            spec["latched"] = True
        elif topic.rate_hz:
            spec["timeout_s"] = max(0.5, round(3.0 / topic.rate_hz, 2))
        else:
            spec["timeout_s"] = 1000.0
            self.draft.gap(
                f"whether {topic.name} is still published: its rate", "set timeout_s to three of its periods"
            )
        self.draft.real.setdefault(group, {})[name] = spec
        self.draft.choose(f"{path}.{name}.safe", f"assumed; {value} was its value when the robot was idle")
        self.draft.gap(
            f"which value of {topic.name} permits motion ({value} assumed)", "press it and watch: ros2 topic echo"
        )

    # ---------------------------------------------------------------------------------------------------- names

    def _local(self, topic: Topic) -> str:
        return topic.name.removeprefix(self.root + "/")

    def _unique(self, name: str, topic: Topic, taken: Mapping[str, Any]) -> str:
        """Return `name` as an identifier, with the namespace or a number where it is taken."""
        name, number = _identifier(name), 2
        if name in taken:
            name = _identifier(f"{topic.name.strip('/').split('/')[0]}_{name}")
        while name in taken:
            name, number = f"{name.rstrip('0123456789').rstrip('_')}_{number}", number + 1
        return name


def _identifier(text: str) -> str:
    text = re.sub(r"[^a-z0-9_]", "_", text.lower()).strip("_")
    return text if text[:1].isalpha() else f"s_{text}"
