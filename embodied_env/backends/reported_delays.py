"""Report the delays that a lockstep backend injects.

A backend with an option `delays` takes readings at the exact instants and lets commands act at theirs. These follow
from model and seed, so `ReportedDelays` computes them again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from embodied_env.backends.backend import Backend
from embodied_env.contract import Contract
from embodied_env.core.types import InjectedDelays, ResetRequest, Snapshot
from embodied_env.timing.delay_model import DelayModel, schedule_of


def forwarded(name: str, *default: Any) -> Any:  # noqa: ANN401 - the type of the backend's attribute
    """Return a property that reads `name` of the wrapped backend, or `default` without it."""
    return property(lambda self: getattr(self._world, name, *default))


class ReportedDelays:
    """Wrapper with the flags of its backend, which adds the injected delays to the snapshots."""

    open = forwarded("open")
    send = forwarded("send")
    halt = forwarded("halt")
    close = forwarded("close")
    processes = forwarded("processes")
    feed = forwarded("feed", None)
    render = forwarded("render")
    show = forwarded("show")

    def __init__(self, world: Backend, model: DelayModel, contract: Contract) -> None:
        """Wrap `world`, which injects the delays of `model`, or raise UsageError for other sensors."""
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

    def reset(self, request: ResetRequest, deadline_ns: int) -> Snapshot:
        """Start an episode, whose delays depend only on the seed of the request."""
        snapshot = self._world.reset(request, deadline_ns)
        self._schedule.begin(request.seed, snapshot.now_ns)
        self._step = 0
        return replace(snapshot, injected=InjectedDelays(early=self._schedule.plan(0).early))

    def advance(self, target_ns: int, deadline_ns: int) -> None:
        """Start the motion of the world."""
        self._world.advance(target_ns, deadline_ns)
        self._step += 1

    def read(self, after_ns: int, deadline_ns: int) -> Snapshot:
        """Read the newest samples, with the delays that led to them."""
        snapshot = self._world.read(after_ns, deadline_ns)
        command, readings = self._schedule.plan(self._step - 1), self._schedule.plan(self._step)
        injected = InjectedDelays(
            inference_ns=command.inference_ns, actuation_ns=command.actuation_ns, early=readings.early
        )
        return replace(snapshot, injected=injected)
