"""APIs that control a simulator, whose messages are imported only when they are built."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from embodied_env.extensions.gazebo.control.ros_gz import RosGz
from embodied_env.extensions.gazebo.control.simulation_interfaces import SimulationInterfaces
from embodied_env.extensions.gazebo.control.simulator_api import SimulatorApi

APIS: Mapping[str, Callable[..., SimulatorApi]] = {"ros_gz": RosGz, "simulation_interfaces": SimulationInterfaces}
"""Name in a profile -> API, built from ``world`` and ``prefix``."""
