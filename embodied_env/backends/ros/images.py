"""Images: pixels as uint8 (height, width, channels), depth as float32 metres (height, width, 1)."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.backends.ros.fields import Field, MalformedMessageError, Message, ReadField
from embodied_env.contract.messages import ENCODINGS
from embodied_env.contract.ranging import from_units, settle_depth
from embodied_env.errors import MissingDependencyError

_CODECS = {"jpeg": "JPEG", "jpg": "JPEG", "png": "PNG"}
_MODES = {"rgb8": "RGB", "mono8": "L"}  # of Pillow


def image_reader(field: Field) -> ReadField:
    """Return the reader of an Image, in the encoding that the contract declares and no other."""
    name = field.sensor.encoding or ""
    encoding = ENCODINGS[name]
    raw = np.dtype(encoding.dtype).newbyteorder("<")

    def read(message: Message) -> NDArray[Any]:
        if message.encoding != name:
            raise MalformedMessageError(f"encoding is {message.encoding!r}; the contract declares {name!r}")
        if raw.itemsize > 1 and message.is_bigendian:
            raise MalformedMessageError("is_bigendian is set; little-endian pixels are read")
        _check_size(field, message.width, message.height)
        pixels: NDArray[Any] = np.ndarray(field.shape, raw, message.data, strides=_strides(message, field, raw))
        if encoding.metres_per_unit is None:
            return pixels.copy()
        if raw.kind == "f":
            return settle_depth(field.name, pixels.astype(field.dtype), field.spec)
        return settle_depth(field.name, from_units(pixels, encoding.metres_per_unit), field.spec, nothing="0")

    return read


def _check_size(field: Field, width: int, height: int) -> None:
    rows, columns = field.shape[:2]
    if (width, height) != (columns, rows):
        raise MalformedMessageError(f"the image is {width} x {height}; the contract declares {columns} x {rows}")


def _strides(message: Message, field: Field, raw: np.dtype[Any]) -> tuple[int, int, int]:
    """Return the bytes from row to row, pixel to pixel and channel to channel. Rows may end in padding."""
    height, width, channels = field.shape
    pixel = channels * raw.itemsize
    if message.step < width * pixel:
        raise MalformedMessageError(f"step is {message.step}; a row of {width} pixels needs {width * pixel}")
    if len(message.data) != height * message.step:
        raise MalformedMessageError(
            f"data has {len(message.data)} bytes; {height} rows of step {message.step} have {height * message.step}"
        )
    return message.step, pixel, raw.itemsize


def compressed_reader(field: Field) -> ReadField:
    """Return the reader of a CompressedImage, JPEG or PNG.

    Raises:
        MissingDependencyError: without Pillow.
    """
    try:
        from PIL import Image  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingDependencyError(
            f"Pillow ({error})",
            needed_for=f"the CompressedImage of sensors.{field.layout.sensor}",
            remedy='pip install "embodied_env[images]"',
        ) from None
    wanted_size = (field.shape[1], field.shape[0])
    wanted_mode = _MODES[field.sensor.encoding or ""]

    def read(message: Message) -> NDArray[Any]:
        codec = _codec(message.format)
        try:
            with Image.open(io.BytesIO(message.data), formats=[codec]) as image:
                size, mode = image.size, image.mode
                pixels = image.tobytes() if size == wanted_size and mode == wanted_mode else b""
        except Exception as error:  # decoders of damaged data raise what they like
            raise MalformedMessageError(f"the {codec} cannot be decoded: {error}") from error
        _check_size(field, *size)
        if mode != wanted_mode:
            raise MalformedMessageError(f"the {codec} has mode {mode}; the contract declares {field.sensor.encoding}")
        return np.frombuffer(pixels, dtype=field.dtype).reshape(field.shape).copy()  # what Pillow gives is read-only

    return read


def _codec(text: str) -> str:
    """Read a format: ``png``, or as image_transport writes it, ``rgb8; jpeg compressed bgr8``."""
    words = text.rpartition(";")[2].split()
    if not words or words[0] not in _CODECS or (len(words) > 1 and words[1] != "compressed"):
        raise MalformedMessageError(f"format is {text!r}; jpeg and png are read")
    return _CODECS[words[0]]
