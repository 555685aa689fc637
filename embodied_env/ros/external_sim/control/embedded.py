"""The embedded simulator through its services `step_once` and `restart`, without step tokens.

A step and a reset take one control period each: time never goes back. The simulator moves only on request.
"""

from __future__ import annotations

import array
from collections.abc import Callable, Mapping
from typing import Any

from embodied_env.contract.message_types import message_class
from embodied_env.core.types import FloatArray
from embodied_env.errors import BackendNotReadyError, UsageError
from embodied_env.ros.embedded_sim.protocol import ENTITY_PARAMETER, PLACE_SERVICE, RESTART_SERVICE, STEP_ONCE_SERVICE
from embodied_env.ros.external_sim.control.api import ControlCapabilities, Request, SimulatorApi, SimulatorRefusedError

_DOUBLE_ARRAY = 8  # of rcl_interfaces/msg/ParameterType


class Embedded(SimulatorApi):
    """Builds requests of `embodied_env.ros.embedded_sim.lockstep_node`."""

    name = "embedded"
    capabilities = ControlCapabilities(reset=True, set_state=True)

    def __init__(self, *, world: str, prefix: str | None) -> None:  # noqa: ARG002 - it has one world
        """Prepare; `prefix` is the simulator's namespace, None: the only one in the graph."""
        self._wanted = None if prefix is None else prefix.rstrip("/")
        self._prefix = self._wanted or ""

    def probe(self, offered: Mapping[str, tuple[str, ...]]) -> tuple[Request, ...]:
        """Find the simulator; raises BackendNotReadyError unless there is exactly one."""
        ending = f"/{STEP_ONCE_SERVICE}"
        found = [name.removesuffix(ending) for name in sorted(offered) if name.endswith(ending)]
        if self._wanted is not None:
            found = [prefix for prefix in found if prefix == self._wanted]
        if len(found) != 1:
            where = ", ".join(prefix or "/" for prefix in found) or "none"
            raise BackendNotReadyError(
                f"wrong number of simulators with {self._wanted or ''}{ending}: {where} (expected one); "
                "start one with `embodied-env sim`, or set prefix to its namespace"
            )
        self._prefix = found[0]
        return ()

    def step(self, steps: int) -> Request:
        """Return the request for one control period."""
        if steps != 1:
            raise UsageError(f"too many steps in one request: {steps} (expected 1, a control period)")
        return self._trigger(STEP_ONCE_SERVICE)

    def reset(self) -> Request:
        """Return the request for a reset of the world with the seed that the simulator has."""
        return self._trigger(RESTART_SERVICE)

    def set_state(self, entity: str, position: FloatArray, orientation: FloatArray) -> Request:
        """Return the request that places a mocap body, or one with a free joint."""
        pose = array.array("d", [*position.tolist(), *orientation.tolist()])
        value = message_class("rcl_interfaces/msg/ParameterValue")(type=_DOUBLE_ARRAY, double_array_value=pose)
        parameter = message_class("rcl_interfaces/msg/Parameter")(name=ENTITY_PARAMETER + entity, value=value)
        kind = "rcl_interfaces/srv/SetParameters"
        return self._request(PLACE_SERVICE, kind, _check_parameters, parameters=[parameter])

    def _trigger(self, service: str) -> Request:
        return self._request(service, "std_srvs/srv/Trigger", _check_trigger)

    def _request(self, service: str, kind: str, read: Callable[[Any], None], **fields: Any) -> Request:  # noqa: ANN401
        service_type = message_class(kind)
        return Request(
            service=f"{self._prefix}/{service}",
            type=service_type,
            message=service_type.Request(**fields),
            read=read,
            is_done_at_reply=True,
        )


def _check_trigger(reply: Any) -> None:  # noqa: ANN401 - a generated type
    if not reply.success:
        raise SimulatorRefusedError(reply.message)


def _check_parameters(reply: Any) -> None:  # noqa: ANN401 - a generated type
    if refused := [result.reason for result in reply.results if not result.successful]:
        raise SimulatorRefusedError("; ".join(refused))
