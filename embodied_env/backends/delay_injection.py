"""Add delays to a lockstep backend: report those that the backend injects, or inject them in whole control periods.

A backend with an option `delays` (`mujoco`, `mujoco_ros`) takes readings at the exact instants, which follow from model
and seed, so `ReportedDelays` only reports them. `PeriodDelays` delays any other backend from outside, where only the
ends of control periods are visible: a reading is the newest that is at least as old as drawn, and a command acts from
the first period that does not begin before its instant. Ages are therefore whole periods, and the reported delays are
the actual ones.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

from embodied_env.backends.base import Backend, Recorded, find_estop_source
from embodied_env.contract import Contract
from embodied_env.core.clock import Stamp
from embodied_env.core.latency.delay_model import DelayModel, PlannedDelays, check_delays, schedule_of
from embodied_env.core.types import (
    ApprovedCommand,
    InjectedDelays,
    ResetRequest,
    Sample,
    SentCommand,
    Snapshot,
    check_approved,
)
from embodied_env.errors import BackendLostError, UsageError


def forwarded(name: str, *default: Any) -> Any:  # noqa: ANN401 - the type of the backend's attribute
    """Return a property that reads `name` of the wrapped backend, or `default` if the backend lacks it."""
    return property(lambda self: getattr(self._world, name, *default))


class ReportedDelays:
    """Reports the delays that a backend injects itself.

    It forwards all optional abilities of lockstep backends; its flags are those of the wrapped one.
    """

    open = forwarded("open")
    send = forwarded("send")
    halt = forwarded("halt")
    close = forwarded("close")
    processes = forwarded("processes")
    estops = forwarded("estops", dict)
    confirm = forwarded("confirm")
    verify = forwarded("verify")
    routine = forwarded("routine", None)
    feed = forwarded("feed", None)
    observers = forwarded("observers", ())
    render = forwarded("render")
    show = forwarded("show")

    def __init__(self, world: Backend, model: DelayModel, contract: Contract) -> None:
        """Wrap `world`; raises UsageError for a free-running world, a replay, or a model of other sensors."""
        if world.capabilities.free_running or isinstance(world, Recorded):
            raise UsageError(f"delay_profile not supported by this backend: {world.name} (expected a lockstep world)")
        check_delays(model, contract)
        find_estop_source(world)
        self.name = world.name
        self.capabilities = replace(world.capabilities, injected="whole" if model.has_actuation else "sensors")
        self.step_timeout_s = world.step_timeout_s
        self.reset_timeout_s = world.reset_timeout_s
        self._world = world
        self._schedule = schedule_of(model, contract)
        self._step = 0

    @property
    def inference_ns(self) -> int:
        """The time from the newest observation until the command computed from it is sent."""
        return self._schedule.plan(self._step).inference_ns

    def reset(self, request: ResetRequest, deadline: Stamp) -> Snapshot:
        """Start an episode; its delays depend only on the seed of the request."""
        snapshot = self._world.reset(request, deadline)
        self._schedule.begin(request.seed, snapshot.now_ns)
        self._step = 0
        return replace(snapshot, injected=InjectedDelays(early=self._schedule.plan(0).early))

    def advance(self, target: Stamp, deadline: Stamp) -> None:
        """Start the motion of the world."""
        self._world.advance(target, deadline)
        self._step += 1

    def read(self, after: Stamp, deadline: Stamp) -> Snapshot:
        """Read the newest samples, with the delays that led to them."""
        snapshot = self._world.read(after, deadline)
        command, readings = self._schedule.plan(self._step - 1), self._schedule.plan(self._step)
        injected = InjectedDelays(
            inference_ns=command.inference_ns, actuation_ns=self._actuation_ns(command), early=readings.early
        )
        return replace(snapshot, injected=injected)

    def _actuation_ns(self, command: PlannedDelays) -> int:
        return command.actuation_ns


class PeriodDelays(ReportedDelays):
    """Delays in whole control periods, for a backend without delays of its own."""

    def __init__(self, world: Backend, model: DelayModel, contract: Contract) -> None:
        super().__init__(world, model, contract)
        self._period_ns = contract.control_period_ns
        self._readings: dict[str, deque[Sample]] = {}
        self._pending: list[tuple[int, ApprovedCommand]] = []  # commands by the step from which they act
        self._usable = False

    def reset(self, request: ResetRequest, deadline: Stamp) -> Snapshot:
        """Start an episode without pending commands."""
        self._usable = False
        snapshot = super().reset(request, deadline)
        self._usable = True
        self._pending = []
        self._readings = {name: deque([sample]) for name, sample in snapshot.samples.items()}
        return snapshot

    def send(self, command: ApprovedCommand) -> SentCommand:
        """Queue the command until it acts."""
        check_approved(command)
        if not self._usable:
            raise BackendLostError("halted", "the backend was halted, closed or never reset")
        acts_at = self._step + self._periods_until_acting(self._schedule.plan(self._step))
        self._pending = [(step, sent) for step, sent in self._pending if sent.seq != command.seq]
        self._pending.append((acts_at, command))
        return SentCommand(seq=command.seq, values=command.values)

    def advance(self, target: Stamp, deadline: Stamp) -> None:
        """Send the newest command that acts from this period on, if any, and start the motion of the world."""
        due = sorted((each for each in self._pending if each[0] <= self._step), key=lambda each: each[0])
        self._pending = [each for each in self._pending if each[0] > self._step]
        if due:
            self._world.send(due[-1][1])
        super().advance(target, deadline)

    def read(self, after: Stamp, deadline: Stamp) -> Snapshot:
        """Return the newest reading of each sensor that is as old as drawn."""
        snapshot = super().read(after, deadline)
        taken_ns = self._schedule.plan(self._step).taken_ns
        samples = dict(snapshot.samples)
        for name, newest in snapshot.samples.items():
            if name in taken_ns:
                readings = self._readings.setdefault(name, deque())
                readings.append(newest)
                while len(readings) > 1 and readings[1].stamp_ns <= taken_ns[name]:
                    readings.popleft()
                samples[name] = replace(readings[0], arrival_ns=newest.arrival_ns)
        return replace(snapshot, samples=samples)

    def halt(self, reason: str) -> None:
        """Cut the transport and drop pending commands."""
        self._usable = False
        self._world.halt(reason)

    def close(self) -> None:
        """Free everything."""
        self._usable = False
        self._world.close()

    def _periods_until_acting(self, command: PlannedDelays) -> int:
        return -(-(command.acts_ns - command.frozen_ns) // self._period_ns)

    def _actuation_ns(self, command: PlannedDelays) -> int:
        """Return the actual delay, which ends at the begin of a control period."""
        return self._periods_until_acting(command) * self._period_ns - command.inference_ns
