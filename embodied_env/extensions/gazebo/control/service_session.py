"""Sends requests to a simulator, and receives its clock, replies and other messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from embodied_env.errors import BackendLostError
from embodied_env.extensions.gazebo.control.simulator_api import Request, SimulatorRefusedError
from embodied_env.messages.message_types import message_class
from embodied_env.ros.transport.qos import EVERY_TICK
from embodied_env.ros.transport.receiver import POLL_S, LivenessCheck, ReceivedMessage, Receiver, ServiceReply
from embodied_env.timing.clock import NS_PER_S

CLOCK = "/clock"  # the topic, and the key of its messages
REST_S = 0.3  # the clock must be at rest for this long before the first request: leftover steps would show
_MAX_RECEIVES = 64  # an executor returns one message at a time


class ClockMonitor:
    """Follows the stamps of a clock, in ns, in the order of their arrival.

    Attributes:
        now_ns: the newest stamp; None before the first.
        seen: how many times in a row the newest stamp was received.
        received: number of stamps received.
        rewinds: how often the clock went back.
        from_ns: the stamp before the last rewind; None: no rewind.
        changed_s: when the newest stamp was first received, monotonic s.
        received_s: when the last stamp was received.
        steady_s: since when the newest stamp has been received without a gap of more than `REST_S`.
        repeats: whether the clock is published at rest: then a silent one is stalled.
    """

    def __init__(self) -> None:
        self.now_ns: int | None = None
        self.seen = self.received = self.rewinds = 0
        self.from_ns: int | None = None
        self.changed_s = self.received_s = self.steady_s = 0.0
        self.repeats = False

    def on_clock(self, stamp_ns: int, at_s: float) -> None:
        """Store a stamp that was received at `at_s`, monotonic s."""
        self.received += 1
        gap_s, self.received_s = at_s - self.received_s, at_s
        if stamp_ns != self.now_ns or gap_s > REST_S:
            self.steady_s = at_s
        if stamp_ns == self.now_ns:
            self.seen += 1
            return
        if self.now_ns is not None and stamp_ns < self.now_ns:
            self.rewinds += 1
            self.from_ns = self.now_ns
        self.now_ns, self.seen, self.changed_s = stamp_ns, 1, at_s

    def is_at_rest(self, since_s: float, for_s: float) -> bool:
        """Return whether the newest stamp has not changed for `for_s` since `since_s`, monotonic s."""
        now_s = time.monotonic()
        is_stalled = self.repeats and now_s - self.received_s > for_s
        return not is_stalled and now_s - max(since_s, self.steady_s) > for_s


@dataclass(kw_only=True)
class PendingRequest:
    """A request in flight, with times in monotonic s and the `result` of `Request.read`."""

    request: Request
    reply: ServiceReply
    sent_s: float
    answered_s: float | None = None
    result: Any = None
    entity: str = ""


class ServiceSession:
    """Sends requests to one simulator, in calls that return by `end`, monotonic s."""

    def __init__(
        self,
        receiver: Receiver,
        *,
        reply_timeout_s: float = 1.0,
        on_message: Callable[[ReceivedMessage], None] = lambda _: None,
        check_liveness: LivenessCheck = lambda: None,
    ) -> None:
        """Subscribe to the clock, with `on_message` for others and `check_liveness` per `receive`."""
        self.clock = ClockMonitor()
        self.reply_timeout_s = reply_timeout_s
        self._receiver, self._on_message, self._check_liveness = receiver, on_message, check_liveness
        receiver.subscribe(CLOCK, message_class("rosgraph_msgs/msg/Clock"), CLOCK, EVERY_TICK)

    def services(self) -> dict[str, tuple[str, ...]]:
        """Return the types of the services of the current graph by absolute name."""
        return self._receiver.services()

    def receive(self, timeout_s: float, *, only: Collection[str] = ()) -> bool:
        """Wait up to `timeout_s` for messages, `only` of some keys, and return whether any arrived."""
        self._check_liveness()
        arrivals = self._receiver.receive(timeout_s, only=only)
        now_s = time.monotonic()
        for arrival in arrivals:
            if arrival.key == CLOCK:
                stamp = arrival.message.clock
                self.clock.on_clock(int(stamp.sec) * NS_PER_S + int(stamp.nanosec), now_s)
            else:
                self._on_message(arrival)
        return bool(arrivals)

    def drain(self) -> None:
        """Receive all messages that have arrived."""
        for _ in range(_MAX_RECEIVES):
            if not self.receive(0.0):
                break

    def send(self, request: Request, end: float, entity: str = "") -> PendingRequest:
        """Send a request about `entity`, or raise BackendLostError without the service."""
        left_s = max(0.0, min(self.reply_timeout_s, end - time.monotonic()))
        try:
            reply = self._receiver.call_async(request.type, request.service, request.message, left_s)
        except TimeoutError as error:
            raise BackendLostError("reply_lost", f"{error}; the request was not sent") from None
        return PendingRequest(request=request, reply=reply, sent_s=time.monotonic(), entity=entity)

    def poll(self, pending: PendingRequest, end: float) -> None:
        """Receive the clock, and read the reply when it arrives.

        Other messages stay in their queues: a simulator publishes many during a step, and only the newest count.
        Raises BackendLostError for a refusal.
        """
        self.receive(max(0.0, min(POLL_S, end - time.monotonic())), only=(CLOCK,))
        if pending.answered_s is None and pending.reply.response is not None:
            pending.answered_s = time.monotonic()
            try:
                pending.result = pending.request.read(pending.reply.response)
            except SimulatorRefusedError as error:
                about = f" for {pending.entity}" if pending.entity else ""
                raise BackendLostError("refused", f"{pending.request.service}{about}: {error}") from None

    def await_reply(self, pending: PendingRequest, end: float, *, evidence: Callable[[], str] = lambda: "") -> None:
        """Poll until the reply arrives, or raise BackendLostError with `evidence` if it is late."""
        end = min(end, pending.sent_s + self.reply_timeout_s)
        while pending.answered_s is None:
            if time.monotonic() > end:
                raise BackendLostError("reply_lost", f"no reply from {pending.request.service}{evidence()}")
            self.poll(pending, end)

    def call(self, request: Request, end: float, entity: str = "") -> Any:  # noqa: ANN401 - what `Request.read` returns
        """Send a request, again whenever its reply is lost, and return the content of the reply.

        Only for a request that advances no time and interrupts no step: services of a dead server stay in the graph
        until its lease expires, and receive requests until then.
        """
        while True:
            try:
                return self.call_once(request, end, entity)
            except BackendLostError as error:
                if error.why != "reply_lost" or time.monotonic() > end:
                    raise

    def call_once(self, request: Request, end: float, entity: str = "") -> Any:  # noqa: ANN401 - as in `call`
        """Send a request once, and return the content of the reply."""
        pending = self.send(request, end, entity)
        self.await_reply(pending, end)
        return pending.result
