"""Validate the sensors of a contract, and that no observation key or topic is declared twice."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import numpy as np

from embodied_env.contract.contract_schema import (
    AGES,
    APPLIED_ACTIONS,
    PRESETS,
    TIME_REMAINING,
    ActuatorSpec,
    ContractFields,
    FieldSpec,
    Qos,
    QosSpec,
    SensorSpec,
)
from embodied_env.contract.spaces import derived_shape, message_field
from embodied_env.contract.value_checks import (
    allow,
    check_bounds,
    check_magnitude,
    check_name,
    check_positive,
    check_text,
    check_topic,
    one_of,
    require,
)
from embodied_env.messages.message_types import (
    ENCODINGS,
    JOINT_SENSOR,
    PATH_DTYPES,
    SENSOR_MESSAGES,
    MessageField,
    Shape,
)

MAX_DEPTH = 10_000  # messages; a longer queue hides a slow reader
MAX_VALUES = 100_000_000  # of one field: an image of 7680 x 4320 x 3 is just below
MAX_HISTORY = 1000  # readings

_MAX_ANGLE_RAD = 2 * math.tau

_TYPE = re.compile(r"[a-z][a-z0-9_]*/msg/[A-Z][A-Za-z0-9]*")
_PATH = re.compile(r"[a-z][a-z0-9_]*(\[[0-9]+\])?(\.[a-z][a-z0-9_]*(\[[0-9]+\])?)*")


def check_sensor(name: str, sensor: SensorSpec) -> None:
    """Check one sensor; raises ContractError."""
    path = f"sensors.{name}"
    check_name(path, name)
    check_topic(f"{path}.topic", sensor.topic)
    check_qos(f"{path}.qos", sensor.qos)
    _check_type(path, sensor)
    check_positive(f"{path}.max_age_s", sensor.max_age_s, "seconds")
    allow(0 <= sensor.rate_hz < math.inf, f"{path}.rate_hz", sensor.rate_hz, "a rate in Hz, or 0 for every step")
    if sensor.rate_hz:
        check_magnitude(f"{path}.rate_hz", sensor.rate_hz)
    check_positive(f"{path}.confidence_radius_m", sensor.confidence_radius_m, "m")
    allow(len(sensor.fields) > 0, f"{path}.fields", "empty", "at least one field")
    is_hidden = sensor.visibility == "evaluator"
    allow(not (sensor.mask and is_hidden), f"{path}.mask", "true", "false: evaluator sensors are not observed")
    for field_name, spec in sensor.fields.items():
        _check_field(f"{path}.fields.{field_name}", field_name, spec, sensor)


def check_keys(contract: ContractFields) -> None:
    """Check that the keys of the observation differ."""
    owners = {TIME_REMAINING: "episode.kind", APPLIED_ACTIONS: "applied_actions"}
    keys = [(name, f"reset_options.{name}") for name, option in contract.reset_options.items() if option.observed]
    for name, sensor in contract.sensors.items():
        if sensor.visibility == "evaluator":
            continue
        keys += [(f"{name}_{field}", f"sensors.{name}.fields.{field}") for field in sensor.fields]
        histories = [field for field, spec in sensor.fields.items() if spec.history is not None]
        keys += [(f"{name}_{field}{AGES}", f"sensors.{name}.fields.{field}.history") for field in histories]
        if sensor.mask:
            keys.append((f"{name}_valid", f"sensors.{name}.mask"))
    for key, path in keys:
        allow(key not in owners, path, f"duplicate observation key {key!r}", f"unique: {owners.get(key)} has it")
        owners[key] = path


def check_topics_differ(sensors: Mapping[str, SensorSpec], actuators: Mapping[str, ActuatorSpec]) -> None:
    """Check that the topics differ from each other and from those of the embedded simulator.

    Joint states of different joints may share a topic.
    """
    owners = {"clock": "simulated time"}
    seen: dict[str, set[str]] = {}  # topic of joint states -> their joints
    of_sensors = {f"sensors.{name}": sensor.topic for name, sensor in sensors.items()}
    for owner, topic in (of_sensors | {f"actuators.{name}": a.topic for name, a in actuators.items()}).items():
        name = topic.removeprefix("/")
        sensor = sensors.get(owner.removeprefix("sensors."))
        if sensor is not None and sensor.type == JOINT_SENSOR:
            joints = {joint for field in sensor.fields.values() for joint in field.joints or ()}
            is_other = name in seen and joints and seen[name].isdisjoint(joints)
            seen.setdefault(name, set()).update(joints)
            if is_other:
                continue
        taken = "the simulator's node" if name.startswith("simulator/") else owners.get(name)
        allow(taken is None, f"{owner}.topic", f"{topic!r} is already used by {taken}", "one topic for each")
        owners[name] = owner


def check_qos(path: str, qos: Qos) -> None:
    """Check types too: a contract may be built in Python, without the loader's checks."""
    if qos is None:
        return
    if not isinstance(qos, QosSpec):
        presets = f"{', '.join(sorted(PRESETS))}, or a mapping of depth, reliability, durability"
        allow(isinstance(qos, str) and qos in PRESETS, path, repr(qos), presets)
        return
    is_depth = type(qos.depth) is int and 1 <= qos.depth <= MAX_DEPTH
    allow(is_depth, f"{path}.depth", repr(qos.depth), f"a whole number of messages from 1 to {MAX_DEPTH}")
    for key, choices in (("reliability", ("best_effort", "reliable")), ("durability", ("transient_local", "volatile"))):
        value = getattr(qos, key)
        allow(value in choices, f"{path}.{key}", repr(value), ", ".join(choices))
    is_kept = qos.durability == "volatile" or qos.reliability == "reliable"
    allow(is_kept, f"{path}.reliability", "'best_effort'", "reliable with durability transient_local")


def _check_type(path: str, sensor: SensorSpec) -> None:
    """Check the type, and the keys that only some types have."""
    known = SENSOR_MESSAGES.get(sensor.type)
    by_path = all(spec.path is not None for spec in sensor.fields.values())
    is_known = known is not None or (by_path and _TYPE.fullmatch(sensor.type) is not None)
    problem = f"unknown message type {one_of(sensor.type, SENSOR_MESSAGES)}"
    require(is_known, f"{path}.type", f"{problem} (any other package/msg/Type needs a path in each field)")
    check_header(path, sensor, has_header=known is None or known.header)
    has_child_frame, child_frame = sensor.type == "nav_msgs/msg/Odometry", sensor.child_frame
    expected = "none: only nav_msgs/msg/Odometry has one"
    allow(child_frame is None or has_child_frame, f"{path}.child_frame", repr(child_frame), expected)
    encodings, encoding = () if known is None else known.encodings, sensor.encoding
    if encoding is None:
        allow(not encodings, f"{path}.encoding", "missing", f"one of: {', '.join(sorted(encodings))}")
    else:
        allow(len(encodings) > 0, f"{path}.encoding", repr(encoding), f"none: {sensor.type} has no encoding")
        require(encoding in encodings, f"{path}.encoding", f"unknown encoding {one_of(encoding, encodings)}")


def check_header(path: str, sensor: SensorSpec, *, has_header: bool) -> None:
    """Check that a sensor at `path` uses the header of its messages only if they have one."""
    no_header = f"{sensor.type} has no header"
    is_received = has_header or sensor.timeline == "receive"
    allow(is_received, f"{path}.timeline", repr(sensor.timeline), f"'receive': {no_header}")
    allow(has_header or sensor.frame is None, f"{path}.frame", repr(sensor.frame), f"none: {no_header}")


def _check_field(path: str, name: str, spec: FieldSpec, sensor: SensorSpec) -> None:
    if spec.path is None:
        known = SENSOR_MESSAGES[sensor.type].fields
        require(name in known, path, f"unknown field {one_of(name, known)} (any other field needs a path)")
        allow(spec.dtype is None, f"{path}.dtype", repr(spec.dtype), "none: the message type fixes it")
    else:
        check_name(path, name)
        is_path = _PATH.fullmatch(spec.path) is not None
        allow(is_path, f"{path}.path", f"invalid path {spec.path!r}", "a field path such as pose.position.x or data[0]")
        require(spec.dtype in (None, *PATH_DTYPES), f"{path}.dtype", f"unknown dtype {one_of(spec.dtype, PATH_DTYPES)}")
    for joint in spec.joints or ():
        check_text(f"{path}.joints", joint)
    resolved = message_field(sensor, name, spec)
    size = _checked_size(path, name, spec, sensor)
    if spec.resample is not None or spec.resize is not None:
        _check_derivation(path, name, spec, sensor)
        size = math.prod(derived_shape(spec, spec.shape or ()))
    if spec.history is not None:
        _check_history(path, spec.history, size, sensor)
    _check_units(path, f"{sensor.type} {name}", spec, resolved)
    has_limits = resolved.saturates or resolved.ranging or np.dtype(resolved.dtype).kind in "iu"
    check_bounds(path, spec.low, spec.high, size, infinite=not has_limits)
    _check_precision(path, spec, resolved)
    for key, value in (("no_return", spec.no_return), ("nan", spec.nan)):
        if value is not None:
            is_unmeasured = resolved.ranging or (key == "nan" and spec.resample is not None)
            allow(is_unmeasured, f"{path}.{key}", value, f"none: {name} is not a measured distance")
            is_inside = bool(np.all(np.less_equal(spec.low, value)) and np.all(np.less_equal(value, spec.high)))
            allow(is_inside, f"{path}.{key}", value, f"a number from low {spec.low} to high {spec.high}")


def _check_derivation(path: str, name: str, spec: FieldSpec, sensor: SensorSpec) -> None:
    if (resample := spec.resample) is not None:
        path = f"{path}.resample"
        is_scan = sensor.type == "sensor_msgs/msg/LaserScan" and spec.path is None
        allow(is_scan, path, name, "a field of a sensor_msgs/msg/LaserScan")
        allow(resample.method == "nearest" or name == "ranges", f"{path}.method", "'min'", f"nearest for {name}")
        if isinstance(angles := resample.angles, int):
            allow(1 <= angles <= MAX_VALUES, f"{path}.angles", angles, f"a number from 1 to {MAX_VALUES}")
            return
        path = f"{path}.angles"
        allow(2 <= angles.count <= MAX_VALUES, f"{path}.count", angles.count, f"a number from 2 to {MAX_VALUES}")
        is_turn = 0 < angles.max_rad - angles.min_rad <= math.tau
        expected = "above min_rad, by at most a turn (2 pi)"
        allow(
            is_turn and max(abs(angles.min_rad), abs(angles.max_rad)) < _MAX_ANGLE_RAD, path, angles.max_rad, expected
        )
    if (resize := spec.resize) is not None:
        path = f"{path}.resize"
        allow(sensor.encoding is not None and spec.path is None, path, name, "the field image of a camera")
        is_size = min(resize.size) >= 1 and math.prod(resize.size) * ENCODINGS[sensor.encoding or "rgb8"].channels
        allow(
            1 <= is_size <= MAX_VALUES,
            f"{path}.size",
            list(resize.size),
            f"[height, width], at most {MAX_VALUES} values",
        )
        is_depth = ENCODINGS[sensor.encoding or "rgb8"].metres_per_unit is not None
        expected = "nearest: other filters mix depths across edges"
        allow(not is_depth or resize.resample == "nearest", f"{path}.resample", repr(resize.resample), expected)


def _check_history(path: str, length: int, size: int, sensor: SensorSpec) -> None:
    path = f"{path}.history"
    allow(1 <= length <= MAX_HISTORY, path, length, f"a number of control steps from 1 to {MAX_HISTORY}")
    allow(length * size <= MAX_VALUES, path, f"{length * size} values", f"at most {MAX_VALUES}")
    allow(sensor.visibility == "agent", path, length, "none: evaluator sensors are not observed")


def _checked_size(path: str, name: str, spec: FieldSpec, sensor: SensorSpec) -> int:
    """Return the number of values of a field, by its joints, its declared shape, or its message type."""
    pattern = _shape_pattern(name, spec, sensor)
    if pattern is None:
        joints = spec.joints or ()
        allow(len(joints) > 0, f"{path}.joints", "missing", "a list of joint names")
        for joint in joints:
            allow(joints.count(joint) == 1, f"{path}.joints", f"duplicate joint {joint!r}", "each joint once")
        allow(spec.shape is None, f"{path}.shape", list(spec.shape or ()), "none: it is the number of joints")
        return len(joints)
    allow(spec.joints is None, f"{path}.joints", list(spec.joints or ()), f"none: {sensor.type} {name} has no joints")
    lengths = ", ".join("n >= 1" if wanted is None else str(wanted) for wanted in pattern)
    expected = f"[{lengths}]" + (f" with encoding {sensor.encoding}" if sensor.encoding and spec.path is None else "")
    if spec.shape is None:
        allow(None not in pattern, f"{path}.shape", "missing", expected)
        return math.prod(wanted or 0 for wanted in pattern)
    fits = len(pattern) == len(spec.shape) and all(
        size >= 1 and wanted in (None, size) for size, wanted in zip(spec.shape, pattern, strict=True)
    )
    allow(fits, f"{path}.shape", list(spec.shape), expected)
    size = math.prod(spec.shape)
    allow(size <= MAX_VALUES, f"{path}.shape", f"{size} values", f"at most {MAX_VALUES}")
    return size


def _shape_pattern(name: str, spec: FieldSpec, sensor: SensorSpec) -> Shape | None:
    """Return the required shape of a field, with None for any length. None: one value per joint."""
    if spec.path is not None:
        return (1,) if spec.shape is None else (None,) * max(1, len(spec.shape))
    if sensor.encoding is not None:
        return (None, None, ENCODINGS[sensor.encoding].channels)
    return SENSOR_MESSAGES[sensor.type].fields[name].shape


def _check_units(path: str, name: str, spec: FieldSpec, resolved: MessageField) -> None:
    """Check the unit of a field, or, for revolute and prismatic joints together, one unit per joint."""
    units = spec.unit if isinstance(spec.unit, tuple) else (spec.unit,)
    if isinstance(spec.unit, tuple):
        joints = len(spec.joints or ())
        expected = "one unit" + (f", or {joints} of them" if joints else "")
        allow(len(units) == joints > 0, f"{path}.unit", list(units), expected)
    if resolved.units is not None:
        for unit in units:
            allow(unit in resolved.units, f"{path}.unit", repr(unit), f"{' or '.join(resolved.units)} for {name}")


def _check_precision(path: str, spec: FieldSpec, resolved: MessageField) -> None:
    """Check that the field's type represents its bounds: others overflow, or lose their fractions."""
    whole = np.dtype(resolved.dtype).kind in "iu"
    info = np.iinfo(resolved.dtype) if whole else np.finfo(resolved.dtype)
    lowest, highest = (int(info.min), int(info.max)) if whole else (float(info.min), float(info.max))
    expected = f"{'whole ' if whole else ''}numbers from {lowest} to {highest}, the range of {resolved.dtype}"
    for key, bound in (("low", spec.low), ("high", spec.high)):
        for value in bound if isinstance(bound, tuple) else (bound,):
            fits = (lowest <= value <= highest or math.isinf(value)) and (not whole or float(value).is_integer())
            allow(fits, f"{path}.{key}", value, expected)
