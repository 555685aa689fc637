"""Injected delays in lockstep: the readings taken and the commands that take effect within a step.

A reading has the exact scheduled stamp and the values of the last physics step up to it. A command acts from the first
physics step that does not start before its time.
"""

from __future__ import annotations

from collections.abc import Iterator

from embodied_env.contract import Contract, FloatArray
from embodied_env.errors import UsageError
from embodied_env.sim.robot_emulation import TimedQueue
from embodied_env.timing.delay_model import DelayModel, check_delays, schedule_of


class DelayedWorld:
    """The delays of one world, step by step."""

    def __init__(self, contract: Contract, delays: DelayModel, *, free_running: bool) -> None:
        """Schedule `delays`; raises UsageError for a free-running world, or for sensors of another contract."""
        if free_running:
            raise UsageError("cannot inject delays into a free-running world; declare them in its profile's emulator")
        check_delays(delays, contract)
        self._schedule = schedule_of(delays, contract)
        self.sensors = self._schedule.model.names
        self.begin(0, 0)

    def begin(self, seed: int, origin_ns: int) -> None:
        """Begin an episode, without pending commands and readings."""
        self._schedule.begin(seed, origin_ns)
        self._step = 0
        self._given: FloatArray | None = None
        self._commands: TimedQueue[FloatArray] = TimedQueue()
        self._observed = dict.fromkeys(self.sensors, 0)  # the last observation whose reading was taken
        self._plan_step()

    def command(self, values: FloatArray) -> None:
        """Set the command of the next step; the last one counts."""
        self._given = values

    def next_step(self, begin_ns: int, end_ns: int) -> list[tuple[int, FloatArray]]:
        """Start the next step; return the commands that take effect in it: ns after its start, and the values."""
        if self._given is not None:
            self._commands.put(self._schedule.plan(self._step).acts_ns, self._given)
            self._given = None
        self._step += 1
        self._plan_step()
        return self._commands.take_within(begin_ns, end_ns)

    def taken(self, before_ns: int) -> Iterator[tuple[str, int, int]]:
        """Yield the readings to be taken before this time: sensor, exact time, time of delivery."""
        if before_ns <= self._next_ns:
            return
        for name in self.sensors:
            while (found := self._following(name)) is not None and found[1] < before_ns:
                self._observed[name] = found[0]
                yield name, found[1], found[2]
        self._find_next()

    def _plan_step(self) -> None:
        """Plan every observation whose readings may be taken in this step."""
        self._schedule.plan(self._step + self._schedule.ahead)
        self._find_next()

    def _find_next(self) -> None:
        following = (self._following(name) for name in self.sensors)
        self._next_ns = min((found[1] for found in following if found is not None), default=2**63)

    def _following(self, name: str) -> tuple[int, int, int] | None:
        """Return the next reading: its observation, time and time of delivery; None: not planned yet."""
        last = self._observed[name]
        last_ns = self._schedule.plan(last).taken_ns[name]
        for k in range(last + 1, self._step + self._schedule.ahead + 1):
            plan = self._schedule.plan(k)
            if plan.taken_ns[name] > last_ns:
                return k, plan.taken_ns[name], plan.frozen_ns
        return None
