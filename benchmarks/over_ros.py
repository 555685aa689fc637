"""A step over ROS 2 compared with loops that people write by hand, against the same server.

The server is the node of the embedded simulator over a world without physics (`echo_world.py`), in a process of its
own. Every client publishes a command of six joints and a step token, and waits for all sensors of that instant:

- ``typed WaitSet``: rclpy's private wait set in the caller's thread, and one array of each message: what rclpy can do
  at best;
- ``spin_once``: a `SingleThreadedExecutor` in the caller's thread, the loop that most people write;
- ``env.step``: with gates and account; ``recorded``: with the recorder.

All take the same commands over the same topics, and what comes back must be them, bit for bit. The CPU time is that of
the client's process, the threads of the middleware included.
"""

from __future__ import annotations

import array
import contextlib
import functools
import random
import secrets
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from numpy.typing import NDArray
from rcl_interfaces.srv import SetParameters
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.node import Node
from rclpy.parameter import Parameter
from std_srvs.srv import Trigger

import embodied_env
from embodied_env.contract import Contract
from embodied_env.contract.contract_loader import dump_contract
from embodied_env.messages.message_types import message_class
from embodied_env.processes.child_process import Child, ProcessSpec
from embodied_env.ros.transport.node import RosNode
from embodied_env.ros.transport.qos import RELIABLE
from embodied_env.ros.wire.simulator_protocol import (
    EPOCH_PARAMETER,
    NODE,
    RESET_SERVICE,
    SEED_PARAMETER,
    STEP_TOPIC,
    ResetReply,
    StepRequest,
    command_crc32,
)
from embodied_env.timing.clock import NS_PER_S, SteadyClock

from .arm import endless_arm
from .harness import Case, Samples, durations_us, run_rounds

END_S = 10.0
ECHO_WORLD = Path(__file__).with_name("echo_world.py")

Command = NDArray[np.float64]  # shape (6,)
Message = Any  # a generated type


def measure(*, smoke: bool) -> Samples:
    """Return the median duration of a round's steps, and the mean CPU time of the client, µs."""
    rounds, steps = (3, 250) if smoke else (9, 400)
    contract, namespace = endless_arm(), f"/bench_{secrets.token_hex(4)}"
    clients: dict[str, Callable[[], TypedWaitSet | Env]] = {
        "spin_once": lambda: SpinOnce(contract, namespace),
        "env.step": lambda: Env(contract, namespace),
    }
    if not smoke:
        clients["typed WaitSet"] = lambda: TypedWaitSet(contract, namespace)
        clients["env.step, recorded"] = lambda: Env(contract, namespace, is_recorded=True)
    cases: dict[str, Case] = {name: functools.partial(costs_us, client, steps) for name, client in clients.items()}
    echo = Child(
        ProcessSpec(role="server", arguments=(sys.executable, str(ECHO_WORLD), namespace)),
        first_line=dump_contract(contract),
    )
    try:
        return run_rounds(cases, rounds)
    finally:
        echo.stop()


def costs_us(connect: Callable[[], TypedWaitSet | Env], steps: int, warm_up: int = 60) -> dict[str, float]:
    """Connect, step, check that the joints are where they were sent, and return the costs of a step."""
    commands = 0.05 * np.sin(np.arange(warm_up + steps)[:, None] / 20 + np.arange(6))
    with contextlib.closing(connect()) as client:
        found: list[tuple[Command, Command]] = []

        def step(command: Command) -> None:
            found.append(client.step(command))

        durations_us(step, commands[:warm_up])
        start_s = time.process_time()
        took_us = durations_us(step, commands[warm_up:])
        cpu_s = time.process_time() - start_s
    for positions, sent in found:
        if positions.tobytes() != sent.astype(positions.dtype).tobytes():
            raise AssertionError(f"{type(client).__name__}: {positions} came back for {sent}")
    return {"wall": float(np.median(took_us)), "CPU": cpu_s / steps * 1e6}


class TypedWaitSet:
    """Publishes a command and a token, and waits on a wait set of its subscriptions, in the caller's thread."""

    def __init__(self, contract: Contract, namespace: str) -> None:
        """Reset the world, and connect."""
        self.contract = contract
        self.epoch, self.now_ns = reset(namespace)
        self.count = 0
        self.newest_ns = dict.fromkeys(contract.sensors, 0)
        self.found: dict[str, Any] = {}
        self.context = Context()
        rclpy.init(context=self.context)
        self.node = Node("naive", context=self.context, namespace=namespace)
        (actuator,) = contract.actuators.values()
        self.command_type = message_class(actuator.type)
        self.token_type = message_class("std_msgs/msg/Int64MultiArray")
        self.publishers = [
            self.node.create_publisher(self.command_type, actuator.topic, RELIABLE),
            self.node.create_publisher(self.token_type, STEP_TOPIC, RELIABLE),
        ]
        self.subscriptions = {
            name: self.node.create_subscription(
                message_class(sensor.type), sensor.topic, functools.partial(self.store, name), RELIABLE
            )
            for name, sensor in contract.sensors.items()
        }
        topics = [sensor.topic for sensor in contract.sensors.values()]
        while not all(publisher.get_subscription_count() for publisher in self.publishers) or not all(
            self.node.count_publishers(topic) for topic in topics
        ):
            time.sleep(0.01)
        time.sleep(0.2)  # until the server has discovered our subscriptions

    def store(self, name: str, message: Message) -> None:
        """Read the stamp of a message, and its values as an array."""
        stamp = message.header.stamp
        self.newest_ns[name] = stamp.sec * NS_PER_S + stamp.nanosec
        if hasattr(message, "position"):
            self.found[name] = np.array(message.position), np.array(message.velocity)
        elif hasattr(message, "pose"):
            position = message.pose.position
            self.found[name] = np.array((position.x, position.y, position.z))
        else:
            self.found[name] = np.array((message.range,), dtype=np.float32)

    def step(self, command: Command) -> tuple[Command, Command]:
        """Publish a command and wait, and return the positions of the joints and the command."""
        self.count += 1
        self.now_ns += self.contract.control_period_ns
        message = self.command_type()
        message.data = array.array("d", command.tobytes())
        self.publishers[0].publish(message)
        token = self.token_type()
        data = StepRequest(epoch=self.epoch, step=self.count, digests=(command_crc32(command),)).to_data()
        token.data = array.array("q", data)
        self.publishers[1].publish(token)
        self.wait()
        return self.found["joints"][0], command

    def complete(self) -> bool:
        """Return whether every sensor has reported this step."""
        return min(self.newest_ns.values()) >= self.now_ns

    def wait(self) -> None:
        """Wait for any sensor, until all have reported."""
        while not self.complete():
            wait_set = rclpy_implementation.WaitSet(len(self.subscriptions), 0, 0, 0, 0, 0, self.context.handle)
            handles = {name: subscription.handle for name, subscription in self.subscriptions.items()}
            indices = {name: wait_set.add_subscription(handle) for name, handle in handles.items()}
            wait_set.wait(int(END_S * NS_PER_S))
            for name, index in indices.items():
                if wait_set.is_ready("subscription", index):
                    taken = handles[name].take_message(self.subscriptions[name].msg_type, False)
                    self.store(name, taken[0])

    def close(self) -> None:
        """Disconnect."""
        self.node.destroy_node()
        rclpy.shutdown(context=self.context)


class SpinOnce(TypedWaitSet):
    """Spins an executor in the caller's thread."""

    def __init__(self, contract: Contract, namespace: str) -> None:
        """Connect."""
        super().__init__(contract, namespace)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)

    def wait(self) -> None:
        """Spin until all sensors have reported."""
        while not self.complete():
            self.executor.spin_once(timeout_sec=END_S)

    def close(self) -> None:
        """Disconnect."""
        self.executor.shutdown()
        super().close()


class Env:
    """Client that steps with `env.step`.

    The command is its action, and what the gates make of it must come back.
    """

    def __init__(self, contract: Contract, namespace: str, *, is_recorded: bool = False) -> None:
        """Make it, and reset."""
        self.stack = contextlib.ExitStack()
        folder = self.stack.enter_context(tempfile.TemporaryDirectory()) if is_recorded else None
        self.env = embodied_env.make(contract, backend="mujoco_ros", record=folder, spawn=False, namespace=namespace)
        self.env.reset(seed=0)

    def step(self, command: Command) -> tuple[Command, Command]:
        """Step with the command as an action, and return the positions of the joints and the published command."""
        observation, _, _, truncated, info = self.env.step(command)
        if truncated:
            raise AssertionError(f"the episode ended: {info['end_reason']}")
        return observation["joints_position"], self.env.unwrapped.last_transition.report.applied_si

    def close(self) -> None:
        """Close it, and remove its run."""
        self.env.close()
        self.stack.close()


def reset(namespace: str) -> tuple[int, int]:
    """Reset the world, and return its epoch and its time in ns."""
    ros = RosNode("reset", namespace=namespace, clock=SteadyClock())
    epoch, call = (
        random.getrandbits(62),
        functools.partial(ros.receiver.call, timeout_s=END_S, check_liveness=lambda: None),
    )
    values = {EPOCH_PARAMETER: epoch, SEED_PARAMETER: 0}
    parameters = [Parameter(name, value=value).to_parameter_msg() for name, value in values.items()]
    call(SetParameters, f"{NODE}/set_parameters", SetParameters.Request(parameters=parameters))
    response = call(Trigger, RESET_SERVICE, Trigger.Request())
    ros.close()
    if not response.success:
        raise RuntimeError(f"the simulator could not reset: {response.message}")
    return epoch, ResetReply.from_text(response.message).stamp_ns
