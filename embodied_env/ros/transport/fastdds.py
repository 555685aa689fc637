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
from embodied_env.contract.spaces import field_layouts
from embodied_env.messages.images import ENCODINGS
from embodied_env.messages.sensor_types import SENSOR_MESSAGES

PROFILE = Path(__file__).with_name("large_messages.xml")

VARIABLES = ("FASTRTPS_DEFAULT_PROFILES_FILE", "FASTDDS_DEFAULT_PROFILES_FILE")
"""Environment variables that name the profile, of which Fast DDS reads one up to Jazzy, the other from Kilted on."""

SEGMENT_REMEDY = (
    f"set {VARIABLES[0]}={PROFILE} ({VARIABLES[1]} from Kilted on) for this process and for the publisher, before they "
    "start"
)

LARGE_BYTES = 500_000
"""Size above which a message and its overhead do not fit into the default segment."""

_DEFAULT_SEGMENT = 512 * 1024
_SEGMENT_SIZE = re.compile(r"<segment_size>\s*(\d+)\s*<")
_FAST_DDS = "rmw_fastrtps"
_warned: set[str] = set()  # topics, in this process


def topics_above_limit(contract: Contract) -> dict[str, int]:
    """Return the topics with large messages, and the least size of their data in bytes.

    The size of a compressed image does not follow from the contract.
    """
    sizes = {sensor.topic: _bytes_of(name, sensor) for name, sensor in contract.sensors.items()}
    return {topic: size for topic, size in sizes.items() if size > LARGE_BYTES}


def profile_environment(contract: Contract, found: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables to set for a process that uses the topics of `contract`.

    Empty without large messages, or if `found`, its environment, already names a profile of the user's.
    """
    if not topics_above_limit(contract) or any(found.get(name) for name in VARIABLES):
        return {}
    return dict.fromkeys(VARIABLES, str(PROFILE))


def enable_large_segments(contract: Contract, environment: MutableMapping[str, str] = os.environ) -> None:
    """Set these variables for this process, before its first node, and for its children."""
    environment.update(profile_environment(contract, environment))


def segment_bytes(found: Mapping[str, str] = os.environ) -> int:
    """Return the size in bytes of the shared-memory segment requested by this environment.

    A profile that cannot be read is ignored; Fast DDS reports its error.
    """
    sizes = [_DEFAULT_SEGMENT]
    for path in filter(None, (found.get(name) for name in VARIABLES)):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            sizes += map(int, _SEGMENT_SIZE.findall(Path(path).read_text(encoding="utf-8")))
    return max(sizes)


def segment_problems(contract: Contract, found: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the topics with messages too large for the shared-memory segment, with reasons.

    The segment is the publisher's, and cannot be inspected; `found` is assumed to be its environment.
    """
    if not found.get("RMW_IMPLEMENTATION", _FAST_DDS).startswith(_FAST_DDS):
        return {}
    segment = segment_bytes(found)
    reason = f"do not fit into the shared-memory segment of Fast DDS ({segment / 1e6:.1f} MB), and may stall for 10 ms "
    sizes = topics_above_limit(contract).items()
    return {topic: f"messages of {size / 1e6:.1f} MB {reason}or be lost" for topic, size in sizes if size >= segment}


def warn_if_segment_too_small(contract: Contract, found: Mapping[str, str] = os.environ) -> None:
    """Warn of each of these topics, once per topic and process."""
    for topic, problem in segment_problems(contract, found).items():
        if topic not in _warned:
            _warned.add(topic)
            gymnasium.logger.warn(f"{topic}: {problem}; {SEGMENT_REMEDY}")


def _bytes_of(name: str, sensor: SensorSpec) -> int:
    """Return the size in bytes of the arrays in a message, 0 (unknown) for a compressed image."""
    if sensor.encoding is None:
        return sum(math.prod(layout.raw_shape) * layout.dtype.itemsize for layout in field_layouts(name, sensor))
    is_compressed = SENSOR_MESSAGES[sensor.type].is_computed
    pixel = 0 if is_compressed else np.dtype(ENCODINGS[sensor.encoding].dtype).itemsize
    return sum(math.prod(layout.raw_shape) * pixel for layout in field_layouts(name, sensor))
