"""Tap of the ROS 2 messages of our nodes, for recording without ROS imports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class TappedMessage:
    """One message that one of our nodes received or published."""

    topic: str  # absolute name
    type: str  # as in sensor_msgs/msg/JointState
    message: Any  # an instance of that type, or another argument of `serialize`; never written again
    serialize: Callable[[Any], bytes]  # returns the CDR bytes
    log_ns: int  # time of receipt or publication, system clock
    publish_ns: int  # publication stamp of the middleware, publisher's system clock; without one, `log_ns`
    is_ours: bool  # published by us
    qos: str  # requested or offered, in rosbag2's YAML


@dataclass(eq=False)
class MessageTap:
    """Passes messages to `sink`, which may be set and removed while nodes run.

    `sink` runs in the thread that received or published, after the message was processed. It must be fast and must not
    raise.
    """

    sink: Callable[[TappedMessage], None] | None = None
