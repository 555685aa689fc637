"""Replacement of infinite and NaN distances."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from embodied_env.contract import FieldSpec
from embodied_env.contract.reading_values import substitute

INF, NAN = math.inf, math.nan


def spec(no_return=None, nan=None):
    """Return a field of distances from 0 to 10 m."""
    return FieldSpec(unit="m", low=0.0, high=10.0, shape=(4,), no_return=no_return, nan=nan)


def distances(*values):
    return np.array(values, dtype=np.float32)


@pytest.mark.parametrize(
    ("value", "declared", "expected"),
    [
        (INF, {"no_return": 10.0}, 10.0),
        (INF, {"no_return": 0.0}, 0.0),
        (NAN, {"nan": 5.0}, 5.0),
        (NAN, {"nan": 0.0}, 0.0),
        (INF, {}, INF),
        (NAN, {}, NAN),
        (INF, {"nan": 5.0}, INF),
        (NAN, {"no_return": 10.0}, NAN),
        (-INF, {"no_return": 10.0, "nan": 5.0}, -INF),
    ],
)
def test_only_declared_values_replace_non_finite_distances(value, declared, expected):
    found = substitute(distances(1.0, value, 2.0), spec(**declared))
    np.testing.assert_array_equal(found, distances(1.0, expected, 2.0))


def test_too_close_becomes_the_minimum_range():
    found = substitute(distances(-INF, INF, NAN, 3.0), spec(), too_near=0.1)
    np.testing.assert_array_equal(found, distances(0.1, INF, NAN, 3.0))


def test_replacements_are_not_replaced_again():
    found = substitute(distances(INF, -INF, NAN), spec(no_return=10.0, nan=5.0), too_near=0.1)
    np.testing.assert_array_equal(found, distances(10.0, 0.1, 5.0))


def test_distances_are_replaced_in_place():
    given_ = distances(INF)
    assert substitute(given_, spec(no_return=10.0)) is given_
    assert given_[0] == 10.0


any_distances = npst.arrays(np.float32, npst.array_shapes(max_dims=3, max_side=4), elements=st.floats(width=32))


@given(any_distances)
def test_with_all_replacements_declared_values_are_finite(values):
    found = substitute(values.copy(), spec(no_return=10.0, nan=5.0), too_near=0.1)
    assert np.isfinite(found).all()
    assert (found.shape, found.dtype) == (values.shape, values.dtype)
    finite = np.isfinite(values)
    np.testing.assert_array_equal(found[finite], values[finite])


@given(any_distances)
def test_without_declared_replacements_values_are_unchanged(values):
    np.testing.assert_array_equal(substitute(values.copy(), spec()), values)
