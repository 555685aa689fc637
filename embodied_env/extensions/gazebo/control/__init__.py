"""The APIs that control a simulator, each of which imports its messages only when it is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from embodied_env.extensions.gazebo.control.ros_gz import RosGz
from embodied_env.extensions.gazebo.control.simulation_interfaces import SimulationInterfaces
from embodied_env.extensions.gazebo.control.simulator_api import SimulatorApi

APIS: Mapping[str, Callable[..., SimulatorApi]] = {"ros_gz": RosGz, "simulation_interfaces": SimulationInterfaces}
"""Name in a profile -> API, built from ``world`` and ``prefix``."""
