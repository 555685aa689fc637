"""Dead time and lag estimated from commands and readings, for simulated joints with known values."""

import numpy as np
import pytest
from plants import simulated

from embodied_env.core.actuator_response import delay_by_correlation, fit_response

SERVO = {"damping_s": 0.0302, "inertia_s2": 1.5e-4}  # MuJoCo's values for the arm: (kv + damping) / kp, inertia / kp
SERVO_S = 0.0302


def fitted(moves, *, shapes=("line", "step")):
    delay_s, _ = delay_by_correlation(moves, 0.05, shapes[0], 0.6)
    return fit_response(moves, 0.05, shapes, max(0.01, delay_s))


@pytest.mark.parametrize("dead_s", [0.0, 0.02, 0.06])
def test_dead_time_and_first_order_lag_are_separated(dead_s):
    moves = simulated(np.random.default_rng(0), dead_s=dead_s, filter_s=0.04, moves=3)
    fit = fitted(moves)
    np.testing.assert_allclose(fit.dead_s, dead_s, atol=0.002)
    np.testing.assert_allclose(fit.lags_s, 0.04, atol=0.002)


@pytest.mark.parametrize("filter_s", [0.0, 0.04])
def test_the_sum_of_dead_time_and_lag_is_correct_for_servos_of_higher_order(filter_s):
    fit = fitted(simulated(np.random.default_rng(1), dead_s=0.02, filter_s=filter_s, moves=3, **SERVO))
    np.testing.assert_allclose(fit.dead_s + fit.lags_s, 0.02 + filter_s + SERVO_S, atol=0.003)


@pytest.mark.parametrize("shape", ["line", "step"])
def test_command_shape_is_identified(shape):
    moves = simulated(np.random.default_rng(1), dead_s=0.02, filter_s=0.03, shape=shape, moves=2)
    assert fitted(moves, shapes=("line", "step") if shape == "line" else ("step", "line")).shape == shape


def test_correlation_finds_dead_time_and_lag_together():
    moves = simulated(np.random.default_rng(2), dead_s=0.03, filter_s=0.04)
    delay_s, correlation = delay_by_correlation(moves, 0.05, "line", 0.6)
    assert delay_s == pytest.approx(0.07, abs=0.007)
    assert correlation > 0.99


def test_motion_unrelated_to_the_commands_is_unexplained():
    moves = simulated(np.random.default_rng(3), dead_s=0.03, filter_s=0.04, noise=1.0, moves=2)
    assert fitted(moves).explained < 0.5


def test_joints_at_rest_explain_nothing():
    moves = simulated(np.random.default_rng(3), dead_s=0.03, filter_s=0.04, moves=2)
    for move in moves:
        move.readings[:] = 0.5
    assert fitted(moves).explained == 0.0


def test_non_finite_readings_are_rejected():
    moves = simulated(np.random.default_rng(4), dead_s=0.03, filter_s=0.04, moves=1)
    moves[0].readings[3] = np.nan
    with pytest.raises(ValueError, match="finite"):
        fit_response(moves, 0.05, ("line",), 0.05)


def coverage(runs):
    """Return the share of intervals of dead time and lag that contain the true value, for servos of random order."""
    from embodied_env.extensions.calibration.calibration import by_state

    held = []
    for run in range(runs):
        rng = np.random.default_rng([5, run])
        dead_s, filter_s, damping_s = rng.uniform(0.01, 0.08), rng.uniform(0.0, 0.06), rng.uniform(0.005, 0.04)
        inertia_s2 = rng.choice([0.0, rng.uniform(0.0, damping_s**2 / 4.0)])  # no overshoot
        noise = 10 ** rng.uniform(-6, -4)
        servo = {"filter_s": filter_s, "damping_s": damping_s, "inertia_s2": inertia_s2}
        moves = simulated(rng, dead_s=dead_s, noise=noise, moves=4, **servo)
        found = by_state(moves, fitted(moves))
        truths = dead_s, filter_s + damping_s
        held.append([each.low_s <= true <= each.high_s for each, true in zip(found, truths, strict=True)])
    return np.mean(held, axis=0)


@pytest.mark.needs("calibration")
@pytest.mark.parametrize("runs", [6, pytest.param(60, marks=pytest.mark.long)])
def test_intervals_contain_the_truth_for_servos_without_overshoot(runs):
    share = coverage(runs)
    print(f"{runs} runs: {share}")
    assert (share >= 0.9).all()
