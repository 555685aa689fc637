"""Statistics of the columns of a LeRobot dataset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

_MOMENTS = ("min", "max", "mean", "std")
_QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}


def new_statistics(features: Mapping[str, Mapping[str, Any]]) -> dict[str, RunningStatistics]:
    """Return empty statistics of each column, without those of depth images and other arrays.

    LeRobot would normalise each of their pixels by itself, and cannot join statistics of such a shape.
    """
    found = {}
    for name, feature in features.items():
        shape, dtype = tuple(feature["shape"]), feature["dtype"]
        if dtype == "image" or len(shape) == 1:
            found[name] = RunningStatistics(shape, is_image=dtype == "image", has_quantiles=dtype == "float32")
    return found


class RunningStatistics:
    """Minimum, maximum, mean and standard deviation of each element, over the finite ones of `count` values.

    Those of an image are per channel, of shape (channels, 1, 1), of pixels between 0 and 1. With `has_quantiles` the
    values are kept, as float32, and the quantiles are exact.

    Attributes:
        names: of the statistics, without ``count``.
        shape: of each statistic.
    """

    def __init__(self, shape: tuple[int, ...], *, is_image: bool = False, has_quantiles: bool = False) -> None:
        self.count = 0
        self.names = (*_MOMENTS, *_QUANTILES) if has_quantiles else _MOMENTS
        self._is_image = is_image
        self.shape = (shape[2], 1, 1) if is_image else shape or (1,)
        self._known = np.zeros(self.shape)
        self._mean = np.zeros(self.shape)
        self._spread = np.zeros(self.shape)  # sum of squared distances from the mean
        self._min = np.full(self.shape, np.inf)
        self._max = np.full(self.shape, -np.inf)
        self._kept: list[NDArray[np.float32]] | None = [] if has_quantiles else None

    def add(self, value: Any) -> None:  # noqa: ANN401 - an array, or a number
        """Add one value."""
        self.count += 1
        array = np.asarray(value, dtype=np.float64)
        if self._is_image:
            pixels = array.reshape(-1, array.shape[2]) / 255.0
            found = [pixels.mean(0), pixels.var(0) * len(pixels), pixels.min(0), pixels.max(0)]
            self._join(np.full(self.shape, float(len(pixels))), *(part.reshape(self.shape) for part in found))
        else:
            array = array.reshape(self.shape)
            finite = np.isfinite(array)
            mean, low, high = (np.where(finite, array, unknown) for unknown in (0.0, np.inf, -np.inf))
            self._join(finite.astype(np.float64), mean, np.zeros(self.shape), low, high)
            if self._kept is not None:
                self._kept.append(np.where(finite, array, np.nan).astype(np.float32))

    def merge(self, other: RunningStatistics) -> None:
        """Add the values of `other`."""
        self.count += other.count
        self._join(other._known, other._mean, other._spread, other._min, other._max)
        if self._kept is not None:
            self._kept += other._kept or []

    @property
    def is_known(self) -> bool:
        """Whether every element had a finite value."""
        return bool((self._known > 0).all())

    def as_json(self) -> dict[str, Any]:
        """Return the statistics as nested lists, with None for an element without a finite value."""
        unknown = self._known == 0
        deviation = np.sqrt(self._spread / np.where(unknown, 1.0, self._known))
        found = {"min": self._min, "max": self._max, "mean": self._mean, "std": deviation}
        if self._kept:
            kept = np.where(unknown, 0.0, np.stack(self._kept))
            found |= dict(zip(_QUANTILES, np.nanquantile(kept, [*_QUANTILES.values()], axis=0), strict=True))
        return {
            **{name: np.where(unknown, None, values).tolist() for name, values in found.items()},  # type: ignore[call-overload] # numpy has no type for arrays with None
            "count": [self.count],
        }

    def _join(self, known: FloatArray, mean: FloatArray, spread: FloatArray, low: FloatArray, high: FloatArray) -> None:
        """Join two samples, after Chan, Golub and LeVeque (1979), "Updating formulae"."""
        total = self._known + known
        share = known / np.where(total == 0, 1.0, total)
        apart = mean - self._mean
        self._spread += spread + apart**2 * self._known * share
        self._mean += apart * share
        self._known = total
        np.minimum(self._min, low, out=self._min)
        np.maximum(self._max, high, out=self._max)
