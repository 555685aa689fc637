"""Simulators in this process on wall time: the world moves on while the agent thinks."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from embodied_env.backends.base import Capabilities
from embodied_env.backends.fake import FakeBackend, Fault
from embodied_env.backends.mujoco import MujocoBackend
from embodied_env.contract import Contract
from embodied_env.core.clock import NS_PER_S, Clock, Stamp
from embodied_env.core.pacing import Pacer
from embodied_env.core.types import ApprovedCommand, ClockStatus, ResetRequest, SentCommand, Snapshot
from embodied_env.errors import BackendLostError

_WINDOW_NS = NS_PER_S  # the real-time factor is that of the last one or two of them


class TickedWorld(Protocol):
    """A world that moves by whole ticks of its own time."""

    now_ns: int
    tick_ns: int

    def step(self) -> None:
        """Move by one tick."""
        ...


class RealtimeStepper:
    """Keeps the time of a world at that of a clock, tick by tick, as far as the machine can.

    It computes at most `patience_ns` of the clock's time longer than is due. What is not caught up by then is dropped:
    the world's time falls behind the clock's for good, and `rtf` says so. So a world that is too slow never makes a
    burst, and never holds up its caller without an end.
    """

    def __init__(self, world: TickedWorld, clock: Clock, *, patience_ns: int) -> None:
        """Follow `clock` from now on."""
        self._world = world
        self._clock = clock
        self._patience_ns = patience_ns
        self.begin()

    def begin(self) -> None:
        """The time of the world as it is belongs to now; nothing was dropped."""
        now_ns = self._clock.now_ns()
        self.offset_ns = self._world.now_ns - now_ns  # of the world's time from the clock
        self._windows = [(now_ns, 0), (now_ns, 0)]  # where each began, and what was dropped in it

    @property
    def next_ns(self) -> int:
        """When the next tick ends, by the clock."""
        return self._world.now_ns + self._world.tick_ns - self.offset_ns

    def catch_up(self) -> None:
        """Run the ticks that have ended by now."""
        now_ns = self._clock.now_ns()
        while self.next_ns <= now_ns:
            self.tick(now_ns)

    def tick(self, due_ns: int) -> None:
        """Run the next tick, which nobody must look at before it ends. The patience is counted from `due_ns`."""
        self._world.step()
        now_ns = self._clock.now_ns()
        late_ns = now_ns - self.next_ns
        if late_ns >= 0 and now_ns - due_ns > self._patience_ns:
            dropped_ns = (late_ns // self._world.tick_ns + 1) * self._world.tick_ns
            self.offset_ns -= dropped_ns
            start_ns, before_ns = self._windows[-1]
            self._windows[-1] = start_ns, before_ns + dropped_ns

    def rtf(self) -> float:
        """Return how fast the world's time has run by the clock during the last seconds; 1: nothing was dropped."""
        now_ns = self._clock.now_ns()
        first_ns = self._windows[0][0]
        dropped_ns = sum(dropped for _, dropped in self._windows)
        if now_ns - self._windows[-1][0] >= _WINDOW_NS:
            self._windows = [self._windows[-1], (now_ns, 0)]
        return 1.0 if not dropped_ns else max(0.0, 1.0 - dropped_ns / (now_ns - first_ns))


class RealtimeMujocoBackend(MujocoBackend):
    """The world of `MujocoBackend`, which waits for nobody. A step ends at ``t0 + k * period`` on the steady clock.

    There is no thread: the world moves when somebody looks. Before a command is taken, the ticks that have passed run
    under the one before it; so after a policy that has thought for three periods the world is three periods further.
    If the agent never comes back, the watchdog's commands move it. A look computes for at most one control period
    longer than is due; what is lost by that shows as ``rtf`` below 1.

    Attributes:
        pacer: the deadlines of the steps of an episode, and what was missed of them.
    """

    capabilities = Capabilities(
        free_running=True,
        seedable=True,
        state_query=True,
        reset_levels=("world",),
        render_modes=("rgb_array",),
    )

    def __init__(self, contract: Contract, *, clock: Clock, step_timeout_s: float | None = None) -> None:
        """Read the profile ``backends.mujoco`` of `contract`; the world is built by `open`."""
        super().__init__(contract, clock=clock, step_timeout_s=step_timeout_s)
        self.pacer = Pacer(clock, contract.control_period_ns)
        self._lock = threading.RLock()  # the watchdog sends from a thread of its own
        self._follower: RealtimeStepper | None = None

    def open(self) -> None:
        """Build the world."""
        super().open()
        self._follower = RealtimeStepper(self._opened(), self._clock, patience_ns=self._contract.control_period_ns)

    def reset(self, request: ResetRequest, deadline: Stamp) -> Snapshot:
        """Reset the world by its seed. From then on it moves."""
        with self._lock:
            snapshot = super().reset(request, deadline)
            self._following().begin()
            self.pacer.begin()
            return replace(snapshot, clock=self._clock_account())

    def send(self, command: ApprovedCommand) -> SentCommand:
        """Let pass what has passed under the last command, then take this one. Any thread may send."""
        with self._lock:
            if isinstance(command, ApprovedCommand):
                self._running()
                self._following().catch_up()
            return super().send(command)

    def advance(self, target: Stamp, deadline: Stamp) -> None:  # noqa: ARG002 - time comes by itself
        """Wait for the end of the control period; what is read then is of that time.

        A tick is computed when it begins, so nothing is left to compute at the deadline.
        """
        self._running()
        due_ns = self.pacer.deadline_ns
        while (pause_ns := self._tick_by(due_ns)) is not None:
            self._clock.sleep_until_ns(pause_ns)
        self.pacer.wait()

    def _tick_by(self, due_ns: int) -> int | None:
        """Run the next tick if it ends by `due_ns`; return when one more begins that does, or None."""
        with self._lock:  # a command of the watchdog may have run it
            self._running()
            follower = self._following()
            if (end_ns := follower.next_ns) <= due_ns:
                follower.tick(due_ns)
            return end_ns if follower.next_ns <= due_ns else None

    def read(self, after: Stamp, deadline: Stamp) -> Snapshot:
        """Read every sensor that has delivered."""
        with self._lock:
            return super().read(after, deadline)

    def render(self) -> NDArray[np.uint8]:
        """Return a picture of the world as it was last moved, shape (height, width, 3)."""
        with self._lock:
            return super().render()

    def show(self) -> None:
        """Show the world as it was last moved in a window."""
        with self._lock:
            super().show()

    def close(self) -> None:
        """Free the world."""
        with self._lock:
            self._follower = None
            super().close()

    def _clock_account(self) -> ClockStatus:
        follower, world = self._following(), self._opened()
        return ClockStatus(mode="sim", offset_ns=follower.offset_ns, offset_error_ns=world.tick_ns, rtf=follower.rtf())

    def _following(self) -> RealtimeStepper:
        if self._follower is None:
            raise BackendLostError("closed", "the world is not open")
        return self._follower


def realtime_fake(
    contract: Contract,
    *,
    clock: Clock,
    faults: Sequence[Fault] = (),
    free_running: bool = True,
    step_timeout_s: float = 1.0,
    reset_timeout_s: float = 1.0,
) -> FakeBackend:
    """Return a fake world that moves by itself."""
    return FakeBackend(
        contract,
        clock=clock,
        faults=faults,
        free_running=free_running,
        step_timeout_s=step_timeout_s,
        reset_timeout_s=reset_timeout_s,
    )
