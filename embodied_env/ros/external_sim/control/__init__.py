"""The dialects by name: a table of lazily imported classes. Their messages are needed only where they are spoken."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Protocol, cast

from embodied_env.ros.external_sim.control.base import SimulatorApi

_CONTROL = "embodied_env.ros.external_sim.control"

DIALECTS: Mapping[str, str] = {
    "ros_gz": f"{_CONTROL}.ros_gz:RosGz",
    "simulation_interfaces": f"{_CONTROL}.simulation_interfaces:SimulationInterfaces",
    "embedded": f"{_CONTROL}.embedded:Embedded",
}
"""Name -> module:class."""


class DialectFactory(Protocol):
    """How a dialect is built."""

    def __call__(self, *, world: str, prefix: str | None) -> SimulatorApi:
        """Build it.

        Args:
            world: the name of the world.
            prefix: of its services; None: what is usual in the family.

        Raises:
            MissingDependencyError: when its message package is not installed.
        """
        ...


def make_dialect(name: str, *, world: str, prefix: str | None) -> SimulatorApi:
    """Build the dialect called `name`, one of `DIALECTS`; raises MissingDependencyError without its messages."""
    module, _, attribute = DIALECTS[name].partition(":")
    factory = cast("DialectFactory", getattr(importlib.import_module(module), attribute))
    return factory(world=world, prefix=prefix)
