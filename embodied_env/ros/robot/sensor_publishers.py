"""Monitor a robot's publishers of readings, one per topic or several by joints.

The middleware does not name the publisher of a message, but each publisher numbers its messages. Several publishers may
share a topic if each joint is in the messages of only one.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from rclpy.node import Node

from embodied_env.contract import Contract
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.safety_input_state import INPUT_OK, InputState, InputStatus
from embodied_env.messages.message_types import JOINT_SENSOR
from embodied_env.ros.transport.checklist import Check, failed, passed
from embodied_env.ros.transport.node import log_wait_for_lease, publisher_names
from embodied_env.ros.transport.receiver import ReceivedMessage
from embodied_env.timing.clock import NS_PER_S, Clock

SENSOR_TOPICS = "sensor topics"
"""The name of the safety input that reports conflicting publishers of readings."""

CONFLICT, REMEDY = "pub.conflict", "stop all publishers of a joint but one"
"""The code and the remedy of a failed check."""

_SEVEREST_FIRST = (InputStatus.CONTENTION, InputStatus.RESTARTED, InputStatus.UNCLEAR)
_COUNT_PERIOD_NS = NS_PER_S // 2  # period of counting the publishers in the graph
_RESTARTED = 3  # messages in a row from a new start
_JUMP_NS = NS_PER_S  # how long a jump counts
_MOST = 64  # publishers of one topic


class SensorPublishers:
    """Publishers of sensors and safety inputs, written by one thread and readable by any."""

    def __init__(
        self, contract: Contract, node: Node, clock: Clock, *, shared: Collection[str] = (), inputs: Iterable[str] = ()
    ) -> None:
        """Start without messages for all sensors and the further topics `inputs`.

        `shared` has the sensors whose topic may have several publishers.
        """
        self._node, self._clock = node, clock
        layout = ActionLayout(contract)
        steps = np.where(layout.is_velocity, np.inf, layout.limits.fastest * contract.control_period_s)
        step = dict(zip(layout.joints, steps.tolist(), strict=True))
        self._topics = {topic: TopicPublishers(is_by_joint=False) for topic in inputs}
        for sensor in contract.sensors.values():
            self._topics[sensor.topic] = TopicPublishers(is_by_joint=sensor.type == JOINT_SENSOR, step=step)
        self._shared = {contract.sensors[name].topic for name in shared}
        self._keys: dict[str, str] = {}  # topic -> the only subscription whose messages count
        self._counted_ns = 0
        self._surplus = ""  # publishers beyond those that the messages prove

    def begin(self) -> None:
        """Clear the conflicts of the last episode."""
        self._surplus = ""
        for each in self._topics.values():
            each.begin()

    def add(self, topic: str, arrival: ReceivedMessage) -> None:
        """Judge a message of `topic`."""
        if self._keys.setdefault(topic, arrival.key) == arrival.key:
            self._topics[topic].add(arrival)

    def settle(self) -> bool:
        """Return whether the robot may begin to move, also after a topic's publisher restarted."""
        for topic, each in self._topics.items():
            if each.state.status is InputStatus.RESTARTED and not self._beyond(topic):
                each.begin()
        return not self.problems()

    def await_lease(self) -> bool:
        """Return whether the only problems are killed publishers in the graph, and log the wait.

        They were killed, and stay in the graph until their lease ends. The messages of each topic with a problem prove
        that one publisher of each joint is left.
        """
        topics = [topic for topic in self._topics if self.problem(topic)]
        if not all(self._is_one(topic) for topic in topics):
            return False
        if topics:
            log_wait_for_lease(self._node, f"the graph of {', '.join(map(self._node.resolve_topic_name, topics))}")
        return True

    def _is_one(self, topic: str) -> bool:
        """Return whether the messages of `topic` continue those of the publishers that may have it."""
        each = self._topics[topic]
        is_alone = topic in self._shared or each.separate == 1
        return is_alone and each.continues and not each.jump(self._clock.now_ns())

    def state(self) -> InputState:
        """Return ok, or the most severe topic's state (`TopicPublishers.state`) with publishers."""
        found = {topic: each.state for topic, each in self._topics.items() if not each.state.is_ok}
        for status in _SEVEREST_FIRST:
            for topic, state in found.items():
                if state.status is status:
                    return InputState(status, self._described(topic, state.detail))
        now_ns = self._clock.now_ns()
        if now_ns - self._counted_ns >= _COUNT_PERIOD_NS:
            self._counted_ns = now_ns
            surplus = [self._beyond(topic) for topic, each in self._topics.items() if each.needs_count]
            self._surplus = next((text for text in surplus if text), "")
        return InputState(InputStatus.CONTENTION, self._surplus) if self._surplus else INPUT_OK

    def problem(self, topic: str) -> str:
        """Return why the robot must not begin to move on what `topic` reports, or ""."""
        each = self._topics[topic]
        why = each.jump(self._clock.now_ns()) if each.state.is_ok else each.state.detail
        return self._described(topic, why) if why else self._beyond(topic)

    def problems(self) -> list[str]:
        """Return the problems of all topics."""
        return [problem for topic in self._topics if (problem := self.problem(topic))]

    def check(self) -> Check:
        """Return the check of all topics."""
        problems = self.problems()
        return failed(SENSOR_TOPICS, "; ".join(problems), REMEDY, CONFLICT) if problems else passed(SENSOR_TOPICS, "")

    def _beyond(self, topic: str) -> str:
        """Return a description of publishers beyond those that the messages prove, or ""."""
        known = max(1, self._topics[topic].separate) if topic in self._shared else 1
        count = self._node.count_publishers(self._node.resolve_topic_name(topic))
        expected = f"expected {known}, each with joints of its own" if topic in self._shared else "expected 1"
        return self._described(topic, f"{count} publishers ({expected})") if count > known else ""

    def _described(self, topic: str, why: str) -> str:
        names = ", ".join(publisher_names(self._node, topic))
        return f"{self._node.resolve_topic_name(topic)}: {why}, published by {names}"


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
        """Return the joint that two publishers reported apart during the last second, or ""."""
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
        """Compare a number with those of earlier messages that share a name with this one."""
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
        """Find a joint that moved more than one step where the numbers do not continue."""
        positions = dict(zip(arrival.message.name, arrival.message.position, strict=False)) if self._is_by_joint else {}
        for stream in same:
            before = dict(zip(stream.message.name, stream.message.position, strict=False)) if positions else {}
            for joint, step in self._step.items():
                if joint in positions and joint in before and not abs(positions[joint] - before[joint]) <= step:
                    text = f"{joint} at {before[joint]:.6g} and at {positions[joint]:.6g}"
                    self._jump = text, arrival.arrival_ns
