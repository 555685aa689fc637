"""The embedded simulator, moved like those of others: by its services `step_once` and `restart`, without tokens.

A step of it is a control period, and a reset takes one: its time never goes back. It does nothing unasked.
"""

from __future__ import annotations

import array
from collections.abc import Mapping
from typing import Any, NoReturn

from embodied_env.contract.message_types import message_class
from embodied_env.core.types import FloatArray
from embodied_env.errors import BackendNotReadyError, UsageError
from embodied_env.ros.embedded_sim.protocol import ENTITY_PARAMETER, PLACE_SERVICE, RESTART_SERVICE, STEP_ONCE_SERVICE
from embodied_env.ros.external_sim.control.base import ControlCapabilities, Request, SimulatorRefusedError

_TRIGGER = "std_srvs/srv/Trigger"
_SET = "rcl_interfaces/srv/SetParameters"
_DOUBLE_ARRAY = 8  # of rcl_interfaces/msg/ParameterType


class Embedded:
    """Builds requests of `embodied_env.ros.embedded_sim.lockstep_node`."""

    name = "embedded"

    def __init__(self, *, world: str, prefix: str | None) -> None:  # noqa: ARG002 - it has one world
        """See `DialectFactory`; `prefix` is its namespace, None: wherever there is one."""
        self._wanted = None if prefix is None else prefix.rstrip("/")
        self._prefix = self._wanted or ""

    def probe(self, offered: Mapping[str, tuple[str, ...]]) -> tuple[Request, ...]:
        """Look for one simulator; ask nothing."""
        ending = f"/{STEP_ONCE_SERVICE}"
        found = [name.removesuffix(ending) for name in sorted(offered) if name.endswith(ending)]
        if self._wanted is not None:
            found = [prefix for prefix in found if prefix == self._wanted]
        if len(found) != 1:
            where = ", ".join(prefix or "/" for prefix in found) or "nobody"
            raise BackendNotReadyError(
                f"{self._wanted or ''}{ending} is offered by {where}; allowed: one embedded simulator "
                "(embodied-env sim), or its namespace as prefix"
            )
        self._prefix = found[0]
        return ()

    def learn(self, reply: Any) -> None:  # noqa: ANN401 - nothing is asked
        """Nothing was asked."""

    @property
    def capabilities(self) -> ControlCapabilities:
        """Return what it can do: it puts bodies anywhere, and there is nothing to pause."""
        return ControlCapabilities(reset_levels=("world",), set_state=True)

    def pause(self) -> NoReturn:
        """It stands still unless it is asked."""
        raise UsageError("the embedded simulator has nothing to pause: it moves when it is asked to")

    def step(self, steps: int) -> Request:
        """Run one control period."""
        if steps != 1:
            raise UsageError(f"{steps} steps at once are not allowed; allowed: 1, a control period")
        return self._trigger(STEP_ONCE_SERVICE)

    def reset(self, level: str, seed: int | None) -> Request:  # noqa: ARG002 - it is a parameter there
        """Reset the world, by the seed that it has."""
        if level != "world":
            raise UsageError(f"reset {level!r} is not available with {self.name}; allowed: world")
        return self._trigger(RESTART_SERVICE)

    def state(self, entity: str) -> NoReturn:
        """It has no service for it."""
        raise UsageError(f"where {entity!r} is cannot be asked of {self.name}: it has no such service")

    def set_state(self, entity: str, position: FloatArray, orientation: FloatArray) -> Request:
        """Put a mocap body, or one with a free joint, there."""
        pose = array.array("d", [*position.tolist(), *orientation.tolist()])
        value = message_class("rcl_interfaces/msg/ParameterValue")(type=_DOUBLE_ARRAY, double_array_value=pose)
        parameter = message_class("rcl_interfaces/msg/Parameter")(name=ENTITY_PARAMETER + entity, value=value)
        service_type = message_class(_SET)
        return Request(
            service=f"{self._prefix}/{PLACE_SERVICE}",
            type=service_type,
            message=service_type.Request(parameters=[parameter]),
            read=_read_results,
            is_done_at_reply=True,
        )

    def _trigger(self, name: str) -> Request:
        service_type = message_class(_TRIGGER)
        return Request(
            service=f"{self._prefix}/{name}",
            type=service_type,
            message=service_type.Request(),
            read=_read_trigger,
            is_done_at_reply=True,
        )


def _read_trigger(reply: Any) -> None:  # noqa: ANN401 - a generated type
    if not reply.success:
        raise SimulatorRefusedError(reply.message)


def _read_results(reply: Any) -> None:  # noqa: ANN401 - a generated type
    if refused := [result.reason for result in reply.results if not result.successful]:
        raise SimulatorRefusedError("; ".join(refused))
