"""`VerifiedSimControl`: the one `SimControl` over any dialect. It believes the clock (`control.base`).

How a request is sent and its reply awaited is `conversation`'s; here it is compared with the clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from embodied_env.core.types import FloatArray
from embodied_env.errors import BackendLostError, BackendNotReadyError, UsageError
from embodied_env.ros.external_sim.control.base import (
    ControlCapabilities,
    EntityState,
    Request,
    ResetResult,
    SimulatorApi,
    SimulatorNotReadyError,
    StepResult,
)
from embodied_env.ros.external_sim.control.clock_monitor import ClockMonitor
from embodied_env.ros.external_sim.control.service_session import CLOCK, PendingRequest, ServiceSession
from embodied_env.ros.receiver import POLL_S, LivenessCheck, ReceivedMessage, Receiver

_PROBE_S = 0.05  # between two looks at the services
_REST_S = 0.3  # so long the clock stands before the first request: what was left over would show
_SILENT_S = 0.6  # a clock that is not heard for so long is silent while it stands
_AHEAD_S = 0.02  # a reply that is so much earlier than the end of its step was sent when the request was queued


class VerifiedSimControl:
    """Moves a simulator by the requests of a dialect, and checks on its clock what became of them.

    A step is one request, then the clock at its target, seen twice.

    Attributes:
        clock: what is known of the simulated time.
        step_ns: length of a step of physics, ns.
    """

    def __init__(  # noqa: PLR0913 - its parts
        self,
        dialect: SimulatorApi,
        receiver: Receiver,
        *,
        patrol: LivenessCheck = lambda: None,
        clock: ClockMonitor | None = None,
        topic: str = CLOCK,
        step_ns: int,
        reply_timeout_s: float = 1.0,
        still_s: float = 0.1,
        hand_on: Callable[[ReceivedMessage], None] = lambda _: None,
    ) -> None:
        """Listen to the clock; nothing is asked.

        Args:
            dialect: builds the requests.
            receiver: sends them; its messages are taken here.
            patrol: called while waiting; raises when waiting has no sense any more.
            clock: follows the clock; None: a new one.
            topic: of the clock.
            step_ns: length of a step of physics, ns.
            reply_timeout_s: how long after the last sign of life a reply may take.
            still_s: a clock that falls silent when it stands is taken to stand after so much silence.
            hand_on: gets each message that is not of the clock.
        """
        self.clock = clock or ClockMonitor()
        self._talk = ServiceSession(
            receiver,
            self.clock,
            topic=topic,
            patrol=patrol,
            hand_on=hand_on,
            reply_timeout_s=reply_timeout_s,
            turn_s=still_s,
        )
        self._dialect, self.step_ns = dialect, step_ns
        self._still_s = still_s
        self._at_ns: int | None = None  # where the last call left the clock; None: nobody knows
        self._rewinds = 0

    @property
    def capabilities(self) -> ControlCapabilities:
        """What it can do; known after `connect`."""
        return self._dialect.capabilities

    def take(self, timeout_s: float) -> bool:
        """Take what has arrived, waiting for the first at most so long; return whether anything has."""
        return self._talk.take(timeout_s)

    def now_ns(self) -> int:
        """Return the simulated time, as it was last heard."""
        if self.clock.now_ns is None:
            raise BackendLostError("clock_stopped", "nothing was ever heard of the clock")
        return self.clock.now_ns

    def check(self) -> None:
        """Raise when the clock is not where the last call left it: somebody else moved the world since."""
        self._talk.drain()
        self._check_not_rewound()
        if self._at_ns is not None and self.now_ns() != self._at_ns:
            raise BackendLostError(
                "extra_steps",
                f"the clock was left at {self._at_ns} ns, and is at {self.now_ns()} ns: nobody here did it",
            )

    def check_still(self, end: float) -> None:
        """Take the clock as it stands, whatever was before; raises when it does not stand still."""
        self._at_ns, self._rewinds = None, self.clock.rewinds
        self._await_still(end)
        self._mark()

    def hear(self, end: float) -> None:
        """Make a clock that is silent while it stands be heard, by one step of physics; one that was heard is left."""
        if self.clock.now_ns is not None:
            return
        asked = self._talk.ask(self._dialect.step(1), end)
        self._talk.await_reply(asked, end)
        while self.clock.now_ns is None:
            if time.monotonic() > end:
                raise BackendLostError("clock_stopped", "it was stepped, and nothing was ever heard of the clock")
            self._talk.turn(asked, end)
        self.check_still(end)

    def close(self) -> None:
        """Forget where the clock was. Idempotent."""
        self._at_ns = None

    # ------------------------------------------------------------------------------------------ connecting

    def connect(self, end: float) -> None:
        """Find its services, wait until its clock stands still, and pause it."""
        for request in self._probe(end):
            with _in_reset():
                self._dialect.learn(self._talk.call(request, end))
        with _in_reset():
            self._await_rest(end)
            if self.capabilities.pause:
                self.pause(end)
            self._mark()

    def _probe(self, end: float) -> tuple[Request, ...]:
        while True:
            try:
                return self._dialect.probe(self._talk.services())
            except BackendNotReadyError:
                if time.monotonic() > end:
                    raise
            self.take(_PROBE_S)

    def _await_rest(self, end: float) -> None:
        """Wait until steps that a client asked for that is no more have run down."""
        since_s = time.monotonic()
        while True:
            self.take(POLL_S)
            now_s = time.monotonic()
            if self.clock.now_ns is None and now_s - since_s > _SILENT_S:
                return
            if self.clock.now_ns is not None and now_s - self.clock.changed_s > _REST_S:
                return
            if now_s > end:
                raise BackendLostError(
                    "settling", f"it is at {self.clock.now_ns} ns and goes on; allowed: a simulator that is paused"
                )

    def _mark(self) -> None:
        """What the clock shows now is what we left it at."""
        self._at_ns, self._rewinds = self.clock.now_ns, self.clock.rewinds

    def pause(self, end: float) -> None:
        """Stand still. Idempotent."""
        self._talk.call(self._dialect.pause(), end)

    # ------------------------------------------------------------------------------------------------ step

    def step(self, duration_ns: int, end: float) -> StepResult:
        """Move by so much simulated time; return when the world stands still again.

        Raises:
            UsageError: for a duration that is no whole number of steps of physics.
            BackendLostError: its `why` one of `FAULTS`.
        """
        self.check()
        before_ns = self.now_ns()
        steps, rest_ns = divmod(duration_ns, self.step_ns)
        if rest_ns or steps < 1:
            raise UsageError(f"{duration_ns} ns is not allowed; allowed: whole steps of {self.step_ns} ns")
        target_ns = before_ns + duration_ns
        asked = self._talk.ask(self._dialect.step(steps), end)
        while not self._is_over(asked, target_ns):
            self._talk.turn(asked, end)
            self._check_not_rewound()
            if self.now_ns() > target_ns:
                raise BackendLostError(
                    "extra_steps",
                    f"asked from {before_ns} to {target_ns} ns, and the clock is at {self.now_ns()} ns",
                )
            self._check_in_time(asked, before_ns, target_ns, end)
        self._mark()
        return StepResult(before_ns=before_ns, after_ns=target_ns, steps=steps)

    def _is_over(self, asked: PendingRequest, target_ns: int) -> bool:
        """Whether the clock stands at its target, and the reply is here."""
        clock = self.clock
        if clock.now_ns != target_ns or asked.answered_s is None:
            return False
        if clock.seen > 1:
            return True
        if asked.request.is_done_at_reply and clock.changed_s - asked.answered_s < _AHEAD_S:
            return True
        return time.monotonic() - clock.changed_s > self._still_s

    def _check_in_time(self, asked: PendingRequest, before_ns: int, target_ns: int, end: float) -> None:
        """Raise when there is no more sense in waiting, and say why."""
        now_s, at_ns = time.monotonic(), self.now_ns()
        moved_s = max(asked.asked_s, self.clock.changed_s)
        if at_ns == target_ns and asked.answered_s is not None:
            return  # it only has to be seen once more
        where = f"from {before_ns} to {target_ns} ns, the clock stands at {at_ns} ns"
        if asked.answered_s is None and (now_s > end or now_s - moved_s > self._talk.reply_timeout_s):
            if at_ns not in (before_ns, target_ns):
                raise BackendLostError("clock_stopped", f"{where}, and nobody answered")
            done = "was carried out" if at_ns == target_ns else "was not carried out"
            raise BackendLostError("reply_lost", f"{asked.request.service} did not answer; by the clock it {done}")
        if asked.answered_s is None:
            return
        if asked.request.is_done_at_reply and now_s - max(moved_s, asked.answered_s) > self._talk.reply_timeout_s:
            raise BackendLostError("step_unfinished", where)
        if now_s > end and now_s - moved_s > self._still_s:
            raise BackendLostError("clock_stopped", where)
        if now_s > end:
            raise BackendLostError("timeout", where)

    def _await_still(self, end: float) -> None:
        """Wait until the clock repeats itself, or is silent."""
        self._talk.drain()
        begun_s, heard = time.monotonic(), self.clock.seen
        while True:
            self.take(min(POLL_S, self._still_s))
            now_s = time.monotonic()
            if now_s - max(begun_s, self.clock.changed_s) > self._still_s:
                return
            if self.clock.changed_s < begun_s and self.clock.seen > heard + 1:
                return
            if now_s > end:
                raise BackendLostError("settling", f"paused, and the clock is at {self.clock.now_ns} ns and goes on")

    def _check_not_rewound(self) -> None:
        if self.clock.rewinds != self._rewinds:
            raise BackendLostError(
                "clock_rewound", f"the clock went back from {self.clock.from_ns} ns, and is at {self.clock.now_ns} ns"
            )

    # ----------------------------------------------------------------------------------------------- reset

    def reset(self, level: str, seed: int | None, end: float) -> ResetResult:
        """Reset; return when it has shown, and the world stands still.

        Raises:
            SimulatorNotReadyError: its `why` one of `FAULTS`.
        """
        with _in_reset():
            self.check_still(end)
            must_show = self.capabilities.rewinds_time and level in ("world", "time")
            if must_show and self.clock.now_ns == 0:
                self.step(self.step_ns, end)  # a reset at the very start would not show
            seed_used = self._reset(self._dialect.reset(level, seed), end, must_show=must_show)
            self._mark()
            return ResetResult(level=level, after_ns=self.now_ns(), seed_used=seed_used)

    def _reset(self, request: Request, end: float, *, must_show: bool) -> int | None:
        """Ask for it, and wait until it shows; return the seed that was taken."""
        clock = self.clock
        before_ns, rewinds, heard = clock.now_ns, clock.rewinds, clock.heard
        asked = self._talk.ask(request, end)

        def has_shown() -> bool:
            if before_ns is None or not must_show:
                return clock.heard > heard
            return clock.rewinds > rewinds

        def clock_tells() -> str:
            return "the clock shows the reset" if has_shown() else "the clock shows no reset"

        self._talk.await_reply(asked, end, clock_tells=clock_tells)
        while clock.now_ns is None or (must_show and not has_shown()):
            if time.monotonic() > end and clock.now_ns is None:
                raise BackendLostError("clock_stopped", "nothing was ever heard of the clock")
            if time.monotonic() > end:
                raise BackendLostError("reset_not_seen", f"it was taken, and the clock is still at {clock.now_ns} ns")
            self._talk.turn(asked, end)
        self._await_still(end)
        seed: int | None = asked.said
        return seed

    # -------------------------------------------------------------------------------------------- entities

    def state(self, entity: str, end: float) -> EntityState:
        """Return where an entity is now."""
        state: EntityState = self._talk.call(self._dialect.state(entity), end, entity)
        return state

    def set_state(self, entity: str, position: FloatArray, orientation: FloatArray, end: float) -> None:
        """Put an entity somewhere. Sensors show it after the next step."""
        self._talk.call(self._dialect.set_state(entity, position, orientation), end, entity)


@contextmanager
def _in_reset() -> Iterator[None]:
    """Before an episode a lost simulator is one that is not ready."""
    try:
        yield
    except BackendLostError as error:
        detail = str(error).removeprefix(f"{error.why}: ")
        raise SimulatorNotReadyError(error.why, detail) from None
