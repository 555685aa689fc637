"""The in-process watchdog: fed by `step`, it brakes when steps stop coming. Only in free-running worlds."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping

from embodied_env.contract.schema import WatchdogSpec
from embodied_env.core.clock import NS_PER_S, Clock
from embodied_env.core.codes import Severity
from embodied_env.core.types import Finding
from embodied_env.safety.arbiter import Arbiter
from embodied_env.safety.gate import SafetyGate
from embodied_env.safety.interlocks import safety_input_findings


class Watchdog:
    """Decides, at each `check`, whether to brake. Time comes from the injected steady clock.

    Without a step for `hold_steps` periods it brakes at every check; for `stop_steps` periods it latches a STOP.
    """

    def __init__(
        self,
        arbiter: Arbiter,
        gate: SafetyGate,
        spec: WatchdogSpec,
        *,
        clock: Clock,
        control_period_s: float,
        estops: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """Watch over `arbiter`, and over the safety inputs `estops`; not armed until it is fed."""
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
        """A step was taken: begin to wait anew."""
        self._fed_ns = self._clock.now_ns()
        self._tripped = False

    def disarm(self) -> None:
        """No episode is running: nothing to watch. Once this has returned, nothing more is published."""
        with self._arbiter.exclusive():
            self._fed_ns = None

    def check(self) -> Finding | None:
        """Brake if steps are overdue; return why, or None."""
        with self._arbiter.exclusive():  # a step that has its turn first is not overdue any more
            fed_ns = self._fed_ns
            if fed_ns is None:
                return None
            if (finding := self._asserted()) is not None:
                return finding
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
            if stop:
                self._gate.latch(finding)
            if not self._tripped:
                self._tripped = True
                self.trips += 1
            self._arbiter.brake(finding)
            return finding

    def _asserted(self) -> Finding | None:
        """Brake, between steps too, while a safety input says so."""
        try:
            inputs = self._estops()
        except Exception:  # noqa: BLE001 - a transport may raise anything; what cannot be read is unknown
            inputs = {"the safety inputs": "unknown"}
        findings = safety_input_findings(inputs)
        if not findings:
            return None
        finding = max(findings, key=lambda found: found.severity)
        if finding.severity >= Severity.STOP:
            self._gate.latch(finding)
        self._arbiter.brake(finding)
        return finding


class WatchdogThread:
    """Runs a watchdog every half control period until it is stopped.

    It also closes what the watchdog watches when the main thread has ended, or when `orphan` was called.
    """

    def __init__(self, watchdog: Watchdog, close: Callable[[], bool], *, control_period_s: float) -> None:
        """Prepare; `start` begins. `close` returns False where another thread is busy: it is tried again."""
        self._watchdog = watchdog
        self._close = close
        self._is_orphaned = False
        self._tick_s = control_period_s / 2
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="embodied_env watchdog", daemon=True)

    def start(self) -> None:
        """Begin to check."""
        self._thread.start()

    def stop(self) -> None:
        """Stop and join; idempotent."""
        self._done.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def orphan(self) -> None:
        """Close at the next tick. It takes no lock, so a finalizer may call it in any thread."""
        self._is_orphaned = True

    def _run(self) -> None:
        main = threading.main_thread()
        while not self._done.wait(self._tick_s):
            if (self._is_orphaned or not main.is_alive()) and self._close():
                return
            with contextlib.suppress(Exception):  # a world that takes no command: the step meets it too; try on
                self._watchdog.check()
