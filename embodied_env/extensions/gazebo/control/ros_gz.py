"""Control Gazebo through ros_gz_bridge, by ControlWorld and SetEntityPose if bridged.

Every field of a ControlWorld request is applied, including `pause`, so each request sets it. The reply means that the
request was queued. The bridge takes no seed and reports no entity states.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from embodied_env.core.types import FloatArray
from embodied_env.errors import BackendNotReadyError, UsageError
from embodied_env.extensions.gazebo.control.simulator_api import (
    ControlCapabilities,
    Request,
    SimulatorApi,
    SimulatorRefusedError,
    write_pose,
)
from embodied_env.messages.message_types import message_class

CONTROL, SET_POSE = "control", "set_pose"
CONTROL_TYPE, SET_POSE_TYPE = "ros_gz_interfaces/srv/ControlWorld", "ros_gz_interfaces/srv/SetEntityPose"

_MODEL = 2  # ros_gz_interfaces/Entity.type
_MOST_STEPS = 2**32 - 1  # multi_step is an uint32


class RosGz(SimulatorApi):
    """Builds requests for a Gazebo world with bridged services ``/world/<world>/...``."""

    name = "ros_gz"
    repeats_clock = True
    capabilities = ControlCapabilities(pause=True, reset=True, rewinds_time=True)

    def __init__(self, *, world: str, prefix: str | None) -> None:
        """Prepare requests at `prefix`, or raise MissingDependencyError without ros_gz_interfaces."""
        self._control_type, self._set_pose_type = message_class(CONTROL_TYPE), message_class(SET_POSE_TYPE)
        self._prefix = f"/world/{world}" if prefix is None else prefix.rstrip("/")

    def probe(self, offered: Mapping[str, tuple[str, ...]]) -> tuple[Request, ...]:
        """Find ControlWorld, which is required, and SetEntityPose, which older bridges do not have."""
        control = f"{self._prefix}/{CONTROL}"
        if CONTROL_TYPE not in offered.get(control, ()):
            others = sorted(name for name, types in offered.items() if CONTROL_TYPE in types)
            remedy = "start ros_gz_bridge with a configuration that has this service, <world>.bridge.yaml"
            raise BackendNotReadyError(
                f"no service {control} of type {CONTROL_TYPE} (available: {', '.join(others) or 'none'}); "
                + ("set world of the profile to the name of the world that runs" if others else remedy)
            )
        sets_pose = SET_POSE_TYPE in offered.get(f"{self._prefix}/{SET_POSE}", ())
        self.capabilities = replace(self.capabilities, set_state=sets_pose)
        return ()

    def pause(self) -> Request:
        """Return the request that pauses the world."""
        kind = self._control_type
        message = kind.Request()
        message.world_control.pause = True
        return Request(service=f"{self._prefix}/{CONTROL}", type=kind, message=message, read=_check_success)

    def step(self, steps: int) -> Request:
        """Return the request for `steps` iterations, which add to those still queued."""
        if not 1 <= steps <= _MOST_STEPS:
            raise UsageError(f"wrong number of steps in one request: {steps} (expected 1 to {_MOST_STEPS})")
        request = self.pause()
        request.message.world_control.multi_step = steps
        return request

    def reset(self) -> Request:
        """Return the request that restores the initial world, paused, without spawned models."""
        request = self.pause()
        request.message.world_control.reset.all = True
        return request

    def set_state(self, entity: str, position: FloatArray, orientation: FloatArray) -> Request:
        """Return the request that places a model, which keeps its velocity and may not exist."""
        kind = self._set_pose_type
        message = kind.Request()
        message.entity.name, message.entity.type = entity, _MODEL
        write_pose(message.pose, position, orientation)
        return Request(service=f"{self._prefix}/{SET_POSE}", type=kind, message=message, read=_check_success)


def _check_success(reply: Any) -> None:  # noqa: ANN401 - a generated type
    if not reply.success:
        raise SimulatorRefusedError("the reply has success = false")
