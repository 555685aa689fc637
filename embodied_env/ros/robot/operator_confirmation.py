"""Wait for an operator's confirmation before an episode: at a prompt, on a topic, or by a service."""

from __future__ import annotations

import os
import select
import sys
from typing import Any, TextIO

from embodied_env.contract.message_types import message_class
from embodied_env.core.clock import NS_PER_S, Clock
from embodied_env.errors import BackendNotReadyError
from embodied_env.ros.qos import LATCHED, RELIABLE
from embodied_env.ros.receive_thread import ReceiveThread
from embodied_env.ros.receiver import POLL_S, LivenessCheck, ReceivedMessage
from embodied_env.ros.robot.backend_profile import ResetSpec

REQUEST_TOPIC = "~/confirm_request"
"""The pending question (std_msgs/String, latched) for a confirmation by topic or service; empty: none is pending."""

CONFIRM = "~/confirm"
"""The default name of the topic (std_msgs/Bool), and of the service (std_srvs/Trigger)."""

_AGREED = ("", "y", "yes", "go")
_READ_BYTES = 4096


def make_confirmation(spec: ResetSpec, listener: ReceiveThread, clock: Clock) -> Prompt | RosConfirmation | None:
    """Return the confirmation that the profile declares, or None. The listener must not have started.

    Raises:
        BackendNotReadyError: for a prompt without a terminal.
    """
    if spec.confirm == "prompt":
        return Prompt(clock, listener.raise_if_failed)
    if spec.confirm == "topic":
        return ByTopic(spec.confirm_topic or CONFIRM, listener, clock)
    return ByService(spec.confirm_service or CONFIRM, listener, clock) if spec.confirm == "service" else None


class Prompt:
    """Asks at the terminal: Enter agrees, n or q or the end of input declines, anything else repeats the question.

    Input must come from a terminal, not a pipe. Input from before the question is discarded.
    """

    def __init__(
        self, clock: Clock, patrol: LivenessCheck, *, source: TextIO | None = None, out: TextIO | None = None
    ) -> None:
        """Write to `out` (None: standard error) and read `source` (None: standard input).

        `patrol` is called while waiting; it raises when there is nothing left to wait for.

        Raises:
            BackendNotReadyError: when `source` is no terminal.
        """
        self._clock, self._patrol = clock, patrol
        self._source = sys.stdin if source is None else source
        self._out = sys.stderr if out is None else out
        try:
            is_terminal = self._source.isatty()
        except (AttributeError, ValueError):  # there is none, or it is closed
            is_terminal = False
        if not is_terminal:
            raise BackendNotReadyError(
                "backends.real.reset.confirm: prompt needs a terminal, and standard input is none; "
                "run it in one, or set confirm: topic or service"
            )

    def ask(self, question: str, deadline_ns: int) -> None:
        """Show the question, and return when the operator agrees.

        Raises:
            BackendNotReadyError: when the operator declines, or has not answered at `deadline_ns` (steady clock).
        """
        import termios  # noqa: PLC0415 - absent on Windows

        termios.tcflush(self._source.fileno(), termios.TCIFLUSH)
        typed = ""
        self._write(f"{question}\n")
        while True:
            self._write("Enter: go; n: no > ")
            while "\n" not in typed:
                typed += self._read(deadline_ns)
            answer, _, typed = typed.partition("\n")
            answer = answer.strip().lower()
            if answer in _AGREED:
                return
            if answer.startswith(("n", "q")):
                raise BackendNotReadyError(f"the operator has declined at the prompt ({answer!r}); nothing moves")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()

    def _read(self, deadline_ns: int) -> str:
        """Return the next input."""
        descriptor = self._source.fileno()
        while not select.select([descriptor], [], [], POLL_S)[0]:
            self._patrol()
            if self._clock.now_ns() > deadline_ns:
                raise _unanswered("at the prompt")
        try:
            typed = os.read(descriptor, _READ_BYTES)
        except OSError:  # the terminal was closed
            typed = b""
        if not typed:
            raise BackendNotReadyError("the operator has declined at the prompt (end of input); nothing moves")
        return typed.decode(errors="replace")


class RosConfirmation:
    """Publishes the question while it is pending, and waits until a subclass has stored an answer.

    The listener's lock guards the answer.
    """

    def __init__(self, where: str, listener: ReceiveThread, clock: Clock) -> None:
        """Create the publisher of the question; `where` the answer comes from, for errors."""
        self._where = where
        self._listener, self._clock = listener, clock
        self._asked_ns: int | None = None  # on the system clock; None: no question is pending
        self._answer: bool | None = None
        self._message = message_class("std_msgs/msg/String")
        self._publisher = listener.node.create_publisher(self._message, REQUEST_TOPIC, LATCHED)

    def ask(self, question: str, deadline_ns: int) -> None:
        """Publish the question, and return or raise as `Prompt.ask` does."""
        changed = self._listener.condition
        with changed:
            self._asked_ns, self._answer = self._clock.system_ns(), None
        try:
            self._publisher.publish(self._message(data=question))
            with changed:
                while self._answer is None:
                    self._listener.raise_if_failed()
                    left_s = (deadline_ns - self._clock.now_ns()) / NS_PER_S
                    if left_s <= 0.0:
                        raise _unanswered(self._where)
                    changed.wait(min(POLL_S, left_s))
        finally:
            self._asked_ns = None
            self._publisher.publish(self._message(data=""))
        if not self._answer:
            raise BackendNotReadyError(f"the operator has declined {self._where}; nothing moves")


class ByTopic(RosConfirmation):
    """Waits for a std_msgs/Bool that is newer than the question: true agrees, false declines."""

    def __init__(self, topic: str, listener: ReceiveThread, clock: Clock) -> None:
        """Subscribe to `topic`."""
        super().__init__(f"on {listener.node.resolve_topic_name(topic)}", listener, clock)
        listener.subscribe("confirm", "std_msgs/msg/Bool", topic, RELIABLE, self._on_message)

    def _on_message(self, arrival: ReceivedMessage) -> None:
        """Store an answer, unless it was queued before the question."""
        received_ns = arrival.info.get("received_timestamp") or arrival.arrival_system_ns
        if self._asked_ns is not None and received_ns > self._asked_ns:
            self._answer = bool(arrival.message.data)


class ByService(RosConfirmation):
    """Offers a std_srvs/Trigger: a call while the question is pending agrees."""

    def __init__(self, service: str, listener: ReceiveThread, clock: Clock) -> None:
        """Offer `service`."""
        super().__init__(f"by {listener.node.resolve_service_name(service)}", listener, clock)
        listener.node.create_service(message_class("std_srvs/srv/Trigger"), service, self._on_call)

    def _on_call(self, request: Any, response: Any) -> Any:  # noqa: ANN401, ARG002 - generated types
        with self._listener.condition:
            response.success = self._asked_ns is not None
            response.message = "the episode may begin" if response.success else "nothing is asked now"
            if response.success:
                self._answer = True
                self._listener.condition.notify_all()
        return response


def _unanswered(where: str) -> BackendNotReadyError:
    return BackendNotReadyError(f"nobody confirmed {where} in time; nothing moves")
