"""Images as uint8 (height, width, channels), or depth as float32, m, (height, width, 1)."""

from __future__ import annotations

import array
import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.errors import MissingDependencyError
from embodied_env.messages.declaration import (
    Column,
    Content,
    Field,
    InvalidReadingError,
    Message,
    MessageField,
    Read,
    SensorMessage,
    Shape,
    Window,
    packed,
    settle,
)
from embodied_env.messages.ranges import check_rows

Bytes = NDArray[np.uint8]
Convert = Callable[[Bytes], Bytes]
"""Returns a new image in RGB, shape (height, width, 3), of the rows of a message, shape (rows, bytes in a row)."""

_CODECS = {"jpeg": "JPEG", "jpg": "JPEG", "png": "PNG"}
_MODES = {"rgb8": "RGB", "mono8": "L"}  # encoding -> mode of Pillow


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """The pixels of an image as they are read, and how a message holds them.

    `metres_per_unit` is set for depth images, `to_rgb` for images that are converted. `divisor` is that of height and
    width. The rows of a converted image have `row_bytes` for each pixel, and there are `half_rows` for two of its rows.
    """

    channels: int
    dtype: str = "uint8"
    metres_per_unit: float | None = None
    to_rgb: Convert | None = None
    divisor: tuple[int, int] = (1, 1)
    row_bytes: int = 1
    half_rows: int = 2


# YUV: the integers of OpenCV (`modules/imgproc/src/color_yuv.simd.hpp`), which cv_bridge uses, for ITU-R BT.601 with Y
# from 16 to 235. Bayer: the mean of the two or four nearest samples of a colour, halves up, as in OpenCV
# (`modules/imgproc/src/demosaicing.cpp`), with mirrored samples at the border.


def _from_422(rows: Bytes, *, order: str) -> Bytes:
    """Convert YUV422 with the samples of two pixels in this order, such as ``yuyv``."""
    luma, u, v = map(order.index, "yuv")
    return _from_yuv(rows[:, luma::2], rows[:, u::4].repeat(2, axis=1), rows[:, v::4].repeat(2, axis=1))


def _from_nv12(rows: Bytes) -> Bytes:
    """Convert NV12, rows of Y and then of alternating U and V at half the resolution."""
    height = rows.shape[0] * 2 // 3
    chroma = rows[height:].repeat(2, axis=0)
    return _from_yuv(rows[:height], chroma[:, 0::2].repeat(2, axis=1), chroma[:, 1::2].repeat(2, axis=1))


def _from_yuv(luma: Bytes, blue: Bytes, red: Bytes) -> Bytes:
    y = 1220542 * np.maximum(luma.astype(np.int32) - 16, 0) + (1 << 19)
    u, v = blue.astype(np.int32) - 128, red.astype(np.int32) - 128
    colours = np.stack([y + 1673527 * v, y - 852492 * v - 409993 * u, y + 2116026 * u], axis=-1)
    pixels: Bytes = np.clip(colours >> 20, 0, 255).astype(np.uint8)
    return pixels


def _from_bayer(rows: Bytes, *, pattern: str) -> Bytes:
    """Convert a Bayer pattern of two colours in even and two in odd rows, such as ``rggb``."""
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


def _yuv422(order: str) -> Encoding:
    return Encoding(channels=3, to_rgb=partial(_from_422, order=order), divisor=(1, 2), row_bytes=2)


ENCODINGS: Mapping[str, Encoding] = {  # encodings of sensor_msgs/Image; those of depth follow REP-118
    "rgb8": Encoding(channels=3),
    "bgr8": Encoding(channels=3),
    "rgba8": Encoding(channels=4),
    "bgra8": Encoding(channels=4),
    "mono8": Encoding(channels=1),
    "mono16": Encoding(channels=1, dtype="uint16"),
    "yuv422": _yuv422("uyvy"),
    "uyvy": _yuv422("uyvy"),
    "yuv422_yuy2": _yuv422("yuyv"),
    "yuyv": _yuv422("yuyv"),
    "nv12": Encoding(channels=3, to_rgb=_from_nv12, divisor=(2, 2), half_rows=3),
    **{
        f"bayer_{pattern}8": Encoding(channels=3, to_rgb=partial(_from_bayer, pattern=pattern), divisor=(2, 2))
        for pattern in ("rggb", "bggr", "gbrg", "grbg")
    },
    "32FC1": Encoding(channels=1, dtype="float32", metres_per_unit=1.0),
    "16UC1": Encoding(channels=1, dtype="uint16", metres_per_unit=0.001),
}


@dataclass(frozen=True, kw_only=True)
class _Pixels(MessageField):
    """The pixels of an Image in the encoding that the contract declares."""

    shape: Shape | None = (None, None, None)  # height, width, channels
    units: tuple[str, ...] | None = ("1",)
    dtype: str = "uint8"
    column: Column = "image"

    def reader(self, field: Field) -> Read:
        encoding = ENCODINGS[field.encoding]
        raw, convert = np.dtype(encoding.dtype).newbyteorder("<"), encoding.to_rgb
        height, width, channels = field.shape
        pixel = encoding.row_bytes if convert else channels * raw.itemsize
        rows = height * encoding.half_rows // 2
        shape = (rows, width * pixel) if convert else field.shape

        def read(message: Message) -> NDArray[Any]:
            if message.encoding != field.encoding:
                raise InvalidReadingError(f"encoding is {message.encoding!r} (expected {field.encoding!r})")
            if raw.itemsize > 1 and message.is_bigendian:
                raise InvalidReadingError("is_bigendian is set (expected little-endian pixels)")
            _check_size(field, message.width, message.height)
            check_rows("step", message.step, width * pixel, rows, len(message.data))
            strides = (message.step, 1) if convert else (message.step, pixel, raw.itemsize)  # rows may end in padding
            pixels: NDArray[Any] = np.ndarray(shape, raw, message.data, strides=strides)
            return pixels.copy() if convert is None else convert(pixels)

        return read

    def accept(self, field: Field, values: NDArray[Any], window: Window) -> NDArray[Any]:  # noqa: ARG002
        metres_per_unit, nothing = ENCODINGS[field.encoding].metres_per_unit, "NaN"
        if values.dtype.kind == "u" and metres_per_unit is not None:
            values, nothing = _from_units(values, metres_per_unit), "0"
        if field.resize is not None:
            values = field.resize(values, padding=0 if metres_per_unit is None else math.nan)
        if metres_per_unit is None:
            return values
        if count := np.count_nonzero(np.isfinite(values) & (values < 0)):
            problem = f"{count} of {values.size} values of {field.name} are negative"
            raise InvalidReadingError(f"{problem} (expected depths >= 0 m, as REP-118 defines)")
        return settle(field, values, nothing=nothing)

    def write(self, message: Message, name: str, value: NDArray[Any] | None, content: Content) -> None:  # noqa: ARG002
        field = content.fields[name]
        pixels = as_pixels(field, content.values[name])
        message.height, message.width, channels = pixels.shape
        message.encoding = field.encoding
        message.step = message.width * channels * pixels.itemsize
        message.data = packed(pixels.astype(pixels.dtype.newbyteorder("<"), copy=False).ravel().view(np.uint8))


class _CompressedPixels(_Pixels):
    """The pixels of a JPEG or PNG, for which Pillow is needed."""

    def reader(self, field: Field) -> Read:
        image_module = _import_image(field)
        wanted_size, wanted_mode = (field.shape[1], field.shape[0]), _MODES[field.encoding]

        def read(message: Message) -> NDArray[Any]:
            codec = _codec(message.format)
            try:
                with image_module.open(io.BytesIO(message.data), formats=[codec]) as image:
                    size, mode = image.size, image.mode
                    pixels = image.tobytes() if size == wanted_size and mode == wanted_mode else b""
            except Exception as error:  # decoders raise many types for damaged data
                raise InvalidReadingError(f"the {codec} cannot be decoded: {error}") from error
            _check_size(field, *size)
            if mode != wanted_mode:
                raise InvalidReadingError(f"the {codec} has mode {mode} (expected {field.encoding})")
            return np.frombuffer(pixels, dtype=field.dtype).reshape(field.shape).copy()

        return read

    def write(self, message: Message, name: str, value: NDArray[Any] | None, content: Content) -> None:  # noqa: ARG002
        pixels, file = content.values[name], io.BytesIO()
        picture = _import_image(content.fields[name]).fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
        picture.save(file, "PNG", compress_level=1)
        message.format = "png"
        message.data = array.array("B", file.getvalue())


def with_encoding(known: MessageField, name: str) -> MessageField:
    """Return the field of an image with an encoding, in metres for depth."""
    encoding = ENCODINGS[name]
    shape = (None, None, encoding.channels)
    if encoding.metres_per_unit is not None:
        return replace(known, shape=shape, units=("m",), dtype="float32", ranging=True)
    return replace(known, shape=shape, dtype=encoding.dtype)


def as_pixels(field: Field, image: NDArray[Any]) -> NDArray[Any]:
    """Return an image as a new array in message units, depth in whole mm, 0 if unknown."""
    encoding = ENCODINGS[field.encoding]
    if encoding.dtype != "uint16" or encoding.metres_per_unit is None:
        return image.copy()
    units = np.rint(image.astype(np.float64) / encoding.metres_per_unit)
    known = np.isfinite(units) & (units >= 0) & (units <= np.iinfo(np.uint16).max)
    return np.where(known, units, 0.0).astype(np.uint16)


def _from_units(units: NDArray[Any], metres_per_unit: float) -> NDArray[np.float32]:
    """Return depths in metres, with NaN for 0 (REP-118)."""
    depth: NDArray[np.float32] = np.multiply(units, np.float32(metres_per_unit), dtype=np.float32)
    np.copyto(depth, np.nan, where=units == 0)
    return depth


def _check_size(field: Field, width: int, height: int) -> None:
    rows, columns = field.shape[:2]
    if (width, height) != (columns, rows):
        raise InvalidReadingError(f"the image is {width} x {height} (expected {columns} x {rows})")


def _codec(text: str) -> str:
    """Return the codec in a format of image_transport."""
    words = text.rpartition(";")[2].split()
    if not words or words[0] not in _CODECS or (len(words) > 1 and words[1] != "compressed"):
        raise InvalidReadingError(f"format is {text!r} (expected jpeg or png)")
    return _CODECS[words[0]]


def _import_image(field: Field) -> Any:  # noqa: ANN401 - a module
    try:
        from PIL import Image  # noqa: PLC0415 - an optional package
    except ImportError as error:
        cause = "" if isinstance(error, ModuleNotFoundError) else f" ({error})"
        raise MissingDependencyError(
            f"pillow{cause}", needed_for=f"the CompressedImage of sensors.{field.sensor}"
        ) from None
    return Image


MESSAGES = (
    SensorMessage(
        type="sensor_msgs/msg/Image",
        fields={"image": _Pixels()},
        encodings=tuple(ENCODINGS),
        sources=("camera",),
        invalid="the encoding or size differs; `step` is too small; the data is not `height` times `step` bytes. "
        "Depth: big-endian pixels, -inf, +inf without `no_return`, NaN without `nan`, a negative depth",
    ),
    SensorMessage(
        type="sensor_msgs/msg/CompressedImage",
        fields={"image": _CompressedPixels()},
        encodings=tuple(_MODES),
        is_computed=True,
        invalid="it is not a JPEG or PNG; it has another size; it cannot be decoded; it is grey for colour or "
        "colour for grey. Needs the extra `images`",
    ),
)
