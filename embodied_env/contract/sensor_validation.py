"""Validate the sensors of a contract, with observation keys and topics declared once."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from embodied_env.contract.actuator_schema import ActuatorSpec
from embodied_env.contract.contract_schema import APPLIED_ACTIONS, TIME_REMAINING, ContractFields
from embodied_env.contract.qos_schema import Qos, QosSpec
from embodied_env.contract.sensor_schema import AGES, MAX_VALUES, FieldSpec, SensorSpec
from embodied_env.contract.spaces import derived_shape, field_layouts, field_of_type, message_field, reading_dtype
from embodied_env.contract.value_checks import allow, check_bounds, check_driver, one_of, require
from embodied_env.messages.declaration import MessageField
from embodied_env.messages.images import ENCODINGS
from embodied_env.messages.message_types import JOINT_SENSOR, PATH_DTYPES
from embodied_env.messages.sensor_types import SENSOR_MESSAGES

_MAX_ANGLE_RAD = 2 * math.tau

_TYPE = re.compile(r"[a-z][a-z0-9_]*/msg/[A-Z][A-Za-z0-9]*")


def check_sensor(name: str, sensor: SensorSpec) -> None:
    """Check one sensor, or raise ContractError."""
    path = f"sensors.{name}"
    check_qos(f"{path}.qos", sensor.qos)
    _check_type(path, sensor)
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
    """Check that topics differ, except those of joint states of different joints."""
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
    """Check that only a reliable publisher keeps messages for late subscribers."""
    is_kept = not isinstance(qos, QosSpec) or qos.durability == "volatile" or qos.reliability == "reliable"
    allow(is_kept, f"{path}.reliability", "'best_effort'", "reliable with durability transient_local")


def _check_type(path: str, sensor: SensorSpec) -> None:
    known = SENSOR_MESSAGES.get(sensor.type)
    by_path = all(spec.path is not None for spec in sensor.fields.values())
    is_known = known is not None or (by_path and _TYPE.fullmatch(sensor.type) is not None)
    problem = f"unknown message type {one_of(sensor.type, SENSOR_MESSAGES)}"
    require(is_known, f"{path}.type", f"{problem} (any other package/msg/Type needs a path in each field)")
    check_header(path, sensor, has_header=known is None or known.header)
    expected = f"none: only {', '.join(name for name, each in SENSOR_MESSAGES.items() if each.child_frame)} has one"
    has_child_frame = known is not None and known.child_frame
    allow(sensor.child_frame is None or has_child_frame, f"{path}.child_frame", repr(sensor.child_frame), expected)
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
        require(spec.dtype in (None, *PATH_DTYPES), f"{path}.dtype", f"unknown dtype {one_of(spec.dtype, PATH_DTYPES)}")
    resolved = message_field(sensor, name, spec)
    resolved = replace(resolved, dtype=reading_dtype(spec, resolved).name)
    size = _checked_size(path, name, spec, sensor)
    _check_points(path, name, spec, resolved)
    if spec.resample is not None or spec.resize is not None:
        _check_derivation(path, name, spec, sensor, resolved)
        size = math.prod(derived_shape(spec, spec.shape or ()))
    if spec.history is not None:
        _check_history(path, spec.history, size, sensor)
    _check_units(path, f"{sensor.type} {name}", spec, resolved)
    _check_driver(f"{path}.driver", name, spec, sensor, resolved, size)
    has_limits = resolved.saturates or resolved.ranging or np.dtype(resolved.dtype).kind in "iu"
    check_bounds(path, spec.low, spec.high, size, infinite=not has_limits)
    _check_precision(path, spec, resolved)
    for key, value in (("no_return", spec.no_return), ("nan", spec.nan)):
        if value is not None:
            is_unmeasured = (resolved.ranging and spec.points is None) or (key == "nan" and spec.resample is not None)
            allow(is_unmeasured, f"{path}.{key}", value, f"none: {name} is not a measured distance")
            is_inside = bool(np.all(np.less_equal(spec.low, value)) and np.all(np.less_equal(value, spec.high)))
            allow(is_inside, f"{path}.{key}", value, f"a number from low {spec.low} to high {spec.high}")


def check_limit_in_range(path: str, limit: float, sensor: SensorSpec, field: str, *, is_norm: bool = False) -> None:
    """Check that readings can exceed a limit of magnitudes or norms, unless they saturate."""
    if not message_field(sensor, field, sensor.fields[field]).saturates:
        return
    (layout,) = (each for each in field_layouts("", sensor) if each.field == field)
    magnitudes = np.maximum(*(np.abs(bound.astype(np.float64)) for bound in (layout.low, layout.high)))
    largest = float(np.linalg.norm(magnitudes) if is_norm else magnitudes.max())
    allow(limit < largest, path, limit, f"less than {largest:g}, at which {field} saturates")


def _check_derivation(path: str, name: str, spec: FieldSpec, sensor: SensorSpec, resolved: MessageField) -> None:
    if (resample := spec.resample) is not None:
        path = f"{path}.resample"
        allow(resolved.column == "rays", path, name, "a field of a sensor_msgs/msg/LaserScan")
        allow(resample.method == "nearest" or resolved.ranging, f"{path}.method", "'min'", f"nearest for {name}")
        if isinstance(angles := resample.angles, int):
            return
        path = f"{path}.angles"
        is_turn = 0 < angles.max_rad - angles.min_rad <= math.tau
        expected = "above min_rad, by at most a turn (2 pi)"
        allow(
            is_turn and max(abs(angles.min_rad), abs(angles.max_rad)) < _MAX_ANGLE_RAD, path, angles.max_rad, expected
        )
    if (resize := spec.resize) is not None:
        path = f"{path}.resize"
        allow(sensor.encoding is not None and spec.path is None, path, name, "the field image of a camera")
        size = math.prod(resize.size) * ENCODINGS[sensor.encoding or "rgb8"].channels
        expected = f"[height, width], at most {MAX_VALUES} values"
        allow(size <= MAX_VALUES, f"{path}.size", list(resize.size), expected)
        is_depth = ENCODINGS[sensor.encoding or "rgb8"].metres_per_unit is not None
        expected = "nearest: other filters mix depths across edges"
        allow(not is_depth or resize.resample == "nearest", f"{path}.resample", repr(resize.resample), expected)


def _check_points(path: str, name: str, spec: FieldSpec, resolved: MessageField) -> None:
    if (points := spec.points) is None:
        return
    path = f"{path}.points"
    allow(resolved.column == "points", path, name, "the field points of a sensor_msgs/msg/PointCloud2")
    allow(points.pad in (spec.low, spec.high), f"{path}.pad", points.pad, f"low {spec.low} or high {spec.high}")
    has_voxel = points.method == "voxel"
    expected = "a length with method voxel, and none with first"
    allow((points.voxel_m is not None) == has_voxel, f"{path}.voxel_m", points.voxel_m, expected)


def _check_history(path: str, length: int, size: int, sensor: SensorSpec) -> None:
    path = f"{path}.history"
    allow(length * size <= MAX_VALUES, path, f"{length * size} values", f"at most {MAX_VALUES}")
    allow(sensor.visibility == "agent", path, length, "none: evaluator sensors are not observed")


def _checked_size(path: str, name: str, spec: FieldSpec, sensor: SensorSpec) -> int:
    """Return the number of values of a field by its joints, shape or message type."""
    pattern = field_of_type(sensor, name, spec).shape
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
    if spec.points is not None:
        allow(spec.shape is None, f"{path}.shape", list(spec.shape or ()), "none: `points` declares it")
        return spec.points.count * 3
    if spec.shape is None:
        allow(None not in pattern, f"{path}.shape", "missing", expected)
        return math.prod(wanted or 0 for wanted in pattern)
    fits = len(pattern) == len(spec.shape) and all(
        wanted in (None, size) for size, wanted in zip(spec.shape, pattern, strict=True)
    )
    allow(fits, f"{path}.shape", list(spec.shape), expected)
    if sensor.encoding is not None and spec.path is None:
        divisor = ENCODINGS[sensor.encoding].divisor
        is_whole = all(length % part == 0 for length, part in zip(spec.shape, divisor, strict=False))
        expected = f"height and width that are multiples of {divisor[0]} and {divisor[1]} with {sensor.encoding}"
        allow(is_whole, f"{path}.shape", list(spec.shape), expected)
    size = math.prod(spec.shape)
    allow(size <= MAX_VALUES, f"{path}.shape", f"{size} values", f"at most {MAX_VALUES}")
    return size


def _check_units(path: str, name: str, spec: FieldSpec, resolved: MessageField) -> None:
    """Check the unit of a field, or one per joint for mixed revolute and prismatic joints."""
    units = spec.unit if isinstance(spec.unit, tuple) else (spec.unit,)
    if isinstance(spec.unit, tuple):
        joints = len(spec.joints or ())
        expected = "one unit" + (f", or {joints} of them" if joints else "")
        allow(len(units) == joints > 0, f"{path}.unit", list(units), expected)
    if resolved.units is not None:
        for unit in units:
            remedy = "; for a driver in degrees add driver: {unit: deg}" if unit.startswith("deg") else ""
            expected = f"{' or '.join(resolved.units)} for {name}{remedy}"
            allow(unit in resolved.units, f"{path}.unit", repr(unit), expected)


def _check_driver(path: str, name: str, spec: FieldSpec, sensor: SensorSpec, resolved: MessageField, size: int) -> None:
    """Check the driver's units of a field, which velocity needs where position has them."""
    if spec.driver is None:
        position = sensor.fields.get("position") if name == "velocity" else None
        is_plain = position is None or all(abs(factor) == 1.0 for _, factor in position.lines.values())
        allow(is_plain, path, "missing", "the units of the velocities too, `{}` where they are in SI units")
        return
    known = SENSOR_MESSAGES.get(sensor.type)
    is_number = resolved.column in ("number", "series", "joints", "position", "vector") and not resolved.ranging
    is_free = spec.path is not None or known is None or not (known.covariance or sensor.type.endswith("/Bool"))
    allow(is_number and is_free and spec.resample is None, path, name, "numbers, vectors or values of joints")
    units = spec.unit if isinstance(spec.unit, tuple) else (spec.unit,) * size
    drivers = spec.driver if isinstance(spec.driver, tuple) else (spec.driver,) * size
    allow(len(drivers) == size, path, f"{len(drivers)} entries", f"one for all, or {size} of them")
    for driver, unit in zip(drivers, units, strict=True):
        check_driver(path, driver, unit)


def _check_precision(path: str, spec: FieldSpec, resolved: MessageField) -> None:
    """Check that the field's type represents its bounds without overflow or loss of fractions."""
    whole = np.dtype(resolved.dtype).kind in "iu"
    info = np.iinfo(resolved.dtype) if whole else np.finfo(resolved.dtype)
    lowest, highest = (int(info.min), int(info.max)) if whole else (float(info.min), float(info.max))
    expected = f"{'whole ' if whole else ''}numbers from {lowest} to {highest}, the range of {resolved.dtype}"
    for key, bound in (("low", spec.low), ("high", spec.high)):
        for value in bound if isinstance(bound, tuple) else (bound,):
            fits = (lowest <= value <= highest or math.isinf(value)) and (not whole or float(value).is_integer())
            allow(fits, f"{path}.{key}", value, expected)
