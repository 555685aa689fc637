"""Valid contracts for tests, from one small document, changes to it, and Hypothesis strategies that draw others.

A document is the content of a contract file as Python values.
"""

import copy
import json
import math
from typing import Any

import numpy as np
from hypothesis import strategies as st

from embodied_env.contract import Contract, parse_contract
from embodied_env.contract.contract_schema import RESERVED
from embodied_env.contract.fingerprint import to_plain
from embodied_env.messages.commands import COMMAND_TYPES, TWIST_AXES
from embodied_env.messages.declaration import MessageField
from embodied_env.messages.images import ENCODINGS
from embodied_env.messages.message_types import JOINT_SENSOR, PATH_DTYPES
from embodied_env.messages.sensor_types import SENSOR_MESSAGES

Document = dict[str, Any]

ABSENT = object()
"""The value that `changed` takes as: without this key."""


def document() -> Document:
    """Return a small valid contract of an arm with the joints a and b and a reach task."""
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
        "task": {"type": "reach", "tip": "tcp", "target": "target", "success_radius_m": 0.03},
        "backends": {"fake": {"noise": [0.1, 0.2]}},
    }


def changed(path: str, value: object, base: Document | None = None) -> Document:
    """Return `base`, or `document()`, with `value` at the dotted `path`, or without it for ABSENT."""
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
    """Load a document from JSON, which is YAML except that NaN is written ``.nan``."""
    return parse_contract(json.dumps(source).replace("NaN", ".nan").replace("Infinity", ".inf"))


def document_of(contract: Contract) -> Document:
    """Return the document of `contract` with every default."""
    plain: Document = to_plain(contract)
    for key in RESERVED:
        del plain[key]
    task = plain.pop("task")
    return {"contract": "embodied_env/1", **plain, "task": {"type": task["type"], **task["parameters"]}}


names = st.text("abcxyz_019", min_size=1, max_size=6).filter(lambda name: name[0] in "abcxyz")
"""Names of contracts, sensors, actuators and reset options."""

path_names = names.filter(lambda name: "_" not in name)
"""Names of fields with a path: no sensor's name and such a name make the key of another sensor's field."""

frames = st.none() | st.sampled_from(["base_link", "map", ""])

joint_names = names | st.sampled_from(["y", "n", "on", "off", "yes", "true", "null", "1", "Joint-1", "~"])
"""Names of joints: those that YAML 1.1 takes for something else, too."""

topics = st.builds("{}{}".format, st.sampled_from(["", "/", "~/", "_", "arm/left/"]), names).filter(
    lambda topic: topic.removeprefix("/") != "clock"
)

finite = st.floats(-1e6, 1e6)

positive = st.floats(1e-3, 1e3)

fractions = st.floats(0.1, 1.0)

plain_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | finite | st.text("aZé ~#:-'\"\n", max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
"""Values of a task's parameters and of a backend's profile."""


@st.composite
def intervals(draw: st.DrawFn, wider_than: float = 0.0) -> tuple[float, float]:
    """Draw low < high, further apart than `wider_than`."""
    low = draw(st.floats(-100, 100))
    return low, low + wider_than + draw(st.floats(0.01, 100))


def whole_intervals(dtype: str) -> st.SearchStrategy[tuple[int, int]]:
    """Draw low < high representable by every integer type of eight bits or more, signed or not."""
    lows = st.integers(0 if dtype.startswith("u") else -100, 20)
    return st.tuples(lows, st.integers(1, 100)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@st.composite
def bounds(draw: st.DrawFn, size: int, dtype: str = "float64") -> Document:
    """Draw low and high, each one number or one per component."""
    interval = intervals() if dtype.startswith("float") else whole_intervals(dtype)
    distinct = min(size, 6)  # few draws, also for a covariance or an image
    pairs = draw(st.lists(interval, min_size=distinct, max_size=distinct))
    low, high = ([pairs[i % distinct][end] for i in range(size)] for end in (0, 1))
    return {"low": draw(st.sampled_from([low, min(low)])), "high": draw(st.sampled_from([high, max(high)]))}


velocity_ranges = st.tuples(positive | st.just(0.0), positive).map(lambda speeds: [-speeds[0], speeds[1]])


@st.composite
def joint_limits(draw: st.DrawFn, *, unit: str, margin: float, unlimited: bool) -> Document:
    """Draw the limits of one joint, which may be continuous if it is `unlimited`."""
    limits: Document = {
        "position": list(draw(intervals(wider_than=2 * margin))),
        "velocity": draw(positive | velocity_ranges),
        "acceleration": draw(positive),
        "unit": unit,
    }
    if unlimited and draw(st.booleans()):
        limits["position"] = None
    if draw(st.booleans()):
        limits["deceleration"] = draw(positive | st.none())
    if draw(st.booleans()):
        limits["jerk"] = draw(positive | st.none())
    return limits


@st.composite
def actuators(draw: st.DrawFn, topic: str, joints: list[str], unit: str, margin: float) -> Document:
    commands = [
        (type_, command, known.header)
        for type_, known in COMMAND_TYPES.items()
        if known.joints in (None, len(joints))
        for command in known.commands
        if command != "twist"
    ]
    type_, command, has_header = draw(st.sampled_from(commands))
    limits = joint_limits(unit=unit, margin=margin, unlimited=command != "position")
    document: Document = {
        "topic": topic,
        "type": type_,
        "command": command,
        "scale": draw(st.sampled_from(["normalized", "physical"])),
        "frame": draw(frames) if has_header else None,
        "joints": {joint: draw(limits) for joint in joints},
    }
    return {**document, **draw(grippers(document))} if "/action/" in type_ else document


@st.composite
def grippers(draw: st.DrawFn, actuator: Document) -> Document:
    """Draw the keys of the gripper of an action server."""
    ((joint, limits),) = actuator["joints"].items()
    ends = draw(st.permutations(limits["position"]))
    behaviour = draw(st.sampled_from(["hold", "open", "close"]))
    scale = draw(st.sampled_from(["normalized", "physical", "binary"]))
    joints = {joint: {**limits, "velocity": draw(positive)}}
    gripper = {"open": ends[0], "closed": ends[1], "on_stop": behaviour}
    return {"scale": scale, "joints": joints, "gripper": gripper}


@st.composite
def twists(draw: st.DrawFn, topic: str) -> Document:
    """Draw an actuator of some axes of a twist."""
    type_ = draw(st.sampled_from(["geometry_msgs/msg/Twist", "geometry_msgs/msg/TwistStamped"]))
    axes = draw(st.lists(st.sampled_from(list(TWIST_AXES)), min_size=1, unique=True))
    limits = {
        axis: draw(joint_limits(unit="m" if axis.startswith("linear") else "rad", margin=0.0, unlimited=False))
        for axis in axes
    }
    return {
        "topic": topic,
        "type": type_,
        "command": "twist",
        "scale": draw(st.sampled_from(["normalized", "physical"])),
        "frame": draw(frames) if COMMAND_TYPES[type_].header else None,
        "joints": {axis: {**limit, "position": None} for axis, limit in limits.items()},
    }


@st.composite
def path_fields(draw: st.DrawFn) -> Document:
    shape = draw(st.none() | st.lists(st.integers(1, 3), min_size=1, max_size=3))
    dtype = draw(st.none() | st.sampled_from(PATH_DTYPES))
    return {
        "path": draw(st.sampled_from(["data", "pose.pose.position.x", "points[0].positions", "a_1[12].b2"])),
        "unit": draw(st.sampled_from(["1", "furlong", "m"])),
        "shape": shape,
        "dtype": dtype,
        **draw(bounds(math.prod(shape or [1]), dtype or "float64")),
    }


resizes = st.fixed_dictionaries(
    {
        "size": st.lists(st.integers(1, 3), min_size=2, max_size=2),
        "method": st.sampled_from(["letterbox", "stretch", "crop"]),
        "resample": st.just("nearest"),
    }
)
angle_grids = st.integers(1, 3) | st.fixed_dictionaries(
    {"min_rad": st.floats(-3.0, 0.0), "max_rad": st.floats(0.1, 3.0), "count": st.integers(2, 3)}
)


@st.composite
def own_fields(draw: st.DrawFn, known: MessageField, encoding: str | None, joints: list[str], unit: str) -> Document:
    """Draw a field that the message type has, where the `unit` "" is any that it may have."""
    depth = encoding is not None and ENCODINGS[encoding].metres_per_unit is not None
    units = ("m",) if depth else known.units or ("1", "furlong")
    pixels = None if encoding is None else ENCODINGS[encoding]
    dtype = "float32" if depth else known.dtype if pixels is None else pixels.dtype
    result: Document = {"unit": unit or draw(st.sampled_from(units))}
    if known.shape is None:
        return {**result, "joints": joints, **draw(bounds(len(joints)))}
    shape: list = [draw(st.integers(1, 3)) if size is None else size for size in known.shape]
    if pixels is not None:
        shape = [shape[0] * pixels.divisor[0], shape[1] * pixels.divisor[1], pixels.channels]
    if list(known.shape) != shape:
        result["shape"] = shape
    if encoding is not None and (resize := draw(st.none() | resizes)) is not None:
        result["resize"] = resize
        shape = [*resize["size"], shape[2]]
    if known.column == "rays" and known.ranging and (angles := draw(st.none() | angle_grids)) is not None:
        result["resample"] = {"angles": angles, "method": draw(st.sampled_from(["nearest", "min"]))}
        shape = [angles if isinstance(angles, int) else angles["count"]]
    result |= draw(bounds(math.prod(shape), dtype))
    inside = (np.max(result["low"]).item(), np.min(result["high"]).item())
    if (known.ranging or depth) and inside[0] <= inside[1]:
        result |= {key: draw(st.none() | st.sampled_from(inside)) for key in ("no_return", "nan")}
    return result


@st.composite
def sensors(draw: st.DrawFn, topic: str, type_: str, joints: list[str], unit: str) -> Document:
    """Draw a sensor, which has at least the position, in `unit`, if its type is a joint state."""
    known = SENSOR_MESSAGES.get(type_)
    own = {} if known is None else known.fields
    encoding = draw(st.sampled_from(known.encodings)) if known is not None and known.encodings else None
    extra = draw(st.dictionaries(path_names, path_fields(), min_size=known is None, max_size=2))
    wanted = draw(st.lists(st.sampled_from(sorted(own)), min_size=1, unique=True)) if own else []
    fields: Document = dict(extra)
    for name in dict.fromkeys(["position", *wanted] if type_ == JOINT_SENSOR else wanted):
        own_unit = unit if type_ == JOINT_SENSOR and name == "position" else ""
        fields[name] = draw(own_fields(own[name], encoding, joints, own_unit))
    visibility = "agent" if type_ == JOINT_SENSOR else draw(st.sampled_from(["agent", "evaluator"]))
    if visibility == "agent":
        for field in fields.values():
            field["history"] = draw(st.none() | st.integers(1, 3))
    has_header = known is None or known.header
    return {
        "topic": topic,
        "type": type_,
        "fields": fields,
        "max_age_s": draw(positive),
        "rate_hz": draw(st.just(0) | positive),
        "on_gap": draw(st.sampled_from(["hold", "stop"])),
        "timeline": draw(st.sampled_from(["header", "receive"])) if has_header else "receive",
        "visibility": visibility,
        "mask": visibility == "agent" and draw(st.booleans()),
        "frame": draw(frames) if has_header else None,
        "child_frame": draw(frames) if type_ == "nav_msgs/msg/Odometry" else None,
        "encoding": encoding,
        "confidence_radius_m": draw(positive),
    }


counts = st.integers(1, 9)

gates_of_others = st.dictionaries(
    names.filter(lambda name: name != "workspace"), st.dictionaries(names, plain_values, max_size=2), max_size=2
)
"""Gates of third parties, with their parameters. No package needs to offer them: they are looked for later."""


@st.composite
def safeties(draw: st.DrawFn, sensors: Document) -> Document:
    """Draw the settings of the safety gate of a contract with these sensors."""
    hold, debounce, window = draw(counts), draw(counts), draw(counts)
    agents = [name for name, sensor in sensors.items() if sensor["visibility"] == "agent"]
    tracking = {
        "tolerance": draw(positive),
        "delay_steps": draw(st.integers(0, 5)),
        "debounce_steps": debounce,
        "stop_steps": debounce + draw(counts),
    }
    return {
        "mode": draw(st.sampled_from(["enforce", "monitor"])),
        "nonfinite": {"stop_after": draw(counts)},
        "watchdog": {"hold_steps": hold, "stop_steps": hold + draw(counts)},
        "observation": {
            "required": draw(st.none() | st.lists(st.sampled_from(agents), unique=True)),
            "stop_steps": draw(counts),
            "future_tolerance_s": draw(st.floats(0, 1)),
            "require_stamp": draw(st.booleans()),
        },
        "action": {"max_age_steps": draw(counts)},
        "tracking": draw(st.sampled_from([None, tracking])),
        "latency": {
            "budget_s": draw(st.none() | positive),
            "misses": draw(st.integers(1, window)),
            "window_steps": window,
            "action": draw(st.sampled_from(["warn", "hold"])),
        },
        "intervention": {
            "window_steps": draw(counts),
            "warn_share": draw(fractions),
            "stop_share": draw(st.none() | fractions),
        },
        "forces": {
            name: draw(force_limits(sensors[name]["fields"]))
            for name in draw(st.lists(st.sampled_from(sorted(sensors)), max_size=2, unique=True))
        },
        "gates": draw(gates_of_others),
    }


@st.composite
def force_limits(draw: st.DrawFn, fields: Document) -> Document:
    """Draw the limit of one of these fields, below the magnitude at which it may saturate."""
    name = draw(st.sampled_from(sorted(fields)))
    ends = [np.ravel(np.array(fields[name].get(key, math.inf), dtype=np.float64)) for key in ("low", "high")]
    largest = float(np.abs(np.concatenate(ends)).max())
    limit = draw(positive)
    return {"field": name, "limit": min(limit, largest / 2) if largest > 0.0 else limit}


@st.composite
def margins(draw: st.DrawFn) -> Document:
    """Draw the margins of the safety gate."""
    return {"position": draw(st.floats(0, 0.1)), "velocity": draw(fractions), "acceleration": draw(fractions)}


@st.composite
def reset_options(draw: st.DrawFn) -> Document:
    size = draw(st.integers(0, 3))
    pairs = draw(st.lists(intervals(), min_size=size or 1, max_size=size or 1))
    low, high = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    option: Document = {"type": "vector" if size else "scalar"}
    bounds: Document = {"low": low, "high": high} if size else {"low": low[0], "high": high[0]}
    kind = draw(st.sampled_from(["uniform", "log_uniform", "normal", "choice"]))
    if kind == "choice":
        return {**option, "distribution": kind, "values": list(bounds.values())}
    if kind == "normal":
        return {**option, **bounds, "distribution": kind, "mean": bounds["low"], "std": 0.5}
    return option | bounds | ({"distribution": kind} if kind == "uniform" or min(low) > 0 else {})


@st.composite
def documents(draw: st.DrawFn) -> Document:
    """Draw a valid contract.

    1 or 2 actuators with 1 to 6 joints in all, a joint sensor for each, up to 3 more sensors, and perhaps a twist.
    """
    joints = draw(st.lists(joint_names, min_size=1, max_size=6, unique=True))
    cut = draw(st.integers(1, len(joints)))
    groups = [group for group in (joints[:cut], joints[cut:]) if group]
    units = [draw(st.sampled_from(["rad", "m"])) for _ in groups]
    types = st.sampled_from([*sorted(set(SENSOR_MESSAGES) - {JOINT_SENSOR}), "my_msgs/msg/Thing2"])
    kinds = [(JOINT_SENSOR, group, unit) for group, unit in zip(groups, units, strict=True)]
    kinds += [(type_, groups[0], "") for type_ in draw(st.lists(types, max_size=3))]
    count = len(kinds)
    sensor_names = draw(st.lists(names, min_size=count, max_size=count, unique=True))
    distinct = draw(
        st.lists(topics, min_size=count + 3, max_size=count + 3, unique_by=lambda topic: topic.removeprefix("/"))
    )
    sensor_topics, command_topics = distinct[:count], distinct[count:]
    insets = draw(margins())
    margin = insets["position"]
    seen = {
        name: draw(sensors(topic, *kind)) for name, topic, kind in zip(sensor_names, sensor_topics, kinds, strict=True)
    }
    return {
        "contract": "embodied_env/1",
        "name": draw(names),
        "version": draw(st.integers(1, 99)),
        "control_period_s": draw(positive),
        "episode": {
            "horizon_steps": draw(st.integers(1, 1000)),
            "kind": draw(st.sampled_from(["time_limit", "finite_horizon"])),
        },
        "sensors": seen,
        "actuators": {
            **{
                f"actuator_{i}": draw(actuators(command_topics[i], group, unit, margin))
                for i, (group, unit) in enumerate(zip(groups, units, strict=True))
            },
            **({"base": draw(twists(command_topics[2]))} if draw(st.booleans()) else {}),
        },
        "applied_actions": draw(st.integers(0, 3)),
        "safety": {"margins": insets, **draw(safeties(seen))},
        "reset_options": draw(st.dictionaries(names, reset_options(), max_size=2)),
        "task": {
            **draw(st.dictionaries(names.filter(lambda name: name != "type"), plain_values, max_size=3)),
            "type": "reach",
        },
        "backends": draw(st.dictionaries(names, st.dictionaries(names, plain_values, max_size=3), max_size=2)),
    }


contracts = documents().map(parse)
"""Sound contracts."""
