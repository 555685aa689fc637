"""The rules of actuators, their joints and the axes of a twist."""

from __future__ import annotations

import math
from collections.abc import Mapping

from embodied_env.contract.checks import (
    check_magnitude,
    check_name,
    check_positive,
    check_topic,
    one_of,
    require,
)
from embodied_env.contract.messages import ACTUATOR_MESSAGES, JOINT_SENSOR, TWIST_AXES
from embodied_env.contract.model import EACH_ITS_OWN, ActuatorSpec, Contract, JointLimits
from embodied_env.contract.qos_rules import check_qos


def check_actuators(contract: Contract) -> None:
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
        check_qos(f"{path}.qos", actuator.qos)
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


def _check_actuator_type(path: str, actuator: ActuatorSpec) -> None:
    require(actuator.type in ACTUATOR_MESSAGES, f"{path}.type", one_of(actuator.type, ACTUATOR_MESSAGES))
    known = ACTUATOR_MESSAGES[actuator.type]
    require(
        actuator.command in known.commands,
        f"{path}.command",
        f"{actuator.command!r} cannot be sent as {actuator.type}; allowed: {', '.join(known.commands)}",
    )
    require(
        known.joints in (None, len(actuator.joints)),
        f"{path}.joints",
        f"{len(actuator.joints)} joints cannot be sent as {actuator.type}; allowed: {known.joints}",
    )
    require(
        actuator.frame is None or known.header, f"{path}.frame", f"a {actuator.type} has no header; allowed: no frame"
    )


def _check_measured(path: str, joint: str, limits: JointLimits, measured: Mapping[str, str]) -> None:
    """A joint whose position matters must be reported by a sensor of the agent's, in the unit of its limits."""
    require(
        joint in measured,
        path,
        f"no sensor reports the position of {joint!r}; needed: a {JOINT_SENSOR} sensor of the agent whose field "
        f"position lists it (listed now: {', '.join(sorted(measured)) or 'none'})",
    )
    require(
        limits.unit == measured[joint],
        f"{path}.unit",
        f"{limits.unit!r} is not allowed; allowed: {measured[joint]!r}, the unit in which a sensor reports it",
    )


def _check_axis(path: str, axis: str, limits: JointLimits) -> None:
    require(axis in TWIST_AXES, path, f"no such axis of a twist: {one_of(axis, TWIST_AXES)}")
    unit = "m" if axis.startswith("linear") else "rad"
    require(limits.unit == unit, f"{path}.unit", f"{limits.unit!r} is not allowed; allowed: {unit}")
    require(
        limits.position is None,
        f"{path}.position",
        f"{limits.position} is not allowed: an axis of a twist has no position; allowed: null",
    )


def _check_limits(path: str, limits: JointLimits, actuator: ActuatorSpec, contract: Contract) -> None:
    check_positive(f"{path}.velocity", limits.velocity, f"{limits.unit}/s")
    check_positive(f"{path}.acceleration", limits.acceleration, f"{limits.unit}/s^2")
    if limits.deceleration is not None:
        check_positive(f"{path}.deceleration", limits.deceleration, f"{limits.unit}/s^2")
    if limits.jerk is not None:
        check_positive(f"{path}.jerk", limits.jerk, f"{limits.unit}/s^3")
    if limits.position is None:
        require(
            actuator.command != "position",
            f"{path}.position",
            "a joint without position limits cannot be commanded by absolute position; allowed: [low, high]",
        )
        return
    low, high = limits.position
    require(
        math.isfinite(low) and math.isfinite(high) and low < high,
        f"{path}.position",
        f"[{low}, {high}] is empty, inverted or not finite; allowed: [low, high] with low < high",
    )
    margin = contract.safety.margins.position
    require(
        low + margin < high - margin,
        f"{path}.position",
        f"[{low}, {high}] is empty after safety.margins.position {margin}; allowed: wider than {2 * margin}",
    )
    check_magnitude(f"{path}.position", (high - margin) - (low + margin))
