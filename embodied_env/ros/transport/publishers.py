"""Separate the publishers of one topic by the numbers, times and joint names of its messages.

The middleware does not name the publisher of a message, but each publisher numbers its messages. Several publishers may
share a topic if each joint is in the messages of only one.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from rclpy.node import Node

from embodied_env.core.safety_input_state import INPUT_OK, InputState, InputStatus
from embodied_env.ros.transport.receiver import ReceivedMessage
from embodied_env.timing.clock import NS_PER_S

_RESTARTED = 3  # messages in a row from a new start
_JUMP_NS = NS_PER_S  # how long a jump counts
_MOST = 64  # publishers of one topic

LEASE_NS = 40 * NS_PER_S
"""Longest time until the middleware drops a process that was killed."""

_NOTICE_S = 5.0  # between two lines about that wait


@dataclass(kw_only=True, slots=True, eq=False)
class _Stream:
    """Messages that one publisher can have sent, by their names and the last of them."""

    names: frozenset[str] = frozenset()
    number: int = 0
    before_gap: int = 0  # the number before the last gap; 0: none
    source_ns: int = 0
    message: Any = None
    others: set[_Stream] = field(default_factory=set)  # certainly of another publisher


class TopicPublishers:
    """The publishers of one topic, as far as its messages show them.

    Attributes:
        state: ok; unclear after a number that did not rise; two messages later contention, if the numbers alternate, or
            restarted, if they continue. `begin` ends it.
        needs_count: the messages prove nothing; the number of publishers in the graph decides.
    """

    def __init__(self, *, is_by_joint: bool, step: Mapping[str, float] = MappingProxyType({})) -> None:
        """Start without messages, which are joint states if `is_by_joint`.

        `step` maps a joint to the distance in one period.
        """
        self._is_by_joint, self._step = is_by_joint, step
        self._streams: list[_Stream] = []
        self.state = INPUT_OK
        self.begin()

    def begin(self) -> None:
        """Clear a conflict, and with it what earlier messages have shown."""
        if not self.state.is_ok:
            self._streams = []
        self.state, self.needs_count = INPUT_OK, False
        self._highest = self._in_a_row = 0  # the number before the first that did not rise; messages since
        self._jump = "", 0  # jump of a joint, and when it was received

    @property
    def separate(self) -> int:
        """Number of publishers that the messages prove, each with joints of its own."""
        found: list[_Stream] = []
        for stream in self._streams:
            if stream.others.issuperset(found):
                found.append(stream)
        return len(found)

    @property
    def continues(self) -> bool:
        """Whether there are messages, and their numbers continue, perhaps from a new start."""
        return (
            bool(self._streams)
            and not self.needs_count
            and self.state.status in (InputStatus.OK, InputStatus.RESTARTED)
        )

    def jump(self, now_ns: int) -> str:
        """Return which joint two publishers may have reported in two places during the last second, or ""."""
        text, received_ns = self._jump
        return text if now_ns - received_ns < _JUMP_NS else ""

    def add(self, arrival: ReceivedMessage) -> None:
        """Judge the number and the names of the next message."""
        number, source_ns = arrival.info["publication_sequence_number"], arrival.info["source_timestamp"] or 0
        names = frozenset(arrival.message.name) if self._is_by_joint else frozenset(("",))
        if number is not None and self._continues(number, names):  # the usual case, fast
            (stream,) = self._streams
            stream.number, stream.source_ns, stream.message = number, source_ns, arrival.message
            return
        same = [stream for stream in self._streams if not stream.names.isdisjoint(names)]
        last = max((stream.number for stream in same), default=0)
        if not same and len(self._streams) >= _MOST:
            self.needs_count = True
            return
        is_numbered = number is not None
        if number is None:
            number, self.needs_count = last + 1, True
        elif number <= last and source_ns <= max(stream.source_ns for stream in same):
            self.needs_count = True  # repeated, out of order, or stamped by a clock that is late
            return
        if same:
            self._judge(number, last, same)
            if number != last + 1:
                self._find_jump(arrival, same)
        stream = same[-1] if same else _Stream()
        if number > last + 1:
            stream.before_gap = last
        stream.names = names.union(*(each.names for each in same))
        stream.number, stream.source_ns, stream.message = number, source_ns, arrival.message
        self._streams = [*(each for each in self._streams if each not in same), stream]
        for other in self._streams[:-1]:
            if not is_numbered or number <= other.number:  # the numbers of one publisher rise
                other.others.add(stream)
                stream.others.add(other)

    def _continues(self, number: int, names: frozenset[str]) -> bool:
        if len(self._streams) != 1 or self._highest:
            return False
        return number == self._streams[0].number + 1 and names == self._streams[0].names

    def _judge(self, number: int, last: int, same: Sequence[_Stream]) -> None:
        """Compare a number with those of the messages before it that have a name in common with its own."""
        status, is_old = self.state.status, any(number == each.before_gap + 1 > 1 for each in same)
        is_unclear, why = status is InputStatus.UNCLEAR, f"message number {number} after {last}"
        if status is InputStatus.CONTENTION:
            return
        if any(one in other.others for one, other in itertools.combinations(same, 2)):
            self.state = InputState(InputStatus.CONTENTION, "joints of two publishers in one message")
        elif not self._highest and number <= last:
            self._highest, self._in_a_row = last, 1
            self.state = InputState(InputStatus.CONTENTION if is_old else InputStatus.UNCLEAR, why)
        elif self._highest and (number <= last or (number > self._highest and (is_unclear or number != last + 1))):
            self.state = InputState(InputStatus.CONTENTION, why)
        elif is_unclear:
            self._in_a_row += 1
            if self._in_a_row >= _RESTARTED:
                self.state = InputState(InputStatus.RESTARTED, f"message number {number} after {self._highest}")

    def _find_jump(self, arrival: ReceivedMessage, same: Sequence[_Stream]) -> None:
        """Find a joint that is further from where it was before than one step, where the numbers do not continue."""
        positions = dict(zip(arrival.message.name, arrival.message.position, strict=False)) if self._is_by_joint else {}
        for stream in same:
            before = dict(zip(stream.message.name, stream.message.position, strict=False)) if positions else {}
            for joint, step in self._step.items():
                if joint in positions and joint in before and not abs(positions[joint] - before[joint]) <= step:
                    text = f"{joint} at {before[joint]:.6g} and at {positions[joint]:.6g}"
                    self._jump = text, arrival.arrival_ns


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
