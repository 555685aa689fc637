"""One thread that receives for a world that moves by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile

from embodied_env.contract.message_types import message_class
from embodied_env.core.clock import Clock
from embodied_env.errors import BackendLostError
from embodied_env.ros.receiver import POLL_S, ReceivedMessage


class ReceiveThread:
    """Turns an executor over a node, always with a finite timeout. Whoever waits for an arrival waits on `changed`.

    Attributes:
        node: what it turns.
        changed: guards what the takers of messages write, and tells of each arrival.
        failure: what ended the thread, if it was not `stop`.
    """

    def __init__(self, node: Node, clock: Clock) -> None:
        """Prepare; arrivals are stamped by `clock`."""
        self.condition = threading.Condition()
        self.failure: BaseException | None = None
        self.node = node
        self._clock = clock
        self._executor = SingleThreadedExecutor(context=node.context)
        self._executor.add_node(node)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="embodied_env listener", daemon=True)

    def subscribe(
        self, key: str, message_type: str, topic: str, qos: QoSProfile, take: Callable[[ReceivedMessage], None]
    ) -> None:
        """Hand every message of `topic` to `take`, in the thread, while `changed` is held. Before `start`."""

        def store(message: Any, info: Any) -> None:  # noqa: ANN401 - generated types
            now_ns, system_ns = self._clock.now_ns(), self._clock.system_ns()
            arrival = ReceivedMessage(
                key=key, message=message, info=info, arrival_ns=now_ns, arrival_system_ns=system_ns
            )
            with self.condition:
                take(arrival)
                self.condition.notify_all()

        self.node.create_subscription(message_class(message_type), topic, store, qos)

    def raise_if_failed(self) -> None:
        """Raise BackendLostError when nobody listens any more."""
        if self.failure is not None:
            raise BackendLostError("listener", f"receiving failed: {type(self.failure).__name__}: {self.failure}")

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Idempotent; safe when it never began."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()
        self._executor.shutdown()

    def _run(self) -> None:
        try:
            while not self._done.is_set():
                self._executor.spin_once(timeout_sec=POLL_S)
        except BaseException as error:  # noqa: BLE001 - whatever it is: the step must hear of it, and not wait for ever
            with self.condition:
                self.failure = error
                self.condition.notify_all()
