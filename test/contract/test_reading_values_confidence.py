"""Confidence of a reported position from its covariance."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_env.contract.reading_values import position_confidence

ONE_SIGMA, TWO_SIGMA = math.erf(1 / math.sqrt(2)), math.erf(2 / math.sqrt(2))


def covariance(x, y, z, roll=0.0):
    """Return a covariance of variances alone, shape (36,)."""
    return np.diag([x, y, z, roll, 0.0, 0.0]).ravel()


@pytest.mark.parametrize(("radius_m", "expected"), [(0.1, ONE_SIGMA), (0.2, TWO_SIGMA)])
def test_confidence_is_the_gaussian_probability_within_the_radius(radius_m, expected):
    assert position_confidence(covariance(0.01, 0.01, 0.01), radius_m) == pytest.approx(expected, rel=1e-12)


def test_confidence_uses_the_worst_axis():
    assert position_confidence(covariance(1e-6, 0.01, 1e-4), 0.1) == pytest.approx(ONE_SIGMA, rel=1e-12)


def test_worst_axis_need_not_be_x_y_or_z():
    turned = np.zeros((6, 6))
    turned[:2, :2] = [[0.005, 0.005], [0.005, 0.005]]  # 0.01 along x = y, 0 across
    assert position_confidence(turned.ravel(), 0.1) == pytest.approx(ONE_SIGMA, rel=1e-9)


def test_confidence_ignores_orientation():
    assert position_confidence(covariance(0.01, 0.01, 0.01, roll=9.0), 0.1) == pytest.approx(ONE_SIGMA, rel=1e-12)


def asymmetric():
    result = np.diag([0.01] * 6)
    result[0, 1] = 0.005
    return result.ravel()


@pytest.mark.parametrize(
    "unknown",
    [
        np.zeros(36),
        covariance(-0.01, 0.01, 0.01),
        covariance(math.nan, 0.01, 0.01),
        covariance(math.inf, 0.01, 0.01),
        covariance(0.01, 0.01, 0.01, roll=math.nan),
        asymmetric(),
    ],
    ids=["zero", "negative", "nan", "infinite", "nan of the orientation", "asymmetric"],
)
def test_invalid_covariance_gives_nan_confidence(unknown):
    assert math.isnan(position_confidence(unknown, 0.1))


@pytest.mark.parametrize("variance_m2", [1e308, 1e-300])
def test_extreme_variances_give_finite_confidence(variance_m2):
    sigma_m = math.sqrt(variance_m2)
    assert position_confidence(covariance(*[variance_m2] * 3), sigma_m) == pytest.approx(ONE_SIGMA, rel=1e-9)


def test_huge_error_gives_small_nonzero_confidence():
    assert 0.0 < position_confidence(covariance(1e308, 1e308, 1e308), 0.1) < 1e-100


def test_confidence_underflows_to_zero():
    assert position_confidence(covariance(1e308, 1e308, 1e308), 1e-300) == 0.0


@given(st.floats(1e-4, 10), st.floats(1e-3, 10), st.floats(1.01, 10))
def test_confidence_is_monotonic_in_error_and_radius(sigma_m, radius_m, factor):
    here = position_confidence(covariance(sigma_m**2, sigma_m**2, sigma_m**2), radius_m)
    worse = position_confidence(covariance((factor * sigma_m) ** 2, sigma_m**2, sigma_m**2), radius_m)
    assert 0.0 < worse <= here <= 1.0
    assert position_confidence(covariance(sigma_m**2, sigma_m**2, sigma_m**2), radius_m / factor) <= here
