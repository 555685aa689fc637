"""A scripted free-running backend, for tests of calibration."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from delayed_fake import DelayedFake, FakeDelays

from embodied_env.backends.fake_backend import ScriptedFault


@dataclass
class Script:
    """Behaviour of the next backend `moving`, with its faults and the step of Ctrl-C, where 0 is never."""

    faults: tuple[ScriptedFault, ...] = ()
    interrupt_at: int = 0
    first_faults: tuple[ScriptedFault, ...] | None = None  # of the first episode; None: the same
    faulty_resets: int = 0  # number of episodes with the faults; 0: all
    late_at: int = 0  # the command before which the host is busy for `LATE_S` (0: none)
    resets: int = 0
    made: list[MovingBackend] = field(default_factory=list)


SCRIPT = Script()
ACTUATION_S, DRIVER_S = 0.013, 0.004
LATE_S = 1.2


class MovingBackend(DelayedFake):
    """A free-running world with evidence of the time at which a command acts."""

    name = "moving"

    def reset(self, request, deadline_ns):
        SCRIPT.resets += 1
        faults = SCRIPT.faults if SCRIPT.resets > 1 or SCRIPT.first_faults is None else SCRIPT.first_faults
        self._faults = () if 0 < SCRIPT.faulty_resets < SCRIPT.resets else faults
        return super().reset(request, deadline_ns)

    def advance(self, target_ns, deadline_ns):
        if SCRIPT.interrupt_at and len(self.sent) == SCRIPT.interrupt_at:
            raise KeyboardInterrupt
        if SCRIPT.late_at and len(self.sent) == SCRIPT.late_at:
            SCRIPT.late_at = 0
            time.sleep(LATE_S)
        super().advance(target_ns, deadline_ns)


def moving(contract, *, clock):
    """Return the scripted backend of an entry point."""
    delays = FakeDelays(driver_s=DRIVER_S, transport_s=0.001, actuation_s=ACTUATION_S)
    backend = MovingBackend(contract, clock=clock, faults=SCRIPT.faults, delays=delays, step_timeout_s=5.0)
    SCRIPT.made.append(backend)
    return backend
