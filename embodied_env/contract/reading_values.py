"""What infinities and NaN mean in distances that rays measured (REP-117), and what a contract puts in their place."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract.schema import FieldSpec, FloatArray

NORM_TOLERANCE = 0.1
"""How far the norm of a quaternion may be from 1: more than rounding or float32 make of one, less than a mistake."""


class InvalidReadingError(Exception):
    """A reading that the contract does not allow; the text says what."""


def fitted(name: str, values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a copy of `values` in the precision `dtype`. Floats are rounded, beyond their range to infinity.

    Raises:
        InvalidReadingError: for a value that integers of this precision cannot hold.
    """
    with np.errstate(all="ignore"):  # what does not fit is found below
        result = values.astype(dtype)
    if dtype.kind != "f" and (unfit := values[result != values]).size:
        raise InvalidReadingError(
            f"{unfit.size} of {values.size} values of {name} do not fit into {dtype}; the first is {unfit.flat[0]}"
        )
    return result


def check_rotation(name: str, quaternion: NDArray[Any]) -> None:
    """Raise InvalidReadingError unless the norm of `quaternion` is within `NORM_TOLERANCE` of 1."""
    norm = math.hypot(*quaternion.tolist())
    if not abs(norm - 1.0) <= NORM_TOLERANCE:  # NaN is not
        raise InvalidReadingError(f"{name} is no rotation: its norm is {norm:g}; allowed: 1, give or take 0.1")


def substitute(distances: NDArray[Any], spec: FieldSpec, *, too_near: float = math.nan) -> NDArray[Any]:
    """Put declared values in the place of what is no distance, in `distances` itself, and return it.

    +inf, nothing was met: ``no_return``. -inf, something too near to measure: `too_near`, the least distance that the
    instrument measures. NaN, nothing was measured: ``nan``. What has no declared value stays, and is invalid.
    """
    if np.isfinite(distances).all():
        return distances
    unmeasured = np.isnan(distances)
    if spec.no_return is not None:
        np.copyto(distances, spec.no_return, where=np.isposinf(distances))
    if math.isfinite(too_near):
        np.copyto(distances, too_near, where=np.isneginf(distances))
    if spec.nan is not None:
        np.copyto(distances, spec.nan, where=unmeasured)
    return distances


def settle(
    name: str, distances: NDArray[Any], spec: FieldSpec, *, near: float = math.nan, nothing: str = "NaN"
) -> NDArray[Any]:
    """Do what `substitute` does, and refuse what is left.

    Args:
        name: of the field.
        distances: or coordinates of points, in metres.
        spec: it may declare `no_return`, for +inf, and `nan`.
        near: what stands for -inf: the least distance of the sensor. NaN: nothing does.
        nothing: what is NaN in `distances`, for the reason.

    Raises:
        InvalidReadingError: for a value that nothing stands for.
    """
    substitute(distances, spec, too_near=near)
    if np.isfinite(distances).all():
        return distances
    for is_left, meaning in (
        (np.isneginf, "-inf (too close)"),
        (np.isposinf, "+inf (met nothing), and no_return is not declared"),
        (np.isnan, f"{nothing} (measured nothing), and nan is not declared"),
    ):
        if count := np.count_nonzero(is_left(distances)):
            raise InvalidReadingError(f"{count} of {distances.size} values of {name} are {meaning}")
    return distances


def settle_ranges(name: str, ranges: NDArray[Any], spec: FieldSpec, low_m: float, high_m: float) -> NDArray[Any]:
    """Discard what is outside of the limits of a LaserScan or Range, as both definitions ask; then `settle`."""
    if not (math.isfinite(low_m) and low_m <= high_m):
        raise InvalidReadingError(f"the limits of the sensor, {low_m:g} m to {high_m:g} m, are no interval")
    least, most = _extremes(ranges)
    if least >= low_m and most <= high_m and most < math.inf:
        return ranges  # as nearly always, and in a fifth of the time
    np.copyto(ranges, np.nan, where=np.isfinite(ranges) & ((ranges < low_m) | (ranges > high_m)))
    return settle(name, ranges, spec, near=low_m, nothing=f"NaN or outside of {low_m:g} m to {high_m:g} m")


def _extremes(ranges: NDArray[Any]) -> tuple[float, float]:
    """Return the least and the greatest; NaN where there is none, or one is NaN."""
    if ranges.size == 1:  # a Range: numpy takes fifty times as long to find its extremes
        return ranges.item(), ranges.item()
    return (ranges.min(), ranges.max()) if ranges.size else (math.nan, math.nan)


def settle_depth(name: str, depth: NDArray[Any], spec: FieldSpec, *, nothing: str = "NaN") -> NDArray[Any]:
    """Refuse negative depths: REP-118 gives them no meaning. Then `settle`."""
    if count := np.count_nonzero(np.isfinite(depth) & (depth < 0)):
        raise InvalidReadingError(f"{count} of {depth.size} values of {name} are negative; allowed: depths >= 0 m")
    return settle(name, depth, spec, nothing=nothing)


def to_units(metres: NDArray[Any], metres_per_unit: float) -> NDArray[np.uint16]:
    """Round depths to whole units of the wire; 0, no measurement, for what has none."""
    units = np.rint(metres.astype(np.float64) / metres_per_unit)
    known = np.isfinite(units) & (units >= 0) & (units <= np.iinfo(np.uint16).max)
    return np.where(known, units, 0.0).astype(np.uint16)


def from_units(units: NDArray[Any], metres_per_unit: float) -> NDArray[np.float32]:
    """Return depths in metres; NaN for 0 (REP-118)."""
    depth: NDArray[np.float32] = np.multiply(units, np.float32(metres_per_unit), dtype=np.float32)
    np.copyto(depth, np.nan, where=units == 0)
    return depth


_ROUNDING = 1e-9  # relative: what the arithmetic of an estimator may leave of asymmetry and of negative eigenvalues


def position_confidence(covariance: FloatArray, radius_m: float) -> float:
    """Return the probability that the true position is within `radius_m` of the reported one, along the worst axis.

    For a Gaussian error of standard deviation sigma: erf(radius / (sigma * sqrt(2))), with sigma^2 the largest
    eigenvalue of the covariance of x, y, z.

    Args:
        covariance: of x, y, z (m), roll, pitch, yaw (rad), by rows (geometry_msgs/PoseWithCovariance); shape (36,).
        radius_m: the distance that is good enough.

    Returns:
        A number in [0, 1], 0 only where float64 cannot tell it from 0; NaN where the covariance says nothing: zero
        (ROS: unknown), not finite, not symmetric, or with a negative eigenvalue.
    """
    block = np.asarray(covariance, dtype=np.float64).reshape(6, 6)[:3, :3]
    if not np.isfinite(covariance).all():
        return math.nan
    scale = float(np.abs(block).max())
    if scale == 0.0:
        return math.nan
    block = block / scale  # so that nothing overflows
    if float(np.abs(block - block.T).max()) > _ROUNDING:
        return math.nan
    variances = np.linalg.eigvalsh(block)  # ascending
    if variances[0] < -_ROUNDING or variances[-1] <= 0.0:
        return math.nan
    sigma_m = math.sqrt(scale) * math.sqrt(float(variances[-1]))
    return math.erf(radius_m / (math.sqrt(2.0) * sigma_m))
