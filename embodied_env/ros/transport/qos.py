"""QoS profiles of rclpy for a contract and for our own topics."""

from __future__ import annotations

from dataclasses import replace

from embodied_env.contract import ActuatorSpec, SensorSpec
from embodied_env.contract.qos_schema import COMMAND_QOS, PRESETS, SENSOR_QOS, QosSpec, resolved
from embodied_env.ros.transport.setup_checks import rclpy_import_errors

with rclpy_import_errors("a backend over ROS 2"):
    from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

_RELIABILITY = {"reliable": ReliabilityPolicy.RELIABLE, "best_effort": ReliabilityPolicy.BEST_EFFORT}
_DURABILITY = {"volatile": DurabilityPolicy.VOLATILE, "transient_local": DurabilityPolicy.TRANSIENT_LOCAL}


def qos_profile(spec: QosSpec) -> QoSProfile:
    """Return the rclpy profile of `spec`, with the middleware's defaults for other policies."""
    return QoSProfile(
        depth=spec.depth, reliability=_RELIABILITY[spec.reliability], durability=_DURABILITY[spec.durability]
    )


RELIABLE = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)
"""For our own topics and for messages that must not be lost, with the last ten kept."""

ANY = qos_profile(SENSOR_QOS)
"""For subscriptions to any publisher, as best effort with the last ten kept."""

EVERY_TICK = QoSProfile(depth=256, reliability=ReliabilityPolicy.BEST_EFFORT)
"""For a simulator's clock of any publisher, deep enough that a burst of steps cannot hide a rewind."""

LATCHED = qos_profile(PRESETS["latched"])
"""For state that is published when it changes, the last message of which late subscribers receive."""


def sensor_qos(sensor: SensorSpec) -> QoSProfile:
    """Return the profile to subscribe to a sensor with."""
    return qos_profile(resolved(sensor.qos, SENSOR_QOS))


def newest_qos(sensor: SensorSpec) -> QoSProfile:
    """Return the profile to subscribe to a sensor with where only its newest message counts.

    It keeps two, so that one that arrives out of order does not hide the newest.
    """
    return qos_profile(replace(resolved(sensor.qos, SENSOR_QOS), depth=2))


def command_qos(actuator: ActuatorSpec) -> QoSProfile:
    """Return the profile to publish an actuator's commands with."""
    return qos_profile(resolved(actuator.qos, COMMAND_QOS))


def input_qos(*, latched: bool) -> QoSProfile:
    """Return the profile to subscribe to a safety input with."""
    return LATCHED if latched else ANY
