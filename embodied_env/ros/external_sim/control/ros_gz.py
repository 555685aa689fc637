"""Gazebo through ros_gz_bridge: ControlWorld for everything, SetEntityPose where the bridge has it.

A request of ControlWorld is a whole command and no change: `pause` is always applied, so each sets it.
Its reply means that it was queued. The world does not take a seed, and says nothing of its entities.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from embodied_env.core.types import FloatArray
from embodied_env.errors import BackendNotReadyError, MissingDependencyError, UsageError
from embodied_env.ros.external_sim.control.base import ControlCapabilities, Request, SimulatorRefusedError, write_pose

CONTROL, SET_POSE = "control", "set_pose"
CONTROL_TYPE, SET_POSE_TYPE = "ros_gz_interfaces/srv/ControlWorld", "ros_gz_interfaces/srv/SetEntityPose"

_MODEL = 2  # ros_gz_interfaces/Entity.type
_MOST_STEPS = 2**32 - 1  # multi_step is an uint32


class RosGz:
    """Builds requests of a world of Gazebo; its services are bridged under their own names, ``/world/<world>/...``."""

    name = "ros_gz"

    def __init__(self, *, world: str, prefix: str | None) -> None:
        """See `DialectFactory`; raises MissingDependencyError without ros_gz_interfaces."""
        try:
            from ros_gz_interfaces.srv import ControlWorld, SetEntityPose  # noqa: PLC0415 - only who speaks it needs it
        except ImportError as error:
            raise MissingDependencyError(
                f"ros_gz_interfaces ({error})",
                needed_for="the control ros_gz",
                remedy="apt install ros-$ROS_DISTRO-ros-gz-interfaces, and source ROS 2",
            ) from None
        self._control_type, self._set_pose_type = ControlWorld, SetEntityPose
        self._prefix = f"/world/{world}" if prefix is None else prefix.rstrip("/")
        self._sets_pose = False

    def probe(self, offered: Mapping[str, tuple[str, ...]]) -> tuple[Request, ...]:
        """Look for ControlWorld, which is needed, and SetEntityPose, which older bridges do not have."""
        control = f"{self._prefix}/{CONTROL}"
        if CONTROL_TYPE not in offered.get(control, ()):
            others = sorted(name for name, types in offered.items() if CONTROL_TYPE in types)
            raise BackendNotReadyError(
                f"nobody offers {control} ({CONTROL_TYPE}), but: {', '.join(others) or 'none of this type'}; allowed: "
                f"a bridge that does (ros2 run ros_gz_bridge parameter_bridge {control}@{CONTROL_TYPE})"
            )
        self._sets_pose = SET_POSE_TYPE in offered.get(f"{self._prefix}/{SET_POSE}", ())
        return ()

    def learn(self, reply: Any) -> None:  # noqa: ANN401 - nothing is asked
        """Nothing was asked."""

    @property
    def capabilities(self) -> ControlCapabilities:
        """Return what it can do: it resets the world, its time included (Fortress: nothing but the time)."""
        return ControlCapabilities(
            pause=True,
            reset_levels=("world",),
            rewinds_time=True,
            set_state=self._sets_pose,
        )

    def pause(self) -> Request:
        """Stand still."""
        return self._control()

    def step(self, steps: int) -> Request:
        """Run so many iterations; they add up with those that are not over."""
        if not 1 <= steps <= _MOST_STEPS:
            raise UsageError(f"{steps} steps are not allowed; allowed: 1 to {_MOST_STEPS} in one request")
        request = self._control()
        request.message.world_control.multi_step = steps
        return request

    def reset(self, level: str, seed: int | None) -> Request:  # noqa: ARG002 - Gazebo is seeded when it starts, or never
        """Set everything back to the begin, and stand still; models that came after the begin are gone then."""
        if level != "world":
            raise UsageError(f"reset {level!r} is not available with {self.name}; allowed: world")
        request = self._control()
        request.message.world_control.reset.all = True
        return request

    def state(self, entity: str) -> NoReturn:
        """The bridge has no service for it."""
        raise UsageError(f"where {entity!r} is cannot be asked of {self.name}: ros_gz_bridge has no service for it")

    def set_state(self, entity: str, position: FloatArray, orientation: FloatArray) -> Request:
        """Put a model somewhere. Its velocity stays, and that it does not exist is not told."""
        service = f"{self._prefix}/{SET_POSE}"
        if not self._sets_pose:
            raise UsageError(
                f"{entity!r} cannot be put anywhere: nobody offers {service} ({SET_POSE_TYPE}); allowed: a bridge of "
                "2025 or newer, and this service in its configuration"
            )
        message = self._set_pose_type.Request()
        message.entity.name, message.entity.type = entity, _MODEL
        write_pose(message.pose, position, orientation)
        return Request(service=service, type=self._set_pose_type, message=message, read=_check_success)

    def _control(self) -> Request:
        message = self._control_type.Request()
        message.world_control.pause = True
        return Request(
            service=f"{self._prefix}/{CONTROL}", type=self._control_type, message=message, read=_check_success
        )


def _check_success(reply: Any) -> None:  # noqa: ANN401 - a generated type
    if not reply.success:
        raise SimulatorRefusedError("success is false")
