"""Validate the actuators of a contract, their joints and limits."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping

from embodied_env.contract.actuator_schema import ActuatorSpec, JointLimits
from embodied_env.contract.contract_schema import EACH_ITS_OWN, ContractFields
from embodied_env.contract.sensor_schema import FieldSpec
from embodied_env.contract.sensor_validation import check_qos
from embodied_env.contract.value_checks import allow, check_driver, check_magnitude, one_of, require
from embodied_env.messages.commands import COMMAND_TYPES, TWIST_AXES
from embodied_env.messages.message_types import JOINT_SENSOR, TRAJECTORY

MAX_BRAKING_STEPS = 200  # the points of a trajectory after its actions


def actuator_checks(contract: ContractFields) -> Iterator[Callable[[], None]]:
    """Yield the independent checks of the actuators."""
    measured = {
        joint: unit
        for sensor in contract.sensors.values()
        if sensor.type == JOINT_SENSOR and sensor.visibility == "agent" and "position" in sensor.fields
        for joint, unit in _units_by_joint(sensor.fields["position"]).items()
    }
    seen: dict[str, str] = {}
    for name, actuator in contract.actuators.items():
        yield functools.partial(_check_actuator, name, actuator)
        yield functools.partial(_check_between_steps, name, actuator, contract)
        for joint, limits in actuator.joints.items():
            yield functools.partial(_check_joint, name, joint, limits, contract, measured, seen)


def _units_by_joint(spec: FieldSpec) -> dict[str, str]:
    """Return the unit of each joint, or an empty mapping where their number is wrong, as the sensor's check reports."""
    joints = spec.joints or ()
    is_fitting = not isinstance(spec.unit, tuple) or len(spec.unit) == len(joints)
    return spec.units_by_joint() if is_fitting else dict.fromkeys(joints, "")


def _check_actuator(name: str, actuator: ActuatorSpec) -> None:
    path = f"actuators.{name}"
    check_qos(f"{path}.qos", actuator.qos)
    _check_actuator_type(path, actuator)
    _check_gripper(path, actuator)


def _check_between_steps(name: str, actuator: ActuatorSpec, contract: ContractFields) -> None:
    path, rate_hz, steps = f"actuators.{name}", actuator.setpoint_rate_hz, actuator.trajectory_steps
    topics = [other for other in contract.actuators.values() if not other.is_action]
    is_same = actuator.is_action or len({(each.setpoint_rate_hz, each.trajectory_steps) for each in topics}) == 1
    found = f"setpoint_rate_hz: {rate_hz or 'null'}, trajectory_steps: {'null' if steps is None else steps}"
    allow(is_same, path, found, "the same for every actuator but action servers")
    if rate_hz is not None:
        where, found, control_hz = f"{path}.setpoint_rate_hz", f"{rate_hz:g} Hz", 1.0 / contract.control_period_s
        allow(not actuator.is_action, where, found, "none for an action server")
        allow(not actuator.is_velocity, where, found, f"none with command: {actuator.command}")
        count = rate_hz / control_hz
        is_multiple = count >= 2 and abs(count - round(count)) < 1e-6 * count
        expected = f"a multiple of the control rate of {control_hz:g} Hz, at least twice it"
        allow(is_multiple, where, found, expected)
    if steps is not None:
        where = f"{path}.trajectory_steps"
        allow(actuator.type == TRAJECTORY, where, actuator.type, f"only with type: {TRAJECTORY}")
        allow(rate_hz is None, where, "setpoint_rate_hz is set too", "one of the two")
        allow(contract.safety.mode == "enforce", where, f"safety.mode: {contract.safety.mode}", "enforce")
        limits = actuator.limits(contract.safety.margins, name)
        braking = float((limits.fastest / limits.deceleration).max()) / contract.control_period_s
        expected = f"at most {MAX_BRAKING_STEPS} control periods from the velocity limit to rest"
        allow(braking <= MAX_BRAKING_STEPS, where, f"{braking:.0f} control periods of braking", expected)


def _check_joint(
    name: str,
    joint: str,
    limits: JointLimits,
    contract: ContractFields,
    measured: Mapping[str, str],
    seen: dict[str, str],
) -> None:
    """Check a joint of the actuator `name`, where `seen` has the actuators of those before."""
    actuator, path = contract.actuators[name], f"actuators.{name}.joints.{joint}"
    own = f"{name}.{joint}" if actuator.command == "twist" and contract.task.type == EACH_ITS_OWN else joint
    allow(own not in seen, path, f"{joint!r} is also driven by {seen.get(own)}", "one actuator per joint")
    seen[own] = f"actuators.{name}"
    for finger in actuator.mimic if joint == next(iter(actuator.joints)) else ():
        where = f"actuators.{name}.gripper.mimic.{finger}"
        allow(finger not in seen, where, f"{finger!r} is also driven by {seen.get(finger)}", "one actuator per joint")
        seen[finger] = f"actuators.{name}"
    if limits.driver is not None:
        check_driver(f"{path}.driver", limits.driver, limits.unit + "/s" * actuator.is_velocity)
    if actuator.command == "twist":
        _check_axis(path, joint, limits)
    elif not actuator.is_velocity or limits.position is not None:
        _check_measured(path, joint, limits, measured)
    _check_limits(path, limits, actuator, actuator.margins_of(joint, contract.safety.margins, name)[0])


def _check_actuator_type(path: str, actuator: ActuatorSpec) -> None:
    kind, count = actuator.type, len(actuator.joints)
    require(kind in COMMAND_TYPES, f"{path}.type", f"unknown message type {one_of(kind, COMMAND_TYPES)}")
    known = COMMAND_TYPES[kind]
    expected = f"{', '.join(known.commands)} for {kind}"
    allow(actuator.command in known.commands, f"{path}.command", repr(actuator.command), expected)
    allow(known.joints in (None, count), f"{path}.joints", f"{count} joints", f"{known.joints} for {kind}")
    allow(actuator.frame is None or known.header, f"{path}.frame", repr(actuator.frame), f"none: {kind} has no header")
    allow(actuator.qos is None or not actuator.is_action, f"{path}.qos", actuator.qos, "none for an action server")


def _check_gripper(path: str, actuator: ActuatorSpec) -> None:
    gripper, is_action = actuator.gripper, actuator.is_action
    expected = "{open: POSITION, closed: POSITION}"
    if gripper is None:
        is_needed = is_action or actuator.scale == "binary"
        allow(not is_needed, f"{path}.gripper", "missing", f"{expected} for an action server, or with scale: binary")
        return
    path = f"{path}.gripper"
    is_one = len(actuator.joints) == 1 and actuator.command == "position"
    allow(is_one, path, f"{actuator.command} of {len(actuator.joints)} joints", "one joint with command: position")
    allow(is_action or gripper.on_stop == "hold", f"{path}.on_stop", repr(gripper.on_stop), "hold for a topic")
    low, high = next(iter(actuator.joints.values())).position or (-math.inf, math.inf)
    for key, position in (("open", gripper.open), ("closed", gripper.closed)):
        allow(low <= position <= high, f"{path}.{key}", position, f"{low} to {high}, the limits of its joint")
    is_several = not gripper.mimic or COMMAND_TYPES[actuator.type].joints is None
    allow(is_several, f"{path}.mimic", ", ".join(gripper.mimic), f"none for {actuator.type}, which has one value")
    allow(gripper.open != gripper.closed, f"{path}.closed", gripper.closed, "another position than open")


def _check_measured(path: str, joint: str, limits: JointLimits, measured: Mapping[str, str]) -> None:
    """Check that an agent's sensor reports a joint whose position matters, in the unit of its limits."""
    problem = f"no sensor reports the position of joint {joint!r} (reported: {', '.join(sorted(measured)) or 'none'})"
    require(joint in measured, path, f"{problem}; list it in the position field of an agent's {JOINT_SENSOR} sensor")
    unit = measured[joint]
    allow(
        limits.unit == unit or unit not in ("rad", "m"),
        f"{path}.unit",
        repr(limits.unit),
        f"{unit!r}, the unit of its sensor",
    )


def _check_axis(path: str, axis: str, limits: JointLimits) -> None:
    require(axis in TWIST_AXES, path, f"unknown twist axis {one_of(axis, TWIST_AXES)}")
    unit = TWIST_AXES[axis]
    allow(limits.unit == unit, f"{path}.unit", repr(limits.unit), unit)
    allow(limits.position is None, f"{path}.position", limits.position, "null: a twist axis has no position")


def _check_limits(path: str, limits: JointLimits, actuator: ActuatorSpec, margin: float) -> None:
    is_speed = not (actuator.is_action and isinstance(limits.velocity, tuple))
    allow(is_speed, f"{path}.velocity", limits.velocity, "one number for an action server")
    is_limited = limits.acceleration is not None or actuator.is_action
    allow(is_limited, f"{path}.acceleration", "null", f"{limits.unit}/s^2 > 0 for a topic")
    path = f"{path}.position"
    if limits.position is None:
        allow(actuator.command != "position", path, "null", "[low, high] with command: position")
        return
    low, high = limits.position
    expected = f"a range wider than {2 * margin}, twice safety.margins.position"
    allow(low + margin < high - margin, path, f"[{low}, {high}]", expected)
    check_magnitude(path, (high - margin) - (low + margin))
