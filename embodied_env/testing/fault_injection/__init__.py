"""Chaos: a seeded relay between two topics that does to messages what networks and drivers do.

As a context manager, in tests::

    from embodied_env.testing import ChaosNode
    from embodied_env.testing.fault_injection import Delay, Drop, Freeze

    faults = [Drop(share=0.3), Delay(delay_s=0.1)]
    with ChaosNode("clean/scan", "scan", "sensor_msgs/msg/LaserScan", faults=faults, seed=1) as chaos:
        ...
        chaos.set_faults(Freeze())

As a process: ``python -m embodied_env.testing.fault_injection --help``. `ChaosNode` is imported, and rclpy with it,
when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embodied_env.testing.fault_injection.channel import ChaosChannel
from embodied_env.testing.fault_injection.faults import (
    FAULTS,
    Burst,
    Corrupt,
    Delay,
    Drop,
    Duplicate,
    Edit,
    Fault,
    Freeze,
    Reorder,
    Restamp,
    decisions,
)

if TYPE_CHECKING:
    from embodied_env.testing.fault_injection.node import ChaosNode as ChaosNode

__all__ = [
    "FAULTS",
    "Burst",
    "ChaosChannel",
    "Corrupt",
    "Delay",
    "Drop",
    "Duplicate",
    "Edit",
    "Fault",
    "Freeze",
    "Reorder",
    "Restamp",
    "decisions",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - of a module
    if name == "ChaosNode":
        from embodied_env.testing.fault_injection.node import ChaosNode  # noqa: PLC0415 - it needs ROS

        return ChaosNode
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
