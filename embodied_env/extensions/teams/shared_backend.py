"""Share one world between several robots, each of which has its own `AgentBackend`.

A view stores the command of its robot; the last `advance` sends all commands and moves the world once. The first view
that is reset performs the reset of `SharedBackend.request_reset`; all views read it. An error of the world and the halt
of a view end the episodes of all robots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from embodied_env.backends.backend import Backend, find_estop_source
from embodied_env.backends.reported_delays import forwarded
from embodied_env.contract import FloatArray
from embodied_env.core.types import ApprovedCommand, ResetReport, ResetRequest, SentCommand, Snapshot, check_approved
from embodied_env.errors import BackendError, BackendLostError, BackendNotReadyError
from embodied_env.extensions.teams.team_file import Team, name_in_world
from embodied_env.safety.approved_commands import concatenate_commands
from embodied_env.timing.clock import Clock


class SharedBackend:
    """The backend of a team's world, and the commands of the robots that have sent one.

    Attributes:
        backend: moves the world.
        last_reset: report of the last reset of the world, or None before the first.
    """

    def __init__(self, team: Team, backend: Backend, *, clock: Clock) -> None:
        """Share `backend`, which was built for ``team.world``, without starting anything."""
        self.backend = backend
        self.last_reset: ResetReport | None = None
        self._team, self._clock = team, clock
        self._requested: tuple[int, Mapping[str, FloatArray]] | None = None
        self._opened = False
        self._open_views = set(team.agents)
        self._epoch, self._seq = -1, 0
        self._commands: dict[str, ApprovedCommand] = {}
        self._ready: set[str] = set()
        self._snapshot: Snapshot | None = None  # after the step, once a view has read it
        self._lost: BackendLostError | None = BackendLostError("halted", "the world was never reset")

    def open(self) -> None:
        """Open the world, once."""
        if not self._opened:
            self.backend.open()
            self._opened = True

    def request_reset(self, seed: int, options: Mapping[str, FloatArray]) -> None:
        """Set the seed and the checked options (by their names in the world) of the next reset."""
        self._requested = seed, options

    def reset(self, deadline_ns: int) -> Snapshot:
        """Return the snapshot of the requested reset, which the first call performs."""
        if self._requested is not None:
            (seed, options), self._requested = self._requested, None
            self._epoch += 1
            self._commands, self._ready, self._snapshot = {}, set(), None
            self._lost = BackendLostError("halted", "the reset of the world failed")
            snapshot = self.backend.reset(ResetRequest(epoch=self._epoch, seed=seed, options=options), deadline_ns)
            self.last_reset, self._snapshot, self._lost = snapshot.reset, snapshot, None
        if self._snapshot is None or self._lost is not None:
            raise BackendNotReadyError("reset of one robot in a shared world; reset the environment of all robots")
        return self._snapshot

    def submit(self, agent: str, command: ApprovedCommand) -> None:
        """Store the command of a robot until all have sent."""
        if self._lost is not None:
            raise self._lost
        self._commands[agent] = command

    def advance(self, agent: str, target_ns: int, deadline_ns: int) -> None:
        """Move the world if this robot is the last one, or raise BackendLostError on failure."""
        if self._lost is not None:
            raise self._lost
        if agent not in self._commands or agent in self._ready:
            raise BackendLostError("out_of_step", f"no command of {agent} for this step")
        self._ready.add(agent)
        if len(self._ready) < len(self._team.agents):
            return
        commands = [self._commands[name] for name in self._team.agents]
        self._commands, self._ready, self._snapshot = {}, set(), None
        self._seq += 1
        try:
            self.backend.send(concatenate_commands(commands, seq=self._seq, epoch=self._epoch))
            self.backend.advance(target_ns, deadline_ns)
        except BackendError as error:
            self._lost = BackendLostError.of(error)
            raise self._lost from None
        self._clock.on_world_advanced(self._team.world.control_period_ns)

    def read(self, after_ns: int, deadline_ns: int) -> Snapshot:
        """Return the snapshot after the step, which the first call reads."""
        if self._lost is not None:
            raise self._lost
        if self._ready:
            missing = ", ".join(name for name in self._team.agents if name not in self._ready)
            raise BackendLostError("out_of_step", f"no step of the shared world: no command of {missing}")
        if self._snapshot is None:
            try:
                self._snapshot = self.backend.read(after_ns, deadline_ns)
            except BackendError as error:
                self._lost = BackendLostError.of(error)
                raise self._lost from None
        return self._snapshot

    def halt(self, reason: str) -> None:
        """Cut off all robots until the next reset."""
        if self._lost is None:
            self._lost = BackendLostError("halted", f"the world of all robots was halted: {reason}")
        self.backend.halt(reason)

    def detach(self, agent: str) -> None:
        """Close the world when the last robot has detached. Idempotent."""
        self._open_views.discard(agent)
        if not self._open_views:
            self.close()

    def close(self) -> None:
        """Free the world, which a pending step of a robot then loses as closed.

        Idempotent.
        """
        if self._lost is None:
            self._lost = BackendLostError("closed", "the world of all robots is closed")
        self.backend.close()


class AgentBackend:
    """The `Backend` of one robot in a shared world.

    It has sensors, reset options and commands of its own.

    Attributes:
        contract: the contract of the robot.
    """

    processes = forwarded("processes")
    render = forwarded("render")
    show = forwarded("show")
    estops = forwarded("estops", dict)

    def __init__(self, shared: SharedBackend, team: Team, agent: str) -> None:
        self._world = world = shared.backend
        self.name, self.capabilities = world.name, world.capabilities
        self.step_timeout_s, self.reset_timeout_s = world.step_timeout_s, world.reset_timeout_s
        self.contract = team.agents[agent]
        self._sensors = {name: name_in_world(agent, name) for name in self.contract.sensors}
        self._options = {name: name_in_world(agent, name) for name in self.contract.reset_options}
        self._shared, self._agent = shared, agent
        find_estop_source(world)

    def open(self) -> None:
        """Open the world unless it is open."""
        self._shared.open()

    def reset(self, request: ResetRequest, deadline_ns: int) -> Snapshot:  # noqa: ARG002 - the world has its own request
        """Reset the world unless another robot has, and return this robot's part of the snapshot."""
        return self._own_part(self._shared.reset(deadline_ns))

    def send(self, command: ApprovedCommand) -> SentCommand:
        """Store a command, which is sent when every robot has one."""
        check_approved(command)
        self._shared.submit(self._agent, command)
        return SentCommand(seq=command.seq, values=command.values)

    def advance(self, target_ns: int, deadline_ns: int) -> None:
        """Mark this robot as ready, the last of which moves the world."""
        self._shared.advance(self._agent, target_ns, deadline_ns)

    def read(self, after_ns: int, deadline_ns: int) -> Snapshot:
        """Return this robot's part of the snapshot after the step."""
        return self._own_part(self._shared.read(after_ns, deadline_ns))

    def halt(self, reason: str) -> None:
        """Cut off all robots, since this one no longer moves as commanded."""
        self._shared.halt(f"{self._agent}: {reason}")

    def close(self) -> None:
        """Detach from the world, which the last robot closes."""
        self._shared.detach(self._agent)

    def _own_part(self, whole: Snapshot) -> Snapshot:
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
