"""The threads of a free-running robot that brake it without steps and send setpoints."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from embodied_env.contract.safety_schema import WatchdogSpec
from embodied_env.core.code_types import Severity
from embodied_env.core.safety_input_state import INPUT_UNKNOWN, InputStates
from embodied_env.core.types import Finding
from embodied_env.errors import BackendError, InternalFaultError
from embodied_env.safety.arbiter import Arbiter
from embodied_env.safety.findings import safety_input_findings
from embodied_env.safety.gate import SafetyGate
from embodied_env.timing.clock import NS_PER_S, Clock

_IDLE_S = 0.1  # between two looks at `stop` while the robot is at rest


class Watchdog:
    """Watchdog that decides at each `check`, by the injected steady clock, whether to brake.

    Without a step it brakes at every check after `hold_steps` control periods, and latches a STOP after `stop_steps`.
    """

    def __init__(
        self,
        arbiter: Arbiter,
        gate: SafetyGate,
        spec: WatchdogSpec,
        *,
        clock: Clock,
        control_period_s: float,
        estops: Callable[[], InputStates] = dict,
    ) -> None:
        """Watch the steps of `arbiter` and the safety inputs `estops`, armed by the first `feed`."""
        self._estops = estops
        self._arbiter = arbiter
        self._gate = gate
        self._clock = clock
        self._hold_ns = round(spec.hold_steps * control_period_s * NS_PER_S)
        self._stop_ns = round(spec.stop_steps * control_period_s * NS_PER_S)
        self._fed_ns: int | None = None
        self.trips = 0
        self._tripped = False

    def feed(self) -> None:
        """Restart the timeout, where a step after `stop_steps` latches a STOP as `check` would."""
        if self._fed_ns is not None and self._clock.now_ns() - self._fed_ns >= self._stop_ns:
            with contextlib.suppress(BackendError):  # the step reports it
                self.check()  # a process that was suspended may step before its watchdog thread runs
        self._fed_ns = self._clock.now_ns()
        self._tripped = False

    def disarm(self) -> None:
        """Stop watching between episodes, after which the watchdog publishes nothing."""
        with self._arbiter.exclusive:
            self._fed_ns = None

    def check(self) -> Finding | None:
        """Brake if steps are overdue or a safety input requires it, and return the reason or None."""
        with self._arbiter.exclusive:  # a step that got the lock first is no longer overdue
            fed_ns = self._fed_ns
            if fed_ns is None:
                return None
            finding = self._input_finding()
            if finding is None:
                age_ns = self._clock.now_ns() - fed_ns
                if age_ns < self._hold_ns:
                    return None
                stop = age_ns >= self._stop_ns
                finding = Finding(
                    gate="watchdog",
                    severity=Severity.STOP if stop else Severity.HOLD,
                    code="wd.stop" if stop else "wd.hold",
                    detail=f"no step for {age_ns / NS_PER_S:.3f} s",
                )
                if not self._tripped:
                    self._tripped = True
                    self.trips += 1
            self._gate.latch_stops([finding])
            self._arbiter.brake(finding)
            return finding

    def _input_finding(self) -> Finding | None:
        try:
            inputs = self._estops()
        except Exception:  # noqa: BLE001 - a transport may raise anything; an unreadable input is unknown
            inputs = {"the safety inputs": INPUT_UNKNOWN}
        return max(safety_input_findings(inputs), key=lambda found: found.severity, default=None)


class WatchdogThread:
    """Runs a watchdog every half control period until it is stopped.

    It also closes the environment when the main thread has ended, or after `request_close`.
    """

    def __init__(self, watchdog: Watchdog, close: Callable[[], bool], *, control_period_s: float) -> None:
        """Create the thread that calls `close` again while it returns False (another is busy)."""
        self._watchdog = watchdog
        self._close = close
        self._must_close = False
        self._tick_s = control_period_s / 2
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="embodied_env watchdog", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop and join the thread (idempotent)."""
        self._done.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def request_close(self) -> None:
        """Close at the next tick, without a lock, so that finalizers may call it from any thread."""
        self._must_close = True

    def _run(self) -> None:
        main = threading.main_thread()
        while not self._done.wait(self._tick_s):
            if (self._must_close or not main.is_alive()) and self._close():
                return
            with contextlib.suppress(Exception):  # the step reports the same backend error; keep braking
                self._watchdog.check()


class SetpointThread(threading.Thread):
    """Thread that sends the setpoints of an arbiter in process when they are due."""

    def __init__(self, arbiter: Arbiter, gate: SafetyGate, *, clock: Clock) -> None:
        """Create the thread with the steady clock."""
        super().__init__(name="embodied_env setpoints", daemon=True)
        self._arbiter, self._gate, self._clock = arbiter, gate, clock
        self._is_done = False

    def stop(self) -> None:
        """Stop and join the thread (idempotent)."""
        self._is_done = True
        self._arbiter.setpoint_pending.set()
        if self.is_alive():
            self.join()

    def run(self) -> None:
        """Send setpoints until `stop`."""
        pending = self._arbiter.setpoint_pending
        while not self._is_done:
            pending.clear()
            due_ns = self._arbiter.setpoint_due_ns
            if due_ns is None:
                pending.wait(_IDLE_S)
                continue
            self._clock.sleep_until_ns(due_ns)
            try:
                self._arbiter.send_setpoint()
            except BackendError:  # the step reports it
                pending.wait(_IDLE_S)
            except Exception as error:  # noqa: BLE001 - third-party filters may raise anything; the robot must brake
                detail, code = f"setpoint: {type(error).__name__}: {error}", "fault.internal"
                finding = Finding(gate="post_condition", severity=Severity.STOP, code=code, detail=detail)
                self._gate.latch(finding)
                with contextlib.suppress(BackendError, InternalFaultError):
                    self._arbiter.brake(finding)
