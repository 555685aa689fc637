"""A gate and its arbiter or relay, whose transport is a list."""

import numpy as np

from embodied_env.core.code_types import Quality, Severity
from embodied_env.core.types import Finding, SafetyContext, Sample, SensorStatus, SentCommand, Snapshot
from embodied_env.errors import BackendLostError
from embodied_env.safety.arbiter import Arbiter
from embodied_env.safety.gate import SafetyGate
from embodied_env.safety.homing import HomingContext
from embodied_env.safety.publishing import make_publishing
from embodied_env.timing.clock import ManualClock

HOLD = Finding(gate="watchdog", severity=Severity.HOLD, code="wd.hold")
"""The reason of braking."""


class ArbiterBench:
    """A robot at rest, whose commands are in `sent`, except the next `failures` ones, which are lost."""

    def __init__(
        self, contract, *, clock=None, free_running=True, fixed_rate=True, filters=None, start=None, **publishing
    ):
        self.clock = ManualClock(start_ns=1000) if clock is None else clock
        self.gate = SafetyGate(contract, filters=filters, fixed_rate=fixed_rate)
        self.sent, self.sent_ns, self.failures = [], [], 0
        ways = make_publishing(self.gate, **publishing)
        self.arbiter = Arbiter(self._send, self.gate, ways, clock=self.clock, free_running=free_running)
        self.arbiter.reset(np.zeros(self.gate.layout.size) if start is None else np.array(start), 0)

    def _send(self, command):
        if self.failures:
            self.failures -= 1
            raise BackendLostError("refused", "the wire is cut")
        self.sent.append(command)
        self.sent_ns.append(self.clock.now_ns())
        return SentCommand(seq=command.seq, values=command.values)

    def publish(self, action=(0.0, 0.0), *, after_ns=0):
        if after_ns:
            self.clock.advance_ns(after_ns)
        with self.arbiter.exclusive as (reference, dt_s):
            approved = self.gate.judge(action, reference, dt_s)
            self.arbiter.send(approved)
        return approved


class RelayOutlet:
    """Stores what a relay publishes."""

    def __init__(self):
        self.published, self.applied_fields, self.reports, self.states = [], [], [], []

    def publish(self, command):
        self.published.append(command)

    def applied(self, fields):
        self.applied_fields.append(fields)

    def report(self, report):
        self.reports.append(report)

    def state(self, state):
        self.states.append(state)


def homing_context(now_ns, positions, wait) -> HomingContext:
    """Return the context of a motion home in which `wait` ends a period, and joints are at `positions()`."""

    def turn():
        wait()
        sample = Sample(sensor="joints", values={"position": positions()}, stamp_ns=now_ns(), arrival_ns=now_ns())
        return Snapshot(now_ns=now_ns(), samples={"joints": sample}), []

    def safety_context():
        fresh = SensorStatus(quality=Quality.OK, age_s=0.0)
        return SafetyContext(sensors={"joints": fresh}, measured=positions())

    return HomingContext(turn=turn, safety_context=safety_context, feed=lambda: None, now_ns=now_ns)
