"""Reset a robot by its service, and wait for the operator's confirmation."""

from __future__ import annotations

import os
import select
import sys
from typing import Any, TextIO

from embodied_env.core.terminal import printable
from embodied_env.core.types import ResetReport, ResetRequest
from embodied_env.errors import BackendNotReadyError
from embodied_env.messages.message_types import message_class
from embodied_env.ros.robot.robot_profile import EMULATOR_RESET, ResetSpec
from embodied_env.ros.transport.qos import LATCHED, RELIABLE
from embodied_env.ros.transport.receive_thread import ReceiveThread, ServiceCaller
from embodied_env.ros.transport.receiver import POLL_S, LivenessCheck, ReceivedMessage
from embodied_env.ros.wire.simulator_protocol import ResetReply, reset_parameters
from embodied_env.timing.clock import NS_PER_S, Clock

REQUEST_TOPIC = "~/confirm_request"
"""The pending question (std_msgs/String, latched) for a confirmation by topic or service, empty if none is."""

CONFIRM = "~/confirm"
"""The default name of the topic (std_msgs/Bool), and of the service (std_srvs/Trigger)."""

_CONFIRMED = ("", "y", "yes", "go")
_READ_BYTES = 4096


class ResetService:
    """Calls the reset service of a robot, or of an embedded simulator."""

    def __init__(self, spec: ResetSpec, listener: ReceiveThread, clock: Clock, fingerprint: str) -> None:
        """Create the clients of `spec`, for simulators only with the contract of `fingerprint`."""
        self._level, self._fingerprint = spec.level, fingerprint
        self._origin = "emulator=True" if spec is EMULATOR_RESET else "backends.real.reset.service"
        self._trigger: ServiceCaller | None = None
        self._parameters: ServiceCaller | None = None
        if spec.service is not None:
            self._trigger = ServiceCaller(listener, spec.service, clock)
            if spec.parameters:
                name = f"{spec.service.rpartition('/')[0]}/set_parameters"
                self._parameters = ServiceCaller(listener, name, clock, "rcl_interfaces/srv/SetParameters")

    def call(self, request: ResetRequest, deadline_ns: int) -> ResetReport:
        """Call the service, if any, only once, since a second call may act again.

        Only a service with parameters can use the seed and options of `request`. Raises BackendNotReadyError if the
        service fails or does not respond by `deadline_ns` (steady clock), or if a simulator runs another contract.
        """
        reply: ResetReply | None = None
        try:
            if self._parameters is not None:
                self._set_parameters(self._parameters, request, deadline_ns)
            if self._trigger is not None:
                reply = self._reset(self._trigger, deadline_ns)
        except BackendNotReadyError as error:
            raise BackendNotReadyError(f"{error} ({self._origin})") from None
        has_parameters = self._parameters is not None
        return ResetReport(
            level=self._level,
            seed_applied=request.seed if has_parameters else None,
            sampled={} if reply is None else reply.sampled,
            details={} if reply is None else reply.details,
            ignored=() if has_parameters else tuple(request.options),
            routine="" if self._trigger is None else "service",
        )

    def _set_parameters(self, service: ServiceCaller, request: ResetRequest, deadline_ns: int) -> None:
        parameters = reset_parameters(request)
        results = service.call(deadline_ns, repeat_ns=NS_PER_S, parameters=parameters).results
        if refused := [result.reason for result in results if not result.successful]:
            raise BackendNotReadyError(f"{service.name} refused seed and options: {'; '.join(refused)}")

    def _reset(self, trigger: ServiceCaller, deadline_ns: int) -> ResetReply | None:
        """Call the service and return an embedded simulator's reply, or None for free text."""
        response = trigger.call(deadline_ns)
        if not response.success:
            raise BackendNotReadyError(f"reset service {trigger.name} failed: {response.message}")
        try:
            reply = ResetReply.from_text(response.message)
        except ValueError as error:
            if self._parameters is not None:
                raise BackendNotReadyError(f"reset service {trigger.name} is not an emulator's: {error}") from None
            return None
        if reply.fingerprint != self._fingerprint:
            theirs, ours = reply.fingerprint[:12], self._fingerprint[:12]
            raise BackendNotReadyError(f"the simulator's contract has fingerprint {theirs} (expected {ours})")
        return reply


def make_confirmation(spec: ResetSpec, listener: ReceiveThread, clock: Clock) -> Prompt | RosConfirmation | None:
    """Return the confirmation that the profile declares, or None, before the listener starts."""
    if spec.confirm == "prompt":
        return Prompt(clock, listener.raise_if_failed)
    return None if spec.confirm == "none" else RosConfirmation(spec, listener, clock)


class Prompt:
    """Prompt at the terminal, where Enter confirms and n, q or end of input declines.

    Anything else repeats the prompt. Input must come from a terminal, not a pipe. Input typed before the question is
    discarded.
    """

    def __init__(
        self, clock: Clock, check_liveness: LivenessCheck, *, source: TextIO | None = None, out: TextIO | None = None
    ) -> None:
        """Write to `out`, by default standard error, and read `source`, by default standard input.

        `check_liveness` is called while waiting, and raises an error to end the wait.
        """
        self._clock, self._check_liveness = clock, check_liveness
        self._source = sys.stdin if source is None else source
        self._out = sys.stderr if out is None else out
        try:
            is_terminal = self._source.isatty()
        except (AttributeError, ValueError):  # there is none, or it is closed
            is_terminal = False
        if not is_terminal:
            raise BackendNotReadyError(
                "backends.real.reset.confirm: prompt needs a terminal on standard input; "
                "use a terminal, or set confirm: topic or service"
            )

    def ask(self, question: str, deadline_ns: int) -> None:
        """Show the question, and return when the operator confirms.

        Raises:
            BackendNotReadyError: when the operator declines, or has not responded at `deadline_ns` (steady clock).
        """
        import termios  # noqa: PLC0415 - absent on Windows

        termios.tcflush(self._source.fileno(), termios.TCIFLUSH)
        typed = ""
        self._write(f"{question}\n")
        while True:
            self._write("Enter: confirm; n: decline > ")
            while "\n" not in typed:
                typed += self._read(deadline_ns)
            answer, _, typed = typed.partition("\n")
            answer = answer.strip().lower()
            if answer in _CONFIRMED:
                return
            if answer.startswith(("n", "q")):
                raise BackendNotReadyError(f"the operator declined at the prompt ({answer!r}); the robot does not move")

    def _write(self, text: str) -> None:
        self._out.write(printable(text))
        self._out.flush()

    def _read(self, deadline_ns: int) -> str:
        descriptor = self._source.fileno()
        while not select.select([descriptor], [], [], POLL_S)[0]:
            self._check_liveness()
            if self._clock.now_ns() > deadline_ns:
                raise _unconfirmed("at the prompt")
        try:
            typed = os.read(descriptor, _READ_BYTES)
        except OSError:  # the terminal was closed
            typed = b""
        if not typed:
            raise BackendNotReadyError("the operator declined at the prompt (end of input); the robot does not move")
        return typed.decode(errors="replace")


class RosConfirmation:
    """Publishes the question while it is pending, and waits for an answer by topic or service.

    On the topic (std_msgs/Bool) true confirms and false declines; a call of the service (std_srvs/Trigger) confirms.
    A message must be sent after the question by the clock of its sender, since one that was sent before it may arrive
    later. The listener's lock guards the answer.
    """

    def __init__(self, spec: ResetSpec, listener: ReceiveThread, clock: Clock) -> None:
        """Subscribe to the topic or offer the service that `spec` declares."""
        self._listener, self._clock = listener, clock
        self._asked_ns: int | None = None  # on the system clock; None: no question is pending
        self._answer: bool | None = None
        self._ignored = ""  # why a message that arrived while the question was pending is no answer
        node = listener.node
        if spec.confirm == "topic":
            topic = spec.confirm_topic or CONFIRM
            self._where = f"on {node.resolve_topic_name(topic)}"
            listener.subscribe("confirm", "std_msgs/msg/Bool", topic, RELIABLE, self._on_message)
        else:
            service = spec.confirm_service or CONFIRM
            self._where = f"by {node.resolve_service_name(service)}"
            node.create_service(message_class("std_srvs/srv/Trigger"), service, self._on_call)
        self._message = message_class("std_msgs/msg/String")
        self._publisher = node.create_publisher(self._message, REQUEST_TOPIC, LATCHED)

    def ask(self, question: str, deadline_ns: int) -> None:
        """Publish the question, and return or raise as `Prompt.ask` does."""
        with self._listener.condition:
            self._asked_ns, self._answer, self._ignored = self._clock.system_ns(), None, ""
        try:
            self._publisher.publish(self._message(data=question))
            if not self._listener.wait_until(lambda: self._answer is not None, deadline_ns):
                raise _unconfirmed(self._where, self._ignored)
        finally:
            self._asked_ns = None
            self._publisher.publish(self._message(data=""))
        if not self._answer:
            raise BackendNotReadyError(f"the operator declined {self._where}; the robot does not move")

    def _on_message(self, arrival: ReceivedMessage) -> None:
        if self._asked_ns is None:
            return
        sent_ns = arrival.info.get("source_timestamp") or 0  # of the system clock of the sender, 0 if not supported
        received_ns = arrival.info.get("received_timestamp") or arrival.arrival_system_ns
        if min(sent_ns or received_ns, received_ns) > self._asked_ns:
            self._answer = bool(arrival.message.data)
        elif sent_ns:
            self._ignored = (
                f"; a message was ignored since it was sent {(self._asked_ns - sent_ns) / NS_PER_S:.3f} s before the "
                "question by the clock of its sender (confirm after the question, with synchronized clocks)"
            )

    def _on_call(self, request: Any, response: Any) -> Any:  # noqa: ANN401, ARG002 - generated types
        with self._listener.condition:
            response.success = self._asked_ns is not None
            response.message = "confirmed" if response.success else "no question is pending"
            if response.success:
                self._answer = True
                self._listener.condition.notify_all()
        return response


def _unconfirmed(where: str, ignored: str = "") -> BackendNotReadyError:
    return BackendNotReadyError(f"no confirmation {where} in time{ignored}; the robot does not move")
