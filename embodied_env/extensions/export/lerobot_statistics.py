"""Statistics of the columns of a LeRobot dataset."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MOMENTS = ("min", "max", "mean", "std")
_QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}


def new_statistics(features: Mapping[str, Mapping[str, Any]]) -> dict[str, ColumnStatistics]:
    """Return empty statistics of each column, without those of depth images and other arrays.

    LeRobot would normalise each of their pixels by itself, and cannot join statistics of such a shape.
    """
    found = {}
    for name, feature in features.items():
        shape, dtype = tuple(feature["shape"]), feature["dtype"]
        if dtype == "image" or (len(shape) == 1 and dtype != "string"):
            found[name] = ColumnStatistics(shape, is_image=dtype == "image", has_quantiles=dtype == "float32")
    return found


class ColumnStatistics:
    """Minimum, maximum, mean and standard deviation of each element; an element that is once not finite has none.

    Those of an image are per channel, of shape (channels, 1, 1), of pixels between 0 and 1; of each image, four numbers
    per channel are kept. All other values are kept, with `has_quantiles` as float32, so that quantiles are exact.

    Attributes:
        names: of the statistics, without ``count``.
        shape: of each statistic.
    """

    def __init__(self, shape: tuple[int, ...], *, is_image: bool = False, has_quantiles: bool = False) -> None:
        self.count = 0
        self.names = (*_MOMENTS, *_QUANTILES) if has_quantiles else _MOMENTS
        self.shape = (shape[2], 1, 1) if is_image else shape
        self._is_image = is_image
        self._kept = array("f" if has_quantiles else "d")

    def add(self, value: Any) -> None:  # noqa: ANN401 - an array, or a number
        """Add one value."""
        self.count += 1
        kept = np.asarray(value)
        if self._is_image:
            pixels = kept.reshape(-1, kept.shape[2]) / 255.0
            kept = np.stack([pixels.min(0), pixels.max(0), pixels.mean(0), pixels.var(0)])
        self._kept.frombytes(kept.astype(self._kept.typecode).tobytes())

    def merge(self, other: ColumnStatistics) -> None:
        """Add the values of `other`."""
        self.count += other.count
        self._kept += other._kept

    @property
    def is_known(self) -> bool:
        """Whether every value was finite."""
        return bool(np.isfinite(np.array(self._kept)).all())

    def as_json(self) -> dict[str, Any]:
        """Return the statistics as nested lists, with None for an element that was once not finite."""
        found = self._of_images() if self._is_image else self._of_values()
        return {**{name: values.tolist() for name, values in found.items()}, "count": [self.count]}

    def _rows(self) -> NDArray[Any]:
        shape = (len(_MOMENTS), *self.shape) if self._is_image else self.shape
        return np.array(self._kept).reshape(self.count, *shape)

    def _of_images(self) -> dict[str, NDArray[Any]]:
        """Return those of all pixels: each image has as many."""
        low, high, means, variances = self._rows().swapaxes(0, 1)
        deviation = np.sqrt(variances.mean(0) + means.var(0))
        return dict(zip(_MOMENTS, (low.min(0), high.max(0), means.mean(0), deviation), strict=True))

    def _of_values(self) -> dict[str, NDArray[Any]]:
        rows = self._rows()
        unknown = ~np.isfinite(rows).all(axis=0)
        rows[:, unknown] = 0.0  # NumPy would warn
        mean, deviation = (function(rows, axis=0, dtype=np.float64) for function in (np.mean, np.std))
        found = [np.min(rows, axis=0), np.max(rows, axis=0), mean, deviation]
        if len(self.names) > len(_MOMENTS):
            found += [*np.quantile(rows, [*_QUANTILES.values()], axis=0)]
        none: Any = None
        return {name: np.where(unknown, none, values) for name, values in zip(self.names, found, strict=True)}
