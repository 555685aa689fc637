"""Readings of a fixed size, from laser scans and clouds of any."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract.actuator_schema import FloatArray
from embodied_env.contract.sensor_schema import PointsSpec, ResampleSpec

_ROUNDING_RAD = 1e-5  # rounding of the angles of a scan, which are float32
_MOST_RAD = 100.0  # largest angle of the first ray; beyond it, float32 loses the angle
_MOST_RAYS = 1_000_000  # rays of a scan; sorting more delays the step
_MOST_POINTS = 5_000_000  # of a cloud; sorting more delays the step
_MOST_VOXELS = 2**20  # between the origin and a point, along each axis


def target_angles(spec: ResampleSpec) -> tuple[NDArray[np.floating], float]:
    """Return the angles of the observation and the step between them, rad."""
    if isinstance(spec.angles, int):
        return np.linspace(0.0, math.tau, spec.angles, endpoint=False), math.tau / spec.angles
    low, high, count = spec.angles.min_rad, spec.angles.max_rad, spec.angles.count
    return np.linspace(low, high, count), (high - low) / (count - 1)


def resample_scan(
    values: NDArray[Any], first_rad: float, increment_rad: float, spec: ResampleSpec
) -> NDArray[np.float32]:
    """Return the values at the angles of `spec`, or NaN where the scan has no ray.

    `nearest` is the value of the nearest ray, at most one increment away. `min` is the smallest value that is not NaN
    among the rays within half a step, of the observation or of the scan, whichever is larger. Raises ValueError for
    invalid angles.
    """
    first, increment = float(np.float32(first_rad)), abs(float(np.float32(increment_rad)))  # as in a message
    has_angles = abs(first) <= _MOST_RAD and increment <= math.tau  # NaN is not
    if not has_angles or (increment == 0.0 and values.size > 1):
        declared = f"angle_min {first:g}, angle_increment {increment_rad:g}"
        expected = f"angles within {_MOST_RAD:g} rad, and an increment up to 2 pi"
        raise ValueError(f"invalid angles of {values.size} rays: {declared} (expected {expected})")
    if not 1 <= values.size <= _MOST_RAYS:
        raise ValueError(f"{values.size} rays (expected 1 to {_MOST_RAYS})")
    targets, step = target_angles(spec)
    wanted = _in_one_turn(targets)
    angles = _in_one_turn(first + float(np.float32(increment_rad)) * np.arange(values.size))
    order = np.argsort(angles, kind="stable")
    # Three turns, so that every angle has rays on both sides; the NaN ends the last window.
    rays: FloatArray = np.concatenate([angles[order] + turn for turn in (-math.tau, 0.0, math.tau)])
    found: NDArray[np.float32] = np.append(np.tile(values[order], 3), np.nan).astype(np.float32)
    nothing = np.float32(np.nan)
    if spec.method == "nearest":
        above = np.searchsorted(rays, wanted)
        nearest = np.where(rays[above] - wanted < wanted - rays[above - 1], above, above - 1)
        return np.where(np.abs(rays[nearest] - wanted) <= increment + _ROUNDING_RAD, found[nearest], nothing)
    half = max(step, increment) / 2 + _ROUNDING_RAD
    starts, ends = np.searchsorted(rays, wanted - half), np.searchsorted(rays, wanted + half, side="right")
    least: NDArray[np.float32] = np.fmin.reduceat(found, np.stack([starts, ends], axis=1).ravel())[::2]
    return np.where(starts < ends, least, nothing)


def _in_one_turn(angles: NDArray[Any]) -> FloatArray:
    """Return the angles in [0, 2 pi), even where rounding would give 2 pi."""
    turned: FloatArray = np.mod(np.mod(angles, math.tau), math.tau)
    return turned


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
