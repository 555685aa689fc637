"""Latency and loss of images, with and without the Fast DDS profile.

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

import numpy as np
from numpy.typing import NDArray
from sensor_msgs.msg import Image
from std_msgs.msg import UInt32

from embodied_env.contract.sensor_schema import FieldSpec, SensorSpec
from embodied_env.processes.child_process import watch_parent
from embodied_env.ros.transport.fastdds import PROFILE, VARIABLES
from embodied_env.ros.transport.node import RosNode
from embodied_env.ros.transport.qos import RELIABLE
from embodied_env.ros.wire.sensor_buffer import SensorBuffer
from embodied_env.timing.clock import SteadyClock

from .harness import Samples, run_rounds

WARM_UP = 50
LOST_AFTER_S = 1.0
MOST_LOST = 20  # then a run is given up: a second for each of them

SIZES: Mapping[str, tuple[int, int, int]] = {"640x480": (480, 640, 3), "1280x720": (720, 1280, 3)}


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
    pixels = np.arange(np.prod(SIZES[size]), dtype=np.uint8)
    pixels[:4] = np.frombuffer(number.to_bytes(4, "little"), np.uint8)
    return pixels


def serve(size: str) -> None:
    """Publish a frame for each requested number, until standard input ends."""
    done = threading.Event()
    watch_parent(done.set)
    ros = RosNode("sender", namespace="/", clock=SteadyClock())
    publisher = ros.node.create_publisher(Image, "frame", RELIABLE)
    ros.receiver.subscribe("ask", UInt32, "ask")
    (height, width, depth), pixels = SIZES[size], frame_of(size, 0)
    message = Image(height=height, width=width, step=depth * width, encoding="rgb8")
    message.header.stamp.sec = 1
    while not done.is_set():
        for arrival in ros.receiver.receive(0.2):
            pixels[:4] = np.array([arrival.message.data], "<u4").view(np.uint8)
            message.data = array.array("B", pixels.tobytes())
            message.header.stamp.nanosec = arrival.message.data
            publisher.publish(message)
    ros.close()


class Client:
    """Request frames and take the samples of this package, which are checked against the contract, in new arrays."""

    def __init__(self, size: str) -> None:
        """Connect to the sender.

        Raises:
            SystemExit: there is no sender.
        """
        field = FieldSpec(unit="1", shape=SIZES[size], low=0.0, high=255.0)
        sensor = SensorSpec(
            topic="frame", type="sensor_msgs/msg/Image", fields={"image": field}, max_age_s=1.0, encoding="rgb8"
        )
        self.ros = RosNode("client", namespace="/", clock=SteadyClock())
        self._buffer = SensorBuffer("frame", sensor)
        self._ask = self.ros.node.create_publisher(UInt32, "ask", RELIABLE)
        self.ros.receiver.subscribe("frame", Image, "frame", RELIABLE)
        if not self.ros.wait_until(self._is_connected, 20.0):
            raise SystemExit("no sender of frames within 20 s")
        time.sleep(0.3)  # the server may not have discovered this process yet

    def _is_connected(self) -> bool:
        return bool(self._ask.get_subscription_count() > 0 and self.ros.node.count_publishers("frame") > 0)

    def request(self, number: int) -> NDArray[np.uint8] | None:
        """Return the bytes of the frame of this number, None if it is lost."""
        self._ask.publish(UInt32(data=number))
        end, first = time.monotonic() + LOST_AFTER_S, np.array([number], "<u4").view(np.uint8)
        while (left_s := end - time.monotonic()) > 0:
            arrivals = self.ros.receiver.receive(left_s)
            for arrival in arrivals:
                self._buffer.add(arrival)
            sample = self._buffer.sample() if arrivals else None
            if sample is not None and "image" in sample.values:
                frame: NDArray[np.uint8] = sample.values["image"].reshape(-1)
                if (frame[:4] == first).all():
                    return frame
        return None


def durations(size: str, steps: int) -> dict[str, float]:
    """Request frames, and return percentiles of their latency in µs and the number of lost frames."""
    client, took_us, lost, number = Client(size), [], 0, 0
    gc.disable()
    while number < WARM_UP + steps and lost <= MOST_LOST:
        number += 1
        start_ns = time.perf_counter_ns()
        if client.request(number) is None:
            lost += 1
        else:
            took_us.append((time.perf_counter_ns() - start_ns) / 1e3)
    tries = (client.request(number + 1) for _ in range(5))
    frame = next((frame for frame in tries if frame is not None), None)
    client.ros.close()
    if frame is None or not np.array_equal(frame, frame_of(size, number + 1)):
        raise SystemExit("the last frame is not the one that was asked for")
    p50, p95 = np.percentile(took_us[WARM_UP:] or [np.nan], (50, 95)).tolist()
    return {"p50": p50, "p95": p95, "lost": float(lost)}


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        print(json.dumps(durations(sys.argv[2], int(sys.argv[3]))))
