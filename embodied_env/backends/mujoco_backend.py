"""Run the MuJoCo world of `embodied_env.sim` in the process of the agent, in lockstep."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.backends.backend import Capabilities
from embodied_env.contract import Contract
from embodied_env.contract.argument_checks import checked_seconds
from embodied_env.contract.field_paths import check_messages
from embodied_env.core.types import ApprovedCommand, ResetReport, ResetRequest, SentCommand, Snapshot, check_approved
from embodied_env.errors import BackendLostError, MissingDependencyError
from embodied_env.sim.world import World
from embodied_env.sim.world_profile import load_profile
from embodied_env.timing.clock import Clock
from embodied_env.timing.delay_model import DelayModel


class MujocoBackend:
    """Simulates in lockstep, exactly and seedably, without a middleware.

    Attributes:
        delays: the injected delays, or None.
    """

    name = "mujoco"
    capabilities = Capabilities(
        simulated=True,
        exact_step=True,
        pausable=True,
        seedable=True,
        reopens=True,
        state_query=True,
        reset_levels=("world",),
        render_modes=("rgb_array", "rgb_array_list", "human"),
    )

    def __init__(
        self, contract: Contract, *, clock: Clock, step_timeout_s: float | None = None, delays: DelayModel | None = None
    ) -> None:
        """Read the profile ``backends.mujoco`` of `contract` for a world that `open` builds, with `delays` injected."""
        self._contract = contract
        self._clock = clock
        self.delays = delays
        self._profile = load_profile(contract, "mujoco")
        self.step_timeout_s = checked_seconds(
            "step_timeout_s", self._profile.step_timeout_s if step_timeout_s is None else step_timeout_s
        )
        self.reset_timeout_s = self._profile.reset_timeout_s
        if not self.capabilities.free_running:  # images of that one are rendered in the background
            self.capabilities = replace(self.capabilities, renders_images=self._profile.has_cameras)
        self._begun_ns = 0  # `World.render_ns` before the step
        self._world: World | None = None
        self._running: World | None = None  # the same one, from a reset until `halt`

    def open(self) -> None:
        """Build the world, and check fields with a path against the ROS message, if it is installed."""
        for name, sensor in self._contract.sensors.items():
            if any(spec.path is not None for spec in sensor.fields.values()):
                with suppress(MissingDependencyError):
                    check_messages({name: sensor})
        self._world = self._build_world()
        self._profile = self._world.profile

    def _build_world(self) -> World:
        return World(
            self._contract,
            self._profile,
            path="backends.mujoco",
            free_running=self.capabilities.free_running,
            delays=self.delays,
            as_messages=False,
            clock=self._clock,
        )

    def reset(self, request: ResetRequest, deadline_ns: int) -> Snapshot:  # noqa: ARG002 - it is instant
        """Reset the world by its seed."""
        world = self._opened()
        self._running = None
        sampled = world.reset(request.seed, request.options)
        self._running = world
        details = {"renderer": world.renderer_library} if world.renderer_library else {}
        report = ResetReport(level="world", seed_applied=request.seed, sampled=sampled, details=details)
        return Snapshot(now_ns=world.now_ns, samples=world.read(self._clock.now_ns()), reset=report)

    def send(self, command: ApprovedCommand) -> SentCommand:
        """Set the command of the next period."""
        check_approved(command)
        if (world := self._running) is None:  # `close` in another thread may reset it
            raise halted()
        world.command(command.values)
        return SentCommand(seq=command.seq, values=command.values)

    def advance(self, target_ns: int, deadline_ns: int) -> None:  # noqa: ARG002 - it is exact, and returns when done
        """Step the world by one control period."""
        if (world := self._running) is None:  # `close` in another thread may reset it
            raise halted()
        if self.capabilities.renders_images:
            self._begun_ns = world.render_ns
        world.step()

    def read(self, after_ns: int, deadline_ns: int) -> Snapshot:  # noqa: ARG002 - the world is already there
        """Read every sensor that has delivered."""
        if (world := self._running) is None:
            raise halted()
        samples = world.read(self._clock.now_ns())
        render_ns = world.render_ns - self._begun_ns if self.capabilities.renders_images else None
        return Snapshot(now_ns=world.now_ns, samples=samples, render_ns=render_ns)

    def halt(self, reason: str) -> None:  # noqa: ARG002 - there is no transport
        """Refuse commands until the next reset."""
        self._running = None

    def render(self) -> NDArray[np.uint8]:
        """Return an image of the world, shape (height, width, 3)."""
        return self._opened().render()

    def show(self) -> None:
        """Show the world in a window."""
        self._opened().show()

    def close(self) -> None:
        """Free the world."""
        world, self._world, self._running = self._world, None, None
        if world is not None:
            world.close()

    def processes(self) -> list[dict[str, Any]]:
        """Return no process."""
        return []

    def _opened(self) -> World:
        if self._world is None:
            raise BackendLostError("closed", "the simulator is not open")
        return self._world

    @property
    def world(self) -> World:
        """Running world, without which BackendLostError is raised."""
        if self._running is None:
            raise halted()
        return self._running


def halted() -> BackendLostError:
    """Return the error of a backend without a running world."""
    return BackendLostError("halted", "the backend was halted, closed or never reset")
