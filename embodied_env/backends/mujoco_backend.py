"""MuJoCo worlds of `embodied_env.sim` in the agent's process, in lockstep or real time."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.backends.backend import Capabilities
from embodied_env.contract import Contract
from embodied_env.contract.argument_checks import checked_seconds
from embodied_env.contract.field_paths import check_messages
from embodied_env.core.types import (
    ApprovedCommand,
    ClockStatus,
    ResetReport,
    ResetRequest,
    SentCommand,
    Snapshot,
    check_approved,
)
from embodied_env.errors import BackendLostError, MissingDependencyError
from embodied_env.sim.world import World
from embodied_env.sim.world_profile import load_profile
from embodied_env.timing.clock import NS_PER_S, Clock, Pacer
from embodied_env.timing.delay_model import DelayModel

_WINDOW_NS = NS_PER_S  # the real-time factor covers the last one or two windows


class MujocoBackend:
    """Simulates in lockstep, exactly and seedably, with `delays` injected if not None."""

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
        """Read the profile ``backends.mujoco`` of `contract`, for a world that `open` builds."""
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
        """Build the world, and check fields with a path against the ROS message, if installed."""
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


class RealtimeStepper:
    """Advances a world tick by tick at the rate of a clock.

    A call computes for at most `patience_ns` after the due time, then drops the remaining time: world time falls behind
    permanently, which `rtf` reports. So a slow world neither bursts nor blocks its caller indefinitely.
    """

    def __init__(self, world: World, clock: Clock, *, patience_ns: int) -> None:
        self._world = world
        self._clock = clock
        self._patience_ns = patience_ns
        self.begin()

    def begin(self) -> None:
        """Align world time with the clock, with nothing dropped."""
        now_ns = self._clock.now_ns()
        self.offset_ns = self._world.now_ns - now_ns  # world time minus clock
        self._windows = [(now_ns, 0), (now_ns, 0)]  # start of each window, and the time dropped in it

    @property
    def next_ns(self) -> int:
        """The end of the next tick on the clock."""
        return self._world.now_ns + self._world.tick_ns - self.offset_ns

    def catch_up(self) -> None:
        """Run the ticks that have ended by now."""
        now_ns = self._clock.now_ns()
        while self.next_ns <= now_ns:
            self.tick(now_ns)

    def tick(self, due_ns: int) -> None:
        """Run the next tick, whose result is valid from its end, with patience from `due_ns`."""
        self._world.step()
        now_ns = self._clock.now_ns()
        late_ns = now_ns - self.next_ns
        if late_ns >= 0 and now_ns - due_ns > self._patience_ns:
            dropped_ns = (late_ns // self._world.tick_ns + 1) * self._world.tick_ns
            self.offset_ns -= dropped_ns
            start_ns, before_ns = self._windows[-1]
            self._windows[-1] = start_ns, before_ns + dropped_ns

    def rtf(self) -> float:
        """Return the real-time factor over the last seconds, which is 1 if nothing was dropped."""
        now_ns = self._clock.now_ns()
        first_ns = self._windows[0][0]
        dropped_ns = sum(dropped for _, dropped in self._windows)
        if now_ns - self._windows[-1][0] >= _WINDOW_NS:
            self._windows = [self._windows[-1], (now_ns, 0)]
        return 1.0 if not dropped_ns else max(0.0, 1.0 - dropped_ns / (now_ns - first_ns))

    def account(self) -> ClockStatus:
        """Return the relation of the world's time to the steady clock."""
        return ClockStatus(mode="sim", offset_ns=self.offset_ns, offset_error_ns=self._world.tick_ns, rtf=self.rtf())


class RealtimeMujocoBackend(MujocoBackend):
    """`MujocoBackend` in real time, whose step ends at ``t0 + k * period``.

    The times are those of the steady clock. There is no thread: calls advance the world. Before a command is accepted,
    the ticks that have passed run under the previous one, so that after an inference of three periods the world is
    three periods further. If the agent stops calling, the watchdog's commands advance it. A call computes for at most
    one control period after the due time; an ``rtf`` below 1 shows the time lost.

    Attributes:
        pacer: deadlines of the episode's steps.
    """

    capabilities = replace(
        MujocoBackend.capabilities, exact_step=False, pausable=False, reopens=False, free_running=True
    )

    def __init__(self, contract: Contract, *, clock: Clock, step_timeout_s: float | None = None) -> None:
        """Read the profile ``backends.mujoco`` of `contract`, of which `open` builds the world."""
        super().__init__(contract, clock=clock, step_timeout_s=step_timeout_s)
        self.pacer = Pacer(clock, contract.control_period_ns)
        self._lock = threading.RLock()  # the watchdog sends from its own thread
        self._stepper: RealtimeStepper | None = None

    def open(self) -> None:
        """Build the world."""
        super().open()
        self._stepper = RealtimeStepper(self._opened(), self._clock, patience_ns=self._contract.control_period_ns)

    def reset(self, request: ResetRequest, deadline_ns: int) -> Snapshot:
        """Reset the world by its seed and start it."""
        with self._lock:
            snapshot = super().reset(request, deadline_ns)
            stepper = self._running_stepper()
            stepper.begin()
            self.pacer.begin()
            return replace(snapshot, clock=stepper.account())

    def send(self, command: ApprovedCommand) -> SentCommand:
        """Advance the world under the last command, then accept this one (thread-safe)."""
        with self._lock:
            check_approved(command)
            self._running_stepper().catch_up()
            return super().send(command)

    def advance(self, target_ns: int, deadline_ns: int) -> None:  # noqa: ARG002 - the pacer has the deadline
        """Wait for the end of the control period, at which no tick is left."""
        due_ns = self.pacer.deadline_ns
        is_due = True
        while is_due:
            with self._lock:  # a command of the watchdog may have run the tick
                stepper = self._running_stepper()
                if (end_ns := stepper.next_ns) <= due_ns:
                    stepper.tick(due_ns)
                is_due = stepper.next_ns <= due_ns
            if is_due:
                self._clock.sleep_until_ns(end_ns)
        self.pacer.wait()

    def read(self, after_ns: int, deadline_ns: int) -> Snapshot:
        """Read every sensor that has delivered."""
        with self._lock:
            return replace(super().read(after_ns, deadline_ns), clock=self._running_stepper().account())

    def render(self) -> NDArray[np.uint8]:
        """Return an image of the world after its last tick, shape (height, width, 3)."""
        with self._lock:
            return super().render()

    def show(self) -> None:
        """Show the world after its last tick in a window."""
        with self._lock:
            super().show()

    def close(self) -> None:
        """Free the world."""
        with self._lock:
            self._stepper = None
            super().close()

    def _running_stepper(self) -> RealtimeStepper:
        if self._running is None or self._stepper is None:
            raise halted()
        return self._stepper
