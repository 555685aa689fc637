"""Receive messages and service responses on a background thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile

from embodied_env.errors import BackendLostError, BackendNotReadyError
from embodied_env.messages.message_types import message_class
from embodied_env.ros.transport.receiver import POLL_S, ReceivedMessage, stamped
from embodied_env.timing.clock import NS_PER_S, Clock

TRIGGER = "std_srvs/srv/Trigger"

_DISCOVERY_POLL_NS = NS_PER_S // 100


class ReceiveThread:
    """Spins an executor over a node, always with a finite timeout.

    Attributes:
        condition: held while a message is handled, and notified after each.
        failure: the error that ended the thread, or None.
    """

    def __init__(self, node: Node, clock: Clock) -> None:
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
        """Call `take` in the thread, from `start` on and under `condition`, with each message."""

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
        """Wait for `is_done` (called under `condition`), or return False at `deadline_ns` (steady)."""
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


class ServiceCaller:
    """A client of one service, whose responses `listener` receives.

    A relative name is in the node's namespace.
    """

    def __init__(self, listener: ReceiveThread, service: str, clock: Clock, kind: str = TRIGGER) -> None:
        self.name = listener.node.resolve_service_name(service)
        self._listener = listener
        self._clock = clock
        self._client = listener.node.create_client(message_class(kind), service)

    def call(self, deadline_ns: int, repeat_ns: int | None = None, **fields: Any) -> Any:  # noqa: ANN401 - generated types
        """Call the service with a request of these `fields`, and return the response.

        With `repeat_ns`, a request without a response is sent again after this time, for services where that changes
        nothing: the middleware drops a response if the server has not yet discovered the client's reader. Raises
        BackendNotReadyError without a response at `deadline_ns` (steady clock).
        """
        client, answered = self._client, threading.Event()
        while not client.service_is_ready():
            self._listener.raise_if_failed()
            if (now_ns := self._clock.now_ns()) > deadline_ns:
                raise BackendNotReadyError(f"service {self.name} is not available")
            self._clock.sleep_until_ns(now_ns + _DISCOVERY_POLL_NS)
        futures: list[Any] = []

        def send() -> int:
            futures.append(client.call_async(client.srv_type.Request(**fields)))
            futures[-1].add_done_callback(lambda _: answered.set())
            return self._clock.now_ns()

        sent_ns = send()
        try:
            while not answered.wait(POLL_S):
                self._listener.raise_if_failed()
                now_ns = self._clock.now_ns()
                if now_ns > deadline_ns:
                    raise BackendNotReadyError(f"service {self.name} did not respond in time")
                if repeat_ns is not None and now_ns - sent_ns > repeat_ns:
                    sent_ns = send()
            return next(future for future in futures if future.done()).result()
        finally:
            for future in futures:
                if not future.done():
                    client.remove_pending_request(future)
