"""Command grippers by goals of their action servers; no call ever waits for one.

A server that rejects a goal, aborts it, never responds or disappears is reported once `max_silent_s` have passed since
its last answer. A new goal replaces the last one; nothing is canceled.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from embodied_env.contract import Contract
from embodied_env.contract.message_types import message_class
from embodied_env.contract.schema import ActuatorSpec, GripperSpec
from embodied_env.core.clock import NS_PER_S, Clock
from embodied_env.errors import BackendError
from embodied_env.ros.receive_thread import ReceiveThread

SEND_GOAL, GET_RESULT = "_action/send_goal", "_action/get_result"
"""Services of an action, below its name."""

_DELIVERY_NS = NS_PER_S // 2
_PENDING = ("sent", "accepted")
_ANSWERED = ("idle", "reached", "stalled")


@dataclass(kw_only=True)
class _Goal:
    """The last goal; `state` "idle": none since the reset, "unsent": waiting for the server to appear."""

    position: float
    state: str
    since_ns: int  # of the last answer, or of the request
    key: bytes = b""


class GripperClient:
    """Sends the goals of one gripper. The lock of the receive thread protects its state."""

    def __init__(self, actuator: ActuatorSpec, gripper: GripperSpec, listener: ReceiveThread, clock: Clock) -> None:
        """Create the clients of the action `actuator.topic`; call it before `listener` starts."""
        self._listener, self._clock, self._gripper = listener, clock, gripper
        self._joint = next(iter(actuator.joints))
        self._type = message_class(actuator.type)
        self._step = gripper.hysteresis * abs(gripper.open - gripper.closed)
        node, name = listener.node, actuator.topic
        self._goals = node.create_client(self._type.Impl.SendGoalService, f"{name}/{SEND_GOAL}")
        self._results = node.create_client(self._type.Impl.GetResultService, f"{name}/{GET_RESULT}")
        self._absent_ns: int | None = None  # when the server was found missing
        self._count = 0
        self._goal = _Goal(position=math.nan, state="idle", since_ns=0)

    def begin(self, position: float) -> None:
        """Start an episode at a measured position, NaN if unknown. A goal on its way stays the last one."""
        with self._listener.condition:
            self._absent_ns, self._count = None, 0
            if self._goal.state not in _PENDING:
                self._goal = _Goal(position=position, state="idle", since_ns=0)
            self._goal.since_ns = self._clock.now_ns()

    def send(self, position: float) -> None:
        """Send a goal if it differs from the last one, or if that could not be sent before."""
        with self._listener.condition:
            if not abs(position - self._goal.position) <= self._step:
                self._goal = _Goal(position=position, state="unsent", since_ns=self._clock.now_ns())
            if self._goal.state == "unsent" and self._is_ready():
                self._request(self._goal)

    def _request(self, goal: _Goal) -> None:
        goal.key, goal.state = uuid.uuid4().bytes, "sent"
        self._count += 1
        request = self._type.Impl.SendGoalService.Request()
        request.goal_id.uuid = list(goal.key)
        request.goal = self._message(goal.position)
        self._goals.call_async(request).add_done_callback(partial(self._on_response, goal))

    def _message(self, position: float) -> Any:  # noqa: ANN401 - a generated type
        message, effort = self._type.Goal(), self._gripper.max_effort
        if hasattr(message.command, "name"):  # of a ParallelGripperCommand
            message.command.name, message.command.position = [self._joint], [position]
            message.command.effort = [] if effort is None else [effort]
        else:
            message.command.position, message.command.max_effort = position, effort or 0.0
        return message

    def _on_response(self, goal: _Goal, future: Any) -> None:  # noqa: ANN401 - rclpy's
        """Store whether a goal was accepted, and request its result."""
        with self._listener.condition:
            if goal is not self._goal or goal.state != "sent":
                return
            goal.state = "accepted" if future.result().accepted else "rejected"
            if goal.state == "accepted":
                goal.since_ns = self._clock.now_ns()
                request = self._type.Impl.GetResultService.Request()
                request.goal_id.uuid = list(goal.key)
                self._results.call_async(request).add_done_callback(partial(self._on_result, goal))
            self._listener.condition.notify_all()

    def _on_result(self, goal: _Goal, future: Any) -> None:  # noqa: ANN401 - rclpy's
        with self._listener.condition:
            if goal is self._goal and goal.state == "accepted":
                result = future.result().result
                goal.state = "reached" if result.reached_goal else "stalled" if result.stalled else "failed"

    def _is_ready(self) -> bool:
        """Return whether there is a server; a goal that it had not finished is lost with it."""
        is_ready = bool(self._goals.service_is_ready())
        if is_ready:
            self._absent_ns = None
        elif self._absent_ns is None:
            self._absent_ns = self._clock.now_ns()
            if self._goal.state in _PENDING:
                self._goal.state = "unsent"
        return is_ready

    def safety_state(self) -> str:
        """Return "ok", or after `max_silent_s` without an answer why it is silent."""
        with self._listener.condition:
            self._is_ready()
            goal, waiting = self._goal, []
            if goal.state not in _ANSWERED:
                waiting.append(goal.since_ns)
            if self._absent_ns is not None:
                waiting.append(self._absent_ns)
            if not waiting or self._clock.now_ns() - min(waiting) <= self._gripper.max_silent_s * NS_PER_S:
                return "ok"
            problem = "no action server" if self._absent_ns is not None else f"goal {goal.position:g} is {goal.state}"
            return f"silent: {problem} for more than {self._gripper.max_silent_s:g} s"

    def account(self) -> dict[str, Any]:
        """Return the last goal, its state, and the number of goals sent in this episode."""
        with self._listener.condition:
            goal = self._goal
            position = goal.position if math.isfinite(goal.position) and goal.state != "idle" else None
            return {"goal": position, "state": goal.state, "goals_sent": self._count}

    def flush(self) -> None:
        """Wait briefly until the last goal has an answer: destroying a client may drop it."""
        try:
            self._listener.wait_until(lambda: self._goal.state != "sent", self._clock.now_ns() + _DELIVERY_NS)
        except BackendError:
            return


def make_grippers(contract: Contract, listener: ReceiveThread, clock: Clock) -> Mapping[str, GripperClient]:
    """Return a client for each gripper with an action server, by actuator."""
    return {
        name: GripperClient(actuator, actuator.gripper, listener, clock)
        for name, actuator in contract.actuators.items()
        if actuator.is_action and actuator.gripper is not None
    }
