"""Validation of the robot's interface: sensors and their fields, actuators and their joints, topics and QoS."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import numpy as np

from embodied_env.contract.message_types import (
    ACTUATOR_MESSAGES,
    ENCODINGS,
    JOINT_SENSOR,
    PATH_DTYPES,
    SENSOR_MESSAGES,
    TWIST_AXES,
    MessageField,
    Shape,
    message_field,
)
from embodied_env.contract.schema import (
    APPLIED_ACTIONS,
    EACH_ITS_OWN,
    PRESETS,
    TIME_REMAINING,
    ActuatorSpec,
    ContractFields,
    FieldSpec,
    JointLimits,
    Qos,
    QosSpec,
    SensorSpec,
)
from embodied_env.contract.value_checks import (
    allow,
    check_bounds,
    check_magnitude,
    check_name,
    check_positive,
    check_topic,
    one_of,
    require,
)

MAX_DEPTH = 10_000  # messages; a longer queue hides a slow reader
MAX_VALUES = 100_000_000  # of one field: an image of 7680 x 4320 x 3 is just below

_TYPE = re.compile(r"[a-z][a-z0-9_]*/msg/[A-Z][A-Za-z0-9]*")
_PATH = re.compile(r"[a-z][a-z0-9_]*(\[[0-9]+\])?(\.[a-z][a-z0-9_]*(\[[0-9]+\])?)*")


def check_sensors(sensors: Mapping[str, SensorSpec]) -> None:
    """Check every sensor; raises ContractError."""
    require(len(sensors) > 0, "sensors", "there is none; at least one sensor is needed")
    for name, sensor in sensors.items():
        path = f"sensors.{name}"
        check_name(path, name)
        check_topic(f"{path}.topic", sensor.topic)
        _check_qos(f"{path}.qos", sensor.qos)
        _check_type(path, sensor)
        check_positive(f"{path}.max_age_s", sensor.max_age_s, "seconds")
        is_rate = math.isfinite(sensor.rate_hz) and sensor.rate_hz >= 0
        allow(is_rate, f"{path}.rate_hz", sensor.rate_hz, "0 (at every step) or a rate in Hz")
        if sensor.rate_hz:
            check_magnitude(f"{path}.rate_hz", sensor.rate_hz)
        check_positive(f"{path}.confidence_radius_m", sensor.confidence_radius_m, "m")
        require(len(sensor.fields) > 0, f"{path}.fields", "there is none; at least one field is needed")
        problem = "a sensor of the evaluator is not in the observation, so it has no mask; allowed: false"
        require(not (sensor.mask and sensor.visibility == "evaluator"), f"{path}.mask", problem)
        for field_name, spec in sensor.fields.items():
            _check_field(f"{path}.fields.{field_name}", field_name, spec, sensor)


def check_keys(contract: ContractFields) -> None:
    """Check that the keys of the observation differ."""
    owners = {TIME_REMAINING: "episode.kind", APPLIED_ACTIONS: "applied_actions"}
    for name, sensor in contract.sensors.items():
        if sensor.visibility == "evaluator":
            continue
        keys = [(f"{name}_{field}", f"sensors.{name}.fields.{field}") for field in sensor.fields]
        if sensor.mask:
            keys.append((f"{name}_valid", f"sensors.{name}.mask"))
        for key, path in keys:
            require(key not in owners, path, f"its key in the observation, {key!r}, is also that of {owners.get(key)}")
            owners[key] = path


def check_actuators(contract: ContractFields) -> None:
    """Check every actuator; raises ContractError."""
    require(len(contract.actuators) > 0, "actuators", "there is none; at least one actuator is needed")
    measured = {
        joint: unit
        for sensor in contract.sensors.values()
        if sensor.type == JOINT_SENSOR and sensor.visibility == "agent" and "position" in sensor.fields
        for joint, unit in sensor.fields["position"].units_by_joint().items()
    }
    seen: dict[str, str] = {}
    for name, actuator in contract.actuators.items():
        path = f"actuators.{name}"
        check_name(path, name)
        check_topic(f"{path}.topic", actuator.topic)
        _check_qos(f"{path}.qos", actuator.qos)
        require(len(actuator.joints) > 0, f"{path}.joints", "there is none; at least one joint is needed")
        _check_actuator_type(path, actuator)
        for joint, limits in actuator.joints.items():
            joint_path = f"{path}.joints.{joint}"
            own = f"{name}.{joint}" if actuator.command == "twist" and contract.task.type == EACH_ITS_OWN else joint
            require(own not in seen, joint_path, f"{joint!r} is also driven by {seen.get(own)}; allowed: one actuator")
            seen[own] = path
            if actuator.command == "twist":
                _check_axis(joint_path, joint, limits)
            elif not actuator.is_velocity or limits.position is not None:
                _check_measured(joint_path, joint, limits, measured)
            _check_limits(joint_path, limits, actuator, contract)


def check_topics_differ(sensors: Mapping[str, SensorSpec], actuators: Mapping[str, ActuatorSpec]) -> None:
    """Check that the topics differ from each other and from those of the embedded simulator."""
    owners = {"clock": "the simulated time"}
    of_sensors = {f"sensors.{name}.topic": sensor.topic for name, sensor in sensors.items()}
    for path, topic in (of_sensors | {f"actuators.{name}.topic": a.topic for name, a in actuators.items()}).items():
        name = topic.removeprefix("/")
        taken = "the simulator's own node" if name.startswith("simulator/") else owners.get(name)
        require(taken is None, path, f"{topic!r} is also that of {taken}; allowed: one topic for each")
        owners[name] = path.removesuffix(".topic")


def _check_qos(path: str, qos: Qos) -> None:
    """Check types too: a contract may be built in Python, and rclpy must not be the first to find them."""
    if qos is None:
        return
    if not isinstance(qos, QosSpec):
        presets = f"{', '.join(sorted(PRESETS))}, or a mapping of depth, reliability, durability"
        allow(isinstance(qos, str) and qos in PRESETS, path, repr(qos), presets)
        return
    is_depth = type(qos.depth) is int and 1 <= qos.depth <= MAX_DEPTH
    allow(is_depth, f"{path}.depth", repr(qos.depth), f"a whole number of messages from 1 to {MAX_DEPTH}")
    for key, choices in (
        ("reliability", ("best_effort", "reliable")),
        ("durability", ("transient_local", "volatile")),
    ):
        value = getattr(qos, key)
        allow(value in choices, f"{path}.{key}", repr(value), ", ".join(choices))
    require(
        qos.durability == "volatile" or qos.reliability == "reliable",
        f"{path}.reliability",
        "'best_effort' is not allowed with durability transient_local: the message that is kept might be lost; "
        "allowed: reliable",
    )


def _check_type(path: str, sensor: SensorSpec) -> None:
    """Check the type, and the keys that only some types have."""
    known = SENSOR_MESSAGES.get(sensor.type)
    by_path = all(spec.path is not None for spec in sensor.fields.values())
    is_known = known is not None or (by_path and _TYPE.fullmatch(sensor.type) is not None)
    others = "or any package/msg/Type whose fields all have a path"
    require(is_known, f"{path}.type", f"{one_of(sensor.type, SENSOR_MESSAGES)}, {others}")
    has_header = known is None or known.header
    problem = f"{sensor.timeline!r} is not allowed: a {sensor.type} has no header; allowed: receive"
    require(has_header or sensor.timeline == "receive", f"{path}.timeline", problem)
    problem = f"a {sensor.type} has no header; allowed: no frame"
    require(sensor.frame is None or has_header, f"{path}.frame", problem)
    is_odometry = sensor.type == "nav_msgs/msg/Odometry"
    problem = f"a {sensor.type} has none; allowed: only with nav_msgs/msg/Odometry"
    require(sensor.child_frame is None or is_odometry, f"{path}.child_frame", problem)
    encodings = () if known is None else known.encodings
    if sensor.encoding is None:
        require(not encodings, f"{path}.encoding", f"the encoding is missing; allowed: {', '.join(sorted(encodings))}")
    else:
        require(len(encodings) > 0, f"{path}.encoding", f"a {sensor.type} has none; allowed: no encoding")
        require(sensor.encoding in encodings, f"{path}.encoding", one_of(sensor.encoding, encodings))


def _check_field(path: str, name: str, spec: FieldSpec, sensor: SensorSpec) -> None:
    if spec.path is None:
        known = SENSOR_MESSAGES[sensor.type].fields
        require(name in known, path, f"{sensor.type}: {one_of(name, known)}; or a path")
        require(spec.dtype is None, f"{path}.dtype", "the message fixes it; allowed: only with a path")
    else:
        check_name(path, name)
        problem = f"{spec.path!r} is not a path; allowed: fields joined by dots, with [index] into arrays"
        require(_PATH.fullmatch(spec.path) is not None, f"{path}.path", problem)
        require(spec.dtype in (None, *PATH_DTYPES), f"{path}.dtype", one_of(spec.dtype, PATH_DTYPES))
    resolved = message_field(sensor, name, spec)
    size = _checked_size(path, name, spec, sensor)
    _check_units(path, f"{sensor.type} {name}", spec, resolved)
    check_bounds(path, spec.low, spec.high, size)
    _check_precision(path, spec, resolved)
    for key, value in (("no_return", spec.no_return), ("nan", spec.nan)):
        if value is not None:
            problem = f"{name} is not a distance that rays measure; allowed: no {key}"
            require(resolved.ranging, f"{path}.{key}", problem)
            is_inside = bool(np.all(np.less_equal(spec.low, value)) and np.all(np.less_equal(value, spec.high)))
            allow(is_inside, f"{path}.{key}", value, f"a number from low {spec.low} to high {spec.high}")


def _checked_size(path: str, name: str, spec: FieldSpec, sensor: SensorSpec) -> int:
    """Return the number of values of a field, by its joints, its declared shape, or its message type."""
    pattern = _shape_pattern(name, spec, sensor)
    if pattern is None:
        joints = spec.joints or ()
        require(len(joints) > 0, f"{path}.joints", "the joints are missing; allowed: a list of joint names")
        for joint in joints:
            require(joints.count(joint) == 1, f"{path}.joints", f"{joint!r} is listed twice")
        require(spec.shape is None, f"{path}.shape", "its shape is the number of its joints; allowed: no shape")
        return len(joints)
    problem = f"{sensor.type} {name} has no joints; allowed: only with one value per joint, as in {JOINT_SENSOR}"
    require(spec.joints is None, f"{path}.joints", problem)
    lengths = ", ".join("n >= 1" if wanted is None else str(wanted) for wanted in pattern)
    allowed = f"[{lengths}]" + (f" with encoding {sensor.encoding}" if sensor.encoding and spec.path is None else "")
    if spec.shape is None:
        require(None not in pattern, f"{path}.shape", f"the shape is missing; allowed: {allowed}")
        return math.prod(wanted or 0 for wanted in pattern)
    fits = len(pattern) == len(spec.shape) and all(
        size >= 1 and wanted in (None, size) for size, wanted in zip(spec.shape, pattern, strict=True)
    )
    allow(fits, f"{path}.shape", list(spec.shape), allowed)
    size = math.prod(spec.shape)
    require(size <= MAX_VALUES, f"{path}.shape", f"{list(spec.shape)} is too large; allowed: {MAX_VALUES} values")
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
    allowed = resolved.units
    if isinstance(spec.unit, tuple):
        joints = len(spec.joints or ())
        expected = "one unit" + (f", or {joints} of them" if joints else "")
        allow(len(spec.unit) == joints > 0, f"{path}.unit", list(spec.unit), expected)
    for unit in spec.unit if isinstance(spec.unit, tuple) else (spec.unit,):
        problem = f"the unit of {name} cannot be {unit!r}; allowed: {', '.join(allowed or ())}"
        require(allowed is None or unit in allowed, f"{path}.unit", problem)


def _check_precision(path: str, spec: FieldSpec, resolved: MessageField) -> None:
    """Check that the field's type represents its bounds: others overflow, or lose their fractions."""
    whole = np.dtype(resolved.dtype).kind in "iu"
    info = np.iinfo(resolved.dtype) if whole else np.finfo(resolved.dtype)
    lowest, highest = (int(info.min), int(info.max)) if whole else (float(info.min), float(info.max))
    allowed = f"{'whole ' if whole else ''}numbers from {lowest} to {highest}, as {resolved.dtype} has them"
    for key, bound in (("low", spec.low), ("high", spec.high)):
        for value in bound if isinstance(bound, tuple) else (bound,):
            fits = lowest <= value <= highest and (not whole or float(value).is_integer())
            allow(fits, f"{path}.{key}", value, allowed)


def _check_actuator_type(path: str, actuator: ActuatorSpec) -> None:
    require(actuator.type in ACTUATOR_MESSAGES, f"{path}.type", one_of(actuator.type, ACTUATOR_MESSAGES))
    known = ACTUATOR_MESSAGES[actuator.type]
    problem = f"{actuator.command!r} cannot be sent as {actuator.type}; allowed: {', '.join(known.commands)}"
    require(actuator.command in known.commands, f"{path}.command", problem)
    problem = f"{len(actuator.joints)} joints cannot be sent as {actuator.type}; allowed: {known.joints}"
    require(known.joints in (None, len(actuator.joints)), f"{path}.joints", problem)
    problem = f"a {actuator.type} has no header; allowed: no frame"
    require(actuator.frame is None or known.header, f"{path}.frame", problem)


def _check_measured(path: str, joint: str, limits: JointLimits, measured: Mapping[str, str]) -> None:
    """Check that an agent's sensor reports a joint whose position matters, in the unit of its limits."""
    require(
        joint in measured,
        path,
        f"no sensor reports the position of {joint!r}; needed: a {JOINT_SENSOR} sensor of the agent whose field "
        f"position lists it (listed now: {', '.join(sorted(measured)) or 'none'})",
    )
    allowed = f"{measured[joint]!r}, the unit in which a sensor reports it"
    allow(limits.unit == measured[joint], f"{path}.unit", repr(limits.unit), allowed)


def _check_axis(path: str, axis: str, limits: JointLimits) -> None:
    require(axis in TWIST_AXES, path, f"no such axis of a twist: {one_of(axis, TWIST_AXES)}")
    unit = "m" if axis.startswith("linear") else "rad"
    allow(limits.unit == unit, f"{path}.unit", repr(limits.unit), unit)
    problem = f"{limits.position} is not allowed: an axis of a twist has no position; allowed: null"
    require(limits.position is None, f"{path}.position", problem)


def _check_limits(path: str, limits: JointLimits, actuator: ActuatorSpec, contract: ContractFields) -> None:
    check_positive(f"{path}.velocity", limits.velocity, f"{limits.unit}/s")
    check_positive(f"{path}.acceleration", limits.acceleration, f"{limits.unit}/s^2")
    if limits.deceleration is not None:
        check_positive(f"{path}.deceleration", limits.deceleration, f"{limits.unit}/s^2")
    if limits.jerk is not None:
        check_positive(f"{path}.jerk", limits.jerk, f"{limits.unit}/s^3")
    path = f"{path}.position"
    if limits.position is None:
        problem = "a joint without position limits cannot be commanded by absolute position; allowed: [low, high]"
        require(actuator.command != "position", path, problem)
        return
    low, high = limits.position
    problem = f"[{low}, {high}] is empty, inverted or not finite; allowed: [low, high] with low < high"
    require(math.isfinite(low) and math.isfinite(high) and low < high, path, problem)
    margin = contract.safety.margins.position
    problem = f"[{low}, {high}] is empty after safety.margins.position {margin}; allowed: wider than {2 * margin}"
    require(low + margin < high - margin, path, problem)
    check_magnitude(path, (high - margin) - (low + margin))
