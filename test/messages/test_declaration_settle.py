"""Replacement of infinite and NaN ranges."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from embodied_env.messages.declaration import Field, InvalidReadingError, settle

values = st.floats(width=32) | st.sampled_from([math.inf, -math.inf, math.nan])
arrays = npst.arrays(np.float32, npst.array_shapes(max_dims=3, max_side=4), elements=values)
declared = st.sampled_from([None, 10.0, 0.0])


@given(arrays, declared, declared, st.sampled_from([math.nan, 0.1]))
def test_each_value_without_a_distance_is_replaced_as_declared_or_rejected(distances, no_return, nan, near):
    field = Field(sensor="s", name="d", shape=(4,), dtype=np.dtype(np.float32), no_return=no_return, nan=nan)
    expected = distances.copy()
    expected[np.isneginf(distances)] = -math.inf if math.isnan(near) else near
    expected[np.isposinf(distances)] = math.inf if no_return is None else no_return
    expected[np.isnan(distances)] = math.nan if nan is None else nan
    if np.isfinite(expected).all():
        assert settle(field, distances, near=near) is distances  # in place
        np.testing.assert_array_equal(distances, expected)
    else:
        with pytest.raises(InvalidReadingError, match=f" of {distances.size} values of d are "):
            settle(field, distances, near=near)
