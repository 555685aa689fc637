"""The keys of a topic's QoS, as frozen dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from annotated_types import Interval


@dataclass(frozen=True, kw_only=True)
class QosSpec:
    """DDS policies of a subscription or publisher that keeps the last `depth` messages."""

    depth: Annotated[int, Interval(ge=1, le=10_000)] = 10  # messages; a longer queue hides a slow reader
    reliability: Literal["reliable", "best_effort"] = "reliable"
    durability: Literal["volatile", "transient_local"] = "volatile"  # `transient_local` with `reliable` only


QosPreset: TypeAlias = Literal["sensor_data", "default", "reliable", "latched"]

Qos: TypeAlias = QosPreset | QosSpec | None  # None: `SENSOR_QOS`, or for actuators `COMMAND_QOS`
SENSOR_QOS = QosSpec(reliability="best_effort")  # compatible with every publisher
COMMAND_QOS = QosSpec()
PRESETS: Mapping[str, QosSpec] = {
    "sensor_data": QosSpec(depth=5, reliability="best_effort"),  # as in ROS 2
    "default": QosSpec(),  # as in ROS 2
    "reliable": QosSpec(),
    "latched": QosSpec(depth=1, durability="transient_local"),  # late subscribers get the last message
}


def resolved(qos: Qos, otherwise: QosSpec) -> QosSpec:
    """Return the policies of `qos`, or `otherwise` for None."""
    if qos is None:
        return otherwise
    return qos if isinstance(qos, QosSpec) else PRESETS[qos]


def is_latched(qos: Qos) -> bool:
    """Return whether late subscribers get the last message, which holds until the next one."""
    return resolved(qos, SENSOR_QOS).durability == "transient_local"
