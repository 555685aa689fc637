"""Action servers of an emulated robot's grippers, which move at the contract's speed."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.spaces import ActionLayout
from embodied_env.messages.commands import COMMAND_GOALS
from embodied_env.messages.message_types import message_class
from embodied_env.timing.clock import NS_PER_S

_STALL_NS = NS_PER_S // 5  # at rest for this long away from the goal
_NEAR = 0.02  # share of the range within which a goal is reached
_STILL = 0.001  # share of the range per tick that counts as rest


class EmulatedGripper:
    """Action server of one gripper, which aborts the last goal when a new one replaces it.

    Attributes:
        index: of its actuator.
    """

    def __init__(self, contract: Contract, name: str, node: Any, *, tick_s: float) -> None:  # noqa: ANN401 - rclpy's
        """Offer the action of the actuator `name`, with moves `tick_s` apart."""
        from rclpy.action import ActionServer  # noqa: PLC0415 - rclpy is installed if there is a node

        layout, actuator = ActionLayout(contract), contract.actuators[name]
        self.index, self._joint = list(layout.slices).index(name), layout.slices[name].start
        self._actuator = actuator
        self._range = float((layout.limits.position_high - layout.limits.position_low)[self._joint])
        self._stride = next(iter(actuator.joints.values())).fastest * tick_s
        self._type = message_class(actuator.type)
        self._handle: Any = None
        self._goal: float | None = None
        self._setpoint: float | None = None
        self._last, self._moved_ns = 0.0, 0  # position at the last move, and when it last changed
        fail, accept = partial(self._finish, "failed"), self._on_accepted
        self._server = ActionServer(node, self._type, actuator.topic, fail, handle_accepted_callback=accept)

    def begin(self) -> None:
        """Drop the goal of the last episode."""
        self._end("failed")
        self._goal = self._setpoint = None

    def close(self) -> None:
        """Destroy the action server, which its node does not."""
        self._server.destroy()

    def move(self, now_ns: int, positions: FloatArray) -> FloatArray | None:
        """Return the next setpoint, shape (1,), or None, given the `positions` of all joints."""
        if self._goal is None:
            return None
        position = float(positions[self._joint])
        start = position if self._setpoint is None else self._setpoint
        self._setpoint = float(np.clip(self._goal, start - self._stride, start + self._stride))
        if self._setpoint != self._goal or abs(position - self._last) > _STILL * self._range:
            self._moved_ns = now_ns
        self._last = position
        if abs(position - self._goal) <= _NEAR * self._range:
            self._end("reached")
        elif now_ns - self._moved_ns > _STALL_NS:
            self._end("stalled")
        return np.array([self._setpoint])

    def _on_accepted(self, handle: Any) -> None:  # noqa: ANN401 - rclpy's
        self._end("failed")
        self._handle, position = handle, COMMAND_GOALS[self._actuator.type].read(handle.request)
        values = self._actuator.from_driver(np.array([position])) if np.isfinite(position) else None
        if values is not None:
            self._goal = float(values[0])
        else:
            self._end("failed")

    def _end(self, outcome: str) -> None:
        """End the active goal, towards which the setpoint keeps moving."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.execute(partial(self._finish, outcome))

    def _finish(self, outcome: str, handle: Any) -> Any:  # noqa: ANN401 - generated types
        result = self._type.Result()
        result.reached_goal, result.stalled = outcome == "reached", outcome == "stalled"
        (handle.abort if outcome == "failed" else handle.succeed)()
        return result


def make_emulated_grippers(contract: Contract, node: Any, *, tick_s: float) -> list[EmulatedGripper]:  # noqa: ANN401 - rclpy's
    """Return the action server of each gripper that has one, or raise MissingDependencyError without its messages."""
    names = [name for name, actuator in contract.actuators.items() if actuator.is_action]
    return [EmulatedGripper(contract, name, node, tick_s=tick_s) for name in names]
