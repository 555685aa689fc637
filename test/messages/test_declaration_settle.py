"""Replacement of infinite and NaN ranges."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from embodied_env.messages.declaration import Field, InvalidReadingError, settle

INF, NAN = math.inf, math.nan


def field(**declared):
    return Field(sensor="s", name="d", shape=(4,), dtype=np.dtype(np.float32), **declared)


def distances(*values):
    return np.array(values, dtype=np.float32)


@pytest.mark.parametrize(
    ("value", "declared", "expected"),
    [
        (INF, {"no_return": 10.0}, 10.0),
        (INF, {"no_return": 0.0}, 0.0),
        (NAN, {"nan": 5.0}, 5.0),
        (NAN, {"nan": 0.0}, 0.0),
    ],
)
def test_declared_value_replaces_a_non_finite_distance(value, declared, expected):
    found = settle(field(**declared), distances(1.0, value, 2.0))
    np.testing.assert_array_equal(found, distances(1.0, expected, 2.0))


@pytest.mark.parametrize(
    ("value", "declared"),
    [(INF, {}), (NAN, {}), (INF, {"nan": 5.0}), (NAN, {"no_return": 10.0}), (-INF, {"no_return": 10.0, "nan": 5.0})],
)
def test_undeclared_non_finite_distance_is_rejected(value, declared):
    with pytest.raises(InvalidReadingError, match="1 of 3 values of d are"):
        settle(field(**declared), distances(1.0, value, 2.0))


def test_too_close_becomes_the_minimum_range():
    found = settle(field(), distances(-INF, 3.0), near=0.1)
    np.testing.assert_array_equal(found, distances(0.1, 3.0))


def test_replacements_are_not_replaced_again():
    found = settle(field(no_return=10.0, nan=5.0), distances(INF, -INF, NAN), near=0.1)
    np.testing.assert_array_equal(found, distances(10.0, 0.1, 5.0))


def test_distances_are_replaced_in_place():
    given_ = distances(INF)
    assert settle(field(no_return=10.0), given_) is given_
    assert given_[0] == 10.0


any_distances = npst.arrays(np.float32, npst.array_shapes(max_dims=3, max_side=4), elements=st.floats(width=32))


@given(any_distances)
def test_all_values_are_finite_with_all_replacements_declared(values):
    found = settle(field(no_return=10.0, nan=5.0), values.copy(), near=0.1)
    assert np.isfinite(found).all()
    assert (found.shape, found.dtype) == (values.shape, values.dtype)
    finite = np.isfinite(values)
    np.testing.assert_array_equal(found[finite], values[finite])


@given(any_distances)
def test_only_finite_values_are_accepted_without_declared_replacements(values):
    if np.isfinite(values).all():
        np.testing.assert_array_equal(settle(field(), values.copy()), values)
    else:
        with pytest.raises(InvalidReadingError):
            settle(field(), values.copy())
