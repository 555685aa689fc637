"""A draft contract: what is known of a robot, conservative values for the rest, and the list of what is missing."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from embodied_env.contract.contract_loader import parse_as
from embodied_env.contract.contract_schema import SCHEMA, SensorSpec
from embodied_env.contract.contract_validation import PLACEHOLDER_VELOCITY
from embodied_env.contract.required_sensors import default_required
from embodied_env.contract.urdf import MOST_JOINTS, MOVABLE, read_joints
from embodied_env.contract.value_checks import allow, check_magnitude, check_text
from embodied_env.contract.yaml_text import DEEPEST, checked_text, comment, dump_yaml
from embodied_env.errors import escaped
from embodied_env.messages.message_types import JOINT_SENSOR

Document = dict[str, Any]

VELOCITY = {"rad": 0.5, "m": 0.05}
ACCELERATION = {"rad": 1.0, "m": 0.2}
REACH = {"rad": 0.3, "m": 0.03}
"""Conservative limits by unit; the last is the range around the measured position, in both directions."""

AXES: Mapping[str, Document] = {
    "linear.x": {"velocity": 0.2, "acceleration": 0.4, "unit": "m"},
    "angular.z": {"velocity": 0.5, "acceleration": 1.0},
}
"""Conservative limits of a mobile base."""

PERIOD_S, BASE_PERIOD_S = 0.05, 0.1
MAX_AGE_S = 0.15
TASK = "no_goal"

_MARGIN = 0.02  # the default of `safety.margins.position`
_TWO_TURNS = 4.0 * math.pi
_UNBOUNDED = {"low": -math.inf, "high": math.inf}
_LEAST = 1e-5  # of a velocity and a range: drafts have six digits
_WIDEST = 110  # characters of a mapping on one line
_SLIDING = re.compile(
    r"finger|slid|prismatic|rail|gantry|carriage|linear|telescop|(?<!shoulder_)lift|\b[xyz]_?(axis|joint)|(axis|joint)_?[xyz]\b",
    re.IGNORECASE,
)


@dataclass(kw_only=True)
class Joint:
    """Limits and origin of a joint, in rad or m; None: unknown."""

    unit: str | None = None
    position: tuple[float, float] | None = None
    velocity: float | None = None
    placeholder: float | None = None  # velocity in all joints of the description
    acceleration: float | None = None
    measured: float | None = None
    is_continuous: bool = False
    source: str = ""  # of the limits
    moves: bool = True  # by itself: neither fixed nor mimicking another joint


@dataclass(kw_only=True)
class Draft:
    """A contract in the making. `comments` are by path; `gaps` are pairs of what is unknown and where to find it."""

    name: str
    robot: str | None = None
    task: str = TASK  # its type
    joints: dict[str, Joint] = field(default_factory=dict)
    sensors: Document = field(default_factory=dict)
    actuators: Document = field(default_factory=dict)
    real: Document = field(default_factory=dict)
    world: Document | None = None  # the profile of `mujoco`
    chosen: dict[str, list[str]] = field(default_factory=dict)
    comments: dict[str, list[str]] = field(default_factory=dict)
    gaps: list[tuple[str, str]] = field(default_factory=list)
    slowest_hz: float | None = None  # of the sensors of commanded joints

    def choose(self, path: str, reason: str) -> None:
        """Mark the value at `path` as chosen; `real` asks for its confirmation."""
        self.chosen.setdefault(path, []).append(reason)

    def comment(self, path: str, *lines: str) -> None:
        """Add comment lines above the key at `path`."""
        self.comments.setdefault(path, []).extend(lines)

    def gap(self, what: str, where: str) -> None:
        """Report something unknown, once."""
        what, where = escaped(what), escaped(where)
        if (what, where) not in self.gaps:
            self.gaps.append((what, where))


def add_urdf(draft: Draft, text: str | bytes, source: str) -> None:
    """Add the joints of a URDF and their limits; raises ContractError for a text that is no URDF."""
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
    """Check the name of a joint, and that its numbers are those of a real one; raises ContractError."""
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
        if known.measured is not None and known.position is not None:
            low, high = known.position
            if not low <= known.measured <= high:
                where = "check the unit and the zero of the driver, or move the robot inside"
                draft.gap(f"joint {joint} is at {known.measured:.4g}, outside its limits {[low, high]}", where)
            elif known.unit == "rad" and not known.is_continuous and abs(known.measured) > _TWO_TURNS:
                what = f"joint {joint} is at {known.measured:.4g} rad, more than two turns"
                draft.gap(what, "the unit of the driver: rad is expected, not degrees")
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


def _limits(name: str, joint: Joint, chosen: dict[str, list[str]], *, is_velocity: bool) -> Document:
    """Return the limits of a joint; list each assumption in `chosen`."""
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
        limits[key] = round(value or default, 6)
        if not value:
            chosen.setdefault(key, []).append(name)
    return limits if unit == "rad" else {**limits, "unit": unit}


def joint_fields(draft: Draft, joints: list[str], *, has_velocity: bool) -> Document:
    """Return the fields of a joint state sensor; bounds contain limits, if there are any, and measured positions."""
    units = [draft.joints[joint].unit or "rad" for joint in joints]
    ends = [abs(end) for j in joints for end in (*(draft.joints[j].position or ()), draft.joints[j].measured or 0.0)]
    bound, unit = round(max(ends) * 1.1 + 0.1, 2), units[0] if len(set(units)) == 1 else units
    bounds = [math.inf if draft.joints[joint].position is None else bound for joint in joints]
    low, high = ([-end for end in bounds], bounds) if len(set(bounds)) > 1 else (-bounds[0], bounds[0])
    speeds = f"{unit}/s" if isinstance(unit, str) else [f"{each}/s" for each in unit]
    position = {"joints": joints, "unit": unit, "low": low, "high": high}
    if not has_velocity:
        return {"position": position}
    return {"position": position, "velocity": {"joints": joints, "unit": speeds, **_UNBOUNDED}}


def assume_actuator(draft: Draft) -> list[str]:
    """Add the conventional command topic, of the joints that move or of a base; return the joints."""
    joints = [name for name, joint in draft.joints.items() if joint.moves]
    name, topic = ("arm", "forward_position_controller/commands") if joints else ("base", "cmd_vel")
    if joints:
        spec = {"topic": topic, "type": "std_msgs/msg/Float64MultiArray", "command": "position_delta"}
        add_joint_actuator(draft, name, spec, joints)
    else:
        add_base(draft, topic, "geometry_msgs/msg/Twist", {})
    draft.choose(f"actuators.{name}.topic", "assumed; no source names the command topic")
    where = "ros2 topic list -t, with the controller active; then contract init --from-graph"
    draft.gap(f"command topic ({topic} written)", where)
    return joints


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

    is_alone = all(sensor["type"] == JOINT_SENSOR for sensor in draft.sensors.values())
    if draft.world is not None and not (is_alone and all(a["command"] != "twist" for a in draft.actuators.values())):
        where = "add backends.mujoco with `sources` and `drives`, see docs/reference/contract.md"
        draft.gap("what the model has for each sensor and wheel: backends.mujoco is left out", where)
        draft.world = None


def add_base(draft: Draft, topic: str, kind: str, limits: Mapping[str, Document], name: str = "base") -> None:
    """Add a mobile base with the known `limits` by axis, and conservative ones."""
    joints = {axis: {**default, **limits.get(axis, {})} for axis, default in AXES.items()}
    draft.actuators[name] = {"topic": topic, "type": kind, "command": "twist", "joints": joints}
    keys = ("velocity", "acceleration")
    unknown = [f"{key} of {axis}" for axis in AXES for key in keys if key not in limits.get(axis, {})]
    if unknown:
        draft.choose(f"actuators.{name}.joints", f"conservative {', '.join(unknown)}")
        where = f"data sheet or the controller's parameters; set actuators.{name}.joints"
        draft.gap(f"{', '.join(unknown)} (conservative values written)", where)
    draft.gap("whether the base moves sideways (linear.y is left out)", "data sheet; add the axis linear.y if it does")


def _down(value: float) -> float:
    """Round down to six digits."""
    return math.floor(value * 1e6 + 1e-3) / 1e6


def dump_draft(draft: Draft) -> str:
    """Return the commented YAML of a draft."""
    is_base = bool(draft.actuators) and all(each.get("command") == "twist" for each in draft.actuators.values())
    fastest = BASE_PERIOD_S if is_base else PERIOD_S
    period_s = fastest if draft.slowest_hz is None else max(fastest, round(1.0 / draft.slowest_hz + 0.004, 2))
    margins = {
        joint: {"position": float(f"{margin:.1g}")}
        for actuator in draft.actuators.values()
        for joint, limits in actuator.get("joints", {}).items()
        if limits.get("position") is not None and draft.robot is None
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
    if draft.real or not draft.robot:
        backends["real"] = draft.real
        draft.comment(
            "backends.real", "Add `reset: {home: {JOINT: POSITION, ...}}` to home the robot before each episode."
        )
    if backends:
        document["backends"] = backends
    if draft.chosen:
        document["chosen"] = {path: "; ".join(reasons) for path, reasons in draft.chosen.items()}
        draft.comment("chosen", "Assumptions: correct each value, or list its path under `confirmed: [...]`.")
    heading = ["A draft of `embodied-env contract init`. Unknown when it was written:"]
    heading += [f"- {what}: {where}" for what, where in draft.gaps]
    lines = [comment(line) for line in (heading if draft.gaps else heading[:1])]
    return checked_text("\n".join([*lines, *_render(document, draft.comments)]) + "\n", document)


def _render(document: Document, comments: Mapping[str, list[str]], path: str = "", depth: int = 0) -> Iterator[str]:
    """Yield the lines of a mapping: one line for each that is short and without comments inside, else block style."""
    indent = "  " * depth
    for key, value in document.items():
        at = f"{path}{key}"
        if depth == 0 and isinstance(value, dict) and key not in ("episode", "action"):
            yield ""
        yield from (f"{indent}{comment(line)}" for line in comments.get(at, ()))
        line = f"{indent}{_flow(key)}: {_flow(value)}"
        is_commented = any(each.startswith(f"{at}.") for each in comments)
        is_group = depth == 0 and key in ("sensors", "actuators", "backends", "chosen")
        is_block = len(line) > _WIDEST or is_commented or is_group
        if isinstance(value, dict) and value and is_block and depth < DEEPEST:
            yield f"{indent}{_flow(key)}:"
            yield from _render(value, comments, f"{at}.", depth + 1)
        else:
            yield line


def _flow(value: Any) -> str:  # noqa: ANN401 - YAML types
    """Return a value in the flow style of YAML, on one line."""
    return dump_yaml([value], flow=True, width=2**31 - 1).strip()[1:-1]  # in a list: a value alone ends a document
