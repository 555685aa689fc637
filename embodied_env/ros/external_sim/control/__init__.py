"""The APIs that control a simulator; each imports its message package only when it is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from embodied_env.ros.external_sim.control.api import SimulatorApi
from embodied_env.ros.external_sim.control.ros_gz import RosGz
from embodied_env.ros.external_sim.control.simulation_interfaces import SimulationInterfaces

APIS: Mapping[str, Callable[..., SimulatorApi]] = {
    "ros_gz": RosGz,
    "simulation_interfaces": SimulationInterfaces,
}
"""Name in a profile -> API, built from ``world`` and ``prefix``."""
