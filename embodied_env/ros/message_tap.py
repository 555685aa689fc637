"""A node that hands its messages on to a `MessageTap`: of its publishers, and of its subscriptions with a callback."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

from embodied_env.core.clock import Clock
from embodied_env.core.message_tap import MessageTap, TappedMessage
from embodied_env.ros.serialization.cdr import to_cdr
from embodied_env.ros.serialization.layout_cache import RawMessage

_FOR_EVER = "{sec: 9223372036, nsec: 854775807}"


class TappedNode(Node):  # type: ignore[misc] # rclpy has no type information
    """A node whose messages, in and out, a feed gets too. Services are not among them."""

    def __init__(self, name: str, *, feed: MessageTap, clock: Clock, **options: Any) -> None:  # noqa: ANN401 - Node's own
        """Create the node; what rclpy publishes for itself while it does so is not fed."""
        self._feed: MessageTap | None = None
        self._system_clock = clock
        super().__init__(name, **options)
        self._feed = feed

    def create_publisher(self, msg_type: Any, topic: str, qos_profile: Any, **options: Any) -> Any:  # noqa: ANN401
        """Create a publisher whose messages are fed after they are published."""
        feed, clock = self._feed, self._system_clock
        if feed is None:
            return super().create_publisher(msg_type, topic, qos_profile, **options)
        wanted, told = feed, SubscriptionTap(feed, msg_type, self.resolve_topic_name(topic), qos_profile)

        class FedPublisher(Publisher):  # type: ignore[misc] # rclpy has no type information
            """Publishes, then feeds."""

            def publish(self, msg: Any) -> None:  # noqa: ANN401 - a generated type
                """Publish `msg`."""
                super().publish(msg)
                if wanted.sink is not None:
                    told.published(msg, clock.system_ns())

        return super().create_publisher(msg_type, topic, qos_profile, publisher_class=FedPublisher, **options)

    def create_subscription(
        self,
        msg_type: Any,  # noqa: ANN401 - a generated type
        topic: str,
        callback: Callable[..., None],
        qos_profile: Any,  # noqa: ANN401 - a profile, or its depth
        **options: Any,  # noqa: ANN401 - Node's own
    ) -> Any:  # noqa: ANN401
        """Create a subscription whose messages are fed after `callback` had them."""
        feed = self._feed
        if feed is None or options.get("raw"):
            return super().create_subscription(msg_type, topic, callback, qos_profile, **options)
        clock, told = self._system_clock, SubscriptionTap(feed, msg_type, self.resolve_topic_name(topic), qos_profile)
        wants_info = len(inspect.signature(callback).parameters) > 1

        def handle(message: Any, info: Any) -> None:  # noqa: ANN401 - generated types
            arrived_ns = clock.system_ns()
            if wants_info:
                callback(message, info)
            else:
                callback(message)
            if feed.sink is not None:
                told.received(message, info, arrived_ns)

        return super().create_subscription(msg_type, topic, handle, qos_profile, **options)


class SubscriptionTap:
    """Tells a feed of the messages of one topic."""

    def __init__(self, feed: MessageTap, message_type: type, topic: str, qos: QoSProfile | int) -> None:
        """`topic` is absolute."""
        self._feed = feed
        self._topic = topic
        package, kind, _ = message_type.__module__.split(".", 2)
        self._type = f"{package}/{kind}/{message_type.__name__}"
        self._qos = qos_text(qos)

    def published(self, message: Any, now_ns: int) -> None:  # noqa: ANN401 - a generated type, or its bytes
        """Tell of a message that has left us."""
        self._tell(message, now_ns, now_ns, is_ours=True)

    def received(self, message: Any, info: Mapping[str, int | None], arrived_ns: int) -> None:  # noqa: ANN401
        """Tell of a message that has arrived; `info` is what the middleware says of it."""
        self._tell(message, arrived_ns, info.get("source_timestamp") or arrived_ns, is_ours=False)

    def _tell(self, message: Any, log_ns: int, publish_ns: int, *, is_ours: bool) -> None:  # noqa: ANN401
        if (sink := self._feed.sink) is not None:
            sink(
                TappedMessage(
                    topic=self._topic,
                    type=self._type,
                    message=message,
                    serialize=_serializer(message),
                    log_ns=log_ns,
                    publish_ns=publish_ns,
                    is_ours=is_ours,
                    qos=self._qos,
                )
            )


def _serializer(message: Any) -> Callable[[Any], bytes]:  # noqa: ANN401 - a generated type, or what has its bytes
    if isinstance(message, RawMessage):
        return RawMessage.to_cdr
    return bytes if isinstance(message, bytes) else to_cdr


def qos_text(qos: QoSProfile | int) -> str:
    """Return the profile as rosbag2 keeps it: a YAML list of one, policies by the numbers of rmw.

    What is only asked for ("best available", "system default") is said as what ROS 2 does without a word: reliable and
    volatile.
    """
    profile = QoSProfile(depth=qos) if isinstance(qos, int) else qos
    best_effort = profile.reliability == ReliabilityPolicy.BEST_EFFORT
    latched = profile.durability == DurabilityPolicy.TRANSIENT_LOCAL
    lines = (
        "history: 1",
        f"depth: {profile.depth or 10}",
        f"reliability: {2 if best_effort else 1}",
        f"durability: {1 if latched else 2}",
        f"deadline: {_FOR_EVER}",
        f"lifespan: {_FOR_EVER}",
        "liveliness: 1",
        f"liveliness_lease_duration: {_FOR_EVER}",
        "avoid_ros_namespace_conventions: false",
    )
    return "- " + "\n  ".join(lines) + "\n"
