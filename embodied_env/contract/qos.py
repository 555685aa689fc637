"""What a contract says of the quality of service of a topic: a preset, or the three policies that matter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias


@dataclass(frozen=True, kw_only=True)
class QosSpec:
    """The policies of DDS that a topic is read or written with; the history keeps the last `depth` messages."""

    depth: int = 10
    reliability: Literal["reliable", "best_effort"] = "reliable"
    durability: Literal["volatile", "transient_local"] = "volatile"


QosPreset: TypeAlias = Literal["sensor_data", "default", "reliable", "latched"]
Qos: TypeAlias = QosPreset | QosSpec | None
"""None: as ever for a sensor or an actuator (`SENSOR_QOS`, `COMMAND_QOS`)."""

SENSOR_QOS = QosSpec(reliability="best_effort")
"""It matches every publisher that is volatile or better, which is all of them."""

COMMAND_QOS = QosSpec()

PRESETS: Mapping[str, QosSpec] = {
    "sensor_data": QosSpec(depth=5, reliability="best_effort"),  # that of ROS 2
    "default": QosSpec(),  # that of ROS 2
    "reliable": QosSpec(),  # the same, by what matters of it
    "latched": QosSpec(depth=1, durability="transient_local"),  # the last message is kept for late comers
}


def resolved(qos: Qos, otherwise: QosSpec) -> QosSpec:
    """Return the policies that `qos` stands for; None stands for `otherwise`."""
    if qos is None:
        return otherwise
    return qos if isinstance(qos, QosSpec) else PRESETS[qos]


def is_latched(qos: Qos) -> bool:
    """Return whether a late comer gets the last message: it says what holds until the next one."""
    return resolved(qos, SENSOR_QOS).durability == "transient_local"
