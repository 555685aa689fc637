"""Sound contracts for tests: one small document, changes to it, and Hypothesis strategies that draw others.

A document is what stands in a contract file, as Python values.
"""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import strategies as st

from embodied_env.contract import Contract, parse_contract
from embodied_env.contract.fingerprint import to_plain
from embodied_env.contract.messages import JOINT_SENSOR, SENSOR_MESSAGES

Document = dict[str, Any]

ABSENT = object()
"""The value that `changed` takes as: without this key."""


def document() -> Document:
    """Return a small sound contract: an arm of the joints a and b that reaches."""
    limits = {"position": [-1.0, 2.0], "velocity": 3.0, "acceleration": 8.0}
    pose = {"type": "geometry_msgs/msg/PoseStamped", "max_age_s": 0.15}
    return {
        "contract": "embodied_env/1",
        "name": "small",
        "version": 1,
        "control_period_s": 0.05,
        "episode": {"horizon_steps": 20},
        "sensors": {
            "joints": {
                "topic": "joint_states",
                "type": JOINT_SENSOR,
                "fields": {"position": {"joints": ["a", "b"], "unit": "rad", "low": -4.0, "high": 4.0}},
                "max_age_s": 0.15,
            },
            "tcp": {"topic": "tcp_pose", "fields": {"position": {"unit": "m", "low": -2.0, "high": 2.0}}, **pose},
            "target": {"topic": "target_pose", "fields": {"position": {"unit": "m", "low": -2.0, "high": 2.0}}, **pose},
        },
        "actuators": {
            "arm": {
                "topic": "commands",
                "type": "std_msgs/msg/Float64MultiArray",
                "command": "position",
                "joints": {"a": dict(limits), "b": dict(limits)},
            }
        },
        "safety": {"margins": {"position": 0.02, "velocity": 0.95, "acceleration": 0.9}},
        "reset_options": {"target": {"type": "vector", "low": [0.1, 0.1, 0.1], "high": [0.5, 0.5, 0.5]}},
        "task": {
            "type": "embodied_env.tasks.reach:Reach",
            "tip": "tcp",
            "target": "target",
            "success_radius_m": 0.03,
        },
        "backends": {"fake": {"noise": [0.1, 0.2]}},
    }


def changed(path: str, value: object, base: Document | None = None) -> Document:
    """Return `base` (default: `document()`) with `value` at the dotted `path`, or without it for ABSENT."""
    result = copy.deepcopy(document() if base is None else base)
    *parents, last = path.split(".")
    node = result
    for key in parents:
        node = node.setdefault(key, {})
    if value is ABSENT:
        del node[last]
    else:
        node[last] = value
    return result


def parse(source: Document) -> Contract:
    """Load a document; JSON is YAML, except that NaN is written ``.nan``."""
    return parse_contract(json.dumps(source).replace("NaN", ".nan").replace("Infinity", ".inf"))


def document_of(contract: Contract) -> Document:
    """Return the document that says what `contract` is, every default written out."""
    plain: Document = to_plain(contract)
    del plain["source"], plain["text"]
    task = plain.pop("task")
    return {"contract": "embodied_env/1", **plain, "task": {"type": task["type"], **task["parameters"]}}


names = st.text("abcxyz_019", min_size=1, max_size=6).filter(lambda name: name[0] in "abcxyz")
"""Names of contracts, sensors, actuators and reset options."""

joint_names = names | st.sampled_from(["y", "n", "on", "off", "yes", "true", "null", "1", "Joint-1", "~"])
"""Names of joints: those that YAML 1.1 takes for something else, too."""

topics = st.builds("{}{}".format, st.sampled_from(["", "/", "~/", "_", "arm/left/"]), names)

finite = st.floats(-1e6, 1e6)

positive = st.floats(1e-3, 1e3)

fractions = st.floats(0.1, 1.0)

plain_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | finite | st.text("aZé ~#:-'\"\n", max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
"""What may stand in a task's parameters and in a backend's profile."""


@st.composite
def intervals(draw: st.DrawFn, wider_than: float = 0.0) -> tuple[float, float]:
    """Draw low < high, further apart than `wider_than`."""
    low = draw(st.floats(-100, 100))
    return low, low + wider_than + draw(st.floats(0.01, 100))


@st.composite
def bounds(draw: st.DrawFn, size: int) -> Document:
    """Draw low and high, each one number or one per component."""
    pairs = draw(st.lists(intervals(), min_size=size, max_size=size))
    low, high = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return {
        "low": draw(st.sampled_from([low, min(low)])),
        "high": draw(st.sampled_from([high, max(high)])),
    }


@st.composite
def joint_limits(draw: st.DrawFn, *, unit: str, margin: float, unlimited: bool) -> Document:
    """Draw the limits of one joint; `unlimited` allows a continuous one."""
    limits: Document = {
        "position": list(draw(intervals(wider_than=2 * margin))),
        "velocity": draw(positive),
        "acceleration": draw(positive),
        "unit": unit,
    }
    if unlimited and draw(st.booleans()):
        limits["position"] = None
    if draw(st.booleans()):
        limits["deceleration"] = draw(positive | st.none())
    return limits


@st.composite
def actuators(draw: st.DrawFn, topic: str, joints: list[str], unit: str, margin: float) -> Document:
    """Draw an actuator of `joints`."""
    command = draw(st.sampled_from(["position", "position_delta"]))
    limits = joint_limits(unit=unit, margin=margin, unlimited=command == "position_delta")
    return {
        "topic": topic,
        "type": "std_msgs/msg/Float64MultiArray",
        "command": command,
        "scale": draw(st.sampled_from(["normalized", "physical"])),
        "joints": {joint: draw(limits) for joint in joints},
    }


@st.composite
def sensors(draw: st.DrawFn, topic: str, type_: str, joints: list[str], unit: str) -> Document:
    """Draw a sensor; one of joints has at least their position, in `unit`."""
    known = SENSOR_MESSAGES[type_].fields
    wanted = draw(st.lists(st.sampled_from(sorted(known)), min_size=1, unique=True))
    fields: Document = {}
    for name in dict.fromkeys(["position", *wanted] if type_ == JOINT_SENSOR else wanted):
        shape = known[name].shape
        own_unit = unit if type_ == JOINT_SENSOR and name == "position" else draw(st.sampled_from(known[name].units))
        of_joints = {"joints": joints} if shape is None else {}
        fields[name] = {"unit": own_unit, **of_joints, **draw(bounds(len(joints) if shape is None else shape[0]))}
    visibility = draw(st.sampled_from(["agent", "evaluator"]))
    return {
        "topic": topic,
        "type": type_,
        "fields": fields,
        "max_age_s": draw(positive),
        "rate_hz": draw(st.just(0) | positive),
        "on_gap": draw(st.sampled_from(["hold", "stop"])),
        "timeline": "header",
        "visibility": visibility,
        "mask": visibility == "agent" and draw(st.booleans()),
    }


@st.composite
def safeties(draw: st.DrawFn) -> Document:
    """Draw the settings of the safety gate."""
    hold = draw(st.integers(1, 5))
    return {
        "mode": draw(st.sampled_from(["enforce", "monitor"])),
        "margins": {
            "position": draw(st.floats(0, 0.1)),
            "velocity": draw(fractions),
            "acceleration": draw(fractions),
        },
        "nonfinite": {"stop_after": draw(st.integers(1, 9))},
        "watchdog": {"hold_steps": hold, "stop_steps": hold + draw(st.integers(1, 9))},
    }


@st.composite
def reset_options(draw: st.DrawFn) -> Document:
    """Draw one reset option: a scalar, or a vector."""
    size = draw(st.integers(0, 3))
    pairs = draw(st.lists(intervals(), min_size=size or 1, max_size=size or 1))
    low, high = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return {"type": "vector", "low": low, "high": high} if size else {"type": "scalar", "low": low[0], "high": high[0]}


@st.composite
def documents(draw: st.DrawFn) -> Document:
    """Draw a sound contract: 1 or 2 actuators of 1 to 6 joints in all, a joint sensor of each, up to 3 more sensors."""
    joints = draw(st.lists(joint_names, min_size=1, max_size=6, unique=True))
    cut = draw(st.integers(1, len(joints)))
    groups = [group for group in (joints[:cut], joints[cut:]) if group]
    units = [draw(st.sampled_from(["rad", "m"])) for _ in groups]
    others = draw(st.lists(st.sampled_from(sorted(set(SENSOR_MESSAGES) - {JOINT_SENSOR})), max_size=3))
    kinds = [(JOINT_SENSOR, group, unit) for group, unit in zip(groups, units, strict=True)]
    kinds += [(type_, [], "") for type_ in others]
    distinct = {"min_size": len(kinds), "max_size": len(kinds), "unique": True}
    sensor_names, sensor_topics = draw(st.lists(names, **distinct)), draw(st.lists(topics, **distinct))
    safety = draw(safeties())
    margin = safety["margins"]["position"]
    return {
        "contract": "embodied_env/1",
        "name": draw(names),
        "version": draw(st.integers(1, 99)),
        "control_period_s": draw(positive),
        "episode": {
            "horizon_steps": draw(st.integers(1, 1000)),
            "kind": draw(st.sampled_from(["time_limit", "finite_horizon"])),
        },
        "sensors": {
            name: draw(sensors(topic, *kind))
            for name, topic, kind in zip(sensor_names, sensor_topics, kinds, strict=True)
        },
        "actuators": {
            f"actuator_{i}": draw(actuators(draw(topics), group, unit, margin))
            for i, (group, unit) in enumerate(zip(groups, units, strict=True))
        },
        "safety": safety,
        "reset_options": draw(st.dictionaries(names, reset_options(), max_size=2)),
        "task": {
            **draw(st.dictionaries(names.filter(lambda name: name != "type"), plain_values, max_size=3)),
            "type": "embodied_env.tasks.reach:Reach",
        },
        "backends": draw(st.dictionaries(names, st.dictionaries(names, plain_values, max_size=3), max_size=2)),
    }


contracts = documents().map(parse)
"""Sound contracts."""
