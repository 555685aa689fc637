"""Fault injection by a seeded relay that drops, delays or corrupts messages.

As a context manager, in tests::

    from embodied_env.testing import ChaosNode
    from embodied_env.testing.fault_injection import Delay, Drop, Freeze

    faults = [Drop(share=0.3), Delay(delay_s=0.1)]
    with ChaosNode("clean/scan", "scan", "sensor_msgs/msg/LaserScan", faults=faults, seed=1) as chaos:
        ...
        chaos.set_faults(Freeze())

Only `ChaosNode` needs ROS.
"""

from embodied_env.testing.fault_injection.faults import (
    Burst,
    Corrupt,
    Delay,
    Drop,
    Duplicate,
    Edit,
    Fault,
    FaultChannel,
    Freeze,
    Reorder,
    Restamp,
)

__all__ = [
    "Burst",
    "Corrupt",
    "Delay",
    "Drop",
    "Duplicate",
    "Edit",
    "Fault",
    "FaultChannel",
    "Freeze",
    "Reorder",
    "Restamp",
]
