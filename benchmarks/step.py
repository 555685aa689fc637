"""Cost of a step over ROS 2: this environment and hand-written loops, against the same server.

    python benchmarks/step.py [--steps N] [--rounds N] [--extra N ...] [--warm-up N] [--fifo-priority P]
                              [--json FILE]

The server is the node of the embedded simulator over a world without physics (`echo_world.py`), in a process of its
own. Every client publishes a command of six joints and a step token, and waits for all sensors of that instant:

- ``raw WaitSet``: rclpy's private wait set in the caller's thread, bytes are not decoded;
- ``typed WaitSet``: the same with messages, and one array of each: what rclpy can do at best;
- ``spin_once``: a `SingleThreadedExecutor` in the caller's thread, the loop that most people write;
- ``background``: the same executor in a thread, and a Condition, what most ROS environments do;
- ``transport``: our backend alone, which decodes and numbers every sample, without gates and account;
- ``env``: `env.step`, whole, with gates and ledger; ``monitor``: gates only report; ``recorded``: with the recorder;
- ``physics``: the same over the embedded simulator itself.

Each round runs all of them in an order of its own; a ratio is the median of the rounds' ratios of medians, with the
smallest and largest. All take the same commands, and what comes back must be them, bit for bit.

``--extra`` adds so many small sensors (poses), and measures the cost of one more: in time, and in processor time of the
caller. Where the machine has other work, ``--fifo-priority`` puts clients and servers before it.
"""

from __future__ import annotations

import argparse
import array
import contextlib
import functools
import gc
import json
import os
import random
import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import rclpy
from rcl_interfaces.srv import SetParameters
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.node import Node
from rclpy.parameter import Parameter
from rich.console import Console
from rich.table import Table
from std_srvs.srv import Trigger

import embodied_env
from embodied_env.contract import Contract
from embodied_env.contract.loader import dump_contract
from embodied_env.contract.message_types import message_class
from embodied_env.core.clock import NS_PER_S, Stamp, SteadyClock
from embodied_env.core.types import ApprovedCommand, ResetRequest
from embodied_env.ros.embedded_sim.lockstep_backend import MujocoRosBackend
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

RAW, TYPED, SPIN, BACKGROUND = "raw WaitSet", "typed WaitSet", "spin_once", "background"
TRANSPORT, ENV, MONITOR, RECORDED = "transport", "env", "env, monitor", "env, recorded"
PHYSICS, PHYSICS_RECORDED = "physics, env", "physics, recorded"
WIDENED = (TYPED, TRANSPORT, ENV)  # with ``--extra``
TARGETS = ((TYPED, 1.4), (SPIN, 0.7), (BACKGROUND, 0.45))  # of RECORDED to these
END_S = 10.0

Command = Any  # shape (6,)
Message = Any  # a generated type


class Client(Protocol):
    """A client that steps a world."""

    def step(self, command: Command) -> Command:
        """Step, and return the positions of the joints."""
        ...

    def close(self) -> None:
        """End."""
        ...


def with_sensors(contract: Contract, count: int) -> Contract:
    """Return `contract` with so many small sensors more."""
    sensors = {f"extra_{i}": replace(contract.sensors["tcp"], topic=f"extra_{i}") for i in range(count)}
    return replace(contract, sensors={**contract.sensors, **sensors})


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


class Naive:
    """Publishes as one does; how it waits is the subclasses' own."""

    raw = False

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
                message_class(sensor.type), sensor.topic, self.taker(name), RELIABLE, raw=self.raw
            )
            for name, sensor in contract.sensors.items()
        }
        topics = [sensor.topic for sensor in contract.sensors.values()]
        while not all(publisher.get_subscription_count() for publisher in self.publishers) or not all(
            self.node.count_publishers(topic) for topic in topics
        ):
            time.sleep(0.01)
        time.sleep(0.2)  # for the server, to know our subscriptions

    def taker(self, name: str) -> Callable[[Message], None]:
        """Return the callback of a sensor."""
        return lambda message: self.store(name, message)

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
        """Leave."""
        self.node.destroy_node()
        rclpy.shutdown(context=self.context)


class TypedWaitSet(Naive):
    """Waits on a wait set of its subscriptions, in the caller's thread."""

    def wait(self) -> None:
        """Wait for any sensor, until all are there."""
        while not self.complete():
            wait_set = rclpy_implementation.WaitSet(len(self.subscriptions), 0, 0, 0, 0, 0, self.context.handle)
            handles = {name: subscription.handle for name, subscription in self.subscriptions.items()}
            indices = {name: wait_set.add_subscription(handle) for name, handle in handles.items()}
            wait_set.wait(int(END_S * NS_PER_S))
            for name, index in indices.items():
                if wait_set.is_ready("subscription", index):
                    taken = handles[name].take_message(self.subscriptions[name].msg_type, self.raw)
                    self.store(name, taken[0])


class RawWaitSet(TypedWaitSet):
    """The same with bytes: only the stamp and the positions are looked at."""

    raw = True

    def store(self, name: str, message: bytes) -> None:
        """Read the stamp at its offset, and keep the bytes."""
        self.newest_ns[name] = int.from_bytes(message[4:8], "little") * NS_PER_S + int.from_bytes(
            message[8:12], "little"
        )
        self.found[name] = (message,)

    def step(self, command: Command) -> Command:
        """Step; that the bytes of the command are in those of the joints is checked."""
        data = super().step(command)
        if command.tobytes() not in data:
            raise AssertionError("the joints are not where they were commanded to")
        return command


class SpinOnce(Naive):
    """Turns an executor in the caller's thread."""

    def __init__(self, contract: Contract, namespace: str) -> None:
        """Connect."""
        super().__init__(contract, namespace)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)

    def wait(self) -> None:
        """Turn it until all are there."""
        while not self.complete():
            self.executor.spin_once(timeout_sec=END_S)

    def close(self) -> None:
        """Leave."""
        self.executor.shutdown()
        super().close()


class Background(Naive):
    """Turns an executor in a thread, and waits on a Condition."""

    def __init__(self, contract: Contract, namespace: str) -> None:
        """Connect, and begin to turn."""
        self.changed = threading.Condition()
        super().__init__(contract, namespace)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.turn)
        self.thread.start()

    def turn(self) -> None:
        """Turn until the end."""
        while not self.done.is_set():
            self.executor.spin_once(timeout_sec=0.1)

    def store(self, name: str, message: Message) -> None:
        """Store a message and notify the client."""
        with self.changed:
            super().store(name, message)
            self.changed.notify_all()

    def wait(self) -> None:
        """Wait until all are there."""
        with self.changed:
            self.changed.wait_for(self.complete, timeout=END_S)

    def close(self) -> None:
        """Leave."""
        self.done.set()
        self.thread.join()
        self.executor.shutdown()
        super().close()


class Transport:
    """Our backend alone."""

    def __init__(self, contract: Contract, namespace: str) -> None:
        """Connect, and reset."""
        self.clock = SteadyClock()
        self.backend = MujocoRosBackend(contract, clock=self.clock, spawn=False, namespace=namespace)
        self.backend.open()
        self.period_ns = contract.control_period_ns
        self.now_ns = self.backend.reset(ResetRequest(epoch=1, seed=0), self.deadline()).now_ns
        self.seq = 0

    def deadline(self) -> Stamp:
        """Return when to give up."""
        return Stamp(self.clock.now_ns() + int(END_S * NS_PER_S), "steady")

    def step(self, command: Command) -> Command:
        """Send, advance, read."""
        deadline = self.deadline()
        self.seq += 1
        self.now_ns += self.period_ns
        after = Stamp(self.now_ns, "world")
        self.backend.send(ApprovedCommand(values=command, seq=self.seq, epoch=1, report=None))
        self.backend.advance(after, deadline)
        return self.backend.read(after, deadline).samples["joints"].values["position"]

    def close(self) -> None:
        """Leave."""
        self.backend.close()


class Env:
    """`env.step`: the command is an action, what the gates make of it must come back."""

    record = False

    def __init__(self, contract: Contract, namespace: str | None) -> None:
        """Make it, and reset."""
        self.stack = contextlib.ExitStack()
        folder = self.stack.enter_context(tempfile.TemporaryDirectory()) if self.record else None
        how = {} if namespace is None else {"spawn": False, "namespace": namespace}
        self.env = embodied_env.make(contract, backend="mujoco_ros", record=folder, **how)
        self.env.reset(seed=0)
        self.echoes = namespace is not None

    def step(self, command: Command) -> Command:
        """Step; the command is the same as the others', in its own units."""
        observation, _, _, truncated, _ = self.env.step(command)
        if self.echoes and truncated:
            raise AssertionError("the episode ended")
        return observation["joints_position"]

    def applied(self) -> Command:
        """Return what was published in the last step."""
        return self.env.unwrapped.last_transition.report.applied_si

    def close(self) -> None:
        """Leave."""
        self.env.close()
        self.stack.close()


class Recorded(Env):
    """With the recorder."""

    record = True


CLIENTS = {
    RAW: RawWaitSet,
    TYPED: TypedWaitSet,
    SPIN: SpinOnce,
    BACKGROUND: Background,
    TRANSPORT: Transport,
    ENV: Env,
    MONITOR: Env,
    RECORDED: Recorded,
    PHYSICS: Env,
    PHYSICS_RECORDED: Recorded,
}


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


def commands(steps: int) -> np.ndarray:
    """Return small ones, shape (steps, 6): none is stopped by a gate."""
    return 0.05 * np.sin(np.arange(steps)[:, None] / 20 + np.arange(6))


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a client finds its world: of a contract, in a namespace; None: it starts one."""

    contract: Contract
    namespace: str | None


def durations_us(who: str, place: Place, steps: int, warm_up: int) -> tuple[list[float], list[float]]:
    """Return how long each step took, and how long the caller's thread worked in it, us.

    Raises:
        AssertionError: when a step does not bring back what was commanded.
    """
    client = CLIENTS[who](place.contract, place.namespace)
    took, worked = [], []
    try:
        for number, command in enumerate(commands(warm_up + steps)):
            worked_ns, began_ns = time.thread_time_ns(), time.perf_counter_ns()
            positions = client.step(command)
            took_ns, worked_ns = time.perf_counter_ns() - began_ns, time.thread_time_ns() - worked_ns
            wanted = client.applied() if isinstance(client, Env) else command
            if place.namespace is not None and positions.tobytes() != wanted.astype(positions.dtype).tobytes():
                raise AssertionError(f"{who}, step {number}: {positions} came back for {wanted}")
            if number >= warm_up:
                took.append(took_ns / 1e3)
                worked.append(worked_ns / 1e3)
    finally:
        client.close()
    return took, worked


def figures(took: list[float], worked: list[float]) -> dict[str, float]:
    """Return percentiles, us."""
    p50, p95, p99 = np.percentile(took, (50, 95, 99)).tolist()
    return {"p50_us": p50, "p95_us": p95, "p99_us": p99, "worked_us": statistics.median(worked)}


Found = list[dict[str, dict[str, float]]]  # by round, by who


def measure(places: dict[str, Place], steps: int, rounds: int, warm_up: int) -> Found:
    """Run everybody in every round."""
    found: Found = []
    for number in range(rounds):
        gc.collect()
        found.append({})
        for who in random.sample(list(places), len(places)):
            print(f"round {number + 1} of {rounds}: {who}", file=sys.stderr)
            client = who.partition(" + ")[0]
            found[-1][who] = figures(*durations_us(client, places[who], steps, warm_up))
    return found


def ratio(found: Found, who: str, other: str) -> dict[str, float]:
    """Return the median, smallest and largest ratio of the medians in one round."""
    ratios = [each[who]["p50_us"] / each[other]["p50_us"] for each in found]
    return {"ratio": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}


def rows(found: Found, whos: list[str]) -> list[dict[str, object]]:
    """Return the medians of the rounds, and the ratios to the loops."""
    return [
        {
            "who": who,
            **{name: statistics.median(each[who][name] for each in found) for name in found[0][who]},
            **{f"to {other}": ratio(found, who, other) for other, _ in TARGETS},
        }
        for who in whos
    ]


def targets(found: Found) -> dict[str, bool]:
    """Return whether the targets are reached at the median."""
    return {
        f"{RECORDED} <= {most} x {other}": ratio(found, RECORDED, other)["ratio"] <= most for other, most in TARGETS
    }


def slopes(found: Found, extra: list[int]) -> dict[str, dict[str, float]]:
    """Return what one more sensor costs, us: the slope of a line, median of the rounds, least and most."""
    if len(extra) < 2:
        return {}
    slope = {}
    for who in WIDENED:
        for name in ("p50_us", "worked_us"):
            lines = [np.polyfit(extra, [each[f"{who} + {n}"][name] for n in extra], 1)[0] for each in found]
            slope[f"{who}, {name}"] = {"ratio": statistics.median(lines), "least": min(lines), "most": max(lines)}
    return slope


def show(table: list[dict[str, object]], reached: dict[str, bool], slope: dict[str, dict[str, float]]) -> None:
    """Print it for people."""
    console = Console(width=140)
    drawn = Table(title="one step, us", title_justify="left")
    for name in table[0]:
        drawn.add_column(name)
    for row in table:
        drawn.add_row(*(_text(value) for value in row.values()))
    console.print(drawn)
    for name, value in slope.items():
        console.print(f"one more small sensor: {name}: {_text(value)}")
    for target, is_reached in reached.items():
        console.print(f"{target}: {'reached' if is_reached else 'NOT reached'}")


def _text(value: object) -> str:
    if isinstance(value, dict):
        return f"{value['ratio']:.2f} ({value['least']:.2f} to {value['most']:.2f})"
    return f"{value:.0f}" if isinstance(value, float) else str(value)


def long_episodes(contract: Contract) -> Contract:
    """Return `contract` with episodes that do not end here."""
    return replace(contract, episode=replace(contract.episode, horizon_steps=10**6))


def run(steps: int, rounds: int, warm_up: int, extra: list[int]) -> dict[str, Any]:
    """Measure, and return the result."""
    contract = long_episodes(embodied_env.load_contract("arm_reach"))
    monitored = replace(contract, safety=replace(contract.safety, mode="monitor"))
    own = secrets.token_hex(4)
    with contextlib.ExitStack() as servers:

        def place(name: str, served: Contract) -> Place:
            namespace = f"/bench_{own}_{name}"
            servers.enter_context(echo_server(served, namespace))
            return Place(contract=served, namespace=namespace)

        echo = place("echo", contract)
        places = dict.fromkeys((RAW, TYPED, SPIN, BACKGROUND, TRANSPORT, ENV, RECORDED), echo)
        places[MONITOR] = place("monitor", monitored)
        places |= dict.fromkeys((PHYSICS, PHYSICS_RECORDED), Place(contract=contract, namespace=None))
        plain = list(places)
        for count in extra:
            wider = place(f"extra_{count}", with_sensors(contract, count))
            places |= {f"{who} + {count}": wider for who in WIDENED}
        found = measure(places, steps, rounds, warm_up)
    return {
        "steps": steps,
        "rounds": rounds,
        "rows": rows(found, plain),
        "targets": targets(found),
        "one_more_sensor": slopes(found, extra),
    }


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=500, help="of each in each round (default: 500)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: 5)")
    parser.add_argument("--warm-up", type=int, default=100, help="steps that do not count (default: 100)")
    parser.add_argument("--extra", type=int, nargs="*", default=[], help="numbers of small sensors more, e.g. 0 4 12")
    parser.add_argument("--json", metavar="FILE", default=None, help="write the result there too")
    parser.add_argument("--fifo-priority", type=int, default=None, help="SCHED_FIFO for clients and servers, 1 to 99")
    args = parser.parse_args()
    if args.fifo_priority is not None:  # processes and threads inherit it
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(args.fifo_priority))
    result = run(args.steps, args.rounds, args.warm_up, args.extra)
    show(result["rows"], result["targets"], result["one_more_sensor"])
    if args.json is not None:
        Path(args.json).write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
