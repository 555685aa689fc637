"""A node that relays one topic to another through a `FaultChannel`."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

from embodied_env.errors import BackendNotReadyError, UsageError
from embodied_env.messages.message_types import message_class
from embodied_env.ros.transport.node import RosNode
from embodied_env.testing.fault_injection.faults import Fault, FaultChannel, Message, Restamp
from embodied_env.timing.clock import NS_PER_S, SteadyClock

_DEPTH = 1000  # depth of the queues, so that only faults lose messages
_POLL_S = 0.05


def chaos_qos(*, transient_local: bool = False) -> QoSProfile:
    """Return the reliable QoS of a relay with a deep queue."""
    return QoSProfile(
        depth=_DEPTH,
        reliability=ReliabilityPolicy.RELIABLE,
        durability=DurabilityPolicy.TRANSIENT_LOCAL if transient_local else DurabilityPolicy.VOLATILE,
    )


class ChaosNode:
    """Relays a topic with faults, in a thread and ROS context of its own.

    It does so for the duration of a ``with`` statement. Dropped messages leave no gap in the publication numbers of the
    middleware, since these are this node's own.
    """

    def __init__(
        self,
        source: str,
        target: str,
        message_type: str,
        *,
        faults: Sequence[Fault] = (),
        seed: int,
        namespace: str = "/",
        qos: QoSProfile | None = None,
    ) -> None:
        """Configure the relay from topic `source` to `target`, which starts with the context.

        `faults` are applied in their order, with a `seed` >= 0. `namespace` is the absolute one of relative topics,
        `qos` that of both sides (default: `chaos_qos`).

        Raises:
            UsageError: for equal topics, or a `Restamp` of a type without a header.
            MissingDependencyError: when the message package is not installed.
        """
        self._type = message_class(message_type)
        self._type_name = message_type
        self._check(faults)
        if source == target:
            raise UsageError(f"source and target are the same topic: {source!r} (expected two topics)")
        self._topics = source, target
        self._channel = FaultChannel(faults, seed=seed)
        self._namespace = namespace
        self._name = "chaos_" + re.sub(r"\W", "_", target.strip("/"))
        self._qos = chaos_qos() if qos is None else qos
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._ros: RosNode | None = None
        self._thread: threading.Thread | None = None
        self._publisher: Any = None

    def __enter__(self) -> Self:
        self._ros = ros = RosNode(self._name, namespace=self._namespace, clock=SteadyClock())
        try:
            source, target = (ros.node.resolve_topic_name(topic) for topic in self._topics)
            self._publisher = ros.node.create_publisher(self._type, target, self._qos)
            ros.node.create_subscription(self._type, source, self._receive, self._qos)
            executor = SingleThreadedExecutor(context=ros.node.context)
            executor.add_node(ros.node)
        except BaseException:
            ros.close()
            raise
        self._stop.clear()
        self._thread = threading.Thread(target=self._spin, args=(executor,), name=self._name, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop without sending pending messages, and raise the error of the thread, if any."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._ros is not None:
            self._ros.close()
        self._thread = self._ros = None
        if kind is None and self._error is not None:
            raise self._error

    def wait_connected(self, timeout_s: float = 10.0) -> None:
        """Wait for publisher and subscriber, or raise BackendNotReadyError after `timeout_s`."""
        ros, (source, target) = self._ros, self._topics
        if ros is None:
            raise BackendNotReadyError("chaos node is not running; use it in a with statement")

        def connected() -> bool:
            return bool(ros.node.count_publishers(source) and ros.node.count_subscribers(target))

        if not ros.wait_until(connected, timeout_s):
            publishers, subscribers = ros.node.count_publishers(source), ros.node.count_subscribers(target)
            raise BackendNotReadyError(
                f"not connected: {publishers} publishers of {source}, {subscribers} subscribers of {target}"
            )

    def set_faults(self, *faults: Fault) -> None:
        """Apply other faults from the next message on."""
        self._check(faults)
        with self._lock:
            self._channel.replace(faults)

    def counts(self) -> dict[str, int]:
        """Return the current counts (`FaultChannel.counts`)."""
        with self._lock:
            return self._channel.counts()

    def _check(self, faults: Sequence[Fault]) -> None:
        if any(isinstance(fault, Restamp) for fault in faults) and not hasattr(self._type, "header"):
            raise UsageError(f"Restamp is not applicable to {self._type_name}: no header (expected a stamped type)")

    def _receive(self, message: Message) -> None:
        with self._lock:
            self._channel.put(message, time.monotonic_ns())

    def _spin(self, executor: SingleThreadedExecutor) -> None:
        try:
            while not self._stop.is_set():
                with self._lock:
                    next_ns = self._channel.next_ns()
                idle_s = _POLL_S if next_ns is None else max(0.0, (next_ns - time.monotonic_ns()) / NS_PER_S)
                executor.spin_once(timeout_sec=min(_POLL_S, idle_s))
                with self._lock:
                    due = self._channel.take(time.monotonic_ns())
                for message in due:
                    self._publisher.publish(message)
        except BaseException as error:  # noqa: BLE001 - raised by `__exit__`
            self._error = error
        finally:
            executor.shutdown(timeout_sec=1.0)
