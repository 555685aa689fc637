"""Selection of a fixed number of points from a cloud of any size."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract.sensor_schema import PointsSpec

_MOST_POINTS = 5_000_000  # of a cloud; sorting more delays the step
_MOST_VOXELS = 2**20  # between the origin and a point, along each axis


def select_points(points: NDArray[Any], spec: PointsSpec) -> NDArray[Any]:
    """Return the points of `spec`, shape (count, 3), from points of shape (n, 3).

    Raises ValueError for a cloud without a point, with too many or too distant ones, or with a point at the padding.
    """
    if len(points) > _MOST_POINTS:
        raise ValueError(f"{len(points)} points (expected at most {_MOST_POINTS})")
    points = points[~(np.isnan(points) | np.isposinf(points)).any(axis=1)]
    if not len(points):
        raise ValueError("no measured point (expected at least 1)")
    if spec.voxel_m is not None:
        points = points[_first_in_voxels(points, spec.voxel_m)]
        if len(points) > spec.count:
            points = points[np.arange(spec.count) * len(points) // spec.count]
    points = points[: spec.count]
    if count_padding(points, spec):
        raise ValueError(f"a point at ({spec.pad:g}, {spec.pad:g}, {spec.pad:g}), the padding")
    selected = np.full((spec.count, 3), spec.pad, points.dtype)
    selected[: len(points)] = points
    return selected


def count_padding(points: NDArray[Any], spec: PointsSpec) -> NDArray[np.intp]:
    """Return the number of missing points in selections, of shape (..., count, 3)."""
    missing: NDArray[np.intp] = (points == points.dtype.type(spec.pad)).all(axis=-1).sum(axis=-1)
    return missing


def _first_in_voxels(points: NDArray[Any], voxel_m: float) -> NDArray[np.intp]:
    cells = np.floor(points / points.dtype.type(voxel_m))
    if not (np.abs(cells) < _MOST_VOXELS).all():
        raise ValueError(f"points farther than {_MOST_VOXELS * voxel_m:g} m, {_MOST_VOXELS} voxels")
    x, y, z = (cells.astype(np.int64) + _MOST_VOXELS).T
    _, first = np.unique((x * 2 * _MOST_VOXELS + y) * 2 * _MOST_VOXELS + z, return_index=True)
    return np.sort(first)
