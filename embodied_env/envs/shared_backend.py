"""Share one world between several robots: each has a backend of its own, and the world moves when all have sent.

A view keeps the command of its robot; the last `advance` moves the world, once, by the commands of all. A reset is
requested with `SharedBackend.request_reset`, done by the first view that is reset, and read by all. An error of the
world ends the episodes of all robots, and so does a view that is halted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.backends.base import Backend, Renderable, Showable, find_estop_source
from embodied_env.contract import FloatArray
from embodied_env.contract.team import Team, name_in_world
from embodied_env.core.clock import Clock, Stamp
from embodied_env.core.types import ApprovedCommand, ResetReport, ResetRequest, SentCommand, Snapshot, check_approved
from embodied_env.errors import BackendError, BackendLostError, BackendNotReadyError, UsageError
from embodied_env.safety import concatenate_commands


class SharedClock:
    """A clock that the world moves, and not each robot's step: a virtual one would go once for each of them."""

    def __init__(self, clock: Clock) -> None:
        """Read `clock`."""
        self._clock = clock
        self.virtual = clock.virtual

    def now_ns(self) -> int:
        """Read the steady domain."""
        return self._clock.now_ns()

    def system_ns(self) -> int:
        """Read the UTC clock."""
        return self._clock.system_ns()

    def boot_ns(self) -> int:
        """Read the clock that counts while the host sleeps."""
        return self._clock.boot_ns()

    def sleep_until_ns(self, deadline_ns: int) -> None:
        """Sleep to an absolute deadline."""
        self._clock.sleep_until_ns(deadline_ns)

    def on_world_advanced(self, period_ns: int) -> None:
        """The world says so itself, when it has moved."""


class SharedBackend:
    """The backend of a team's world, and who of the team has sent.

    Attributes:
        last_reset: what the last reset of the world did, or None before the first.
    """

    def __init__(self, team: Team, backend: Backend, *, clock: Clock) -> None:
        """Share `backend`, which was built from ``team.world``. Nothing is started."""
        self.backend = backend
        self.last_reset: ResetReport | None = None
        self._team, self._clock = team, clock
        self._asked: tuple[int, Mapping[str, FloatArray]] | None = None
        self._opened = False
        self._open_views = set(team.agents)
        self._epoch, self._seq = -1, 0
        self._parts: dict[str, ApprovedCommand] = {}
        self._ready: set[str] = set()
        self._snapshot: Snapshot | None = None  # of the step, once somebody has read it
        self._lost: BackendLostError | None = BackendLostError("halted", "the world was never reset")

    def view(self, agent: str) -> AgentBackend:
        """Return the backend of one robot."""
        return AgentBackend(self, self._team, agent)

    def open(self) -> None:
        """Open the world, once."""
        if not self._opened:
            self.backend.open()
            self._opened = True

    def request_reset(self, seed: int, options: Mapping[str, FloatArray]) -> None:
        """Say what the next reset is to be, for everybody. `options` are checked, by their names in the world."""
        self._asked = seed, options

    def reset(self, deadline: Stamp) -> Snapshot:
        """Return the snapshot of the reset that was asked for; the first call resets the world."""
        if self._asked is not None:
            (seed, options), self._asked = self._asked, None
            self._epoch += 1
            self._parts, self._ready, self._snapshot = {}, set(), None
            self._lost = BackendLostError("halted", "the reset of the world has failed")
            snapshot = self.backend.reset(ResetRequest(epoch=self._epoch, seed=seed, options=options), deadline)
            self.last_reset, self._snapshot, self._lost = snapshot.reset, snapshot, None
        if self._snapshot is None or self._lost is not None:
            raise BackendNotReadyError("a view of a shared world is reset by the environment of all robots alone")
        return self._snapshot

    def submit(self, agent: str, command: ApprovedCommand) -> None:
        """Keep the command of a robot until all have sent."""
        if self._lost is not None:
            raise self._lost
        self._parts[agent] = command

    def advance(self, agent: str, target: Stamp, deadline: Stamp) -> None:
        """Move the world if this robot is the last one; raises BackendLostError where that fails."""
        if self._lost is not None:
            raise self._lost
        if agent not in self._parts or agent in self._ready:
            raise BackendLostError("out_of_step", f"{agent} has sent no command for this step")
        self._ready.add(agent)
        if len(self._ready) < len(self._team.agents):
            return
        parts, self._parts, self._ready, self._snapshot = self._parts, {}, set(), None
        self._seq += 1
        try:
            self.backend.send(
                concatenate_commands([parts[name] for name in self._team.agents], seq=self._seq, epoch=self._epoch)
            )
            self.backend.advance(target, deadline)
        except BackendError as error:
            raise self._mark_lost(error) from None
        self._clock.on_world_advanced(self._team.world.control_period_ns)

    def read(self, after: Stamp, deadline: Stamp) -> Snapshot:
        """Return the snapshot after the step, which the first call reads."""
        if self._lost is not None:
            raise self._lost
        if self._ready:
            missing = ", ".join(name for name in self._team.agents if name not in self._ready)
            raise BackendLostError("out_of_step", f"the world has not moved: nothing came from {missing}")
        if self._snapshot is None:
            try:
                self._snapshot = self.backend.read(after, deadline)
            except BackendError as error:
                raise self._mark_lost(error) from None
        return self._snapshot

    def halt(self, reason: str) -> None:
        """Cut everybody off until the next reset."""
        if self._lost is None:
            self._lost = BackendLostError("halted", f"the world of all robots was halted: {reason}")
        self.backend.halt(reason)

    def detach(self, agent: str) -> None:
        """Close the world when the last robot has left it."""
        self._open_views.discard(agent)
        if not self._open_views:
            self.close()

    def close(self) -> None:
        """Free the world. Idempotent."""
        if self._lost is None:
            self._lost = BackendLostError("closed", "the world of all robots is closed")
        self.backend.close()

    def _mark_lost(self, error: BackendError) -> BackendLostError:
        """Remember why the world is lost: everybody is told the same."""
        self._lost = (
            error if isinstance(error, BackendLostError) else BackendLostError(type(error).__name__, str(error))
        )
        return self._lost


class AgentBackend:
    """What one robot has of a shared world: a `Backend` with its own sensors, reset options and commands."""

    def __init__(self, world: SharedBackend, team: Team, agent: str) -> None:
        """Look at `world` as `agent` of `team`."""
        self.name, self.capabilities = world.backend.name, world.backend.capabilities
        self.step_timeout_s, self.reset_timeout_s = world.backend.step_timeout_s, world.backend.reset_timeout_s
        contract = team.agents[agent]
        self._sensors = {name: name_in_world(agent, name) for name in contract.sensors}
        self._options = {name: name_in_world(agent, name) for name in contract.reset_options}
        self._world, self._agent = world, agent
        self._estops = find_estop_source(world.backend)

    def open(self) -> None:
        """Open the world, if nobody has."""
        self._world.open()

    def reset(self, request: ResetRequest, deadline: Stamp) -> Snapshot:  # noqa: ARG002 - of the world is asked before
        """Reset the world, if nobody has since it was asked for; return the own part of what was read."""
        return self._own(self._world.reset(deadline))

    def send(self, command: ApprovedCommand) -> SentCommand:
        """Hand over a command. It leaves when every robot has sent one."""
        check_approved(command)
        self._world.submit(self._agent, command)
        return SentCommand(seq=command.seq, values=command.values)

    def advance(self, target: Stamp, deadline: Stamp) -> None:
        """Say that this robot is done; the last one moves the world."""
        self._world.advance(self._agent, target, deadline)

    def read(self, after: Stamp, deadline: Stamp) -> Snapshot:
        """Return the own part of what the world has delivered."""
        return self._own(self._world.read(after, deadline))

    def halt(self, reason: str) -> None:
        """Cut everybody off: nobody knows what this robot does next."""
        self._world.halt(f"{self._agent}: {reason}")

    def render(self) -> NDArray[np.uint8]:
        """Return an image of the whole world."""
        if not isinstance(self._world.backend, Renderable):
            raise UsageError(f"the backend {self.name} cannot render 'rgb_array'")
        return self._world.backend.render()

    def show(self) -> None:
        """Show the whole world in a window."""
        if not isinstance(self._world.backend, Showable):
            raise UsageError(f"the backend {self.name} cannot render 'human'")
        self._world.backend.show()

    def estops(self) -> Mapping[str, str]:
        """Return the safety inputs of the world: each stops all robots."""
        return {} if self._estops is None else self._estops.estops()

    def close(self) -> None:
        """Leave the world; the last one closes it."""
        self._world.detach(self._agent)

    def processes(self) -> list[dict[str, Any]]:
        """Return role and pid of each process of the world."""
        return self._world.backend.processes()

    def _own(self, whole: Snapshot) -> Snapshot:
        samples = {
            name: replace(whole.samples[known], sensor=name)
            for name, known in self._sensors.items()
            if known in whole.samples
        }
        report = whole.reset
        if report is not None:
            sampled = {name: report.sampled[known] for name, known in self._options.items() if known in report.sampled}
            ignored = tuple(name for name, known in self._options.items() if known in report.ignored)
            report = replace(report, sampled=sampled, ignored=ignored)
        return replace(whole, samples=samples, reset=report)
