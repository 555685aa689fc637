"""Receive the messages and service responses of a node in the caller's thread.

A wait set of our own, through rclpy's private API, avoids the executor's work for each message, takes raw bytes, and
can wait for selected topics only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from embodied_env.core.message_tap import MessageTap
from embodied_env.processes.signals import deferred_signals
from embodied_env.ros.transport.setup_checks import rclpy_import_errors
from embodied_env.timing.clock import NS_PER_S, Clock

with rclpy_import_errors("a backend over ROS 2"):
    from rcl_interfaces.srv import GetParameters, ListParameters
    from rclpy.impl.implementation_singleton import rclpy_implementation
    from rclpy.node import Node
    from rclpy.parameter import parameter_value_to_python
    from rclpy.qos import QoSProfile

    from embodied_env.ros.transport.byte_layout import LayoutDecoder
    from embodied_env.ros.transport.qos import RELIABLE
    from embodied_env.ros.transport.tapped_node import TopicTap

LivenessCheck = Callable[[], None]
"""Function called repeatedly during a wait, which raises an error to end it."""

POLL_S = 0.1

RETRY_S = 1.0
"""Time without a response after which a request is sent again, to be treated by the service as the same request."""

DISCOVERY_POLL_S = 0.01
"""Time between two looks at the graph, each of which costs a fraction of a millisecond."""

_PARAMETERS_S = 1.0  # timeout of each call for parameters


@dataclass(kw_only=True, slots=True)
class ReceivedMessage:
    """A message with its arrival on our clocks and its `MessageInfo`, a dict.

    Read-only; not frozen, since that costs a microsecond for each message. `message` is a `RawMessage` if the
    subscription is raw.
    """

    key: str
    message: Any
    info: dict[str, int | None]
    arrival_ns: int
    arrival_system_ns: int


def stamped(key: str, clock: Clock, take: Callable[[ReceivedMessage], None]) -> Callable[[Any, Any], None]:
    """Return a subscription callback that passes messages to `take`, stamped by `clock`."""

    def on_message(message: Any, info: Any) -> None:  # noqa: ANN401 - generated types
        now_ns, system_ns = clock.now_ns(), clock.system_ns()
        take(ReceivedMessage(key=key, message=message, info=info, arrival_ns=now_ns, arrival_system_ns=system_ns))

    return on_message


@dataclass(kw_only=True)
class ServiceReply:
    """A request and its response, which is None until the service has responded."""

    service: str
    client: Any
    requests: list[int] = field(default_factory=list)  # sequence number of each transmission
    response: Any = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Subscription:
    key: str
    handle: Any  # of rclpy
    kind: type
    decoder: LayoutDecoder | None  # of raw messages
    tap: TopicTap


class Receiver:
    """Receives messages and service responses on a wait set of its own."""

    def __init__(self, node: Node, clock: Clock, feed: MessageTap | None = None) -> None:
        """Create the wait set, where `clock` stamps arrivals and `feed` gets the received messages."""
        self._node = node
        self._clock = clock
        self._feed = feed or MessageTap()
        self._clients: dict[str, Any] = {}
        self._pending: dict[str, ServiceReply] = {}  # by service
        self._subscriptions: list[_Subscription] = []
        self._size_wait_set()

    def subscribe(
        self, key: str, message_type: type, topic: str, qos: QoSProfile = RELIABLE, *, raw: bool = False
    ) -> None:
        """Subscribe to `topic` under the name `key`, with `RawMessage` objects if `raw`."""
        created = self._node.create_subscription(message_type, topic, _never_called, qos, raw=raw)
        subscription = _Subscription(
            key=key,
            handle=created.handle,
            kind=message_type,
            decoder=LayoutDecoder(message_type) if raw else None,
            tap=TopicTap(self._feed, message_type, self._node.resolve_topic_name(topic), qos),
        )
        self._subscriptions.append(subscription)
        self._size_wait_set()

    @deferred_signals()
    def receive(
        self, timeout_s: float, until: Collection[str] = (), *, only: Collection[str] = ()
    ) -> list[ReceivedMessage]:
        """Wait at most `timeout_s` for a message or service response, and return the new messages.

        With `until`, only these keys end the wait, and at most one message of each key is taken. With `only`, messages
        of other keys stay in their queues.
        """
        sources = [each for each in self._subscriptions if each.key in only] if only else self._subscriptions
        if timeout_s > 0.0:  # a wait of 0 s takes a tenth of a millisecond
            self._wait_set.clear_entities()
            for each in sources:
                if not until or each.key in until:
                    self._wait_set.add_subscription(each.handle)
            self._wait(timeout_s)
        arrivals: list[ReceivedMessage] = []
        for each in sources:
            arrivals += self._take(each, only_one=bool(until))
        self._take_responses()
        return arrivals

    def _take(self, source: _Subscription, *, only_one: bool) -> list[ReceivedMessage]:
        """Take one or all messages of a subscription, and drop bytes that are not of its type."""
        arrivals: list[ReceivedMessage] = []
        while (taken := source.handle.take_message(source.kind, source.decoder is not None)) is not None:
            now_ns, system_ns = self._clock.now_ns(), self._clock.system_ns()
            message, info = taken
            if source.decoder is not None and (message := source.decoder.decode(message)) is None:
                continue
            arrival = ReceivedMessage(
                key=source.key, message=message, info=info, arrival_ns=now_ns, arrival_system_ns=system_ns
            )
            arrivals.append(arrival)
            if only_one:
                break
        if self._feed.sink is not None:
            for arrival in arrivals:
                source.tap.received(arrival.message, arrival.info, arrival.arrival_system_ns)
        return arrivals

    def services(self) -> dict[str, tuple[str, ...]]:
        """Return the services that are known in the graph with their types, by absolute name."""
        return {name: tuple(types) for name, types in self._node.get_service_names_and_types()}

    def call_async(
        self,
        service_type: Any,  # noqa: ANN401 - a generated type
        name: str,
        request: Any,  # noqa: ANN401 - a generated type
        timeout_s: float,
    ) -> ServiceReply:
        """Send a request once, whose response `receive` stores in the reply.

        A pending request to the same service is abandoned. Raises TimeoutError, without sending the request, if the
        service is not available within `timeout_s`.
        """
        reply = self._begin_call(service_type, name, time.monotonic() + timeout_s, check_liveness=lambda: None)
        with deferred_signals():
            self._send(reply, request)
        return reply

    def call(self, service_type: Any, name: str, request: Any, timeout_s: float, check_liveness: LivenessCheck) -> Any:  # noqa: ANN401
        """Return the response of a service, or raise TimeoutError or the error of `check_liveness`."""
        end = time.monotonic() + timeout_s
        reply = self._begin_call(service_type, name, end, check_liveness)
        repeat = -math.inf
        try:
            while (left_s := end - time.monotonic()) > 0:
                check_liveness()
                with deferred_signals():
                    if time.monotonic() > repeat:
                        self._send(reply, request)
                        repeat = time.monotonic() + RETRY_S
                    self._wait_set.clear_entities()
                    self._wait(min(POLL_S, left_s))
                    self._take_responses()
                if reply.response is not None:
                    return reply.response
            raise TimeoutError(f"no response from service {name} within {timeout_s:.1f} s")
        finally:
            self._pending.pop(name, None)

    def _begin_call(self, service_type: Any, name: str, end: float, check_liveness: LivenessCheck) -> ServiceReply:  # noqa: ANN401
        """Wait until the service is available, or raise TimeoutError at `end` (monotonic seconds)."""
        if name not in self._clients:
            self._clients[name] = self._node.create_client(service_type, name)
        client = self._clients[name]
        while not client.service_is_ready():
            check_liveness()
            if time.monotonic() > end:
                raise TimeoutError(f"service {client.srv_name} is not available")
            time.sleep(DISCOVERY_POLL_S)
        reply = self._pending[name] = ServiceReply(service=name, client=client)
        return reply

    def _send(self, reply: ServiceReply, request: Any) -> None:  # noqa: ANN401 - a generated type
        reply.requests.append(reply.client.handle.send_request(request))
        self._size_wait_set()

    def _wait(self, timeout_s: float) -> None:
        for reply in self._pending.values():
            self._wait_set.add_client(reply.client.handle)
        self._wait_set.wait(max(0, round(timeout_s * NS_PER_S)))

    def _take_responses(self) -> None:
        """Store the responses that have arrived, and drop those to abandoned requests."""
        for reply in list(self._pending.values()):
            client = reply.client
            while (taken := client.handle.take_response(client.srv_type.Response))[0] is not None:
                header, response = taken
                if reply.response is None and header.request_id.sequence_number in reply.requests:
                    reply.response = response
                    self._pending.pop(reply.service, None)

    def _size_wait_set(self) -> None:
        sizes = len(self._subscriptions), 0, 0, max(1, len(self._clients)), 0, 0
        self._wait_set = rclpy_implementation.WaitSet(*sizes, self._node.context.handle)


def read_parameters(receiver: Receiver, node: str, is_wanted: Callable[[str], bool]) -> dict[str, Any]:
    """Return the parameters of a node whose names are wanted, or none without an answer."""
    services = [f"{node}/list_parameters", f"{node}/get_parameters"]
    if not receiver.services().keys() >= {*services}:
        return {}
    try:
        request = ListParameters.Request()
        listed = receiver.call(ListParameters, services[0], request, _PARAMETERS_S, lambda: None)
        names = [name for name in listed.result.names if is_wanted(name)]
        if not names:
            return {}
        request = GetParameters.Request(names=names)
        found = receiver.call(GetParameters, services[1], request, _PARAMETERS_S, lambda: None)
    except TimeoutError:
        return {}
    return dict(zip(names, map(parameter_value_to_python, found.values), strict=False))


def _never_called(message: Any) -> None:  # noqa: ANN401 - a generated type
    """Satisfy rclpy, which requires a callback that no executor runs."""
