"""The embedded simulator in its own process, over ROS 2, in lockstep (`embodied_env.lockstep`).

The module is long because one side of that conversation is told in one place.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.backends.base import Capabilities
from embodied_env.backends.ros.commands import Prepared, prepared_command, prepared_integers
from embodied_env.backends.ros.node import RosNode
from embodied_env.backends.ros.qos import RELIABLE
from embodied_env.backends.ros.receiver import PATROL_S, REPEAT_S
from embodied_env.backends.ros.sensors import SensorBuffer
from embodied_env.backends.ros.simulator_services import SimulatorServices, picture_of
from embodied_env.clock import NS_PER_S, Clock, Stamp
from embodied_env.contract import Contract
from embodied_env.contract.loader import dump_contract
from embodied_env.contract.messages import message_class
from embodied_env.contract.spaces import ActionLayout
from embodied_env.errors import BackendLostError, BackendNotReadyError, ContractError, UsageError
from embodied_env.interrupts import held_interrupts
from embodied_env.large_messages import warn_where_there_is_no_room
from embodied_env.latency.delays import DelaysFile
from embodied_env.latency.injection import DelayModel
from embodied_env.layouts import RawMessage
from embodied_env.lockstep import (
    CLOCK_TOPIC,
    FAULT_TOPIC,
    PICTURE_TOPIC,
    STEP_TOPIC,
    STEPPED_TOPIC,
    ResetReply,
    SimulatorFault,
    Stepped,
    StepToken,
    digest,
)
from embodied_env.processes import Child, simulator
from embodied_env.ros_environment import check_domain_id, check_namespace, own_namespace, timeout_s
from embodied_env.transition import Approved, ResetReport, ResetRequest, Sent, Snapshot
from embodied_env.wire import Feed

_FAULT = "/fault"  # not a sensor's name
_STEPPED = "/stepped"
_PICTURE = "/picture"
_CLOCK = "/clock"
_ENDS = (_STEPPED, _FAULT)  # what the simulator says last: one wait for all that a step brings


@dataclass(frozen=True, kw_only=True)
class _Step:
    """A step that was asked for, kept so that it can be asked for again: its token, and both as they are published."""

    token: StepToken
    message: Any
    commands: list[Any]


class MujocoRosBackend:
    """Lockstep over topics: commands, then a step token out; sensors stamped at the target back in.

    Attributes:
        feed: gets the messages that our node publishes and receives.
    """

    name = "mujoco_ros"
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
        if self.name not in contract.backends:
            raise ContractError(f"backends.{self.name}", "the profile is missing", source=contract.source)
        profile = contract.backends[self.name]
        self._contract = contract
        self._clock = clock
        self._spawn = spawn
        self._namespace = namespace
        self._domain_id = domain_id
        if delays is not None and not spawn:
            raise UsageError("delays are put into a simulator as it starts; allowed: with spawn=True")
        self._delays = None if delays is None else DelaysFile(delays)
        self.step_timeout_s = timeout_s("step_timeout_s", step_timeout_s, profile.get("step_timeout_s", 5.0))
        self.reset_timeout_s = timeout_s("reset_timeout_s", reset_timeout_s, profile.get("reset_timeout_s", 30.0))
        if namespace is not None:
            check_namespace(namespace)
        if domain_id is not None:
            check_domain_id(domain_id, "domain_id")
        self._layout = ActionLayout(contract)
        self._epoch_base = secrets.randbits(62)
        self.feed = Feed()
        self._buffers: dict[str, SensorBuffer] = {}
        self._child: Child | None = None
        self._ros: RosNode | None = None
        self._publishers: list[Any] = []
        self._prepared: list[Prepared] = []  # by actuator, then the step token
        self._step_publisher: Any = None
        self._fault: SimulatorFault | None = None
        self._usable = False
        self._origin_ns = 0
        self._epoch = self._step = 0
        self._stepped: Stepped | None = None  # the last step of this epoch that the simulator acknowledged
        self._last: _Step | None = None
        self._picture: Any = None

    # ------------------------------------------------------------------------------------------ connecting

    def open(self) -> None:
        """Start the simulator when it is ours to start, and create our node."""
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        namespace = self._namespace or (own_namespace() if self._spawn else "/")
        if self._spawn:
            domain = {} if self._domain_id is None else {"ROS_DOMAIN_ID": str(self._domain_id)}
            delays = None if self._delays is None else self._delays.path()
            spec = simulator("-", namespace=namespace, source=self._contract.source, delays=delays)
            self._child = Child(spec, first_line=dump_contract(self._contract), environment=domain)
        else:
            warn_where_there_is_no_room(self._contract)
        self._ros = RosNode(
            "environment", namespace=namespace, clock=self._clock, domain_id=self._domain_id, feed=self.feed
        )
        self._buffers = {name: SensorBuffer(name, sensor) for name, sensor in self._contract.sensors.items()}
        node, receiver = self._ros.node, self._ros.receiver
        for name, sensor in self._contract.sensors.items():
            receiver.subscribe(name, message_class(sensor.type), sensor.topic, raw=True)
        receiver.subscribe(_FAULT, message_class("std_msgs/msg/String"), FAULT_TOPIC)
        receiver.subscribe(_PICTURE, message_class("sensor_msgs/msg/Image"), PICTURE_TOPIC)
        if self.feed.sink is not None:  # nobody else needs it here
            receiver.subscribe(_CLOCK, message_class("rosgraph_msgs/msg/Clock"), CLOCK_TOPIC, raw=True)
        receiver.subscribe(_STEPPED, message_class("std_msgs/msg/Int64MultiArray"), STEPPED_TOPIC, raw=True)
        self._publishers = [
            node.create_publisher(message_class(actuator.type), actuator.topic, RELIABLE)
            for actuator in self._contract.actuators.values()
        ]
        self._step_publisher = node.create_publisher(
            message_class("std_msgs/msg/Int64MultiArray"), STEP_TOPIC, RELIABLE
        )
        actuators, period_s = self._contract.actuators.values(), self._contract.control_period_ns / NS_PER_S
        self._prepared = [prepared_command(actuator, period_s=period_s) for actuator in actuators]
        self._prepared.append(prepared_integers(StepToken.LENGTH + len(actuators)))

    def _connect(self, end: float) -> RosNode:
        """Return our node once the simulator hears and is heard; restart a simulator that has died."""
        if self._ros is None or (self._child is not None and self._child.exit_code is not None):
            self.close()
            self.open()
        ros = self._ros
        if ros is None:
            raise BackendNotReadyError("the node is not open")
        node = ros.node
        listening = [*self._publishers, self._step_publisher]

        def connected() -> bool:
            self._patrol()
            return all(publisher.get_subscription_count() for publisher in listening) and all(
                node.count_publishers(sensor.topic) == 1 for sensor in self._contract.sensors.values()
            )

        if not ros.wait_until(connected, end - time.monotonic()):
            deaf = [publisher.topic_name for publisher in listening if not publisher.get_subscription_count()]
            mute = [s.topic for s in self._contract.sensors.values() if not node.count_publishers(s.topic)]
            shared = [s.topic for s in self._contract.sensors.values() if node.count_publishers(s.topic) > 1]
            if shared and not deaf and not mute:
                raise BackendNotReadyError(f"{shared} have more than one publisher; allowed: the simulator alone")
            raise BackendNotReadyError(
                f"no simulator in namespace {node.get_namespace()}: nobody reads {deaf}, nobody publishes {mute} "
                f"(start one with: embodied-env sim {self._contract.name}; same ROS_DOMAIN_ID?)"
            )
        return ros

    def _patrol(self) -> None:
        """Raise when the simulator that we started has ended."""
        child = self._child
        if child is not None and (code := child.exit_code) is not None:
            words = child.last_words() or "no output"
            raise BackendLostError("simulator_died", f"pid {child.pid} ended with exit code {code}: {words}")

    # ---------------------------------------------------------------------------------------------- reset

    def reset(self, request: ResetRequest, deadline: Stamp) -> Snapshot:
        """Reset the world by seed and options; every sensor is newer than the reset."""
        end = time.monotonic() + self._left_s(deadline)
        self._usable = False
        try:
            ros = self._connect(end)
            self._begin_epoch(ros, request)
            services = SimulatorServices(receiver=ros.receiver, patrol=self._patrol)
            services.set_reset_parameters(self._epoch, request, end)
            reply = services.reset(self._epoch, self._contract.fingerprint, end)
            self._await_first_samples(ros, reply, services, end)
        except (TimeoutError, BackendLostError) as error:
            raise BackendNotReadyError(f"reset: {error}") from None
        if self._child is not None:
            self._child.note_shared_memory()
        self._usable = True
        self._origin_ns = reply.stamp_ns
        report = ResetReport(level="world", seed_applied=request.seed, sampled=reply.sampled, details=reply.details)
        return Snapshot(now_ns=reply.stamp_ns, samples=self._samples(), reset=report)

    def _begin_epoch(self, ros: RosNode, request: ResetRequest) -> None:
        """Forget the last episode, and what of it is still on its way."""
        ros.receiver.take(0.0)
        for buffer in self._buffers.values():
            buffer.clear()
        self._fault = self._last = None
        self._epoch = self._epoch_base + request.epoch
        self._step, self._stepped = 0, None

    def _await_first_samples(self, ros: RosNode, reply: ResetReply, services: SimulatorServices, end: float) -> None:
        """Wait for a sample of the reset from every sensor; ask again for those sent before we were heard."""
        repeat = time.monotonic() + REPEAT_S
        while missing := self._missing():
            if time.monotonic() > end:
                raise TimeoutError(f"no reading newer than the reset from {', '.join(missing)}")
            if time.monotonic() > repeat:
                services.reset(self._epoch, self._contract.fingerprint, end)
                repeat = time.monotonic() + REPEAT_S
            self._take(ros, min(PATROL_S, max(0.0, end - time.monotonic())))
            self._patrol()
        self._check_not_ahead(reply.stamp_ns)
        if old := [name for name, buffer in self._buffers.items() if buffer.stamp_ns < reply.stamp_ns]:
            raise BackendNotReadyError(f"these readings are older than the reset: {', '.join(old)}")

    # ----------------------------------------------------------------------------------------------- step

    @held_interrupts()
    def send(self, command: Approved) -> Sent:
        """Publish one message per actuator."""
        if not isinstance(command, Approved):
            raise TypeError(f"send() takes only Approved, not {type(command).__name__}")
        self._running()
        parts = list(self._layout.split(command.values).values())
        now_ns = self._origin_ns + self._step * self._contract.control_period_ns
        commands = [ready.message(part, now_ns) for ready, part in zip(self._prepared, parts, strict=False)]
        for publisher, message in zip(self._publishers, commands, strict=True):
            publisher.publish(message)
        token = StepToken(epoch=self._epoch, step=self._step + 1, digests=tuple(map(digest, parts)))
        message = self._prepared[-1].message(np.array(token.to_data()))
        self._last = _Step(token=token, message=message, commands=commands)
        return Sent(seq=command.seq, values=command.values)

    def advance(self, target: Stamp, deadline: Stamp) -> None:  # noqa: ARG002 - `read` waits
        """Publish the step token; `read` waits for the world."""
        self._running()
        self._step += 1
        if target.ns != self._origin_ns + self._step * self._contract.control_period_ns:
            raise BackendLostError("out_of_step", f"step {self._step} cannot lead to {target.ns} ns")
        self._publish_token()

    def read(self, after: Stamp, deadline: Stamp) -> Snapshot:
        """Wait until the step has been run, and every reading that it delivered is here."""
        ros = self._running()
        end = time.monotonic() + self._left_s(deadline)
        repeat = time.monotonic() + REPEAT_S
        while missing := self._missing():
            now = time.monotonic()
            if now > end:
                raise BackendLostError("timeout", f"at {after.ns} ns these are missing: {', '.join(missing)}")
            if now > repeat:
                self._publish_again()
                repeat = now + REPEAT_S
            self._take(ros, min(PATROL_S, end - now), () if self._is_acknowledged() else _ENDS)
            if self._fault is not None:
                raise BackendLostError(self._fault.why, self._fault.detail)
            self._patrol()
        self._check_not_ahead(after.ns)
        return Snapshot(now_ns=after.ns, samples=self._samples())

    def _missing(self) -> list[str]:
        """Return whose newest reading, as the simulator told it, is not here yet."""
        if self._stepped is None or not self._is_acknowledged():
            return ["the simulator's acknowledgement"]
        newest = zip(self._buffers.items(), self._stepped.newest, strict=True)
        return [name for (name, buffer), (stamp_ns, number) in newest if not buffer.accept(stamp_ns, number)]

    def _is_acknowledged(self) -> bool:
        return self._stepped is not None and self._stepped.step >= self._step

    def _check_not_ahead(self, now_ns: int) -> None:
        """A reading of the future of this step is one of somebody else's step or reset."""
        ahead = [name for name, buffer in self._buffers.items() if buffer.stamp_ns > now_ns]
        if ahead:
            raise BackendLostError("reset_by_other", f"{', '.join(ahead)} is stamped after {now_ns} ns")

    @held_interrupts()
    def _publish_token(self) -> None:
        if self._last is None:
            raise BackendLostError("no_command", "advance() without a command since the reset")
        self._step_publisher.publish(self._last.message)

    @held_interrupts()
    def _publish_again(self) -> None:
        """Repeat the commands and the token of this step. The simulator knows both: nothing runs twice."""
        if self._last is not None:
            for publisher, message in zip(self._publishers, self._last.commands, strict=True):
                publisher.publish(message)
        self._publish_token()

    def _take(self, ros: RosNode, timeout_s: float, until: Collection[str] = ()) -> None:
        for arrival in ros.receiver.take(timeout_s, until):
            if arrival.key == _STEPPED:
                self._take_acknowledgement(_integers(arrival.message))
            elif arrival.key == _PICTURE:
                self._picture = arrival.message
            elif arrival.key == _FAULT:
                self._take_fault(arrival.message.data)
            elif arrival.key != _CLOCK:
                self._buffers[arrival.key].put(arrival)

    def _take_acknowledgement(self, data: Sequence[int]) -> None:
        stepped = Stepped.from_data(data, len(self._buffers))
        if stepped is None or stepped.epoch != self._epoch or stepped.step > self._step:
            return  # not a simulator's, or not this episode's: anybody may publish here
        if self._stepped is None or stepped.step >= self._stepped.step:
            self._stepped = stepped

    def _take_fault(self, text: str) -> None:
        try:
            fault = SimulatorFault.from_text(text)
        except ValueError:
            return  # not a simulator's: anybody may publish here
        if fault.epoch == self._epoch:
            self._fault = fault

    def _samples(self) -> dict[str, Any]:
        samples = {name: buffer.sample() for name, buffer in self._buffers.items()}
        return {name: sample for name, sample in samples.items() if sample is not None}

    # --------------------------------------------------------------------------------------------- picture

    def render(self) -> NDArray[np.uint8]:
        """Return a picture of the simulator's world as it is now, shape (height, width, 3).

        Raises:
            BackendLostError: when none comes within the time of a step.
            MissingDependencyError: when the simulator cannot render.
        """
        ros, end = self._running(), time.monotonic() + self.step_timeout_s
        self._picture = None
        taken_ns = SimulatorServices(receiver=ros.receiver, patrol=self._patrol).render(end)
        while (picture := picture_of(self._picture, taken_ns)) is None:
            if time.monotonic() > end:
                raise BackendLostError("timeout", "the picture did not come")
            self._take(ros, PATROL_S)
            self._patrol()
        return picture

    # ------------------------------------------------------------------------------------------------ end

    def halt(self, reason: str) -> None:  # noqa: ARG002 - without tokens the world stands still
        """Publish nothing more until the next reset. A simulator of ours is ended; reset starts another."""
        if self._usable and self._child is not None:
            self._child.kill()
        self._usable = False

    def close(self) -> None:
        """Destroy our node and end our simulator."""
        self._usable = False
        ros, self._ros = self._ros, None
        child, self._child = self._child, None
        try:
            if ros is not None:
                ros.close()
        finally:
            if child is not None:
                child.stop()  # after our node: what a killed simulator shared with it is then nobody's
            if self._delays is not None:
                self._delays.remove()

    def processes(self) -> list[dict[str, Any]]:
        """Return the simulator that we started."""
        return [] if self._child is None else [{"role": self._child.role, "pid": self._child.pid}]

    def _running(self) -> RosNode:
        if not self._usable or self._ros is None:
            raise BackendLostError("halted", "the connection was halted, closed, or never reset")
        return self._ros

    def _left_s(self, deadline: Stamp) -> float:
        return max(0.0, (deadline.ns - self._clock.now_ns()) / NS_PER_S)


def _integers(message: Any) -> Sequence[int]:  # noqa: ANN401 - an Int64MultiArray, or its bytes
    data: Sequence[int] = message.decoded().data.tolist() if isinstance(message, RawMessage) else message.data
    return data
