"""The rules of a contract: each violation names its YAML path, the value and what is allowed."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping

import numpy as np

from embodied_env.contract.messages import ACTUATOR_MESSAGES, JOINT_SENSOR, SENSOR_MESSAGES
from embodied_env.contract.model import (
    ActuatorSpec,
    Contract,
    FieldSpec,
    JointLimits,
    ResetOption,
    SensorSpec,
    TaskSpec,
)
from embodied_env.errors import ContractError

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TOPIC = re.compile(r"(/|~/)?[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*")
_TASK = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def one_of(value: object, allowed: Iterable[str]) -> str:
    """Say what is allowed instead of `value`, with a guess when one is close."""
    names = sorted(allowed)
    close = difflib.get_close_matches(str(value), names, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return f"{value!r} is not known{hint}; allowed: {', '.join(names)}"


def check(contract: Contract) -> None:
    """Check every rule of `contract`.

    Raises:
        ContractError: for the first rule that is broken.
    """
    try:
        _check_heading(contract)
        _check_safety(contract)
        _check_sensors(contract.sensors)
        _check_actuators(contract)
        _check_reset_options(contract.reset_options)
        _check_task(contract.task)
        for name, profile in contract.backends.items():
            _check_plain(f"backends.{name}", profile)
    except ContractError as error:
        raise ContractError(error.path, error.problem, source=contract.source) from None


def _require(holds: bool, path: str, problem: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not holds:
        raise ContractError(path, problem)


def _check_name(path: str, name: str) -> None:
    _require(
        _NAME.fullmatch(name) is not None,
        path,
        f"the name {name!r} is not allowed; allowed: lower-case letters, digits and _, a letter first",
    )


def _check_plain(path: str, value: object) -> None:
    """A value of free form is what JSON can say: so it has a fingerprint, and can be recorded."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            _require(isinstance(key, str), path, f"the key {key!r} is not allowed; allowed: text")
            _check_plain(f"{path}.{key}", item)
    elif isinstance(value, tuple):
        for i, item in enumerate(value):
            _check_plain(f"{path}[{i}]", item)
    elif isinstance(value, float):
        _require(math.isfinite(value), path, f"{value} is not allowed; allowed: a finite number")
    else:
        _require(
            value is None or isinstance(value, (bool, int, str)),
            path,
            f"{value!r} is not allowed; allowed: text, numbers, true, false, null, lists and mappings",
        )


def _check_positive(path: str, value: float, unit: str) -> None:
    _require(
        math.isfinite(value) and value > 0, path, f"{value} is not allowed; allowed: a finite number of {unit} > 0"
    )


def _check_bounds(path: str, low: float | tuple[float, ...], high: float | tuple[float, ...], size: int | None) -> None:
    """Bounds are finite, of the right length, and low < high in each component."""
    for key, bound in (("low", low), ("high", high)):
        _require(np.all(np.isfinite(bound)).item(), f"{path}.{key}", f"{bound} is not finite")
        if isinstance(bound, tuple):
            wanted = len(bound) if size is None else size
            _require(
                len(bound) == wanted and wanted > 0,
                f"{path}.{key}",
                f"{list(bound)} has {len(bound)} values; allowed: one number, or {wanted} of them",
            )
    if isinstance(low, tuple) and isinstance(high, tuple):
        _require(len(low) == len(high), path, f"low has {len(low)} values and high {len(high)}; allowed: as many")
    _require(
        bool(np.all(np.less(low, high))),
        path,
        f"low {low} must be below high {high}: the interval is empty or inverted",
    )


def _check_heading(contract: Contract) -> None:
    _check_name("name", contract.name)
    _require(contract.version >= 1, "version", f"{contract.version} is not allowed; allowed: 1 or more")
    _check_positive("control_period_s", contract.control_period_s, "seconds")
    steps = contract.episode.horizon_steps
    _require(steps >= 1, "episode.horizon_steps", f"{steps} is not allowed; allowed: 1 or more steps")


def _check_reset_options(options: Mapping[str, ResetOption]) -> None:
    for name, option in options.items():
        path = f"reset_options.{name}"
        _check_name(path, name)
        _check_bounds(path, option.low, option.high, None)
        vector = isinstance(option.low, tuple)
        _require(
            vector == (option.type == "vector") and vector == isinstance(option.high, tuple),
            path,
            f"type {option.type!r} does not fit low {option.low} and high {option.high}; "
            "allowed: lists for a vector, numbers for a scalar",
        )


def _check_task(task: TaskSpec) -> None:
    _require(
        _TASK.fullmatch(task.type) is not None,
        "task.type",
        f"{task.type!r} is not a class; allowed: module:Class, e.g. embodied_env.tasks.reach:Reach",
    )
    for name, parameter in task.parameters.items():
        _check_plain(f"task.{name}", parameter)


def _check_safety(contract: Contract) -> None:
    safety = contract.safety
    margin = safety.margins.position
    _require(
        math.isfinite(margin) and margin >= 0,
        "safety.margins.position",
        f"{margin} is not allowed; allowed: a finite number >= 0, in the unit of the joint",
    )
    for key in ("velocity", "acceleration"):
        value = getattr(safety.margins, key)
        _require(0 < value <= 1, f"safety.margins.{key}", f"{value} is not allowed; allowed: a fraction in (0, 1]")
    _require(
        safety.nonfinite.stop_after >= 1,
        "safety.nonfinite.stop_after",
        f"{safety.nonfinite.stop_after} is not allowed; allowed: 1 or more actions",
    )
    watchdog = safety.watchdog
    _require(
        1 <= watchdog.hold_steps < watchdog.stop_steps,
        "safety.watchdog",
        f"hold_steps {watchdog.hold_steps} and stop_steps {watchdog.stop_steps} are not allowed; "
        "allowed: 1 <= hold_steps < stop_steps",
    )


def _check_sensors(sensors: Mapping[str, SensorSpec]) -> None:
    _require(len(sensors) > 0, "sensors", "there is none; at least one sensor is needed")
    for name, sensor in sensors.items():
        path = f"sensors.{name}"
        _check_name(path, name)
        _check_topic(f"{path}.topic", sensor.topic)
        _require(sensor.type in SENSOR_MESSAGES, f"{path}.type", one_of(sensor.type, SENSOR_MESSAGES))
        _check_positive(f"{path}.max_age_s", sensor.max_age_s, "seconds")
        _require(
            math.isfinite(sensor.rate_hz) and sensor.rate_hz >= 0,
            f"{path}.rate_hz",
            f"{sensor.rate_hz} is not allowed; allowed: 0 (at every step) or a rate in Hz",
        )
        _require(
            sensor.timeline == "header",
            f"{path}.timeline",
            f"{sensor.timeline!r} cannot be honoured by any backend yet; allowed: header",
        )
        _require(len(sensor.fields) > 0, f"{path}.fields", "there is none; at least one field is needed")
        _require(
            not (sensor.mask and sensor.visibility == "evaluator"),
            f"{path}.mask",
            "a sensor of the evaluator is not in the observation, so it has no mask; allowed: false",
        )
        for field_name, spec in sensor.fields.items():
            _check_field(f"{path}.fields.{field_name}", field_name, spec, sensor)
    topics = [sensor.topic for sensor in sensors.values()]
    for name, sensor in sensors.items():
        _require(
            topics.count(sensor.topic) == 1,
            f"sensors.{name}.topic",
            f"{sensor.topic!r} is read by two sensors; allowed: one sensor per topic",
        )


def _check_field(path: str, name: str, spec: FieldSpec, sensor: SensorSpec) -> None:
    known = SENSOR_MESSAGES[sensor.type].fields
    _require(name in known, path, f"{sensor.type}: {one_of(name, known)}")
    message_field = known[name]
    _require(
        spec.unit in message_field.units,
        f"{path}.unit",
        f"the unit of {sensor.type} {name} cannot be {spec.unit!r}; allowed: {', '.join(message_field.units)}",
    )
    if message_field.shape is None:
        joints = spec.joints or ()
        _require(len(joints) > 0, f"{path}.joints", "the joints are missing; allowed: a list of joint names")
        for joint in joints:
            _require(joints.count(joint) == 1, f"{path}.joints", f"{joint!r} is listed twice")
        size = len(joints)
    else:
        _require(
            spec.joints is None,
            f"{path}.joints",
            f"{sensor.type} {name} has no joints; allowed: only with {JOINT_SENSOR}",
        )
        size = math.prod(message_field.shape)
    _check_bounds(path, spec.low, spec.high, size)


def _check_topic(path: str, topic: str) -> None:
    _require(_TOPIC.fullmatch(topic) is not None, path, f"{topic!r} is not a ROS 2 topic name")


def _check_actuators(contract: Contract) -> None:
    _require(len(contract.actuators) > 0, "actuators", "there is none; at least one actuator is needed")
    measured = {
        joint: sensor.fields["position"].unit
        for sensor in contract.sensors.values()
        if sensor.type == JOINT_SENSOR and "position" in sensor.fields
        for joint in sensor.fields["position"].joints or ()
    }
    seen: dict[str, str] = {}
    for name, actuator in contract.actuators.items():
        path = f"actuators.{name}"
        _check_name(path, name)
        _check_topic(f"{path}.topic", actuator.topic)
        _require(actuator.type in ACTUATOR_MESSAGES, f"{path}.type", one_of(actuator.type, ACTUATOR_MESSAGES))
        _require(len(actuator.joints) > 0, f"{path}.joints", "there is none; at least one joint is needed")
        for joint, limits in actuator.joints.items():
            joint_path = f"{path}.joints.{joint}"
            _require(
                joint not in seen, joint_path, f"{joint!r} is also driven by {seen.get(joint)}; allowed: one actuator"
            )
            _require(
                joint in measured,
                joint_path,
                f"no sensor reports the position of {joint!r}; needed: a {JOINT_SENSOR} sensor whose field "
                f"position lists it (listed now: {', '.join(sorted(measured)) or 'none'})",
            )
            _require(
                limits.unit == measured[joint],
                f"{joint_path}.unit",
                f"{limits.unit!r} is not allowed; allowed: {measured[joint]!r}, the unit in which a sensor reports it",
            )
            seen[joint] = path
            _check_limits(joint_path, limits, actuator, contract)


def _check_limits(path: str, limits: JointLimits, actuator: ActuatorSpec, contract: Contract) -> None:
    _check_positive(f"{path}.velocity", limits.velocity, f"{limits.unit}/s")
    _check_positive(f"{path}.acceleration", limits.acceleration, f"{limits.unit}/s^2")
    if limits.deceleration is not None:
        _check_positive(f"{path}.deceleration", limits.deceleration, f"{limits.unit}/s^2")
    if limits.position is None:
        _require(
            actuator.command != "position",
            f"{path}.position",
            "a joint without position limits cannot be commanded by absolute position; allowed: [low, high]",
        )
        return
    low, high = limits.position
    _require(
        math.isfinite(low) and math.isfinite(high) and low < high,
        f"{path}.position",
        f"[{low}, {high}] is empty, inverted or not finite; allowed: [low, high] with low < high",
    )
    margin = contract.safety.margins.position
    _require(
        low + margin < high - margin,
        f"{path}.position",
        f"[{low}, {high}] is empty after safety.margins.position {margin}; allowed: wider than {2 * margin}",
    )
