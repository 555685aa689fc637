"""A ROS 2 context with one node, and its receiver."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from embodied_env.core.message_tap import MessageTap
from embodied_env.errors import BackendNotReadyError, UsageError
from embodied_env.processes.signals import deferred_signals
from embodied_env.ros.transport.setup_checks import rclpy_import_errors, ros_arguments, ros_init_errors
from embodied_env.timing.clock import NS_PER_S, Clock

with rclpy_import_errors("a backend over ROS 2"):
    import rclpy
    from rcl_interfaces.msg import ParameterDescriptor, SetParametersResult
    from rclpy.context import Context
    from rclpy.node import Node
    from rclpy.publisher import Publisher
    from rclpy.signals import SignalHandlerOptions

    from embodied_env.ros.transport.receiver import DISCOVERY_POLL_S, LivenessCheck, Receiver
    from embodied_env.ros.transport.tapped_node import TappedNode


LEASE_NS = 40 * NS_PER_S
"""Longest time until the middleware drops a process that was killed."""

_NOTICE_S = 5.0  # between two lines about that wait


@dataclass(frozen=True, kw_only=True)
class UnmatchedTopics:
    """Topics without a subscriber, without a publisher, or with several publishers."""

    unread: list[str]
    unpublished: list[str]
    shared: list[str]


_first_use: list[int] = []  # the first element is the process that first used ROS 2 in this interpreter


class RosNode:
    """A node in a context of its own, independent of other users of rclpy in this process.

    It installs no signal handlers: those of rclpy would shut the context down before the robot could brake.
    """

    def __init__(
        self,
        name: str,
        *,
        namespace: str,
        clock: Clock,
        domain_id: int | None = None,
        ros_args: Sequence[str] = (),
        parameters: Mapping[str, bool | int | float | str] | None = None,
        feed: MessageTap | None = None,
    ) -> None:
        """Create the node.

        Args:
            name: the node's name.
            namespace: absolute; relative topics resolve in it.
            clock: stamps arrivals.
            domain_id: None: ``ROS_DOMAIN_ID``, or 0.
            ros_args: remappings and parameters of this node; they precede those of the process (``sys.argv``).
            parameters: read-only, served by the executor that spins the node; None: no parameter services.
            feed: receives the messages that the node publishes and receives.

        Raises BackendNotReadyError if ROS 2 cannot be initialised, or after a fork, and UsageError for ROS arguments
        that rcl cannot parse, or a threshold that is not a positive number.
        """
        _first_use.append(os.getpid())
        if _first_use[0] != os.getpid():  # Fast DDS does not survive a fork: its first call would block
            raise BackendNotReadyError(
                "ROS 2 cannot be used in a process forked from one that had used it; "
                "start processes with 'spawn' or 'forkserver' (AsyncVectorEnv: context='spawn')"
            )
        arguments = ros_arguments(ros_args)
        self._context = Context()
        self._closed = False
        try:
            with deferred_signals(), ros_init_errors(UsageError):
                rclpy.init(context=self._context, domain_id=domain_id, signal_handler_options=SignalHandlerOptions.NO)
                self.node = TappedNode(
                    name,
                    feed=feed or MessageTap(),
                    clock=clock,
                    context=self._context,
                    namespace=namespace,
                    cli_args=arguments,
                    start_parameter_services=parameters is not None,
                    enable_rosout=False,
                )
                if parameters is not None:
                    declare_read_only(self.node, parameters)
        except (UsageError, BackendNotReadyError):
            self._context.try_shutdown()
            raise
        self.receiver = Receiver(self.node, clock, feed)

    def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Poll `condition` until it is true, at most `timeout_s`, and return whether it is."""
        end = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > end:
                return False
            time.sleep(DISCOVERY_POLL_S)
        return True

    def wait_for_peers(
        self,
        publishers: Sequence[Publisher],
        topics: Sequence[str],
        timeout_s: float,
        check_liveness: LivenessCheck = lambda: None,
    ) -> UnmatchedTopics | None:
        """Wait until publishers have a subscription and topics one publisher, or return the others.

        A topic that is listed twice may have two publishers.
        """

        def unmatched() -> UnmatchedTopics | None:
            check_liveness()
            counts = {topic: self.node.count_publishers(topic) for topic in topics}
            found = UnmatchedTopics(
                unread=[publisher.topic_name for publisher in publishers if not publisher.get_subscription_count()],
                unpublished=[topic for topic, count in counts.items() if count == 0],
                shared=[topic for topic, count in counts.items() if count > list(topics).count(topic)],
            )
            return found if found.unread or found.unpublished or found.shared else None

        self.wait_until(lambda: unmatched() is None, timeout_s)
        return unmatched()

    def close(self) -> None:
        """Destroy the node and its context (idempotent)."""
        if self._closed:
            return
        self._closed = True
        with deferred_signals():
            self.node.destroy_node()
            with contextlib.suppress(RuntimeError):  # already shut down, with all contexts
                rclpy.shutdown(context=self._context)


class Threshold(float):
    """A default value that ROS arguments may replace by another positive number."""


def declare_read_only(node: Node, parameters: Mapping[str, bool | int | float | str]) -> None:
    """Declare read-only parameters, where ROS arguments change only a `Threshold`."""
    for key, value in parameters.items():
        is_fixed = not isinstance(value, Threshold)
        descriptor = ParameterDescriptor(read_only=True, dynamic_typing=True)
        found = node.declare_parameter(key, value, descriptor, ignore_override=is_fixed).value
        if not is_fixed and (type(found) not in (int, float, Threshold) or not 0.0 < found < math.inf):
            raise UsageError(f"invalid parameter {key}: {found!r} (expected a positive number); correct it")
    reason = "the parameters of this node are read-only"  # also rclpy's own, such as use_sim_time
    node.add_on_set_parameters_callback(lambda _: SetParametersResult(successful=False, reason=reason))


def warn_of_simulated_time(node: Node, remedy: str) -> None:
    """Log a warning if the parameter ``use_sim_time`` is set, which changes nothing here."""
    if node.get_parameter("use_sim_time").value:
        node.get_logger().warning(f"use_sim_time has no effect: commands and ages are in wall time; {remedy}")


# `get_*_info_by_topic` remaps the topic that it is called with; `count_publishers` does not.


def publisher_names(node: Node, topic: str) -> list[str]:
    """Return the full names of the nodes that publish a topic."""
    return [node_name(info) for info in node.get_publishers_info_by_topic(topic)]


def log_wait_for_lease(node: Node, who: str) -> None:
    """Log, at most every few seconds, that `who` still counts a process that was killed."""
    text = f"waiting until {who} no longer counts a process that was killed (at most {LEASE_NS // NS_PER_S} s)"
    node.get_logger().info(text, throttle_duration_sec=_NOTICE_S)


def node_name(info: Any) -> str:  # noqa: ANN401 - a TopicEndpointInfo
    """Return the full name of the node of a publisher or subscription."""
    return f"{info.node_namespace.rstrip('/')}/{info.node_name}"
