"""Monitor a robot's publishers of readings, one per topic or several by joints."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
from rclpy.node import Node

from embodied_env.contract import Contract
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.safety_input_state import INPUT_OK, InputState, InputStatus
from embodied_env.messages.message_types import JOINT_SENSOR
from embodied_env.ros.transport.checklist import Check, failed, passed
from embodied_env.ros.transport.publishers import TopicPublishers, log_wait_for_lease, publisher_names
from embodied_env.ros.transport.receiver import ReceivedMessage
from embodied_env.timing.clock import NS_PER_S, Clock

SENSOR_TOPICS = "sensor topics"
"""The name of the safety input that reports conflicting publishers of readings."""

CONFLICT, REMEDY = "pub.conflict", "stop all publishers of a joint but one"
"""The code and the remedy of a failed check."""

_SEVEREST_FIRST = (InputStatus.CONTENTION, InputStatus.RESTARTED, InputStatus.UNCLEAR)
_COUNT_PERIOD_NS = NS_PER_S // 2  # period of counting the publishers in the graph


class SensorPublishers:
    """Publishers of sensors and safety inputs, to which one thread adds messages and which any thread may read."""

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
        """Return whether the robot may begin to move, even after the only publisher of a topic has restarted."""
        for topic, each in self._topics.items():
            if each.state.status is InputStatus.RESTARTED and not self._beyond(topic):
                each.begin()
        return not self.problems()

    def await_lease(self) -> bool:
        """Return whether the only problems are publishers in the graph that no longer publish, and log the wait.

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
        """Return ok, or the most severe state of a topic (`TopicPublishers.state`) with its publishers."""
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
        """Return a description if the graph has more publishers than the messages prove to be compatible, or ""."""
        known = max(1, self._topics[topic].separate) if topic in self._shared else 1
        count = self._node.count_publishers(self._node.resolve_topic_name(topic))
        expected = f"expected {known}, each with joints of its own" if topic in self._shared else "expected 1"
        return self._described(topic, f"{count} publishers ({expected})") if count > known else ""

    def _described(self, topic: str, why: str) -> str:
        names = ", ".join(publisher_names(self._node, topic))
        return f"{self._node.resolve_topic_name(topic)}: {why}, published by {names}"
