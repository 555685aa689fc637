"""Run a world without physics behind the node of the embedded simulator.

    python benchmarks/echo_world.py NAMESPACE

The joints follow each command immediately. The contract is one line of JSON on standard input, and the script ends when
its standard input ends. Topics, services and messages are those of the embedded simulator, so a client of one works
with the other.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract, FloatArray, parse_contract
from embodied_env.contract.spaces import field_layouts
from embodied_env.core.types import Sample
from embodied_env.processes.child_process import read_first_line, watch_parent
from embodied_env.ros.embedded_sim.lockstep_node import run_simulator

APART = 0.25  # between the values of two sensors, so that no two are equal


class EchoWorld:
    """The interface of `World` for `SimulatorNode`, without physics. The joint sensors echo the first actuator."""

    renderer_library = ""

    def __init__(self, contract: Contract) -> None:
        """Create the readings once, since only the joints change."""
        self.now_ns = 0
        self._period_ns = contract.control_period_ns
        self.target = np.zeros(sum(len(actuator.joints) for actuator in contract.actuators.values()))
        self._values: dict[str, dict[str, NDArray[np.generic]]] = {
            name: {
                layout.field: np.full(layout.shape, APART * place, dtype=layout.dtype)
                for layout in field_layouts(name, sensor)
            }
            for place, (name, sensor) in enumerate(contract.sensors.items())
        }
        self.channels = {name: SimpleNamespace(extras={}) for name in contract.sensors}
        self._joints = [values for values in self._values.values() if {"position", "velocity"} <= set(values)]

    def reset(self, seed: int, options: Mapping[str, FloatArray]) -> dict[str, FloatArray]:  # noqa: ARG002 - a world's
        """Continue without drawing a state."""
        self.target = np.zeros_like(self.target)
        self.step()
        return {}

    def command(self, values: FloatArray) -> None:
        """Store the command to echo."""
        self.target = values

    def step(self, _commands: Sequence[tuple[int, FloatArray]] = ()) -> None:
        """Advance by a control period."""
        self.now_ns += self._period_ns
        for values in self._joints:
            values["position"] = self.target

    def read(self) -> dict[str, Sample]:
        """Return the current values of every sensor."""
        return {
            name: Sample(sensor=name, values=values, stamp_ns=self.now_ns, arrival_ns=0)
            for name, values in self._values.items()
        }


def main() -> None:
    """Serve until standard input ends."""
    contract = parse_contract(read_first_line(), source="standard input")
    stop = threading.Event()
    watch_parent(stop.set)
    world: Any = EchoWorld(contract)
    run_simulator(contract, world, namespace=sys.argv[1], stop=stop)


if __name__ == "__main__":
    main()
