"""The thread that sends the setpoints between steps in process; a relay sends them from its own loop."""

from __future__ import annotations

import threading

from embodied_env.core.clock import Clock
from embodied_env.core.codes import Severity
from embodied_env.core.types import Finding
from embodied_env.errors import BackendError
from embodied_env.safety.arbiter import Arbiter
from embodied_env.safety.gate import SafetyGate

_IDLE_S = 0.1  # between two looks at `stop` while the robot is at rest


class SetpointThread(threading.Thread):
    """Sends each setpoint of an arbiter when it is due."""

    def __init__(self, arbiter: Arbiter, gate: SafetyGate, *, clock: Clock) -> None:
        """Create the thread; `clock` is the steady clock."""
        super().__init__(name="embodied_env setpoints", daemon=True)
        self._arbiter, self._gate, self._clock = arbiter, gate, clock
        self._is_done = False

    def stop(self) -> None:
        """Stop and join the thread; idempotent."""
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
                self._gate.latch(Finding(gate="post_condition", severity=Severity.STOP, code=code, detail=detail))
                pending.wait(_IDLE_S)
