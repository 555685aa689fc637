"""The embedded simulator in its own process, in lockstep over ROS 2 (`simulator_protocol`)."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from embodied_env.backends.backend import Capabilities
from embodied_env.contract import Contract
from embodied_env.contract.json_messages import INVALID_MESSAGE
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.types import ApprovedCommand, ResetRequest, SentCommand, Snapshot, check_approved
from embodied_env.errors import BackendLostError, BackendNotReadyError
from embodied_env.messages.message_types import message_class
from embodied_env.processes.signals import deferred_signals
from embodied_env.ros.embedded_sim.base_backend import EmbeddedSimBackend
from embodied_env.ros.transport.byte_layout import as_message
from embodied_env.ros.transport.fastdds import warn_if_segment_too_small
from embodied_env.ros.transport.message_template import ArrayEncoder, integer_encoder
from embodied_env.ros.transport.node import RosNode
from embodied_env.ros.transport.qos import RELIABLE
from embodied_env.ros.transport.receiver import POLL_S, RETRY_S, ReceivedMessage, Receiver
from embodied_env.ros.wire.command_messages import command_encoder
from embodied_env.ros.wire.simulator_protocol import (
    CLOCK_TOPIC,
    FAULT_TOPIC,
    IMAGE_TOPIC,
    STEP_TOPIC,
    STEPPED_TOPIC,
    ResetReply,
    SimulatorFault,
    StepAck,
    StepRequest,
    command_crc32,
)
from embodied_env.ros.wire.step_arrivals import ExpectedReading, StepArrivals
from embodied_env.timing.clock import NS_PER_S, deadline_to_monotonic_s

_FAULT = "/fault"  # a slash, unlike the names of sensors
_STEPPED = "/stepped"
_IMAGE = "/image"
_CLOCK = "/clock"
_LAST_OF_STEP = (_STEPPED, _FAULT)


class MujocoRosBackend(EmbeddedSimBackend):
    """Backend that publishes commands, then a step token, and receives the step's messages."""

    node_name = "environment"
    capabilities = Capabilities(
        simulated=True,
        exact_step=True,
        pausable=True,
        seedable=True,
        state_query=True,
        transport=True,
        reset_levels=("world",),
        render_modes=("rgb_array", "rgb_array_list"),
    )

    def _prepare(self) -> None:
        self._parts = tuple(ActionLayout(self._contract).slices.values())
        actuators = self._contract.actuators.values()
        self._converted = [(i, a) for i, a in enumerate(actuators) if a.conversion is not None or a.mimic]
        self._inbox = SimulatorInbox(self._contract)
        self._publishers: list[Any] = []  # by actuator
        self._encoders: list[ArrayEncoder] = []
        self._step_publisher: Any = None
        self._step_encoder: Any = None
        self._origin_ns = 0
        self._epoch = 0
        self._commands: list[Any] = []  # messages of the requested step
        self._token: Any = None  # its token; None: no command since the reset

    # ------------------------------------------------------------------------------------------ connection

    def _connect_topics(self, ros: RosNode, namespace: str) -> None:  # noqa: ARG002 - the node is in it
        if not self._spawn:
            warn_if_segment_too_small(self._contract)
        self._inbox.subscribe(ros.receiver, clock=self.feed.sink is not None)
        actuators = [actuator.as_topic() for actuator in self._contract.actuators.values()]
        period_s = self._contract.control_period_ns / NS_PER_S
        self._publishers = [
            ros.node.create_publisher(message_class(actuator.type), actuator.topic, RELIABLE) for actuator in actuators
        ]
        integers = message_class("std_msgs/msg/Int64MultiArray")
        self._step_publisher = ros.node.create_publisher(integers, STEP_TOPIC, RELIABLE)
        self._encoders = [command_encoder(actuator, period_s=period_s) for actuator in actuators]
        self._step_encoder = integer_encoder(StepRequest.LENGTH + len(actuators))

    def _connect(self, end: float) -> RosNode:
        ros = self._reopen_if_ended()
        topics = [sensor.topic for sensor in self._contract.sensors.values()]
        publishers = [*self._publishers, self._step_publisher]
        unmatched = ros.wait_for_peers(publishers, topics, end - time.monotonic(), check_liveness=self._raise_if_exited)
        if unmatched is None:
            return ros
        if unmatched.shared and not unmatched.unread and not unmatched.unpublished:
            raise BackendNotReadyError(f"more than one publisher on {unmatched.shared} (expected only the simulator)")
        missing = f"no subscriber on {unmatched.unread}, no publisher on {unmatched.unpublished}"
        if self._child is not None:
            problem = f"the simulator that was started, process {self._child.pid}, is not ready"
            raise BackendNotReadyError(f"{problem}: {missing}; give it more time with reset_timeout_s")
        command = f"embodied-env sim {self._contract.source or self._contract.name}"
        raise BackendNotReadyError(
            f"no simulator in namespace {ros.node.get_namespace()}: {missing}; "
            f"start one with `{command}` and the same ROS_DOMAIN_ID"
        )

    # ---------------------------------------------------------------------------------------------- reset

    def _reset(self, request: ResetRequest, deadline_ns: int) -> tuple[ResetReply, Snapshot]:
        end = deadline_to_monotonic_s(deadline_ns, self._clock)
        ros = self._connect(end)
        ros.receiver.receive(0.0)  # drops messages of the last episode
        self._commands, self._token = [], None
        self._epoch = self._epoch_base + request.epoch
        self._inbox.start_epoch(self._epoch)
        self._set_reset_parameters(self._epoch, request, end)
        reply = self._reset_simulator(self._epoch, end)
        self._await_first_samples(ros, reply, end)
        self._origin_ns = reply.stamp_ns
        return reply, Snapshot(now_ns=reply.stamp_ns, samples=self._inbox.arrivals.samples())

    def _await_first_samples(self, ros: RosNode, reply: ResetReply, end: float) -> None:
        """Wait for a sample of the reset from each sensor and request lost ones again."""
        repeat = time.monotonic() + RETRY_S
        while missing := self._inbox.missing():
            if time.monotonic() > end:
                raise TimeoutError(f"no reading newer than the reset from {', '.join(missing)}")
            if time.monotonic() > repeat:
                self._reset_simulator(self._epoch, end)
                repeat = time.monotonic() + RETRY_S
            self._inbox.dispatch(ros.receiver.receive(min(POLL_S, max(0.0, end - time.monotonic()))))
            self._raise_if_exited()
        self._check_not_ahead(ros, reply.stamp_ns)
        if old := self._inbox.arrivals.from_past(reply.stamp_ns):
            raise BackendNotReadyError(f"readings older than the reset: {', '.join(old)}")

    # ----------------------------------------------------------------------------------------------- step

    @deferred_signals()
    def send(self, command: ApprovedCommand) -> SentCommand:
        """Publish one message per actuator."""
        check_approved(command)
        self._check_usable()
        parts = [command.values[part] for part in self._parts]
        messages = parts.copy()
        for index, actuator in self._converted:
            messages[index] = actuator.to_driver(parts[index])
            received = actuator.from_driver(messages[index])
            parts[index] = parts[index] if received is None else received
        now_ns = self._origin_ns + self._inbox.step * self._contract.control_period_ns
        self._commands = [encoder.encode(part, now_ns) for encoder, part in zip(self._encoders, messages, strict=True)]
        for publisher, message in zip(self._publishers, self._commands, strict=True):
            publisher.publish(message)
        token = StepRequest(epoch=self._epoch, step=self._inbox.step + 1, digests=tuple(map(command_crc32, parts)))
        self._token = self._step_encoder.encode(np.array(token.to_data()))
        return SentCommand(seq=command.seq, values=command.values)

    def advance(self, target_ns: int, deadline_ns: int) -> None:  # noqa: ARG002 - `read` waits
        """Publish the step token, while `read` waits for the world."""
        self._check_usable()
        self._inbox.step += 1
        if target_ns != self._origin_ns + self._inbox.step * self._contract.control_period_ns:
            raise BackendLostError("out_of_step", f"step {self._inbox.step} does not end at {target_ns} ns")
        self._publish_token()

    def read(self, after_ns: int, deadline_ns: int) -> Snapshot:
        """Wait until the step has been run and all of its readings have arrived."""
        ros = self._check_usable()
        end = deadline_to_monotonic_s(deadline_ns, self._clock)
        repeat = time.monotonic() + RETRY_S
        while missing := self._inbox.missing():
            now = time.monotonic()
            if now > end:
                raise BackendLostError("timeout", f"not received for {after_ns} ns: {', '.join(missing)}")
            if now > repeat:
                self._publish_again()
                repeat = now + RETRY_S
            self._inbox.dispatch(ros.receiver.receive(min(POLL_S, end - now), self._inbox.wake_on))
            self._raise_if_faulted()
            self._raise_if_exited()
        self._check_not_ahead(ros, after_ns)
        return Snapshot(now_ns=after_ns, samples=self._inbox.arrivals.samples())

    def has_arrived(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` for the step's readings, and return whether all have arrived."""
        if self._ros is None or not self._usable:
            return True  # `read` raises
        self._inbox.dispatch(self._ros.receiver.receive(timeout_s, self._inbox.wake_on))
        return self._inbox.fault is not None or not self._inbox.missing()

    @deferred_signals()
    def _publish_again(self) -> None:
        for publisher, message in zip(self._publishers, self._commands, strict=False):
            publisher.publish(message)
        self._publish_token()

    @deferred_signals()
    def _publish_token(self) -> None:
        if self._token is None:
            raise BackendLostError("no_command", "advance() before the first command since the reset")
        self._step_publisher.publish(self._token)

    def _check_not_ahead(self, ros: RosNode, now_ns: int) -> None:
        """Raise BackendLostError for a reading stamped after `now_ns`, or for the fault behind it."""
        if self._inbox.arrivals.has_future(now_ns):
            self._inbox.dispatch(ros.receiver.receive(POLL_S))  # the simulator reports being moved by another client
            self._raise_if_faulted()
            self._inbox.arrivals.raise_if_future(now_ns)

    def _raise_if_faulted(self) -> None:
        if (fault := self._inbox.fault) is not None:
            raise BackendLostError(fault.why, fault.detail)

    def _receive_images(self, receiver: Receiver) -> Sequence[Any]:
        self._inbox.dispatch(receiver.receive(POLL_S))
        image, self._inbox.image = self._inbox.image, None
        return () if image is None else (image,)


class SimulatorInbox:
    """Checked messages of the current epoch, since any node may publish on the topics.

    Attributes:
        arrivals: the readings.
        step: the step that was requested last; 0: none since the reset.
        fault: the simulator's failure in this epoch, or None.
        image: the newest message with a rendered image, or None.
    """

    def __init__(self, contract: Contract) -> None:
        self.arrivals = StepArrivals(contract.sensors)
        self._epoch = self.step = 0
        self._acknowledged = -1  # the newest step of this epoch that the simulator acknowledged
        self._expected: dict[str, ExpectedReading] = {}  # the readings that the acknowledgement lists
        self.fault: SimulatorFault | None = None
        self.image: Any = None

    def subscribe(self, receiver: Receiver, *, clock: bool) -> None:
        """Subscribe to the simulator's topics and, for recorders, to its `clock`."""
        self.arrivals.subscribe(receiver, lambda _: RELIABLE, raw=True)
        receiver.subscribe(_FAULT, message_class("std_msgs/msg/String"), FAULT_TOPIC)
        receiver.subscribe(_IMAGE, message_class("sensor_msgs/msg/Image"), IMAGE_TOPIC, raw=True)
        if clock:
            receiver.subscribe(_CLOCK, message_class("rosgraph_msgs/msg/Clock"), CLOCK_TOPIC, raw=True)
        receiver.subscribe(_STEPPED, message_class("std_msgs/msg/Int64MultiArray"), STEPPED_TOPIC, raw=True)

    def start_epoch(self, epoch: int) -> None:
        """Discard the messages of the last epoch."""
        self.arrivals.clear()
        self.fault = None
        self._epoch, self.step, self._acknowledged = epoch, 0, -1

    @property
    def wake_on(self) -> Collection[str]:
        """Keys that end the next wait (`Receiver.receive`), one for all messages of a step."""
        return () if self._is_acknowledged() else _LAST_OF_STEP

    def dispatch(self, received: Iterable[ReceivedMessage]) -> None:
        """Store messages that have arrived."""
        for message in received:
            if self.arrivals.add(message):
                continue
            if message.key == _STEPPED:
                self._store_acknowledgement(as_message(message.message).data)
            elif message.key == _IMAGE:
                self.image = as_message(message.message)
            elif message.key == _FAULT:
                try:
                    fault = SimulatorFault.from_text(message.message.data)
                except ValueError as error:
                    fault = SimulatorFault(epoch=self._epoch, why=INVALID_MESSAGE, detail=str(error))
                if fault.epoch == self._epoch:
                    self.fault = fault

    def missing(self) -> list[str]:
        """Return the sensors whose reading of the requested step, as acknowledged, has not arrived."""
        return self.arrivals.missing(self._expected) if self._is_acknowledged() else ["the simulator's acknowledgement"]

    def _is_acknowledged(self) -> bool:
        return self._acknowledged >= self.step

    def _store_acknowledgement(self, data: Any) -> None:  # noqa: ANN401 - an array of Python, or one of numpy
        stepped = StepAck.from_data(data.tolist(), len(self.arrivals.sensors))
        if stepped is None or stepped.epoch != self._epoch or stepped.step > self.step:
            return  # from another node, or of another episode
        if stepped.step >= self._acknowledged:
            self._acknowledged = stepped.step
            self._expected = {
                key: ExpectedReading(earliest_ns=stamp_ns, number=number, stamp_ns=stamp_ns)
                for key, (stamp_ns, number) in zip(self.arrivals.sensors, stepped.newest, strict=True)
            }
