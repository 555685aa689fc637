"""Publish commands as one message each, as setpoints or as trajectories.

A way of publishing decides what is published when, and from which reference the next command is limited. It sends
nothing itself: only `Arbiter.write` does, and every rule about late commands is enforced there.
"""

from __future__ import annotations

from collections.abc import Callable

from embodied_env.contract import FloatArray
from embodied_env.safety.gate import SafetyGate
from embodied_env.safety.publishing.setpoints import Setpoints
from embodied_env.safety.publishing.single import SingleCommands
from embodied_env.safety.publishing.trajectory import Trajectories

Publishing = SingleCommands | Trajectories


def make_publishing(
    gate: SafetyGate,
    *,
    setpoints_per_step: int = 1,
    has_trajectories: bool = False,
    downstream_timeout_s: float | None = None,
    measured_velocities: Callable[[], tuple[FloatArray, FloatArray]] | None = None,
) -> Publishing:
    """Return the way to publish commands of `gate` (`SingleCommands` for the needs of a gap)."""
    if has_trajectories:
        return Trajectories(gate)
    if setpoints_per_step == 1:
        return SingleCommands(gate, downstream_timeout_s, measured_velocities)
    return Setpoints(gate, downstream_timeout_s, measured_velocities, per_step=setpoints_per_step)
