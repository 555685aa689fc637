"""Statistics of columns that are taken in value by value, and kept in a few numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


class Running:
    """Least, greatest, mean and standard deviation of each element; values that are not finite do not count.

    Of an image they are per channel, shaped (channels, 1, 1), of pixels between 0 and 1.

    Attributes:
        count: values taken in.
    """

    def __init__(self, shape: tuple[int, ...], *, is_image: bool = False) -> None:
        """Begin with no value of `shape`; a scalar has the shape (1,)."""
        self.count = 0
        self._is_image = is_image
        self._shape = (shape[2], 1, 1) if is_image else shape or (1,)
        self._known = np.zeros(self._shape)
        self._mean = np.zeros(self._shape)
        self._spread = np.zeros(self._shape)  # sum of squared distances from the mean
        self._least = np.full(self._shape, np.inf)
        self._greatest = np.full(self._shape, -np.inf)

    def add(self, value: Any) -> None:  # noqa: ANN401 - an array, or a number
        """Take in one value."""
        self.count += 1
        array = np.asarray(value, dtype=np.float64)
        if self._is_image:
            pixels = array.reshape(-1, array.shape[2]) / 255.0
            mean = pixels.mean(0).reshape(self._shape)
            spread = pixels.var(0).reshape(self._shape) * len(pixels)
            known = np.full(self._shape, float(len(pixels)))
            self._join(known, mean, spread)
            low, high = pixels.min(0).reshape(self._shape), pixels.max(0).reshape(self._shape)
        else:
            array = array.reshape(self._shape)
            finite = np.isfinite(array)
            self._join(finite.astype(np.float64), np.where(finite, array, 0.0), np.zeros(self._shape))
            low, high = np.where(finite, array, np.inf), np.where(finite, array, -np.inf)
        np.minimum(self._least, low, out=self._least)
        np.maximum(self._greatest, high, out=self._greatest)

    def merge(self, other: Running) -> None:
        """Take in what another has taken in."""
        self.count += other.count
        self._join(other._known, other._mean, other._spread)
        np.minimum(self._least, other._least, out=self._least)
        np.maximum(self._greatest, other._greatest, out=self._greatest)

    @property
    def is_known(self) -> bool:
        """Whether something was known of every element."""
        return bool((self._known > 0).all())

    def as_json(self) -> dict[str, Any]:
        """Return them as nested lists; None for an element of which nothing was known."""
        unknown = self._known == 0
        deviation = np.sqrt(self._spread / np.where(unknown, 1.0, self._known))
        found = {"min": self._least, "max": self._greatest, "mean": self._mean, "std": deviation}
        return {
            **{name: np.where(unknown, None, values).tolist() for name, values in found.items()},  # type: ignore[call-overload] # numpy has no type for arrays with None
            "count": [self.count],
        }

    def _join(self, known: FloatArray, mean: FloatArray, spread: FloatArray) -> None:
        """Join two samples, after Chan, Golub and LeVeque (1979), "Updating formulae"."""
        total = self._known + known
        share = known / np.where(total == 0, 1.0, total)
        apart = mean - self._mean
        self._spread += spread + apart**2 * self._known * share
        self._mean += apart * share
        self._known = total
