"""The in-process simulator: the MuJoCo world of `embodied_env.sim`, stepped by the caller."""

from __future__ import annotations

from typing import Any

from embodied_env.backends.base import Capabilities
from embodied_env.clock import Clock, Stamp
from embodied_env.contract import Contract
from embodied_env.errors import BackendLostError
from embodied_env.sim.world import World, load_profile
from embodied_env.transition import Approved, ResetReport, ResetRequest, Sample, Sent, Snapshot


class MujocoBackend:
    """Lockstep, seedable, exact. Nothing crosses a middleware, so there is no transport to measure."""

    name = "mujoco"
    capabilities = Capabilities(
        exact_step=True, pausable=True, seedable=True, state_query=True, reset_levels=("world",)
    )

    def __init__(self, contract: Contract, *, clock: Clock, step_timeout_s: float | None = None) -> None:
        """Read the profile ``backends.mujoco`` of `contract`; the world is built by `open`."""
        self._contract = contract
        self._clock = clock
        self._profile = load_profile(contract, "mujoco")
        self.step_timeout_s = self._profile.step_timeout_s if step_timeout_s is None else step_timeout_s
        self.reset_timeout_s = self._profile.reset_timeout_s
        self._world: World | None = None
        self._usable = False
        self._seq = 0

    def open(self) -> None:
        """Build the world."""
        self._world = World(self._contract, self._profile, path="backends.mujoco")

    def reset(self, request: ResetRequest, deadline: Stamp) -> Snapshot:  # noqa: ARG002 - it is instant
        """Reset the world by its seed."""
        world = self._opened()
        sampled = world.reset(request.seed, request.options)
        self._usable = True
        self._seq = 0
        report = ResetReport(level="world", seed_applied=request.seed, sampled=sampled)
        return Snapshot(now_ns=world.now_ns, samples=self._samples(world), reset=report)

    def send(self, command: Approved) -> Sent:
        """Set the servo targets of the next period."""
        if not isinstance(command, Approved):
            raise TypeError(f"send() takes only Approved, not {type(command).__name__}")
        self._running().command(command.positions)
        return Sent(seq=command.seq, positions=command.positions)

    def advance(self, target: Stamp, deadline: Stamp) -> None:  # noqa: ARG002 - it is exact, and returns when done
        """Step the world by one control period."""
        world = self._running()
        world.step()
        self._seq += 1

    def read(self, after: Stamp, deadline: Stamp) -> Snapshot:  # noqa: ARG002 - the world is already there
        """Read every sensor."""
        world = self._running()
        return Snapshot(now_ns=world.now_ns, samples=self._samples(world))

    def halt(self, reason: str) -> None:  # noqa: ARG002 - there is no transport to tell
        """Take no more commands until the next reset."""
        self._usable = False

    def close(self) -> None:
        """Free the world."""
        self._usable = False
        self._world = None

    def processes(self) -> list[dict[str, Any]]:
        """There is none."""
        return []

    def _opened(self) -> World:
        if self._world is None:
            raise BackendLostError("closed", "the world is not open")
        return self._world

    def _running(self) -> World:
        if not self._usable:
            raise BackendLostError("halted", "the world was halted, closed, or never reset")
        return self._opened()

    def _samples(self, world: World) -> dict[str, Sample]:
        arrival_ns = self._clock.now_ns()
        return {
            name: Sample(sensor=name, values=values, stamp_ns=stamp_ns, arrival_ns=arrival_ns, seq=self._seq)
            for name, (stamp_ns, values) in world.read().items()
        }
