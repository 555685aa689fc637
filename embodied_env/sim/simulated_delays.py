"""Delays of a simulated robot, emulated on a given clock or injected in lockstep.

An injected reading has the exact scheduled stamp and the values of the last physics step up to it. A command acts from
the first physics step that does not start before its time.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract, FloatArray
from embodied_env.errors import UsageError
from embodied_env.sim.world_profile import EmulatorSpec
from embodied_env.timing.clock import NS_PER_S
from embodied_env.timing.delay_model import DelayModel, schedule_of

T = TypeVar("T")


class TimedQueue(Generic[T]):
    """A priority queue by time, FIFO for equal times."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, T]] = []
        self._count = itertools.count()

    def __copy__(self) -> TimedQueue[T]:
        """Return a queue of the same items, which changes on its own."""
        copied: TimedQueue[T] = TimedQueue()
        for due_ns, _, item in sorted(self._heap, key=lambda each: each[:2]):
            copied.put(due_ns, item)
        return copied

    @property
    def next_ns(self) -> int | None:
        """Time of the first item, or None when empty."""
        return self._heap[0][0] if self._heap else None

    def put(self, due_ns: int, item: T) -> None:
        """Add `item` at `due_ns`."""
        heapq.heappush(self._heap, (due_ns, next(self._count), item))

    def take_one(self, now_ns: int) -> tuple[int, T] | None:
        """Remove and return the first due item with its time, or return None when nothing is due."""
        if not self._heap or self._heap[0][0] > now_ns:
            return None
        due_ns, _, item = heapq.heappop(self._heap)
        return due_ns, item

    def take_within(self, begin_ns: int, end_ns: int) -> list[tuple[int, T]]:
        """Remove and return the items due before `end_ns`, each with its time after `begin_ns`."""
        taken = []
        while (due := self.take_one(end_ns - 1)) is not None:
            taken.append((due[0] - begin_ns, due[1]))
        return taken

    def __iter__(self) -> Iterator[T]:
        return (item for _, _, item in sorted(self._heap, key=lambda each: each[:2]))

    def drop_after(self, due_ns: int, is_dropped: Callable[[T], bool]) -> None:
        """Remove these of the items due after `due_ns`."""
        self._heap = [each for each in self._heap if each[0] <= due_ns or not is_dropped(each[2])]
        heapq.heapify(self._heap)

    def clear(self) -> None:
        """Remove every item."""
        self._heap.clear()


class EmulatedController:
    """The active command of an emulated robot, over all actuators, on its steady clock.

    Commands become active in order, the dead time and a random jitter after their arrival. The jitter depends on the
    seed of the reset and the number of commands since.

    Attributes:
        target: the active command, shape (n_joints,).
        since_ns: the time of its activation.
    """

    def __init__(
        self,
        slices: Sequence[slice],
        is_velocity: NDArray[np.bool_],
        *,
        emulator: EmulatorSpec,
        timeout_s: float | None,
    ) -> None:
        """Command actuators with these joints, where velocities not sent again end at `timeout_s`."""
        self._slices, self._is_velocity = slices, is_velocity
        self._timeout_ns = None if timeout_s is None else _ns(timeout_s)
        self._declared_ns, self._jitter_ns = _ns(emulator.command_delay_s), _ns(emulator.command_jitter_s)
        self._pending: TimedQueue[tuple[int, FloatArray]] = TimedQueue()
        self.begin(0, 0, np.zeros(len(is_velocity)))

    def begin(self, seed: int, now_ns: int, target: FloatArray, *, delay_ns: int | None = None) -> None:
        """Begin an episode with `target` active, and `delay_ns` in place of the dead time."""
        self.stop()
        self._delay_ns = self._declared_ns if delay_ns is None else delay_ns
        self._rng = np.random.default_rng([seed, *b"command_jitter"])
        self._unsent: list[tuple[int, FloatArray]] = []  # activations the world did not get yet
        self._activated_ns = [now_ns] * len(self._slices)
        self.target, self.since_ns = target, now_ns

    def stop(self) -> None:
        """Discard pending commands, until the next `begin`."""
        self._pending.clear()
        self._last_due_ns = -(2**63)

    @property
    def next_ns(self) -> int | None:
        """Time at which the next command becomes active, or None without one."""
        return self._pending.next_ns

    def receive(self, now_ns: int, actuator: int, values: FloatArray) -> None:
        """Add an arriving command of the actuator with this index, which replaces a trajectory."""
        self._pending.put(self._replace(now_ns, actuator), (actuator, values))

    def follow(self, now_ns: int, actuator: int, points: Sequence[tuple[int, FloatArray]], *, reach_ns: int) -> None:
        """Replace the trajectory of the actuator with this index by points, each with its time.

        The robot reaches each `reach_ns` after its command. That of the motion in progress is not commanded again.
        """
        begin_ns = self._replace(now_ns, actuator)
        latest = [self.target[self._slices[actuator]], *(item[1] for item in self._pending if item[0] == actuator)][-1]
        timed = [(max(begin_ns, due_ns - reach_ns + begin_ns - now_ns), values) for due_ns, values in points]
        passed = sum(since_ns == begin_ns for since_ns, _ in timed[1:])
        for since_ns, values in timed[passed:]:
            if since_ns > begin_ns or not np.array_equal(values, latest):
                self._pending.put(since_ns, (actuator, values))

    def _replace(self, now_ns: int, actuator: int) -> int:
        """Return when a command arriving now becomes active, and drop what it replaces."""
        due_ns = now_ns + self._delay_ns
        if self._jitter_ns:
            due_ns += int(self._rng.integers(self._jitter_ns, endpoint=True))
        self._last_due_ns = max(due_ns, self._last_due_ns)
        self._pending.drop_after(self._last_due_ns, lambda item: item[0] == actuator)
        return self._last_due_ns

    def enforce(self, now_ns: int) -> bool:
        """Activate the oldest due command, and return whether there was one."""
        due = self._pending.take_one(now_ns)
        if due is None:
            return False
        since_ns, (actuator, values) = due
        self._activated_ns[actuator] = since_ns
        self._change(self._slices[actuator], values, since_ns)
        return True

    def end_old_velocity(self, now_ns: int) -> bool:
        """End one actuator's timed-out velocities, and return whether there were any."""
        for part, activated_ns in zip(self._slices, self._activated_ns, strict=True):
            acting = np.where(self._is_velocity[part], self.target[part], 0.0)
            if self._timeout_ns is not None and acting.any() and now_ns - activated_ns > self._timeout_ns:
                self._change(part, self.target[part] - acting, now_ns)
                return True
        return False

    def take_activations(self, begin_ns: int, end_ns: int) -> list[tuple[int, FloatArray]]:
        """Return the new activations up to the end of a tick, as ns after its start and values."""
        due = [command for command in self._unsent if command[0] <= end_ns]
        self._unsent = [command for command in self._unsent if command[0] > end_ns]
        return [(max(0, since_ns - begin_ns), values) for since_ns, values in due]

    def _change(self, part: slice, values: FloatArray, since_ns: int) -> None:
        self.target = self.target.copy()
        self.target[part] = values
        self.since_ns = since_ns
        self._unsent.append((since_ns, self.target))


def _ns(seconds: float) -> int:
    return round(seconds * NS_PER_S)


class DelayedWorld:
    """The delays of one world, step by step."""

    def __init__(self, contract: Contract, delays: DelayModel, *, free_running: bool) -> None:
        """Schedule `delays`, or raise UsageError if free-running or for another contract's sensors."""
        if free_running:
            raise UsageError("cannot inject delays into a free-running world; declare them in its profile's emulator")
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
        """Set the command of the next step, of which the last one counts."""
        self._given = values

    def next_step(self, begin_ns: int, end_ns: int) -> list[tuple[int, FloatArray]]:
        """Start a step and return the commands that act in it, as (ns after its start, values)."""
        if self._given is not None:
            self._commands.put(self._schedule.plan(self._step).acts_ns, self._given)
            self._given = None
        self._step += 1
        self._plan_step()
        return self._commands.take_within(begin_ns, end_ns)

    def taken(self, before_ns: int) -> Iterator[tuple[str, int, int]]:
        """Yield sensor, time and delivery of the readings to be taken before this time."""
        if before_ns <= self._next_ns:
            return
        for name in self.sensors:
            while (found := self._following(name)) is not None and found[1] < before_ns:
                self._observed[name] = found[0]
                yield name, found[1], found[2]
        self._find_next()

    def _plan_step(self) -> None:
        self._schedule.plan(self._step + self._schedule.ahead)
        self._find_next()

    def _find_next(self) -> None:
        following = (self._following(name) for name in self.sensors)
        self._next_ns = min((found[1] for found in following if found is not None), default=2**63)

    def _following(self, name: str) -> tuple[int, int, int] | None:
        """Return observation, time and delivery of the next reading, None if not planned."""
        last = self._observed[name]
        last_ns = self._schedule.plan(last).taken_ns[name]
        for k in range(last + 1, self._step + self._schedule.ahead + 1):
            plan = self._schedule.plan(k)
            if plan.taken_ns[name] > last_ns:
                return k, plan.taken_ns[name], plan.frozen_ns
        return None
