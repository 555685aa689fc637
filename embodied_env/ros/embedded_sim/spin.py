"""How the node of a world in lockstep is turned: by rclpy's private wait set where it is there, else by an executor.

One wake takes every message that is there: a command wakes the process, which reads it while its token is under way.
Services, and whatever else a node has, are left to an executor, which is turned when a service was called, and when
nothing came for a while. It may take messages too: both hand them to the callbacks of their subscriptions, which take
them in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from embodied_env.core.clock import NS_PER_S
from embodied_env.ros.embedded_sim.base_node import RELIABLE, TURN_S, make_executor
from embodied_env.ros.setup_checks import rclpy_import_errors

with rclpy_import_errors("the embedded simulator over ROS 2"):
    from rclpy.context import Context
    from rclpy.executors import Executor, SingleThreadedExecutor
    from rclpy.node import Node

Subscription = Any  # rclpy's, raw

_IDLE_TURNS = 10  # in which nothing came, before the executor is turned


def private_wait_set() -> Any:  # noqa: ANN401 - a class of rclpy's, without types
    """Return rclpy's wait set; None where there is none."""
    try:
        from rclpy.impl.implementation_singleton import rclpy_implementation  # noqa: PLC0415 - private, may be absent
    except ImportError:
        return None
    return getattr(rclpy_implementation, "WaitSet", None)


def lockstep_executor(context: Context) -> Executor:
    """Return what to turn a node in lockstep by: beside a private wait set one that takes nothing by itself."""
    return make_executor(context) if private_wait_set() is None else SingleThreadedExecutor(context=context)


class NodeSpinner:
    """The turns of a node in lockstep, each of at most `TURN_S`."""

    def __init__(self, node: Node, executor: Executor, subscriptions: Sequence[Subscription]) -> None:
        """`executor` turns `node`; `subscriptions` are to be fast, and are served in this order."""
        self._executor = executor
        self._subscriptions = subscriptions
        self._services = list(node.services)
        self._idle = 0
        kind = private_wait_set()
        sizes = len(subscriptions), 0, 0, 0, len(self._services), 0
        self._wait_set = None if kind is None else kind(*sizes, node.context.handle)

    def spin_once(self) -> None:
        """Wait for the next thing, and do what is there to do."""
        if self._wait_set is None:
            self._executor.spin_once(timeout_sec=TURN_S)
            return
        is_called = self._wait(self._wait_set)
        took = [_drain(each) for each in self._subscriptions]
        self._idle = 0 if any(took) else self._idle + 1
        if is_called or self._idle == _IDLE_TURNS:
            self._idle = 0
            self._executor.spin_once(timeout_sec=0.0)

    def _wait(self, wait_set: Any) -> bool:  # noqa: ANN401 - rclpy's
        """Wait for the next thing; return whether a service was called."""
        wait_set.clear_entities()
        for subscription in self._subscriptions:
            wait_set.add_subscription(subscription.handle)
        for service in self._services:
            wait_set.add_service(service.handle)
        wait_set.wait(round(TURN_S * NS_PER_S))
        return bool(wait_set.get_ready_entities("service"))


def _drain(subscription: Subscription) -> bool:
    """Hand what a subscription has to its callback, as far as its queue goes; return whether there was something."""
    for count in range(RELIABLE.depth):
        taken = subscription.handle.take_message(subscription.msg_type, True)
        if taken is None:
            return count > 0
        subscription.callback(taken[0])
    return True
