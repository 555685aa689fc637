"""Action servers of the grippers of an emulated robot: each drives its joint at the speed in the contract."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.message_types import message_class
from embodied_env.contract.schema import ActuatorSpec, GripperSpec
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.clock import NS_PER_S

_STALL_NS = NS_PER_S // 5  # at rest for this long away from the goal
_NEAR = 0.02  # share of the way from closed to open within which a goal is reached
_STILL = 0.001  # share of that way per tick that counts as rest


class EmulatedGripper:
    """One action server. A new goal replaces the last one, which is aborted.

    Attributes:
        index: of its actuator.
    """

    def __init__(
        self,
        index: int,
        actuator: ActuatorSpec,
        gripper: GripperSpec,
        node: Any,  # noqa: ANN401 - rclpy's
        *,
        joint: int,
        tick_s: float,
    ) -> None:
        """Offer the action; `joint` is the place of the joint in the flat command, `tick_s` the time between moves."""
        from rclpy.action import ActionServer  # noqa: PLC0415 - rclpy is installed if there is a node

        self.index, self._joint, self._type = index, joint, message_class(actuator.type)
        (limits,) = actuator.joints.values()
        self._stride, self._way = limits.velocity * tick_s, abs(gripper.open - gripper.closed)
        self._handle: Any = None
        self._goal: float | None = None
        self._set_point: float | None = None
        self._moved_ns = 0  # when it last moved
        self._last = 0.0
        finish = partial(self._finish, "failed")
        self._server = ActionServer(
            node, self._type, actuator.topic, finish, handle_accepted_callback=self._on_accepted
        )

    def begin(self) -> None:
        """Drop the goal of the last episode."""
        self._end("failed")
        self._goal = self._set_point = None

    def close(self) -> None:
        """Destroy the action server, which its node does not."""
        self._server.destroy()

    def move(self, now_ns: int, positions: FloatArray) -> FloatArray | None:
        """Return the next set-point, shape (1,), or None; `positions` are those of all joints."""
        if self._goal is None:
            return None
        position = float(positions[self._joint])
        start = position if self._set_point is None else self._set_point
        self._set_point = float(np.clip(self._goal, start - self._stride, start + self._stride))
        if self._set_point != self._goal or abs(position - self._last) > _STILL * self._way:
            self._moved_ns = now_ns
        self._last = position
        if abs(position - self._goal) <= _NEAR * self._way:
            self._end("reached")
        elif now_ns - self._moved_ns > _STALL_NS:
            self._end("stalled")
        return np.array([self._set_point])

    def _on_accepted(self, handle: Any) -> None:  # noqa: ANN401 - rclpy's
        self._end("failed")
        command = handle.request.command
        position = command.position if isinstance(command.position, float) else [*command.position, np.nan][0]
        self._handle = handle
        if not np.isfinite(position):
            self._end("failed")
            return
        self._goal = float(position)

    def _end(self, outcome: str) -> None:
        """End the active goal; the set-point keeps moving towards it."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.execute(partial(self._finish, outcome))

    def _finish(self, outcome: str, handle: Any) -> Any:  # noqa: ANN401 - generated types
        result = self._type.Result()
        result.reached_goal, result.stalled = outcome == "reached", outcome == "stalled"
        (handle.abort if outcome == "failed" else handle.succeed)()
        return result


def make_grippers(contract: Contract, node: Any, *, tick_s: float) -> list[EmulatedGripper]:  # noqa: ANN401 - rclpy's
    """Return the action server of each gripper that has one; raises MissingDependencyError without its messages."""
    places = ActionLayout(contract).slices
    return [
        EmulatedGripper(index, actuator, actuator.gripper, node, joint=places[name].start, tick_s=tick_s)
        for index, (name, actuator) in enumerate(contract.actuators.items())
        if actuator.is_action and actuator.gripper is not None
    ]
