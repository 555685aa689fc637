"""Split observations and actions of any space into named arrays, each of one dtype and shape."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from embodied_env.core.plugin_loading import import_optional
from embodied_env.errors import RecordError
from embodied_env.record.arrays import is_reference

Arrays = Mapping[str, NDArray[Any]]
"""Arrays by key, which is "" for a value that is a single array."""

Load = Callable[[Mapping[str, Any]], NDArray[Any]]
"""Returns the array of a reference."""

library = functools.partial(import_optional, needed_for="this export")

_PNG_CHANNELS = (1, 3, 4)


@dataclass(frozen=True, kw_only=True)
class ArrayField:
    """One array of a space."""

    dtype: str  # NumPy name
    shape: tuple[int, ...]  # shape of one value

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=int))

    @property
    def is_image(self) -> bool:
        """Whether PNG stores it losslessly, as it does uint8 images.

        Their shape is (height, width, channels) with 1, 3 or 4 channels.
        """
        return self.dtype == "uint8" and len(self.shape) == 3 and self.shape[2] in _PNG_CHANNELS

    def array(self, value: Any, load: Load) -> NDArray[Any] | None:  # noqa: ANN401 - JSON types
        """Return a recorded value as an array, null as NaN, or None if it does not have this shape."""
        found = _to_array(value, load)
        if found is None or found.shape != self.shape:
            return None
        dtype = np.dtype(self.dtype)
        if dtype.kind != "f" and found.dtype.kind == "f":  # an unknown integer cannot be represented
            return None
        return found.astype(dtype, copy=False)

    def unknown(self) -> NDArray[Any]:
        """Return NaN in this shape, or raise RecordError for a dtype without NaN."""
        if np.dtype(self.dtype).kind != "f":
            raise RecordError(f"cannot export an unknown value as {self.dtype} {self.shape} (expected a float dtype)")
        return np.full(self.shape, np.nan, self.dtype)


Leaves = Mapping[str, ArrayField]


def is_finite(arrays: Arrays) -> bool:
    """Return whether every element is known and finite."""
    return all(np.isfinite(array).all() for array in arrays.values())


def leaves_of_space(space: gymnasium.Space[Any]) -> dict[str, ArrayField]:
    """Return the leaves of a Box, or of a Dict of Boxes."""
    boxes = space.spaces if isinstance(space, spaces.Dict) else {"": space}
    return {key: ArrayField(dtype=str(np.dtype(box.dtype)), shape=tuple(box.shape or ())) for key, box in boxes.items()}


def leaves_of_value(value: Any, load: Load) -> dict[str, ArrayField]:  # noqa: ANN401 - JSON types
    """Return the leaves of a recorded value, for runs whose wrappers may have changed the space.

    Numbers in lists become float64, which has NaN for unknown values. Raises RecordError unless all leaves are numeric.
    """
    leaves = {}
    for key, item in flatten(value).items():
        found = _to_array(item, load)
        if found is None:
            raise RecordError(f"cannot export {key or 'value'}: {item!r:.200} (expected a numeric array)")
        leaf = ArrayField(dtype=str(found.dtype), shape=found.shape)
        keeps_dtype = leaf.is_image or leaf.dtype == "float32"
        leaves[key] = leaf if keeps_dtype else ArrayField(dtype="float64", shape=leaf.shape)
    return leaves


def flatten(value: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON types
    """Return the arrays of a value by key, in JSON types and with dotted keys for nested dicts."""
    if not isinstance(value, Mapping) or is_reference(value):
        return {"": value}
    found = {}
    for key, item in value.items():
        for below, leaf in flatten(item).items():
            found[f"{key}.{below}" if below else key] = leaf
    return found


def named(prefix: str, key: str) -> str:
    """Return the name of a column, such as ``observation.joints_position``.

    A single array has a name such as ``action``.
    """
    return f"{prefix}.{key}" if key else prefix


def _to_array(value: Any, load: Load) -> NDArray[Any] | None:  # noqa: ANN401 - JSON types
    """Return a reference or nested lists as an array, null as NaN, or None for ragged lists and other types."""
    if is_reference(value):
        return load(value)
    try:
        array = np.asarray(value)
        if array.dtype.kind == "O":
            array = array.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        return None
    return array if array.dtype.kind in "biuf" else None


def png(image: NDArray[Any]) -> bytes:
    """Return `image`, uint8 of (height, width, 1, 3 or 4), as PNG."""
    pillow = library("PIL.Image")
    file = io.BytesIO()
    pillow.fromarray(image[..., 0] if image.shape[2] == 1 else image).save(file, format="PNG", compress_level=1)
    return file.getvalue()
