"""Setpoint interpolation follows command and lag exactly, wherever physics steps start."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_env.sim.actuators import SetpointInterpolator

BOTH = np.array([False, True])  # a position, a velocity
PERIOD = 20

parts = st.floats(0.0, 1.0)
lags = st.sampled_from([0.0, 0.3, 4.0, 16.0])


def course(commands, steps, lag, *, fine):
    """Return the setpoints in small steps, shape (steps * fine, 2).

    A command is its arrival time and its values.
    """
    start, target, since, lagging = np.zeros(2), np.zeros(2), -PERIOD, np.zeros(2)
    way, waiting = np.zeros((steps * fine, 2)), list(commands)
    for i, at in enumerate(np.arange(steps * fine) / fine):
        while waiting and waiting[0][0] <= at:
            come, values = waiting.pop(0)
            start = np.where(BOTH, values, setpoints_of(start, target, since, come))
            target, since = values, come
        now = setpoints_of(start, target, since, at)
        lagging = lagging + (now - lagging) * -np.expm1(-1.0 / (fine * lag)) if lag else now
        way[i] = lagging
    return way


def setpoints_of(start, target, since, at):
    return start + min(1.0, (at - since) / PERIOD) * (target - start)


@settings(deadline=None, max_examples=15)
@given(st.lists(st.tuples(parts, st.floats(-1.0, 1.0), st.floats(-1.0, 1.0)), min_size=1, max_size=3), lags)
def test_large_steps_equal_many_small_ones(drawn, lag):
    """Positions at the start of a step, velocities as their mean over it."""
    points, commands, fine, steps = SetpointInterpolator(BOTH, period_steps=PERIOD, lag_steps=lag), [], 100, 30
    found = []
    for k in range(steps):
        within = []
        if k % 7 == 1 and len(commands) < len(drawn):
            after, *values = drawn[len(commands)]
            within = [(after, np.array(values))]
            commands.append((k + after, np.array(values)))
        found.append(points.advance(within))
    way = course(commands, steps, lag, fine=fine)
    positions, velocities = way[::fine, 0], way[:, 1].reshape(steps, fine).mean(axis=1)
    np.testing.assert_allclose(np.array(found).T, [positions, velocities], atol=5.0 / fine)


@settings(deadline=None, max_examples=10)
@given(st.floats(0.0, 0.999), st.floats(0.1, 16.0))
def test_a_joint_lags_a_steady_motion_by_exactly_the_declared_lag(after, lag):
    """Commands of a steady motion, once per period, give a line one period behind them."""
    points = SetpointInterpolator(BOTH[:1], period_steps=PERIOD, lag_steps=lag)
    for k in range(15 * PERIOD):
        due = [(after, np.array([float(k)]))] if k % PERIOD == 0 else []
        at = points.advance(due)[0]
    trailing = k - at - PERIOD - after
    assert trailing == pytest.approx(lag, abs=1e-6)


def test_setpoints_in_steps_are_bit_identical_to_lockstep():
    points, home, there = SetpointInterpolator(BOTH, period_steps=4), np.array([0.3, 0.0]), np.array([0.7, 0.8])
    points.begin(home)
    points.command(there)
    found = [points.advance() for _ in range(6)]
    expected = [[0.3 + part / 4 * (0.7 - 0.3), 0.8] for part in (1, 2, 3, 4)] + [[0.7, 0.8]] * 2
    np.testing.assert_array_equal(found, expected)


def test_setpoints_at_rest_stay_at_rest():
    points = SetpointInterpolator(BOTH, period_steps=4, lag_steps=3.0)
    points.begin(np.array([0.3, 0.0]))
    np.testing.assert_allclose([points.advance() for _ in range(5)], [[0.3, 0.0]] * 5, rtol=1e-12)
