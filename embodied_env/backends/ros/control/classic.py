"""Gazebo classic: std_srvs/Empty to pause, resume and reset. It has no steps, so its clock is gated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from embodied_env.backends.ros.control.base import ControlCapabilities, Request
from embodied_env.contract.messages import message_class
from embodied_env.errors import BackendNotReadyError, UsageError
from embodied_env.transition import FloatArray

PAUSE, RESUME = "pause_physics", "unpause_physics"
RESETS = {"world": "reset_simulation", "state": "reset_world"}
"""Level -> service: everything, the time among it; or the poses alone."""

_TYPE = "std_srvs/srv/Empty"


class Classic:
    """Builds requests of the plugin gazebo_ros_init. Its services stand at the root, in ROS 1 under ``/gazebo``."""

    name = "classic"

    def __init__(self, *, world: str, prefix: str | None, step_ns: int | None) -> None:  # noqa: ARG002 - it has one world
        """See `DialectFactory`; `step_ns` says only how many steps there were."""
        self._prefix = (prefix or "").rstrip("/")
        self._step_ns = step_ns
        self._levels: tuple[str, ...] = ()

    def probe(self, offered: Mapping[str, tuple[str, ...]]) -> tuple[Request, ...]:
        """Look for the services; a reset that is not offered is none of its levels."""
        missing = [self._service(each) for each in (PAUSE, RESUME) if not self._is_offered(each, offered)]
        if missing:
            raise BackendNotReadyError(
                f"nobody offers {', '.join(missing)} ({_TYPE}); allowed: Gazebo classic with libgazebo_ros_init.so"
            )
        self._levels = tuple(level for level, name in RESETS.items() if self._is_offered(name, offered))
        return ()

    def learn(self, reply: Any) -> None:  # noqa: ANN401 - nothing is asked
        """Nothing was asked."""

    @property
    def capabilities(self) -> ControlCapabilities:
        """Pauses, and resets what was offered."""
        return ControlCapabilities(
            pause=True, reset_levels=self._levels, rewinds_time="world" in self._levels, step_ns=self._step_ns
        )

    def pause(self) -> Request:
        """Stand still."""
        return self._request(PAUSE)

    def resume(self) -> Request:
        """Run freely."""
        return self._request(RESUME)

    def step(self, steps: int) -> NoReturn:
        """Gazebo classic has no service for it."""
        raise UsageError(f"{self.name} has no service that runs {steps} steps; allowed: resume, wait, pause")

    def reset(self, level: str, seed: int | None) -> Request:  # noqa: ARG002 - it takes none
        """Reset; a world that was paused stays so."""
        if level not in self._levels:
            allowed = ", ".join(self._levels) or "none is offered"
            raise UsageError(f"reset {level!r} is not available with {self.name}; allowed: {allowed}")
        return self._request(RESETS[level])

    def state(self, entity: str) -> NoReturn:
        """It is in a package of its own, gazebo_msgs, that is not used here."""
        raise UsageError(f"where {entity!r} is cannot be asked of {self.name}: std_srvs have no such service")

    def set_state(self, entity: str, position: FloatArray, orientation: FloatArray) -> NoReturn:  # noqa: ARG002
        """It is in a package of its own, gazebo_msgs, that is not used here."""
        raise UsageError(f"{entity!r} cannot be put anywhere by {self.name}: std_srvs have no such service")

    def _service(self, name: str) -> str:
        return f"{self._prefix}/{name}"

    def _is_offered(self, name: str, offered: Mapping[str, tuple[str, ...]]) -> bool:
        return _TYPE in offered.get(self._service(name), ())

    def _request(self, name: str) -> Request:
        service_type = message_class(_TYPE)
        return Request(
            service=self._service(name),
            type=service_type,
            message=service_type.Request(),
            read=lambda _: None,
            is_done_at_reply=True,
        )
