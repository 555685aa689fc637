"""Step an external simulator by any `SimulatorApi`, and verify requests on its clock.

The rules are in `api`; `service_session` sends the requests.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from embodied_env.core.types import FloatArray
from embodied_env.errors import BackendLostError, BackendNotReadyError, UsageError
from embodied_env.extensions.gazebo.control.service_session import CLOCK, REST_S, PendingRequest, ServiceSession
from embodied_env.extensions.gazebo.control.simulator_api import ControlCapabilities, EntityState, SimulatorApi
from embodied_env.ros.transport.receiver import POLL_S
from embodied_env.timing.clock import NS_PER_S

_PROBE_S = 0.05  # between two queries of the services in the graph
_SILENT_S = 0.6  # without a stamp for this long a clock is silent while the simulator is at rest
_THROTTLED = 0.95  # duration of a step of a throttled world, as a share of its simulated time
_EARLY_S = 0.02  # a reply that precedes the end of its step by more was sent when the request was queued


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """When the parts of a step were over, monotonic s."""

    sent_s: float  # the request was sent
    answered_s: float  # its reply arrived
    reached_s: float  # the clock first showed the end of the step
    at_rest_s: float  # the world was found at rest
    duration_ns: int  # the simulated time of the step

    def describe_throttle(self, world: str | None) -> str:
        """Return why the step took at least its simulated time, with a remedy, or ""."""
        took_s, duration_s = self.reached_s - self.sent_s, self.duration_ns / NS_PER_S
        if took_s < _THROTTLED * duration_s:
            return ""
        problem = f"a step of {duration_s:g} s takes {took_s:.3g} s: the world is throttled, or its host is too slow"
        if world is None:
            return f"{problem}; let the simulator run as fast as it can"
        return (
            f"{problem}; set <real_time_factor>0</real_time_factor> in <physics> of the world, or start it with launch "
            f"gazebo real_time_factor:=0; while it runs: gz service -s /world/{world}/set_physics --reqtype "
            "gz.msgs.Physics --reptype gz.msgs.Boolean --timeout 2000 --req 'real_time_factor: 1000' (the bridge "
            "has no SetPhysics, which ignores 0)"
        )


class LockstepControl:
    """Controls one simulator, with `end` as the monotonic time, s, by which a call returns.

    Every call raises BackendLostError with a `why` of `FAULTS`.

    Attributes:
        session: sends the requests.
        clock: the simulated time.
        step_ns: length of a physics step, ns.
        last_step: the times of the last step; None before the first.
    """

    def __init__(self, api: SimulatorApi, session: ServiceSession, *, step_ns: int, still_s: float = 0.1) -> None:
        """Prepare the control, where a clock silent for `still_s` counts as at rest."""
        self.session, self.clock = session, session.clock
        self.clock.repeats = api.repeats_clock
        self.step_ns = step_ns
        self._api = api
        self._still_s = still_s
        self._left_ns: int | None = None  # the clock after the last call, None if unknown
        self._rewinds = 0
        self._begun: tuple[PendingRequest, int, int] | None = None  # the request of a step, its start and end, ns
        self.last_step: StepTimes | None = None

    @property
    def capabilities(self) -> ControlCapabilities:
        """Return the abilities of the simulator, known after `connect`."""
        return self._api.capabilities

    def now_ns(self) -> int:
        """Return the newest simulated time."""
        if self.clock.now_ns is None:
            raise BackendLostError("clock_stopped", "no clock message received")
        return self.clock.now_ns

    def check_unmoved(self) -> None:
        """Raise BackendLostError if another client has moved the clock since the last call."""
        self.session.drain()
        self._check_not_rewound()
        if self._left_ns is not None and self.now_ns() != self._left_ns:
            raise BackendLostError(
                "extra_steps", f"the clock moved from {self._left_ns} to {self.now_ns()} ns without a request of ours"
            )

    def settle(self, end: float) -> None:
        """Wait until the clock is at rest, and make it the reference of `check_unmoved`."""
        self._left_ns, self._rewinds = None, self.clock.rewinds
        self._await_still(end)
        self._store_reference()

    def wake_clock(self, end: float) -> None:
        """Take one physics step before the first stamp, as some simulators publish none at rest."""
        if self.clock.now_ns is None:
            self._run_down(end)

    def _run_down(self, end: float) -> None:
        """Run the rest of an interrupted request by one physics step, and wait for rest."""
        before_ns = self.clock.now_ns
        self.session.call_once(self._api.step(1), end)
        while self.clock.now_ns == before_ns:
            if time.monotonic() > end:
                raise BackendLostError("clock_stopped", f"clock still at {before_ns} ns after a step")
            self.session.receive(POLL_S, only=(CLOCK,))
        self.settle(end)

    # ------------------------------------------------------------------------------------------ connecting

    def connect(self, end: float) -> None:
        """Find the services of the simulator, wait until its clock is at rest, and pause it.

        A pause may have interrupted a step that was requested before. The simulator keeps the rest of it, through a
        reset of the world, and adds it to the next request.

        Raises BackendNotReadyError when a service is missing, and as all calls do.
        """
        self.probe(end)
        self._await_leftover_steps(end)
        self.confirm_paused(end)
        if self.capabilities.pause:
            self._run_down(end)
        self._store_reference()

    def probe(self, end: float) -> None:
        """Find the simulator's services and `capabilities`, with the errors of `connect`."""
        while True:
            try:
                requests = self._api.probe(self.session.services())
                break
            except BackendNotReadyError:
                if time.monotonic() > end:
                    raise
            self.session.receive(_PROBE_S)
        for request in requests:
            self.session.call(request, end)

    def _await_leftover_steps(self, end: float) -> None:
        """Wait for earlier steps to end, half of the time if a stalled simulator is silent."""
        clock, since_s = self.clock, time.monotonic()
        silent_end = since_s + (end - since_s) / 2
        while True:
            self.session.receive(POLL_S)
            now_s = time.monotonic()
            if clock.now_ns is None and not clock.repeats and now_s - since_s > _SILENT_S:
                return
            if clock.now_ns is not None and clock.is_at_rest(0.0, REST_S):
                return
            if clock.repeats and clock.received_s < since_s and now_s > (silent_end if clock.received else end):
                problem = f"no clock message for {now_s - since_s:.1f} s: the simulator is suspended or has ended"
                raise BackendLostError("clock_stopped", f"{problem}; resume or restart it, and see its log")
            if now_s > end:
                raise BackendLostError(
                    "settling", f"clock still moving at {self.clock.now_ns} ns (expected a paused simulator)"
                )

    def confirm_paused(self, end: float) -> None:
        """Pause, and await one more stamp if they repeat at rest, as the server may be new."""
        if not self.capabilities.pause:
            return
        self.pause(end)
        received, silent_s = self.clock.received, time.monotonic() + _SILENT_S * (self.clock.seen > 1)
        while self.clock.received == received and (left_s := silent_s - time.monotonic()) > 0:
            self.session.receive(left_s, only=(CLOCK,))

    def pause(self, end: float) -> None:
        """Pause at rest, again after a lost reply, since a pause would interrupt a running step."""
        while True:
            try:
                self.session.call_once(self._api.pause(), end)
            except BackendLostError as error:
                if error.why != "reply_lost" or time.monotonic() > end:
                    raise
            else:
                return
            self._await_leftover_steps(end)

    # ------------------------------------------------------------------------------------------------ step

    def step(self, duration_ns: int, end: float) -> int:
        """Advance simulated time by `duration_ns`, and return it once the world is at rest."""
        self.begin_step(duration_ns, end)
        self.finish_step(end)
        return self.now_ns()

    def step_to_period(self, steps: int, period_ns: int, end: float) -> None:
        """Take `steps` physics steps, and more up to the end of a control period."""
        steps += -(self.now_ns() // self.step_ns + steps) % (period_ns // self.step_ns)
        self.step(steps * self.step_ns, end)

    def begin_step(self, duration_ns: int, end: float) -> None:
        """Request a step without waiting, or raise UsageError for a part of a physics step."""
        self.check_unmoved()
        before_ns = self.now_ns()
        steps, rest_ns = divmod(duration_ns, self.step_ns)
        if rest_ns or steps < 1:
            raise UsageError(f"wrong duration of a step: {duration_ns} ns (expected a multiple of {self.step_ns} ns)")
        self._begun = self.session.send(self._api.step(steps), end), before_ns, before_ns + duration_ns

    def finish_step(self, end: float) -> None:
        """Wait until the world is at rest after the step of `begin_step`, if any."""
        if self._begun is None:
            return
        (pending, before_ns, target_ns), self._begun = self._begun, None
        while not self._is_over(pending, target_ns):
            self.session.poll(pending, end)
            self._check_not_rewound()
            if self.now_ns() > target_ns:
                raise BackendLostError(
                    "extra_steps",
                    f"requested a step from {before_ns} to {target_ns} ns, but the clock is at {self.now_ns()} ns",
                )
            self._check_timeouts(pending, before_ns, target_ns, end)
        self._store_reference()
        self.last_step = StepTimes(
            sent_s=pending.sent_s,
            answered_s=pending.answered_s or pending.sent_s,
            reached_s=self.clock.changed_s,
            at_rest_s=time.monotonic(),
            duration_ns=target_ns - before_ns,
        )
        self.session.receive(0.0)  # the messages of the step, which waited in their queues

    def _is_over(self, pending: PendingRequest, target_ns: int) -> bool:
        clock = self.clock
        if clock.now_ns != target_ns or pending.answered_s is None:
            return False
        if clock.seen > 1:
            return True
        if pending.request.is_done_at_reply and clock.changed_s - pending.answered_s < _EARLY_S:
            return True
        return time.monotonic() - clock.changed_s > self._still_s

    def _check_timeouts(self, pending: PendingRequest, before_ns: int, target_ns: int, end: float) -> None:
        now_s, at_ns = time.monotonic(), self.now_ns()
        moved_s = max(pending.sent_s, self.clock.changed_s)
        timeout_s = self.session.reply_timeout_s
        where = f"step from {before_ns} to {target_ns} ns, clock at {at_ns} ns"
        if pending.answered_s is None:
            if now_s <= end and now_s - moved_s <= timeout_s:
                return
            if at_ns not in (before_ns, target_ns):
                raise BackendLostError("clock_stopped", f"{where}; no reply")
            done = "was carried out" if at_ns == target_ns else "was not carried out"
            raise BackendLostError(
                "reply_lost", f"no reply from {pending.request.service}; by the clock, the step {done}"
            )
        if at_ns == target_ns:
            return  # only the repetition of the stamp is missing
        if pending.request.is_done_at_reply and now_s - max(moved_s, pending.answered_s) > timeout_s:
            raise BackendLostError("step_unfinished", where)
        if now_s > end:
            raise BackendLostError("clock_stopped" if now_s - moved_s > self._still_s else "timeout", where)

    def _await_still(self, end: float) -> None:
        self.session.drain()
        begun_s, seen = time.monotonic(), self.clock.seen
        while True:
            self.session.receive(min(POLL_S, self._still_s))
            if self.clock.is_at_rest(begun_s, self._still_s):
                return
            if self.clock.changed_s < begun_s and self.clock.seen > seen + 1:
                return
            if time.monotonic() > end:
                raise BackendLostError("settling", f"clock still moving at {self.clock.now_ns} ns after a pause")

    def _store_reference(self) -> None:
        self._left_ns, self._rewinds = self.clock.now_ns, self.clock.rewinds

    def _check_not_rewound(self) -> None:
        if self.clock.rewinds != self._rewinds:
            raise BackendLostError(
                "clock_rewound", f"the clock went back from {self.clock.from_ns} to {self.clock.now_ns} ns"
            )

    # ---------------------------------------------------------------------------------- reset and entities

    def reset(self, end: float) -> None:
        """Reset the world, and wait until the clock shows the reset and is at rest."""
        self.settle(end)
        clock = self.clock
        must_rewind = self.capabilities.rewinds_time
        if must_rewind and clock.now_ns == 0:
            self.step(self.step_ns, end)  # a reset at time zero would not show
        before_ns, rewinds, received = clock.now_ns, clock.rewinds, clock.received

        def has_shown() -> bool:
            return clock.received > received if before_ns is None or not must_rewind else clock.rewinds > rewinds

        def evidence() -> str:
            return "; the clock shows the reset" if has_shown() else "; the clock shows no reset"

        pending = self.session.send(self._api.reset(), end)
        self.session.await_reply(pending, end, evidence=evidence)
        while clock.now_ns is None or (must_rewind and not has_shown()):
            if time.monotonic() > end:
                detail = f"the reset was accepted, but the clock is still at {self.now_ns()} ns"
                raise BackendLostError("reset_not_seen", detail)
            self.session.poll(pending, end)
        self._await_still(end)
        self._store_reference()

    def state(self, entity: str, end: float) -> EntityState:
        """Return the pose of an entity."""
        state: EntityState = self.session.call(self._api.state(entity), end, entity)
        return state

    def set_state(self, entity: str, position: FloatArray, orientation: FloatArray, end: float) -> None:
        """Place an entity, m and quaternion x, y, z, w, which sensors show after the next step."""
        self.session.call(self._api.set_state(entity, position, orientation), end, entity)
