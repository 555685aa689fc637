"""Latency and loss of large messages, with and without the Fast DDS profile.

A server in a process of its own publishes a frame each time it is asked; the client asks, waits for the frame, and
takes what this package makes of a sensor: an array, checked against the contract. With the profile, both processes have
``embodied_env/large_messages.xml`` when they start. Every frame has the number that was asked for in its first bytes,
and the last one is compared whole. A frame that has not come after a second is lost. Each case runs in fresh processes
and in a ROS 2 domain of its own.

    python -m benchmarks.images serve|ask SIZE STEPS

is what those processes run.
"""

from __future__ import annotations

import array
import functools
import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.ros.fastdds import PROFILE, VARIABLES

from .harness import Samples, run_rounds

WARM_UP = 50
LOST_AFTER_S = 1.0
MOST_LOST = 20
"""Then a run is given up: a second for each of them."""

SIZES: Mapping[str, tuple[int, ...]] = {
    "640x480": (480, 640, 3),
    "1280x720": (720, 1280, 3),
    "cloud of 1 MB": (83_334, 3),  # points of 12 bytes
}
CLOUD = "cloud of 1 MB"


def measure(*, smoke: bool) -> Samples:
    """Return percentiles, µs, and the number of lost frames in each round."""
    sizes, rounds, steps = (("640x480",), 2, 20) if smoke else (tuple(SIZES), 5, 300)
    cases = {
        f"{size}, {name}": functools.partial(run, size, steps, has_profile=name == "profile")
        for size in sizes
        for name in ("no profile", "profile")
    }
    return run_rounds(cases, rounds)


def run(size: str, steps: int, *, has_profile: bool) -> dict[str, float]:
    """Run a case in two processes."""
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    domain = {"ROS_DOMAIN_ID": str(1 + time.time_ns() % 100), "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"}
    environment |= domain | (dict.fromkeys(VARIABLES, str(PROFILE)) if has_profile else {})
    folder, script = Path(__file__).parents[1], [sys.executable, "-m", "benchmarks.images"]
    arguments = [size, str(steps)]
    sender = subprocess.Popen([*script, "serve", *arguments], cwd=folder, env=environment, stdin=subprocess.PIPE)  # noqa: S603
    try:
        asked = [*script, "ask", *arguments]
        done = subprocess.run(asked, cwd=folder, env=environment, stdout=subprocess.PIPE, check=True)  # noqa: S603
    finally:
        sender.communicate()
    found: dict[str, float] = json.loads(done.stdout)
    return found


def frame_of(size: str, number: int) -> NDArray[np.uint8]:
    """Return the bytes of the frame sent with this number."""
    count = int(np.prod(SIZES[size]))
    if size == CLOUD:
        values = np.linspace(0.0, 1.0, count, dtype="<f4")
        values[0] = number
        return values.view(np.uint8)
    pixels = np.arange(count, dtype=np.uint8)
    pixels[:4] = np.frombuffer(number.to_bytes(4, "little"), np.uint8)
    return pixels


def message_type(size: str) -> Any:  # noqa: ANN401 - a generated type
    from sensor_msgs.msg import Image, PointCloud2  # noqa: PLC0415 - ROS starts in the processes of a run only

    return PointCloud2 if size == CLOUD else Image


def message_of(size: str) -> Any:  # noqa: ANN401 - a generated type
    """Return a message without its bytes."""
    from sensor_msgs.msg import PointField  # noqa: PLC0415

    message = message_type(size)()
    message.header.stamp.sec = 1
    shape = SIZES[size]
    if size == CLOUD:
        message.height, message.width, message.point_step = 1, shape[0], 12
        message.row_step, message.is_dense = 12 * shape[0], True
        message.fields = [PointField(name=n, offset=4 * i, datatype=7, count=1) for i, n in enumerate("xyz")]
    else:
        message.height, message.width, message.step, message.encoding = shape[0], shape[1], 3 * shape[1], "rgb8"
    return message


def qos() -> Any:  # noqa: ANN401
    from rclpy.qos import QoSProfile, ReliabilityPolicy  # noqa: PLC0415

    return QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)


def serve(size: str) -> None:
    """Publish a frame for each requested number, until standard input ends."""
    from std_msgs.msg import UInt32  # noqa: PLC0415

    from embodied_env.core.clock import SteadyClock  # noqa: PLC0415
    from embodied_env.core.process.child import watch_parent  # noqa: PLC0415
    from embodied_env.ros.node import RosNode  # noqa: PLC0415

    done = threading.Event()
    watch_parent(done.set)
    ros = RosNode("sender", namespace="/", clock=SteadyClock())
    publisher = ros.node.create_publisher(message_type(size), "frame", qos())
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
    kind = "<f4" if size == CLOUD else "<u4"
    return np.array([number], kind).view(np.uint8)


class Frames:
    """Takes the samples of this package: checked against the contract, in a new array."""

    def __init__(self, size: str, ros: Any) -> None:  # noqa: ANN401
        """Subscribe."""
        from embodied_env.ros.sensor_buffer import SensorBuffer  # noqa: PLC0415

        self._buffer, self._receiver = SensorBuffer("frame", sensor_of(size)), ros.receiver
        self._receiver.subscribe("frame", message_type(size), "frame", qos())

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

    cloud = size == CLOUD
    field = FieldSpec(unit="m" if cloud else "1", shape=SIZES[size], low=0.0, high=1e6 if cloud else 255.0)
    return SensorSpec(
        topic="frame",
        type="sensor_msgs/msg/PointCloud2" if cloud else "sensor_msgs/msg/Image",
        fields={"points" if cloud else "image": field},
        max_age_s=1.0,
        encoding=None if cloud else "rgb8",
    )


def durations(size: str, steps: int) -> dict[str, float]:
    """Request frames; return percentiles of their latency, µs, and the number of lost ones."""
    from std_msgs.msg import UInt32  # noqa: PLC0415

    from embodied_env.core.clock import SteadyClock  # noqa: PLC0415
    from embodied_env.ros.node import RosNode  # noqa: PLC0415

    ros = RosNode("client", namespace="/", clock=SteadyClock())
    ask = ros.node.create_publisher(UInt32, "ask", qos())
    client = Frames(size, ros)
    if not ros.wait_until(lambda: ask.get_subscription_count() > 0 and ros.node.count_publishers("frame") > 0, 20.0):
        raise SystemExit("no sender of frames within 20 s")
    time.sleep(0.3)  # the server may not have discovered this process yet
    took, lost, number = [], 0, 0
    gc.disable()
    while number < WARM_UP + steps and lost <= MOST_LOST:
        number += 1
        start = time.perf_counter_ns()
        ask.publish(UInt32(data=number))
        if _await(client, frame_of_number(size, number)):
            took.append(time.perf_counter_ns() - start)
        else:
            lost += 1
    frame = _last(client, ask, size, number + 1)
    ros.close()
    if frame is None or not np.array_equal(frame, frame_of(size, number + 1)):
        raise SystemExit("the last frame is not the one that was asked for")
    p50, p95 = np.percentile(np.array(took[WARM_UP:] or [np.nan]) / 1e3, (50, 95))
    return {"p50": float(p50), "p95": float(p95), "lost": float(lost)}


def _await(client: Frames, first: NDArray[np.uint8]) -> bool:
    end = time.monotonic() + LOST_AFTER_S
    while (left_s := end - time.monotonic()) > 0:
        if any((frame[:4] == first).all() for frame in client.take(left_s)):
            return True
    return False


def _last(client: Frames, ask: Any, size: str, number: int) -> NDArray[np.uint8] | None:  # noqa: ANN401
    """Request one more frame, with retries, and return it whole."""
    from std_msgs.msg import UInt32  # noqa: PLC0415

    first = frame_of_number(size, number)
    for _ in range(5):
        ask.publish(UInt32(data=number))
        for frame in client.take(LOST_AFTER_S):
            if (frame[:4] == first).all():
                return frame
    return None


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        print(json.dumps(durations(sys.argv[2], int(sys.argv[3]))))
