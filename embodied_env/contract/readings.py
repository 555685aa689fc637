"""What a reading must be, whoever took it: numbers that fit their precision, orientations that are rotations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
