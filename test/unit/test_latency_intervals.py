"""Intervals of confidence hold what they promise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from embodied_env.latency.intervals import effective_count, grouped_interval, median_interval, student_quantile


@pytest.mark.parametrize(
    ("degrees", "quantile"), [(1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (11, 2.201), (100, 1.984)]
)
def test_the_quantile_of_student_is_that_of_the_tables(degrees, quantile):
    assert student_quantile(degrees) == pytest.approx(quantile, rel=0.005)


def test_alike_neighbours_count_for_fewer():
    rng = np.random.default_rng(0)
    alone = rng.normal(size=1000)
    assert effective_count(alone) > 700
    assert effective_count(np.repeat(alone[:100], 10)) < 200


def test_the_interval_of_a_median_holds_it_as_often_as_it_says():
    rng = np.random.default_rng(1)
    held = [
        low <= math.log(2.0) <= high for _ in range(400) for _, low, high in [median_interval(rng.exponential(size=60))]
    ]
    assert 0.90 <= np.mean(held) <= 0.995


def test_the_interval_of_a_fit_to_groups_holds_the_truth_though_errors_of_a_group_are_alike():
    rng = np.random.default_rng(2)
    groups = np.repeat(np.arange(12), 20)
    held = []
    for _ in range(400):
        jacobian = np.stack([np.ones(240), rng.normal(size=240)], axis=1)
        errors = rng.normal(size=12)[groups] + 0.3 * rng.normal(size=240)
        fitted = np.linalg.lstsq(jacobian, errors, rcond=None)[0]
        half, _ = grouped_interval(jacobian, errors - jacobian @ fitted, groups, np.array([1.0, 0.0]))
        held.append(abs(fitted[0]) <= half)
    assert 0.90 <= np.mean(held) <= 0.995


def test_two_groups_say_nothing_of_their_spread():
    jacobian, residuals = np.ones((4, 1)), np.array([1.0, 1.0, -1.0, -1.0])
    assert grouped_interval(jacobian, residuals, np.array([0, 0, 1, 1]), np.ones(1))[0] == math.inf
