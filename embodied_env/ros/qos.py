"""The contract's words on quality of service, as profiles of rclpy."""

from __future__ import annotations

from embodied_env.contract import ActuatorSpec, SensorSpec
from embodied_env.contract.schema import COMMAND_QOS, PRESETS, SENSOR_QOS, QosSpec, resolved
from embodied_env.ros.setup_checks import rclpy_import_errors

with rclpy_import_errors("a backend over ROS 2"):
    from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

_RELIABILITY = {"reliable": ReliabilityPolicy.RELIABLE, "best_effort": ReliabilityPolicy.BEST_EFFORT}
_DURABILITY = {"volatile": DurabilityPolicy.VOLATILE, "transient_local": DurabilityPolicy.TRANSIENT_LOCAL}


def profile_of(spec: QosSpec) -> QoSProfile:
    """Return the profile of rclpy; what `spec` does not speak of is left to the middleware."""
    return QoSProfile(
        depth=spec.depth, reliability=_RELIABILITY[spec.reliability], durability=_DURABILITY[spec.durability]
    )


RELIABLE = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)
"""Between us and what is ours, and for what must not be lost: every message, the last ten of them kept."""

ANY = profile_of(SENSOR_QOS)
"""To read what anybody publishes: best effort, the last ten."""

EVERY_TICK = QoSProfile(depth=256, reliability=ReliabilityPolicy.BEST_EFFORT)
"""To read a simulator's clock: of any publisher, and deep enough that a rewind does not hide in a burst of steps."""

LATCHED = profile_of(PRESETS["latched"])
"""To read, or write, what is published when it changes, and kept for late comers."""


def sensor_qos(sensor: SensorSpec) -> QoSProfile:
    """Return what a sensor is read with."""
    return profile_of(resolved(sensor.qos, SENSOR_QOS))


def command_qos(actuator: ActuatorSpec) -> QoSProfile:
    """Return what commands to an actuator are written with."""
    return profile_of(resolved(actuator.qos, COMMAND_QOS))


def input_qos(*, latched: bool) -> QoSProfile:
    """Return what a safety input is read with."""
    return LATCHED if latched else ANY
