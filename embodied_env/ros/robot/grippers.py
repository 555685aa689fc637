"""Command grippers by goals of their action servers without ever waiting for one.

A server that rejects a goal, aborts it, never responds or disappears is reported once `max_silent_s` have passed since
its last answer. A new goal replaces the last one; nothing is canceled.
"""

from __future__ import annotations

import math
import threading
import uuid
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from rclpy.node import Node

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.actuator_schema import ActuatorSpec, GripperSpec
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.safety_input_state import INPUT_OK, InputState, InputStatus
from embodied_env.messages.commands import COMMAND_GOALS
from embodied_env.messages.message_types import message_class
from embodied_env.timing.clock import NS_PER_S, Clock

SEND_GOAL, GET_RESULT = "_action/send_goal", "_action/get_result"
"""Services of an action, below its name."""

_MAX_CALLS = 10  # the depth of a service's queue
_PENDING = ("sent", "accepted")
_DONE = ("idle", "reached", "stalled")


@dataclass(kw_only=True)
class _Goal:
    """Last goal, "idle" until the first since the reset, "unsent" until a server appears."""

    position: float  # SI unit
    state: str


class GripperClient:
    """Thread-safe client that sends the goals of one gripper."""

    def __init__(self, actuator: ActuatorSpec, gripper: GripperSpec, node: Node, clock: Clock, *, place: int) -> None:
        """Create the action clients of the joint at `place` in contract order."""
        self._clock, self._gripper, self._place, self._lock = clock, gripper, place, threading.RLock()
        self._actuator, self._joint = actuator, next(iter(actuator.joints))
        self._type = message_class(actuator.type)
        self._step = gripper.hysteresis * abs(gripper.open - gripper.closed)
        self._goals = node.create_client(self._type.Impl.SendGoalService, f"{actuator.topic}/{SEND_GOAL}")
        self._results = node.create_client(self._type.Impl.GetResultService, f"{actuator.topic}/{GET_RESULT}")
        self._absent_ns: int | None = None  # when the server was found missing
        self._waiting_ns = 0  # since when the server has accepted no goal; a new goal does not restart it
        self._count = 0
        self._calls: deque[Any] = deque()  # rclpy keeps those without an answer
        self._goal = _Goal(position=math.nan, state="idle")

    def begin(self, positions: FloatArray) -> None:
        """Start an episode at measured positions, NaN if unknown, with a pending goal as the last."""
        with self._lock:
            self._absent_ns, self._count, self._waiting_ns = None, 0, self._clock.now_ns()
            if self._goal.state not in _PENDING:
                self._goal = _Goal(position=positions[self._place].item(), state="idle")

    def send(self, values: FloatArray) -> None:
        """Send the goal of a command if it differs from the last, or the last could not be sent."""
        position = values[self._place].item()
        with self._lock:
            if not abs(position - self._goal.position) <= self._step:
                if self._goal.state in (*_DONE, "accepted"):
                    self._waiting_ns = self._clock.now_ns()
                self._goal = _Goal(position=position, state="unsent")
            if self._goal.state == "unsent" and self._is_ready():
                self._request(self._goal)

    def _request(self, goal: _Goal) -> None:
        goal.state = "sent"
        self._count += 1
        request = self._type.Impl.SendGoalService.Request(goal=self._message(goal.position))
        request.goal_id.uuid = list(uuid.uuid4().bytes)
        self._call(self._goals, request).add_done_callback(partial(self._on_response, goal, request.goal_id))

    def _call(self, client: Any, request: Any) -> Any:  # noqa: ANN401 - rclpy's
        """Call a service, and keep only the newest calls without an answer."""
        self._calls.append((client, client.call_async(request)))
        if len(self._calls) > _MAX_CALLS:
            oldest, future = self._calls.popleft()
            oldest.remove_pending_request(future)
        return self._calls[-1][1]

    def _message(self, position: float) -> Any:  # noqa: ANN401 - a generated type
        message, effort = self._type.Goal(), self._gripper.max_effort
        (position,) = self._actuator.to_driver(np.array([position])).tolist()
        COMMAND_GOALS[self._actuator.type].write(message, self._joint, position, effort)
        return message

    def _on_response(self, goal: _Goal, goal_id: Any, future: Any) -> None:  # noqa: ANN401 - rclpy's
        is_accepted = future.result().accepted
        with self._lock:
            if is_accepted:
                self._waiting_ns = self._clock.now_ns()  # by a server that answers, if late
            if goal is not self._goal or goal.state != "sent":
                return
            goal.state = "accepted" if is_accepted else "rejected"
            if is_accepted:
                request = self._type.Impl.GetResultService.Request(goal_id=goal_id)
                self._call(self._results, request).add_done_callback(partial(self._on_result, goal))

    def _on_result(self, goal: _Goal, future: Any) -> None:  # noqa: ANN401 - rclpy's
        """Store how a goal ended, as some servers abort one that has stalled."""
        with self._lock:
            if goal is self._goal and goal.state == "accepted":
                result = future.result().result
                goal.state = "reached" if result.reached_goal else "stalled" if result.stalled else "failed"

    def _is_ready(self) -> bool:
        """Return whether there is a server, with which a goal that it had not finished is lost."""
        is_ready = bool(self._goals.service_is_ready() and self._results.service_is_ready())
        if is_ready:
            self._absent_ns = None
        elif self._absent_ns is None:
            self._absent_ns = self._clock.now_ns()
            if self._goal.state in _PENDING:
                self._goal.state = "unsent"
        return is_ready

    def safety_state(self) -> InputState:
        """Return whether the server answers, which is silent after `max_silent_s`."""
        with self._lock:
            self._is_ready()
            waiting = [] if self._goal.state in _DONE else [self._waiting_ns]
            if self._absent_ns is not None:
                waiting.append(self._absent_ns)
            if not waiting or self._clock.now_ns() - min(waiting) <= self._gripper.max_silent_s * NS_PER_S:
                return INPUT_OK
            goal = f"goal {self._goal.position:g} is {self._goal.state}"
            problem = goal if self._absent_ns is None else "no action server"
            return InputState(InputStatus.SILENT, f"{problem} for more than {self._gripper.max_silent_s:g} s")

    def account(self) -> dict[str, Any]:
        """Return the last goal, its state, and the number of goals sent in this episode."""
        with self._lock:
            position, state = self._goal.position, self._goal.state
            return {"goal": None if state == "idle" else position, "state": state, "goals_sent": self._count}

    @property
    def is_sending(self) -> bool:
        """Whether the server has not responded to the last goal yet."""
        return self._goal.state == "sent"


def make_gripper_clients(contract: Contract, node: Node, clock: Clock) -> dict[str, GripperClient]:
    """Return a client for each gripper with an action server, by actuator."""
    slices = ActionLayout(contract).slices
    return {
        name: GripperClient(actuator, actuator.gripper, node, clock, place=slices[name].start)
        for name, actuator in contract.actuators.items()
        if actuator.is_action and actuator.gripper is not None
    }
