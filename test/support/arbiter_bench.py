"""A gate and its arbiter, whose transport is a list."""

import numpy as np

from embodied_env.core.types import SentCommand
from embodied_env.errors import BackendLostError
from embodied_env.safety.arbiter import Arbiter
from embodied_env.safety.gate import SafetyGate
from embodied_env.safety.publishing import make_publishing
from embodied_env.timing.clock import ManualClock


class ArbiterBench:
    """A robot at rest at zero, whose commands are in `sent`, except the next `failures` ones, which are lost."""

    def __init__(self, contract, *, clock=None, free_running=True, fixed_rate=True, **publishing):
        self.clock = ManualClock(start_ns=1000) if clock is None else clock
        self.gate = SafetyGate(contract, fixed_rate=fixed_rate)
        self.sent, self.failures = [], 0
        ways = make_publishing(self.gate, **publishing)
        self.arbiter = Arbiter(self._send, self.gate, ways, clock=self.clock, free_running=free_running)
        self.arbiter.reset(np.zeros(self.gate.layout.size), 0)

    def _send(self, command):
        if self.failures:
            self.failures -= 1
            raise BackendLostError("refused", "the wire is cut")
        self.sent.append(command)
        return SentCommand(seq=command.seq, values=command.values)

    def publish(self, action=(0.0, 0.0), *, after_ns=0):
        self.clock.advance_ns(after_ns)
        with self.arbiter.exclusive as (reference, dt_s):
            approved = self.gate.judge(action, reference, dt_s)
            self.arbiter.send(approved)
        return approved
