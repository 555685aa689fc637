"""Images as PNG: without loss, and read by everything."""

from __future__ import annotations

import io
from typing import Any

from numpy.typing import NDArray

from embodied_env.record.export.libraries import library


def png(image: NDArray[Any]) -> bytes:
    """Return `image`, uint8 of (height, width, 1, 3 or 4), as PNG.

    Raises:
        MissingDependencyError: without pillow.
    """
    pillow = library("PIL.Image", needed_for="exporting images")
    file = io.BytesIO()
    pillow.fromarray(image[..., 0] if image.shape[2] == 1 else image).save(file, format="PNG", compress_level=1)
    return file.getvalue()
