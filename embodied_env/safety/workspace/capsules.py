"""Signed distances of capsules, which are the points within `radius` of a segment.

A sphere is a capsule with equal ends.

Arrays: `ends_m` (..., 2, 3), `radii_m` (...,), in m; the leading axes of both shapes broadcast. A distance is negative
where the shapes overlap. It changes by at most d when both ends of the capsule move by at most d, since it is the
minimum over the segment of the signed distance to a convex set, whose slope is 1.

Crossing segments have the distance zero, so the overlap of two capsules is at most the sum of their radii.

Sources: C. Ericson, "Real-Time Collision Detection" (2005), 5.1.2 (point and segment) and 5.1.9 (two segments; here the
four ends are always tried too, so that parallel and degenerate segments need no special case). Segment and box: see
`box_distance`.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

_STILL = 1e-15  # m over the whole segment: parallel to a side of the box
_PAIRS = tuple(np.array(list(combinations(range(6), 2)), dtype=np.intp).T)


def capsule_distance(
    ends_m: FloatArray, radii_m: FloatArray, other_ends_m: FloatArray, other_radii_m: FloatArray
) -> FloatArray:
    """Return the signed distance to other capsules."""
    start, along = ends_m[..., 0, :], ends_m[..., 1, :] - ends_m[..., 0, :]
    other_start, other = other_ends_m[..., 0, :], other_ends_m[..., 1, :] - other_ends_m[..., 0, :]
    between = start - other_start
    nearest = np.minimum(_between_lines(between, along, other), _to_segment(-between, along))
    for squared in (
        _to_segment(-between + other, along),
        _to_segment(between, other),
        _to_segment(between + along, other),
    ):
        nearest = np.minimum(nearest, squared)
    return np.sqrt(nearest) - radii_m - other_radii_m


def box_distance(ends_m: FloatArray, radii_m: FloatArray, low_m: FloatArray, high_m: FloatArray) -> FloatArray:
    """Return the signed distance to boxes with corners `low_m`, `high_m` of shape (..., 3).

    Along the segment p + t d the squared distance to the box is convex, and its derivative is continuous, increasing
    and linear between the (at most six) t where a coordinate enters or leaves its interval. The root is therefore
    between the last of these t with a derivative <= 0 and the first with one >= 0, and interpolation gives it exactly.
    Where the segment meets the box, the distance is the minimum over t of the maximum of six linear functions: at one
    of their crossings, or at an end.
    """
    start, along, low_m, high_m = np.broadcast_arrays(
        ends_m[..., 0, :], ends_m[..., 1, :] - ends_m[..., 0, :], low_m, high_m
    )
    distances = np.array(np.sqrt(_squared_to_box(start, along, low_m, high_m)))
    inside = distances == 0.0
    if inside.any():
        distances[inside] = _depth(start[inside], along[inside], low_m[inside], high_m[inside])
    result: FloatArray = distances - radii_m
    return result


def _squared_to_box(start: FloatArray, along: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
    """Return the squared distance of the segments start + t along, 0 <= t <= 1, to the boxes."""
    moves = np.abs(along) > _STILL
    speeds = np.where(moves, along, 1.0)
    times = np.zeros((*start.shape[:-1], 8))
    times[..., :3] = np.where(moves, (low - start) / speeds, 0.0)
    times[..., 3:6] = np.where(moves, (high - start) / speeds, 0.0)
    np.clip(times, 0.0, 1.0, out=times)
    times[..., 7] = 1.0
    outside = _outside(times, start, along, low, high)
    slopes = (outside @ along[..., :, None])[..., 0]
    falls, rises = slopes <= 0.0, slopes >= 0.0
    before = np.where(falls, times, 0.0).max(axis=-1)
    after = np.where(rises, times, 1.0).min(axis=-1)
    down = np.where(falls, slopes, -np.inf).max(axis=-1)
    up = np.where(rises, slopes, np.inf).min(axis=-1)
    down, up = np.where(falls.any(axis=-1), down, 0.0), np.where(rises.any(axis=-1), up, 0.0)
    steepness = up - down
    best = before + (after - before) * np.where(steepness > 0.0, -down / np.where(steepness > 0.0, steepness, 1.0), 0.0)
    at_best = _outside(best[..., None], start, along, low, high)[..., 0, :]
    return np.asarray(np.minimum(_dot(at_best, at_best), _dot(outside, outside).min(axis=-1)))


def _outside(times: FloatArray, start: FloatArray, along: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
    """Return the vectors from the box to the points at `times` (..., k), shape (..., k, 3)."""
    points = start[..., None, :] + times[..., None] * along[..., None, :]
    result: FloatArray = points - np.minimum(np.maximum(points, low[..., None, :]), high[..., None, :])
    return result


def _depth(start: FloatArray, along: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
    """Return the signed distance, <= 0, of the deepest points of segments meeting their box."""
    heights = np.concatenate([low - start, start - high], axis=-1)
    speeds = np.concatenate([-along, along], axis=-1)
    closing = speeds[..., _PAIRS[0]] - speeds[..., _PAIRS[1]]
    meets = np.abs(closing) > _STILL
    gaps = heights[..., _PAIRS[1]] - heights[..., _PAIRS[0]]
    crossings = np.where(meets, gaps / np.where(meets, closing, 1.0), 0.0)
    times = np.concatenate([np.clip(crossings, 0.0, 1.0), np.ones((*start.shape[:-1], 1))], axis=-1)
    greatest = (heights[..., None, :] + times[..., None] * speeds[..., None, :]).max(axis=-1)
    return np.asarray(np.minimum(greatest.min(axis=-1), 0.0))


def inside_distance(ends_m: FloatArray, radii_m: FloatArray, low_m: FloatArray, high_m: FloatArray) -> FloatArray:
    """Return how far capsules are inside boxes with corners (..., 3), negative if one is out."""
    gaps = np.minimum(ends_m - low_m[..., None, :], high_m[..., None, :] - ends_m)
    result: FloatArray = gaps.min(axis=(-1, -2)) - radii_m
    return result


def _dot(a: FloatArray, b: FloatArray) -> FloatArray:
    return np.asarray(np.einsum("...i,...i->...", a, b))


def _to_segment(point: FloatArray, along: FloatArray) -> FloatArray:
    """Return the squared distance of points to the segments from the origin along `along`."""
    length = _dot(along, along)
    time = np.clip(_dot(point, along) / np.where(length > 0.0, length, 1.0), 0.0, 1.0)
    way = point - time[..., None] * along
    return _dot(way, way)


def _between_lines(between: FloatArray, along: FloatArray, other: FloatArray) -> FloatArray:
    """Return the squared distance of two segments' nearest points, if neither is an end.

    Their starts are `between` apart. Even if ill-conditioned, it is the distance of two points of the segments.
    """
    a, b, e = _dot(along, along), _dot(along, other), _dot(other, other)
    c, f = _dot(along, between), _dot(other, between)
    determinant = a * e - b * b
    divisor = np.where(determinant > 0.0, determinant, 1.0)
    time = np.clip((b * f - c * e) / divisor, 0.0, 1.0)
    other_time = np.clip((a * f - b * c) / divisor, 0.0, 1.0)
    way = between + time[..., None] * along - other_time[..., None] * other
    return _dot(way, way)
