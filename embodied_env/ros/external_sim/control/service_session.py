"""Requests to a simulator, each sent once, and what arrives meanwhile: its clock, and whatever else is listened to."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from embodied_env.contract.message_types import message_class
from embodied_env.core.clock import NS_PER_S
from embodied_env.errors import BackendLostError
from embodied_env.ros.external_sim.control.base import Request, SimulatorRefusedError
from embodied_env.ros.external_sim.control.clock_monitor import ClockMonitor
from embodied_env.ros.qos import EVERY_TICK
from embodied_env.ros.receiver import POLL_S, LivenessCheck, ReceivedMessage, Receiver, ServiceReply

CLOCK = "/clock"  # the key of its arrivals: not a sensor's name
_DRAINS = 64  # an executor hands out one message at a time


@dataclass(kw_only=True)
class PendingRequest:
    """A request that is in flight; monotonic s."""

    request: Request
    answer: ServiceReply
    asked_s: float
    answered_s: float | None = None
    said: Any = None  # what its reply was read as
    about: str = ""  # an entity


class ServiceSession:
    """Asks, and takes what arrives.

    Attributes:
        clock: hears the messages of the clock.
        reply_timeout_s: how long after its request a reply may take.
    """

    def __init__(
        self,
        receiver: Receiver,
        clock: ClockMonitor,
        *,
        topic: str,
        patrol: LivenessCheck,
        hand_on: Callable[[ReceivedMessage], None],
        reply_timeout_s: float,
        turn_s: float,
    ) -> None:
        """Listen to the clock; nothing is asked.

        Args:
            receiver: sends the requests; its messages are taken here.
            clock: follows the clock.
            topic: of the clock.
            patrol: called while waiting; raises when waiting has no sense any more.
            hand_on: gets each message that is not of the clock.
            reply_timeout_s: see above.
            turn_s: how long `turn` waits at most.
        """
        self.clock = clock
        self._receiver, self._patrol, self._hand_on = receiver, patrol, hand_on
        self.reply_timeout_s, self._turn_s = reply_timeout_s, turn_s
        receiver.subscribe(CLOCK, message_class("rosgraph_msgs/msg/Clock"), topic, EVERY_TICK)

    def services(self) -> dict[str, tuple[str, ...]]:
        """Return the services of the graph as it is known now: absolute name -> types."""
        return self._receiver.services()

    def take(self, timeout_s: float) -> bool:
        """Take what has arrived, waiting for the first at most so long; return whether anything has."""
        arrivals = self._receiver.receive(timeout_s)
        now_s = time.monotonic()
        for arrival in arrivals:
            if arrival.key == CLOCK:
                self.clock.on_clock(_ns(arrival.message.clock), now_s)
            else:
                self._hand_on(arrival)
        self._patrol()
        return bool(arrivals)

    def drain(self) -> None:
        """Take all that is here."""
        for _ in range(_DRAINS):
            if not self.take(0.0):
                break

    def ask(self, request: Request, end: float) -> PendingRequest:
        """Send a request, and do not wait; raises BackendLostError where nobody is there to be asked.

        `end`, here and below, is the monotonic time, s, at which everything must be over.
        """
        left_s = max(0.0, min(self.reply_timeout_s, end - time.monotonic()))
        try:
            answer = self._receiver.call_async(request.type, request.service, request.message, left_s, self._patrol)
        except TimeoutError as error:
            raise BackendLostError("reply_lost", f"{error}; nothing was asked") from None
        return PendingRequest(request=request, answer=answer, asked_s=time.monotonic())

    def turn(self, asked: PendingRequest, end: float) -> None:
        """Take what arrives, and read the reply when it is there."""
        self.take(max(0.0, min(POLL_S, self._turn_s, end - time.monotonic())))
        if asked.answered_s is None and asked.answer.response is not None:
            asked.answered_s = time.monotonic()
            try:
                asked.said = asked.request.read(asked.answer.response)
            except SimulatorRefusedError as error:
                about = f" for {asked.about}" if asked.about else ""
                raise BackendLostError("refused", f"{asked.request.service}{about}: {error}") from None

    def await_reply(self, asked: PendingRequest, end: float, *, clock_tells: Callable[[], str] = lambda: "") -> None:
        """Take what arrives until a reply; raises BackendLostError, with what the clock tells, when it is late."""
        end = min(end, asked.asked_s + self.reply_timeout_s)
        while asked.answered_s is None:
            if time.monotonic() > end:
                told = clock_tells()
                raise BackendLostError("reply_lost", f"{asked.request.service} did not answer" + (told and f"; {told}"))
            self.turn(asked, end)

    def call(self, request: Request, end: float, about: str = "") -> Any:  # noqa: ANN401 - what `Request.read` returns
        """Send a request, and return what its reply says; `about`: an entity, for the message of a refusal."""
        asked = self.ask(request, end)
        asked.about = about
        self.await_reply(asked, end)
        return asked.said


def _ns(stamp: Any) -> int:  # noqa: ANN401 - a builtin_interfaces/Time
    return int(stamp.sec) * NS_PER_S + int(stamp.nanosec)
