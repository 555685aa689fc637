"""ROS 2 node that hosts a world in lockstep, with one step per token.

The protocol is that of `simulator_protocol`. rclpy's private wait set takes every message that has arrived in one
wake-up, and an executor runs everything else. It may take messages too, since the callbacks accept them in any order.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from embodied_env.contract import Contract, FloatArray
from embodied_env.core.types import Sample
from embodied_env.errors import BackendLostError, UsageError
from embodied_env.messages.declaration import set_stamp
from embodied_env.messages.message_types import message_class
from embodied_env.ros.transport.byte_layout import LayoutDecoder
from embodied_env.ros.transport.message_template import MessageTemplate, Numbers, integer_encoder
from embodied_env.ros.transport.setup_checks import rclpy_import_errors
from embodied_env.ros.wire.simulator_protocol import (
    ANY_EPOCH,
    CLOCK_TOPIC,
    EPOCH_PARAMETER,
    SimulatorFault,
    StepAck,
    StepRequest,
    command_crc32,
)
from embodied_env.sim.world import World
from embodied_env.timing.clock import NS_PER_S

with rclpy_import_errors("the embedded simulator over ROS 2"):
    from rclpy.context import Context
    from rclpy.executors import Executor
    from rclpy.impl.implementation_singleton import rclpy_implementation

    from embodied_env.ros.embedded_sim.base_node import SPIN_TIMEOUT_S, WorldNode, node_with_executor
    from embodied_env.ros.transport.qos import RELIABLE

_Command = tuple[int, FloatArray]  # its digest, its values
_MAX_COMMANDS = 64  # per actuator: those of the next step, and those of other nodes
_IDLE_WAITS = 10  # waits without a message before the executor is spun


class SimulatorNode(WorldNode):
    """Hosts one world in lockstep."""

    def __init__(self, contract: Contract, world: World, *, namespace: str | None, context: Context) -> None:
        """Create the node, its topics and its services."""
        self._epoch = ANY_EPOCH
        self._step = 0
        self._token: StepRequest | None = None
        self._reply = ""
        self._commands: list[deque[_Command]] = [deque(maxlen=_MAX_COMMANDS) for _ in contract.actuators]
        super().__init__(contract, world, namespace=namespace, context=context, default_seed=0)
        node = self.node
        self._published_ns = dict.fromkeys(self._sensors, -1)
        self._numbers = dict.fromkeys(self._sensors, 0)
        self._clock = node.create_publisher(message_class("rosgraph_msgs/msg/Clock"), CLOCK_TOPIC, RELIABLE)
        self._clock_template = MessageTemplate(_clock_message, {})
        self._ack_encoder = integer_encoder(2 + 2 * len(self._sensors))
        self._fault = node.create_publisher(message_class("std_msgs/msg/String"), "~/fault", RELIABLE)
        integers = message_class("std_msgs/msg/Int64MultiArray")
        self._stepped = node.create_publisher(integers, "~/stepped", RELIABLE)
        self._token_decoder = LayoutDecoder(integers)
        self.token_subscription = node.create_subscription(integers, "~/step", self._on_token, RELIABLE, raw=True)

    def _stamp_ns(self, world_ns: int) -> int:
        return world_ns

    def _reset(self, epoch: int, seed: int, options: str) -> str:
        """Reset once per epoch, and repeat reply and readings for a repeated request."""
        if epoch == ANY_EPOCH:
            raise UsageError(f"no epoch for the reset; set the parameter {EPOCH_PARAMETER} first")
        if epoch != self._epoch:
            reply = self._reset_world(epoch, seed, options)
            self._publish_fault("reset_by_other", "the simulator was reset by another client")
            self._epoch, self._step, self._token = epoch, 0, None
            for commands in self._commands:
                commands.clear()
            self._reply = reply.to_text()
        self._publish(self._world.read(), again=True)
        return self._reply

    def _take_command(self, index: int, command: FloatArray | None) -> None:
        if command is not None:
            self._commands[index].append((command_crc32(command), command))
            self._try_step()

    def _on_token(self, data: bytes) -> None:
        message = self._token_decoder.decode(data)
        token = None if message is None else StepRequest.from_data(message.decoded().data.tolist())
        if token is None or token.epoch != self._epoch or len(token.digests) != len(self._commands):
            return
        if token.step == self._step:
            self._publish(self._world.read(), again=True)  # our messages may have been lost
        elif token.step == self._step + 1:
            self._token = token
            self._try_step()

    def _try_step(self) -> None:
        token = self._token
        if token is None:
            return
        chosen = []
        for commands, digest in zip(self._commands, token.digests, strict=True):
            values = next((values for found, values in commands if found == digest), None)
            if values is None:
                return
            chosen.append(values)
        foreign = 0
        for commands, digest in zip(self._commands, token.digests, strict=True):
            while commands.popleft()[0] != digest:
                foreign += 1
        if foreign:
            self.node.get_logger().warning(f"ignored {foreign} commands that are not listed in the step token")
        self._token = None
        self._step = token.step
        self._world.command(np.concatenate(chosen))
        try:
            self._world.step()
            samples = self._valid_samples()
        except BackendLostError as error:
            self._publish_fault(error.why, str(error))
            return
        self._publish(samples, again=False)

    def _publish_fault(self, why: str, detail: str) -> None:
        fault = SimulatorFault(epoch=self._epoch, why=why, detail=detail)
        self._fault.publish(message_class("std_msgs/msg/String")(data=fault.to_text()))

    def _publish(self, samples: Mapping[str, Sample], *, again: bool) -> None:
        """Publish the clock, the new samples (all with `again`) and the acknowledgement."""
        messages = [(self._clock, self._clock_template.encode({}, self._world.now_ns))]
        for name, sample in samples.items():
            if again or sample.stamp_ns > self._published_ns[name]:
                self._published_ns[name] = sample.stamp_ns
                self._numbers[name] += 1
                messages.append((self._sensors[name], self._message(name, sample)))
        newest = tuple(zip(self._published_ns.values(), self._numbers.values(), strict=True))
        stepped = StepAck(epoch=self._epoch, step=self._step, newest=newest).to_data()
        messages.append((self._stepped, self._ack_encoder.encode(np.array(stepped))))
        for publisher, message in messages:  # back to back, so that a process that waits for all of them wakes up once
            publisher.publish(message)


def _clock_message(numbers: Numbers, stamp_ns: int) -> Any:  # noqa: ANN401, ARG001 - a generated type; it has no numbers
    clock = message_class("rosgraph_msgs/msg/Clock")()
    set_stamp(clock.clock, stamp_ns)
    return clock


def run_simulator(
    contract: Contract,
    world: World,
    *,
    namespace: str | None,
    stop: threading.Event,
    on_ready: Callable[[str], None] = lambda _namespace: None,
) -> None:
    """Host `world` in lockstep until `stop` is set, as `run_free_running` does."""
    make = functools.partial(SimulatorNode, contract, world, namespace=namespace)
    with node_with_executor(contract, make, fast=False) as (simulator, executor):
        on_ready(simulator.node.get_namespace())
        _spin_by_wait_set(simulator, executor, stop)


def _spin_by_wait_set(simulator: SimulatorNode, executor: Executor, stop: threading.Event) -> None:
    """Spin a node by a wait set, and its executor after a request or an idle period."""
    subscriptions = [*simulator.command_subscriptions, simulator.token_subscription]  # raw, served in this order
    services, context = list(simulator.node.services), simulator.node.context.handle
    wait_set = rclpy_implementation.WaitSet(len(subscriptions), 0, 0, 0, len(services), 0, context)
    idle = 0
    while not stop.is_set():
        wait_set.clear_entities()
        for subscription in subscriptions:
            wait_set.add_subscription(subscription.handle)
        for service in services:
            wait_set.add_service(service.handle)
        wait_set.wait(round(SPIN_TIMEOUT_S * NS_PER_S))
        is_requested = bool(wait_set.get_ready_entities("service"))
        idle += 1
        for subscription in subscriptions:
            for _ in range(RELIABLE.depth):
                taken = subscription.handle.take_message(subscription.msg_type, True)
                if taken is None:
                    break
                subscription.callback(taken[0])
                idle = 0
        if is_requested or idle == _IDLE_WAITS:
            idle = 0
            executor.spin_once(timeout_sec=0.0)
