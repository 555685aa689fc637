"""Resize images of contracts and policy files, bit for bit as Pillow does."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract.sensor_schema import ResizeSpec
from embodied_env.core.plugin_loading import import_optional

_FILTERS = {"area": "BOX"}  # where the name is not Pillow's


def import_pillow(needed_for: str) -> Any:  # noqa: ANN401 - a module
    """Return PIL with Image and ImageOps, or raise MissingDependencyError."""
    import_optional("PIL.ImageOps", needed_for=needed_for)  # imports Image
    return import_optional("PIL", needed_for=needed_for)


def resize_image(image: NDArray[Any], spec: ResizeSpec, padding: float = 0) -> NDArray[Any]:
    """Return `image`, uint8 or float32, (height, width, channels), in the size of `spec`.

    `stretch` ignores the aspect ratio (Pillow's `Image.resize`), `letterbox` pads (`ImageOps.pad`) and `crop` cuts off
    what exceeds it (`ImageOps.fit`).
    """
    pil = import_pillow("the key resize of an image")
    picture = pil.Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else np.ascontiguousarray(image))
    size = (spec.size[1], spec.size[0])
    resampling = pil.Image.Resampling[_FILTERS.get(spec.resample, spec.resample.upper())]
    if spec.method == "stretch":
        resized = picture.resize(size, resampling)
    elif spec.method == "crop":
        resized = pil.ImageOps.fit(picture, size, resampling)
    else:
        resized = pil.ImageOps.pad(picture, size, resampling, padding)
    return np.array(resized).reshape(*spec.size, image.shape[2])


def pixels_sha256(pixels: NDArray[Any]) -> str:
    """Return the SHA-256 (hex) of the pixels of a message, by rows, little-endian."""
    return hashlib.sha256(pixels.astype(pixels.dtype.newbyteorder("<"), copy=False).tobytes()).hexdigest()
