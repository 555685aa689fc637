"""Receive messages on a background thread, for robots and free-running simulators."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile

from embodied_env.errors import BackendLostError
from embodied_env.messages.message_types import message_class
from embodied_env.ros.transport.receiver import POLL_S, ReceivedMessage, stamped
from embodied_env.timing.clock import NS_PER_S, Clock


class ReceiveThread:
    """Spins an executor over a node, always with a finite timeout.

    Attributes:
        condition: held while a message is handled, and notified after each.
        failure: the error that ended the thread, or None.
    """

    def __init__(self, node: Node, clock: Clock) -> None:
        """Create the executor and the thread, where `clock` stamps arrivals."""
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
        """Call `take`, from `start` on, with each message of `topic` in the thread while it holds `condition`."""

        def take_locked(arrival: ReceivedMessage) -> None:
            with self.condition:
                take(arrival)
                self.condition.notify_all()

        callback = stamped(key, self._clock, take_locked)
        self.node.create_subscription(message_class(message_type), topic, callback, qos)

    def raise_if_failed(self) -> None:
        """Raise BackendLostError if the thread has failed."""
        if self.failure is not None:
            raise BackendLostError("listener", f"receiving failed: {type(self.failure).__name__}: {self.failure}")

    def wait_until(self, is_done: Callable[[], object], deadline_ns: int) -> bool:
        """Wait until `is_done`, called under `condition`, is true, or return False at `deadline_ns` (steady clock)."""
        with self.condition:
            while not is_done():
                self.raise_if_failed()
                if (left_ns := deadline_ns - self._clock.now_ns()) <= 0:
                    return False
                self.condition.wait(min(POLL_S, left_ns / NS_PER_S))
        return True

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, even if it has not been started (idempotent)."""
        self._done.set()
        if self._thread.is_alive():
            self._executor.create_task(lambda: None)  # wakes it at once
            self._thread.join()
        self._executor.shutdown()

    def _run(self) -> None:
        try:
            while not self._done.is_set():
                self._executor.spin_once(timeout_sec=POLL_S)
        except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
            with self.condition:
                self.failure = error
                self.condition.notify_all()
