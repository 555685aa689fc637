"""How the node of a world in lockstep waits: for a token, then for the commands that it names, then does both at once.

With rclpy's private wait set, by feature detection, one wake of the process serves a step; services, and whatever else
a node has, are left to an executor, which is turned when one of them was called, and when nothing came for a while.
Without it the executor does all. Both hand messages to the callbacks of their subscriptions, which take them in any
order, so nothing is wrong when one of them takes what the other could have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from embodied_env.clock import NS_PER_S
from embodied_env.ros_environment import importing_rclpy
from embodied_env.sim.world_node import TURN_S, make_executor

with importing_rclpy("the embedded simulator over ROS 2"):
    from rclpy.context import Context
    from rclpy.executors import Executor, SingleThreadedExecutor
    from rclpy.node import Node

Subscription = Any  # rclpy's, raw


def private_wait_set() -> Any:  # noqa: ANN401 - a class of rclpy's, without types
    """Return rclpy's wait set; None where there is none."""
    try:
        from rclpy.impl.implementation_singleton import rclpy_implementation  # noqa: PLC0415 - private, may be absent

        return rclpy_implementation.WaitSet
    except (ImportError, AttributeError):
        return None


def lockstep_executor(context: Context) -> Executor:
    """Return what to turn a node in lockstep by: beside a private wait set one that takes nothing by itself."""
    return make_executor(context) if private_wait_set() is None else SingleThreadedExecutor(context=context)


class Turns:
    """The turns of a node in lockstep, each of at most `TURN_S`."""

    def __init__(
        self,
        node: Node,
        executor: Executor,
        *,
        token: Subscription,
        commands: Sequence[Subscription],
        needs_commands: Callable[[], bool],
    ) -> None:
        """`needs_commands` says whether there is a token that waits for them; else they wait for one."""
        self._node = node
        self._executor = executor
        self._token = token
        self._commands = commands
        self._needs_commands = needs_commands
        self._services = list(node.services)
        kind = private_wait_set()
        sizes = 1 + len(commands), 0, 0, 0, len(self._services), 0
        self._wait_set = None if kind is None else kind(*sizes, node.context.handle)

    def turn(self) -> None:
        """Wait, and do what is there to do."""
        if self._wait_set is None:
            self._executor.spin_once(timeout_sec=TURN_S)
            return
        is_called = self._wait(self._wait_set)
        took = [_drain(each) for each in (*self._commands, self._token)]
        if is_called or not any(took):
            self._executor.spin_once(timeout_sec=0.0)

    def _wait(self, wait_set: Any) -> bool:  # noqa: ANN401 - rclpy's
        """Wait for the next thing; return whether a service was called."""
        wait_set.clear_entities()
        wait_set.add_subscription(self._token.handle)
        if self._needs_commands():
            for each in self._commands:
                wait_set.add_subscription(each.handle)
        for service in self._services:
            wait_set.add_service(service.handle)
        wait_set.wait(round(TURN_S * NS_PER_S))
        return bool(wait_set.get_ready_entities("service"))


def _drain(subscription: Subscription) -> int:
    """Hand all that a subscription has to its callback; return how many they were."""
    count = 0
    while (taken := subscription.handle.take_message(subscription.msg_type, True)) is not None:
        subscription.callback(taken[0])
        count += 1
    return count
