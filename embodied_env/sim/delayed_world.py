"""Injected delays in a world that waits: which readings are taken within a step, and which commands begin to act.

A reading has the stamp of the exact instant that the schedule says, and the values of the last physics step before it
or at it. A command acts from the first physics step that does not begin before its instant.
"""

from __future__ import annotations

from collections.abc import Iterator

from embodied_env.contract import Contract, FloatArray
from embodied_env.core.latency.delay_model import DelayModel, DelaySchedule, check_delays, schedule_of
from embodied_env.errors import UsageError
from embodied_env.sim.robot_emulation import TimedQueue


class DelayedWorld:
    """The delays of one world, step by step."""

    def __init__(self, schedule: DelaySchedule) -> None:
        """Follow `schedule`."""
        self._schedule = schedule
        self.sensors = schedule.model.names
        self.begin(0, 0)

    def begin(self, seed: int, origin_ns: int) -> None:
        """Begin an episode: what was under way is forgotten."""
        self._schedule.begin(seed, origin_ns)
        self._step = 0
        self._given: FloatArray | None = None
        self._commands: TimedQueue[FloatArray] = TimedQueue()
        self._asked = dict.fromkeys(self.sensors, 0)  # the last observation whose reading was taken
        self._look_ahead()

    def command(self, values: FloatArray) -> None:
        """Take the command of the next step; of several the last one counts."""
        self._given = values

    def next_step(self, begin_ns: int, end_ns: int) -> list[tuple[int, FloatArray]]:
        """Go on to the next step, of this time. Return what begins to act in it: ns after its begin, and what."""
        if self._given is not None:
            self._commands.put(self._schedule.plan(self._step).acts_ns, self._given)
            self._given = None
        self._step += 1
        self._look_ahead()
        acting = []
        while (due := self._commands.take_one(end_ns - 1)) is not None:
            acting.append((due[0] - begin_ns, due[1]))
        return acting

    def taken(self, before_ns: int) -> Iterator[tuple[str, int, int]]:
        """Yield which readings are to be taken before this: the sensor, exactly when, and when it is there."""
        if before_ns <= self._next_ns:
            return
        for name in self.sensors:
            while (found := self._following(name)) is not None and found[1] < before_ns:
                self._asked[name] = found[0]
                yield name, found[1], found[2]
        self._find_next()

    def _look_ahead(self) -> None:
        """Plan as far as readings may be taken in this step."""
        self._schedule.plan(self._step + self._schedule.ahead)
        self._find_next()

    def _find_next(self) -> None:
        following = (self._following(name) for name in self.sensors)
        self._next_ns = min((found[1] for found in following if found is not None), default=2**63)

    def _following(self, name: str) -> tuple[int, int, int] | None:
        """Return the next reading: for which observation, when it is taken, when it is there; None: not planned yet."""
        asked = self._asked[name]
        last_ns = self._schedule.plan(asked).taken_ns[name]
        for k in range(asked + 1, self._step + self._schedule.ahead + 1):
            plan = self._schedule.plan(k)
            if plan.taken_ns[name] > last_ns:
                return k, plan.taken_ns[name], plan.frozen_ns
        return None


def delayed_world(contract: Contract, delays: DelayModel, *, free_running: bool) -> DelayedWorld:
    """Return the delays of a world of `contract`; raises UsageError for one that does not wait, or other sensors."""
    if free_running:
        raise UsageError("delays of a world that does not wait are its stand_in's; allowed: delays in lockstep")
    check_delays(delays, contract)
    return DelayedWorld(schedule_of(delays, contract))
