"""Enlarge the shared-memory segment of Fast DDS for the large messages of a contract.

The default shared-memory segment of Fast DDS has 512 kB. A message that does not fit into it stalls for about 10 ms, or
is lost if it is sent best effort. `PROFILE` makes the segment 32 MiB. Fast DDS reads the profile when the first node of
a process is created, so the environment must name it before. The sender's segment is the one that counts.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Mapping, MutableMapping
from pathlib import Path

import gymnasium
import numpy as np

from embodied_env.contract import Contract, SensorSpec
from embodied_env.messages.message_types import ENCODINGS

PROFILE = Path(__file__).with_name("large_messages.xml")

VARIABLES = ("FASTRTPS_DEFAULT_PROFILES_FILE", "FASTDDS_DEFAULT_PROFILES_FILE")
"""Environment variables that name the profile: up to Jazzy, and from Kilted on. Each Fast DDS reads its own."""

LARGE_BYTES = 500_000
"""Size above which a message and its overhead do not fit into the default segment."""

_DEFAULT_SEGMENT = 512 * 1024
_SEGMENT_SIZE = re.compile(r"<segment_size>\s*(\d+)\s*<")
_FAST_DDS = "rmw_fastrtps"
_CLOUD, _IMAGE = "sensor_msgs/msg/PointCloud2", "sensor_msgs/msg/Image"
_BYTES_PER_COORDINATE = 4
_warned: set[str] = set()  # topics, in this process


def topics_above_limit(contract: Contract) -> dict[str, int]:
    """Return the topics of `contract` with large messages, and the least size of their data, bytes.

    These are images and point clouds; the size of a compressed image does not follow from the contract.
    """
    sizes = {sensor.topic: _bytes_of(sensor) for sensor in contract.sensors.values()}
    return {topic: size for topic, size in sizes.items() if size > LARGE_BYTES}


def profile_environment(contract: Contract, found: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables to set for a process that sends or receives the topics of `contract`.

    Empty without large messages, or if `found`, its environment, already names a profile of the user's.
    """
    if not topics_above_limit(contract) or any(found.get(name) for name in VARIABLES):
        return {}
    return dict.fromkeys(VARIABLES, str(PROFILE))


def enable_large_segments(contract: Contract, environment: MutableMapping[str, str] = os.environ) -> None:
    """Set these variables for this process, before its first node, and for the processes that it starts."""
    environment.update(profile_environment(contract, environment))


def segment_bytes(found: Mapping[str, str] = os.environ) -> int:
    """Return the size of the shared-memory segment that a process with this environment requests, bytes.

    A profile that cannot be read is ignored; Fast DDS reports its error.
    """
    sizes = [_DEFAULT_SEGMENT]
    for path in filter(None, (found.get(name) for name in VARIABLES)):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            sizes += map(int, _SEGMENT_SIZE.findall(Path(path).read_text(encoding="utf-8")))
    return max(sizes)


def warn_if_segment_too_small(contract: Contract, found: Mapping[str, str] = os.environ) -> None:
    """Warn of each topic whose messages do not fit into the shared-memory segment, once per topic and process.

    The segment is the publisher's, and cannot be inspected; `found` is assumed to be its environment.
    """
    if not found.get("RMW_IMPLEMENTATION", _FAST_DDS).startswith(_FAST_DDS):
        return
    segment = segment_bytes(found)
    for topic, size in topics_above_limit(contract).items():
        if size < segment or topic in _warned:
            continue
        _warned.add(topic)
        gymnasium.logger.warn(
            f"{topic}: messages of {size / 1e6:.1f} MB do not fit into the shared-memory segment of Fast DDS "
            f"({segment / 1e6:.1f} MB), and may stall for 10 ms or be lost; set {VARIABLES[0]}={PROFILE} "
            f"({VARIABLES[1]} from Kilted on) for this process and for the publisher, before they start"
        )


def _bytes_of(sensor: SensorSpec) -> int:
    shapes = [field.shape for field in sensor.fields.values() if field.shape is not None]
    if sensor.type == _CLOUD:
        return sum(math.prod(shape) for shape in shapes) * _BYTES_PER_COORDINATE
    if sensor.type == _IMAGE and (encoding := ENCODINGS.get(sensor.encoding or "")) is not None:
        pixels = sum(math.prod(shape[:2]) for shape in shapes)
        return pixels * encoding.channels * np.dtype(encoding.dtype).itemsize
    return 0
