"""Select the camera images of an episode that a report shows, and convert them to JPEG."""

from __future__ import annotations

import base64
import importlib.util
import io
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embodied_env.errors import RecordError
from embodied_env.extensions.report.time_series import BoundedDict, Sparse
from embodied_env.record.arrays import Reference, references
from embodied_env.record.row_types import RecordedRow

MOST_CAMERAS = 8
MOST_FRAMES = 8
"""Images of a camera in an episode that are shown."""

_DIMENSIONS = 3  # dimensions of an image: height, width, channels
_WIDEST = 240  # pixels of an image in the page
_QUALITY = 72  # quality of a JPEG
_GREYS = (2.0, 90.0)  # percentiles of a depth image that are drawn darkest and lightest


class KeyFrame(NamedTuple):
    """An image as JPEG in base 64, "" if it cannot be shown, its caption, and a note on both."""

    caption: str
    jpeg: str
    note: str


class KeyFrames:
    """Images of each camera, evenly over an episode, with its first and its last image."""

    def __init__(self, bgr: Collection[str] = ()) -> None:
        """Start without images, with `bgr` the cameras whose first channel is blue."""
        self._bgr = bgr
        self._kept: BoundedDict[str, Sparse[tuple[int, Reference]]] = BoundedDict(
            lambda: Sparse(2 * MOST_FRAMES), MOST_CAMERAS
        )
        self._last: dict[str, tuple[int, Reference]] = {}

    def add(self, step: int, row: RecordedRow) -> None:
        """Add the observation of a row of `step`, or of the reset before step 1."""
        for path, reference in references(row["observation"]):
            camera = path or "observation"
            if is_image(reference) and (kept := self._kept.entry(camera)) is not None:
                self._last[camera] = step, reference
                kept.add((step, reference))

    def frames(self) -> dict[str, list[tuple[int, Reference]]]:
        """Return step and reference of at most `MOST_FRAMES` different images of each camera."""
        found = {}
        for camera, sparse in self._kept.items():
            first_of: dict[str, tuple[int, Reference]] = {}
            for step, reference in (*sparse.kept, self._last[camera]):
                first_of.setdefault(reference["sha256"], (step, reference))
            unique = list(first_of.values())
            places = np.linspace(0, len(unique) - 1, min(len(unique), MOST_FRAMES)).round().astype(int)
            found[camera] = [unique[place] for place in places]
        return found

    def pictures(self, read_array: Callable[[Mapping[str, Any]], NDArray[Any]]) -> dict[str, list[KeyFrame]]:
        """Return the pictures of each camera, read by ``Run.array``, which requires Pillow."""
        return {
            camera: [
                _picture(f"step {step}" if step else "reset", reference, read_array, is_bgr=camera in self._bgr)
                for step, reference in frames
            ]
            for camera, frames in self.frames().items()
        }


def _picture(
    caption: str, reference: Reference, read_array: Callable[[Mapping[str, Any]], NDArray[Any]], *, is_bgr: bool
) -> KeyFrame:
    try:
        return KeyFrame(caption, *jpeg_base64(read_array(reference), is_bgr=is_bgr))
    except (RecordError, ValueError, TypeError, OSError) as error:
        return KeyFrame(caption, "", f"the image cannot be shown: {error}")


def can_draw() -> bool:
    """Return whether Pillow is installed."""
    return importlib.util.find_spec("PIL") is not None


def is_image(reference: Reference) -> bool:
    """Return whether a reference is to images with 1 channel, or 3 or 4 of uint8."""
    *size, channels = reference["shape"][-_DIMENSIONS:] or (0,)
    is_drawable = channels == 1 or (channels in (3, 4) and reference["dtype"] == "uint8")
    return len(size) == 2 and len(reference["shape"]) <= _DIMENSIONS + 1 and all(reference["shape"]) and is_drawable


def jpeg_base64(image: NDArray[Any], *, is_bgr: bool = False) -> tuple[str, str]:
    """Return `image` as JPEG in base 64, and a note on its grey scale or "".

    Its shape is (height, width, 1, 3 or 4) for uint8. One channel of other numbers is drawn in grey, black where they
    are not finite.
    """
    from PIL import Image

    pixels, note = _as_bytes(image[-1] if image.ndim > _DIMENSIONS else image)  # the newest of a history
    if is_bgr and pixels.shape[-1] > 1:
        pixels = pixels[..., 2::-1]  # RGB, without alpha
    stride = max(1, math.ceil(pixels.shape[1] / _WIDEST))
    pixels = np.ascontiguousarray(pixels[::stride, ::stride])
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    buffer = io.BytesIO()
    picture.convert("L" if picture.mode == "L" else "RGB").save(buffer, format="JPEG", quality=_QUALITY, optimize=True)
    return base64.b64encode(buffer.getvalue()).decode("ascii"), note


def _as_bytes(image: NDArray[Any]) -> tuple[NDArray[np.uint8], str]:
    if image.dtype == np.uint8:
        return image, ""
    values = image.astype(np.float64)
    good = np.isfinite(values)
    if not good.any():
        return np.zeros(image.shape, np.uint8), "no finite value"
    least, most = np.percentile(values[good], _GREYS).tolist()
    share = np.clip((np.where(good, values, least) - least) / (most - least or 1.0), 0.0, 1.0)
    grey = np.where(good, 40.0 + 215.0 * share, 0.0)
    return grey.astype(np.uint8), f"dark: {least:.3g} or less, light: {most:.3g} or more"
