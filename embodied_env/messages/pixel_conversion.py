"""Convert the pixels of cameras that send no RGB but YUV422, NV12 or Bayer patterns.

YUV: the integers of OpenCV (`modules/imgproc/src/color_yuv.simd.hpp`), which cv_bridge uses, for ITU-R BT.601 with Y
from 16 to 235. With y = 1220542 max(0, Y - 16), u = U - 128, v = V - 128 and c = 2^19::

    R = (y + 1673527 v + c) >> 20
    G = (y - 852492 v - 409993 u + c) >> 20
    B = (y + 2116026 u + c) >> 20

each from 0 to 255. The samples U and V of two pixels (4:2:2) or four (NV12) hold for each of them.

Bayer: bilinear, the mean of the two or four nearest samples of a colour, halves up, as in OpenCV
(`modules/imgproc/src/demosaicing.cpp`). At the border, the samples are mirrored; OpenCV repeats the pixels next to it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Convert = Callable[[Bytes], Bytes]
"""Returns a new image in RGB, shape (height, width, 3), of the rows of a message, shape (rows, bytes in a row)."""


def yuv422(order: str) -> Convert:
    """Return the conversion of YUV422 with the samples of two pixels in this order, such as ``yuyv``."""
    return partial(_from_422, luma=order.index("y"), u=order.index("u"), v=order.index("v"))


def bayer(pattern: str) -> Convert:
    """Return the conversion of a Bayer pattern given by two colours in even and two in odd rows, such as ``rggb``."""
    return partial(_from_bayer, pattern=pattern)


def nv12(rows: Bytes) -> Bytes:
    """Convert NV12, the rows of Y followed by those of alternating U and V at half the resolution."""
    height = rows.shape[0] * 2 // 3
    chroma = rows[height:].repeat(2, axis=0)
    return _from_yuv(rows[:height], chroma[:, 0::2].repeat(2, axis=1), chroma[:, 1::2].repeat(2, axis=1))


def _from_422(rows: Bytes, *, luma: int, u: int, v: int) -> Bytes:
    return _from_yuv(rows[:, luma::2], rows[:, u::4].repeat(2, axis=1), rows[:, v::4].repeat(2, axis=1))


def _from_yuv(luma: Bytes, blue: Bytes, red: Bytes) -> Bytes:
    y = 1220542 * np.maximum(luma.astype(np.int32) - 16, 0) + (1 << 19)
    u, v = blue.astype(np.int32) - 128, red.astype(np.int32) - 128
    colours = np.stack([y + 1673527 * v, y - 852492 * v - 409993 * u, y + 2116026 * u], axis=-1)
    pixels: Bytes = np.clip(colours >> 20, 0, 255).astype(np.uint8)
    return pixels


def _from_bayer(rows: Bytes, *, pattern: str) -> Bytes:
    mirrored: NDArray[Any] = np.pad(rows, 1, mode="reflect").astype(np.uint16)
    image = np.empty((*rows.shape, 3), np.uint8)
    for channel, colour in enumerate("rgb"):
        own = np.zeros_like(mirrored)
        for place in (place for place, found in enumerate(pattern) if found == colour):
            part = slice(1 - place // 2, None, 2), slice(1 - place % 2, None, 2)  # after the mirrored row and column
            own[part] = mirrored[part]
        middle, beside = own[1:-1], own[:-2] + own[2:]
        if colour == "g":
            four = 4 * middle[:, 1:-1] + middle[:, :-2] + middle[:, 2:] + beside[:, 1:-1]
        else:
            three = 2 * middle + beside
            four = 2 * three[:, 1:-1] + three[:, :-2] + three[:, 2:]
        image[..., channel] = (four + 2) >> 2
    return image
