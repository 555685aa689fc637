"""Tap of the ROS 2 messages that our nodes publish and receive, for recording. Imports no ROS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class TappedMessage:
    """One message that one of our nodes received or published.

    Attributes:
        topic: absolute topic name.
        type: like ``sensor_msgs/msg/JointState``.
        message: an instance of that type, or another argument of `serialize`; never written again.
        serialize: returns the CDR bytes.
        log_ns: when we received or published it, system clock.
        publish_ns: publication stamp of the middleware, publisher's system clock; without one, `log_ns`.
        is_ours: whether we published it.
        qos: our requested or offered QoS, in rosbag2's YAML.
    """

    topic: str
    type: str
    message: Any
    serialize: Callable[[Any], bytes]
    log_ns: int
    publish_ns: int
    is_ours: bool
    qos: str


@dataclass(eq=False)
class MessageTap:
    """Passes messages to `sink`, which may be set and removed while nodes run.

    `sink` runs in the thread that received or published, after the message was processed. It must be fast and must not
    raise.
    """

    sink: Callable[[TappedMessage], None] | None = None
