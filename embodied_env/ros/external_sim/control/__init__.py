"""The simulator APIs by name, imported lazily: the messages of one are needed only where it is used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import cast

from embodied_env.ros.external_sim.control.api import SimulatorApi

_CONTROL = "embodied_env.ros.external_sim.control"

APIS: Mapping[str, str] = {
    "ros_gz": f"{_CONTROL}.ros_gz:RosGz",
    "simulation_interfaces": f"{_CONTROL}.simulation_interfaces:SimulationInterfaces",
    "embedded": f"{_CONTROL}.embedded:Embedded",
}
"""Name -> module:class."""


def make_api(name: str, *, world: str, prefix: str | None) -> SimulatorApi:
    """Build the API called `name`, one of `APIS`.

    Args:
        name: the API.
        world: the name of the simulated world.
        prefix: of the simulator's services; None: the API's default, or the only one in the graph.

    Raises:
        MissingDependencyError: when its message package is not installed.
    """
    module, _, attribute = APIS[name].partition(":")
    api = getattr(importlib.import_module(module), attribute)
    return cast("SimulatorApi", api(world=world, prefix=prefix))
