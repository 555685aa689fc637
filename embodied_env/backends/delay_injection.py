"""Add delays to a lockstep backend: report those that it makes itself, or make them in whole control periods.

A backend that takes `delays` itself (`mujoco`, `mujoco_ros`) takes readings at the exact instants. They follow from
model and seed, so `ReportedDelays` only reports them. `PeriodDelays` delays any other backend from outside, where only
the ends of control periods are visible: a reading is the newest that is at least as old as was drawn, and a command
begins to act with the first period that does not begin before its instant. Stamps are those of the world, so ages are
whole periods, and what is reported is what was done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.backends.base import (
    Backend,
    MessageSource,
    Observed,
    Recorded,
    Renderable,
    ReplaySource,
    Resettable,
    Showable,
    Threaded,
    find_estop_source,
)
from embodied_env.contract import Contract
from embodied_env.core.clock import Stamp
from embodied_env.core.latency.delay_model import DelayModel, PlannedDelays, check_delays, schedule_of
from embodied_env.core.message_tap import MessageTap
from embodied_env.core.reset_spec import ResetRoutine
from embodied_env.core.types import (
    ApprovedCommand,
    InjectedDelays,
    Observer,
    ResetRequest,
    Sample,
    SentCommand,
    Snapshot,
)
from embodied_env.errors import BackendLostError, UsageError


class ReportedDelays:
    """A backend that delays by `model` itself, with a report of these delays.

    The optional abilities of a lockstep backend are passed on: what `world` lacks is None, empty, or not in its flags.
    """

    def __init__(self, world: Backend, model: DelayModel, contract: Contract) -> None:
        """Wrap `world`.

        Raises:
            UsageError: when it does not wait, or the model is of other sensors.
        """
        if world.capabilities.free_running:
            raise UsageError(
                f"delay_profile is not available with {world.name} here: it moves by itself; allowed: None"
            )
        check_delays(model, contract)
        self.name = world.name
        self.capabilities = replace(world.capabilities, injected="whole" if model.knows_actuation else "sensors")
        self.step_timeout_s = world.step_timeout_s
        self.reset_timeout_s = world.reset_timeout_s
        self._world, self._estops = world, find_estop_source(world)
        self._schedule = schedule_of(model, contract)
        self._step = 0

    @property
    def inference_ns(self) -> int:
        """Return the time from the newest observation until the command that follows from it leaves."""
        return self._schedule.plan(self._step).inference_ns

    def open(self) -> None:
        """Connect."""
        self._world.open()

    def reset(self, request: ResetRequest, deadline: Stamp) -> Snapshot:
        """Start an episode; its delays depend on the seed of the request alone."""
        snapshot = self._world.reset(request, deadline)
        self._schedule.begin(request.seed, snapshot.now_ns)
        self._step = 0
        return replace(snapshot, injected=InjectedDelays(early=self._schedule.plan(0).early))

    def send(self, command: ApprovedCommand) -> SentCommand:
        """Publish an approved command."""
        return self._world.send(command)

    def advance(self, target: Stamp, deadline: Stamp) -> None:
        """Set the world moving."""
        self._world.advance(target, deadline)
        self._step += 1

    def read(self, after: Stamp, deadline: Stamp) -> Snapshot:
        """Read what is there, and tell which delays led to it."""
        snapshot = self._world.read(after, deadline)
        command, readings = self._schedule.plan(self._step - 1), self._schedule.plan(self._step)
        return replace(snapshot, injected=self._account(command, readings))

    def halt(self, reason: str) -> None:
        """Cut the transport."""
        self._world.halt(reason)

    def close(self) -> None:
        """Free everything."""
        self._world.close()

    def processes(self) -> list[dict[str, Any]]:
        """Return the processes of the world."""
        return self._world.processes()

    @property
    def feed(self) -> MessageTap | None:
        """Return the tap of the world's messages."""
        return self._world.feed if isinstance(self._world, MessageSource) else None

    @property
    def observers(self) -> tuple[Observer, ...]:
        """Return the observers of the world."""
        return self._world.observers if isinstance(self._world, Observed) else ()

    @property
    def playback(self) -> ReplaySource | None:
        """Return the record of the world."""
        return self._world.playback if isinstance(self._world, Recorded) else None

    @property
    def routine(self) -> ResetRoutine | None:
        """Return the rest of the world's resets."""
        return self._world.routine if isinstance(self._world, Resettable) else None

    def confirm(self, question: str, deadline: Stamp) -> None:
        """Ask a person."""
        _as_resettable(self._world).confirm(question, deadline)

    def verify(self, deadline: Stamp) -> Snapshot:
        """Return readings that are newer than this call."""
        return _as_resettable(self._world).verify(deadline)

    def estops(self) -> Mapping[str, str]:
        """Return the safety inputs of the world."""
        return {} if self._estops is None else self._estops.estops()

    def compute_in(self, executor: Executor) -> bool:
        """Let the world be computed in `executor`, where it can be."""
        return isinstance(self._world, Threaded) and self._world.compute_in(executor)

    def render(self) -> NDArray[np.uint8]:
        """Return an image of the world."""
        if not isinstance(self._world, Renderable):
            raise UsageError(f"the backend {self.name} cannot render 'rgb_array'")
        return self._world.render()

    def show(self) -> None:
        """Show the world in a window."""
        if not isinstance(self._world, Showable):
            raise UsageError(f"the backend {self.name} cannot render 'human'")
        self._world.show()

    def _account(self, command: PlannedDelays, readings: PlannedDelays) -> InjectedDelays:
        return InjectedDelays(
            inference_ns=command.inference_ns, actuation_ns=command.actuation_ns, early=readings.early
        )


class PeriodDelays(ReportedDelays):
    """Delays in whole control periods, for a world that knows of none."""

    def __init__(self, world: Backend, model: DelayModel, contract: Contract) -> None:
        """Stand before `world`."""
        super().__init__(world, model, contract)
        self._period_ns = contract.control_period_ns
        self._kept: dict[str, deque[Sample]] = {}
        self._under_way: list[tuple[int, ApprovedCommand]] = []
        self._usable = False

    def reset(self, request: ResetRequest, deadline: Stamp) -> Snapshot:
        """Start an episode: nothing of the last one is under way."""
        self._usable = False
        snapshot = super().reset(request, deadline)
        self._usable = True
        self._under_way = []
        self._kept = {name: deque([sample]) for name, sample in snapshot.samples.items()}
        return snapshot

    def send(self, command: ApprovedCommand) -> SentCommand:
        """Let a command wait until it acts."""
        if not isinstance(command, ApprovedCommand):
            raise TypeError(f"send() takes only Approved, not {type(command).__name__}")
        if not self._usable:
            raise BackendLostError("halted", "the world was halted, closed, or never reset")
        plan = self._schedule.plan(self._step)
        late = -(-(plan.acts_ns - plan.frozen_ns) // self._period_ns)
        self._under_way = [(step, sent) for step, sent in self._under_way if sent.seq != command.seq]
        self._under_way.append((self._step + late, command))
        return SentCommand(seq=command.seq, values=command.values)

    def advance(self, target: Stamp, deadline: Stamp) -> None:
        """Publish the newest command that acts from here on, if there is one, and set the world moving."""
        due = sorted((each for each in self._under_way if each[0] <= self._step), key=lambda each: each[0])
        self._under_way = [each for each in self._under_way if each[0] > self._step]
        if due:
            self._world.send(due[-1][1])
        super().advance(target, deadline)

    def read(self, after: Stamp, deadline: Stamp) -> Snapshot:
        """Hand out of each sensor the newest reading that is as old as was drawn."""
        snapshot = super().read(after, deadline)
        plan = self._schedule.plan(self._step)
        samples = {name: self._late(name, sample, plan) for name, sample in snapshot.samples.items()}
        return replace(snapshot, samples=samples)

    def halt(self, reason: str) -> None:
        """Cut the transport; what is under way never acts."""
        self._usable = False
        super().halt(reason)

    def close(self) -> None:
        """Free everything."""
        self._usable = False
        super().close()

    def _late(self, name: str, sample: Sample, plan: PlannedDelays) -> Sample:
        """Return what is told of a sensor instead of `sample`, the newest; it is there now."""
        if name not in plan.taken_ns:
            return sample
        kept = self._kept.setdefault(name, deque())
        kept.append(sample)
        while len(kept) > 1 and kept[1].stamp_ns <= plan.taken_ns[name]:
            kept.popleft()
        return replace(kept[0], arrival_ns=sample.arrival_ns)

    def _account(self, command: PlannedDelays, readings: PlannedDelays) -> InjectedDelays:
        """Of the actuation is told what was done: until the begin of a control period."""
        late_ns = -(-(command.acts_ns - command.frozen_ns) // self._period_ns) * self._period_ns
        return InjectedDelays(
            inference_ns=command.inference_ns,
            actuation_ns=late_ns - command.inference_ns,
            early=readings.early,
        )


def add_delays(world: Backend, model: DelayModel, contract: Contract, *, by_itself: bool) -> Backend:
    """Return `world` with the delays of `model`; `by_itself`: it was given them, and does it itself."""
    return (ReportedDelays if by_itself else PeriodDelays)(world, model, contract)


def _as_resettable(world: Backend) -> Resettable:
    if not isinstance(world, Resettable):
        raise TypeError(f"the backend {world.name} has no reset routine")
    return world
