"""Key frames of cameras: the images of a run that its report shows, and their conversion to PNG."""

from __future__ import annotations

import base64
import importlib.util
import io
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embodied_env.errors import RecordError
from embodied_env.record.arrays import Reference, references
from embodied_env.record.rows import RESET

MOST_CAMERAS = 8
_DIMENSIONS = 3  # of an image: height, width, channels
_WIDEST = 320  # pixels of an image in the page
_GREYS = (2.0, 90.0)  # percentiles of a depth image that are drawn darkest and lightest
_SLOTS = ("first", "success", "end", "last")


class _Frame(NamedTuple):
    when: str
    reference: Reference


class KeyFrames:
    """Keeps of each camera the first image, those at the first success and at the first other end, and the last."""

    def __init__(self) -> None:
        self.cameras_left_out: set[str] = set()
        self._kept: dict[str, dict[str, _Frame]] = {}

    def add(self, step: int, row: Mapping[str, Any]) -> None:
        """Add a row: of `step`, or of a reset after it."""
        at = f"reset before step {step + 1}" if row["schema"] == RESET else f"step {step}"
        for path, reference in references(row["observation"]):
            camera = path or "observation"
            if not is_image(reference):
                continue
            if camera not in self._kept and len(self._kept) >= MOST_CAMERAS:
                self.cameras_left_out.add(camera[:100])
                continue
            kept = self._kept.setdefault(camera, {})
            kept.setdefault("first", _Frame(f"first: {at}", reference))
            kept["last"] = _Frame(f"last: {at}", reference)
            if row.get("terminated") or row.get("truncated"):
                reason = str(row["info"].get("end_reason") or "ended")[:80]
                kept.setdefault("success" if reason == "success" else "end", _Frame(f"{reason}: {at}", reference))

    def frames(self) -> list[tuple[str, str, Reference]]:
        """Return camera, time and reference of each frame, by camera and in order; equal images only once."""
        found = []
        for camera, kept in self._kept.items():
            unique: dict[str, _Frame] = {}
            for slot in _SLOTS:
                if slot in kept:
                    unique.setdefault(kept[slot].reference["sha256"], kept[slot])
            found += [(camera, frame.when, frame.reference) for frame in unique.values()]
        return found

    def section(self, read_array: Callable[[Mapping[str, Any]], NDArray[Any]]) -> dict[str, Any]:
        """Return the frames with their captions; `read_array` is `embodied_env.record.Run.array`."""
        can_draw = importlib.util.find_spec("PIL") is not None
        pictures = []
        for camera, when, reference in self.frames() if can_draw else ():
            caption, png = f"{camera}, {when}", ""
            try:
                png, note = png_base64(read_array(reference))
                caption += f"; {note}" if note else ""
            except (RecordError, ValueError, TypeError, OSError) as error:
                caption += f": the image cannot be shown: {error}"
            pictures.append({"caption": caption, "png": png})
        more = len(self.cameras_left_out)
        return {"cameras": list(self._kept), "can_draw": can_draw, "pictures": pictures, "more": more}


def is_image(reference: Reference) -> bool:
    """Return whether a reference is to an image or several: uint8 with 1, 3 or 4 channels, or one of other numbers."""
    *size, channels = reference["shape"][-_DIMENSIONS:] or (0,)
    is_drawable = channels == 1 or (channels in (3, 4) and reference["dtype"] == "uint8")
    return len(size) == 2 and len(reference["shape"]) <= _DIMENSIONS + 1 and all(reference["shape"]) and is_drawable


def png_base64(image: NDArray[Any]) -> tuple[str, str]:
    """Return `image` as PNG in base 64, and a note on its grey scale or "".

    Its shape is (height, width, 1, 3 or 4) for uint8. One channel of other numbers is drawn in grey, black where they
    are not finite.
    """
    from PIL import Image  # noqa: PLC0415 - optional

    pixels, note = _as_bytes(image[-1] if image.ndim > _DIMENSIONS else image)  # the newest of a history
    stride = max(1, math.ceil(pixels.shape[1] / _WIDEST))
    pixels = np.ascontiguousarray(pixels[::stride, ::stride])
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
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
