"""A robot with an arm and the action server of a gripper over real rclpy, which can be made to fail."""

import contextlib
import math
import threading
from typing import Any

from rclpy.action import ActionServer, GoalResponse
from sensor_msgs.msg import JointState
from spinning import PERIOD_S, Spinning
from std_msgs.msg import Float64MultiArray

from embodied_env.messages.message_types import message_class
from embodied_env.ros.relay.relay_node import run_relay
from embodied_env.ros.transport.qos import RELIABLE

NAMESPACE = "/cell"
PATIENCE_S = 30.0


class Arm(Spinning):
    """Publishes the positions of both joints, and follows the commands of the arm at once."""

    def __init__(self, namespace: str, domain_id: int) -> None:
        super().__init__("arm", namespace, domain_id)
        self.positions = {"j1": 0.0, "j2": 0.1}
        self._publisher = self.node.create_publisher(JointState, "joint_states", RELIABLE)
        self.node.create_subscription(Float64MultiArray, "commands", self._follow, RELIABLE)
        self.node.create_timer(PERIOD_S, self._publish)
        self.start()

    def _follow(self, message: Float64MultiArray) -> None:
        (self.positions["j1"],) = message.data

    def _publish(self) -> None:
        message = JointState(name=list(self.positions), position=list(self.positions.values()))
        message.header.stamp = self.node.get_clock().now().to_msg()
        self._publisher.publish(message)


class Gripper(Spinning):
    """The action server of joint `j2`, which waits `delay_s` before each response.

    `mode`: the outcome, of "reach", "stall", "abort_stalled", "abort" and "nan" (of every number in the result), or
    "reject", or "accept" without a result.
    """

    def __init__(self, kind: str, arm: Arm, namespace: str, domain_id: int) -> None:
        super().__init__("gripper", namespace, domain_id)
        self.mode, self.delay_s, self._arm, self._type = "reach", 0.0, arm, message_class(kind)
        self.goals: list = []
        self._server = ActionServer(
            self.node,
            self._type,
            "gripper/command",
            self._execute,
            goal_callback=self._on_goal,
            handle_accepted_callback=self._on_accepted,
        )
        self.start()

    def positions(self) -> list[float]:
        """Return the positions of the goals, in the order of their arrival."""
        return [position_of(command) for command in self.goals]

    def _on_goal(self, goal: Any) -> GoalResponse:
        self.goals.append(goal.command)
        self._done.wait(self.delay_s)
        return GoalResponse.REJECT if self.mode == "reject" else GoalResponse.ACCEPT

    def _on_accepted(self, handle: Any) -> None:
        if self.mode != "accept":
            handle.execute()

    def _execute(self, handle: Any) -> Any:
        result = self._type.Result()
        result.reached_goal, result.stalled = self.mode in ("reach", "nan"), self.mode in ("stall", "abort_stalled")
        if self.mode == "nan":
            result.position = result.effort = math.nan
        if result.reached_goal:
            self._arm.positions["j2"] = position_of(handle.request.command)
        (handle.abort if self.mode.startswith("abort") else handle.succeed)()
        return result

    def release(self) -> None:
        self._server.destroy()


def position_of(command: Any) -> float:
    """Return the position of a goal of either type."""
    return command.position if isinstance(command.position, float) else command.position[0]


@contextlib.contextmanager
def relaying(contract, namespace=NAMESPACE):
    """Run a relay in a thread."""
    stop, is_ready = threading.Event(), threading.Event()
    options = {"namespace": namespace, "profile": {}, "stop": stop, "on_ready": lambda _: is_ready.set()}
    thread = threading.Thread(target=run_relay, args=(contract,), kwargs=options)
    thread.start()
    try:
        assert is_ready.wait(PATIENCE_S)
        yield
    finally:
        stop.set()
        thread.join()
