"""Dead time and lag from commands and readings, against simulated joints of which both are known."""

from __future__ import annotations

import numpy as np
import pytest
from plants import simulated

from embodied_env.latency.response import delay_by_correlation, fit_response

SERVO = {"damping_s": 0.0302, "inertia_s2": 1.5e-4}  # MuJoCo's of the arm: (kv + damping) / kp, inertia / kp


def fitted(moves, *, period_s=0.05, shapes=("line", "step")):
    delay_s, _ = delay_by_correlation(moves, period_s, shapes[0], 0.6)
    return fit_response(moves, period_s, shapes, max(0.01, delay_s))


@pytest.mark.parametrize("dead_s", [0.0, 0.02, 0.06])
def test_dead_time_and_lag_of_a_servo_behind_a_filter_are_found_apart(dead_s):
    moves = simulated(np.random.default_rng(0), dead_s=dead_s, filter_s=0.04, jitter_s=0.0, noise=1e-6, **SERVO)
    fit = fitted(moves)
    assert fit.dead_time().value_s == pytest.approx(dead_s, abs=0.002)
    assert fit.lag().value_s == pytest.approx(0.0702, abs=0.002)


@pytest.mark.parametrize("shape", ["line", "step"])
def test_whether_a_command_acts_along_a_line_or_as_a_step_is_seen(shape):
    rng = np.random.default_rng(1)
    moves = simulated(rng, dead_s=0.02, filter_s=0.03, shape=shape, moves=4)
    shapes = ("line", "step") if shape == "line" else ("step", "line")
    assert fitted(moves, shapes=shapes).shape == shape


def test_correlation_finds_dead_time_and_lag_together():
    moves = simulated(np.random.default_rng(2), dead_s=0.03, filter_s=0.04)
    delay_s, correlation = delay_by_correlation(moves, 0.05, "line", 0.6)
    assert delay_s == pytest.approx(0.07, abs=0.007)
    assert correlation > 0.99


def test_what_is_no_motion_of_the_commands_is_not_explained():
    rng = np.random.default_rng(3)
    moves = simulated(rng, dead_s=0.03, filter_s=0.04, noise=1.0, moves=4)
    assert fitted(moves).explained < 0.5


def coverage(runs, seed):
    """Return how often the intervals hold the truth, and the errors of the dead time, over drawn joints."""
    held, errors = [], []
    for run in range(runs):
        rng = np.random.default_rng([seed, run])
        dead_s, filter_s = rng.uniform(0.01, 0.08), rng.uniform(0.0, 0.06)
        servo = SERVO if rng.random() < 0.5 else {"damping_s": rng.uniform(0.005, 0.03)}
        noise = 10 ** rng.uniform(-6, -4)
        fit = fitted(simulated(rng, dead_s=dead_s, filter_s=filter_s, noise=noise, moves=8, **servo))
        dead, lag = fit.dead_time(), fit.lag()
        held.append(
            (abs(dead.value_s - dead_s) <= dead.half_s, abs(lag.value_s - filter_s - servo["damping_s"]) <= lag.half_s)
        )
        errors.append(dead.value_s - dead_s)
    return np.mean(held, axis=0), np.array(errors)


def test_intervals_hold_the_truth_in_most_of_a_few_runs():
    (dead, lag), errors = coverage(6, seed=0)
    assert min(dead, lag) >= 0.5
    assert np.median(np.abs(errors)) < 0.003


@pytest.mark.long
def test_intervals_hold_the_truth_as_often_as_they_say():
    (dead, lag), errors = coverage(300, seed=1)
    print(
        f"coverage: dead time {dead:.3f}, lag {lag:.3f}; errors, ms: {np.percentile(1e3 * np.abs(errors), [50, 90, 99])}"
    )
    assert 0.90 <= dead <= 1.0
    assert 0.90 <= lag <= 1.0
