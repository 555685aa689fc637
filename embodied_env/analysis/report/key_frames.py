"""Key frames of cameras: which images of a run are shown, and how they get into a page."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.record.arrays import Reference, references
from embodied_env.record.rows import RESET

MOST_CAMERAS = 8
_WIDEST = 320  # pixels of an image in the page
_GREYS = (2.0, 90.0)  # percentiles of a depth image that are drawn darkest and lightest
_CHANNELS = (1, 3, 4)
_IMAGE = 3  # dimensions: height, width, channels


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One image that is shown: of which camera, when, and where in the log it is."""

    camera: str
    when: str
    reference: Reference


class KeyFrames:
    """Keeps, of each camera: the first image, those at the first success and at the first other end, and the last."""

    def __init__(self) -> None:
        """Begin with no row."""
        self.cameras_left_out: set[str] = set()
        self._kept: dict[str, dict[str, Frame]] = {}

    def add(self, step: int, row: Mapping[str, Any]) -> None:
        """Take in one row of the step number `step`, or of a reset behind it."""
        for path, reference in references(row.get("observation")):
            if is_image(reference):
                self._add(path or "observation", step, row, reference)

    def frames(self) -> list[Frame]:
        """Return the frames, by camera and in order; an image that is the same twice is shown once."""
        found = []
        for kept in self._kept.values():
            seen: set[str] = set()
            for slot in ("first", "success", "end", "last"):
                frame = kept.get(slot)
                if frame is not None and frame.reference["sha256"] not in seen:
                    seen.add(frame.reference["sha256"])
                    found.append(frame)
        return found

    def _add(self, camera: str, step: int, row: Mapping[str, Any], reference: Reference) -> None:
        if camera not in self._kept and len(self._kept) >= MOST_CAMERAS:
            self.cameras_left_out.add(camera[:100])
            return
        kept = self._kept.setdefault(camera, {})
        at = f"reset before step {step + 1}" if row.get("schema") == RESET else f"step {step}"
        kept.setdefault("first", Frame(camera=camera, when=f"first: {at}", reference=reference))
        kept["last"] = Frame(camera=camera, when=f"last: {at}", reference=reference)
        if row.get("terminated") is True or row.get("truncated") is True:
            info = row.get("info")
            reason = str(info.get("end_reason") if isinstance(info, Mapping) else "")[:80] or "ended"
            slot = "success" if reason == "success" else "end"
            kept.setdefault(slot, Frame(camera=camera, when=f"{reason}: {at}", reference=reference))


def is_image(reference: Reference) -> bool:
    """Say whether a reference is to an image: height, width and 1, 3 or 4 channels of numbers, all there."""
    shape = reference["shape"]
    return (
        len(shape) == _IMAGE
        and all(isinstance(size, int) and size > 0 for size in shape)
        and shape[-1] in _CHANNELS
        and (reference["dtype"] == "uint8" or shape[-1] == 1)
    )


def pillow_is_here() -> bool:
    """Say whether images can be drawn here."""
    try:
        import PIL.Image  # noqa: F401, PLC0415 - optional
    except ImportError:
        return False
    return True


def png_base64(image: NDArray[Any]) -> tuple[str, str]:
    """Return `image` as PNG in base 64, and what must be said of how it is drawn.

    Args:
        image: shape (height, width, 1, 3 or 4); uint8, or numbers of one channel, whose finite values are drawn in
            greys; what is not finite is black.
    """
    from PIL import Image  # noqa: PLC0415 - optional

    pixels, said = _pixels(image)
    every = max(1, math.ceil(pixels.shape[1] / _WIDEST))
    pixels = np.ascontiguousarray(pixels[::every, ::every])
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode("ascii"), said


def _pixels(image: NDArray[Any]) -> tuple[NDArray[np.uint8], str]:
    if image.dtype == np.uint8:
        return image, ""
    values = image.astype(np.float64)
    good = np.isfinite(values)
    if not good.any():
        return np.zeros(image.shape, np.uint8), "no finite value"
    least, most = np.percentile(values[good], _GREYS).tolist()
    span = most - least or 1.0
    share = np.clip((np.where(good, values, least) - least) / span, 0.0, 1.0)
    grey = np.where(good, 40.0 + 215.0 * share, 0.0)
    return grey.astype(np.uint8), f"dark: {least:.3g} or less, light: {most:.3g} or more"


Fetch = Callable[[Mapping[str, Any]], NDArray[Any]]
"""Returns the array of a reference; raises RecordError (`embodied_env.record.Run.array`)."""
