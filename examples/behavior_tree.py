"""Call a policy from a behaviour tree whose leaf is a goal of the runner.

python examples/behavior_tree.py --attempts 2 --seconds 5

It activates the runner, tries the policy until an episode succeeds, and deactivates the runner in every case. A tree of
BehaviorTree.CPP or py_trees_ros has the same shape: the leaf is their usual action node for `run_policy`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

import rclpy
from action_msgs.msg import GoalStatus
from embodied_env_interfaces.action import RunPolicy
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rclpy.action import ActionClient
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

RUNNING, SUCCESS, FAILURE = "running", "success", "failure"
TICK_S = 0.1


class Leaf:
    """Leaf whose work is a chain of futures, which `tick` polls without waiting."""

    def __init__(self) -> None:
        """Start nothing."""
        self._work: Iterator[str] | None = None

    def work(self) -> Iterator[str]:
        """Yield RUNNING until the work is done, then SUCCESS or FAILURE."""
        raise NotImplementedError

    def tick(self) -> str:
        """Continue the work, from its start after a result."""
        self._work = self._work or self.work()
        status = next(self._work)
        if status != RUNNING:
            self._work = None
        return status

    def halt(self) -> None:
        """Abandon the work."""
        self._work = None


class Change(Leaf):
    """Request a transition of the runner, which replies when the transition has ended."""

    def __init__(self, node: Node, transition: int) -> None:
        """Request `transition` of the node ``runner``."""
        super().__init__()
        self._client, self._transition = node.create_client(ChangeState, "runner/change_state"), transition

    def work(self) -> Iterator[str]:
        """Wait for the service, then for its answer."""
        while not self._client.service_is_ready():
            yield RUNNING
        future = self._client.call_async(ChangeState.Request(transition=Transition(id=self._transition)))
        while not future.done():
            yield RUNNING
        yield SUCCESS if future.result().success else FAILURE


class RunPolicyLeaf(Leaf):
    """Run episodes, with the status SUCCESS if the last one succeeded.

    Halting the leaf brakes the robot.
    """

    def __init__(self, node: Node, **goal: Any) -> None:  # noqa: ANN401 - the fields of the goal
        """Send a goal with these fields at the first tick."""
        super().__init__()
        self._client, self._goal, self._handle = ActionClient(node, RunPolicy, "run_policy"), goal, None

    def work(self) -> Iterator[str]:
        """Send the goal, then wait for its result."""
        while not self._client.server_is_ready():
            yield RUNNING
        sent = self._client.send_goal_async(RunPolicy.Goal(**self._goal), self._show)
        while not sent.done():
            yield RUNNING
        self._handle = handle = sent.result()
        if not handle.accepted:  # the topic runner/status and the service runner/check_goal have the reason
            yield FAILURE
            return
        ended = handle.get_result_async()
        while not ended.done():
            yield RUNNING
        status, result = ended.result().status, ended.result().result
        fields = ("end_reason", "verdict", "episodes", "successes", "steps", "run", "message")
        print(json.dumps({name: getattr(result, name) for name in fields}), flush=True)
        is_complete = status == GoalStatus.STATUS_SUCCEEDED
        yield SUCCESS if is_complete and result.verdict == "success" else FAILURE

    def halt(self) -> None:
        """Cancel the goal without waiting for its result, which is sent when the robot is at rest."""
        if self._work is not None and self._handle is not None:
            self._handle.cancel_goal_async()
        super().halt()

    @staticmethod
    def _show(message: Any) -> None:  # noqa: ANN401 - a generated type
        each = message.feedback
        print(f"episode {each.episode} step {each.step}: {each.progress:.0%}", end="\r", file=sys.stderr)


def tick_in_sequence(children: Iterable[Any]) -> Iterator[str]:
    """Tick one child after the other, until one fails."""
    for child in children:
        while (status := child.tick()) == RUNNING:
            yield RUNNING
        if status == FAILURE:
            yield FAILURE
            return
    yield SUCCESS


def retry(child: Leaf, attempts: int) -> Iterator[str]:
    """Tick a child again when it fails, at most `attempts` times."""
    for _ in range(attempts):
        while (status := child.tick()) == RUNNING:
            yield RUNNING
        if status == SUCCESS:
            break
    yield status


def run_tree(node: Node, tree: Iterator[str]) -> str:
    """Tick a tree at a fixed rate until it has a result.

    The callbacks run between the ticks.
    """
    while (status := next(tree)) == RUNNING:
        end_s = time.monotonic() + TICK_S
        while (left_s := end_s - time.monotonic()) > 0:
            rclpy.spin_once(node, timeout_sec=left_s)
    return status


def main() -> int:
    """Run the tree and return the exit status, which is 0 if an episode succeeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namespace", default="/", help="ROS 2 namespace of the runner (default: /)")
    parser.add_argument("--attempts", type=int, default=3, help="number of goals before the tree fails (default: 3)")
    parser.add_argument("--seconds", type=float, default=10.0, help="time limit of a goal in s (default: 10)")
    args = parser.parse_args()
    rclpy.init(
        signal_handler_options=SignalHandlerOptions.NO
    )  # Ctrl-C must not end the context before the robot brakes
    node = rclpy.create_node("behavior_tree", namespace=args.namespace)
    begin = [Change(node, Transition.TRANSITION_CONFIGURE), Change(node, Transition.TRANSITION_ACTIVATE)]
    policy = RunPolicyLeaf(node, episodes=1, seconds=args.seconds)
    end = [Change(node, Transition.TRANSITION_DEACTIVATE), Change(node, Transition.TRANSITION_CLEANUP)]
    status = run_tree(node, tick_in_sequence(begin))
    if status == SUCCESS:
        try:
            status = run_tree(node, retry(policy, args.attempts))
        finally:
            policy.halt()
            run_tree(node, tick_in_sequence(end))
    node.destroy_node()
    rclpy.try_shutdown()
    print(f"the tree ended with {status}")
    return 0 if status == SUCCESS else 1


if __name__ == "__main__":
    sys.exit(main())
