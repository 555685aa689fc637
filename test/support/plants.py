"""A simulated joint for tests of estimators, with dead time, lag, a servo, noise and uneven sampling."""

import numpy as np
import scipy

from embodied_env.core.actuator_response import Move, command_trajectory

STEP_S = 2e-4


def simulated(
    rng, *, dead_s, filter_s=0.0, damping_s=0.0, inertia_s2=0.0, jitter_s=0.002, noise=1e-5, moves=6, **options
):
    """Return the moves of one joint with the options period_s, read_s and shape."""
    poles = filter_s, damping_s, inertia_s2
    return [_move(rng, dead_s, poles, jitter_s, noise, **options) for _ in range(moves)]


def _move(rng, dead_s, poles, jitter_s, noise, *, period_s=0.05, read_s=0.004, shape="line"):
    profile = np.concatenate([np.zeros(3), _there_and_back(rng, period_s)])
    commands = np.cumsum(profile) * period_s if shape == "line" else profile
    at_s = period_s * np.arange(len(profile)) + rng.uniform(0.0, 4e-4, len(profile))
    acting_s = at_s + dead_s + rng.uniform(-jitter_s, jitter_s, len(profile)) / 2.0
    grid_s = np.arange(int((at_s[-1] + 0.1) / STEP_S), dtype=np.float64) * STEP_S
    acting = _as_move(acting_s, commands)
    motion = _filtered(command_trajectory(acting, period_s, shape).at(grid_s), poles)
    stamps_s = np.arange(rng.uniform(0.0, read_s), at_s[-1] + 0.05, read_s)
    readings = np.interp(stamps_s, grid_s, motion) + noise * rng.normal(size=len(stamps_s))
    return Move(joint="j", commanded_s=at_s, commands=commands, read_s=stamps_s, readings=readings)


def _there_and_back(rng, period_s):
    """Return the velocities of a move there and back, at rest in the middle and at the end."""
    there = np.repeat(rng.uniform(0.15, 0.3, 4) * rng.choice([-1.0, 1.0], 4), 3)
    there *= min(1.0, 0.1 / (np.abs(np.cumsum(there)).max() * period_s))
    rest = np.zeros(6)
    return np.concatenate([there, rest, -there[::-1], rest])


def _as_move(at_s, commands) -> Move:
    none = np.zeros(1)
    return Move(joint="j", commanded_s=at_s, commands=commands, read_s=none, readings=none)


def _filtered(values, poles):
    """Filter by 1 / (1 + filter s) / (1 + damping s + inertia s^2), exactly for inputs held over a small step."""
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
