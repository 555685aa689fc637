"""Dead time and lag from commands and readings, against simulated joints of which both are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from plants import simulated

from embodied_env.latency.course import delay_by_correlation
from embodied_env.latency.response import fit_response

SERVO = {"damping_s": 0.0302, "inertia_s2": 1.5e-4}  # MuJoCo's of the arm: (kv + damping) / kp, inertia / kp


def fitted(moves, *, period_s=0.05, shapes=("line", "step")):
    delay_s, _ = delay_by_correlation(moves, period_s, shapes[0], 0.6)
    return fit_response(moves, period_s, shapes, max(0.01, delay_s))


@pytest.mark.parametrize(
    "dead_s", [pytest.param(0.0, marks=pytest.mark.long), 0.02, pytest.param(0.06, marks=pytest.mark.long)]
)
def test_dead_time_and_lag_of_a_servo_behind_a_filter_are_found_apart(dead_s):
    moves = simulated(
        np.random.default_rng(0), dead_s=dead_s, filter_s=0.04, jitter_s=0.0, noise=1e-6, moves=3, **SERVO
    )
    fit = fitted(moves)
    assert fit.dead_time().value_s == pytest.approx(dead_s, abs=0.002)
    assert fit.lag().value_s == pytest.approx(0.0702, abs=0.002)


@pytest.mark.long
@pytest.mark.parametrize("shape", ["line", "step"])
def test_whether_a_command_acts_along_a_line_or_as_a_step_is_seen(shape):
    rng = np.random.default_rng(1)
    moves = simulated(rng, dead_s=0.02, filter_s=0.03, shape=shape, moves=2)
    shapes = ("line", "step") if shape == "line" else ("step", "line")
    assert fitted(moves, shapes=shapes).shape == shape


def test_correlation_finds_dead_time_and_lag_together():
    moves = simulated(np.random.default_rng(2), dead_s=0.03, filter_s=0.04)
    delay_s, correlation = delay_by_correlation(moves, 0.05, "line", 0.6)
    assert delay_s == pytest.approx(0.07, abs=0.007)
    assert correlation > 0.99


@pytest.mark.long
def test_what_is_no_motion_of_the_commands_is_not_explained():
    rng = np.random.default_rng(3)
    moves = simulated(rng, dead_s=0.03, filter_s=0.04, noise=1.0, moves=2)
    assert fitted(moves).explained < 0.5


def arm(rng):
    """Return the moves of four joints that are alike but for their servos, and the true dead time and mean lag."""
    dead_s, filter_s, noise = rng.uniform(0.01, 0.08), rng.uniform(0.0, 0.06), 10 ** rng.uniform(-6, -4)
    moves, lags_s = [], []
    for joint in ("j1", "j2", "j3", "j4"):
        damping_s, inertia_s2 = rng.uniform(0.005, 0.04), rng.choice([0.0, 1.0]) * rng.uniform(5e-5, 3e-4)
        servo = {"damping_s": damping_s, "inertia_s2": inertia_s2}
        found = simulated(rng, dead_s=dead_s, filter_s=filter_s, noise=noise, moves=2, **servo)
        moves += [replace(move, joint=joint) for move in found]
        lags_s.append(filter_s + damping_s)
    return moves, dead_s, float(np.mean(lags_s))


def coverage(runs, seed):
    """Return how often the intervals of dead time and lag hold the truth, how wide they are, and all errors, s."""
    held, halves, errors = [], [], []
    for run in range(runs):
        moves, *truth = arm(np.random.default_rng([seed, run]))
        fit = fitted(moves)
        found = fit.dead_time(), fit.lag()
        errors.append([each.value_s - true for each, true in zip(found, truth, strict=True)])
        halves.append([each.half_s for each in found])
        held.append(np.abs(errors[-1]) <= halves[-1])
    return np.mean(held, axis=0), np.median(halves, axis=0), np.array(errors)


@pytest.mark.long
def test_intervals_hold_the_truth_as_often_as_they_say():
    held, halves, errors = coverage(100, seed=1)
    print(
        f"coverage {held}, half widths ms {1e3 * halves}, errors ms {1e3 * np.percentile(errors, [5, 50, 95], axis=0)}"
    )
    assert (held >= 0.9).all()
    assert (np.median(np.abs(errors), axis=0) < 0.002).all()
