"""A node that passes the messages which it publishes and receives to a `MessageTap`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

from embodied_env.core.message_tap import MessageTap, TappedMessage
from embodied_env.ros.transport.byte_layout import RawMessage, to_cdr
from embodied_env.timing.clock import Clock

_INFINITE = "{sec: 9223372036, nsec: 854775807}"


class TappedNode(Node):  # type: ignore[misc] # rclpy has no type information
    """Node whose published and received messages, but not services, also go to `feed`."""

    def __init__(self, name: str, *, feed: MessageTap, clock: Clock, **options: Any) -> None:  # noqa: ANN401 - Node's own
        """Create the node without tapping the topics that rclpy itself creates meanwhile."""
        self._feed: MessageTap | None = None
        self._system_clock = clock
        super().__init__(name, **options)
        self._feed = feed

    def create_publisher(self, msg_type: Any, topic: str, qos_profile: Any, **options: Any) -> Any:  # noqa: ANN401
        """Create a publisher whose messages are tapped after they are published."""
        feed, clock = self._feed, self._system_clock
        if feed is None:
            return super().create_publisher(msg_type, topic, qos_profile, **options)
        tap = TopicTap(feed, msg_type, self.resolve_topic_name(topic), qos_profile)

        class TappedPublisher(Publisher):  # type: ignore[misc] # rclpy has no type information
            def publish(self, msg: Any) -> None:  # noqa: ANN401 - a generated type
                super().publish(msg)
                now_ns = clock.system_ns()
                tap.pass_on(msg, now_ns, now_ns, is_ours=True)

        return super().create_publisher(msg_type, topic, qos_profile, publisher_class=TappedPublisher, **options)

    def create_subscription(
        self,
        msg_type: Any,  # noqa: ANN401 - a generated type
        topic: str,
        callback: Callable[..., None],
        qos_profile: Any,  # noqa: ANN401 - a profile, or its depth
        **options: Any,  # noqa: ANN401 - Node's own
    ) -> Any:  # noqa: ANN401
        """Create a subscription whose messages are tapped after `callback`."""
        feed = self._feed
        if feed is None or options.get("raw"):
            return super().create_subscription(msg_type, topic, callback, qos_profile, **options)
        clock, tap = self._system_clock, TopicTap(feed, msg_type, self.resolve_topic_name(topic), qos_profile)
        takes_info = len(inspect.signature(callback).parameters) > 1

        def handle(message: Any, info: Any) -> None:  # noqa: ANN401 - generated types
            arrived_ns = clock.system_ns()
            if takes_info:
                callback(message, info)
            else:
                callback(message)
            tap.received(message, info, arrived_ns)

        return super().create_subscription(msg_type, topic, handle, qos_profile, **options)


class TopicTap:
    """Passes the messages of one topic to a `MessageTap`."""

    def __init__(self, feed: MessageTap, message_type: type, topic: str, qos: QoSProfile | int) -> None:
        self._feed = feed
        self._topic = topic  # absolute
        package, kind, _ = message_type.__module__.split(".", 2)
        self._type = f"{package}/{kind}/{message_type.__name__}"
        self._qos = qos_text(qos)

    def received(self, message: Any, info: Mapping[str, int | None], arrived_ns: int) -> None:  # noqa: ANN401
        """Pass on a message that has arrived with its `MessageInfo`."""
        self.pass_on(message, arrived_ns, info.get("source_timestamp") or arrived_ns, is_ours=False)

    def pass_on(self, message: Any, log_ns: int, publish_ns: int, *, is_ours: bool) -> None:  # noqa: ANN401
        """Pass on a message, or its bytes, with times as in `TappedMessage`."""
        if (sink := self._feed.sink) is None:
            return
        serialize: Callable[[Any], bytes] = bytes if isinstance(message, bytes) else to_cdr
        sink(
            TappedMessage(
                topic=self._topic,
                type=self._type,
                message=message,
                serialize=RawMessage.to_cdr if isinstance(message, RawMessage) else serialize,
                log_ns=log_ns,
                publish_ns=publish_ns,
                is_ours=is_ours,
                qos=self._qos,
            )
        )


def qos_text(qos: QoSProfile | int) -> str:
    """Return the profile in rosbag2's format, a YAML list of one, with policies as rmw numbers.

    "Best available" and "system default" are written as the defaults of ROS 2: reliable and volatile.
    """
    profile = QoSProfile(depth=qos) if isinstance(qos, int) else qos
    best_effort = profile.reliability == ReliabilityPolicy.BEST_EFFORT
    latched = profile.durability == DurabilityPolicy.TRANSIENT_LOCAL
    lines = (
        "history: 1",
        f"depth: {profile.depth or 10}",
        f"reliability: {2 if best_effort else 1}",
        f"durability: {1 if latched else 2}",
        f"deadline: {_INFINITE}",
        f"lifespan: {_INFINITE}",
        "liveliness: 1",
        f"liveliness_lease_duration: {_INFINITE}",
        "avoid_ros_namespace_conventions: false",
    )
    return "- " + "\n  ".join(lines) + "\n"
