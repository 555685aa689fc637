"""Values of readings: precision, rotations, infinities and NaN of distances (REP-117), depth units, confidence."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract.contract_schema import FieldSpec, FloatArray
from embodied_env.contract.scan_resampling import resample_scan

Angles = tuple[float, float]
NO_ANGLES = (math.nan, math.nan)

RANGE_TOLERANCE = 0.01
"""Relative distance of a range above the maximum of its sensor up to which it counts as the maximum."""

_LARGE = 1e30  # fits into any floating-point type

NORM_TOLERANCE = 0.1
"""Maximum deviation of a quaternion's norm from 1: above rounding of float32, below a real error."""


class InvalidReadingError(Exception):
    """A reading that the contract does not allow."""


def fitted(name: str, values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a copy as `dtype`, floats rounded; raises InvalidReadingError for values that an integer type lacks."""
    if dtype.kind == "f" and values.size == 1 and abs(values.item()) <= _LARGE:
        return values.astype(dtype)  # the context below takes five times as long
    with np.errstate(all="ignore"):  # checked below
        result = values.astype(dtype)
    if dtype.kind != "f" and (unfit := values[result != values]).size:
        counts = f"{unfit.size} of {values.size} values of {name}"
        raise InvalidReadingError(f"{counts} do not fit into {dtype}; the first is {unfit.flat[0]}")
    return result


def check_rotation(name: str, quaternion: NDArray[Any]) -> None:
    """Raise InvalidReadingError unless the norm of `quaternion` is within `NORM_TOLERANCE` of 1."""
    norm = math.hypot(*quaternion.tolist())
    if not abs(norm - 1.0) <= NORM_TOLERANCE:  # NaN is not
        raise InvalidReadingError(f"{name} is not a rotation: norm {norm:g} (expected 1, within {NORM_TOLERANCE})")


def settle(
    name: str, distances: NDArray[Any], spec: FieldSpec, *, near: float = math.nan, nothing: str = "NaN"
) -> NDArray[Any]:
    """Replace non-finite values by declared ones, in place, and return `distances`.

    +inf (no hit) becomes ``no_return``, -inf (too close) becomes `near`, the minimum range of the sensor, and NaN (no
    measurement) becomes ``nan``. Raises InvalidReadingError for a value without a replacement; `nothing` is the name of
    NaN in its message.
    """
    if np.isfinite(distances).all():
        return distances
    if spec.no_return is not None:
        np.copyto(distances, spec.no_return, where=np.isposinf(distances))
    if math.isfinite(near):
        np.copyto(distances, near, where=np.isneginf(distances))
    if spec.nan is not None:
        np.copyto(distances, spec.nan, where=np.isnan(distances))
    if np.isfinite(distances).all():
        return distances
    for is_left, meaning in (
        (np.isneginf, "-inf (too close)"),
        (np.isposinf, "+inf (no return); declare no_return in the contract to replace them"),
        (np.isnan, f"{nothing} (no measurement); declare nan in the contract to replace them"),
    ):
        if count := np.count_nonzero(is_left(distances)):
            raise InvalidReadingError(f"{count} of {distances.size} values of {name} are {meaning}")
    return distances


def settle_ranges(
    name: str, ranges: NDArray[Any], spec: FieldSpec, low_m: float, high_m: float, angles_rad: Angles = NO_ANGLES
) -> NDArray[Any]:
    """Discard values outside the limits of a LaserScan or Range, as their definitions demand; resample; `settle`.

    A value above by at most `RANGE_TOLERANCE` is the maximum: rounding and noise move hits at the end of the range.
    `angles_rad`: of the first ray of a LaserScan, and the increment.
    """
    if not (math.isfinite(low_m) and low_m <= high_m):
        raise InvalidReadingError(f"invalid sensor range: {low_m:g} m to {high_m:g} m (expected min <= max)")
    if ranges.size == 1:  # a Range: min() and max() of an array take fifty times as long
        least = most = ranges.item()
    else:
        least, most = (ranges.min(), ranges.max()) if ranges.size else (math.nan, math.nan)
    is_within = least >= low_m and most <= high_m and most < math.inf
    if is_within and spec.resample is None:
        return ranges  # the common case
    if not is_within:
        np.copyto(ranges, high_m, where=(ranges > high_m) & (ranges <= high_m * (1.0 + RANGE_TOLERANCE)))
        np.copyto(ranges, np.nan, where=np.isfinite(ranges) & ((ranges < low_m) | (ranges > high_m)))
    ranges = resample(name, ranges, spec, angles_rad)
    return settle(name, ranges, spec, near=low_m, nothing=f"NaN or outside of {low_m:g} m to {high_m:g} m")


def resample(name: str, values: NDArray[Any], spec: FieldSpec, angles_rad: Angles) -> NDArray[Any]:
    """Return the values at the fixed angles of `spec`, if it has any; raises InvalidReadingError for invalid angles."""
    if spec.resample is None:
        return values
    try:
        return resample_scan(values, *angles_rad, spec.resample)
    except ValueError as error:
        raise InvalidReadingError(f"{name} cannot be resampled: {error}") from None


def settle_depth(name: str, depth: NDArray[Any], spec: FieldSpec, *, nothing: str = "NaN") -> NDArray[Any]:
    """Reject negative depths, which REP-118 does not define; then `settle`."""
    if count := np.count_nonzero(np.isfinite(depth) & (depth < 0)):
        raise InvalidReadingError(f"{count} of {depth.size} values of {name} are negative (expected depths >= 0 m)")
    return settle(name, depth, spec, nothing=nothing)


def to_units(metres: NDArray[Any], metres_per_unit: float) -> NDArray[np.uint16]:
    """Round depths to the integer units of the message; 0 means no measurement."""
    units = np.rint(metres.astype(np.float64) / metres_per_unit)
    known = np.isfinite(units) & (units >= 0) & (units <= np.iinfo(np.uint16).max)
    return np.where(known, units, 0.0).astype(np.uint16)


def from_units(units: NDArray[Any], metres_per_unit: float) -> NDArray[np.float32]:
    """Return depths in metres; NaN for 0 (REP-118)."""
    depth: NDArray[np.float32] = np.multiply(units, np.float32(metres_per_unit), dtype=np.float32)
    np.copyto(depth, np.nan, where=units == 0)
    return depth


_ROUNDING = 1e-9  # relative asymmetry and negative eigenvalues that are attributed to rounding of an estimator


def position_confidence(covariance: FloatArray, radius_m: float) -> float:
    """Return the probability that the true position is within `radius_m` of the reported one, along the worst axis.

    For a Gaussian error of standard deviation sigma: erf(radius / (sigma * sqrt(2))), with sigma^2 the largest
    eigenvalue of the covariance of x, y, z. NaN for an invalid covariance: zero (in ROS: unknown), not finite, not
    symmetric, or with a negative eigenvalue. Shape (36,), by rows, as in geometry_msgs/PoseWithCovariance.
    """
    block = np.asarray(covariance, dtype=np.float64).reshape(6, 6)[:3, :3]
    if not np.isfinite(covariance).all():
        return math.nan
    scale = float(np.abs(block).max())
    if scale == 0.0:
        return math.nan
    block = block / scale  # avoids overflow
    if float(np.abs(block - block.T).max()) > _ROUNDING:
        return math.nan
    variances = np.linalg.eigvalsh(block)  # ascending
    if variances[0] < -_ROUNDING or variances[-1] <= 0.0:
        return math.nan
    sigma_m = math.sqrt(scale) * math.sqrt(float(variances[-1]))
    return math.erf(radius_m / (math.sqrt(2.0) * sigma_m))
