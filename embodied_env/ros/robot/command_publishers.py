"""Where the approved commands of a robot go: the seam, and the outlet to the actuators' own topics."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Protocol

from rclpy.duration import Duration
from rclpy.node import Node

from embodied_env.contract import Contract
from embodied_env.contract.message_types import message_class
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.clock import NS_PER_S, Clock
from embodied_env.core.types import ApprovedCommand, SentCommand, check_approved
from embodied_env.errors import BackendNotReadyError
from embodied_env.ros.command_messages import to_command
from embodied_env.ros.qos import command_qos
from embodied_env.ros.receiver import POLL_S, LivenessCheck

_NOW = Duration()
_DELIVERY_NS = NS_PER_S // 2


class CommandSink(Protocol):
    """Where approved commands go."""

    def send(self, command: ApprovedCommand) -> SentCommand:
        """Publish, and return what was really sent."""
        ...


class ActuatorPublishers:
    """The outlet to the actuators' own topics. They know no epochs: a robot obeys the newest message."""

    def __init__(self, contract: Contract, node: Node, clock: Clock) -> None:
        """Create a publisher for each actuator of `contract`."""
        self._clock = clock
        self._layout = ActionLayout(contract)
        self._period_s = contract.control_period_s
        self._publishers = [
            (actuator, node.create_publisher(message_class(actuator.type), actuator.topic, command_qos(actuator)))
            for actuator in contract.actuators.values()
        ]

    def send(self, command: ApprovedCommand) -> SentCommand:
        """Publish one message per actuator, stamped with the system's time."""
        check_approved(command)
        now_ns, parts = self._clock.system_ns(), self._layout.split(command.values)
        for (actuator, publisher), part in zip(self._publishers, parts.values(), strict=True):
            publisher.publish(to_command(actuator, part, stamp_ns=now_ns, period_s=self._period_s))
        return SentCommand(seq=command.seq, values=command.values)

    def flush(self) -> None:
        """Wait a little until the last command has arrived: a publisher that is destroyed takes along what has not."""
        end_ns = self._clock.now_ns() + _DELIVERY_NS
        for _, publisher in self._publishers:
            with contextlib.suppress(RuntimeError):  # the context was shut down by someone else
                while not publisher.wait_for_all_acked(_NOW) and (now_ns := self._clock.now_ns()) < end_ns:
                    self._clock.sleep_until_ns(now_ns + _GLANCE_NS)  # the middleware might hold the interpreter


class DryRunSink:
    """The outlet of a dry run: there is no publisher that a command could leave by."""

    def send(self, command: ApprovedCommand) -> SentCommand:
        """Publish nothing; what was approved stands in the account."""
        check_approved(command)
        return SentCommand(seq=command.seq, values=command.values)


class ServiceCaller:
    """The client of a service; the responses come in by a thread that turns the node (`ReceiveThread`)."""

    def __init__(self, node: Node, kind: str, service: str, clock: Clock) -> None:
        """Create the client of `service`, a name that is resolved in the node's namespace, of the type `kind`."""
        self.name = node.resolve_service_name(service)
        self._clock = clock
        self._client = node.create_client(message_class(kind), service)

    def request(self, **fields: Any) -> Any:  # noqa: ANN401 - generated types
        """Return a request with these fields."""
        return self._client.srv_type.Request(**fields)

    def call(self, deadline_ns: int, patrol: LivenessCheck, request: Any = None) -> Any:  # noqa: ANN401 - a generated type
        """Call once, and return the response.

        Args:
            deadline_ns: of the wait, on the steady clock.
            patrol: called now and then; raises when waiting has no sense any more.
            request: None: one without values.

        Raises:
            BackendNotReadyError: when nobody offers it, or it does not answer in time.
        """
        client, answered = self._client, threading.Event()
        while not client.service_is_ready():
            patrol()
            if (now_ns := self._clock.now_ns()) > deadline_ns:
                raise BackendNotReadyError(f"nobody offers the service {self.name}")
            self._clock.sleep_until_ns(now_ns + _GLANCE_NS)
        future = client.call_async(self.request() if request is None else request)
        future.add_done_callback(lambda _: answered.set())
        while not answered.wait(POLL_S):
            patrol()
            if self._clock.now_ns() > deadline_ns:
                client.remove_pending_request(future)
                raise BackendNotReadyError(f"the service {self.name} did not answer in time")
        return future.result()


class Trigger(ServiceCaller):
    """The client of a std_srvs/Trigger."""

    def __init__(self, node: Node, service: str, clock: Clock) -> None:
        """Create the client of `service`, a name that is resolved in the node's namespace."""
        super().__init__(node, "std_srvs/srv/Trigger", service, clock)


_GLANCE_NS = NS_PER_S // 500  # between two looks whether a service is there, or a command has arrived
