"""The embedded simulator of a contract: ``ros2 launch embodied_env sim.launch.py contract:=arm_reach``."""

from typing import Any

from embodied_env.launching import describe
from embodied_env.processes import simulator


def generate_launch_description() -> Any:  # noqa: ANN401 - launch has no type stubs
    """Start the same process as ``embodied-env sim``."""
    return describe(simulator)
