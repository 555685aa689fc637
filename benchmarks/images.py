"""Latency and loss of large messages, with and without the Fast DDS profile, in one run.

    python benchmarks/images.py [--steps N] [--rounds N] [--sizes NAME ...] [--best-effort] [--fifo-priority P]
                                [--json FILE]

A server in a process of its own publishes a frame each time it is asked; the client asks, waits for the frame, and
makes an array of it. The client takes the middleware's bytes (raw), rclpy's message with ``np.frombuffer`` (typed), or
what this package makes of a sensor (ours: checked against the contract, in an array of its own). `profile` selects the
of the two processes had ``embodied_env/large_messages.xml`` when it started: both, only the sender, or none.

Every frame has the number that was asked for in its first bytes, and the last one is compared whole. A frame that has
not come after a second is lost. Every round runs every case in an order of its own, each in fresh processes and in a
ROS 2 domain of its own. A figure is the median of the rounds; `ratio` is the p95 to that of the same client and size
without the profile in the same round: the median, the least and the greatest.
"""

from __future__ import annotations

import argparse
import array
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from embodied_env.ros.fastdds import PROFILE, VARIABLES

WARM_UP = 50
LOST_AFTER_S = 1.0
MOST_LOST = 20
"""Then a run is given up: a second for each of them."""

SIZES: Mapping[str, tuple[int, ...]] = {
    "84x84": (84, 84, 3),
    "640x480": (480, 640, 3),
    "1280x720": (720, 1280, 3),
    "cloud": (83_334, 3),  # points of 12 bytes: 1 MB
}
CLIENTS = ("raw", "typed", "ours")
PROFILES = ("none", "sender", "both")
TARGET = 1.6
"""p95 / p50 at 640x480 with the profile."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One configuration."""

    size: str
    client: str
    profile: str  # processes with the profile


def frame_of(size: str, number: int) -> NDArray[np.uint8]:
    """Return the bytes of the frame sent with this number."""
    count = int(np.prod(SIZES[size]))
    if size == "cloud":
        values = np.linspace(0.0, 1.0, count, dtype="<f4")
        values[0] = number
        return values.view(np.uint8)
    pixels = np.arange(count, dtype=np.uint8)
    pixels[:4] = np.frombuffer(number.to_bytes(4, "little"), np.uint8)
    return pixels


def message_type(size: str) -> Any:  # noqa: ANN401 - a generated type
    from sensor_msgs.msg import Image, PointCloud2  # noqa: PLC0415 - ROS starts in the processes of a run only

    return PointCloud2 if size == "cloud" else Image


def message_of(size: str) -> Any:  # noqa: ANN401 - a generated type
    """Return a message without its bytes."""
    from sensor_msgs.msg import PointField  # noqa: PLC0415

    message = message_type(size)()
    message.header.stamp.sec = 1
    shape = SIZES[size]
    if size == "cloud":
        message.height, message.width, message.point_step = 1, shape[0], 12
        message.row_step, message.is_dense = 12 * shape[0], True
        message.fields = [PointField(name=n, offset=4 * i, datatype=7, count=1) for i, n in enumerate("xyz")]
    else:
        message.height, message.width, message.step, message.encoding = shape[0], shape[1], 3 * shape[1], "rgb8"
    return message


def qos(reliable: bool) -> Any:  # noqa: ANN401, FBT001
    from rclpy.qos import QoSProfile, ReliabilityPolicy  # noqa: PLC0415

    policy = ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT
    return QoSProfile(depth=10, reliability=policy)


def serve(size: str, reliable: bool) -> None:  # noqa: FBT001
    """Publish a frame for each requested number, until standard input ends."""
    from std_msgs.msg import UInt32  # noqa: PLC0415

    from embodied_env.core.clock import SteadyClock  # noqa: PLC0415
    from embodied_env.core.process.child import watch_parent  # noqa: PLC0415
    from embodied_env.ros.node import RosNode  # noqa: PLC0415

    done = threading.Event()
    watch_parent(done.set)
    ros = RosNode("sender", namespace="/", clock=SteadyClock())
    publisher = ros.node.create_publisher(message_type(size), "frame", qos(reliable))
    ros.receiver.subscribe("ask", UInt32, "ask")
    message, flat = message_of(size), frame_of(size, 0)
    while not done.is_set():
        for arrival in ros.receiver.receive(0.2):
            flat[:4] = frame_of_number(size, arrival.message.data)
            data = array.array("B")
            data.frombytes(memoryview(flat))
            message.data = data
            message.header.stamp.nanosec = arrival.message.data
            publisher.publish(message)
    ros.close()


def frame_of_number(size: str, number: int) -> NDArray[np.uint8]:
    """Return the first bytes of the frame of this number."""
    kind = "<f4" if size == "cloud" else "<u4"
    return np.array([number], kind).view(np.uint8)


class Bytes:
    """Takes the middleware's bytes, or rclpy's messages, from its own wait set."""

    def __init__(self, size: str, node: Any, context: Any, profile: Any, *, raw: bool) -> None:  # noqa: ANN401
        """Subscribe."""
        from rclpy.impl.implementation_singleton import rclpy_implementation  # noqa: PLC0415

        self._raw, self._length = raw, frame_of(size, 0).size
        self._mark = np.array([self._length], "<u4").tobytes() * (2 if size == "cloud" else 1)  # row_step, then length
        self._subscription = node.create_subscription(message_type(size), "frame", print, profile, raw=raw)
        self._wait_set = rclpy_implementation.WaitSet(1, 0, 0, 0, 0, 0, context.handle)

    def take(self, timeout_s: float) -> list[NDArray[np.uint8]]:
        """Return the frames that have arrived, without a copy."""
        self._wait_set.clear_entities()
        self._wait_set.add_subscription(self._subscription.handle)
        self._wait_set.wait(round(timeout_s * 1e9))
        frames = []
        while (taken := self._subscription.handle.take_message(self._subscription.msg_type, self._raw)) is not None:
            frames.append(np.frombuffer(taken[0] if self._raw else taken[0].data, np.uint8))
            if self._raw:
                start = taken[0].index(self._mark) + len(self._mark)
                frames[-1] = frames[-1][start : start + self._length]
        return frames


class Ours:
    """Takes the samples of this package: checked against the contract, in a new array."""

    def __init__(self, size: str, ros: Any, *, reliable: bool) -> None:  # noqa: ANN401
        """Subscribe."""
        from embodied_env.ros.sensor_buffer import SensorBuffer  # noqa: PLC0415

        self._buffer, self._receiver = SensorBuffer("frame", sensor_of(size)), ros.receiver
        self._receiver.subscribe("frame", message_type(size), "frame", qos(reliable))

    def take(self, timeout_s: float) -> list[NDArray[np.uint8]]:
        """Return the newest frame, if one has arrived."""
        arrivals = self._receiver.receive(timeout_s)
        for arrival in arrivals:
            self._buffer.add(arrival)
        sample = self._buffer.sample() if arrivals else None
        return [] if sample is None else [each.reshape(-1).view(np.uint8) for each in sample.values.values()]


def sensor_of(size: str) -> Any:  # noqa: ANN401
    """Return the sensor specification, as in a contract."""
    from embodied_env.contract.schema import FieldSpec, SensorSpec  # noqa: PLC0415

    cloud = size == "cloud"
    field = FieldSpec(unit="m" if cloud else "1", shape=SIZES[size], low=0.0, high=1e6 if cloud else 255.0)
    return SensorSpec(
        topic="frame",
        type="sensor_msgs/msg/PointCloud2" if cloud else "sensor_msgs/msg/Image",
        fields={"points" if cloud else "image": field},
        max_age_s=1.0,
        encoding=None if cloud else "rgb8",
    )


def durations(case: Case, steps: int, reliable: bool) -> dict[str, Any]:  # noqa: FBT001
    """In a separate process: request frames; return the latency of each, us, and the number of lost ones."""
    from std_msgs.msg import UInt32  # noqa: PLC0415

    from embodied_env.core.clock import SteadyClock  # noqa: PLC0415
    from embodied_env.ros.node import RosNode  # noqa: PLC0415

    ros = RosNode("client", namespace="/", clock=SteadyClock())
    ask = ros.node.create_publisher(UInt32, "ask", qos(reliable=True))
    client: Any
    if case.client == "ours":
        client = Ours(case.size, ros, reliable=reliable)
    else:
        context = ros.node.context
        client = Bytes(case.size, ros.node, context, qos(reliable), raw=case.client == "raw")
    if not ros.wait_until(lambda: ask.get_subscription_count() > 0 and ros.node.count_publishers("frame") > 0, 20.0):
        raise SystemExit("the sender was not found")
    time.sleep(0.3)  # the server may not have discovered us yet
    took, lost, number = [], 0, 0
    gc.disable()
    while number < WARM_UP + steps and lost <= MOST_LOST:
        number += 1
        start = time.perf_counter_ns()
        ask.publish(UInt32(data=number))
        if _await(client, frame_of_number(case.size, number)):
            took.append(time.perf_counter_ns() - start)
        else:
            lost += 1
    frame = _last(client, ask, case.size, number + 1)
    equal = bool(frame is not None and np.array_equal(frame, frame_of(case.size, number + 1)))
    ros.close()
    values = np.array(took[WARM_UP:] or [np.nan]) / 1e3
    p50, p95, p99 = (float(np.percentile(values, q)) for q in (50, 95, 99))
    return {"p50_us": p50, "p95_us": p95, "p99_us": p99, "lost": lost, "frames": number, "equal": equal}


def _await(client: Any, first: NDArray[np.uint8]) -> bool:  # noqa: ANN401
    end = time.monotonic() + LOST_AFTER_S
    while (left_s := end - time.monotonic()) > 0:
        if any((frame[:4] == first).all() for frame in client.take(left_s)):
            return True
    return False


def _last(client: Any, ask: Any, size: str, number: int) -> NDArray[np.uint8] | None:  # noqa: ANN401
    """Request one more frame, with retries, and return it whole."""
    from std_msgs.msg import UInt32  # noqa: PLC0415

    first = frame_of_number(size, number)
    for _ in range(5):
        ask.publish(UInt32(data=number))
        for frame in client.take(LOST_AFTER_S):
            if (frame[:4] == first).all():
                return frame
    return None


def run(case: Case, steps: int, *, reliable: bool, domain_id: int) -> dict[str, Any]:
    """Run a case in two separate processes."""
    bare = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    bare |= {"ROS_DOMAIN_ID": str(domain_id), "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"}
    roomy = {**bare, **dict.fromkeys(VARIABLES, str(PROFILE))}
    case_json = json.dumps({**asdict(case), "steps": steps, "reliable": reliable})
    command = [sys.executable, str(Path(__file__).resolve())]
    sender = subprocess.Popen(  # noqa: S603 - our own script
        [*command, "--serve", case_json], env=bare if case.profile == "none" else roomy, stdin=subprocess.PIPE
    )
    try:
        done = subprocess.run(  # noqa: S603
            [*command, "--ask", case_json],
            env=roomy if case.profile == "both" else bare,
            stdout=subprocess.PIPE,
            check=True,
        )
    finally:
        sender.communicate()
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure(cases: list[Case], steps: int, rounds: int, *, reliable: bool) -> dict[Case, list[dict[str, Any]]]:
    """Run every case in every round."""
    found: dict[Case, list[dict[str, Any]]] = {case: [] for case in cases}
    for number in range(rounds):
        for place, case in enumerate(random.sample(cases, len(cases))):
            print(f"round {number + 1} of {rounds}: {case}", file=sys.stderr)
            domain_id = 1 + (os.getpid() + place) % 100
            found[case].append(run(case, steps, reliable=reliable, domain_id=domain_id))
    return found


def rows(found: Mapping[Case, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return a row for each case."""
    table = []
    for case, each in found.items():
        row: dict[str, Any] = asdict(case)
        row |= {key: statistics.median(one[key] for one in each) for key in ("p50_us", "p95_us", "p99_us")}
        row |= {key: sum(one[key] for one in each) for key in ("lost", "frames")}
        row["equal"] = all(one["equal"] for one in each)
        row["p95_to_p50"] = statistics.median(one["p95_us"] / one["p50_us"] for one in each)
        without = found.get(Case(size=case.size, client=case.client, profile="none"), [])
        ratios = [one["p95_us"] / other["p95_us"] for one, other in zip(each, without, strict=False)]
        row["ratio"] = [statistics.median(ratios), min(ratios), max(ratios)] if ratios else None
        table.append(row)
    return table


def targets(table: list[dict[str, Any]]) -> dict[str, bool]:
    """Return the results at 640x480 with the profile in both processes."""
    chosen = [row for row in table if (row["size"], row["profile"]) == ("640x480", "both")]
    return {
        f"{row['client']}: p95 <= {TARGET} x p50, none lost": row["p95_to_p50"] <= TARGET and row["lost"] == 0
        for row in chosen
    }


def show(table: list[dict[str, Any]]) -> None:
    """Print a readable table."""
    shown = Table(title="ask for a frame, get an array, us", title_justify="left")
    for name in table[0]:
        shown.add_column(name)
    for row in table:
        shown.add_row(*(_text(value) for value in row.values()))
    console = Console(width=160)
    console.print(shown)
    for target, reached in targets(table).items():
        console.print(f"{target}: {'reached' if reached else 'NOT reached'}")


def _text(value: object) -> str:
    if isinstance(value, list):
        return f"{value[0]:.2f} ({value[1]:.2f} to {value[2]:.2f})"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def main() -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300, help="frames of each case in each round (default: 300)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: 3)")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=list(CLIENTS))
    parser.add_argument("--profiles", nargs="+", choices=PROFILES, default=["none", "both"])
    parser.add_argument("--best-effort", action="store_true", help="frames are sent best effort (default: reliable)")
    parser.add_argument("--fifo-priority", type=int, default=None, help="SCHED_FIFO for both processes, 1 to 99")
    parser.add_argument("--json", type=Path, default=None, help="write the result to this file")
    parser.add_argument("--serve", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--ask", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    for given in filter(None, (args.serve, args.ask)):
        steps, reliable = given.pop("steps"), given.pop("reliable")
        case = Case(**given)
        if args.serve:
            serve(case.size, reliable)
        else:
            print(json.dumps(durations(case, steps, reliable)))
        return 0
    if args.fifo_priority is not None:  # the processes inherit it
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(args.fifo_priority))
    cases = [Case(size=s, client=c, profile=p) for s in args.sizes for c in args.clients for p in args.profiles]
    table = rows(measure(cases, args.steps, args.rounds, reliable=not args.best_effort))
    show(table)
    if args.json is not None:
        what = {"steps": args.steps, "rounds": args.rounds, "reliable": not args.best_effort}
        args.json.write_text(json.dumps({**what, "rows": table, "targets": targets(table)}, indent=2))
    return 0 if all(row["equal"] for row in table) else 1


if __name__ == "__main__":
    raise SystemExit(main())
