"""The sensors whose loss stops the robot, by default those that show how it moves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from embodied_env.plugins.plugin_table import built_in_classes

if TYPE_CHECKING:
    from embodied_env.contract.actuator_schema import ActuatorSpec
    from embodied_env.contract.contract_schema import ContractFields
    from embodied_env.contract.sensor_schema import SensorSpec

PLACEHOLDER_AGE_S = 1000.0  # `max_age_s` of a drafted topic of unknown rate, which no reading reaches
_MOTION = re.compile(r"/[^/]*(Odometry|Pose|Twist|Velocity)[^/]*$")


def default_required(sensors: Mapping[str, SensorSpec], commanded: AbstractSet[str]) -> tuple[str, ...]:
    """Return the sensors that are required unless a contract lists them.

    They report `commanded` joints. Other commanded joints and axes require every odometry, pose and velocity without
    a mask, or, if none of these can become too old, every sensor without a mask.
    """
    seen = {name: sensor for name, sensor in sensors.items() if sensor.visibility == "agent"}
    reported = {name: joints_of(sensor) for name, sensor in seen.items()}
    found = {name for name in seen if commanded & reported[name]}
    if not commanded <= set().union(*reported.values()):
        unmasked = {name: sensor for name, sensor in seen.items() if not sensor.mask}
        motion = {name for name, sensor in unmasked.items() if _MOTION.search(sensor.type)}
        found |= motion if any(can_expire(seen[name]) for name in motion) else unmasked.keys()
    return tuple(name for name in seen if name in found)


def required_sensors(contract: ContractFields) -> tuple[str, ...]:
    """Return the sensors of which every action needs a valid reading, those of interlocks too."""
    needed = contract.safety.observation.required
    if needed is None:
        needed = default_required(contract.sensors, commanded_joint_names(contract.actuators))
    judged = [name for each in built_in_classes("interlocks") for name, _ in each.readings(contract.safety)]
    return tuple(dict.fromkeys((*needed, *judged)))


def sort_by_stop(contract: ContractFields) -> tuple[list[str], dict[str, str]]:
    """Return the sensors without which the robot stops, and why it goes on without the others."""
    required = required_sensors(contract)
    stops, others = [], {}
    for name, sensor in contract.sensors.items():
        if sensor.visibility != "agent" and name not in required:
            continue
        if not can_expire(sensor):
            others[name] = f"max_age_s {sensor.max_age_s:g}"
        elif name in required or sensor.on_gap == "stop":
            stops.append(name)
        else:
            others[name] = "not required, on_gap hold"
    return stops, others


def describe_stops(stops: Iterable[str], others: Mapping[str, str]) -> str:
    """Return the result of `sort_by_stop` as text."""
    text = f"the robot stops if {' or '.join(stops)} is lost" if stops else "no lost sensor stops the robot"
    return text + "".join(f"; it goes on without {name} ({reason})" for name, reason in others.items())


def can_expire(sensor: SensorSpec) -> bool:
    """Return whether a reading can become too old, unlike one with a placeholder age."""
    return sensor.max_age_s < PLACEHOLDER_AGE_S


def commanded_joint_names(actuators: Mapping[str, ActuatorSpec]) -> set[str]:
    """Return all joints and axes of `actuators`."""
    return {joint for actuator in actuators.values() for joint in actuator.joints}


def joints_of(sensor: SensorSpec) -> set[str]:
    """Return the joints that `sensor` reports."""
    return {joint for field in sensor.fields.values() for joint in field.joints or ()}
