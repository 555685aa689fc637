"""What arrives at a node, taken in the caller's thread.

Two forms behind one seam. `WaitSetReceiver` waits on a private wait set and takes each message with its `MessageInfo`;
it uses rclpy's private API, so it is chosen by feature detection. `ExecutorReceiver` turns a `SingleThreadedExecutor`,
always with a finite timeout. Neither has a thread: nothing to join before the interpreter exits.

(`EventsExecutor` is not used: in rclpy 7.1.6 a callback that takes the message info raises SystemError.)
"""

from __future__ import annotations

import time
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
"""Called now and then during a wait; raises when waiting has no sense any more."""

POLL_S = 0.1

RETRY_S = 1.0
"""Silence after which a request is sent again. Whoever answers must take a repetition for the same request."""

DISCOVERY_POLL_S = 0.002  # how long one look at a graph or a service may sleep


@dataclass(kw_only=True, slots=True)
class ReceivedMessage:
    """A message as it arrived: when on our clocks, and what the middleware says of it (`MessageInfo`, a dict).

    Nobody writes into it: it is only not frozen since that costs a microsecond for each message. Of a raw subscription
    `message` is a `RawMessage`.
    """

    key: str
    message: Any
    info: dict[str, int | None]
    arrival_ns: int
    arrival_system_ns: int


@dataclass(kw_only=True)
class ServiceReply:
    """What became of a request: `response` is None until the service has answered."""

    service: str
    response: Any = None


class Receiver(Protocol):
    """Takes messages and service responses in the caller's thread."""

    def subscribe(
        self, key: str, message_type: type, topic: str, qos: QoSProfile = RELIABLE, *, raw: bool = False
    ) -> None:
        """Receive `topic` under the name `key`; `raw`: as a `RawMessage`, where this receiver can."""
        ...

    def receive(self, timeout_s: float, until: Collection[str] = ()) -> list[ReceivedMessage]:
        """Return what has arrived, waiting for the first at most `timeout_s`; an answer ends the wait too.

        `until`: the names of those that end the wait, where this receiver can choose; one message of each is taken, and
        of the others one each along with them. Nothing named: each ends it, and all is taken.
        """
        ...

    def services(self) -> dict[str, tuple[str, ...]]:
        """Return the services of the graph as it is known now: absolute name -> types."""
        ...

    def call_async(
        self,
        service_type: Any,  # noqa: ANN401 - a generated type
        name: str,
        request: Any,  # noqa: ANN401 - a generated type
        timeout_s: float = RETRY_S,
        patrol: LivenessCheck = lambda: None,
    ) -> ServiceReply:
        """Send a request, once, and do not wait: `take` fills in its answer.

        What was asked of this service before and is not answered yet never will be.

        Raises:
            TimeoutError: when nobody offers the service within `timeout_s`; nothing was sent then.
        """
        ...

    def call(self, service_type: Any, name: str, request: Any, timeout_s: float, patrol: LivenessCheck) -> Any:  # noqa: ANN401
        """Return the response of a service; raises TimeoutError, or what `patrol` raises while it waits."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class _Source:
    """A subscription of rclpy: its handle, its message class, and what decodes its messages where they are raw."""

    key: str
    handle: Any
    kind: type
    decoder: LayoutDecoder | None


class WaitSetReceiver:
    """Waits on a wait set over exactly our subscriptions: the fastest way that rclpy has."""

    def __init__(self, node: Node, context: Context, clock: Clock, feed: MessageTap | None = None) -> None:
        """Feature detection: raises ImportError or AttributeError where rclpy lacks the private API."""
        from rclpy.impl.implementation_singleton import rclpy_implementation  # noqa: PLC0415 - private, may be absent

        self._make_wait_set = rclpy_implementation.WaitSet
        self._node = node
        self._context = context
        self._clock = clock
        self._sources: list[_Source] = []
        self._feed = feed or MessageTap()
        self._tellers: dict[str, SubscriptionTap] = {}
        self._clients = _Clients(node)
        self._asked = _Clients(node)  # of `ask`: apart, since `call` takes what comes to its own
        self._open: dict[
            str, tuple[Any, int, ServiceReply]
        ] = {}  # by service: client, number of the request, its answer
        self._wait_set = self._make_wait_set(0, 0, 0, 1, 0, 0, context.handle)

    def subscribe(
        self, key: str, message_type: type, topic: str, qos: QoSProfile = RELIABLE, *, raw: bool = False
    ) -> None:
        """Receive `topic` under the name `key`; `raw`: as a `RawMessage`."""
        subscription = self._node.create_subscription(message_type, topic, _never_called, qos, raw=raw)
        decoder = LayoutDecoder(message_type) if raw else None
        self._sources.append(_Source(key=key, handle=subscription.handle, kind=message_type, decoder=decoder))
        self._tellers[key] = SubscriptionTap(self._feed, message_type, self._node.resolve_topic_name(topic), qos)
        self._size_wait_set()

    def _size_wait_set(self) -> None:
        clients = max(1, len(self._open))
        self._wait_set = self._make_wait_set(len(self._sources), 0, 0, clients, 0, 0, self._context.handle)

    def services(self) -> dict[str, tuple[str, ...]]:
        """Return the services of the graph as it is known now: absolute name -> types."""
        return _services(self._node)

    def call_async(
        self,
        service_type: Any,  # noqa: ANN401 - a generated type
        name: str,
        request: Any,  # noqa: ANN401 - a generated type
        timeout_s: float = RETRY_S,
        patrol: LivenessCheck = lambda: None,
    ) -> ServiceReply:
        """Send a request, once, and do not wait: `take` fills in its answer."""
        client = self._asked.ready(service_type, name, time.monotonic() + timeout_s, patrol)
        answer = ServiceReply(service=name)
        with deferred_signals():
            self._open[name] = client, client.handle.send_request(request), answer
            self._size_wait_set()
        return answer

    def _take_answers(self) -> None:
        """Fill in the answers that have come; one to a request that was given up is dropped."""
        for name, (client, number, answer) in list(self._open.items()):
            while (taken := client.handle.take_response(client.srv_type.Response))[0] is not None:
                header, response = taken
                if header.request_id.sequence_number == number:
                    answer.response = response
                    self._open.pop(name, None)

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
                self._drain(source, arrivals, whole=not until)
        if self._open:
            self._take_answers()
        if self._feed.sink is not None:
            for each in arrivals:
                self._tellers[each.key].received(each.message, each.info, each.arrival_system_ns)
        return arrivals

    def _drain(self, source: _Source, arrivals: list[ReceivedMessage], *, whole: bool) -> None:
        """Take what a subscription has, all or one of it; what is no message of its type is dropped."""
        take, kind, decoder = source.handle.take_message, source.kind, source.decoder
        while (taken := take(kind, decoder is not None)) is not None:
            now_ns, system_ns = self._clock.now_ns(), self._clock.system_ns()
            message, info = taken
            if decoder is not None and (message := decoder.take(message)) is None:
                continue
            arrivals.append(
                ReceivedMessage(
                    key=source.key, message=message, info=info, arrival_ns=now_ns, arrival_system_ns=system_ns
                )
            )
            if not whole:
                break

    def call(self, service_type: Any, name: str, request: Any, timeout_s: float, patrol: LivenessCheck) -> Any:  # noqa: ANN401
        """Return the response of a service; raises TimeoutError, or what `patrol` raises while it waits."""
        end = time.monotonic() + timeout_s
        client = self._clients.ready(service_type, name, end, patrol)
        with deferred_signals():
            numbers = {client.handle.send_request(request)}
        repeat = time.monotonic() + RETRY_S
        wait_set = self._make_wait_set(0, 0, 0, 1, 0, 0, self._context.handle)
        while (left_s := end - time.monotonic()) > 0:
            patrol()
            with deferred_signals():
                if time.monotonic() > repeat:
                    numbers.add(client.handle.send_request(request))
                    repeat = time.monotonic() + RETRY_S
                wait_set.clear_entities()
                wait_set.add_client(client.handle)
                wait_set.wait(round(min(POLL_S, left_s) * NS_PER_S))
                header, response = client.handle.take_response(service_type.Response)
            if header is not None and header.request_id.sequence_number in numbers:
                return response
        raise TimeoutError(f"the service {name} did not answer within {timeout_s:.1f} s")


class ExecutorReceiver:
    """Turns a `SingleThreadedExecutor` in the caller's thread: public API only."""

    def __init__(self, node: Node, context: Context, clock: Clock) -> None:
        """Turn an executor of our own over `node`."""
        self._node = node
        self._clock = clock
        self._arrivals: list[ReceivedMessage] = []
        self._clients = _Clients(node)
        self._asked = _Clients(node)
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

    def services(self) -> dict[str, tuple[str, ...]]:
        """Return the services of the graph as it is known now: absolute name -> types."""
        return _services(self._node)

    def call_async(
        self,
        service_type: Any,  # noqa: ANN401 - a generated type
        name: str,
        request: Any,  # noqa: ANN401 - a generated type
        timeout_s: float = RETRY_S,
        patrol: LivenessCheck = lambda: None,
    ) -> ServiceReply:
        """Send a request, once, and do not wait: `take` fills in its answer."""
        client = self._asked.ready(service_type, name, time.monotonic() + timeout_s, patrol)
        answer = ServiceReply(service=name)
        if name in self._open:
            old, given_up = self._open.pop(name)
            old.remove_pending_request(given_up)

        def fill(future: Any) -> None:  # noqa: ANN401 - rclpy's
            answer.response = future.result()
            self._open.pop(name, None)

        with deferred_signals():
            future = client.call_async(request)
            self._open[name] = client, future
            future.add_done_callback(fill)
        return answer

    @deferred_signals()
    def receive(self, timeout_s: float, until: Collection[str] = ()) -> list[ReceivedMessage]:  # noqa: ARG002 - any ends it
        """Return what has arrived, waiting for the first at most `timeout_s`."""
        self._executor.spin_once(timeout_sec=max(0.0, timeout_s))
        arrivals, self._arrivals = self._arrivals, []
        return arrivals

    def call(self, service_type: Any, name: str, request: Any, timeout_s: float, patrol: LivenessCheck) -> Any:  # noqa: ANN401
        """Return the response of a service; raises TimeoutError, or what `patrol` raises while it waits."""
        end = time.monotonic() + timeout_s
        client = self._clients.ready(service_type, name, end, patrol)
        futures = [client.call_async(request)]
        repeat = time.monotonic() + RETRY_S
        while not any(future.done() for future in futures):
            patrol()
            if (left_s := end - time.monotonic()) <= 0:
                for future in futures:
                    client.remove_pending_request(future)
                raise TimeoutError(f"the service {name} did not answer within {timeout_s:.1f} s")
            if time.monotonic() > repeat:
                futures.append(client.call_async(request))
                repeat = time.monotonic() + RETRY_S
            with deferred_signals():
                self._executor.spin_once(timeout_sec=min(POLL_S, left_s))
        return next(future.result() for future in futures if future.done())


class _Clients:
    """The service clients of a node, made once each."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._by_name: dict[str, Any] = {}

    def ready(self, service_type: Any, name: str, end: float, patrol: LivenessCheck) -> Any:  # noqa: ANN401 - generated types
        """Return the client of a service that somebody offers; raises TimeoutError at `end` (monotonic seconds)."""
        if name not in self._by_name:
            self._by_name[name] = self._node.create_client(service_type, name)
        client = self._by_name[name]
        while not client.service_is_ready():
            patrol()
            if time.monotonic() > end:
                raise TimeoutError(f"nobody offers the service {client.srv_name}")
            time.sleep(DISCOVERY_POLL_S)
        return client


def _services(node: Node) -> dict[str, tuple[str, ...]]:
    return {name: tuple(types) for name, types in node.get_service_names_and_types()}


def _never_called(message: Any) -> None:  # noqa: ANN401 - generated types
    """Messages are taken from the wait set; no executor runs this."""
