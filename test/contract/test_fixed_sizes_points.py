"""Clouds of any size give a fixed number of points, in which missing ones are marked by their value."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from embodied_env.contract.fixed_sizes import count_padding, select_points
from embodied_env.contract.sensor_schema import PointsSpec

FIRST = PointsSpec(count=3, pad=100.0)
NAN, INF = np.nan, np.inf


def cloud(*points):
    return np.array(points, np.float32).reshape(-1, 3)


def test_the_first_measured_points_are_kept_and_missing_ones_are_at_the_padding():
    points = cloud((1, 2, 3), (NAN, 0, 0), (INF, INF, INF), (4, 5, 6), (0, NAN, 0))
    selected = select_points(points, FIRST)
    assert selected.tolist() == [[1, 2, 3], [4, 5, 6], [100, 100, 100]]
    assert (selected.dtype, count_padding(selected, FIRST)) == (np.float32, 1)
    assert select_points(cloud(*points, (7, 8, 9), (0, 0, 0)), FIRST).tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


@pytest.mark.parametrize(
    ("points", "problem"),
    [
        (cloud(), "no measured point"),
        (cloud((NAN, NAN, NAN)), "no measured point"),
        (cloud((1, 1, 1), (100, 100, 100)), "the padding"),
        (np.zeros((5_000_001, 3), np.float32), "5000001 points"),
    ],
    ids=["empty", "unmeasured", "a point at the padding", "too many"],
)
def test_a_cloud_that_cannot_be_told_from_padding_is_invalid(points, problem):
    with pytest.raises(ValueError, match=problem):
        select_points(points, FIRST)


def test_one_coordinate_at_the_padding_is_a_point():
    assert count_padding(select_points(cloud((100, 100, 99)), FIRST), FIRST) == 2


def test_the_first_point_of_each_voxel_is_kept_in_order():
    spec = PointsSpec(count=4, pad=-9.0, method="voxel", voxel_m=1.0)
    points = cloud((0.9, 0, 0), (-0.1, 0, 0), (0.1, 0.5, 0.9), (5, 5, 5), (-0.9, 0.1, 0.1))
    assert select_points(points, spec)[:3].tolist() == points[[0, 1, 3]].tolist()
    row = cloud(*((x, 0.5, 0.5) for x in range(8)))
    assert select_points(row, spec)[:, 0].tolist() == [0, 2, 4, 6]  # evenly spread ones of too many
    with pytest.raises(ValueError, match="farther than"):
        select_points(cloud((2e6, 0, 0)), spec)


@given(
    points=hnp.arrays(np.float32, st.tuples(st.integers(1, 40), st.just(3)), elements=st.floats(-50, 50, width=32)),
    voxel_m=st.sampled_from([None, 0.5, 10.0]),
    count=st.integers(1, 20),
)
def test_every_selected_point_is_one_of_the_cloud(points, voxel_m, count):
    spec = PointsSpec(count=count, pad=60.0, method="first" if voxel_m is None else "voxel", voxel_m=voxel_m)
    selected = select_points(points, spec)
    kept = count - int(count_padding(selected, spec))
    own = {tuple(point) for point in points.tolist()}
    assert selected.shape == (count, 3)
    assert {tuple(point) for point in selected[:kept].tolist()} <= own
    assert (selected[kept:] == 60.0).all()
    assert kept == min(count, len(points)) or voxel_m is not None
    assert kept >= 1
