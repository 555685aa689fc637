"""A simulated joint for tests of estimators: dead time, lag, a servo, noise and uneven sampling.

Also a scripted free-running backend, for tests of calibration.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import scipy
from delayed_fake import DelayedFake, FakeDelays

from embodied_env.backends.fake_backend import ScriptedFault
from embodied_env.core.actuator_response import Move, command_trajectory
from embodied_env.extensions.calibration.excitation import draw_velocities

STEP_S = 2e-4


def simulated(
    rng, *, dead_s, filter_s=0.0, damping_s=0.0, inertia_s2=0.0, jitter_s=0.002, noise=1e-5, moves=6, **options
):
    """Return the moves of one joint; options: period_s, read_s, shape."""
    poles = filter_s, damping_s, inertia_s2
    return [_move(rng, dead_s, poles, jitter_s, noise, **options) for _ in range(moves)]


def _move(rng, dead_s, poles, jitter_s, noise, *, period_s=0.05, read_s=0.004, shape="line"):
    profile = draw_velocities(rng, fastest=0.3, change=0.16, way=0.1, period_s=period_s)
    profile = np.concatenate([np.zeros(3), profile])
    commands = np.cumsum(profile) * period_s if shape == "line" else profile
    at_s = period_s * np.arange(len(profile)) + rng.uniform(0.0, 4e-4, len(profile))
    acting_s = at_s + dead_s + rng.uniform(-jitter_s, jitter_s, len(profile)) / 2.0
    grid_s = STEP_S * np.arange(int((at_s[-1] + 0.1) / STEP_S))
    acting = _as_move(acting_s, commands)
    motion = _filtered(command_trajectory(acting, period_s, shape).at(grid_s), poles)
    stamps_s = np.arange(rng.uniform(0.0, read_s), at_s[-1] + 0.05, read_s)
    readings = np.interp(stamps_s, grid_s, motion) + noise * rng.normal(size=len(stamps_s))
    return Move(joint="j", commanded_s=at_s, commands=commands, read_s=stamps_s, readings=readings)


def _as_move(at_s, commands):
    none = np.zeros(1)
    return Move(joint="j", commanded_s=at_s, commands=commands, read_s=none, readings=none)


def _filtered(values, poles):
    """Filter by 1 / (1 + filter s) / (1 + damping s + inertia s^2): exact for inputs held over a small step."""
    filter_s, damping_s, inertia_s2 = poles
    for lag_s in (filter_s, *([] if inertia_s2 else [damping_s])):
        values = _linear(values, np.array([[-1.0 / lag_s]])) if lag_s else values
    if inertia_s2:
        values = _linear(values, np.array([[0.0, 1.0], [-1.0 / inertia_s2, -damping_s / inertia_s2]]))
    return values


def _linear(values, dynamics):
    """Return the response to `values` of a system of unit gain whose first state is its output."""
    onward = term = np.eye(len(dynamics))
    for k in range(1, 20):
        term = term @ dynamics * (STEP_S / k)
        onward = onward + term
    entry = (np.eye(len(dynamics)) - onward)[:, :1]
    gains, past = scipy.signal.ss2tf(onward, entry, np.eye(1, len(dynamics)), np.zeros((1, 1)))
    means = (values + np.roll(values, 1)) / 2.0
    means[0] = 0.0
    return scipy.signal.lfilter(gains[0, 1:], past, means)


@dataclass
class Script:
    """Behaviour of the next backend `moving`: its faults, and the step of Ctrl-C (0: never)."""

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
    """Return the scripted backend; the factory of an entry point."""
    delays = FakeDelays(driver_s=DRIVER_S, transport_s=0.001, actuation_s=ACTUATION_S)
    backend = MovingBackend(contract, clock=clock, faults=SCRIPT.faults, delays=delays)
    SCRIPT.made.append(backend)
    return backend
