"""``/diagnostics``: how an environment is (`embodied_env.backends.ros.health`), once a second, and at once when worse.

An observer adds each step up; the thread of the listener tells.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from rclpy.clock import Clock as RosClock
from rclpy.clock import ClockType
from rclpy.node import Node

from embodied_env.backends.ros.health import Health
from embodied_env.backends.ros.qos import RELIABLE
from embodied_env.clock import Clock
from embodied_env.contract import Contract
from embodied_env.contract.messages import message_class
from embodied_env.transition import Transition

TOPIC = "/diagnostics"
TELL_S = 1.0


class Diagnostics:
    """The observer that publishes `Health`. It never reaches back: what cannot be published is not told."""

    def __init__(self, contract: Contract, clock: Clock) -> None:
        """Observe; nothing is published before `connect`."""
        self._health = Health(contract, clock)
        self._hardware_id = f"{contract.name} {contract.fingerprint[:12]}"
        self._lock = threading.Lock()
        self._node: Node | None = None
        self._publisher: Any = None

    def connect(self, node: Node) -> None:
        """Publish by `node` from now on; whoever turns it tells every second."""
        with self._lock:
            self._node = node
            self._publisher = node.create_publisher(
                message_class("diagnostic_msgs/msg/DiagnosticArray"), TOPIC, RELIABLE
            )
        node.create_timer(TELL_S, self._tell, clock=RosClock(clock_type=ClockType.STEADY_TIME))

    def disconnect(self) -> None:
        """The node is about to go. Idempotent."""
        with self._lock:
            self._node = self._publisher = None

    def observe(self, transition: Transition) -> None:
        """Take in a step; publish when it is worse than was told."""
        with self._lock:
            if self._health.add(transition):
                self._publish()

    def _tell(self) -> None:
        with self._lock:
            self._publish()

    def _publish(self) -> None:
        node, publisher = self._node, self._publisher
        if node is None:
            return
        status_type = message_class("diagnostic_msgs/msg/DiagnosticStatus")
        key_value = message_class("diagnostic_msgs/msg/KeyValue")
        message = message_class("diagnostic_msgs/msg/DiagnosticArray")()
        message.header.stamp = node.get_clock().now().to_msg()
        message.status = [
            status_type(
                level=bytes([status.level]),
                name=f"{node.get_fully_qualified_name()[1:]}: {status.name}",
                message=status.message,
                hardware_id=self._hardware_id,
                values=[key_value(key=key, value=value) for key, value in status.values.items()],
            )
            for status in self._health.tell()
        ]
        with contextlib.suppress(RuntimeError):  # whoever took hold of all contexts has shut ours down
            publisher.publish(message)
