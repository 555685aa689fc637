"""Receive messages and service responses of a node in the caller's thread.

`WaitSetReceiver` waits on a wait set of its own, through rclpy's private API: that skips the executor's work for each
message, takes raw bytes, and can wait for chosen topics only. Where rclpy lacks that API, `ExecutorReceiver` spins a
`SingleThreadedExecutor`, always with a finite timeout. Neither has a thread.

(`EventsExecutor` is not used: in rclpy 7.1.6 a callback that takes the message info raises SystemError.)
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Protocol

from embodied_env.core.clock import NS_PER_S, Clock
from embodied_env.core.message_tap import MessageTap
from embodied_env.core.process.signals import deferred_signals
from embodied_env.ros.setup_checks import rclpy_import_errors

with rclpy_import_errors("a backend over ROS 2"):
    from rclpy.context import Context
    from rclpy.executors import SingleThreadedExecutor
    from rclpy.node import Node
    from rclpy.qos import QoSProfile

    from embodied_env.ros.message_tap import SubscriptionTap
    from embodied_env.ros.qos import RELIABLE
    from embodied_env.ros.serialization.layout_cache import LayoutDecoder

LivenessCheck = Callable[[], None]
"""Called repeatedly during a wait; raises when there is nothing left to wait for."""

POLL_S = 0.1

RETRY_S = 1.0
"""Silence after which a request is sent again. The service must treat a repetition as the same request."""

DISCOVERY_POLL_S = 0.002  # between two looks at the graph or at a service


@dataclass(kw_only=True, slots=True)
class ReceivedMessage:
    """A message with its arrival on our clocks and its `MessageInfo`, a dict.

    Read-only; not frozen, since that costs a microsecond for each message. Of a raw subscription `message` is a
    `RawMessage`.
    """

    key: str
    message: Any
    info: dict[str, int | None]
    arrival_ns: int
    arrival_system_ns: int


@dataclass(kw_only=True)
class ServiceReply:
    """The state of a request: `response` is None until the service has answered."""

    service: str
    response: Any = None


class Receiver(ABC):
    """Receives messages and service responses of one node."""

    def __init__(self, node: Node, clock: Clock) -> None:
        """Prepare; arrivals are stamped by `clock`."""
        self._node = node
        self._clock = clock
        self._clients = _Clients(node)
        self._async_clients = _Clients(node)  # apart: `call` takes every response to its own clients

    @abstractmethod
    def subscribe(
        self, key: str, message_type: type, topic: str, qos: QoSProfile = RELIABLE, *, raw: bool = False
    ) -> None:
        """Receive `topic` under the name `key`; `raw`: as a `RawMessage`, where this receiver can."""

    @abstractmethod
    def receive(self, timeout_s: float, until: Collection[str] = ()) -> list[ReceivedMessage]:
        """Return what has arrived, waiting for the first at most `timeout_s`; a service response ends the wait too.

        `until`: the keys that end the wait, where this receiver can choose; one message of each is taken, and one of
        each other key along with them. Empty: every key ends it, and all messages are taken.
        """

    def services(self) -> dict[str, tuple[str, ...]]:
        """Return the services of the graph as it is known now: absolute name -> types."""
        return {name: tuple(types) for name, types in self._node.get_service_names_and_types()}

    def call_async(
        self,
        service_type: Any,  # noqa: ANN401 - a generated type
        name: str,
        request: Any,  # noqa: ANN401 - a generated type
        timeout_s: float = RETRY_S,
        patrol: LivenessCheck = lambda: None,
    ) -> ServiceReply:
        """Send a request, once, and do not wait: `receive` fills in its response.

        An earlier request to this service that is still open is given up.

        Raises:
            TimeoutError: when the service is not available within `timeout_s`; nothing was sent then.
        """
        client = self._async_clients.ready(service_type, name, time.monotonic() + timeout_s, patrol)
        reply = ServiceReply(service=name)
        with deferred_signals():
            self._send_async(client, request, reply)
        return reply

    def call(self, service_type: Any, name: str, request: Any, timeout_s: float, patrol: LivenessCheck) -> Any:  # noqa: ANN401
        """Return the response of a service; raises TimeoutError, or what `patrol` raises while it waits."""
        end = time.monotonic() + timeout_s
        pending = self._make_call(self._clients.ready(service_type, name, end, patrol))
        repeat = -math.inf
        try:
            while (left_s := end - time.monotonic()) > 0:
                patrol()
                with deferred_signals():
                    if time.monotonic() > repeat:
                        pending.send(request)
                        repeat = time.monotonic() + RETRY_S
                    response = pending.receive(min(POLL_S, left_s))
                if response is not None:
                    return response
            raise TimeoutError(f"the service {name} did not answer within {timeout_s:.1f} s")
        finally:
            pending.close()

    @abstractmethod
    def _send_async(self, client: Any, request: Any, reply: ServiceReply) -> None:  # noqa: ANN401 - rclpy's
        """Send a request whose response `receive` writes into `reply`."""

    @abstractmethod
    def _make_call(self, client: Any) -> _PendingCall:  # noqa: ANN401 - rclpy's
        """Return a call by `client`; nothing is sent."""


class _PendingCall(Protocol):
    """One call of a service: the request, sent once or repeatedly, and the first response to it."""

    def send(self, request: Any) -> None:  # noqa: ANN401 - a generated type
        """Send the request."""

    def receive(self, timeout_s: float) -> Any:  # noqa: ANN401 - a generated type
        """Return the response, waiting at most `timeout_s`; None: none yet."""

    def close(self) -> None:
        """Give up requests that are still open."""


class WaitSetReceiver(Receiver):
    """Waits on a wait set over exactly our subscriptions."""

    def __init__(self, node: Node, context: Context, clock: Clock, feed: MessageTap | None = None) -> None:
        """Feature detection: raises ImportError or AttributeError where rclpy lacks the private API."""
        from rclpy.impl.implementation_singleton import rclpy_implementation  # noqa: PLC0415 - private, may be absent

        super().__init__(node, clock)
        self._make_wait_set = rclpy_implementation.WaitSet
        self._context = context
        self._sources: list[_Source] = []
        self._feed = feed or MessageTap()
        self._taps: dict[str, SubscriptionTap] = {}
        self._open: dict[str, tuple[Any, int, ServiceReply]] = {}  # by service: client, request number, reply
        self._wait_set = self._make_wait_set(0, 0, 0, 1, 0, 0, context.handle)

    def subscribe(
        self, key: str, message_type: type, topic: str, qos: QoSProfile = RELIABLE, *, raw: bool = False
    ) -> None:
        """Receive `topic` under the name `key`; `raw`: as a `RawMessage`."""
        subscription = self._node.create_subscription(message_type, topic, _never_called, qos, raw=raw)
        decoder = LayoutDecoder(message_type) if raw else None
        self._sources.append(_Source(key=key, handle=subscription.handle, kind=message_type, decoder=decoder))
        self._taps[key] = SubscriptionTap(self._feed, message_type, self._node.resolve_topic_name(topic), qos)
        self._size_wait_set()

    @deferred_signals()
    def receive(self, timeout_s: float, until: Collection[str] = ()) -> list[ReceivedMessage]:
        """Return what has arrived, waiting for the first of `until`, or of all, at most `timeout_s`."""
        wait_set = self._wait_set
        wait_set.clear_entities()
        waited = {
            source.key: wait_set.add_subscription(source.handle)
            for source in self._sources
            if not until or source.key in until
        }
        for client, _, _ in self._open.values():
            wait_set.add_client(client.handle)
        wait_set.wait(max(0, round(timeout_s * NS_PER_S)))
        arrivals: list[ReceivedMessage] = []
        for source in self._sources:
            if not until or source.key not in waited or wait_set.is_ready("subscription", waited[source.key]):
                self._take(source, arrivals, whole=not until)
        if self._open:
            self._take_responses()
        if self._feed.sink is not None:
            for each in arrivals:
                self._taps[each.key].received(each.message, each.info, each.arrival_system_ns)
        return arrivals

    def _take(self, source: _Source, arrivals: list[ReceivedMessage], *, whole: bool) -> None:
        """Take all messages of a subscription, or one; bytes that are no message of its type are dropped."""
        take, kind, decoder = source.handle.take_message, source.kind, source.decoder
        while (taken := take(kind, decoder is not None)) is not None:
            now_ns, system_ns = self._clock.now_ns(), self._clock.system_ns()
            message, info = taken
            if decoder is not None and (message := decoder.decode(message)) is None:
                continue
            arrivals.append(
                ReceivedMessage(
                    key=source.key, message=message, info=info, arrival_ns=now_ns, arrival_system_ns=system_ns
                )
            )
            if not whole:
                break

    def _take_responses(self) -> None:
        """Fill in the replies that have come; one to a request that was given up is dropped."""
        for name, (client, number, reply) in list(self._open.items()):
            while (taken := client.handle.take_response(client.srv_type.Response))[0] is not None:
                header, response = taken
                if header.request_id.sequence_number == number:
                    reply.response = response
                    self._open.pop(name, None)

    def _send_async(self, client: Any, request: Any, reply: ServiceReply) -> None:  # noqa: ANN401 - rclpy's
        self._open[reply.service] = client, client.handle.send_request(request), reply
        self._size_wait_set()

    def _make_call(self, client: Any) -> _WaitSetCall:  # noqa: ANN401 - rclpy's
        return _WaitSetCall(client, self._make_wait_set(0, 0, 0, 1, 0, 0, self._context.handle))

    def _size_wait_set(self) -> None:
        clients = max(1, len(self._open))
        self._wait_set = self._make_wait_set(len(self._sources), 0, 0, clients, 0, 0, self._context.handle)


class ExecutorReceiver(Receiver):
    """Spins a `SingleThreadedExecutor` in the caller's thread: public API only."""

    def __init__(self, node: Node, context: Context, clock: Clock) -> None:
        """Create an executor for `node`."""
        super().__init__(node, clock)
        self._arrivals: list[ReceivedMessage] = []
        self._open: dict[str, tuple[Any, Any]] = {}  # by service: client, future of the request
        self._executor = SingleThreadedExecutor(context=context)
        self._executor.add_node(node)

    def subscribe(
        self,
        key: str,
        message_type: type,
        topic: str,
        qos: QoSProfile = RELIABLE,
        *,
        raw: bool = False,  # noqa: ARG002 - the node feeds what its callbacks get, which raw bytes are not
    ) -> None:
        """Receive `topic` under the name `key`, as messages."""

        def store(message: Any, info: Any) -> None:  # noqa: ANN401 - generated types
            now_ns, system_ns = self._clock.now_ns(), self._clock.system_ns()
            self._arrivals.append(
                ReceivedMessage(key=key, message=message, info=info, arrival_ns=now_ns, arrival_system_ns=system_ns)
            )

        self._node.create_subscription(message_type, topic, store, qos)

    @deferred_signals()
    def receive(self, timeout_s: float, until: Collection[str] = ()) -> list[ReceivedMessage]:  # noqa: ARG002 - any ends it
        """Return what has arrived, waiting for the first at most `timeout_s`."""
        self._executor.spin_once(timeout_sec=max(0.0, timeout_s))
        arrivals, self._arrivals = self._arrivals, []
        return arrivals

    def _send_async(self, client: Any, request: Any, reply: ServiceReply) -> None:  # noqa: ANN401 - rclpy's
        if reply.service in self._open:
            old, given_up = self._open.pop(reply.service)
            old.remove_pending_request(given_up)

        def fill(future: Any) -> None:  # noqa: ANN401 - rclpy's
            reply.response = future.result()
            self._open.pop(reply.service, None)

        future = client.call_async(request)
        self._open[reply.service] = client, future
        future.add_done_callback(fill)

    def _make_call(self, client: Any) -> _ExecutorCall:  # noqa: ANN401 - rclpy's
        return _ExecutorCall(client, self._executor)


# ----------------------------------------------------------------------------------------------------- parts


@dataclass(frozen=True, kw_only=True, slots=True)
class _Source:
    """A subscription of rclpy: its handle, its message class, and the decoder of its raw messages."""

    key: str
    handle: Any
    kind: type
    decoder: LayoutDecoder | None


class _WaitSetCall:
    """A call whose responses are taken from a wait set of its own."""

    def __init__(self, client: Any, wait_set: Any) -> None:  # noqa: ANN401 - rclpy's
        self._client = client
        self._wait_set = wait_set
        self._numbers: set[int] = set()

    def send(self, request: Any) -> None:  # noqa: ANN401 - a generated type
        self._numbers.add(self._client.handle.send_request(request))

    def receive(self, timeout_s: float) -> Any:  # noqa: ANN401 - a generated type
        self._wait_set.clear_entities()
        self._wait_set.add_client(self._client.handle)
        self._wait_set.wait(round(timeout_s * NS_PER_S))
        header, response = self._client.handle.take_response(self._client.srv_type.Response)
        return response if header is not None and header.request_id.sequence_number in self._numbers else None

    def close(self) -> None:
        """Leave late responses to the next call, which drops them by their number."""


class _ExecutorCall:
    """A call whose responses arrive while the executor spins."""

    def __init__(self, client: Any, executor: SingleThreadedExecutor) -> None:  # noqa: ANN401 - rclpy's
        self._client = client
        self._executor = executor
        self._futures: list[Any] = []

    def send(self, request: Any) -> None:  # noqa: ANN401 - a generated type
        self._futures.append(self._client.call_async(request))

    def receive(self, timeout_s: float) -> Any:  # noqa: ANN401 - a generated type
        self._executor.spin_once(timeout_sec=timeout_s)
        return next((future.result() for future in self._futures if future.done()), None)

    def close(self) -> None:
        for future in self._futures:
            self._client.remove_pending_request(future)


class _Clients:
    """The service clients of a node, made once each."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._by_name: dict[str, Any] = {}

    def ready(self, service_type: Any, name: str, end: float, patrol: LivenessCheck) -> Any:  # noqa: ANN401 - generated types
        """Return the client of a service that is available; raises TimeoutError at `end` (monotonic seconds)."""
        if name not in self._by_name:
            self._by_name[name] = self._node.create_client(service_type, name)
        client = self._by_name[name]
        while not client.service_is_ready():
            patrol()
            if time.monotonic() > end:
                raise TimeoutError(f"nobody offers the service {client.srv_name}")
            time.sleep(DISCOVERY_POLL_S)
        return client


def _never_called(message: Any) -> None:  # noqa: ANN401 - generated types
    """Messages are taken from the wait set; no executor runs this."""
