"""A step over ROS 2 compared with loops that people write by hand, against the same server.

The server is the node of the embedded simulator over a world without physics (`echo_world.py`), in a process of its
own. Every client publishes a command of six joints and a step token, and waits for all sensors of that instant:

- ``typed WaitSet``: rclpy's private wait set in the caller's thread, and one array of each message: what rclpy can do
  at best;
- ``spin_once``: a `SingleThreadedExecutor` in the caller's thread, the loop that most people write;
- ``background``: the same executor in a thread, and a Condition, what most ROS environments do;
- ``env.step``: with gates and account; ``recorded``: with the recorder; ``8 sensors more``: a server with eight small
  topics more.

All take the same commands, and what comes back must be them, bit for bit.
"""

from __future__ import annotations

import array
import contextlib
import functools
import random
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
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
from embodied_env.contract.loader import dump_contract
from embodied_env.contract.message_types import message_class
from embodied_env.core.clock import NS_PER_S, SteadyClock
from embodied_env.ros.embedded_sim.protocol import (
    EPOCH_PARAMETER,
    NODE,
    RESET_SERVICE,
    SEED_PARAMETER,
    STEP_TOPIC,
    ResetReply,
    StepRequest,
    command_crc32,
)
from embodied_env.ros.node import RosNode
from embodied_env.ros.qos import RELIABLE

from .arm import endless_arm
from .harness import Case, Samples, run_rounds

END_S = 10.0
MORE_SENSORS = 8

Command = NDArray[np.float64]  # shape (6,)
Message = Any  # a generated type


def measure(*, smoke: bool) -> Samples:
    """Return the median of a round's steps, µs."""
    rounds, steps = (3, 250) if smoke else (9, 400)
    contract, own = endless_arm(), secrets.token_hex(4)
    tcp = contract.sensors["tcp"]
    more = {f"extra_{number}": replace(tcp, topic=f"extra_{number}") for number in range(MORE_SENSORS)}
    wide = replace(contract, sensors={**contract.sensors, **more})
    with contextlib.ExitStack() as servers:
        for name, served in (("echo", contract), ("wide", wide)):
            servers.enter_context(echo_server(served, f"/bench_{own}_{name}"))
        own_place, wide_place = (contract, f"/bench_{own}_echo"), (wide, f"/bench_{own}_wide")
        clients: dict[str, Callable[[], Client]] = {
            "spin_once": functools.partial(SpinOnce, *own_place),
            "env.step": functools.partial(Env, *own_place),
        }
        if not smoke:
            clients["typed WaitSet"] = functools.partial(TypedWaitSet, *own_place)
            clients["background"] = functools.partial(Background, *own_place)
            clients["env.step, recorded"] = functools.partial(Env, *own_place, is_recorded=True)
            clients["env.step, 8 sensors more"] = functools.partial(Env, *wide_place)
        cases: dict[str, Case] = {name: functools.partial(p50_us, client, steps) for name, client in clients.items()}
        return run_rounds(cases, rounds)


def p50_us(make_client: Callable[[], Client], steps: int, warm_up: int = 60) -> float:
    """Connect, step, and return the median duration of a step; each must bring back what was commanded."""
    client = make_client()
    commands = 0.05 * np.sin(np.arange(warm_up + steps)[:, None] / 20 + np.arange(6))
    try:
        return float(np.median([client.timed(command) for command in commands][warm_up:]))
    finally:
        client.close()


@contextlib.contextmanager
def echo_server(contract: Contract, namespace: str) -> Iterator[None]:
    """Run `echo_world.py` in another process."""
    command = [sys.executable, str(Path(__file__).with_name("echo_world.py")), namespace]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:  # noqa: S603
        server.stdin.write(dump_contract(contract) + "\n")
        server.stdin.flush()
        server.stdout.readline()
        try:
            yield
        finally:
            server.stdin.close()


class Client:
    """A client that steps a world."""

    def step(self, command: Command) -> Command:
        """Step, and return the positions of the joints."""
        raise NotImplementedError

    def sent(self, command: Command) -> Command:
        """Return what was published for this command."""
        return command

    def close(self) -> None:
        """Disconnect."""
        raise NotImplementedError

    def timed(self, command: Command) -> float:
        """Step, and return the duration, µs; raises AssertionError if the joints are elsewhere."""
        start_ns = time.perf_counter_ns()
        positions = self.step(command)
        took_us = (time.perf_counter_ns() - start_ns) / 1e3
        wanted = self.sent(command)
        if positions.tobytes() != wanted.astype(positions.dtype).tobytes():
            raise AssertionError(f"{type(self).__name__}: {positions} came back for {wanted}")
        return took_us


class Naive(Client):
    """Publishes a command and a token; subclasses wait for the sensors."""

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
        """Read a message: its stamp and its values as an array."""
        stamp = message.header.stamp
        self.newest_ns[name] = stamp.sec * NS_PER_S + stamp.nanosec
        if hasattr(message, "position"):
            self.found[name] = np.array(message.position), np.array(message.velocity)
        elif hasattr(message, "pose"):
            position = message.pose.position
            self.found[name] = np.array((position.x, position.y, position.z))
        else:
            self.found[name] = np.array((message.range,), dtype=np.float32)

    def step(self, command: Command) -> Command:
        """Publish, and wait."""
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
        return self.found["joints"][0]

    def complete(self) -> bool:
        """Return whether every sensor has reported this step."""
        return min(self.newest_ns.values()) >= self.now_ns

    def wait(self) -> None:
        """Wait for every sensor."""
        raise NotImplementedError

    def close(self) -> None:
        """Disconnect."""
        self.node.destroy_node()
        rclpy.shutdown(context=self.context)


class TypedWaitSet(Naive):
    """Waits on a wait set of its subscriptions, in the caller's thread."""

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


class SpinOnce(Naive):
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


class Background(Naive):
    """Spins an executor in a thread, and waits on a Condition."""

    def __init__(self, contract: Contract, namespace: str) -> None:
        """Connect, and start the thread."""
        self.changed = threading.Condition()
        super().__init__(contract, namespace)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.spin)
        self.thread.start()

    def spin(self) -> None:
        """Spin until the end."""
        while not self.done.is_set():
            self.executor.spin_once(timeout_sec=0.1)

    def store(self, name: str, message: Message) -> None:
        """Store a message and notify the client."""
        with self.changed:
            super().store(name, message)
            self.changed.notify_all()

    def wait(self) -> None:
        """Wait until all sensors have reported."""
        with self.changed:
            self.changed.wait_for(self.complete, timeout=END_S)

    def close(self) -> None:
        """Disconnect."""
        self.done.set()
        self.thread.join()
        self.executor.shutdown()
        super().close()


class Env(Client):
    """`env.step`: the command is an action, what the gates make of it must come back."""

    def __init__(self, contract: Contract, namespace: str, *, is_recorded: bool = False) -> None:
        """Make it, and reset."""
        self.stack = contextlib.ExitStack()
        folder = self.stack.enter_context(tempfile.TemporaryDirectory()) if is_recorded else None
        self.env = embodied_env.make(contract, backend="mujoco_ros", record=folder, spawn=False, namespace=namespace)
        self.env.reset(seed=0)

    def step(self, command: Command) -> Command:
        """Step; the command is the same as the others', in its own units."""
        observation, _, _, truncated, info = self.env.step(command)
        if truncated:
            raise AssertionError(f"the episode ended: {info['end_reason']}")
        return observation["joints_position"]

    def sent(self, command: Command) -> Command:  # noqa: ARG002 - the gates may change it
        """Return what was published in the last step."""
        return self.env.unwrapped.last_transition.report.applied_si

    def close(self) -> None:
        """Close it, and remove its run."""
        self.env.close()
        self.stack.close()


def reset(namespace: str) -> tuple[int, int]:
    """Reset the world; return its epoch, and its time, ns."""
    ros = RosNode("reset", namespace=namespace, clock=SteadyClock())
    epoch, call = random.getrandbits(62), functools.partial(ros.receiver.call, timeout_s=END_S, patrol=lambda: None)
    values = {EPOCH_PARAMETER: epoch, SEED_PARAMETER: 0}
    parameters = [Parameter(name, value=value).to_parameter_msg() for name, value in values.items()]
    call(SetParameters, f"{NODE}/set_parameters", SetParameters.Request(parameters=parameters))
    response = call(Trigger, RESET_SERVICE, Trigger.Request())
    ros.close()
    if not response.success:
        raise RuntimeError(f"the simulator could not reset: {response.message}")
    return epoch, ResetReply.from_text(response.message).stamp_ns
