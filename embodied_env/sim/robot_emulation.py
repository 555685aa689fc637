"""The delays of the stand-in robot, on whatever clock they are told: what is due, commands under way, stamps."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import FloatArray
from embodied_env.core.clock import NS_PER_S
from embodied_env.sim.profile import Driver, StandIn

T = TypeVar("T")


class TimedQueue(Generic[T]):
    """Things that wait for their time. Of equal times, the first put is the first out."""

    def __init__(self) -> None:
        """Begin empty."""
        self._heap: list[tuple[int, int, T]] = []
        self._count = itertools.count()

    @property
    def next_ns(self) -> int | None:
        """When the next one is due; None: nothing waits."""
        return self._heap[0][0] if self._heap else None

    def put(self, due_ns: int, thing: T) -> None:
        """Let `thing` wait until `due_ns`."""
        heapq.heappush(self._heap, (due_ns, next(self._count), thing))

    def take_one(self, now_ns: int) -> tuple[int, T] | None:
        """Take out what was due first, with its time; None: nothing is due by now."""
        if not self._heap or self._heap[0][0] > now_ns:
            return None
        due_ns, _, thing = heapq.heappop(self._heap)
        return due_ns, thing

    def clear(self) -> None:
        """Forget everything."""
        self._heap.clear()


class CommandDelayLine:
    """The dead time of the actuators: a command is in force so much after its arrival, and none before an earlier one.

    What is random in it depends on the seed of the reset, and on how many commands came since.
    """

    def __init__(self, delay_s: float, jitter_s: float = 0.0) -> None:
        """Delay by `delay_s`, and up to `jitter_s` more; both >= 0."""
        self._delay_ns, self._jitter_ns = _ns(delay_s), _ns(jitter_s)
        self._queue: TimedQueue[tuple[int, FloatArray]] = TimedQueue()
        self.begin(0)

    @property
    def next_ns(self) -> int | None:
        """When the next command comes into force; None: none is under way."""
        return self._queue.next_ns

    def begin(self, seed: int) -> None:
        """Begin an episode: nothing that was under way is ever in force."""
        self._rng = np.random.default_rng([seed, *b"command_jitter"])
        self.clear()

    def clear(self) -> None:
        """Forget what is under way."""
        self._queue.clear()
        self._last_ns: int | None = None

    def put(self, arrival_ns: int, actuator: int, values: FloatArray) -> None:
        """Take a command of the actuator with this index as it arrives."""
        due_ns = arrival_ns + self._delay_ns
        if self._jitter_ns:
            due_ns += int(self._rng.integers(self._jitter_ns, endpoint=True))
        if self._last_ns is not None:
            due_ns = max(due_ns, self._last_ns)
        self._last_ns = due_ns
        self._queue.put(due_ns, (actuator, values))

    def take_one(self, now_ns: int) -> tuple[int, tuple[int, FloatArray]] | None:
        """Take out the oldest command that is in force by now: since when, which actuator, its values."""
        return self._queue.take_one(now_ns)


class EmulatedController:
    """What commands a robot obeys, and since when: those of all its actuators together, on its steady clock.

    Attributes:
        target: the command in force, shape (n_joints,).
        since_ns: since when it is.
    """

    def __init__(
        self,
        slices: Sequence[slice],
        is_velocity: NDArray[np.bool_],
        *,
        stand_in: StandIn,
        timeout_s: float | None,
    ) -> None:
        """Command the actuators whose joints are `slices`; `timeout_s`: of a velocity that is not commanded again."""
        self._slices, self._is_velocity = slices, is_velocity
        self._timeout_ns = None if timeout_s is None else _ns(timeout_s)
        self._under_way = CommandDelayLine(stand_in.command_delay_s, stand_in.command_jitter_s)
        self.begin(0, 0, np.zeros(len(is_velocity)))

    def begin(self, seed: int, now_ns: int, target: FloatArray) -> None:
        """Begin an episode with `target` in force: nothing of the last one is ever in force."""
        self._under_way.begin(seed)
        self._untold: list[tuple[int, FloatArray]] = []  # what the world was not told yet: since when, what
        self._heard_ns = [now_ns] * len(self._slices)
        self.target, self.since_ns = target, now_ns

    def stop(self) -> None:
        """Forget what is under way, until the next `begin`."""
        self._under_way.clear()

    @property
    def next_ns(self) -> int | None:
        """When the next command comes into force; None: none is under way."""
        return self._under_way.next_ns

    def receive(self, now_ns: int, actuator: int, values: FloatArray) -> None:
        """Take a command of the actuator with this index as it arrives."""
        self._under_way.put(now_ns, actuator, values)

    def enforce(self, now_ns: int) -> bool:
        """Put one command into force that is due by now, the oldest first; return whether there was one."""
        due = self._under_way.take_one(now_ns)
        if due is None:
            return False
        since_ns, (actuator, values) = due
        self._heard_ns[actuator] = since_ns
        self._change(self._slices[actuator], values, since_ns)
        return True

    def end_old_velocity(self, now_ns: int) -> bool:
        """End the velocities of one actuator that are not commanded any more; return whether there was one."""
        for part, heard_ns in zip(self._slices, self._heard_ns, strict=True):
            acting = np.where(self._is_velocity[part], self.target[part], 0.0)
            if self._timeout_ns is not None and acting.any() and now_ns - heard_ns > self._timeout_ns:
                self._change(part, self.target[part] - acting, now_ns)
                return True
        return False

    def tell(self, begin_ns: int, end_ns: int) -> list[tuple[int, FloatArray]]:
        """Return what acts in the tick of this time, and was not told before: ns after its begin, and what."""
        untold, self._untold = self._untold, []
        self._untold = [command for command in untold if command[0] > end_ns]
        return [(max(0, since_ns - begin_ns), values) for since_ns, values in untold if since_ns <= end_ns]

    def _change(self, part: slice, values: FloatArray, since_ns: int) -> None:
        self.target = self.target.copy()
        self.target[part] = values
        self.since_ns = since_ns
        self._untold.append((since_ns, self.target))


class EmulatedDrivers:
    """When the readings of sensors are published, and what their headers say."""

    def __init__(self, stand_in: StandIn) -> None:
        """Follow what is declared; a sensor without an entry is published at once."""
        self._sensors = stand_in.sensors
        self._offset_ns = _ns(stand_in.clock_offset_s)

    def due_ns(self, sensor: str, there_ns: int) -> int:
        """Return when a reading is published that was there at `there_ns`, on the same clock."""
        return there_ns + _ns(self._of(sensor).driver_delay_s)

    def header_ns(self, sensor: str, acquired_ns: int, published_ns: int) -> int:
        """Return the stamp of a header, of times in UTC. A stamp of zero is 0 whatever the clock."""
        driver = self._of(sensor)
        if driver.stamp == "zero":
            return 0
        true_ns = published_ns if driver.stamp == "publication" else acquired_ns
        return self.robot_ns(true_ns) + _ns(driver.clock_offset_s)

    def robot_ns(self, utc_ns: int) -> int:
        """Return what the robot's clock shows at a time in UTC."""
        return utc_ns + self._offset_ns

    def _of(self, sensor: str) -> Driver:
        return self._sensors.get(sensor, _AT_ONCE)


_AT_ONCE = Driver()


def _ns(seconds: float) -> int:
    return round(seconds * NS_PER_S)
