"""How far a reported position can be trusted, by its covariance."""

from __future__ import annotations

import math

import numpy as np

from embodied_env.contract.model import FloatArray

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
