"""A person's word before an episode: at a prompt, on a topic, or by a service. Nothing moves while it is waited for."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TextIO

from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

from embodied_env.contract.message_types import message_class
from embodied_env.core.clock import NS_PER_S, Clock
from embodied_env.errors import BackendNotReadyError
from embodied_env.ros.qos import RELIABLE
from embodied_env.ros.receive_thread import ReceiveThread
from embodied_env.ros.receiver import POLL_S, LivenessCheck, ReceivedMessage
from embodied_env.ros.robot.profile import ResetSpec

REQUEST_TOPIC = "~/confirm_request"
"""Where the question stands (std_msgs/String, latched) while it is asked by a topic or a service; empty: nothing is."""

CONFIRM = "~/confirm"
"""The default name of the topic (std_msgs/Bool), and of the service (std_srvs/Trigger)."""

_LATCHED = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL)
_AGREED = ("", "y", "yes", "go")
_READ_BYTES = 4096


class Confirmation(Protocol):
    """Asks a person."""

    def ask(self, question: str, deadline_ns: int, patrol: LivenessCheck) -> None:
        """Return when a person agrees.

        Args:
            question: what they are asked.
            deadline_ns: of the wait, on the steady clock.
            patrol: called now and then; raises when waiting has no sense any more.

        Raises:
            BackendNotReadyError: when they do not agree, or say nothing in time.
        """
        ...


def make_confirmation(spec: ResetSpec, node: Node, listener: ReceiveThread, clock: Clock) -> Confirmation | None:
    """Return who asks, None for nobody. The listener must not have started.

    Raises:
        BackendNotReadyError: for a prompt without a terminal.
    """
    if spec.confirm == "prompt":
        return Prompt(clock)
    if spec.confirm == "topic":
        return ByTopic(spec.confirm_topic or CONFIRM, node, listener, clock)
    return ByService(spec.confirm_service or CONFIRM, node, clock) if spec.confirm == "service" else None


class Prompt:
    """Asks at the terminal: Enter goes on, n or q or the end of input refuses, anything else is asked again.

    Only a terminal is asked: a pipe that says yes is no person. What was typed before the question does not count.
    """

    def __init__(self, clock: Clock, *, source: TextIO | None = None, out: TextIO | None = None) -> None:
        """Ask on `out` (None: standard error) and hear `source` (None: standard input).

        Raises:
            BackendNotReadyError: where that is no terminal.
        """
        self._clock = clock
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

    def ask(self, question: str, deadline_ns: int, patrol: LivenessCheck) -> None:
        """See `Confirmation.ask`."""
        self._forget()
        heard = ""
        self._say(f"{question}\n")
        while True:
            self._say("Enter: go; n: no > ")
            while "\n" not in heard:
                heard += self._read(deadline_ns, patrol)
            answer, _, heard = heard.partition("\n")
            answer = answer.strip().lower()
            if answer in _AGREED:
                return
            if answer.startswith(("n", "q")):
                raise BackendNotReadyError(f"the operator has declined at the prompt ({answer!r}); nothing moves")

    def _forget(self) -> None:
        """Drop what was typed before."""
        import termios  # noqa: PLC0415 - absent on Windows, where there is no such terminal

        termios.tcflush(self._source.fileno(), termios.TCIFLUSH)

    def _say(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()

    def _read(self, deadline_ns: int, patrol: LivenessCheck) -> str:
        """Return what is typed next."""
        descriptor = self._source.fileno()
        while not select.select([descriptor], [], [], POLL_S)[0]:
            patrol()
            if self._clock.now_ns() > deadline_ns:
                raise _silent("at the prompt")
        try:
            typed = os.read(descriptor, _READ_BYTES)
        except OSError:  # the terminal has gone
            typed = b""
        if not typed:
            raise BackendNotReadyError("the operator has declined at the prompt (end of input); nothing moves")
        return typed.decode(errors="replace")


class _Notice:
    """The question, latched on a topic while it stands."""

    def __init__(self, node: Node) -> None:
        self._message = message_class("std_msgs/msg/String")
        self._publisher = node.create_publisher(self._message, REQUEST_TOPIC, _LATCHED)

    @contextmanager
    def standing(self, question: str) -> Iterator[None]:
        """Publish the question; empty in the end."""
        self._publisher.publish(self._message(data=question))
        try:
            yield
        finally:
            self._publisher.publish(self._message(data=""))


class ByTopic:
    """Waits for a std_msgs/Bool that is newer than the question: true agrees, false declines."""

    def __init__(self, topic: str, node: Node, listener: ReceiveThread, clock: Clock) -> None:
        """Subscribe to `topic`."""
        self._name = node.resolve_topic_name(topic)
        self._listener, self._clock = listener, clock
        self._notice = _Notice(node)
        self._asked_ns: int | None = None  # on the system clock; None: nothing is asked
        self._answer: bool | None = None
        listener.subscribe("confirm", "std_msgs/msg/Bool", topic, RELIABLE, self._take)

    def _take(self, arrival: ReceivedMessage) -> None:
        """Take a message, under the listener's lock. One that waited in a queue since before the question is old."""
        received_ns = arrival.info.get("received_timestamp") or arrival.arrival_system_ns
        if self._asked_ns is not None and received_ns > self._asked_ns:
            self._answer = bool(arrival.message.data)

    def ask(self, question: str, deadline_ns: int, patrol: LivenessCheck) -> None:
        """See `Confirmation.ask`."""
        changed = self._listener.condition
        with changed:
            self._asked_ns, self._answer = self._clock.system_ns(), None
        try:
            with self._notice.standing(question), changed:
                while self._answer is None:
                    patrol()
                    left_s = (deadline_ns - self._clock.now_ns()) / NS_PER_S
                    if left_s <= 0.0:
                        raise _silent(f"on {self._name}")
                    changed.wait(min(POLL_S, left_s))
        finally:
            self._asked_ns = None
        if not self._answer:
            raise BackendNotReadyError(f"the operator has declined on {self._name}; nothing moves")


class ByService:
    """Offers a std_srvs/Trigger: who calls it while the question stands agrees."""

    def __init__(self, service: str, node: Node, clock: Clock) -> None:
        """Offer `service`."""
        self._name = node.resolve_service_name(service)
        self._clock = clock
        self._notice = _Notice(node)
        self._is_asked, self._is_answered = threading.Event(), threading.Event()
        node.create_service(message_class("std_srvs/srv/Trigger"), service, self._on_call)

    def _on_call(self, request: Any, response: Any) -> Any:  # noqa: ANN401, ARG002 - generated types
        response.success = self._is_asked.is_set()
        response.message = "the episode may begin" if response.success else "nothing is asked now"
        if response.success:
            self._is_answered.set()
        return response

    def ask(self, question: str, deadline_ns: int, patrol: LivenessCheck) -> None:
        """See `Confirmation.ask`."""
        self._is_answered.clear()
        self._is_asked.set()
        try:
            with self._notice.standing(question):
                self._wait(deadline_ns, patrol)
        finally:
            self._is_asked.clear()

    def _wait(self, deadline_ns: int, patrol: LivenessCheck) -> None:
        while not self._is_answered.wait(POLL_S):
            patrol()
            if self._clock.now_ns() > deadline_ns:
                raise _silent(f"by {self._name}")


def _silent(where: str) -> BackendNotReadyError:
    return BackendNotReadyError(f"nobody confirmed {where} in time; nothing moves")
