"""Comparison of the batches of two vector environments."""

from __future__ import annotations

import numpy as np


def assert_same(ours, theirs, path="$"):
    """Assert equal containers, dtypes, shapes and values; NaN equals NaN."""
    assert type(ours) is type(theirs), path
    if isinstance(ours, dict):
        assert set(ours) == set(theirs), path
        for key in ours:
            assert_same(ours[key], theirs[key], f"{path}.{key}")
    elif isinstance(ours, (tuple, list)):
        assert len(ours) == len(theirs), path
        for i, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(one, other, f"{path}[{i}]")
    elif isinstance(ours, np.ndarray) and ours.dtype == object:
        assert theirs.dtype == object, path
        assert_same(list(ours), list(theirs), path)
    elif isinstance(ours, np.ndarray):
        assert ours.dtype == theirs.dtype, path
        np.testing.assert_array_equal(ours, theirs, err_msg=path)
    else:
        assert ours == theirs or (ours != ours and theirs != theirs), path  # noqa: PLR0124 - NaN
