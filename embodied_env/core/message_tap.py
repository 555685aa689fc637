"""Messages as they are on the wire: what a node sent and received, handed on to whoever keeps them. No ROS needed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SEQUENCE = re.compile(r"sequence<(?P<of>.+?)(?:, (?P<most>\d+))?>$")
ARRAY = re.compile(r"(?P<of>.+)\[(?P<size>\d+)\]$")
"""How a message class names the type of a field that is a list."""


@dataclass(frozen=True, kw_only=True)
class TappedMessage:
    """One message that a node of ours received or published.

    Attributes:
        topic: absolute.
        type: ``sensor_msgs/msg/JointState``.
        message: an instance of that type, or what `serialize` takes instead. Nobody writes into it any more.
        serialize: returns its CDR bytes.
        log_ns: when it arrived, or left us, system clock.
        publish_ns: when it left its publisher, by the publisher's system clock; of the middleware, else `log_ns`.
        is_ours: we published it.
        qos: the quality of service that we asked for or offered, in the words of rosbag2 (YAML).
    """

    topic: str
    type: str
    message: Any
    serialize: Callable[[Any], bytes]
    log_ns: int
    publish_ns: int
    is_ours: bool
    qos: str


class MessageTap:
    """Hands messages on to `sink`, which may come and go while nodes run.

    It is called in the thread that received or published, after the message has gone its way; it must be quick, and
    must not raise.
    """

    def __init__(self) -> None:
        """Begin with nobody who wants them."""
        self.sink: Callable[[TappedMessage], None] | None = None
