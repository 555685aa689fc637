"""Numbers of a contract that no rule forbids, but that no robot has."""

from __future__ import annotations

import math
from collections.abc import Iterator

from embodied_env.contract.contract import Contract

_FARTHEST = 4 * math.pi  # rad; joints with limits turn at most twice in each direction
_FASTEST = 50.0  # rad/s, of a joint with position limits


def suspected_degrees(contract: Contract) -> Iterator[tuple[str, str]]:
    """Yield path and problem of each limit in rad or rad/s that looks like degrees. Wheels are never suspected."""
    for name, actuator in contract.actuators.items():
        for joint, limits in actuator.joints.items():
            if limits.unit != "rad" or limits.position is None:
                continue
            path = f"actuators.{name}.joints.{joint}"
            remedy = "degrees suspected; write radians: degrees * pi / 180"
            if max(map(abs, limits.position)) > _FARTHEST:
                yield f"{path}.position", f"{list(limits.position)} rad is more than two turns; {remedy}"
            if limits.velocity > _FASTEST:
                yield f"{path}.velocity", f"{limits.velocity} rad/s is more than {_FASTEST:g} rad/s; {remedy}"
