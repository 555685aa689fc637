"""The embedded simulator in its own process, over ROS 2, in lockstep (`embodied_env.ros.embedded_sim.protocol`)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.backends.base import Capabilities
from embodied_env.contract import Contract
from embodied_env.contract.message_types import message_class
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.clock import NS_PER_S, Clock, Stamp, deadline_to_monotonic_s
from embodied_env.core.latency.delay_model import DelayModel, write_delays_file
from embodied_env.core.process.child import simulator
from embodied_env.core.process.signals import deferred_signals
from embodied_env.core.types import ApprovedCommand, ResetRequest, SentCommand, Snapshot, check_approved
from embodied_env.errors import BackendLostError, BackendNotReadyError, UsageError
from embodied_env.ros.command_messages import CommandEncoder, command_encoder, integer_encoder
from embodied_env.ros.embedded_sim.base_backend import EmbeddedSimBackend
from embodied_env.ros.embedded_sim.inbox import SimulatorInbox
from embodied_env.ros.embedded_sim.protocol import (
    STEP_TOPIC,
    ResetReply,
    StepRequest,
    command_crc32,
)
from embodied_env.ros.embedded_sim.services import SimulatorServices
from embodied_env.ros.fastdds import warn_if_segment_too_small
from embodied_env.ros.node import RosNode
from embodied_env.ros.qos import RELIABLE
from embodied_env.ros.receiver import POLL_S, RETRY_S, Receiver


class MujocoRosBackend(EmbeddedSimBackend):
    """Lockstep over topics: commands, then a step token out; sensors stamped at the target back in."""

    capabilities = Capabilities(
        exact_step=True,
        pausable=True,
        seedable=True,
        state_query=True,
        transport=True,
        reset_levels=("world",),
        render_modes=("rgb_array",),
    )

    def __init__(  # noqa: PLR0913 - its options
        self,
        contract: Contract,
        *,
        clock: Clock,
        spawn: bool = True,
        namespace: str | None = None,
        domain_id: int | None = None,
        step_timeout_s: float | None = None,
        reset_timeout_s: float | None = None,
        delays: DelayModel | None = None,
    ) -> None:
        """Prepare; nothing is started.

        Args:
            contract: what both sides run; its fingerprint is compared at every reset.
            clock: stamps arrivals and bounds waits.
            spawn: start a simulator process of our own; False: attach to one that runs.
            namespace: absolute ROS namespace; None: one of our own when we spawn, else the root.
            domain_id: None: ``ROS_DOMAIN_ID``, or 0.
            step_timeout_s: how long a step may take before the simulator counts as lost; None: the profile's.
            reset_timeout_s: how long a reset may take, the start of the process included; None: the profile's.
            delays: are put into the simulator that we start.

        Raises:
            ContractError: when the contract has no profile for this backend.
            UsageError: for a wrong timeout, namespace or domain, or delays of a simulator that is not ours.
        """
        super().__init__(
            contract,
            clock=clock,
            spawn=spawn,
            namespace=namespace,
            domain_id=domain_id,
            step_timeout_s=step_timeout_s,
            reset_timeout_s=reset_timeout_s,
        )
        if delays is not None and not spawn:
            raise UsageError("delays are put into a simulator as it starts; allowed: with spawn=True")
        self._delays = delays
        self._delays_file: Path | None = None
        self._parts = tuple(ActionLayout(contract).slices.values())
        self._inbox = SimulatorInbox(contract)
        self._publishers: list[Any] = []
        self._encoders: list[CommandEncoder] = []  # by actuator, then the step token
        self._step_publisher: Any = None
        self._origin_ns = 0
        self._epoch = 0
        self._commands: list[Any] = []  # of the step that was requested, as they were published
        self._token: Any = None  # and its token; None: there was no command since the reset

    # ------------------------------------------------------------------------------------------ connecting

    def _open(self, namespace: str) -> None:
        if self._spawn:
            if self._delays is not None and self._delays_file is None:
                self._delays_file = write_delays_file(self._delays)
            delays = None if self._delays_file is None else str(self._delays_file)
            self._simulator.start(simulator("-", namespace=namespace, source=self._contract.source, delays=delays))
        else:
            warn_if_segment_too_small(self._contract)
        ros = self._create_node("environment", namespace)
        node = ros.node
        self._inbox.subscribe(ros.receiver, clock=self.feed.sink is not None)
        self._publishers = [
            node.create_publisher(message_class(actuator.type), actuator.topic, RELIABLE)
            for actuator in self._contract.actuators.values()
        ]
        self._step_publisher = node.create_publisher(
            message_class("std_msgs/msg/Int64MultiArray"), STEP_TOPIC, RELIABLE
        )
        actuators, period_s = self._contract.actuators.values(), self._contract.control_period_ns / NS_PER_S
        self._encoders = [command_encoder(actuator, period_s=period_s) for actuator in actuators]
        self._encoders.append(integer_encoder(StepRequest.LENGTH + len(actuators)))

    def _connect(self, end: float) -> RosNode:
        """Return our node once it is matched with the simulator."""
        ros = self._reopen_if_ended()
        topics = [sensor.topic for sensor in self._contract.sensors.values()]
        unmatched = ros.wait_for_peers(
            [*self._publishers, self._step_publisher],
            topics,
            end - time.monotonic(),
            patrol=self._simulator.raise_if_exited,
        )
        if unmatched is None:
            return ros
        if unmatched.shared and not unmatched.unread and not unmatched.unpublished:
            raise BackendNotReadyError(f"{unmatched.shared} have more than one publisher; allowed: the simulator alone")
        raise BackendNotReadyError(
            f"no simulator in namespace {ros.node.get_namespace()}: nobody reads {unmatched.unread}, "
            f"nobody publishes {unmatched.unpublished} "
            f"(start one with: embodied-env sim {self._contract.name}; same ROS_DOMAIN_ID?)"
        )

    # ---------------------------------------------------------------------------------------------- reset

    def _reset(self, request: ResetRequest, deadline: Stamp) -> tuple[ResetReply, Snapshot]:
        end = deadline_to_monotonic_s(deadline, self._clock)
        ros = self._connect(end)
        self._begin_epoch(ros, request)
        services = self._services()
        services.set_reset_parameters(self._epoch, request, end)
        reply = services.reset(self._epoch, self._contract.fingerprint, end)
        self._await_first_samples(ros, reply, services, end)
        self._origin_ns = reply.stamp_ns
        return reply, Snapshot(now_ns=reply.stamp_ns, samples=self._inbox.arrivals.samples())

    def _begin_epoch(self, ros: RosNode, request: ResetRequest) -> None:
        """Forget the last episode, and what of it is still on its way."""
        ros.receiver.receive(0.0)
        self._commands, self._token = [], None
        self._epoch = self._epoch_base + request.epoch
        self._inbox.start_epoch(self._epoch)

    def _await_first_samples(self, ros: RosNode, reply: ResetReply, services: SimulatorServices, end: float) -> None:
        """Wait for a sample of the reset from every sensor; ask again for those sent before we were heard."""
        repeat = time.monotonic() + RETRY_S
        while missing := self._inbox.missing():
            if time.monotonic() > end:
                raise TimeoutError(f"no reading newer than the reset from {', '.join(missing)}")
            if time.monotonic() > repeat:
                services.reset(self._epoch, self._contract.fingerprint, end)
                repeat = time.monotonic() + RETRY_S
            self._inbox.dispatch(ros.receiver.receive(min(POLL_S, max(0.0, end - time.monotonic()))))
            self._simulator.raise_if_exited()
        self._check_not_ahead(ros, reply.stamp_ns)
        if old := self._inbox.arrivals.from_past(reply.stamp_ns):
            raise BackendNotReadyError(f"these readings are older than the reset: {', '.join(old)}")

    # ----------------------------------------------------------------------------------------------- step

    @deferred_signals()
    def send(self, command: ApprovedCommand) -> SentCommand:
        """Publish one message per actuator."""
        check_approved(command)
        self._check_usable()
        parts = [command.values[part] for part in self._parts]
        now_ns = self._origin_ns + self._inbox.step * self._contract.control_period_ns
        self._commands = [encoder.encode(part, now_ns) for encoder, part in zip(self._encoders, parts, strict=False)]
        for publisher, message in zip(self._publishers, self._commands, strict=True):
            publisher.publish(message)
        token = StepRequest(epoch=self._epoch, step=self._inbox.step + 1, digests=tuple(map(command_crc32, parts)))
        self._token = self._encoders[-1].encode(np.array(token.to_data()))
        return SentCommand(seq=command.seq, values=command.values)

    def advance(self, target: Stamp, deadline: Stamp) -> None:  # noqa: ARG002 - `read` waits
        """Publish the step token; `read` waits for the world."""
        self._check_usable()
        self._inbox.step += 1
        if target.ns != self._origin_ns + self._inbox.step * self._contract.control_period_ns:
            raise BackendLostError("out_of_step", f"step {self._inbox.step} cannot lead to {target.ns} ns")
        self._publish_token()

    def read(self, after: Stamp, deadline: Stamp) -> Snapshot:
        """Wait until the step has been run, and every reading that it delivered is here."""
        ros = self._check_usable()
        end = deadline_to_monotonic_s(deadline, self._clock)
        repeat = time.monotonic() + RETRY_S
        while missing := self._inbox.missing():
            now = time.monotonic()
            if now > end:
                raise BackendLostError("timeout", f"at {after.ns} ns these are missing: {', '.join(missing)}")
            if now > repeat:
                self._publish_again()
                repeat = now + RETRY_S
            self._inbox.dispatch(ros.receiver.receive(min(POLL_S, end - now), self._inbox.wake_on))
            self._raise_if_faulted()
            self._simulator.raise_if_exited()
        self._check_not_ahead(ros, after.ns)
        return Snapshot(now_ns=after.ns, samples=self._inbox.arrivals.samples())

    def _check_not_ahead(self, ros: RosNode, now_ns: int) -> None:
        """Raise BackendLostError for a reading of the future; a fault that explains it comes first."""
        if self._inbox.arrivals.has_future(now_ns):
            self._inbox.dispatch(ros.receiver.receive(POLL_S))  # a simulator that another client moved reports it
            self._raise_if_faulted()
            self._inbox.arrivals.raise_if_future(now_ns)

    def _raise_if_faulted(self) -> None:
        if (fault := self._inbox.fault) is not None:
            raise BackendLostError(fault.why, fault.detail)

    @deferred_signals()
    def _publish_token(self) -> None:
        if self._token is None:
            raise BackendLostError("no_command", "advance() without a command since the reset")
        self._step_publisher.publish(self._token)

    @deferred_signals()
    def _publish_again(self) -> None:
        """Repeat the commands and the token of this step. The simulator knows both: nothing runs twice."""
        for publisher, message in zip(self._publishers, self._commands, strict=False):
            publisher.publish(message)
        self._publish_token()

    # ---------------------------------------------------------------------------------------- picture, end

    def render(self) -> NDArray[np.uint8]:
        """Return a picture (`EmbeddedSimBackend.render`); raises BackendLostError before the first reset."""
        self._check_usable()
        self._inbox.picture = None
        return super().render()

    def _receive_pictures(self, receiver: Receiver) -> Sequence[Any]:
        self._inbox.dispatch(receiver.receive(POLL_S))
        return () if self._inbox.picture is None else (self._inbox.picture,)

    def close(self) -> None:
        """Destroy our node, end our simulator, and remove the file of its delays."""
        try:
            super().close()
        finally:
            if self._delays_file is not None:
                self._delays_file.unlink(missing_ok=True)
                self._delays_file = None
