"""Draft a contract from known values and conservative ones, with a list of the gaps."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from embodied_env.contract.contract_schema import SCHEMA
from embodied_env.contract.contract_validation import PLACEHOLDER_VELOCITY
from embodied_env.contract.required_sensors import default_required
from embodied_env.contract.sensor_schema import SensorSpec
from embodied_env.contract.typed_values import parse_as
from embodied_env.contract.urdf import MOST_JOINTS, MOVABLE, read_joints
from embodied_env.contract.value_checks import allow, check_magnitude, check_text, naming_file
from embodied_env.contract.yaml_text import DEEPEST, checked_text, comment, dump_yaml
from embodied_env.errors import escaped
from embodied_env.extensions.contract_init.driver_answers import Answers
from embodied_env.messages.message_types import JOINT_SENSOR
from embodied_env.sim.world_profile import RENDERED

Document = dict[str, Any]

VELOCITY = {"rad": 0.5, "m": 0.05}
ACCELERATION = {"rad": 1.0, "m": 0.2}
REACH = {"rad": 0.3, "m": 0.03}  # conservative limits by unit, and the range around the measured position
AXES: Mapping[str, Document] = {  # conservative limits of a mobile base
    "linear.x": {"velocity": 0.2, "acceleration": 0.4, "unit": "m"},
    "linear.y": {"velocity": 0.2, "acceleration": 0.4, "unit": "m"},
    "angular.z": {"velocity": 0.5, "acceleration": 1.0},
}
PERIOD_S, BASE_PERIOD_S = 0.05, 0.1
MAX_AGE_S = 0.15
TASK = "no_goal"

_MARGIN = 0.02  # the default of `safety.margins.position`
_TWO_TURNS = 4.0 * math.pi
_UNBOUNDED = {"low": -math.inf, "high": math.inf}
_LEAST = 1e-5  # smallest velocity and range, since drafts have six digits
_WIDEST = 110  # characters of a mapping on one line
_SLIDING = re.compile(
    r"finger|slid|prismatic|rail|gantry|carriage|linear|telescop|(?<!shoulder_)lift|\b[xyz]_?(axis|joint)|(axis|joint)_?[xyz]\b",
    re.IGNORECASE,
)


@dataclass(kw_only=True)
class Joint:
    """Limits and origin of a joint, in rad or m, with None for unknown values."""

    unit: str | None = None
    position: tuple[float, float] | None = None
    velocity: float | None = None
    placeholder: float | None = None  # velocity in all joints of the description
    acceleration: float | None = None
    measured: float | None = None
    is_continuous: bool = False
    source: str = ""  # source of the limits
    moves: bool = True  # moves by itself: neither fixed nor mimicking another joint


@dataclass(kw_only=True)
class Draft:
    """A contract draft, with comments by path, and gaps that name where to look."""

    name: str
    robot: str | None = None
    task: str = TASK  # type of its task
    joints: dict[str, Joint] = field(default_factory=dict)
    sensors: Document = field(default_factory=dict)
    actuators: Document = field(default_factory=dict)
    real: Document = field(default_factory=dict)
    world: Document | None = None  # the profile of `mujoco`
    gazebo: Document | None = None  # the profile of `gazebo`
    bridge: str = ""  # the configuration of its ros_gz_bridge, YAML
    chosen: dict[str, list[str]] = field(default_factory=dict)
    comments: dict[str, list[str]] = field(default_factory=dict)
    gaps: list[tuple[str, str]] = field(default_factory=list)
    slowest_hz: float | None = None  # lowest rate of the sensors of commanded joints
    moves_sideways: bool = False  # the base, as the user gives it
    scans: dict[str, Document] = field(default_factory=dict)  # angles and range of each LaserScan
    answers: Answers = field(default_factory=Answers)  # of the user
    unknown: dict[str, list[str]] = field(default_factory=dict)  # what no source and no answer gives

    def choose(self, path: str, reason: str) -> None:
        """Mark the value at `path` as chosen, so that `real` asks for its confirmation."""
        self.chosen.setdefault(path, []).append(reason)

    def ask(self, path: str, question: str, where: str) -> None:
        """Mark the value at `path`, which could move the robot wrongly, unless the user gave it."""
        if not self.answers.is_known(path):
            self.unknown.setdefault(path, []).append(question)
            self.gap(question, f"{where}; if what is written is right: contract init --known {path}")

    def comment(self, path: str, *lines: str) -> None:
        """Add comment lines above the key at `path`."""
        self.comments.setdefault(path, []).extend(lines)

    def gap(self, what: str, where: str) -> None:
        """Report something unknown, once."""
        what, where = escaped(what), escaped(where)
        if (what, where) not in self.gaps:
            self.gaps.append((what, where))


def add_urdf(draft: Draft, text: str | bytes, source: str) -> None:
    """Add the joints of a URDF and their limits, or raise ContractError."""
    with naming_file(source):
        found, problems = read_joints(text)
    for name, problem in problems.items():
        draft.gap(f"joint {name} of {source} is unreadable: {problem}", "correct the URDF, or process it with xacro")
    moving = {name: spec for name, spec in found.items() if spec.kind in MOVABLE}
    speeds = [spec.velocity for spec in moving.values() if spec.mimics is None and spec.velocity]
    is_placeholder = len(set(speeds)) == 1 and speeds[0] >= PLACEHOLDER_VELOCITY
    for name, spec in moving.items():
        position = None if spec.position is None or spec.position[0] >= spec.position[1] else spec.position
        draft.joints[name] = Joint(
            unit=spec.unit,
            position=position,
            velocity=None if is_placeholder or not spec.velocity else spec.velocity,
            placeholder=spec.velocity if is_placeholder else None,
            is_continuous=spec.kind == "continuous",
            source=source,
            moves=spec.mimics is None,
        )


def check_joint(name: str, joint: Joint) -> None:
    """Raise ContractError unless name and numbers are those of a real joint."""
    path = f"joint {name}"
    check_text(path, name)
    low, high = joint.position or (-1.0, 1.0)
    for key, value, least in (
        ("position", low, 0.0),
        ("position", high, 0.0),
        ("position", high - low, _LEAST),
        ("measured position", joint.measured, 0.0),
        ("velocity", joint.velocity, _LEAST),
        ("velocity", joint.placeholder, _LEAST),
    ):
        if value is not None:
            check_magnitude(f"{path}.{key}", value, least=least)


def add_joint_actuator(draft: Draft, name: str, spec: Document, joints: Iterable[str]) -> None:
    """Add an actuator over `joints`, with the known limits and conservative ones."""
    path, limits = f"actuators.{name}.joints", {}
    joints = list(joints)
    allow(len(joints) <= MOST_JOINTS, path, f"{len(joints)} joints", f"at most {MOST_JOINTS}")
    chosen: dict[str, list[str]] = {}
    for joint in joints:
        known = draft.joints.setdefault(joint, Joint())
        limits[joint] = _limits(joint, known, chosen, is_velocity=spec["command"] == "velocity")
        if units := draft.answers.command_units(name, joint):
            limits[joint]["driver"] = units
        if "/action/" in spec["type"]:  # an action server has no such limit
            del limits[joint]["acceleration"]
            chosen.pop("acceleration", None)
        _check_measured(draft, joint, known)
    for value, source in {(draft.joints[j].placeholder, draft.joints[j].source): None for j in limits}:
        if value:
            draft.gap(f"velocity limits: {source} has the placeholder {value} in all joints", "the robot's data sheet")
    for names in dict.fromkeys(map(tuple, chosen.values())):
        what = ", ".join(each for each, those in chosen.items() if tuple(those) == names)
        those = f"all {len(limits)} joints" if len(names) == len(limits) > 1 else ", ".join(names)
        draft.choose(path, f"{what} of {those}")
        those = those if those == name else f"{those} of {name}"
        draft.gap(f"{what} of {those} (conservative values written)", f"data sheet or URDF; set {path}")
    sources = sorted({draft.joints[joint].source for joint in limits} - {""})
    if sources:
        draft.comment(path, f"Limits of {', '.join(sources)}; values under `chosen` are conservative assumptions.")
    draft.actuators[name] = {**spec, "joints": limits}


def _check_measured(draft: Draft, name: str, joint: Joint) -> None:
    """Report a measured position that the driver may have in another unit."""
    if joint.measured is None or joint.position is None:
        return
    low, high = joint.position
    if not low <= joint.measured <= high:
        where = f"move the robot inside, or --state-unit {name}=deg, percent:STROKE or si:FACTOR:OFFSET"
        draft.gap(f"joint {name} is at {joint.measured:.4g}, outside its limits {[low, high]}", where)
    elif joint.unit == "rad" and not joint.is_continuous and abs(joint.measured) > _TWO_TURNS:
        what = f"joint {name} is at {joint.measured:.4g} rad, more than two turns"
        where = f"the unit of the driver: rad is expected; for degrees --state-unit {name}=deg, and --unit"
        draft.gap(what, where)


def _limits(name: str, joint: Joint, chosen: dict[str, list[str]], *, is_velocity: bool) -> Document:
    """Return the limits of a joint, and list each assumption in `chosen`."""
    check_joint(name, joint)
    if joint.unit is None:
        joint.unit = "m" if _SLIDING.search(name) and abs(joint.measured or 0.0) < 1.0 else "rad"
        chosen.setdefault(f"unit ({joint.unit}, by the name)", []).append(name)
    unit, position = joint.unit, joint.position
    if position is None and not joint.is_continuous and not is_velocity:
        middle = joint.measured or 0.0
        position = middle - REACH[unit], middle + REACH[unit]
        around = "measured one" if joint.measured is not None else "zero position"
        chosen.setdefault(f"position limits (around the {around})", []).append(name)
    limits: Document = {"position": None if position is None else [0.0 - _down(-position[0]), _down(position[1])]}
    joint.position = None if position is None else tuple(limits["position"])
    for key, value, default in (
        ("velocity", joint.velocity, VELOCITY[unit]),
        ("acceleration", joint.acceleration, ACCELERATION[unit]),
    ):
        limits[key] = _down(value or default)
        if not value:
            chosen.setdefault(key, []).append(name)
    return limits if unit == "rad" else {**limits, "unit": unit}


def joint_fields(draft: Draft, joints: list[str], *, has_velocity: bool) -> Document:
    """Return the fields of a joint sensor, whose bounds contain limits and readings."""
    units = [draft.joints[joint].unit or "rad" for joint in joints]
    ends = [abs(end) for j in joints for end in (*(draft.joints[j].position or ()), draft.joints[j].measured or 0.0)]
    bound, unit = round(max(ends) * 1.1 + 0.1, 2), units[0] if len(set(units)) == 1 else units
    bounds = [math.inf if draft.joints[joint].position is None else bound for joint in joints]
    low, high = ([-end for end in bounds], bounds) if len(set(bounds)) > 1 else (-bounds[0], bounds[0])
    speeds = f"{unit}/s" if isinstance(unit, str) else [f"{each}/s" for each in unit]
    fields: Document = {"position": {"joints": joints, "unit": unit, "low": low, "high": high}}
    if has_velocity:
        fields["velocity"] = {"joints": joints, "unit": speeds, **_UNBOUNDED}
    drivers = [draft.answers.reading_units(joint) or {} for joint in joints]
    if any(drivers):
        fields["position"]["driver"] = drivers
        if has_velocity:
            fields["velocity"]["driver"] = [{k: v for k, v in each.items() if k != "offset"} for each in drivers]
    return fields


def assume_actuator(draft: Draft) -> list[str]:
    """Add the conventional command topic of the moving joints or a base, and return the joints."""
    joints = [name for name, joint in draft.joints.items() if joint.moves]
    name, topic = ("arm", "forward_position_controller/commands") if joints else ("base", "cmd_vel")
    if joints:
        spec = {"topic": topic, "type": "std_msgs/msg/Float64MultiArray", "command": "position_delta"}
        add_joint_actuator(draft, name, spec, joints)
    else:
        add_base(draft, topic, "geometry_msgs/msg/Twist", {})
    draft.choose(f"actuators.{name}.topic", "assumed; no source names the command topic")
    if len(joints) > 1:
        ask_order(draft, name, topic, joints, "order of the description")
    where = "ros2 topic list -t, with the controller active; then contract init --from-graph"
    draft.gap(f"command topic ({topic} written)", where)
    return joints


def ask_order(draft: Draft, name: str, topic: str, joints: list[str], assumed: str) -> None:
    """Ask for the joint order of a message without names, since even a hold depends on it."""
    where = f"the parameter `joints` of the controller, or the driver's documentation; set actuators.{name}.joints"
    draft.ask(f"actuators.{name}.joints", f"joints of {topic}: {', '.join(joints)} ({assumed} written)", where)


def finish_draft(draft: Draft) -> None:
    """Add the conventional topics where the sources name none, so that the contract validates."""
    if not draft.actuators:
        assume_actuator(draft)
    reported = {
        joint
        for sensor in draft.sensors.values()
        if sensor["type"] == JOINT_SENSOR and "position" in sensor["fields"]
        for joint in sensor["fields"]["position"]["joints"]
    }
    commanded = [j for a in draft.actuators.values() if a["command"] != "twist" for j in a["joints"]]
    missing = [joint for joint in commanded if joint not in reported]
    if missing or not draft.sensors:
        if missing:
            is_used = "joint_states" in {sensor["topic"] for sensor in draft.sensors.values()}
            topic, fields = "missing/" * is_used + "joint_states", joint_fields(draft, missing, has_velocity=False)
            added = {"topic": topic, "type": JOINT_SENSOR, "fields": fields, "max_age_s": MAX_AGE_S}
            draft.sensors["missing_joints" if "joints" in draft.sensors else "joints"] = added
            what = f"topic with the positions of {', '.join(missing)} ({topic} written)"
            draft.gap(what, "ros2 topic list -t, then ros2 topic echo")
        else:
            fields = {"linear": {"unit": "m/s", **_UNBOUNDED}, "angular": {"unit": "rad/s", **_UNBOUNDED}}
            odometry = {"topic": "odom", "type": "nav_msgs/msg/Odometry", "fields": fields, "max_age_s": 0.5}
            draft.sensors["odom"] = odometry
            draft.gap("topic of a sensor (odom assumed)", "ros2 topic list -t")

    if draft.world is None and draft.robot is None and "base" in draft.actuators:
        _add_world(draft)
        return
    is_alone = all(sensor["type"] == JOINT_SENSOR for sensor in draft.sensors.values())
    if draft.world is not None and not (is_alone and all(a["command"] != "twist" for a in draft.actuators.values())):
        where = "add backends.mujoco with `sources` and `drives`, see docs/reference/contract.md"
        draft.gap("what the model has for each sensor and wheel: backends.mujoco is left out", where)
        draft.world = None


def add_base(
    draft: Draft, topic: str, kind: str, limits: Mapping[str, Document], *, moves_sideways: bool | None = None
) -> None:
    """Add a mobile base, whose limits are the known ones by axis or else conservative."""
    is_sideways = moves_sideways or draft.moves_sideways
    axes = [axis for axis in AXES if axis != "linear.y" or is_sideways]
    joints = {axis: {**AXES[axis], **limits.get(axis, {})} for axis in axes}
    draft.actuators["base"] = {"topic": topic, "type": kind, "command": "twist", "joints": joints}
    keys = ("velocity", "acceleration")
    unknown = [f"{key} of {axis}" for axis in axes for key in keys if key not in limits.get(axis, {})]
    if unknown:
        draft.choose("actuators.base.joints", f"conservative {', '.join(unknown)}")
        where = "data sheet or the controller's parameters; set actuators.base.joints"
        draft.gap(f"{', '.join(unknown)} (conservative values written)", where)
    if moves_sideways is None and not is_sideways:
        draft.gap("whether the base moves sideways (linear.y is left out)", "contract init --sideways if it does")


def _add_world(draft: Draft) -> None:
    """Add a simulation of a base without a model, if it can simulate every sensor."""
    site, sources = {"site": "base_link"}, dict[str, Document]()
    for name, sensor in draft.sensors.items():
        scan = draft.scans.get(name)
        if sensor["type"] == "nav_msgs/msg/Odometry":
            sources[name] = {"odometry": site}
        elif sensor["type"] == "geometry_msgs/msg/PoseStamped" and draft.gazebo is not None:  # of the model
            sources[name] = dict(site)
        elif sensor["type"] == "sensor_msgs/msg/Imu":
            sources[name] = {"sensors": {field: f"{name}_{field}" for field in sensor["fields"]}}
        elif sensor.get("encoding") in RENDERED and sensor["type"] == "sensor_msgs/msg/Image":
            sources[name] = {"camera": name}
        elif scan is not None:
            sources[name] = {"rays": {**site, **scan}}
        elif sensor["type"] != JOINT_SENSOR:
            where = "add backends.mujoco without it or with its own source, see docs/reference/contract.md"
            draft.gap(f"a simulated {name} ({sensor['type']}): backends.mujoco is left out", where)
            return
    draft.world = {"sources": sources, "site_drives": {"base": site}}


def _down(value: float) -> float:
    return math.floor(value * 1e6 + 1e-3) / 1e6


def control_period_s(draft: Draft) -> float:
    """Return the control period, for Gazebo a multiple of its physics step."""
    is_base = bool(draft.actuators) and all(each.get("command") == "twist" for each in draft.actuators.values())
    fastest = BASE_PERIOD_S if is_base else PERIOD_S
    period_s = fastest if draft.slowest_hz is None else max(fastest, round(1.0 / draft.slowest_hz + 0.004, 2))
    if draft.gazebo is None:
        return period_s
    step_s: float = draft.gazebo["step_s"]
    return round(math.ceil(period_s / step_s - 1e-6) * step_s, 9)


def dump_draft(draft: Draft) -> str:
    """Return the commented YAML of a draft."""
    period_s = control_period_s(draft)
    margins = {
        joint: {"position": float(f"{margin:.1g}")}
        for actuator in draft.actuators.values()
        for joint, limits in actuator.get("joints", {}).items()
        if limits.get("position") is not None and draft.robot is None and "gripper" not in actuator
        if (margin := 0.05 * (limits["position"][1] - limits["position"][0])) < _MARGIN
    }
    document: Document = {"contract": SCHEMA, "name": draft.name, "version": 1}
    if draft.robot is not None:
        document["robot"] = draft.robot
    document |= {"control_period_s": period_s, "episode": {"horizon_steps": 200}, "action": {"dtype": "float32"}}
    document |= {key: value for key, value in (("sensors", draft.sensors), ("actuators", draft.actuators)) if value}
    if margins:
        document["safety"] = {"margins": {"joints": margins}}
        draft.comment("safety.margins", f"Smaller than {_MARGIN}, for joints with a small range.")
    if draft.robot is None:
        sensors = {name: parse_as(SensorSpec, spec, path=f"sensors.{name}") for name, spec in draft.sensors.items()}
        required = default_required(sensors, {joint for each in draft.actuators.values() for joint in each["joints"]})
        document.setdefault("safety", {})["observation"] = {"required": list(required)}
        draft.comment("safety.observation", "Without a valid reading of one of these, the robot brakes.")
    document["task"] = {"type": draft.task}
    draft.comment("task", "Any shipped task or your own, see docs/reference/contract.md.")
    backends: Document = {} if draft.robot else {"fake": {}}
    if draft.world is not None:
        backends |= {"mujoco": draft.world, "mujoco_ros": draft.world}
    if draft.gazebo is not None:
        backends["gazebo"] = draft.gazebo
    if draft.real or not draft.robot:
        backends["real"] = draft.real
        draft.comment(
            "backends.real", "Add `reset: {home: {JOINT: POSITION, ...}}` to home the robot before each episode."
        )
    if backends:
        document["backends"] = backends
    if draft.unknown:
        document["unknown"] = {path: "; ".join(questions) for path, questions in draft.unknown.items()}
        draft.comment("unknown", "`real` moves no robot until each value is set as it is and its line here is removed.")
    if draft.chosen:
        document["chosen"] = {path: "; ".join(reasons) for path, reasons in draft.chosen.items()}
        draft.comment("chosen", "Assumptions: correct each value, or list its path under `confirmed: [...]`.")
    heading = ["A draft of `embodied-env contract init`." + " Unknown when it was written:" * bool(draft.gaps)]
    heading += [f"- {what}: {where}" for what, where in draft.gaps]
    lines = [comment(line) for line in heading]
    return checked_text("\n".join([*lines, *_render(document, draft.comments)]) + "\n", document)


def _render(document: Document, comments: Mapping[str, list[str]], path: str = "", depth: int = 0) -> Iterator[str]:
    """Yield the lines of a mapping, with a short value without comments inside on one line."""
    indent = "  " * depth
    for key, value in document.items():
        at = f"{path}{key}"
        if depth == 0 and isinstance(value, dict) and key not in ("episode", "action"):
            yield ""
        yield from (f"{indent}{comment(line)}" for line in comments.get(at, ()))
        line = f"{indent}{_flow(key)}: {_flow(value)}"
        is_commented = any(each.startswith(f"{at}.") for each in comments)
        is_group = depth == 0 and key in ("sensors", "actuators", "backends", "chosen", "unknown")
        is_block = len(line) > _WIDEST or is_commented or is_group
        if isinstance(value, dict) and value and is_block and depth < DEEPEST:
            yield f"{indent}{_flow(key)}:"
            yield from _render(value, comments, f"{at}.", depth + 1)
        else:
            yield line


def _flow(value: Any) -> str:  # noqa: ANN401 - YAML types
    return dump_yaml([value], flow=True, width=2**31 - 1).strip()[1:-1]  # in a list, as a value alone ends a document
