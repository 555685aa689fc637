"""Read a robot's interface out of its ROS graph, given as plain values: sensors, actuators, safety inputs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from embodied_env.contract.required_sensors import PLACEHOLDER_AGE_S
from embodied_env.errors import ContractError
from embodied_env.extensions.contract_init.contract_draft import (
    MAX_AGE_S,
    Document,
    Draft,
    Joint,
    add_base,
    add_joint_actuator,
    add_urdf,
    assume_actuator,
    check_joint,
    joint_fields,
)
from embodied_env.extensions.contract_init.graph_topics import (
    BOOL,
    BY_JOINT,
    COMMAND,
    COMPRESSED,
    FLOAT,
    ODOMETRY,
    TIMEOUTS,
    TRAJECTORY,
    TWISTS,
    Graph,
    Topic,
    draft_command_qos,
    nodes_of,
    sensor_keys,
)
from embodied_env.messages.message_types import JOINT_SENSOR, SENSOR_MESSAGES

_VELOCITY = re.compile(r"veloc|(?<![a-z])vel(?![a-z])")
_EFFORT = re.compile(r"effort|torque")
_GRIPPER = re.compile(r"gripper|finger|hand|jaw|knuckle", re.IGNORECASE)
_WHEEL = re.compile(r"wheel|caster", re.IGNORECASE)
_ESTOP = re.compile(r"e_?stop|emergency|protective|safety|fault", re.IGNORECASE)
_ACTIVE = re.compile(r"program_running|motors?_(on|enabled)|(is_)?(active|enabled|armed)$", re.IGNORECASE)
_JOINT = re.compile(r"^joint_|_joint$")
_GENERIC = ("data", "raw", "data_raw", "filtered", "image_raw", "image", "pose", "wrench", "state", "states", "points")
_NO_DATA = re.compile(r"^(diagnostic_msgs|lifecycle_msgs|rcl_interfaces|tf2_msgs|bond|visualization_msgs)/|/_action/")


def add_graph(draft: Draft, graph: Graph, topics: list[Topic], namespace: str = "/") -> None:
    """Add what the nodes of the robot with these `topics` publish and subscribe; see `topics_of_robot`."""
    root = namespace.rstrip("/")
    for manager in graph.managers:
        if manager.startswith(f"{root}/"):
            where = "source a ROS 2 installation with controller_manager_msgs, or ros2 control list_controllers"
            draft.gap(f"which controllers of {manager} are active", where)
    _add_descriptions(draft, graph, topics, root)
    _Reading(draft, graph, topics, root).add()


def _add_descriptions(draft: Draft, graph: Graph, topics: Iterable[Topic], root: str) -> None:
    """Add the URDF of the robot, or of the namespaces around it."""
    names = {topic.name for topic in topics}
    around = {name: text for name, text in graph.descriptions.items() if f"{root}/".startswith(_namespace(name))}
    found = {name: text for name, text in graph.descriptions.items() if name in names} or around
    for name, text in found.items():
        try:
            add_urdf(draft, text, name)
        except ContractError as error:
            draft.gap(f"{name} is no readable URDF: {error.problem}", "contract init --from-graph --urdf FILE")
    if not found and not draft.joints and any(topic.is_command and topic.type in BY_JOINT for topic in topics):
        what = f"joint limits: no message on {root}/robot_description in {graph.listened_s:g} s"
        draft.gap(what, "contract init --from-graph --urdf FILE, or the data sheet")


class _Reading:
    """One reading of a graph into a draft."""

    def __init__(self, draft: Draft, graph: Graph, topics: list[Topic], root: str) -> None:
        self.draft, self.graph, self.topics, self.root = draft, graph, topics, root
        self.commands = [topic for topic in topics if topic.is_command]
        self.claimed: dict[str, str] = {}  # joint -> topic
        self.reporters: dict[str, Topic] = {}  # joint -> its joint state topic
        self.apart = set[str]()  # joints that are not in the largest messages of their topic

    def add(self) -> None:
        self._find_reporters()
        for topic in sorted((topic for topic in self.commands if topic.type in BY_JOINT), key=self._rank):
            self._add_joints(topic)
        self._add_base()
        if not self.draft.actuators:
            self.claimed |= dict.fromkeys(assume_actuator(self.draft), "")
        self._add_joint_sensors()
        for topic in self.topics:
            if topic.publishers:
                self._add_sensor(topic)
                self._add_safety_input(topic)
        if not any(" safety input" in what or " permits motion" in what for what, _ in self.draft.gaps):
            self.draft.gap("e-stop: no topic looks like one", "the driver's documentation; set backends.real.estop")
        self._list_unused()

    def _find_reporters(self) -> None:
        """Choose the topic of each joint: the name joint_states first, then measured ones, then the highest rate."""
        states = [topic for topic in self.topics if topic.is_joint_state]

        def order(topic: Topic) -> tuple[bool, bool, int, str]:
            is_usual, is_desired = topic.name.endswith("/joint_states"), bool(COMMAND.search(topic.name))
            return not is_usual, is_desired, -round(topic.rate_hz or 0.0), topic.name

        for topic in sorted(states, key=order):
            for joint, position in topic.sample["position"].items():
                known = self.draft.joints.setdefault(joint, Joint())
                if self.reporters.setdefault(joint, topic) is topic:
                    known.measured = position
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

    # ------------------------------------------------------------------------------------------------ actuators

    def _controller(self, topic: Topic) -> tuple[str, Document] | None:
        """Return the controller that subscribes to `topic`, by the name of its node."""
        nodes = {each.node for each in topic.subscribers}
        found = self.graph.controllers.items()
        return next(((n, c) for n, c in found if n in nodes or topic.name.startswith(f"{n}/")), None)

    def _rank(self, topic: Topic) -> tuple[bool, bool, int, str]:
        """Order commands: active controllers, positions, and messages for all joints first."""
        found = self._controller(topic)
        is_active = found is None or found[1]["is_active"]
        return not is_active, self._kind(topic) != "position", BY_JOINT.index(topic.type), topic.name

    def _parameter(self, topic: Topic, *keys: str) -> Any:  # noqa: ANN401 - parameter types
        """Return the first of the parameters `keys` of the topic's subscribers; None without one.

        For a base also of the subscribers of its other topics: those of a controller behind a multiplexer.
        """
        others = [each for each in self.commands if each.type in TWISTS and topic.type in TWISTS]
        for node in (node for each in (topic, *others) for node in each.subscribers):
            for key in keys:
                if (value := self.graph.parameters.get(node.node, {}).get(key)) not in (None, "", []):
                    return value
        return None

    def _kind(self, topic: Topic) -> str:
        """Return position, velocity or effort: by the controller's interfaces, else by the name of the topic."""
        found = self._controller(topic)
        named = self._parameter(topic, "interface_name", "command_interfaces") or (found and found[1]["interfaces"])
        text = " ".join([named] if isinstance(named, str) else named or [topic.name])
        if "position" in text or topic.type == TRAJECTORY:
            return "position"
        return "velocity" if _VELOCITY.search(text) else "effort" if _EFFORT.search(text) else "position"

    def _add_joints(self, topic: Topic) -> None:
        """Add an actuator for a topic of joint commands, unless its joints have one."""
        draft, kind = self.draft, self._kind(topic)
        if kind == "effort":
            draft.gap(f"{topic.name} takes efforts, left out", "a contract commands positions or velocities")
            return
        joints, assumed = self._joints_of(topic)
        if not joints:
            pool = self._pool(topic)
            used = ", ".join(dict.fromkeys(self.claimed[joint] for joint in pool if joint in self.claimed))
            where = "contract init --from-graph --urdf FILE, or the driver's documentation"
            draft.gap(f"joints of {topic.name} ({topic.type}), left out", f"used instead: {used}" if used else where)
            return
        if taken := [joint for joint in joints if joint in self.claimed]:
            used = f"used instead: {self.claimed[taken[0]]}"
            draft.gap(f"{topic.name} ({topic.type}) also commands {', '.join(taken)}, left out", used)
            return
        if apart := [joint for joint in joints if joint in self.apart]:
            reporter = self.reporters[apart[0]]
            what = f"{topic.name} ({topic.type}), left out: {reporter.name} has {', '.join(apart)} in separate messages"
            draft.gap(what, f"remap one of its publishers ({nodes_of(reporter.publishers)}), then contract init again")
            return
        is_gripper = all(map(_GRIPPER.search, joints)) or (bool(_GRIPPER.search(topic.name)) and len(joints) < 3)
        kind_of = "gripper" if is_gripper else joints[0] if topic.type == FLOAT else "arm"
        name = self._unique(kind_of, topic, draft.actuators)
        self.claimed |= dict.fromkeys(joints, topic.name)
        if kind == "position":
            self._note_fingers(name, joints if is_gripper else [joint for joint in joints if _GRIPPER.search(joint)])
        command = "velocity" if kind == "velocity" else "position_delta"
        spec = {"topic": self._local(topic), "type": topic.type, "command": command, **draft_command_qos(topic)}
        add_joint_actuator(draft, name, spec, joints)
        if assumed:
            draft.choose(f"actuators.{name}.joints", f"{assumed} assumed")
            where = "the parameter `joints` of the controller, or the driver's documentation"
            draft.gap(f"joints of {topic.name}: {', '.join(joints)} ({assumed} assumed)", where)
        if kind == "velocity":
            self._add_timeout(topic, name)
        self._note_others(topic, f"actuators.{name}")
        if (found := self._controller(topic)) is not None:
            controller, manager = found[0].rpartition("/")[2], found[1]["manager"]
            draft.real.setdefault("active", {})[name] = {"controller": controller, "manager": manager}
            if not found[1]["is_active"]:
                where = f"ros2 control switch_controllers -c {manager} --activate {controller}"
                draft.gap(f"{found[0]} is not active", where)

    def _note_fingers(self, actuator: str, fingers: list[str]) -> None:
        """Report what is missing for a gripper to close on an object."""
        if fingers:
            what = f"whether {', '.join(fingers)} may close on an object; until then that is a tracking error"
            where = f"set actuators.{actuator}.gripper for a topic of its own, else safety.tracking.joints"
            self.draft.gap(what, where)

    def _joints_of(self, topic: Topic) -> tuple[list[str], str]:
        """Return the joints of a command topic, and what of them is assumed; an empty text: they are known."""
        found = self._controller(topic)
        declared = (found and found[1]["joints"]) or None
        nodes = {node.node for node in topic.subscribers}
        if declared is None and sum(any(n.node in nodes for n in c.subscribers) for c in self.commands) == 1:
            declared = self._parameter(topic, "joints", "joint_names", "joint")
        if declared:
            return [declared] if isinstance(declared, str) else [str(each) for each in declared], ""
        pool = self._pool(topic)
        free = [joint for joint in pool if joint not in self.claimed]
        fingers = [joint for joint in free if _GRIPPER.search(joint)]
        others = [joint for joint in free if joint not in fingers]
        candidates = (each.name for each in self.topics if each in self.commands or "/_action/" in each.name)
        if _GRIPPER.search(topic.name):
            free = fingers or [joint for joint in others if self.draft.joints[joint].unit == "m"] or free
        elif topic.type == TRAJECTORY or "arm" in topic.name or any(map(_GRIPPER.search, candidates)):
            free = fingers if all(map(_GRIPPER.search, pool)) else others
        if topic.type == FLOAT:
            if named := [joint for joint in pool if _names(topic.name, joint)]:
                return [max(named, key=len)], ""
            free = ([joint for joint in free if _names(topic.name, _JOINT.sub("", joint))] or free)[:1]
        if len(free) == 1 == len(pool):
            return free, ""
        source = "of the URDF" if any(self.draft.joints[joint].source for joint in free) else "of the joint states"
        return free, f"names {source}" if topic.type in (TRAJECTORY, JOINT_SENSOR) else f"names and order {source}"

    def _pool(self, topic: Topic) -> list[str]:
        """Return the joints that `topic` may command: those reported in its namespace, else all, without wheels."""
        near = [j for j, reporter in self.reporters.items() if topic.name.startswith(_namespace(reporter.name))]
        order = list(self.draft.joints)  # a URDF comes first, and has the order of the chain
        pool = sorted(near or self.reporters or order, key=order.index)
        return [joint for joint in pool if self.draft.joints[joint].moves and not _WHEEL.search(joint)]

    def _add_base(self) -> None:
        """Add the mobile base: the shortest topic with cmd_vel in its name, else the only twist topic."""
        twists = sorted((topic for topic in self.commands if topic.type in TWISTS), key=lambda t: (len(t.name), t.name))
        named = [topic for topic in twists if "cmd_vel" in topic.name]
        has_odometry = any(topic.type == ODOMETRY for topic in self.topics)
        candidates = named or (twists if has_odometry or not self.draft.actuators else [])
        if rest := [f"{topic.name} ({topic.type})" for topic in twists if topic not in candidates[:1]]:
            used = f"used instead: {candidates[0].name}" if candidates else "no sign of a mobile base, such as odometry"
            self.draft.gap(f"{', '.join(rest)}, left out", used)
        if not candidates:
            return
        topic, limits = candidates[0], dict[str, Document]()
        for axis in ("linear.x", "angular.z"):
            known = {key: self._parameter(topic, f"{axis}.max_{key}") for key in ("velocity", "acceleration")}
            limits[axis] = {k: v for k, v in known.items() if isinstance(v, (int, float)) and 1e-3 <= v < 100}
            high, low = limits[axis].get("velocity"), self._parameter(topic, f"{axis}.min_velocity")
            if high is not None and isinstance(low, (int, float)) and -high < low <= 0.0:
                limits[axis]["velocity"] = [low if low <= -1e-3 else 0.0, high]
        add_base(self.draft, self._local(topic), topic.type, limits)
        self.draft.actuators["base"] |= draft_command_qos(topic)
        self._note_others(topic, "actuators.base")
        self._add_timeout(topic, "base")

    def _add_timeout(self, topic: Topic, name: str) -> None:
        """Declare the time after which the controller ends a velocity that is not commanded again."""
        timeout_s = self._parameter(topic, *TIMEOUTS)
        if isinstance(timeout_s, float) and 1e-3 <= timeout_s <= 10.0:
            self.draft.real["downstream_timeout_s"] = timeout_s
            return
        self.draft.real.setdefault("downstream_timeout_s", 0.5)
        path, where = "backends.real.downstream_timeout_s", "publish one slow command and measure when it stops"
        self.draft.choose(path, f"assumed; the robot may not stop {name} by itself")
        self.draft.gap(f"time after which {topic.name} stops without a command (0.5 s written)", where)

    def _note_others(self, topic: Topic, path: str) -> None:
        """Comment the topic's subscribers, and report its publishers, which `real` refuses."""
        self.draft.comment(path, f"Subscribed by {nodes_of(topic.subscribers)}.")
        if topic.publishers:
            what = f"{topic.name} is also published by {nodes_of(topic.publishers)}"
            self.draft.gap(what, "stop that node, or remap its publisher, before the environment runs")

    # -------------------------------------------------------------------------------------------------- sensors

    def _add_joint_sensors(self) -> None:
        draft = self.draft
        for topic in dict.fromkeys(self.reporters.values()):
            joints = [joint for joint in self.claimed if self.reporters.get(joint) is topic]
            if unused := [j for j, each in self.reporters.items() if each is topic and j not in self.claimed]:
                where = "add them to the fields of the joint states if the policy needs them"
                draft.gap(f"joints of {topic.name} without a command, not observed: {', '.join(unused)}", where)
            if not joints:
                continue
            name = self._unique("joints", topic, draft.sensors)
            fields = joint_fields(draft, joints, has_velocity=set(joints) <= set(topic.sample["velocity"]))
            draft.sensors[name] = {**self._sensor(topic, name), "fields": fields}
            if topic.rate_hz:
                draft.slowest_hz = min(draft.slowest_hz or topic.rate_hz, topic.rate_hz)
            self._check_publishers(topic, name)
            for joint in joints:
                self._check_start(joint)

    def _check_publishers(self, topic: Topic, name: str) -> None:
        """Let several publishers share a topic if their messages have no joint in common; raise if they have one."""
        state, nodes = topic.sample.get("state", "ok"), nodes_of(topic.publishers)
        if state.startswith("contention"):
            problem = f"conflicting publishers of {topic.name}: {nodes} (expected each joint from one); {state}"
            raise ContractError("", f"{problem}; stop all but one, then contract init again")
        if 1 < len(topic.publishers) <= topic.sample.get("separate", 1):
            self.draft.real["shared"] = [*self.draft.real.get("shared", []), name]
        elif len(topic.publishers) > 1:
            what = f"which joints each publisher of {topic.name} reports ({nodes}): not by its messages"
            self.draft.gap(what, "stop all but one, or contract init again with a longer --listen")

    def _check_start(self, joint: str) -> None:
        """Let the robot start from the end of a joint's range, if it rests there."""
        known = self.draft.joints[joint]
        if known.position is None or known.measured is None:
            return
        low, high = known.position
        inset = min(0.02, 0.05 * (high - low))
        if low - 1e-3 <= known.measured <= high + 1e-3 and not low + inset <= known.measured <= high - inset:
            self.draft.real.setdefault("start_outside", {})[joint] = "inward"
            self.draft.comment("backends.real.start_outside", f"{joint} rests at the end of its range.")

    def _sensor(self, topic: Topic, name: str) -> Document:
        """Return the keys of any sensor, and comment its publishers."""
        rate_hz = topic.rate_hz
        qos = ", ".join(sorted({f"{each.reliability} {each.durability}" for each in topic.publishers}))
        rate = f"{rate_hz:.3g} Hz" if rate_hz else f"{topic.count} message(s) in {self.graph.listened_s:g} s"
        self.draft.comment(f"sensors.{name}", f"{rate}, {qos.replace('_', ' ')}, from {nodes_of(topic.publishers)}.")
        spec: Document = {"topic": self._local(topic), "type": topic.type}
        has_header = SENSOR_MESSAGES[topic.type].header
        if not has_header or topic.stamp in ("zero", "other_clock"):
            spec["timeline"] = "receive"
            if has_header:
                what = "zero stamps" if topic.stamp == "zero" else "stamps of another clock"
                self.draft.gap(f"age of {topic.name}: {what}", "the driver; until then ages count from the reception")
        if topic.is_latched:
            spec["qos"] = "latched"
        age_s = topic.age_s if topic.stamp == "sound" else 0.0
        spec["max_age_s"] = max(MAX_AGE_S, round(3.0 / rate_hz + age_s, 2)) if rate_hz else PLACEHOLDER_AGE_S
        return spec

    def _add_sensor(self, topic: Topic) -> None:
        """Add a sensor of another type, if messages arrived and its type is known."""
        if topic.type not in SENSOR_MESSAGES or topic in self.commands:
            return
        if not topic.count and SENSOR_MESSAGES[topic.type].header:
            where = f"ros2 topic echo {topic.name}; longer with --listen S"
            self.draft.gap(f"{topic.name} ({topic.type}): no message in {self.graph.listened_s:g} s, left out", where)
        has_raw = topic.type == COMPRESSED and any(t.count and topic.name.startswith(f"{t.name}/") for t in self.topics)
        keys = {} if has_raw else sensor_keys(topic)
        if not keys:
            return
        if len(topic.publishers) > 1:
            what = f"{topic.name} has several publishers ({nodes_of(topic.publishers)}), left out"
            self.draft.gap(what, "stop all but one")
            return
        parts = [part for part in topic.name.split("/") if part and part not in _GENERIC] or ["sensor"]
        name = self._unique(re.sub(r"_broadcaster$", "", parts[-1]), topic, self.draft.sensors)
        stops = {"on_gap": "stop"} if keys["fields"].keys() & {"image", "ranges"} else {}
        self.draft.sensors[name] = {**self._sensor(topic, name), **stops, **keys}

    def _list_unused(self) -> None:
        """Report the actions, and the topics that neither the contract nor another report names."""
        draft = self.draft
        inputs = [spec for group in ("estop", "active") for spec in draft.real.get(group, {}).values()]
        specs = (*draft.sensors.values(), *draft.actuators.values(), *inputs)
        named = {f"{self.root}/{spec['topic']}" for spec in specs if "topic" in spec}
        named |= {word for what, _ in draft.gaps for word in re.split(r"[\s,;:()]+", what)}
        for topic in self.topics:
            action, _, is_action = topic.name.partition("/_action/")
            if is_action and not any(command.name.startswith(_namespace(action)) for command in self.commands):
                draft.gap(f"action {action} is not used", "a contract commands topics; use a controller with a topic")
        rest = [t for t in self.topics if t.name not in named and not _NO_DATA.search(t.type + t.name)]
        reference = "docs/reference/contract.md"
        if data := [f"{t.name} ({t.type})" for t in rest if t.publishers and t.name not in self.graph.descriptions]:
            where = f"a field with a `path` reads any message type: {reference}"
            draft.gap(f"published topics that are not observed: {', '.join(data)}", where)
        if subscribed := [f"{t.name} ({t.type})" for t in rest if not t.publishers]:
            where = f"if one is the command, use a controller or a node with a command type of {reference}"
            draft.gap(f"subscribed topics that are not commanded: {', '.join(subscribed)}", where)

    # -------------------------------------------------------------------------------------------- safety inputs

    def _add_safety_input(self, topic: Topic) -> None:
        """Add a Bool topic that looks like an e-stop, or like a state that must be active."""
        last = topic.name.rpartition("/")[2]
        is_estop = bool(_ESTOP.search(last))
        group = "estop" if is_estop else "active"
        path = f"backends.real.{group}"
        if not (is_estop or _ACTIVE.search(last)) or _NO_DATA.search(topic.type):
            return
        if topic.type != BOOL:
            if is_estop:
                where = f"declare it under {path} with type, path and safe values"
                self.draft.gap(f"{topic.name} ({topic.type}) looks like a safety input", where)
            return
        if "data" not in topic.sample:
            what = f"{topic.name} looks like a safety input, but no message arrived"
            self.draft.gap(what, f"declare it under {path}")
            return
        name = self._unique(last, topic, self.draft.real.get(group, {}))
        value = bool(topic.sample["data"])
        spec: Document = {"topic": self._local(topic), "safe": [value]}
        if topic.is_latched:
            spec["latched"] = True
        elif topic.rate_hz:
            spec["timeout_s"] = max(0.5, round(3.0 / topic.rate_hz, 2))
        else:
            spec["timeout_s"] = 1000.0
            where = "set timeout_s to three of its periods"
            self.draft.gap(f"whether {topic.name} is still published: its rate", where)
        self.draft.real.setdefault(group, {})[name] = spec
        self.draft.choose(f"{path}.{name}.safe", f"assumed; {value} was its value when the robot was idle")
        where = f"change its state by hand and watch ros2 topic echo {topic.name}"
        self.draft.gap(f"which value of {topic.name} permits motion ({value} assumed)", where)

    # ---------------------------------------------------------------------------------------------------- names

    def _local(self, topic: Topic) -> str:
        return topic.name.removeprefix(f"{self.root}/")

    def _unique(self, name: str, topic: Topic, taken: Mapping[str, Any]) -> str:
        """Return `name` as an identifier, with the namespace or a number where it is taken."""
        name, number = _identifier(name), 2
        if name in taken:
            name = _identifier(f"{self._local(topic).split('/')[0]}_{name}")
        while name in taken:
            name, number = f"{name.rstrip('0123456789').rstrip('_')}_{number}", number + 1
        return name


def _names(topic: str, joint: str) -> bool:
    """Return whether a topic has the name of a joint in it, as whole words."""
    return re.search(rf"(?<![^\W_]){re.escape(joint)}(?![^\W_])", topic) is not None


def _namespace(topic: str) -> str:
    return topic.rpartition("/")[0] + "/"


def _identifier(text: str) -> str:
    text = re.sub(r"[^a-z0-9_]", "_", text.lower()).strip("_")
    return text if text[:1].isalpha() else f"s_{text}"
